"""T35: an outsider tells from the finished model whose rows it was trained on."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from securefda.privacy.empirical_audit import correct_guesses, epsilon_lower_bound
from securefda.training import Vector


class AuditsModel:
    """Puts its own rows into the data, each by a coin toss, and guesses the tosses from the published model.

    Powers: chooses candidates, canaries: row i has the i-th feature alone, so that no other row moves its weight, and
    is of class 1 of two. It is shown the last model, and knows that the first one was zero.
    Goal: to tell which canaries are in the data; how well that goes is a lower bound of epsilon, whatever was promised.
    Source: Steinke, Nasr, Jagielski 2023.

    Args:
        coins: (n,), which canaries are in the data; used to count right guesses only.
        guesses: how many it makes, the highest and the lowest scores half each; fixed beforehand.
    """

    threat = "T35"

    def __init__(self, coins: NDArray[np.bool_], guesses: int) -> None:
        self._coins, self._guesses = coins, guesses

    def attack(self, model: Vector) -> NDArray[np.float64]:
        """Score how strongly each canary seems to be in, (n,): by how much its weight favours its class."""
        other, own = model.reshape(2, len(self._coins)).astype(np.float64)
        return own - other

    def epsilon(self, model: Vector, delta: float, confidence: float) -> float:
        """Return the largest epsilon that its guesses reject at ``delta``, with this confidence."""
        right = correct_guesses(self.attack(model), self._coins, self._guesses // 2)
        return epsilon_lower_bound(self._guesses, right, len(self._coins), delta, confidence)
