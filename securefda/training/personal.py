"""Models of the target's own, with which it is measured in place of the common one: they never leave the target.

Five strategies make one: fine-tuning, Ditto, FedRep, whose last layers stay at every site, kNN-Per and APFL.

What one must remember between rounds is kept by round: of a round that is begun again it is trained again, from what
the rounds before it left, and comes out the same.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, from_numpy, nn

from securefda.errors import ConfigError, TrainingError
from securefda.protocol.encoding import Vector
from securefda.tasks import Samples, Task, task_code
from securefda.training.batch_norm import estimate_statistics, fitted
from securefda.training.device import choose_device
from securefda.training.local import (
    Evaluation,
    LocalResult,
    Pull,
    StepObserver,
    accuracy_in,
    batches,
    evaluate,
    train_local,
)
from securefda.training.memory import PersonalMemory
from securefda.training.neighbours import KnnSettings, WithNeighbours
from securefda.training.optimizers import new_optimizer
from securefda.training.seeds import SecretSeed, Seed, derive_seed, generator_of, round_seed, seeded_torch
from securefda.training.settings import TrainingSettings
from securefda.training.vectors import FlatModel, build_model, layer_sizes, layer_table, vector_to_model


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
        object.__setattr__(self, "settings", fitted(self.settings, model))
        with task_code(type(self.task), "the target's own model"):
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
        settings = replace(self.settings.with_learning_rate_factor(factor), epochs=epochs, max_steps=0)
        seed = self.seed_of(run_id, round_number, "personal")
        result = train_local(
            self.task, self.model, start, self.data, settings=settings, seed=seed, site=self.site, pull=pull
        )
        return start + result.update

    def evaluated(self, vector: Vector, data: Samples) -> Evaluation:
        """Loss and metrics of a model, float32 (m,), over ``data``."""
        self.load(vector)
        return evaluate(self.task, self.model, data)

    def load(self, vector: Vector) -> None:
        """Make the model that of ``vector``, float32 (m,), its running statistics those of the target's rows."""
        vector_to_model(vector, self.model)
        estimate_statistics(self.task, self.model, self.data)


class FineTuned:
    """The common model after some epochs at the target: local personalisation (Jiang et al. 2019)."""

    def __init__(self, rows: OwnRows, epochs: int) -> None:
        self._rows, self._epochs = rows, epochs

    def train(self, received: Vector, run_id: str, round_number: int, factor: float) -> None:
        """Train nothing: it begins with the model of each round."""

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
        with task_code(type(self._rows.task), "training"):
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


# --- last layers that stay at their site: FedRep (Collins et al. 2021, algorithm 1) -----------------------------------


def head_size(sizes: Sequence[int], layers: int) -> int:
    """Number of parameters in the last ``layers``.

    Raises:
        ConfigError: ``training.personal-layers``; no layer would be left.
    """
    if layers >= len(sizes):
        why = f"{layers} of the model's {len(sizes)} layers leaves none to train together"
        raise ConfigError("training.personal-layers", why, hint="a weight and a bias are one layer each; lower it")
    return sum(sizes[len(sizes) - layers :])


def train_with_head(
    task: Task,
    model: nn.Module,
    received: Vector,
    head: Vector,
    data: Samples,
    *,
    settings: TrainingSettings,
    seed: Seed,
    site: str,
    fewest_steps: int = 1,
    on_step: StepObserver | None = None,
) -> tuple[LocalResult, Vector]:
    """Train a site's head on the received body for ``head_epochs``, then the body under it for ``epochs``.

    Args:
        task, model, data, settings, seed, site, fewest_steps: as for ``train_local``; steps are those of the body.
        received: the global model, (m,) float32; where the head is, it does not matter.
        head: the site's own last parameters, float32.
        on_step: called after each step of the body.

    Returns:
        The round's result, whose update is exactly zero where the head is, whose loss is over both, and whose steps
        are the body's; and the new head.

    Raises:
        TrainingError, DataError: as for ``train_local``.
    """
    cut = len(received) - len(head)
    body, own = slice(0, cut), slice(cut, None)
    of_head = train_local(
        task,
        model,
        np.concatenate([received[body], head]),
        data,
        settings=replace(settings, epochs=settings.head_epochs, max_steps=0),
        seed=derive_seed(seed, "head"),
        site=site,
        trained=own,
    )
    head = head + of_head.update[own]
    start = np.concatenate([received[body], head])
    result = train_local(
        task,
        model,
        start,
        data,
        settings=settings,
        seed=seed,
        site=site,
        fewest_steps=fewest_steps,
        on_step=on_step,
        trained=body,
    )
    if of_head.loss is not None and result.loss is not None:
        loss = (of_head.steps * of_head.loss + result.steps * result.loss) / (of_head.steps + result.steps)
        result = replace(result, loss=loss)
    return result, head


