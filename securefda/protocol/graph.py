"""The graph of a session of many sources: a random ring, and how many neighbours are enough.

The members of a session are placed on a ring in an order that no site chooses. Each has the ``degree`` nearest members
as neighbours, half of them on either side: a Harary graph (Bell et al. 2020). A member and its neighbours hold its
shares, and ``threshold`` of them open a secret. The complete graph is the ring whose degree is all others.

Security needs one property of the ring: among the ``degree / 2`` places before an honest member, and among those after
it, at most ``threshold - degree / 2 - 2`` belong to colluders. Then, whichever sources the aggregator declares dropped,
colluding holders are too few to open anything; no member can have both of its secrets opened; and no sum can be opened
over a stretch of the ring, since fewer than ``threshold`` holders would help at its ends. The specification has the
proof.

Probabilities are exact: integers, and no floating point.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache

from securefda.protocol.header import GraphTerms

SECURITY_BITS = 40
"""The ring lacks the property for security with a probability of at most 2^-40."""

CORRECTNESS_BITS = 30
"""A neighbourhood loses too many members with a probability of at most 2^-30, if no more drop out than assumed."""

DEFAULT_SILENT = 2
"""How many members may drop out between their commitment and their nonce, unless the target sets another number."""


# --- the calculator ---------------------------------------------------------------------------------------------------


def hypergeometric_tail(population: int, marked: int, drawn: int, least: int) -> Fraction:
    """Probability that of ``drawn`` out of ``population``, of which ``marked`` are marked, at least ``least`` are.

    Raises:
        ValueError: more are marked or drawn than there are, or a number is negative.
    """
    if not (0 <= marked <= population and 0 <= drawn <= population):
        raise ValueError(f"{marked} marked and {drawn} drawn of {population}")
    hits = range(max(least, 0), min(marked, drawn) + 1)
    ways = sum(math.comb(marked, hit) * math.comb(population - marked, drawn - hit) for hit in hits)
    return Fraction(ways, math.comb(population, drawn))


def runs_of(n: int, silent: int) -> int:
    """Number of runs of places beside honest members, in one session, among which the aggregator can choose.

    Each of the ``n`` sources accepts one roll, and has two runs beside it on the resulting ring. The aggregator can
    leave up to ``silent`` nonces out of a roll, and each choice gives another ring.
    """
    return 2 * n * sum(math.comb(n, missing) for missing in range(silent + 1))


def least_threshold(degree: int, *, n: int, fewest: int, colluders: int, silent: int) -> int:
    """The least threshold with which a ring of this degree is secure, except with probability 2^-40.

    The bound is a union bound over all runs of places, for the smallest ring, where colluders are densest. A result
    above the number of holders means that no threshold is secure.

    Args:
        degree: even, below ``fewest``.
        n: sources that the header names.
        fewest: members with which the session goes on.
        colluders: how many of the n may collude with the aggregator.
        silent: see :func:`runs_of`.
    """
    half, others = degree // 2, fewest - 1
    # Hypergeometric, as colluders do not choose their places: one honest nonce makes
    # the order random (SFDA-SA/2, section 7).
    marked = min(colluders, others)
    allowed = Fraction(math.comb(others, half), runs_of(n, silent) << SECURITY_BITS)
    above = 0
    for count in range(min(half, marked), -1, -1):  # the tail grows until it is too large for one colluder less
        above += math.comb(marked, count) * math.comb(others - marked, half - count)
        if above > allowed:
            return half + count + 2
    return half + 2


def enough_survive(degree: int, threshold: int, *, n: int, dropouts: int) -> bool:
    """Whether each member keeps ``threshold`` neighbours after random dropouts, except with probability 2^-30."""
    too_many = hypergeometric_tail(n - 1, min(dropouts, n - 1), degree, degree - threshold + 1)
    return n * too_many <= Fraction(1, 1 << CORRECTNESS_BITS)


def smallest_graph(
    n: int, *, fewest: int, colluders: int, dropouts: int, least: int = 2, silent: int = DEFAULT_SILENT
) -> GraphTerms | None:
    """The graph of least degree that is secure and survives the dropouts; None if only the complete graph does.

    Args:
        n, fewest, colluders, silent: see :func:`least_threshold`.
        dropouts: how many of the n may drop out at random.
        least: smallest threshold that the sources' policies accept.
    """
    for degree in range(2, fewest, 2):
        safe = least_threshold(degree, n=n, fewest=fewest, colluders=colluders, silent=silent)
        threshold = max(safe, least)
        if threshold <= degree and enough_survive(degree, threshold, n=n, dropouts=dropouts):
            return GraphTerms(degree, threshold, colluders, dropouts, silent)
    return None


@lru_cache(maxsize=64)
def graph_fault(terms: GraphTerms, n: int, fewest: int) -> str | None:
    """Why a header's graph is weaker than it must be, or None; ``n`` and ``fewest`` as in :func:`least_threshold`.

    A graph with which sessions fail too often is not refused: it costs the target time, and reveals nothing.
    """
    degree, silent = terms.degree, terms.silent
    if degree % 2 or not 2 <= degree < fewest:
        return f"a degree of {degree} among at least {fewest} members"
    if not (terms.colluders < fewest <= n and silent <= n):
        return f"{terms.colluders} colluders and {silent} silent members of {n}, where {fewest} must stay"
    least = least_threshold(degree, n=n, fewest=fewest, colluders=terms.colluders, silent=silent)
    if not least <= terms.threshold <= degree:
        return f"{terms.threshold} shares of {degree + 1} open a secret, and at least {least} are needed"
    return None


# --- the ring ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ring:
    """Members in the order in which they stand, each the neighbour of the ``degree`` nearest to it."""

    order: tuple[int, ...]
    degree: int

    @cached_property
    def _places(self) -> Mapping[int, int]:
        return {member: place for place, member in enumerate(self.order)}

    @property
    def members(self) -> frozenset[int]:
        """All of them."""
        return frozenset(self.order)

    def holders(self, member: int) -> frozenset[int]:
        """The holders of the shares of a member's secrets: its neighbours and itself.

        Raises:
            KeyError: it is no member.
        """
        place, size, half = self._places[member], len(self.order), self.degree // 2
        # So the code of both suites is one: SFDA-SA/1 is the ring on which all are neighbours.
        if self.degree >= size - 1:
            return frozenset(self.order)
        return frozenset(self.order[(place + step) % size] for step in range(-half, half + 1))

    def neighbours(self, member: int) -> frozenset[int]:
        """Its neighbours, without itself."""
        return self.holders(member) - {member}

    def short_of(self, threshold: int, there: Collection[int], members: Iterable[int]) -> list[int]:
        """The members with fewer than ``threshold`` holders among the sources that are left."""
        present = frozenset(there)
        return [member for member in members if len(self.holders(member) & present) < threshold]


def complete(members: Collection[int]) -> Ring:
    """The complete graph."""
    return Ring(tuple(sorted(members)), len(members) - 1)


def ring_of(places: Mapping[int, bytes], degree: int) -> Ring:
    """The ring in which members stand by their places, 32 bytes each; equal ones by index."""
    # The index breaks ties, so that all sites find the same ring.
    order: Sequence[int] = sorted(places, key=lambda member: (places[member], member))
    return Ring(tuple(order), degree)
