"""Protobuf to messages: one function per body type. Everything here raises ``ValueError`` on what it refuses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from google.protobuf.message import DecodeError, Message

from securefda.protocol import messages as m
from securefda.protocol.roster import MAX_SITES
from securefda.transport.wire_encode import BODY_FIELDS
from securefda.v1 import messages_pb2 as pb

MAX_LAYERS = 4096
MAX_SIDES = 16
MAX_NAME_BYTES = 64
MAX_INDEX = 2**31
MAX_ENVELOPE_BYTES = 3 << 19
"""Longer than any valid envelope with names in ASCII. A peer can make protobuf allocate about 30 times as much."""

MessageT = TypeVar("MessageT", bound=Message)
ElementT = TypeVar("ElementT")


def parse(message_type: type[MessageT], data: bytes) -> MessageT:
    """Parse bytes that are the one way to write a message: known fields in rising order, nothing twice or padded.

    Raises:
        ValueError: the bytes are not such a message.
    """
    name = message_type.__name__
    try:
        proto = message_type.FromString(data)
    except DecodeError as error:
        raise ValueError(f"the bytes are no {name}") from error
    refuse_loose(proto)
    again = proto.SerializeToString(deterministic=True)
    # A repeated singular field, both members of a oneof, a padded varint or an explicit zero would all be longer.
    _require(len(again) == len(data), f"{name} is longer than it needs to be")
    # Another order of the fields, a bool of 2 or the cut-off bits of a number would not.
    _require(again == data, f"{name} is not in its canonical form")
    return proto


def refuse_loose(proto: Message) -> int:
    """Refuse unknown fields, at any depth. Afterwards there are none in ``proto``, whatever the verdict.

    Returns:
        The length of ``proto`` in bytes.

    Raises:
        ValueError: there is one.
    """
    # Not by looking at each: a peer can make millions, and every one that Python sees costs a hundred bytes.
    size = proto.ByteSize()
    proto.DiscardUnknownFields()
    _require(proto.ByteSize() == size, f"{type(proto).__name__} holds an unknown field")
    return size


def signed_from_proto(proto: pb.SignedMessage, only: type | None = None) -> m.Signed[m.Body]:
    """Parse the signed bytes and keep them verbatim; the body must be of type ``only``, if one is named.

    Raises:
        ValueError: the envelope, its body or the length of the signature is wrong.
    """
    _require(len(proto.signature) == m.SIGNATURE_BYTES, f"signature must be {m.SIGNATURE_BYTES} bytes")
    return m.Signed(envelope_from_bytes(proto.signed_bytes, only), proto.signed_bytes, proto.signature)


def envelope_from_bytes(data: bytes, only: type | None = None) -> m.Envelope[m.Body]:
    """Parse a serialised envelope; its body must be of type ``only``, if one is named.

    Raises:
        ValueError: see :func:`parse`, or a field is out of its range.
    """
    _require(len(data) <= MAX_ENVELOPE_BYTES, f"Envelope has {len(data)} bytes, at most {MAX_ENVELOPE_BYTES} are read")
    proto = parse(pb.Envelope, data)
    _require(proto.suite == m.SUITE, f"suite {proto.suite} is not known here")
    field = proto.WhichOneof("body")
    _require(field is not None, "Envelope has no body")
    _require(only is None or BODY_FIELDS[only] == field, f"only {getattr(only, '__name__', '')} may be listed here")
    body = _DECODERS[str(field)](getattr(proto, str(field)))
    return m.Envelope(
        session_id=proto.session_id, sender=proto.sender, context=proto.context, body=body, suite=proto.suite
    )


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise ValueError(what)


def _few(elements: Sequence[ElementT], limit: int, name: str) -> Sequence[ElementT]:
    _require(len(elements) <= limit, f"{name} has {len(elements)} elements, at most {limit} are allowed")
    return elements


def _index(value: int, name: str) -> int:
    _require(value < MAX_INDEX, f"{name} is no roster index")
    return value


def _indices(values: Sequence[int], name: str) -> tuple[int, ...]:
    return tuple(_index(value, name) for value in _few(values, MAX_SITES, name))


def _name(value: str, name: str) -> str:
    _require(0 < len(value) <= MAX_NAME_BYTES, f"{name} must have 1 to {MAX_NAME_BYTES} characters")
    return value


def _checkpoint(value: bytes) -> bytes:
    _require(len(value) <= m.MAX_NOTE_BYTES, f"a checkpoint has at most {m.MAX_NOTE_BYTES} bytes")
    return value


def _signed_all(protos: Sequence[pb.SignedMessage], body_type: type[m.BodyT]) -> tuple[m.Signed[m.BodyT], ...]:
    # The type is checked before the body is read: lists inside lists would nest as deep as their sender likes.
    few = _few(protos, MAX_SITES, f"list of {body_type.__name__}")
    return tuple(signed_from_proto(proto, body_type) for proto in few)  # type: ignore[misc]


def _header(proto: pb.Header) -> m.Header:
    _require(proto.HasField("rule"), "Header has no rule")
    rule, target, cap = proto.rule, proto.target, proto.norm_cap
    return m.Header(
        run_id=proto.run_id,
        round=proto.round,
        attempt=proto.attempt,
        levels=tuple(m.Visibility(level) for level in _few(proto.levels, MAX_SITES, "levels")),
        rule=m.RuleTerms(
            rule=_name(rule.rule, "rule"),
            beta=rule.beta,
            projection=_name(rule.projection, "projection"),
            filter=rule.filter,
            align=rule.align,
            estimator=_name(rule.estimator, "estimator"),
            learning_rate_factor=rule.learning_rate_factor,
            select=rule.select,
        ),
        target=m.TargetTerms(
            steps=target.steps,
            learning_rate=target.learning_rate,
            update_digest=target.update_digest,
            mean_square=target.mean_square,
            scatter=target.scatter,
        )
        if proto.HasField("target")
        else None,
        layers=tuple(
            m.Layer(name=layer.name, shape=tuple(_few(layer.shape, MAX_SIDES, "shape")), clip=layer.clip)
            for layer in _few(proto.layers, MAX_LAYERS, "layers")
        ),
        architecture_digest=proto.architecture_digest,
        model_digest=proto.model_digest,
        roster_digest=proto.roster_digest,
        participants=_indices(proto.participants, "participants"),
        threshold=proto.threshold,
        modulus_bits=proto.modulus_bits,
        n_max=proto.n_max,
        max_samples=proto.max_samples,
        training_deadline_ms=proto.training_deadline_ms,
        phase_deadline_ms=proto.phase_deadline_ms,
        previous_result_digest=proto.previous_result_digest,
        previous_checkpoint=_checkpoint(proto.previous_checkpoint),
        cohort_size=proto.cohort_size,
        cohort_quorum=proto.cohort_quorum,
        sum_quorum=proto.sum_quorum,
        norm_cap=m.NormCapTerms(kappa=cap.kappa, others=cap.others, granularity=m.Granularity(cap.granularity))
        if proto.HasField("norm_cap")
        else None,
        metrics=proto.metrics,
    )


def _advertise(proto: pb.Advertise) -> m.Advertise:
    return m.Advertise(
        mask_key=proto.mask_key,
        box_key=proto.box_key,
        self_mask_commitment=proto.self_mask_commitment,
        nonce_commitment=proto.nonce_commitment,
        row_commitment=proto.row_commitment,
    )


def _survivors(proto: pb.Survivors) -> m.Survivors:
    survivors = tuple(
        m.Survivor(index=_index(entry.index, "survivor"), input_digest=entry.input_digest)
        for entry in _few(proto.survivors, MAX_SITES, "survivors")
    )
    return m.Survivors(survivors=survivors, dropped=_indices(proto.dropped, "dropped"))


def _share(proto: pb.UnmaskShare) -> m.SelfMaskShare | m.MasterShare:
    owner = _index(proto.owner, "owner")
    kind = proto.WhichOneof("share")
    _require(kind is not None, "UnmaskShare holds no share")
    if kind == "self_mask":
        return m.SelfMaskShare(owner=owner, share=proto.self_mask)
    return m.MasterShare(owner=owner, share=proto.master)


def _update(proto: pb.Update) -> m.Update:
    return m.Update(
        digest=proto.digest,
        length_bytes=proto.length_bytes,
        samples=proto.samples,
        loss=proto.loss if proto.HasField("loss") else None,
        accuracy=proto.accuracy if proto.HasField("accuracy") else None,
    )


def _join(proto: pb.Join) -> m.Join:
    return m.Join(
        architecture_digest=proto.architecture_digest,
        software_version=proto.software_version,
        visibility=m.Visibility(proto.visibility),
        metrics=proto.metrics,
        known=proto.known,
    )


def _receipt(proto: pb.Receipt) -> m.Receipt:
    return m.Receipt(
        run_id=proto.run_id,
        round=proto.round,
        number=proto.number,
        result_digest=proto.result_digest,
        model_digest=proto.model_digest,
    )


def _missed_result(proto: pb.MissedResult) -> m.MissedResult:
    _require(proto.HasField("result"), "MissedResult has no result")
    result = signed_from_proto(proto.result, m.Result)
    return m.MissedResult(result, _signed_all(proto.receipts, m.Receipt))  # type: ignore[arg-type]


def _abort(proto: pb.Abort) -> m.Abort:
    accused = _index(proto.accused, "accused") if proto.HasField("accused") else None
    return m.Abort(step=m.Step(proto.step), check=proto.check, accused=accused)


_DECODERS: dict[str, Callable[[Any], m.Body]] = {
    "header": _header,
    "advertise": _advertise,
    "key_list": lambda proto: m.KeyList(_signed_all(proto.advertisements, m.Advertise)),
    "share_bundle": lambda proto: m.ShareBundle(
        boxes=tuple(
            m.ShareBox(peer=_index(box.peer, "peer"), box=box.box) for box in _few(proto.boxes, MAX_SITES, "boxes")
        ),
        nonce=proto.nonce,
    ),
    "share_delivery": lambda proto: m.ShareDelivery(
        tuple(
            m.DeliveredBox(peer=_index(box.peer, "peer"), box=box.box, nonce=box.nonce)
            for box in _few(proto.boxes, MAX_SITES, "boxes")
        )
    ),
    "masked_input": lambda proto: m.MaskedInput(digest=proto.digest, length_bytes=proto.length_bytes),
    "update": _update,
    "survivors": _survivors,
    "survivor_signature": lambda proto: m.SurvivorSignature(proto.survivors_digest),
    "consistency": lambda proto: m.Consistency(
        signatures=_signed_all(proto.signatures, m.SurvivorSignature), inputs=_signed_all(proto.inputs, m.MaskedInput)
    ),
    "unmask": lambda proto: m.Unmask(tuple(_share(share) for share in _few(proto.shares, MAX_SITES, "shares"))),
    "result": lambda proto: m.Result(sum_digest=proto.sum_digest, count=proto.count, model_digest=proto.model_digest),
    "abort": _abort,
    "refusal": lambda proto: m.Refusal(proto.key),
    "join": _join,
    "checkpoint": lambda proto: m.Checkpoint(
        note=proto.note,
        old_size=proto.old_size,
        proof=tuple(_few(proto.proof, m.MAX_PROOF_HASHES, "proof")),
        known=proto.known,
    ),
    "cosigned": lambda proto: m.Cosigned(size=proto.size, signature=proto.signature),
    "goodbye": lambda proto: m.Goodbye(completed=proto.completed, rounds=proto.rounds, reason=proto.reason),
    "receipt": _receipt,
    "missed_result": _missed_result,
}
