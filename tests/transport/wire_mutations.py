"""Malformed messages by the hundred thousand: valid ones, broken byte by byte or field by field.

A change of a field keeps the lengths around it right, so that it reaches the code behind the parser. Nothing here
knows a type of message: the fields come from the schema, the valid messages from the known answers.
"""

from __future__ import annotations

import json
import random
import resource
import struct
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

from depth import at_depth
from google.protobuf.descriptor import Descriptor
from wire_fields import (
    FIXED32,
    FIXED64,
    PAIR,
    SIZED,
    VARINT,
    Node,
    message_in,
    nodes_of,
    read_varint,
    replaced,
    sized,
    tagged,
    varint,
)

from securefda.protocol.roster import MAX_SITES
from securefda.transport.wire import BODY_FIELDS, MAX_LAYERS, WireError, decode_signed, encode, encode_signed
from securefda.v1 import messages_pb2 as pb

FOLDER = Path(__file__).parents[1] / "vectors"
KNOWN = [
    case
    for name in ("messages", "ring_messages")  # of a type in both, that of SFDA-SA/1 comes first
    for case in json.loads((FOLDER / f"{name}.json").read_text())["valid"]
]
TYPES = sorted(kind.__name__ for kind in BODY_FIELDS)
COUNT = at_depth(5_000, 100_000)
"""Malformed messages of each type."""

GROWTH_BYTES, GROWTH_OBJECTS = 12 << 20, COUNT // 10
"""What reading ``COUNT`` messages may leave in memory, and in Python's share of it: far from one object for each."""

DERIVED = 24
"""Starting points beside the valid message: so many other valid ones that changes led to, half as many that are not."""

LONGEST_BASE = 2000
"""Bytes; a change of a long one takes long to read and shows no more."""

