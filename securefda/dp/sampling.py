"""Poisson sampling: each step draws every row by itself, with bits of the operating system.

The sampling rate lowers epsilon only as long as nobody can tell which rows a step drew. Opacus' own sampler takes its
bits from a generator of torch, whose 64-bit seed would be all that hides them.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

_WORD_BYTES = 8


def draw_rows(samples: int, rate: float, random_bytes: Callable[[int], bytes] = os.urandom) -> NDArray[np.int64]:
    """Return the rows of one step, ascending; none is an answer too.

    Args:
        samples: number of rows, >= 1.
        rate: in (0, 1], the probability of each; what is drawn with is less by at most 2**-64.
        random_bytes: ``random_bytes(n)`` returns n of them.

    Raises:
        ValueError: ``samples`` or ``rate`` is out of bounds, or ``random_bytes`` gave another number of bytes.
    """
    if samples < 1 or not 0 < rate <= 1:
        raise ValueError(f"rows are drawn from at least one and with a rate in (0, 1], not {samples} and {rate}")
    if rate == 1:
        return np.arange(samples)
    drawn = random_bytes(_WORD_BYTES * samples)
    if len(drawn) != _WORD_BYTES * samples:
        raise ValueError(f"the random source returned {len(drawn)} bytes instead of {_WORD_BYTES * samples}")
    below = np.uint64(int(rate * 2.0**64))  # exact: a float64 times a power of two
    return np.flatnonzero(np.frombuffer(drawn, dtype="<u8") < below)
