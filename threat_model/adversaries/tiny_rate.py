"""T15: a target whose learning rate is so small that rounding leaves the largest update of a cohort alone."""

from __future__ import annotations

from dataclasses import replace

from securefda.adaptation import RoundPlan
from securefda.rounds.headers import Place
from securefda.rounds.target import TargetRound
from threat_model.adversaries.base import MaliciousAggregator
from threat_model.adversaries.masks import Vector64
from threat_model.sites import AggregatorSeat


class TinyRate(MaliciousAggregator):
    """Publishes a learning rate with which aligned updates are shorter than a step of the encoding, but for one.

    Powers: the target's key and what a target publishes; how much larger the victim's update is than the others', which
    rounds before may have told.
    Goal: the victim's update in those coordinates that rounding leaves.
    Source: our own. Rounding is the other end of the clip, see :mod:`threat_model.adversaries.sign_header`.

    Args:
        seat: of the target.
        learning_rate: what it publishes.
    """

    threat = "T15"

    def __init__(self, seat: AggregatorSeat, *, learning_rate: float) -> None:
        super().__init__(seat)
        self._learning_rate = learning_rate

    def train(self, place: Place, plan: RoundPlan) -> TargetRound | None:
        """As always, but for the learning rate that it says it had."""
        trained = super().train(place, plan)
        if trained is None:
            return None
        return replace(trained, result=replace(trained.result, learning_rate=self._learning_rate))

    def attack(self) -> Vector64 | None:
        """The opened sum, (m,), weighted; None where there is no sum."""
        total = self.aggregate()
        return None if total is None else total.vector
