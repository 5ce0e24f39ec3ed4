"""A value that must not show: redacted wherever Python prints, compared in constant time, erased on request."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from cryptography.hazmat.primitives import constant_time

RandomBytes = Callable[[int], bytes]
"""Source of random bytes: ``random_bytes(n)`` returns n of them. ``os.urandom`` in production."""


def draw(random_bytes: RandomBytes, length: int) -> bytes:
    """Take ``length`` bytes from the source.

    Raises:
        ValueError: the source returned another number of bytes, so nothing it says can be trusted.
    """
    drawn = random_bytes(length)
    if len(drawn) != length:
        raise ValueError(f"the random source returned {len(drawn)} bytes instead of {length}")
    return drawn


class Secret:
    """Bytes that no repr, format, log line, traceback, pickle or copy shows.

    ``reveal`` is the only way out. ``erase`` overwrites this object's own buffer; copies made by ``reveal`` or
    inside the crypto library are beyond its reach, so erasing is best effort and no security claim rests on it.

    Args:
        value: at least one byte; copied.

    Raises:
        ValueError: ``value`` is empty.
    """

    __slots__ = ("_buffer",)

    def __init__(self, value: bytes | bytearray | memoryview) -> None:
        if len(value) == 0:
            raise ValueError("a secret holds at least one byte")
        # Not bytes, which cannot be overwritten.
        self._buffer = bytearray(value)

    @classmethod
    def random(cls, random_bytes: RandomBytes, length: int = 32) -> Secret:
        """Draw a fresh secret of ``length`` bytes."""
        return cls(draw(random_bytes, length))

    def reveal(self) -> bytes:
        """Return the bytes.

        Raises:
            ValueError: the secret has been erased.
        """
        if not self._buffer:
            raise ValueError("this secret has been erased")
        return bytes(self._buffer)

    def moved(self) -> Secret:
        """Hand the bytes to a new object; this one is erased, and so is the new one if this one was."""
        following = Secret.__new__(Secret)
        following._buffer, self._buffer = self._buffer, bytearray()
        return following

    def erase(self) -> None:
        """Overwrite the buffer with zeros and drop it; a second call does nothing."""
        self._buffer[:] = bytes(len(self._buffer))
        self._buffer.clear()

    def __len__(self) -> int:
        return len(self._buffer)

    def __eq__(self, other: object) -> bool:
        """Compare in time that depends on the lengths alone. An erased secret equals nothing."""
        if not isinstance(other, Secret):
            return NotImplemented
        return bool(self._buffer) and constant_time.bytes_eq(bytes(self._buffer), bytes(other._buffer))

    def __hash__(self) -> NoReturn:
        raise TypeError("a secret has no hash: a set of secrets would compare them in variable time")

    def __repr__(self) -> str:
        return f"Secret({len(self._buffer)} bytes)" if self._buffer else "Secret(erased)"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Refuse pickling and copying: both would leave bytes that ``erase`` cannot reach."""
        raise TypeError("a secret is neither pickled nor copied")
