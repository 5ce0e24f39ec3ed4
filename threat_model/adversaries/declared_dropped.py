"""T06: a source that delivered its input is declared dropped."""

from __future__ import annotations

from typing import Literal

from securefda.protocol.messages import Consistency, Survivors
from threat_model.adversaries.base import MaliciousAggregator
from threat_model.adversaries.masks import Vector64
from threat_model.sites import AggregatorSeat


class DeclaredDropped(MaliciousAggregator):
    """Keeps the victim's input and asks the others for the shares that open a dropped source's pairwise masks.

    Powers: the target's key and the relay; no source colludes.
    Goal: the victim's update, from its masked input without its pairwise masks.
    Source: Bonawitz et al. 2017, section 4.0.2, the reason for the second mask; section 6.2 for this attack.

    Args:
        seat: of the target.
        victim: roster index.
        to_victim: which lists the victim is shown: ``"true"``, in which everyone survived, or ``"false"``, those of
            the others.
        signatures: which signatures it is shown: ``"alike"``, those over its own lists, or ``"all"``.
    """

    threat = "T06"

    def __init__(
        self,
        seat: AggregatorSeat,
        *,
        victim: int,
        to_victim: Literal["true", "false"] = "false",
        signatures: Literal["alike", "all"] = "alike",
    ) -> None:
        super().__init__(seat)
        self.victim, self._to_victim, self._signatures = victim, to_victim, signatures

    def survivors_for(self, index: int) -> Survivors | None:
        """Show the others that the victim is dropped."""
        lists = super().survivors_for(index)
        if lists is None or (index == self.victim and self._to_victim == "true"):
            return lists
        alive = tuple(item for item in lists.survivors if item.index != self.victim)
        return Survivors(alive, tuple(sorted({*lists.dropped, self.victim})))

    def consistency_for(self, index: int) -> Consistency | None:
        """Show the others the signatures over the lists that they signed."""
        signed = self.heard.signatures
        own = signed[index].body
        shown = [
            signed[sender]
            for sender in sorted(signed)
            if signed[sender].body == own or (index == self.victim and self._signatures == "all")
        ]
        return Consistency(tuple(shown), self.inputs_for(index))

    def attack(self) -> Vector64 | None:
        """Return the victim's input without all masks that could be opened."""
        return self.estimate(self.victim)
