"""Models of the target's own, with which it is measured in place of the common one: they never leave the target.

What one must remember between rounds is kept by round: of a round that is begun again it is trained again, from what
the rounds before it left, and comes out the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from torch import Tensor, from_numpy, nn

from securefda.errors import TrainingError
from securefda.protocol.encoding import Vector
from securefda.tasks import Samples, Task
from securefda.training.device import choose_device
from securefda.training.local import Evaluation, Pull, evaluate, train_local
from securefda.training.seeds import SecretSeed, Seed, derive_seed, round_seed
from securefda.training.settings import TrainingSettings
from securefda.training.vectors import build_model, vector_to_model


class PersonalMemory(Protocol):
    """Where a site keeps what is its own of a model, across restarts."""

    def personal(self, run_id: str, before: int) -> bytes | None:
        """What was kept in the last round below ``before``; None where nothing was."""

    def keep_personal(self, run_id: str, round_number: int, state: bytes) -> None:
        """Keep the state of a round, and at least that of the last one below it."""


class PersonalModel(Protocol):
    """What a strategy makes of the common model at the target."""

    def train(self, received: Vector, run_id: str, round_number: int, factor: float) -> None:
        """Take part in a round from the model that it began with, float32 (m,), learning rates times ``factor``."""

    def evaluate(self, model: Vector, run_id: str, round_number: int, data: Samples) -> Evaluation:
        """Loss and metrics over ``data`` after the round whose model is ``model``, float32 (m,)."""


@dataclass(frozen=True, slots=True, repr=False)
class OwnRows:
    """What the target trains a model of its own with.

    Attributes:
        task: the target's instance.
        site: site id.
        data: the rows.
        settings: how it trains, before the round's learning rate factor.
        seed: of the run.
        secret: what its training draws from; None: the run's seed.
        model: to compute with; its parameters are overwritten.
    """

    task: Task
    site: str
    data: Samples
    settings: TrainingSettings
    seed: int
    secret: SecretSeed | None = None
    model: nn.Module = field(init=False)

    def __post_init__(self) -> None:
        model = build_model(self.task, derive_seed(self.seed, "model"))
        object.__setattr__(self, "model", model.to(choose_device(self.settings.device)))

    def seed_of(self, run_id: str, round_number: int, *purpose: str) -> Seed:
        """The seed of the target's training in a round, and of what else it trains there."""
        return round_seed(self.seed if self.secret is None else self.secret, self.site, run_id, round_number, *purpose)

    def trained(
        self,
        start: Vector,
        run_id: str,
        round_number: int,
        *,
        epochs: int,
        factor: float = 1.0,
        pull: Pull | None = None,
    ) -> Vector:
        """The model after ``epochs`` from ``start``, float32 (m,).

        Raises:
            TrainingError: as for ``train_local``.
        """
        settings = replace(self.settings.with_learning_rate_factor(factor), epochs=epochs)
        seed = self.seed_of(run_id, round_number, "personal")
        result = train_local(
            self.task, self.model, start, self.data, settings=settings, seed=seed, site=self.site, pull=pull
        )
        return start + result.update

    def evaluated(self, vector: Vector, data: Samples) -> Evaluation:
        """Loss and metrics of a model, float32 (m,), over ``data``."""
        vector_to_model(vector, self.model)
        return evaluate(self.task, self.model, data)


class FineTuned:
    """The common model after some epochs at the target: local personalisation (Jiang et al. 2019)."""

    def __init__(self, rows: OwnRows, epochs: int) -> None:
        self._rows, self._epochs = rows, epochs

    def train(self, received: Vector, run_id: str, round_number: int, factor: float) -> None:
        """Nothing: it begins with the model of each round."""

    def evaluate(self, model: Vector, run_id: str, round_number: int, data: Samples) -> Evaluation:
        """Of the model after its epochs at the target."""
        return self._rows.evaluated(self._rows.trained(model, run_id, round_number, epochs=self._epochs), data)


class Drawn:
    """A model v with the loss F(v) + (lambda / 2) ||v - w||^2, w being the round's: Ditto (Li et al. 2021).

    It begins with the first model of the run. The optimiser is the target's own and begins each round afresh.
    """

    def __init__(self, rows: OwnRows, memory: PersonalMemory, *, epochs: int, strength: float) -> None:
        """``strength`` is lambda."""
        self._rows, self._memory = rows, memory
        self._epochs, self._strength = epochs, strength

    def train(self, received: Vector, run_id: str, round_number: int, factor: float) -> None:
        """Train v for the round's epochs and keep it."""
        common = from_numpy(received.copy()).to(next(self._rows.model.parameters()).device)

        def pull(values: Tensor, gradient: Tensor) -> None:
            gradient.add_(values - common, alpha=self._strength)

        own = vector_of(self._memory.personal(run_id, round_number), received)
        own = self._rows.trained(own, run_id, round_number, epochs=self._epochs, factor=factor, pull=pull)
        self._memory.keep_personal(run_id, round_number, own.astype("<f4").tobytes())

    def evaluate(self, model: Vector, run_id: str, round_number: int, data: Samples) -> Evaluation:
        """Of v."""
        return self._rows.evaluated(vector_of(self._memory.personal(run_id, round_number + 1), model), data)


def vector_of(state: bytes | None, otherwise: Vector) -> Vector:
    """What was kept of a vector, float32, or where nothing was, ``otherwise``.

    Raises:
        TrainingError: it has another length.
    """
    if state is None:
        return otherwise
    if len(state) != 4 * len(otherwise):
        raise TrainingError(
            f"what was kept of this site's own model has {len(state)} bytes, and {4 * len(otherwise)} are needed",
            hint="give the settings of that run, or another --out folder",
        )
    return np.frombuffer(state, dtype="<f4").astype(np.float32)
