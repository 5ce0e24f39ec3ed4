"""T19: an aggregator that asks for the same training again and again, until the noise averages out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from securefda.errors import BudgetExhausted
from securefda.site.private_trainer import PrivateTrainer
from securefda.training import Vector
from threat_model.adversaries.membership import Vector64, matched
from threat_model.private_sites import Candidates, asked


@dataclass(frozen=True, slots=True, repr=False)
class Answers:
    """The site's answers: the mean of its updates (m,), their number, and the epsilon that it reported last."""

    mean: Vector
    rounds: int
    epsilon: float


class AsksAgain:
    """Makes one site train from the same model round after round, each under a new run, and averages the results.

    Powers: a target's: it begins runs as it likes, says which round and which attempt it is, and the site's process can
    be made to end and begin anew before each. It sees each update.
    Goal: what all updates tell together, more than the budget allows, while each by itself is within it.
    Source: the accountants of several systems are made with the training engine, and anew with each round or run.

    Args:
        started: makes the site's process: a trainer on the ledger that lies on its disk.
    """

    threat = "T19"

    def __init__(self, started: Callable[[], PrivateTrainer]) -> None:
        self._started = started

    def attack(self, rounds: int) -> Answers:
        """Ask up to ``rounds`` times; the site stops earlier when its budget is spent."""
        model = self._started().initial_model()
        total, count, epsilon = np.zeros(len(model), np.float64), 0, 0.0
        for number in range(1, rounds + 1):
            try:
                result = asked(self._started(), model, run_id=f"run-{number}")
            except BudgetExhausted:
                break
            total, count, epsilon = total + result.update, count + 1, result.epsilon or 0.0
        return Answers((total / max(count, 1)).astype(np.float32), count, epsilon)

    def scores(self, answers: Answers, candidates: Candidates) -> Vector64:
        """Score how strongly the mean points to each candidate, (n,), by a matched filter."""
        return matched(answers.mean, candidates)
