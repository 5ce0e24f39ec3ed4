"""Vectors in pieces: cutting one up, and putting it together again with a running digest."""

from __future__ import annotations

import hmac
from collections.abc import Iterator
from hashlib import sha256

from securefda.transport.wire import WireError

Vector = bytes | bytearray | memoryview


def byte_view(vector: Vector) -> memoryview:
    """A read-only view of the bytes of a contiguous vector, without a copy."""
    return memoryview(vector).cast("B").toreadonly()


def chunks(view: memoryview, offset: int, chunk_bytes: int) -> Iterator[tuple[int, bytes]]:
    """Pieces of at most ``chunk_bytes`` bytes from ``offset`` on, each with its place."""
    for start in range(offset, len(view), chunk_bytes):
        yield start, bytes(view[start : start + chunk_bytes])


class Assembly:
    """A vector that arrives in order, in pieces, over one or several connections.

    Args:
        total_bytes: its length; the buffer of that size is made at once, so the caller has checked it.
        digest: SHA-256 that it must have, 32 bytes.
    """

    def __init__(self, total_bytes: int, digest: bytes) -> None:
        self.digest = digest
        self.received = 0
        self._buffer = bytearray(total_bytes)
        self._hash = sha256()

    @property
    def total(self) -> int:
        """Length of the whole vector in bytes."""
        return len(self._buffer)

    def add(self, offset: int, data: bytes) -> None:
        """Append the next piece.

        Raises:
            WireError: it is empty, not the next one, or reaches beyond the end.
        """
        if offset != self.received:
            raise WireError(f"chunk at {offset}, expected {self.received}")
        if not 0 < len(data) <= self.total - self.received:
            raise WireError(f"chunk of {len(data)} bytes, {self.total - self.received} are missing")
        self._buffer[offset : offset + len(data)] = data
        self._hash.update(data)
        self.received += len(data)

    @property
    def is_whole(self) -> bool:
        """Whether nothing is missing."""
        return self.received == self.total

    def finish(self) -> bytearray:
        """Hand the vector out.

        Raises:
            WireError: something is missing, or the digest is another one.
        """
        if not self.is_whole:
            raise WireError(f"vector ends at {self.received} of {self.total} bytes")
        if not hmac.compare_digest(self._hash.digest(), self.digest):
            raise WireError("vector does not have the digest that its message names")
        return self._buffer
