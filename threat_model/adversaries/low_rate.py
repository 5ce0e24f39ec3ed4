"""T15: a target learning rate so small that rounding removes all updates but the largest."""

from __future__ import annotations

from dataclasses import replace

from securefda.protocol.messages import Header
from threat_model.adversaries.base import MaliciousAggregator
from threat_model.adversaries.masks import Vector64
from threat_model.sites import AggregatorSeat


class LowRate(MaliciousAggregator):
    """Names a tiny learning rate as its own, and opens the sum as it should.

    Sources scale their updates to the target's rate before they encode them. Where that brings all but the largest
    below half a step of the encoding, the sum is the largest one's.

    Powers: the target's key, and the numbers that it publishes.
    Goal: the update of the source whose contribution is largest.
    Source: our own.

    Args:
        seat: of the target.
        rate: that it names.
    """

    threat = "T15"

    def __init__(self, seat: AggregatorSeat, *, rate: float) -> None:
        super().__init__(seat)
        self._rate = rate

    def header_for(self, index: int) -> Header | None:
        """Return a header with this rate."""
        header = super().header_for(index)
        if header is None or header.target is None:
            return header
        return replace(header, target=replace(header.target, learning_rate=self._rate))

    def attack(self) -> Vector64 | None:
        """Return the sum, float64 (m,); None if there is none."""
        opened = self.aggregate() if self.sessions else None
        return None if opened is None else opened.vector
