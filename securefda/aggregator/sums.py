"""What an attempt at a round ends with: sums over some of its sources, and V, w and n of the rules over all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from securefda.protocol.encoding import AggregateStatistics, Vector64
from securefda.protocol.messages import Update, Visibility
from securefda.rules import DeltaErrors


@dataclass(frozen=True, slots=True, repr=False)
class PartialSum:
    """One sum over some sources, weighted by samples, in units of the header's ``max_samples``.

    Attributes:
        level: visibility level of the members; at ``individual`` the aggregator added up updates in clear.
        vector: V of the rules, or at ``cohort`` the sum of n_i g_i; float64 (m,).
        statistics: the summed statistics, with w and n.
        members: roster indices in the sum.
        reports: at ``individual``, the message of each member's update.
        clipped: at ``individual``, how many coordinates of each member's contribution the clip or a range changed.
    """

    level: Visibility
    vector: Vector64
    statistics: AggregateStatistics
    members: frozenset[int]
    reports: Mapping[int, Update] = field(default_factory=dict)
    clipped: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, repr=False)
class RoundSum:
    """The result of an attempt: one sum for each set of sources that were summed together.

    Attributes:
        partial_sums: over disjoint sets of sources.
        digest: SHA-256 of the opened ring sums; empty if all updates were sent in clear.
    """

    partial_sums: tuple[PartialSum, ...]
    digest: bytes

    @property
    def survivors(self) -> frozenset[int]:
        """Roster indices of all sources in a sum."""
        return frozenset().union(*(partial.members for partial in self.partial_sums))

    @property
    def count(self) -> int:
        """Number of sources in masked sums, which each of them can check; if there is none, of updates in clear."""
        masked = [len(partial.members) for partial in self.partial_sums if partial.level is not Visibility.INDIVIDUAL]
        return sum(masked) if masked else len(self.survivors)


@dataclass(frozen=True, slots=True, repr=False)
class RoundTotal:
    """V (float64, (m,)), w and n of the rules, in units of the header's ``max_samples``.

    ``errors`` are the estimated errors of the rules, means over the samples; None if the round asks for none.
    """

    vector: Vector64
    kept: float
    samples: float
    errors: DeltaErrors | None = None

    @property
    def mean_beta(self) -> float:
        """Mean of beta, weighted by samples: 1 - w/n."""
        return 1.0 - self.kept / self.samples