class OwnHead:
    """The common body under the target's own head, which its training in the rounds keeps."""

    def __init__(self, rows: OwnRows, memory: PersonalMemory) -> None:
        self._rows, self._memory = rows, memory
        self._size = head_size(layer_sizes(layer_table(rows.model)), rows.settings.personal_layers)

    def train(self, received: Vector, run_id: str, round_number: int, factor: float) -> None:
        """Train nothing more: the round's own training does it."""

    def evaluate(self, model: Vector, run_id: str, round_number: int, data: Samples) -> Evaluation:
        """Of the round's new body and the head that was trained in it."""
        cut = len(model) - self._size
        head = vector_of(self._memory.personal(run_id, round_number + 1), model[cut:])
        return self._rows.evaluated(np.concatenate([model[:cut], head]), data)


# --- the nearest of the target's own rows: kNN-Per (Marfoq et al. 2022) -----------------------------------------------


class Neighbours:
    """The common model, and what the nearest of the target's own rows say beside it. Nothing is trained, nothing kept.

    Raises:
        TrainingError: as for ``WithNeighbours``.
    """

    def __init__(self, rows: OwnRows, settings: KnnSettings) -> None:
        self._rows, self._settings = rows, settings
        with task_code(type(rows.task), "evaluation"):
            self._beside()  # what does not fit is found before the first round

    def train(self, received: Vector, run_id: str, round_number: int, factor: float) -> None:
        """Train nothing: the model is the common one."""

    def evaluate(self, model: Vector, run_id: str, round_number: int, data: Samples) -> Evaluation:  # noqa: ARG002
        """Of both together; the outputs that the task sees are logarithms of probabilities, or of odds."""
        self._rows.load(model)
        task = self._rows.task
        with task_code(type(task), "evaluation"):
            outputs = self._beside()(data.features)
            loss = float(task.loss(outputs, data.labels))
            metrics = task.metrics(outputs, data.labels)
        accuracy_in(metrics, task)
        return Evaluation(loss, metrics, len(data))

    def _beside(self) -> WithNeighbours:
        """The model as it stands, and its rows beside it."""
        return WithNeighbours(self._rows.model, self._rows.data, self._settings)


# --- a mixture with the common model: APFL (Deng, Kamani, Mahdavi 2020, algorithm 1) ----------------------------------


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
        with task_code(type(rows.task), "training"):
            chance = generator_of(derive_seed(seed, "variations"))
            steps = _Steps(rows, received, own, alpha, settings, chance=chance)
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

    def __init__(
        self,
        rows: OwnRows,
        received: Vector,
        own: Vector,
        alpha: float,
        settings: TrainingSettings,
        *,
        chance: torch.Generator,
    ) -> None:
        self.device = next(rows.model.parameters()).device
        self._task, self._rate, self._first = rows.task, settings.learning_rate, True
        self._vary, self._chance = settings.vary, chance
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
        features, labels = self._features[rows], self._labels[rows]
        if self._vary:
            features = self._task.varied(features, self._chance)
        of_common = self._gradient(self._common, features, labels)
        of_mixture = self._gradient(alpha * self.own + (1 - alpha) * self._common, features, labels)
        if adapt and self._first:
            slope = float(torch.dot(self.own - self._common, of_mixture))
            self.alpha = min(1.0, max(0.0, alpha - self._rate * slope))
        self._first = False
        self._of_common.step(self._common, of_common)
        self._of_own.step(self.own, of_mixture.mul_(alpha))

    def _gradient(self, at: Tensor, features: Tensor, labels: Tensor) -> Tensor:
        self._flat.values.copy_(at)
        self._flat.gradient.zero_()
        self._task.loss(self._model(features), labels).backward()  # type: ignore[no-untyped-call]
        return self._flat.gradient.clone()
