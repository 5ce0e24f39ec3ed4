"""T19: rounds that are charged and never finished, until nothing of a site's budget is left."""

from __future__ import annotations

from securefda.rounds.headers import Place
from securefda.secagg.messages import Survivors
from threat_model.adversaries.base import MaliciousAggregator


class DrainsBudget(MaliciousAggregator):
    """Lets every round go as far as the masked inputs, drops it there, and begins the next.

    Powers: the target's key, and when a round ends.
    Goal: the budget of every source that trains with noise, for no result: such a source trains no more.
    Source: our own.
    """

    threat = "T19"

    def next_place(self) -> Place | None:
        """One round after another, as long as the last one brought an input."""
        if self.sessions and not self.heard.inputs:
            return None
        return Place(self.run, len(self.sessions) + 1, 1, b"")

    def survivors_for(self, index: int) -> Survivors | None:  # noqa: ARG002 - of the base
        """None: the sum is of no interest."""
        return None
