"""Sizes of fields, and what every message checks of its own: a value that is out of bounds is never built."""

from __future__ import annotations

import math

DIGEST_BYTES = 32
SESSION_ID_BYTES = 32
RUN_ID_BYTES = 16
SIGNATURE_BYTES = 64
MAX_NOTE_BYTES = 512 * 1024
MAX_BOX_BYTES = 8192
"""Of a share box with an energy row: one byte for each of at most 4096 layers, and less than 200 beside it."""

MAX_PROOF_HASHES = 128
MAX_LINE_CHARACTERS = 1024


def expect(condition: bool, what: str) -> None:
    """Raise a ValueError that says ``what`` must be, unless it is."""
    if not condition:
        raise ValueError(what)


def expect_bytes(value: bytes, length: int, name: str) -> None:
    """Likewise for the length of a field of bytes."""
    expect(len(value) == length, f"{name} must be {length} bytes, not {len(value)}")


def expect_finite(value: float, name: str, *, positive: bool = False) -> None:
    """Likewise for a number that is neither infinite nor NaN; with ``positive``, above zero."""
    expect(math.isfinite(value), f"{name} must be finite")
    expect(not positive or value > 0, f"{name} must be above 0")
