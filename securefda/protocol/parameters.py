"""Thresholds and counting rules of a session, as inequalities that both sides evaluate.

``n`` is the number of sources that the header names (U0). Members of later sets only become fewer, so every bound
that holds for U0 holds for U1, U2 and U3; the threshold is never recomputed downwards.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

MODULUS_BITS = (32, 64)


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """What one source asks of every session, from its own policy.

    Attributes:
        min_others: least number of trusted others, colluders subtracted, that a sum must contain.
        max_colluders: how many of the other sources may collude with the aggregator.
        trusted: roster indices that count towards ``min_others``; others may take part but count nothing.
    """

    min_others: int
    max_colluders: int
    trusted: frozenset[int]

    def __post_init__(self) -> None:
        if self.min_others < 1 or self.max_colluders < 0:
            raise ValueError("min_others must be at least 1 and max_colluders at least 0")

    def anonymity_of_smallest(self, quorum: int, members: Iterable[int], own_index: int) -> int:
        """k of the worst sum that may be opened: over ``quorum`` of ``members``, with as few trusted as can be.

        Who else is in a sum is settled after one's own input has left, and the others would open it without one's
        consent; so it is this number that has to be large enough before.
        """
        distrusted = set(members) - self.trusted - {own_index}
        return quorum - 1 - len(distrusted) - self.max_colluders


def default_threshold(n: int, min_others: int, max_colluders: int) -> int:
    """Default threshold: ``max(floor(2n/3) + 1, min_others + max_colluders + 1)``, at least sound and at most ``n``.

    A survivor does not count itself, hence one more than ``min_others + max_colluders``. If all t survivors trust each
    other, every one of them still finds its ``min_others``.

    Raises:
        ValueError: there are fewer than two sources, or no threshold t has ``2t > n + max_colluders`` and
            ``t > max_colluders``.
    """
    if n < 2:
        raise ValueError(f"a session needs at least 2 sources, not {n}")
    threshold = min(n, max(2 * n // 3 + 1, min_others + max_colluders + 1, (n + max_colluders) // 2 + 1))
    if not threshold_is_sound(threshold, n, max_colluders):
        raise ValueError(f"no threshold protects {n} sources of which {max_colluders} may collude with the aggregator")
    return threshold


def threshold_is_sound(threshold: int, n: int, max_colluders: int) -> bool:
    """``2t > n + max_colluders`` and ``max_colluders < t <= n``.

    The first makes it impossible that two disjoint views both gather t survivors' answers, the second that
    colluding sources alone hold t shares (Bonawitz et al. 2017, section 6.2).
    """
    return 2 * threshold > n + max_colluders and max_colluders < threshold <= n


def sum_cannot_wrap(n_max: int, q_max: int, modulus_bits: int) -> bool:
    """``n_max * q_max < 2^(b-1)``: no sum of ``n_max`` encoded inputs leaves the centred ring."""
    return n_max >= 1 and q_max >= 1 and n_max * q_max < 1 << (modulus_bits - 1)
