"""Serialised messages as a tree of fields, and how to put other bytes in the place of one.

Written a second time, beside protobuf, so that it can also write what protobuf never would.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from securefda.v1 import messages_pb2 as pb

VARINT, FIXED64, SIZED, FIXED32 = 0, 1, 2, 5
PAIR = -1
"""In the place of a wire type: two neighbouring fields, the second one as the payload."""

SERIALISED = {("SignedMessage", "signed_bytes"): pb.Envelope.DESCRIPTOR}
"""Bytes fields that hold a serialised message."""


def varint(value: int, padding: int = 0) -> bytes:
    """A base-128 varint, longer than it needs to be by ``padding`` bytes."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    if padding:
        return bytes(out) + bytes([value | 128]) + b"\x80" * (padding - 1) + b"\0"
    return bytes(out) + bytes([value])


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """The number that begins there, and where it ends.

    Raises:
        IndexError: it does not end.
    """
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7


def tagged(number: int, wire_type: int, payload: bytes) -> bytes:
    """One field; ``payload`` gets its length in front where the wire type has one."""
    return varint(number << 3 | wire_type) + (sized(payload) if wire_type == SIZED else payload)


def sized(payload: bytes) -> bytes:
    """The bytes, after their length."""
    return varint(len(payload)) + payload


@dataclass(frozen=True, slots=True)
class Node:
    """One occurrence of a field: its bytes are ``data[start:end]``, its payload begins at ``payload``.

    ``around`` has the length prefixes of the messages that it lies in, outermost first, as (start, end, length).
    """

    start: int
    payload: int
    end: int
    number: int
    wire_type: int
    field: FieldDescriptor | None
    around: tuple[tuple[int, int, int], ...]


def nodes_of(
    data: bytes, kind: Descriptor, start: int, end: int, around: tuple[tuple[int, int, int], ...] = ()
) -> Iterator[Node]:
    """Every field of a serialised message and of the messages in it, and every two neighbours together.

    Raises:
        ValueError, IndexError: the bytes are too broken to be walked.
    """
    at = before = start
    while at < end:
        tag, value = read_varint(data, at)
        wire_type, field = tag & 7, kind.fields_by_number.get(tag >> 3)
        payload, stop = _extent(data, value, wire_type)
        if stop > end:
            raise ValueError("a field that ends outside its message")
        yield Node(at, payload, stop, tag >> 3, wire_type, field, around)
        if before < at:
            yield Node(before, at, stop, 0, PAIR, None, around)
        inner = message_in(field) if wire_type == SIZED else None
        if inner is not None:
            yield from nodes_of(data, inner, payload, stop, (*around, (value, payload, stop - payload)))
        before, at = at, stop


def _extent(data: bytes, value: int, wire_type: int) -> tuple[int, int]:
    """Where the payload of a field begins and ends."""
    if wire_type == VARINT:
        return value, read_varint(data, value)[1]
    if wire_type == SIZED:
        length, payload = read_varint(data, value)
        return payload, payload + length
    if wire_type in (FIXED64, FIXED32):
        return value, value + (8 if wire_type == FIXED64 else 4)
    raise ValueError("a group, or no wire type at all")


def message_in(field: FieldDescriptor | None) -> Descriptor | None:
    """The type of the message that a field holds, serialised or not."""
    if field is None:
        return None
    return field.message_type or SERIALISED.get((field.containing_type.name, field.name))


def replaced(data: bytes, node: Node, new: bytes) -> bytes:
    """The message with other bytes in the place of a field, and every length around it put right."""
    growth = len(new) - (node.end - node.start)
    prefixes = []
    for start, end, length in reversed(node.around):
        prefix = varint(length + growth)
        growth += len(prefix) - (end - start)
        prefixes.append((start, end, prefix))
    parts, at = [], 0
    for start, end, prefix in reversed(prefixes):
        parts += (data[at:start], prefix)
        at = end
    return b"".join((*parts, data[at : node.start], new, data[node.end :]))
