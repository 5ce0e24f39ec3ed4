"""A mixture of the common model with one of the target's own: APFL (Deng, Kamani, Mahdavi 2020, algorithm 1)."""

from __future__ import annotations

import struct

import numpy as np
import torch
from torch import Tensor, nn

from securefda.errors import TrainingError
from securefda.protocol.encoding import Vector
from securefda.tasks import Samples, task_code
from securefda.training.local import Evaluation, batches
from securefda.training.optimizers import new_optimizer
from securefda.training.personal import OwnRows, PersonalMemory, vector_of
from securefda.training.seeds import derive_seed, seeded_torch
from securefda.training.settings import TrainingSettings
from securefda.training.vectors import FlatModel

_ALPHA = struct.Struct("<d")


class Mixture:
    """``alpha v + (1 - alpha) w``, w being the common model.

    In each step of a round w goes on as in the target's own training, on the same rows, and v by the gradient of the
    loss at the mixture, which for v is alpha times that for the mixture. v begins with the first model of the run. An
    adaptive alpha moves once in a round, on its first rows, by its own gradient ``<v - w, gradient at the mixture>``
    times the learning rate, within [0, 1].
    """

    def __init__(self, rows: OwnRows, memory: PersonalMemory, *, alpha: float, adaptive: bool) -> None:
        """``alpha`` in [0, 1] is where an adaptive one begins."""
        self._rows, self._memory = rows, memory
        self._alpha, self._adaptive = alpha, adaptive

    def train(self, received: Vector, run_id: str, round_number: int, factor: float) -> None:
        """Train v over the epochs of the target's own training and keep it with alpha.

        Raises:
            TrainingError: v is not finite.
            DataError: the task's own code, or torch on its behalf, fails.
        """
        alpha, own = self._kept(self._memory.personal(run_id, round_number), received)
        rows = self._rows
        settings = rows.settings.with_learning_rate_factor(factor)
        seed = rows.seed_of(run_id, round_number)  # that of the round's own training
        steps = _Steps(rows, received, own, alpha, settings)
        with seeded_torch(derive_seed(seed, "layers"), steps.device), task_code(type(rows.task), "training"):
            for batch in batches(len(rows.data), settings, derive_seed(seed, "batches")):
                steps.take(batch, adapt=self._adaptive)
        own = steps.own.cpu().numpy()
        if not np.isfinite(own).all():
            raise TrainingError(
                f"{rows.site}: its own model is not finite in round {round_number}", hint="lower training.learning-rate"
            )
        self._memory.keep_personal(run_id, round_number, _ALPHA.pack(steps.alpha) + own.astype("<f4").tobytes())

    def evaluate(self, model: Vector, run_id: str, round_number: int, data: Samples) -> Evaluation:
        """Of the mixture with the round's new model."""
        alpha, own = self._kept(self._memory.personal(run_id, round_number + 1), model)
        mixed = (alpha * own.astype(np.float64) + (1 - alpha) * model.astype(np.float64)).astype(np.float32)
        return self._rows.evaluated(mixed, data)

    def _kept(self, state: bytes | None, otherwise: Vector) -> tuple[float, Vector]:
        if state is None:
            return self._alpha, otherwise
        return _ALPHA.unpack_from(state)[0], vector_of(state[_ALPHA.size :], otherwise)


class _Steps:
    """The two vectors of a round, and what moves them."""

    def __init__(self, rows: OwnRows, received: Vector, own: Vector, alpha: float, settings: TrainingSettings) -> None:
        self.device = next(rows.model.parameters()).device
        self._task, self._rate, self._first = rows.task, settings.learning_rate, True
        self._flat = FlatModel(rows.model, received, self.device)
        self._model: nn.Module = self._flat.model.train()
        self._features, self._labels = rows.data.features.to(self.device), rows.data.labels.to(self.device)
        self._common = self._flat.values.clone()
        self._of_common, self._of_own = (new_optimizer(len(received), settings, self.device) for _ in range(2))
        self.own = torch.from_numpy(own.copy()).to(self.device)
        self.alpha = alpha

    def take(self, batch: Tensor, *, adapt: bool) -> None:
        """Move both by their gradients at the same time; the first step may move alpha too."""
        alpha, rows = self.alpha, batch.to(self.device)
        of_common = self._gradient(self._common, rows)
        of_mixture = self._gradient(alpha * self.own + (1 - alpha) * self._common, rows)
        if adapt and self._first:
            slope = float(torch.dot(self.own - self._common, of_mixture))
            self.alpha = min(1.0, max(0.0, alpha - self._rate * slope))
        self._first = False
        self._of_common.step(self._common, of_common)
        self._of_own.step(self.own, of_mixture.mul_(alpha))

    def _gradient(self, at: Tensor, rows: Tensor) -> Tensor:
        self._flat.values.copy_(at)
        self._flat.gradient.zero_()
        self._task.loss(self._model(self._features[rows]), self._labels[rows]).backward()  # type: ignore[no-untyped-call]
        return self._flat.gradient.clone()
