"""T33: a source is asked for more than its policy allows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from securefda.protocol.messages import Header, Visibility
from securefda.training import Vector
from threat_model.adversaries.base import MaliciousAggregator
from threat_model.sites import AggregatorSeat

Change = Callable[[Header, int], Header]
"""Makes the header of the source at a roster index of the one that everybody is sent."""


def in_clear(header: Header, index: int) -> Header:
    """Ask for the source's own update, and for the sum of the others."""
    levels = tuple(
        Visibility.INDIVIDUAL if other == index else level
        for other, level in zip(header.participants, header.levels, strict=True)
    )
    quorum = min(header.sum_quorum, levels.count(Visibility.SUM))
    return replace(header, levels=levels, sum_quorum=quorum)


class AbovePolicy(MaliciousAggregator):
    """Sends one source another header than the rest, and takes what comes.

    Powers: the target's key; it knows every policy, for nobody has to keep one secret. It has no access to the site.
    Goal: the victim's update in clear, by a header that asks for it; or any answer to a header above the policy.
    Source: aggregators of federated learning that choose modulus, threshold and what is revealed on their own.

    Args:
        seat: of the target.
        victim: roster index.
        change: makes the victim's header of the one that everybody is sent.
    """

    threat = "T33"

    def __init__(self, seat: AggregatorSeat, *, victim: int, change: Change = in_clear) -> None:
        super().__init__(seat)
        self.victim, self._change = victim, change

    def header_for(self, index: int) -> Header | None:
        """Send the victim a header that its policy forbids."""
        header = super().header_for(index)
        return self._change(header, index) if header is not None and index == self.victim else header

    def attack(self) -> Vector | None:
        """Return the victim's update, if it came in clear."""
        return self.heard.clear.get(self.victim)
