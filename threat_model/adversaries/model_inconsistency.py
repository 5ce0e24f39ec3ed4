"""T14: the victim gets a different model from all others."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from securefda.protocol.messages import Consistency, Header, KeyList
from securefda.training import Vector
from threat_model.adversaries.base import MaliciousAggregator
from threat_model.adversaries.masks import Vector64
from threat_model.sites import AggregatorSeat


class ModelInconsistency(MaliciousAggregator):
    """Sends everybody but the victim a model whose gradient is zero, so that the sum is the victim's update alone.

    Powers: the target's key and the relay; no source colludes.
    Goal: the direction of the victim's update, from a sum in which the others' are zero.
    Source: gradient suppression of Pasquini, Francati and Ateniese, CCS 2022; their remedy is to bind the masks to the
    model.

    Args:
        seat: of the target.
        victim: roster index.
        dead: the model for the others, float32 (m,).
        announced: whether each source's header has the digest of the model that it gets, or all have one header.
        shown: which keys and signatures a source is shown: of ``"all"``, or of those that were sent ``"alike"``.
    """

    threat = "T14"

    def __init__(
        self,
        seat: AggregatorSeat,
        *,
        victim: int,
        dead: Vector,
        announced: bool = True,
        shown: Literal["all", "alike"] = "all",
    ) -> None:
        super().__init__(seat)
        self.victim, self._dead, self._announced, self._shown = victim, dead, announced, shown

    def model_for(self, index: int) -> Vector:
        """Return the real model for the victim, and the dead one for the others."""
        return self.model if index == self.victim else self._dead

    def header_for(self, index: int) -> Header | None:
        """Return a header with the digest of the model that goes with it, or of the victim's."""
        header = super().header_for(index)
        return header if self._announced or header is None else replace(header, model_digest=self._real_digest())

    def _real_digest(self) -> bytes:
        header = super().header_for(self.victim)
        return header.model_digest if header else b""

    def key_list_for(self, index: int) -> KeyList | None:
        """Return the keys of all sources, or of those with the same header."""
        items = self.heard.advertised
        return KeyList(tuple(items[sender] for sender in sorted(items) if self._is_shown(sender, index)))

    def consistency_for(self, index: int) -> Consistency | None:
        """Return the signatures of those with the same header, since others would be detected at once."""
        items = self.heard.signatures
        alike = tuple(items[sender] for sender in sorted(items) if self._is_alike(sender, index))
        return Consistency(alike, self.inputs_for(index))

    def _is_shown(self, sender: int, index: int) -> bool:
        return self._shown == "all" or self._is_alike(sender, index)

    def _is_alike(self, sender: int, index: int) -> bool:
        return self.heard.views[sender].ctx == self.heard.views[index].ctx

    def attack(self) -> Vector64 | None:
        """Return the sum of all inputs that came, each weighted; None if it does not open."""
        total = self.aggregate()
        return None if total is None else total.vector
