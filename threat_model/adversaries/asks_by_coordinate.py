"""Questions by a target with a made-up update, answered by norm reports: one coordinate of one layer at a time."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from securefda.aggregator.headers import AttemptPosition
from securefda.aggregator.target import TargetRound
from securefda.rules import RoundPlan, TargetStatistics, norms_of
from securefda.training import LocalResult
from threat_model.adversaries.base import MaliciousAggregator
from threat_model.adversaries.heard import Heard
from threat_model.adversaries.masks import Vector64
from threat_model.sites import AggregatorSeat

_STEPS, _RATE, _LENGTH = 4, 0.1, 0.5


class AsksByCoordinate(MaliciousAggregator):
    """Publishes a g_T with one coordinate of a layer, then its negative, and so on through the layer.

    Under FedGP with its filter a source's contribution to the layer is then as long as its update points that way, and
    zero where it points the other way.

    Args:
        seat: of the target.
        layer: which one, in the order of the model.
    """

    def __init__(self, seat: AggregatorSeat, *, layer: int) -> None:
        super().__init__(seat)
        sizes = seat.site.trainer.sizes
        self._layer, self._size, self._start = layer, sizes[layer], sum(sizes[:layer])

    @property
    def questions(self) -> int:
        """The number of questions: two for each coordinate."""
        return 2 * self._size

    def train(self, place: AttemptPosition, plan: RoundPlan) -> TargetRound | None:  # noqa: ARG002 - of the base
        """Return a made-up g_T with matching statistics, without training."""
        coordinate, is_turned = divmod(len(self.sessions), 2)
        update = np.zeros(sum(self.seat.site.trainer.sizes), np.float32)
        update[self._start + coordinate] = -_LENGTH if is_turned else _LENGTH
        mean_square = _LENGTH**2 / _STEPS**2 + (_STEPS - 1) / _STEPS
        result = LocalResult(update, _STEPS, 1, loss=0.0, accuracy=0.0, learning_rate=_RATE)
        return TargetRound(result, TargetStatistics(_STEPS, mean_square, 1.0), None)

    def codes_in(self, session: Heard) -> Mapping[int, bytes]:
        """Return the norm report of each source in a session, as far as it can be read."""
        raise NotImplementedError

    def attack(self) -> Mapping[int, Vector64]:
        """Return what it read of each source's layer, up to a factor: the part's norm shows the update's component
        along g_T.
        """
        read = {index: np.zeros(self._size) for index in self.seat.site.sources}
        for number, session in enumerate(self.sessions):
            coordinate, is_turned = divmod(number, 2)
            layer = session.header.layers[self._layer]
            for index, codes in self.codes_in(session).items():
                most = layer.clip * math.sqrt(layer.size)
                (norm,) = norms_of(codes[self._layer : self._layer + 1], [layer.size], [most])
                read[index][coordinate] += -norm if is_turned else norm
        return read
