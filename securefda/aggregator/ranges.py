"""How the parameters of the next round are encoded: the width of a word, and a range for each layer.

Narrow words need ranges that fit. They come from sums that the target has opened, which it knows anyway: of each layer
the largest coordinate of a sum over n sources, divided by √n, with room above it. That is what one source puts in where
the sources' parts have nothing to do with each other, and √n times as much where they are alike. Before there is a sum
to go by, words have 32 bits and ranges are the clip.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from securefda.aggregator.attempt import PartialSum
from securefda.protocol.encoding import Vector64
from securefda.protocol.messages import RuleTerms, Visibility
from securefda.protocol.packing import WORD_BITS
from securefda.protocol.transcript import labelled_digest

RESOLUTION_BITS = 14
"""Bits of a word, sign included, that ``auto`` leaves to one source's coordinate beside the room for the sum."""

ROOM = 16.0
"""How far a range lies above the largest coordinate that is expected of a source."""

SMALL_LAYER = 256
"""Below so many coordinates their largest varies much from round to round, ..."""

ROOM_IN_SMALL_LAYERS = 128.0
"""... and there is more room above it: a small layer has fewer coordinates that are far below the largest."""

FADE = 0.8
"""What a layer's largest coordinate counts for in the next round."""

_LEAST_RANGE = 2.0**-40
"""Smallest range in units of the clip."""


@dataclass(frozen=True, slots=True)
class WordFormat:
    """Width of a word, and the range of each layer."""

    bits: int
    ranges: tuple[float, ...]

    @classmethod
    def wide(cls, clip: float, layers: int) -> WordFormat:
        """Words that hold whatever the clip lets through."""
        return cls(WORD_BITS[-1], (clip,) * layers)


def narrowest(bits: int, n_max: int) -> int:
    """Fewest bits of a word in a run: ``bits``, or where that is 0 the fewest that leave ``RESOLUTION_BITS``.

    Of a word of k bits, log2(n_max) are room for the sum.
    """
    if bits:
        return bits
    needed = RESOLUTION_BITS + math.ceil(math.log2(n_max))
    return next((one for one in WORD_BITS if one >= needed), WORD_BITS[-1])


def question_of(rule: RuleTerms, levels: Iterable[Visibility]) -> bytes:
    """What sums have in common that are alike in size: the rule with its settings, and the levels of those asked."""
    return labelled_digest("question", repr((rule, sorted(set(levels)))).encode())


def format_for(bits: int, peaks: Vector64 | None, *, clip: float, sizes: Sequence[int]) -> WordFormat:
    """The encoding of a round in which words are to have ``bits`` bits.

    Args:
        bits: 16 to 32.
        peaks: what :func:`peaks_after` gave after the last round that asked the same; None before there is one.
        clip: of every layer.
        sizes: of the layers.
    """
    if bits == WORD_BITS[-1] or peaks is None or not peaks.any():
        return WordFormat.wide(clip, len(sizes))
    room = np.where(np.array(sizes) < SMALL_LAYER, ROOM_IN_SMALL_LAYERS, ROOM)
    ranges = np.clip(room * peaks, _LEAST_RANGE * clip, clip)
    ranges[peaks == 0] = clip  # a projection cut the layer out of all sums: nothing says how large its parts are
    return WordFormat(bits, tuple(ranges.tolist()))


def peaks_after(before: Vector64 | None, sums: Iterable[PartialSum], sizes: Sequence[int]) -> Vector64:
    """The largest coordinate expected of a source, float64 (layers,): by these sums, and by the rounds before.

    A layer that is zero in all sums stays as it was: its parts were cut, not small.
    """
    starts = np.cumsum([0, *sizes[:-1]])
    seen = np.zeros(len(sizes))
    for one in sums:
        largest = np.maximum.reduceat(np.abs(one.vector), starts) / math.sqrt(len(one.members))
        np.maximum(seen, largest, out=seen)
    if before is None:
        return seen
    return np.where(seen > 0, np.maximum(seen, FADE * before), before)