VARINTS = (0, 1, 2, 3, 127, 128, 1024, 1025, 4097, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**63, 2**64 - 1)
LENGTHS = (0, 1, 15, 16, 17, 31, 32, 33, 34, 63, 64, 65, 66, 200, 201, 500, 501, 1024, 1025, 4096, 4097)
FALSE_LENGTHS = (0, 1, 2**20, 2**31 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1)
TEXTS = (b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\x00", b"\x1b[2J", "\u202e".encode(), b"\n")
NUMBERS = (float("nan"), float("inf"), -float("inf"), 5e-324, -5e-324, 2.2e-308, 1.7e308, -0.0, 0.0, -1.0, 2.0)
DOUBLES = (*(struct.pack("<d", number) for number in NUMBERS), b"\x01\0\0\0\0\0\xf0\x7f", b"\xff" * 8)

ChoiceT = TypeVar("ChoiceT")


@dataclass(frozen=True, slots=True)
class Base:
    """A message to start from, its fields, and every two neighbours among them."""

    data: bytes
    fields: tuple[Node, ...]
    pairs: tuple[Node, ...]

    @classmethod
    def of(cls, data: bytes, kind: Descriptor) -> Base:
        """Walk a message.

        Raises:
            ValueError, IndexError: it is too broken.
        """
        nodes = tuple(nodes_of(data, kind, 0, len(data)))
        fields = tuple(node for node in nodes if node.wire_type != PAIR)
        return cls(data, fields, tuple(node for node in nodes if node.wire_type == PAIR))


class Mutator:
    """Endless malformed messages of one type, the same for the same seed.

    Args:
        valid: where it all begins.
        kind: type of ``valid`` in the schema.
        is_valid: whether bytes are a message of that type, too.
        seed: of the choices.
    """

    def __init__(self, valid: bytes, kind: Descriptor, is_valid: Callable[[bytes], bool], seed: int) -> None:
        self._random = random.Random(seed)
        self._bases = [Base.of(valid, kind)]
        left = {True: DERIVED, False: DERIVED // 2}
        while any(left.values()):
            data = self._with_another_field()
            fits = is_valid(data)
            if left[fits] and len(data) <= LONGEST_BASE:
                with suppress(ValueError, IndexError):
                    self._bases.append(Base.of(data, kind))
                    left[fits] -= 1

    def messages(self, count: int) -> Iterator[bytes]:
        """So many messages; some of them are valid all the same."""
        for _ in range(count):
            draw = self._random.random()
            if draw < 0.8:
                yield self._with_another_field()
            elif draw < 0.9:
                yield self._with_other_bytes(self._pick(self._bases).data)
            elif draw < 0.99:
                yield self._with_other_bytes(self._with_another_field())
            else:
                yield self._random.randbytes(self._below(300))

    def _pick(self, choices: Sequence[ChoiceT]) -> ChoiceT:
        return choices[int(self._random.random() * len(choices))]

    def _below(self, end: int) -> int:
        return int(self._random.random() * end)

    def _with_another_field(self) -> bytes:
        base, draw = self._pick(self._bases), self._random.random()
        if not base.fields:
            return self._unknown()
        if base.pairs and draw < 0.05:
            pair = self._pick(base.pairs)
            return replaced(base.data, pair, self.exchanged(base.data, pair))
        node = self._pick(base.fields)
        change = self._pick(_fitting(node) if draw < 0.75 else _ANY_CHANGES)
        return replaced(base.data, node, change(self, base.data, node))

    def _with_other_bytes(self, data: bytes) -> bytes:
        for _ in range(self._pick((1, 1, 1, 2, 8))):
            at, kind = self._below(len(data) + 1), self._below(7)
            if kind == 0:
                data = data[:at]
            elif kind == 1:
                data = data[:at] + self._random.randbytes(1 + self._below(4)) + data[at:]
            elif kind == 2:
                data = data[:at] + data[at + 1 + self._below(4) :]
            elif kind == 3:
                data = data[:at] + data[max(0, at - self._below(64)) :]
            elif data[at:]:
                other = data[at] ^ (1 << self._below(8)) if kind < 6 else self._pick(b"\x00\x01\x7f\x80\xff")
                data = data[:at] + bytes([other]) + data[at + 1 :]
        return data

    # What can stand in the place of a field.

    def dropped(self, data: bytes, node: Node) -> bytes:
        return b""

    def repeated(self, data: bytes, node: Node) -> bytes:
        return data[node.start : node.end] * self._pick((2, 2, 3, 17))

    def too_many(self, data: bytes, node: Node) -> bytes:
        many = self._random.random() < 0.02  # what is long takes long
        return data[node.start : node.end] * (self._pick((MAX_SITES + 1, MAX_LAYERS + 1)) if many else 2)

    def other_wire_type(self, data: bytes, node: Node) -> bytes:
        return varint(node.number << 3 | self._below(8)) + data[node.payload : node.end]

    def other_number(self, data: bytes, node: Node) -> bytes:
        number = self._pick((0, 1, node.number - 1, node.number + 1, 1 + self._below(40), 2**29 - 1, 2**29))
        return tagged(max(0, number), node.wire_type, data[node.payload : node.end])

    def padded_tag(self, data: bytes, node: Node) -> bytes:
        tag = varint(node.number << 3 | node.wire_type, padding=self._pick((1, 2, 4, 9)))
        payload = data[node.payload : node.end]
        return tag + (sized(payload) if node.wire_type == SIZED else payload)

    def with_unknown(self, data: bytes, node: Node) -> bytes:
        parts = (data[node.start : node.end], self._unknown())
        return b"".join(self._pick((parts, parts[::-1])))

    def foreign(self, data: bytes, node: Node) -> bytes:
        donor = self._pick(donors())
        other = self._pick(donor.fields)
        return donor.data[other.start : other.end]

    def with_foreign(self, data: bytes, node: Node) -> bytes:
        return data[node.start : node.end] + self.foreign(data, node)

    def other_of_oneof(self, data: bytes, node: Node) -> bytes:
        oneof = node.field.containing_oneof if node.field is not None else None
        if oneof is None:
            return self.repeated(data, node)
        payload = self._pick((b"", data[node.payload : node.end]))
        other = tagged(self._pick(oneof.fields).number, node.wire_type, payload)
        return data[node.start : node.end] + other if self._random.random() < 0.5 else other

    def exchanged(self, data: bytes, node: Node) -> bytes:
        return data[node.payload : node.end] + data[node.start : node.payload]

    def other_varint(self, data: bytes, node: Node) -> bytes:
        value = self._pick(VARINTS) if self._random.random() < 0.8 else self._random.getrandbits(64)
        return tagged(node.number, VARINT, varint(value))

    def padded_varint(self, data: bytes, node: Node) -> bytes:
        value = read_varint(data, node.payload)[0]
        return tagged(node.number, VARINT, varint(value, padding=self._pick((1, 2, 4, 9, 10))))

    def wide_varint(self, data: bytes, node: Node) -> bytes:
        """Bits beyond 32 or 64, which a lax reader cuts off."""
        value = read_varint(data, node.payload)[0] | 1 << self._pick((32, 33, 63, 64, 69))
        return tagged(node.number, VARINT, varint(value))

    def endless_varint(self, data: bytes, node: Node) -> bytes:
        return tagged(node.number, VARINT, b"\xff" * self._pick((1, 5, 9, 10, 11, 100)))

    def other_double(self, data: bytes, node: Node) -> bytes:
        often = self._random.random() < 0.9
        return tagged(node.number, FIXED64, self._pick(DOUBLES) if often else self._random.randbytes(8))

    def other_length(self, data: bytes, node: Node) -> bytes:
        return tagged(node.number, SIZED, self._random.randbytes(self._pick(LENGTHS)))

    def one_more_or_less(self, data: bytes, node: Node) -> bytes:
        payload = data[node.payload : node.end]
        return tagged(node.number, SIZED, self._pick((payload[1:], payload[:-1], payload + b"\0", b"\0" + payload)))

    def other_content(self, data: bytes, node: Node) -> bytes:
        return tagged(node.number, SIZED, self._random.randbytes(node.end - node.payload))

    def false_length(self, data: bytes, node: Node) -> bytes:
        size = node.end - node.payload
        length = self._pick((*FALSE_LENGTHS, abs(size - 1), size + 1, size + 40))
        return varint(node.number << 3 | SIZED) + varint(length) + data[node.payload : node.end]

    def padded_length(self, data: bytes, node: Node) -> bytes:
        length = varint(node.end - node.payload, padding=self._pick((1, 2, 4, 9)))
        return varint(node.number << 3 | SIZED) + length + data[node.payload : node.end]

    def other_text(self, data: bytes, node: Node) -> bytes:
        text = self._pick((data[node.payload : node.end] + self._pick(TEXTS), b"k" * self._pick(LENGTHS)))
        return tagged(node.number, SIZED, text)

    def itself_inside(self, data: bytes, node: Node) -> bytes:
        field = data[node.start : node.end]
        for _ in range(self._pick((1, 2, 5, 120))):
            field = tagged(node.number, SIZED, field)
        return field

    def message_inside(self, data: bytes, node: Node) -> bytes:
        return tagged(node.number, SIZED, data)

    def unpacked(self, data: bytes, node: Node) -> bytes:
        """Packed numbers one by one, each with its tag."""
        return b"".join(tagged(node.number, VARINT, bytes([byte])) for byte in data[node.payload : node.end][:40])

    def _unknown(self) -> bytes:
        """A field, or a piece of one, that no message here has; groups too, deep ones and open ones."""
        number, depth = self._pick((15, 40, 99, 1000, 2**29 - 1)), self._pick((1, 2, 50, 120))
        payload = self._random.randbytes(self._pick(LENGTHS))
        begin, end = varint(number << 3 | 3), varint(number << 3 | 4)
        fields = (
            tagged(number, VARINT, b"\x01"),
            tagged(number, FIXED64, bytes(8)),
            tagged(number, SIZED, payload),
            tagged(number, FIXED32, bytes(4)),
            begin * depth + end * depth,
            begin * depth,
            end,
        )
        return self._pick(fields)


Change = Callable[[Mutator, bytes, Node], bytes]
_ANY_CHANGES: tuple[Change, ...] = (
    Mutator.dropped,
    Mutator.repeated,
    Mutator.too_many,
    Mutator.other_wire_type,
    Mutator.other_number,
    Mutator.padded_tag,
    Mutator.with_unknown,
    Mutator.foreign,
    Mutator.with_foreign,
    Mutator.other_of_oneof,
)
_CHANGES: dict[int, tuple[Change, ...]] = {
    VARINT: (
        Mutator.other_varint,
        Mutator.other_varint,
        Mutator.padded_varint,
        Mutator.wide_varint,
        Mutator.endless_varint,
    ),
    FIXED64: (Mutator.other_double,),
    SIZED: (
        *(Mutator.other_length, Mutator.one_more_or_less, Mutator.other_content, Mutator.other_text) * 2,
        Mutator.false_length,
        Mutator.padded_length,
        Mutator.message_inside,
        Mutator.unpacked,
    ),
    FIXED32: (Mutator.other_wire_type,),
}
_CHANGES_OF_MESSAGES: tuple[Change, ...] = (
    Mutator.one_more_or_less,
    Mutator.false_length,
    Mutator.padded_length,
    Mutator.itself_inside,
    Mutator.message_inside,
    Mutator.repeated,
)


def _fitting(node: Node) -> tuple[Change, ...]:
    is_message = node.wire_type == SIZED and message_in(node.field) is not None
    return _CHANGES_OF_MESSAGES if is_message else _CHANGES[node.wire_type]


@cache
def variants() -> dict[str, list[bytes]]:
    """The serialised signed messages of each type, from the known answers."""
    valid: dict[str, list[bytes]] = {}
    for case in KNOWN:
        signed = pb.SignedMessage(
            signed_bytes=bytes.fromhex(case["message"]["signed_bytes"]),
            signature=bytes.fromhex(case["message"]["signature"]),
        )
        valid.setdefault(case["type"], []).append(signed.SerializeToString())
    return valid


def valid_messages() -> dict[str, bytes]:
    """The first of them of each type."""
    return {name: messages[0] for name, messages in variants().items()}


@cache
def donors() -> tuple[Base, ...]:
    """Messages whose fields are put into others."""
    return tuple(Base.of(data, pb.SignedMessage.DESCRIPTOR) for of_type in variants().values() for data in of_type)


def type_of(data: bytes) -> str | None:
    """Name of the type of message that the wire reads; None where it refuses."""
    try:
        return decode_signed(data).type_name
    except WireError:
        return None


def malformed(name: str, count: int, seed: int) -> Iterator[bytes]:
    """So many malformed signed messages of a type, the same for the same seed: of its variants alike many."""
    for place, valid in enumerate(variants()[name]):
        share = (count + place) // len(variants()[name])
        mutator = Mutator(valid, pb.SignedMessage.DESCRIPTOR, lambda data: type_of(data) == name, seed)
        yield from mutator.messages(share)


def has_lists(name: str) -> bool:
    """Whether messages of this type hold lists of other messages, which take the longest to read."""
    field = next(field for kind, field in BODY_FIELDS.items() if kind.__name__ == name)
    body = pb.Envelope.DESCRIPTOR.fields_by_name[field].message_type
    return any(field.is_repeated and field.message_type is not None for field in body.fields)


def in_use() -> tuple[int, int]:
    """Memory that this process has in use now, in bytes, and Python's small objects in it."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize(), sys.getallocatedblocks()


def read_malformed(name: str, count: int = COUNT) -> Counter[str]:
    """Read so many malformed messages of a type; how many were ``refused`` and how many ``read``.

    Raises:
        AssertionError: one was read that is not the one way to write what was read, or memory grew.
        Exception: whatever a read raised that is no WireError; the note has the bytes.
    """
    verdicts: Counter[str] = Counter()
    settled = (0, 0)
    for number, data in enumerate(malformed(name, count, seed=TYPES.index(name))):
        try:
            message = decode_signed(data)
            verdicts["read"] += 1
            assert encode_signed(message) == data
            assert encode(message.envelope) == message.signed_bytes
        except WireError:
            verdicts["refused"] += 1
        except BaseException as error:
            error.add_note(f"{name} {number}: {data.hex()}")
            raise
        if number == count // 10:
            settled = in_use()
    now = in_use()
    assert now[0] - settled[0] < GROWTH_BYTES
    assert now[1] - settled[1] < GROWTH_OBJECTS
    return verdicts
