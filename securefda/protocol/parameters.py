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
        k_min: least number of trusted others, colluders subtracted, that a sum must contain.
        n_c: how many of the other sources may collude with the aggregator.
        trusted: roster indices that count towards ``k_min``; others may take part but count nothing.
    """

    k_min: int
    n_c: int
    trusted: frozenset[int]

    def __post_init__(self) -> None:
        if self.k_min < 1 or self.n_c < 0:
            raise ValueError("k_min must be at least 1 and n_c at least 0")

    def anonymity_of_smallest(self, quorum: int, members: Iterable[int], own_index: int) -> int:
        """k of the worst sum that may be opened: over ``quorum`` of ``members``, with as few trusted as can be.

        Who else is in a sum is settled after one's own input has left, and the others would open it without one's
        consent; so it is this number that has to be large enough before.
        """
        distrusted = set(members) - self.trusted - {own_index}
        return quorum - 1 - len(distrusted) - self.n_c


def default_threshold(n: int, k_min: int, n_c: int) -> int:
    """Default threshold: ``max(floor(2n/3) + 1, k_min + n_c + 1)``, raised to what is sound and capped at ``n``.

    A survivor does not count itself, hence ``k_min + n_c`` others and one: with t survivors that all trust each
    other, every one of them still finds its ``k_min``.

    Raises:
        ValueError: with fewer than two sources, or where no threshold can satisfy ``2t > n + n_c`` and ``t > n_c``.
    """
    if n < 2:
        raise ValueError(f"a session needs at least 2 sources, not {n}")
    threshold = min(n, max(2 * n // 3 + 1, k_min + n_c + 1, (n + n_c) // 2 + 1))
    if not threshold_is_sound(threshold, n, n_c):
        raise ValueError(f"no threshold protects {n} sources of which {n_c} may collude with the aggregator")
    return threshold


def threshold_is_sound(threshold: int, n: int, n_c: int) -> bool:
    """``2t > n + n_c`` and ``n_c < t <= n``.

    The first makes it impossible that two disjoint views both gather t survivors' answers, the second that
    colluding sources alone hold t shares (Bonawitz et al. 2017, section 6.2).
    """
    return 2 * threshold > n + n_c and n_c < threshold <= n


def sum_cannot_wrap(n_max: int, q_max: int, modulus_bits: int) -> bool:
    """``n_max * q_max < 2^(b-1)``: no sum of ``n_max`` encoded inputs leaves the centred ring."""
    return n_max >= 1 and q_max >= 1 and n_max * q_max < 1 << (modulus_bits - 1)
