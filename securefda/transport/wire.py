"""Messages to bytes and back: the only place that knows both the message types and the protobuf schema.

Reading is strict. Bytes that are not exactly one valid message (an unknown field or enum value, a missing body, a
wrong length, too many elements, text that is not UTF-8, an encoding longer than needed, a body that breaks its own
invariants) raise one type of error, and nothing of protobuf ever reaches a caller.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.message import EncodeError, Message

from securefda.errors import ProtocolError
from securefda.protocol.messages import Body, Envelope, Signed
from securefda.transport import wire_decode, wire_encode
from securefda.v1 import messages_pb2 as pb


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
    try:
        data = wire_encode.envelope_to_proto(envelope).SerializeToString(deterministic=True)
        wire_decode.envelope_from_bytes(data)
    except (KeyError, ValueError, TypeError, EncodeError) as error:
        raise WireError(f"cannot encode {type(envelope.body).__name__}: {error}") from error
    return data


def decode(data: bytes) -> Envelope[Body]:
    """Parse a serialised envelope.

    Raises:
        WireError: the bytes are not exactly one valid envelope.
    """
    try:
        return wire_decode.envelope_from_bytes(data)
    except ValueError as error:
        raise WireError(str(error)) from error


def encode_signed(message: Signed[Any]) -> bytes:
    """Serialise a signed message with its signed bytes verbatim."""
    return wire_encode.signed_to_proto(message).SerializeToString(deterministic=True)


def decode_signed(data: bytes) -> Signed[Body]:
    """Parse a signed message; its signature is carried along, not checked.

    Raises:
        WireError: the bytes are not exactly one valid signed message.
    """
    try:
        return wire_decode.signed_from_proto(wire_decode.parse(pb.SignedMessage, data))
    except ValueError as error:
        raise WireError(str(error)) from error


def signed_to_proto(message: Signed[Any]) -> pb.SignedMessage:
    """Wrap a signed message for a frame."""
    return wire_encode.signed_to_proto(message)


def signed_from_proto(proto: pb.SignedMessage) -> Signed[Body]:
    """Unwrap a signed message from a frame.

    Raises:
        WireError: it is not exactly one valid signed message.
    """
    try:
        return wire_decode.signed_from_proto(proto)
    except ValueError as error:
        raise WireError(str(error)) from error


def refuse_unknown_fields(frame: Message) -> int:
    """Refuse a frame that holds a field this version does not know, at any depth; its length in bytes.

    Raises:
        WireError: it does.
    """
    try:
        return wire_decode.refuse_loose(frame)
    except ValueError as error:
        raise WireError(str(error)) from error
