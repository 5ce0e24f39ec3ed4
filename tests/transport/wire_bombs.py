"""Messages that make a careless reader allocate many times their size; run as a script, how much they take here.

Reading them in a process of its own is what makes its peak memory say something.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator

from google.protobuf.descriptor import FieldDescriptor
from wire_fields import SIZED, VARINT, tagged

from securefda.protocol.messages import NO_SESSION
from securefda.transport.wire import MAX_ENVELOPE_BYTES, WireError, decode
from securefda.v1 import messages_pb2 as pb

LENGTH = MAX_ENVELOPE_BYTES - 100
HEAD = tagged(1, VARINT, b"\x01") + tagged(2, SIZED, NO_SESSION)


def bombs() -> Iterator[tuple[str, bytes]]:
    """What is wrong, and the message."""
    for body in pb.Envelope.DESCRIPTOR.oneofs_by_name["body"].fields:
        for field in body.message_type.fields:
            if field.is_repeated:
                elements = _elements(field)
                yield f"{body.name}.{field.name}", HEAD + tagged(body.number, SIZED, elements)
        empty = tagged(body.number, SIZED, b"")
        yield f"{body.name} again and again", HEAD + empty * (LENGTH // len(empty))
        unknown = tagged(1000, VARINT, b"\x01")
        yield f"unknown in {body.name}", HEAD + tagged(body.number, SIZED, unknown * (LENGTH // len(unknown)))
    groups = b"\x7b" * (LENGTH // 2) + b"\x7c" * (LENGTH // 2)
    yield "groups in groups", HEAD + groups
    yield "one body after another", HEAD + b"".join(tagged(n, SIZED, b"") for n in (27, 29)) * (LENGTH // 6)
    yield "longer than a message may be", HEAD + bytes(4 << 20)


def _elements(field: FieldDescriptor) -> bytes:
    if field.message_type is None:
        return tagged(field.number, SIZED, b"\x01" * LENGTH)
    empty = tagged(field.number, SIZED, b"")
    return empty * (LENGTH // len(empty))


def peak_bytes() -> int:
    """The most memory that this process has had in use."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def main() -> None:
    """Print by how much making and reading each, one after the other, has raised the peak so far."""
    before = peak_bytes()
    for name, data in bombs():
        try:
            decode(data)
        except WireError:
            print(f"{name}\t{peak_bytes() - before}")


if __name__ == "__main__":
    main()
