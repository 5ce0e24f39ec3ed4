"""T41: a target that makes up the gradient of the gap, so that one source weighs more than the others.

Under fada_attention a source hands in its update times its share of attention, which follows from the gain of the
update: its inner product with a gradient that the target publishes, of which nobody but the target sees the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from securefda.aggregator.headers import AttemptPosition
from securefda.aggregator.target import TargetAttention
from securefda.protocol.messages import Header, KeyList, Parcel
from securefda.rules import RoundPlan, least_share
from securefda.training import Vector
from threat_model.adversaries.base import MaliciousAggregator
from threat_model.adversaries.colluders import SubtractsColluders
from threat_model.adversaries.crafted_target import target_update_for
from threat_model.sites import AggregatorSeat

STEEP = 1e6
"""So long is a lever that every gain is beyond its bound, at any temperature that is of use."""


def lever_for(victim: int, known: Mapping[int, Vector]) -> Vector:
    """Return the gradient, float32 (m,), along which the victim's update gains and every other one loses, far beyond
    bounds.

    Of all that do so alike it is the shortest, but for its length: against the victim's update and along the others'.
    """
    signs = np.array([[1.0 if index == victim else -1.0 for index in sorted(known)]])
    (size,) = {update.size for update in known.values()}
    return np.float32(-STEEP) * target_update_for(signs, known, (size,))


class WeightsOneUp(SubtractsColluders):
    """Publishes a gradient of its own making, loses as many others as it may, and reads what is left.

    Powers: the target's key, what a target publishes, the relay, the loss of as many sources as the threshold allows;
    the gradient may come of the strongest knowledge there is, every source's update beforehand.
    Goal: a sum that is the victim's update, or near it; the victim's number of rows.
    Source: our own; an attention that the aggregator steers is a weight that it sends to each source, as in attacks
    that zero the other sources' gradients (Pasquini, Francati and Ateniese 2022, for models).

    Args:
        seat: of the target.
        victim: roster index.
        gradient: what it publishes as the gradient of the gap, float32 (m,).
    """

    threat = "T41"

    def __init__(self, seat: AggregatorSeat, *, victim: int, gradient: Vector) -> None:
        super().__init__(seat, victim=victim)
        self._gradient = gradient

    def train(self, place: AttemptPosition, plan: RoundPlan) -> TargetAttention:  # noqa: ARG002 - of the base
        """Return the made-up gradient without looking at rows."""
        return TargetAttention(0.5, self._gradient, None)

    def rows_on_its_side(self) -> float:
        """Return the rows, in units of ``max_samples``, of the sources whose updates gain, if every gain is at a bound.

        From the two numbers that are opened beside the sum: rows, and rows times shares.
        """
        opened, attention = self.attack(), self.heard.header.rule.attention
        if opened is None or attention is None:
            raise ValueError("nothing was opened")
        least = least_share(attention.bound)
        return (opened.kept - least * opened.weight) / (1 - least)


class OtherGradients(MaliciousAggregator):
    """Opens a round again with another gradient, once the sources have committed to the first.

    Powers: the target's key and the relay. It lists no keys in any attempt, so that nothing is ever released.
    Goal: two shares of one update.
    Source: as T11, with another question in place of another set.

    Args:
        seat: of the target.
        gradients: what it publishes in one attempt after the other, float32 (m,).
    """

    threat = "T41"

    def __init__(self, seat: AggregatorSeat, *, gradients: Sequence[Vector]) -> None:
        super().__init__(seat)
        self._gradients = gradients

    def next_place(self) -> AttemptPosition | None:
        """One attempt at the first round for each gradient."""
        number = len(self.sessions) + 1
        return AttemptPosition(self.run, 1, number, b"") if number <= len(self._gradients) else None

    def train(self, place: AttemptPosition, plan: RoundPlan) -> TargetAttention:  # noqa: ARG002 - of the base
        """Return the gradient of this attempt."""
        return TargetAttention(0.5, self._gradients[place.attempt - 1], None)

    def key_list_for(self, index: int) -> KeyList | None:
        """Return None: the attempt ends here."""


class OtherBytes(MaliciousAggregator):
    """Sends one source different bytes beside its header than the header names.

    Powers: the target's key and the relay.
    Goal: another share of one source than all agreed to.
    Source: as T14, for the gradient in place of the model.

    Args:
        seat: of the target.
        victim: roster index.
        forge: makes the vectors that travel of those that should.
    """

    threat = "T41"

    def __init__(
        self, seat: AggregatorSeat, *, victim: int, forge: Callable[[tuple[bytes, ...]], tuple[bytes, ...]]
    ) -> None:
        super().__init__(seat)
        self._victim, self._forge = victim, forge

    def outgoing(self, index: int, parcel: Parcel) -> list[Parcel]:
        """Send the victim's header beside other vectors."""
        if index != self._victim or not isinstance(parcel.message.body, Header):
            return [parcel]
        vectors = self._forge(tuple(bytes(vector) for vector in parcel.vectors))
        return [Parcel(parcel.message, tuple(memoryview(vector) for vector in vectors))]
