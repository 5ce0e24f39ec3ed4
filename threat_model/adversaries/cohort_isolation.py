"""T08: the victim alone is shown another U2, and so masks in a cohort that exists for nobody else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

from securefda.protocol.messages import DeliveredBox, MaskedInput, ShareDelivery, Signed, Survivors
from securefda.protocol.transcript import cohort_with, cohorts_of, quorum_of
from threat_model.adversaries.base import MaliciousAggregator
from threat_model.adversaries.masks import Vector64
from threat_model.sites import AggregatorSeat


@dataclass(frozen=True, slots=True)
class Isolation:
    """The boxes withheld from the victim, and the cohort that results.

    Attributes:
        left_out: whose boxes the victim does not get.
        mates: with whom it therefore masks; to everybody else they are dropped.
    """

    left_out: frozenset[int]
    mates: frozenset[int]


class CohortIsolation(MaliciousAggregator):
    """Moves the victim into a cohort of its own making, whose other members the rest takes for dropped.

    Having seen all nonces, the aggregator can choose among many cohorts for the victim by leaving boxes out of its
    delivery alone. In the view of all others the chosen mates lie scattered over their cohorts, and can be dropped
    without any sum falling below its quorum, while the victim survived. These others then give away the victim's self
    secret and the masters of its mates: every mask of its input.

    Powers: the target's key and the relay; no source colludes.
    Goal: the victim's update, exactly.
    Source: our own search for views that differ in U2; at ``sum`` the victim has too many mates to drop them all.

    Args:
        seat: of the target.
        victim: roster index.
        shown: the victim's input in R3': ``"verbatim"``, as it signed it, or it is ``"left out"``.
    """

    threat = "T08"

    def __init__(
        self, seat: AggregatorSeat, *, victim: int, shown: Literal["verbatim", "left out"] = "verbatim"
    ) -> None:
        super().__init__(seat)
        self.victim, self._shown = victim, shown
        self.plan: Isolation | None = None

    def delivery_for(self, index: int) -> ShareDelivery | None:
        """Return all boxes; for the victim, those of the plan."""
        delivery = super().delivery_for(index)
        self.plan = self.plan or next(self._plans(), None)
        if delivery is None or self.plan is None or index != self.victim:
            return delivery
        boxes: tuple[DeliveredBox, ...] = delivery.boxes
        return ShareDelivery(tuple(box for box in boxes if box.peer not in self.plan.left_out))

    def _plans(self) -> Iterator[Isolation]:
        """Yield every choice of boxes to leave out after which t others can be shown the mates as dropped."""
        header, ctx1 = self.heard.header, self.heard.views[self.victim].ctx1
        nonces = {sender: bundle.body.nonce for sender, bundle in self.heard.bundles.items()}
        of_the_others = cohorts_of(header, ctx1, nonces)
        for left_out in self._choices(len(nonces) - header.threshold):
            shown = {sender: nonce for sender, nonce in nonces.items() if sender not in left_out}
            mates = cohort_with(self.victim, cohorts_of(header, ctx1, shown)) - {self.victim}
            alive = [len(cohort - mates) for cohort in of_the_others]
            enough = sum(alive) - 1 >= header.threshold  # the victim does not answer
            opens = [
                count == 0 or count >= quorum_of(header, cohort)
                for count, cohort in zip(alive, of_the_others, strict=True)
            ]
            if enough and all(opens):
                yield Isolation(left_out, mates)

    def _choices(self, most: int) -> Iterator[frozenset[int]]:
        others = sorted(set(self.heard.bundles) - {self.victim})
        for count in range(1, most + 1):
            yield from map(frozenset, combinations(others, count))

    def survivors_for(self, index: int) -> Survivors | None:
        """Drop the mates; they get no lists, nor does the victim, whose view these do not fit."""
        lists = super().survivors_for(index)
        if lists is None or self.plan is None or index in {self.victim, *self.plan.mates}:
            return None
        alive = tuple(item for item in lists.survivors if item.index not in self.plan.mates)
        return Survivors(alive, tuple(sorted({*lists.dropped, *self.plan.mates})))

    def inputs_for(self, index: int) -> tuple[Signed[MaskedInput], ...]:
        """Return the inputs with the victim's, which it signed among other members, or without it."""
        inputs = super().inputs_for(index)
        return tuple(item for item in inputs if self._shown == "verbatim" or item.sender != self.victim)

    def attack(self) -> Vector64 | None:
        """Return the victim's input without all masks that could be opened."""
        return self.estimate(self.victim)
