"""T43: a target that makes up the features that it sends, and reads the sources' answers.

Under rules that compare features, a source answers each row that it receives with a pull: the direction in which its
own features lie. Only the target knows whether the rows that it sent are its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from securefda.aggregator.headers import AttemptPosition
from securefda.aggregator.target import TargetFeatures
from securefda.protocol.messages import KeyList
from securefda.rules import RoundPlan
from securefda.training import Vector
from threat_model.adversaries.base import MaliciousAggregator
from threat_model.adversaries.colluders import SubtractsColluders
from threat_model.sites import AggregatorSeat, as_they_are


class ChoosesFeatures(SubtractsColluders):
    """Sends made-up features, loses as many others as it may, and reads the remaining pulls.

    Powers: the target's key, the features that a target sends, the relay, the loss of as many sources as the threshold
    allows, and the inputs of colluders.
    Goal: the pull of one source, and so where the features of its rows lie.
    Source: our own. A source compares its rows with numbers of the target's choice, as in attacks by a model of the
    target's choice (Fowl et al. 2022, "Robbing the Fed"), for features in place of the model.

    Args:
        seat: of the target.
        victim: roster index.
        features: what it sends as those of its rows, float32 (T, d).
    """

    threat = "T43"

    def __init__(self, seat: AggregatorSeat, *, victim: int, features: Vector) -> None:
        super().__init__(seat, victim=victim)
        self._features = features

    def train(self, place: AttemptPosition, plan: RoundPlan) -> TargetFeatures:  # noqa: ARG002 - of the base
        """Return made-up features, with nothing to be followed."""
        return TargetFeatures(self._features, np.zeros_like, as_they_are(self._features), None)

    def pull(self) -> NDArray[np.float64]:
        """Return the weighted sum of the pulls of the remaining honest sources, float64 (T, d).

        Raises:
            ValueError: nothing was opened.
        """
        opened = self.attack()
        if opened is None:
            raise ValueError("nothing was opened")
        return opened.vector[self.heard.header.n_params :].reshape(self._features.shape)


class OtherFeatures(MaliciousAggregator):
    """Asks about other features once the sources have committed to the first.

    Powers: the target's key and the relay. It lists no keys in any attempt, so that nothing is ever released.
    Goal: two answers to one round.
    Source: as T11, with another question in place of another set.

    Args:
        seat: of the target.
        questions: what it sends in one attempt after the other, float32 (T, d).
    """

    threat = "T43"

    def __init__(self, seat: AggregatorSeat, *, questions: Sequence[Vector]) -> None:
        super().__init__(seat)
        self._questions = questions

    def next_place(self) -> AttemptPosition | None:
        """One attempt at the first round for each question."""
        number = len(self.sessions) + 1
        return AttemptPosition(self.run, 1, number, b"") if number <= len(self._questions) else None

    def train(self, place: AttemptPosition, plan: RoundPlan) -> TargetFeatures:  # noqa: ARG002 - of the base
        """Return the features of this attempt."""
        features = self._questions[place.attempt - 1]
        return TargetFeatures(features, np.zeros_like, as_they_are(features), None)

    def key_list_for(self, index: int) -> KeyList | None:
        """Return None: the attempt ends here."""
