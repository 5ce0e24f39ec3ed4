"""The encoding of the next round: the width of a word, and a range for each layer.

Narrow words need tight ranges. These are computed from opened sums, which the target knows anyway: for each layer, the
largest coordinate of a sum over n sources, divided by √n, with headroom above. This is about one source's contribution
if contributions are unrelated, and √n times as much if they are equal. Before the first sum, words have 32 bits and
each range is the clip.

Under FedGP, a contribution depends on a cosine that is nearly zero in some rounds, so one round's sums say little about
the next round. But in each layer, an orthogonal projection is at most as long as the target's update. So a layer's
range is at least ``HEADROOM`` times the root mean square of the target's update in it, times the largest factor n - w
with which all sources together have weighted their projections so far. At most one coordinate in ``HEADROOM²`` of a
projection exceeds that. Without the factor, steps would be so coarse that the floor of the norm caps
(:data:`securefda.protocol.weighed_contribution.LEAST_STEPS`) takes honest contributions for zeros.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from securefda.aggregator.sums import PartialSum
from securefda.protocol.encoding import Vector64
from securefda.protocol.messages import RuleTerms, Visibility
from securefda.protocol.packing import WORD_BITS
from securefda.protocol.transcript import labelled_digest
from securefda.training import Vector

RESOLUTION_BITS = 14
"""Bits that ``auto`` gives to one source's coordinate, with its sign; the other bits of a word are for the sum."""

HEADROOM = 16.0
"""Ratio of a range to the largest coordinate that is expected from a source."""

SMALL_LAYER = 256
"""A layer with fewer coordinates gets more headroom, since its largest coordinate varies more from round to round."""

HEADROOM_IN_SMALL_LAYERS = 128.0
"""``HEADROOM`` for small layers."""

FADE = 0.8
"""Weight of a layer's earlier largest coordinate in the next round."""

_LEAST_RANGE = 2.0**-40
"""Smallest range in units of the clip."""


@dataclass(frozen=True, slots=True)
class WordFormat:
    """Width of a word in bits, and the range of each layer."""

    bits: int
    ranges: tuple[float, ...]

    @classmethod
    def wide(cls, clip: float, layers: int) -> WordFormat:
        """The widest words, with the clip as the range of each layer."""
        return cls(WORD_BITS[-1], (clip,) * layers)


def narrowest(bits: int, n_max: int) -> int:
    """Fewest bits of a word in a run: ``bits``, or if that is 0, the fewest that leave ``RESOLUTION_BITS``.

    A word of k bits needs log2(n_max) of them for the sum.
    """
    if bits:
        return bits
    needed = RESOLUTION_BITS + math.ceil(math.log2(n_max))
    return next((one for one in WORD_BITS if one >= needed), WORD_BITS[-1])


def sum_kind(rule: RuleTerms, levels: Iterable[Visibility]) -> bytes:
    """Digest of the rule, its settings and the visibility levels; sums with the same digest have similar sizes."""
    return labelled_digest("sum-kind", repr((rule, sorted(set(levels)))).encode())


def format_for(
    bits: int, peaks: Vector64 | None, *, clip: float, sizes: Sequence[int], projected: Vector | None = None
) -> WordFormat:
    """The encoding of a round with words of ``bits`` bits; wide words if there are no peaks yet.

    Args:
        bits: 16 to 32.
        peaks: from :func:`peaks_after` after the last round with sums of this kind; None if there is none.
        clip: of every layer.
        sizes: of the layers.
        projected: under an orthogonal projection of the target's update, that update times a bound on the factor with
            which a source weights its projection, (m,); else None.
    """
    if bits == WORD_BITS[-1] or peaks is None or not peaks.any():
        return WordFormat.wide(clip, len(sizes))
    headroom = np.where(np.array(sizes) < SMALL_LAYER, HEADROOM_IN_SMALL_LAYERS, HEADROOM)
    expected = headroom * peaks
    if projected is not None:
        squares = np.add.reduceat(np.square(projected, dtype=np.float64), _starts(sizes))
        expected = np.maximum(expected, HEADROOM * np.sqrt(squares / np.array(sizes)))
    ranges = np.clip(expected, _LEAST_RANGE * clip, clip)
    ranges[expected == 0] = clip  # the layer was zero in all sums, so the size of its contributions is unknown
    return WordFormat(bits, tuple(ranges.tolist()))


def peaks_after(before: Vector64 | None, sums: Iterable[PartialSum], sizes: Sequence[int]) -> Vector64:
    """The largest coordinate expected from a source, float64 (layers,), from these sums and earlier rounds.

    A layer that is zero in all sums keeps its value, since its contributions were cut, not small.
    """
    starts = _starts(sizes)
    seen = np.zeros(len(sizes))
    for one in sums:
        # Both ends, for the absolute values would be another vector of the model's length.
        ends = np.maximum.reduceat(one.vector, starts), -np.minimum.reduceat(one.vector, starts)
        np.maximum(seen, np.maximum(*ends) / math.sqrt(len(one.members)), out=seen)
    if before is None:
        return seen
    return np.where(seen > 0, np.maximum(seen, FADE * before), before)


def _starts(sizes: Sequence[int]) -> NDArray[np.int64]:
    """Where each layer begins in a vector, int64 (layers,)."""
    return np.cumsum([0, *sizes[:-1]])
