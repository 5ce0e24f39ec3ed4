"""Messages to bytes and back: the only module that knows both the message types and the protobuf schema.

Every message is one entry of a table, which names the fields that need more than copying; writing and reading both use
it. A field has the same name in the message type and in the schema.

Reading is strict. Bytes that are not exactly one valid message raise one type of error: an unknown field or enum value,
a missing body, a wrong length, too many elements, text that is not UTF-8, an encoding longer than needed, or a body
that breaks its own invariants. No error of protobuf ever reaches a caller.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Literal, TypeVar

from google.protobuf.message import DecodeError, EncodeError, Message

from securefda.errors import ProtocolError
from securefda.protocol import messages as m
from securefda.protocol.build import MAX_CAPABILITIES, Build
from securefda.protocol.envelope import expect
from securefda.protocol.messages import Body, Envelope, Signed
from securefda.protocol.roster import MAX_SITES
from securefda.v1 import messages_pb2 as pb

MAX_LAYERS = 4096
MAX_SIDES = 16
MAX_NAME_BYTES = 64
MAX_INDEX = 2**31
MAX_ENVELOPE_BYTES = 3 << 19
"""Longer than any valid envelope with names in ASCII. A peer can make protobuf allocate about 30 times as much."""

MessageT = TypeVar("MessageT", bound=Message)


class WireError(ProtocolError):
    """Bytes or frames of a peer are no valid message. The check is always ``WIRE``; the text names the field."""

    def __init__(self, detail: str) -> None:
        super().__init__("WIRE", f"malformed message: {detail}")
        self.detail = detail


def encode(envelope: Envelope[Body]) -> bytes:
    """Serialise an envelope; what :class:`securefda.protocol.messages.Signer` signs.

    Raises:
        WireError: the envelope would not be read back: its body is of no known type or a number does not fit.
    """
    body = envelope.body
    try:
        name = BODY_FIELDS[type(body)]
        proto = pb.Envelope(
            suite=envelope.suite, session_id=envelope.session_id, sender=envelope.sender, context=envelope.context
        )
        getattr(proto, name).SetInParent()  # an empty body still has to be present
        getattr(proto, name).CopyFrom(_BODIES[name].encode(body))
        # Read back before it is signed: what a receiver would refuse never leaves.
        data = proto.SerializeToString(deterministic=True)
        _envelope(data)
    except (KeyError, ValueError, TypeError, EncodeError) as error:
        raise WireError(f"cannot encode {type(body).__name__}: {error}") from error
    return data


def decode(data: bytes) -> Envelope[Body]:
    """Parse a serialised envelope.

    Raises:
        WireError: the bytes are not exactly one valid envelope.
    """
    try:
        return _envelope(data)
    except ValueError as error:
        raise WireError(str(error)) from error


def encode_signed(message: Signed[Any]) -> bytes:
    """Serialise a signed message with its signed bytes verbatim."""
    return signed_to_proto(message).SerializeToString(deterministic=True)


def decode_signed(data: bytes) -> Signed[Body]:
    """Parse a signed message; its signature is carried along, not checked.

    Raises:
        WireError: the bytes are not exactly one valid signed message.
    """
    try:
        return _signed(_parsed(pb.SignedMessage, data))
    except ValueError as error:
        raise WireError(str(error)) from error


def other_build(proto: pb.SignedMessage) -> tuple[str, str] | None:
    """Look, before anything else is read, whether a Join or a Header is of a build that must not speak with this one.

    Whatever else that build writes into its messages is no fault of the site: here it is skipped.

    Returns:
        The other build and this one, in words; None where the message is of a build like this one, of another type, or
        does not say of which build it is in a way that any release can read.
    """
    try:
        opening = pb.Opening.FromString(proto.signed_bytes)
        body = next((getattr(opening, name) for name in ("header", "join") if opening.HasField(name)), None)
        if body is None:
            return None
        if not body.HasField("build"):
            return "a securefda without a wire version", str(Build.own())
        theirs: Build = _BUILD.decode(body.build)
    except (DecodeError, ValueError):
        return None
    return theirs.apart_from(Build.own())


def signed_to_proto(message: Signed[Any]) -> pb.SignedMessage:
    """Wrap the bytes that were signed, verbatim, for a frame."""
    return pb.SignedMessage(signed_bytes=message.signed_bytes, signature=message.signature)


def signed_from_proto(proto: pb.SignedMessage) -> Signed[Body]:
    """Unwrap a signed message from a frame.

    Raises:
        WireError: it is not exactly one valid signed message.
    """
    try:
        return _signed(proto)
    except ValueError as error:
        raise WireError(str(error)) from error


def refuse_unknown_fields(frame: Message) -> int:
    """Refuse a frame with a field that this version does not know, at any depth; returns its length in bytes.

    Afterwards there are none in ``frame``, whatever the verdict.

    Raises:
        WireError: it does.
    """
    try:
        return _size_without_unknown_fields(frame)
    except ValueError as error:
        raise WireError(str(error)) from error


# --- reading: everything from here on raises ValueError on what it refuses --------------------------------------------


def _parsed(message_type: type[MessageT], data: bytes) -> MessageT:
    """Parse bytes that are the one way to write a message: known fields in rising order, nothing twice or padded."""
    name = message_type.__name__
    try:
        proto = message_type.FromString(data)
    except DecodeError as error:
        raise ValueError(f"the bytes are no {name}") from error
    _size_without_unknown_fields(proto)
    again = proto.SerializeToString(deterministic=True)
    # A repeated singular field, both members of a oneof, a padded varint or an explicit zero would all be longer.
    expect(len(again) == len(data), f"{name} is longer than it needs to be")
    # Another order of the fields, a bool of 2 or the cut-off bits of a number would not.
    expect(again == data, f"{name} is not in its canonical form")
    return proto


def _size_without_unknown_fields(proto: Message) -> int:
    # Not by looking at each: a peer can make millions, and every one that Python sees costs a hundred bytes.
    size = proto.ByteSize()
    proto.DiscardUnknownFields()
    expect(proto.ByteSize() == size, f"{type(proto).__name__} holds an unknown field")
    return size


def _signed(proto: pb.SignedMessage, only: type | None = None) -> Signed[Body]:
    """Parse the signed bytes and keep them verbatim; the body must be of type ``only``, if one is named."""
    expect(len(proto.signature) == m.SIGNATURE_BYTES, f"signature must be {m.SIGNATURE_BYTES} bytes")
    return Signed(_envelope(proto.signed_bytes, only), proto.signed_bytes, proto.signature)


def _envelope(data: bytes, only: type | None = None) -> Envelope[Body]:
    """Parse a serialised envelope; its body must be of type ``only``, if one is named."""
    # Before it is parsed: objects take many times the bytes that they are made of (T28).
    expect(len(data) <= MAX_ENVELOPE_BYTES, f"Envelope has {len(data)} bytes, at most {MAX_ENVELOPE_BYTES} are read")
    proto = _parsed(pb.Envelope, data)
    expect(proto.suite == m.SUITE, f"suite {proto.suite} is not known here")
    field = str(proto.WhichOneof("body") or "")
    expect(field != "", "Envelope has no body")
    expect(only is None or BODY_FIELDS[only] == field, f"only {getattr(only, '__name__', '')} may be listed here")
    body = _BODIES[field].decode(getattr(proto, field))
    return Envelope(
        session_id=proto.session_id, sender=proto.sender, context=proto.context, body=body, suite=proto.suite
    )


# --- kinds of fields --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Field:
    """How a field is written and read. ``read`` gets the value and the field's name, for its error.

    ``presence``: one that is ``optional`` is None where it is not there; one that is ``required`` has to be there.
    """

    write: Callable[[Any], Any]
    read: Callable[[Any, str], Any]
    presence: Literal["", "optional", "required"] = ""


class _Form:
    """The form of one type of message: its type in the schema, and the fields that are more than copied."""

    def __init__(self, body: type, proto: type[Message], **fields: _Field) -> None:
        self.body, self._proto = body, proto
        names = [field.name for field in dataclasses.fields(body)]
        if not set(fields) <= set(names) or set(names) != {field.name for field in proto.DESCRIPTOR.fields}:
            raise TypeError(f"the fields of {body.__name__} are not those of the schema")
        self._names, self._read = names, list(fields.items())
        self._written = [(name, field.write) for name, field in fields.items() if field.write is not _unchanged]

    def encode(self, body: Any) -> Message:
        """Return the message in the form of the schema."""
        values = {name: getattr(body, name) for name in self._names}
        for name, write in self._written:
            if values[name] is not None:
                values[name] = write(values[name])
        return self._proto(**values)

    def decode(self, proto: Any) -> Any:
        """Return the message that is written in the form of the schema. Raises ValueError."""
        values = {name: getattr(proto, name) for name in self._names}
        for name, field in self._read:
            if field.presence and not proto.HasField(name):
                expect(field.presence == "optional", f"{self.body.__name__} has no {name}")
                values[name] = None
            else:
                values[name] = field.read(values[name], name)
        return self.body(**values)


def _index(value: int, name: str) -> int:
    expect(value < MAX_INDEX, f"{name} is no roster index")
    return value


def _name(value: str, name: str) -> str:
    expect(0 < len(value) <= MAX_NAME_BYTES, f"{name} must have 1 to {MAX_NAME_BYTES} characters")
    return value


def _checkpoint(value: bytes, _name: str) -> bytes:
    expect(len(value) <= m.MAX_NOTE_BYTES, f"a checkpoint has at most {m.MAX_NOTE_BYTES} bytes")
    return value


def _unchanged(value: Any) -> Any:
    return value


_COPIED = _Field(_unchanged, lambda value, _: value)
_OPTIONAL = _Field(_unchanged, lambda value, _: value, "optional")
_INDEX = _Field(_unchanged, _index)
_NAME = _Field(_unchanged, _name)


def _enum(kind: type[IntEnum]) -> _Field:
    return _Field(int, lambda value, _: kind(value))


def _part(form: _Form, presence: Literal["", "optional", "required"] = "") -> _Field:
    return _Field(form.encode, lambda proto, _: form.decode(proto), presence)


def _signed_as(body: type, presence: Literal["", "required"] = "") -> _Field:
    # The type is checked before the body is read: lists inside lists would nest as deep as their sender likes.
    return _Field(signed_to_proto, lambda proto, _: _signed(proto, body), presence)


def _list(element: _Field, most: int | None = None) -> _Field:
    """Return a field that is a list of at most ``most`` elements, by default as many as a roster has sites."""

    def read(values: Sequence[Any], name: str) -> tuple[Any, ...]:
        limit = MAX_SITES if most is None else most
        expect(len(values) <= limit, f"{name} has {len(values)} elements, at most {limit} are allowed")
        return tuple([element.read(value, name) for value in values])  # exact in size, where a generator is a guess

    return _Field(lambda values: [element.write(value) for value in values], read)


def _write_share(share: m.SelfMaskShare | m.MasterShare) -> pb.UnmaskShare:
    if isinstance(share, m.SelfMaskShare):
        return pb.UnmaskShare(owner=share.owner, self_mask=share.share)
    return pb.UnmaskShare(owner=share.owner, master=share.share)


def _read_share(proto: pb.UnmaskShare, _name: str) -> m.SelfMaskShare | m.MasterShare:
    owner, kind = _index(proto.owner, "owner"), proto.WhichOneof("share")
    expect(kind is not None, "UnmaskShare holds no share")
    if kind == "self_mask":
        return m.SelfMaskShare(owner=owner, share=proto.self_mask)
    return m.MasterShare(owner=owner, share=proto.master)


# --- the table --------------------------------------------------------------------------------------------------------

_BUILD = _Form(Build, pb.Build, capabilities=_list(_COPIED, MAX_CAPABILITIES))
_ATTENTION = _Form(m.AttentionTerms, pb.AttentionTerms, gain=_NAME)
_RULE = _Form(
    m.RuleTerms,
    pb.RuleTerms,
    rule=_NAME,
    projection=_NAME,
    estimator=_NAME,
    attention=_part(_ATTENTION, "optional"),
)
_TARGET = _Form(m.TargetTerms, pb.TargetTerms)
_FEATURES = _Form(m.FeatureTerms, pb.FeatureTerms)
_LAYER = _Form(m.Layer, pb.Layer, shape=_list(_COPIED, MAX_SIDES))
_NORM_CAP = _Form(m.NormCapTerms, pb.NormCapTerms, granularity=_enum(m.Granularity))
_GRAPH = _Form(m.GraphTerms, pb.GraphTerms)
_SHARE_BOX = _Form(m.ShareBox, pb.ShareBox, peer=_INDEX)
_DELIVERED_BOX = _Form(m.DeliveredBox, pb.DeliveredBox, peer=_INDEX)
_SURVIVOR = _Form(m.Survivor, pb.Survivor, index=_Field(_unchanged, lambda value, _: _index(value, "survivor")))

_BODIES = {
    "header": _Form(
        m.Header,
        pb.Header,
        levels=_list(_enum(m.Visibility)),
        rule=_part(_RULE, "required"),
        target=_part(_TARGET, "optional"),
        layers=_list(_part(_LAYER), MAX_LAYERS),
        participants=_list(_INDEX),
        previous_checkpoint=_Field(_unchanged, _checkpoint),
        norm_cap=_part(_NORM_CAP, "optional"),
        sources_keep=_enum(m.SourcesKeep),
        down_link=_enum(m.DownLink),
        features=_part(_FEATURES, "optional"),
        graph=_part(_GRAPH, "optional"),
        build=_part(_BUILD, "required"),
        key_agreement=_enum(m.KeyAgreement),
    ),
    "advertise": _Form(m.Advertise, pb.Advertise),
    "key_list": _Form(m.KeyList, pb.KeyList, advertisements=_list(_signed_as(m.Advertise))),
    "roll": _Form(m.Roll, pb.Roll, members=_list(_INDEX)),
    "nonce": _Form(m.Nonce, pb.Nonce),
    "neighbours": _Form(
        m.Neighbours, pb.Neighbours, members=_list(_INDEX), advertisements=_list(_signed_as(m.Advertise))
    ),
    "share_bundle": _Form(m.ShareBundle, pb.ShareBundle, boxes=_list(_part(_SHARE_BOX))),
    "share_delivery": _Form(
        m.ShareDelivery, pb.ShareDelivery, boxes=_list(_part(_DELIVERED_BOX)), members=_list(_INDEX)
    ),
    "masked_input": _Form(m.MaskedInput, pb.MaskedInput),
    "update": _Form(m.Update, pb.Update, loss=_OPTIONAL, accuracy=_OPTIONAL, alignment=_OPTIONAL),
    "survivors": _Form(m.Survivors, pb.Survivors, survivors=_list(_part(_SURVIVOR)), dropped=_list(_INDEX)),
    "survivor_signature": _Form(m.SurvivorSignature, pb.SurvivorSignature),
    "consistency": _Form(
        m.Consistency,
        pb.Consistency,
        signatures=_list(_signed_as(m.SurvivorSignature)),
        inputs=_list(_signed_as(m.MaskedInput)),
    ),
    "neighbour_consistency": _Form(
        m.NeighbourConsistency,
        pb.NeighbourConsistency,
        signatures=_list(_signed_as(m.SurvivorSignature)),
        inputs=_list(_signed_as(m.MaskedInput)),
    ),
    "unmask": _Form(m.Unmask, pb.Unmask, shares=_list(_Field(_write_share, _read_share))),
    "result": _Form(m.Result, pb.Result),
    "abort": _Form(m.Abort, pb.Abort, step=_enum(m.Step), accused=_Field(_unchanged, _index, "optional")),
    "refusal": _Form(m.Refusal, pb.Refusal),
    "join": _Form(m.Join, pb.Join, visibility=_enum(m.Visibility), build=_part(_BUILD, "required")),
    "checkpoint": _Form(m.Checkpoint, pb.Checkpoint, proof=_list(_COPIED, m.MAX_PROOF_HASHES)),
    "cosigned": _Form(m.Cosigned, pb.Cosigned),
    "goodbye": _Form(m.Goodbye, pb.Goodbye, down_link=_enum(m.DownLink)),
    "receipt": _Form(m.Receipt, pb.Receipt),
    "missed_result": _Form(
        m.MissedResult, pb.MissedResult, result=_signed_as(m.Result, "required"), receipts=_list(_signed_as(m.Receipt))
    ),
    "schedule": _Form(
        m.Schedule,
        pb.Schedule,
        rules=_list(_part(_RULE), m.MAX_RULES),
        norm_cap_granularity=_enum(m.Granularity),
        sources_keep=_enum(m.SourcesKeep),
        key_agreement=_enum(m.KeyAgreement),
    ),
}
"""By the envelope's field for it, the form of each body."""

BODY_FIELDS: dict[type, str] = {form.body: name for name, form in _BODIES.items()}
"""Name of the envelope's field for each type of body."""
