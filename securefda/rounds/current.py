"""The round that a run is in: what was done for it so far, and the line that is written when it ends."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Literal

from securefda.adaptation import RoundPlan
from securefda.rounds.attempts import RoundSum
from securefda.rounds.records import RoundLine
from securefda.rounds.run_settings import ByteCounts, TargetSite
from securefda.rounds.site import vector_to_wire
from securefda.rounds.target import TargetRound
from securefda.training import Vector


@dataclass(slots=True)
class CurrentRound:
    """A round in progress.

    Attributes:
        number: counts from 1.
        plan: what the round does.
        attempt: number of the last attempt that began; 0 before the first.
        traffic_before: bytes of the process when the round began.
        trained: whether the target has done its part, once for all attempts.
        target: what that gave; None where the rule uses nothing of the target.
        seconds: by phase.
        refused: policy key or check by roster index of the source that refused.
    """

    number: int
    plan: RoundPlan
    attempt: int
    traffic_before: ByteCounts
    trained: bool = False
    target: TargetRound | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)

    def spent(self, phase: str, seconds: float) -> None:
        """Add to the time of a phase."""
        self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds

    def finished_line(
        self,
        site: TargetSite,
        model: Vector,
        participants: Iterable[int],
        outcome: RoundSum | None,
        mean_beta: float | None,
    ) -> RoundLine:
        """The line of a finished round, without its evaluation; ``outcome`` is None for a round of the target alone."""
        survivors = outcome.survivors if outcome else frozenset()
        line = self._line(site, model, "finished", participants, survivors)
        line["mean_beta"] = mean_beta if self.plan.rule.adapts else None
        if outcome and len(outcome.parts) > 1:
            line["cohorts"] = [[site.name(index) for index in sorted(part.members)] for part in outcome.parts]
        return line

    def lost_line(self, site: TargetSite, model: Vector, participants: Iterable[int]) -> RoundLine:
        """The line of a round that was given up."""
        return self._line(site, model, "lost", participants, frozenset())

    def _line(
        self,
        site: TargetSite,
        model: Vector,
        status: Literal["finished", "lost"],
        participants: Iterable[int],
        survivors: frozenset[int],
    ) -> RoundLine:
        up, down = (
            {site.name(index): count - old.get(index, 0) for index, count in sorted(new.items())}
            for new, old in zip(site.traffic(), self.traffic_before, strict=True)
        )
        return RoundLine(
            round=self.number,
            rule=str(self.plan.rule),
            mean_beta=None,
            survivors=[site.name(index) for index in sorted(survivors)],
            dropped=[site.name(index) for index in sorted(set(participants) - survivors)],
            refused={site.name(index): key for index, key in sorted(self.refused.items())},
            attempts=self.attempt,
            seconds=dict(self.seconds),
            bytes_up=up,
            bytes_down=down,
            model_digest=sha256(vector_to_wire(model)).hexdigest(),
            status=status,
        )
