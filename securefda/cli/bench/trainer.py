"""A site that does not train: random vectors in place of updates, so that only the round itself is measured."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from securefda.cli.bench.job import SAMPLES, update_of
from securefda.secagg.transcript import architecture_digest
from securefda.tasks import Samples
from securefda.training import Evaluation, LayerTable, LocalResult, Vector


class RandomTrainer:
    """Implements :class:`securefda.rounds.site.Trainer`: one layer, a model of zeros, the same update every round.

    Args:
        site_id: names the update, see :func:`securefda.cli.bench.job.update_of`.
        params: m.
    """

    def __init__(self, site_id: str, params: int) -> None:
        self.layers: LayerTable = (("parameters", (params,)),)
        self.sizes: tuple[int, ...] = (params,)
        self.repeatable = True
        self.architecture_digest = architecture_digest(self.layers)
        self._update = update_of(site_id, params)

    @property
    def n_params(self) -> int:
        """Number of parameters, m."""
        return self.sizes[0]

    def initial_model(self) -> Vector:
        """Zeros, float32 (m,)."""
        return np.zeros(self.n_params, np.float32)

    def train(
        self,
        received: Vector,
        round_number: int,
        factor: float,
        *,
        run_id: str = "",
        attempt: int = 0,
        fewest_steps: int = 1,
        on_step: Callable[[Vector], None] | None = None,
    ) -> LocalResult:
        """The update, at no cost."""
        del received, round_number, factor, run_id, attempt, fewest_steps, on_step
        return LocalResult(self._update, steps=1, samples=SAMPLES, loss=0.0, accuracy=0.0, learning_rate=1.0)

    def evaluate(self, vector: Vector, data: Samples) -> Evaluation:
        """Nothing is learnt, so there is nothing to say of it."""
        del vector
        return Evaluation(loss=0.0, metrics={"accuracy": 0.0}, samples=len(data))
