"""T09: colluding sources take their own terms out of the sum."""

from __future__ import annotations

import numpy as np

from securefda.protocol.messages import Survivors
from securefda.protocol.transcript import quorum_of
from threat_model.adversaries.base import MaliciousAggregator
from threat_model.adversaries.masks import Decoded, decode
from threat_model.sites import AggregatorSeat


class SubtractsColluders(MaliciousAggregator):
    """Opens the smallest sum that holds the victim and all colluders, and subtracts what the colluders put into it.

    Powers: the target's key, the relay, and the inputs and secrets of ``colluders``. It may lose any honest source
    that the threshold, or the quorum of the victim's cohort, can do without: those hear nothing more.
    Goal: the victim's update, or the sum of as few honest ones as possible.
    Source: Bonawitz et al. 2017, section 6.2, theorem 6.3: what remains is the sum over the honest sources.

    Args:
        seat: of the target.
        victim: roster index.

    Attributes:
        summed: whose inputs are in the sum, once it is settled.
    """

    threat = "T09"

    def __init__(self, seat: AggregatorSeat, *, victim: int) -> None:
        super().__init__(seat)
        self.victim = victim
        self.summed: set[int] = set()
        self._lost: set[int] = set()

    def survivors_for(self, index: int) -> Survivors | None:
        """Declare honest sources beyond the quorum dropped, and send them no lists."""
        if not self.summed:
            self._choose()
        lists = super().survivors_for(index)
        if lists is None or index in self._lost:
            return None
        alive = tuple(item for item in lists.survivors if item.index not in self._lost)
        return Survivors(alive, tuple(sorted({*lists.dropped, *self._lost})))

    def _choose(self) -> None:
        heard, view = self.heard, self.heard.views[self.victim]
        if self.victim not in heard.inputs:
            return
        partners = view.members if heard.header.graph else view.partners(heard.bundles[self.victim].body.nonce)
        cohort = {self.victim, *partners} & set(heard.inputs)
        honest = sorted(cohort - {self.victim} - set(self.colluders))
        needed = max(0, quorum_of(heard.header, cohort) - len(cohort - set(honest)))
        self._lost = set(honest[needed:])
        self.summed = cohort - self._lost

    def attack(self) -> Decoded | None:
        """Return the weighted sum over the honest part of the smallest sum; None if it did not open."""
        secrets = [self.self_secret_of(owner) for owner in self.summed]
        if not self.summed or any(secret is None for secret in secrets):
            return None
        total = self.heard.vectors[self.victim] * 0
        for owner in self.summed:
            outer = {peer: seed for peer, seed in self.pair_seeds_of(owner).items() if peer not in self.summed}
            total += self._peeled(owner, outer)
        opened = decode(self.heard.header, total)
        own = [
            decode(self.heard.header, self._peeled(c, self.pair_seeds_of(c))) for c in self.summed & set(self.colluders)
        ]
        vector = opened.vector - np.sum([one.vector for one in own], axis=0)
        weight = opened.weight - sum(one.weight for one in own)
        return Decoded(vector, weight, opened.kept - sum(one.kept for one in own))
