"""Personal models: a target's own models, measured in place of the common one. They never leave the target.

There are five: fine-tuning, Ditto, FedRep (whose last layers stay at every site), kNN-Per and APFL.

State between rounds is kept by round. If a round is repeated, the personal model is trained again from the state of the
rounds before, and the result is the same.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, Unpack

import numpy as np
import torch
from torch import Tensor, from_numpy, nn

from securefda.errors import ConfigError, TrainingError
from securefda.protocol.encoding import Vector
from securefda.tasks import Inputs, Samples, Task, task_code
from securefda.tasks.inputs import in_memory, moved, take
from securefda.training.batch_norm import estimate_statistics, settings_for_model
from securefda.training.device import choose_device
from securefda.training.local import (
    Evaluation,
    GradientTerm,
    LocalResult,
    RoundOptions,
    batches,
    evaluate,
    evaluation_of,
    train_local,
)
from securefda.training.memory import PersonalMemory
from securefda.training.neighbours import KnnModel, KnnSettings
from securefda.training.optimizers import new_optimizer
from securefda.training.parameter_vectors import FlatModel, build_model, layer_sizes, layer_table, vector_to_model
from securefda.training.round_progress import part_of_round
from securefda.training.seeds import SecretSeed, Seed, derive_seed, new_generator, round_seed, seeded_torch
from securefda.training.training_settings import TrainingSettings


class PersonalModel(Protocol):
    """A personal model of the target."""

    def train(self, received: Vector, run_id: str, round_number: int, factor: float) -> None:
        """Train for a round that began with ``received``, float32 (m,), with the learning rate times ``factor``."""

    def evaluate(self, model: Vector, run_id: str, round_number: int, data: Samples) -> Evaluation:
        """Return loss and metrics over ``data`` after a round that ended with ``model``, float32 (m,)."""


@dataclass(frozen=True, slots=True, repr=False)
class PersonalTrainer:
    """Trains and evaluates personal models on the target's rows.

    Attributes:
        task: the target's instance of the task.
        site: site id.
        data: the target's training rows.
        settings: how it trains, before the round's learning rate factor.
        seed: seed of the run.
        secret: seed of all random choices in training; None: the run's seed.
        model: the module that computes; its parameters are overwritten.
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
        object.__setattr__(self, "settings", settings_for_model(self.settings, model))
        with task_code(type(self.task), "the target's own model"):
            object.__setattr__(self, "model", model.to(choose_device(self.settings.device)))

    def round_seed(self, run_id: str, round_number: int, *purpose: str) -> Seed:
        """Return the seed of the target's training in a round, or of another purpose there."""
        return round_seed(self.seed if self.secret is None else self.secret, self.site, run_id, round_number, *purpose)

    def train(
        self,
        start: Vector,
        run_id: str,
        round_number: int,
        *,
        epochs: int,
        factor: float = 1.0,
        add_gradient: GradientTerm | None = None,
    ) -> Vector:
        """Return the model after ``epochs`` from ``start``, both float32 (m,).

        Raises:
            TrainingError: as for ``train_local``.
        """
        settings = replace(self.settings.with_learning_rate_factor(factor), epochs=epochs, max_steps=0)
        seed = self.round_seed(run_id, round_number, "personal")
        result = train_local(
            self.task,
            self.model,
            start,
            self.data,
            settings=settings,
            seed=seed,
            site=self.site,
            add_gradient=add_gradient,
        )
        return start + result.update

    def evaluate(self, vector: Vector, data: Samples) -> Evaluation:
        """Return loss and metrics of a model, float32 (m,), over ``data``."""
        self.load(vector)
        return evaluate(self.task, self.model, data)

    def load(self, vector: Vector) -> None:
        """Set the parameters to ``vector``, float32 (m,), and the running statistics to those of the target's rows."""
        vector_to_model(vector, self.model)
        estimate_statistics(self.task, self.model, self.data)


class FineTuned:
    """Fine-tuning: the common model after some epochs at the target (Jiang et al. 2019)."""

    def __init__(self, trainer: PersonalTrainer, epochs: int) -> None:
        self._trainer, self._epochs = trainer, epochs

    def train(self, received: Vector, run_id: str, round_number: int, factor: float) -> None:
        """Do nothing: fine-tuning starts from the new model of each round."""

    def evaluate(self, model: Vector, run_id: str, round_number: int, data: Samples) -> Evaluation:
        """Return loss and metrics of ``model`` after its epochs at the target."""
        return self._trainer.evaluate(self._trainer.train(model, run_id, round_number, epochs=self._epochs), data)


class Ditto:
    """Ditto: a model v with the loss F(v) + (lambda / 2) ||v - w||^2, where w is the common model (Li et al. 2021).

    v starts from the first model of the run. The optimizer is the target's, and its state starts afresh in each round.

    Args:
        trainer: trains v.
        memory: keeps v between rounds.
        epochs: passes over the rows in a round.
        strength: lambda.
    """

    def __init__(self, trainer: PersonalTrainer, memory: PersonalMemory, *, epochs: int, strength: float) -> None:
        self._trainer, self._memory = trainer, memory
        self._epochs, self._strength = epochs, strength

    def train(self, received: Vector, run_id: str, round_number: int, factor: float) -> None:
        """Train v towards ``received`` and keep it."""
        with task_code(type(self._trainer.task), "training"):
            common = from_numpy(received.copy()).to(next(self._trainer.model.parameters()).device)

        def pull_to_common(values: Tensor, gradient: Tensor) -> None:
            gradient.add_(values - common, alpha=self._strength)

        own = vector_from_bytes(self._memory.personal(run_id, round_number), received)
        own = self._trainer.train(
            own, run_id, round_number, epochs=self._epochs, factor=factor, add_gradient=pull_to_common
        )
        self._memory.keep_personal(run_id, round_number, own.astype("<f4").tobytes())

    def evaluate(self, model: Vector, run_id: str, round_number: int, data: Samples) -> Evaluation:
        """Return loss and metrics of v."""
        return self._trainer.evaluate(vector_from_bytes(self._memory.personal(run_id, round_number + 1), model), data)


def vector_from_bytes(state: bytes | None, otherwise: Vector) -> Vector:
    """Return a kept vector, float32 of the length of ``otherwise``; ``otherwise`` if ``state`` is None.

    Raises:
        TrainingError: the kept vector has another length.
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
    """Return the number of parameters in the last ``layers`` of a model with layers of these sizes.

    Raises:
        ConfigError: ``training.personal-layers`` leaves no layer to federate.
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
    **options: Unpack[RoundOptions],
) -> tuple[LocalResult, Vector]:
    """Train a site's head on the received body for ``head_epochs``, then the body under that head for ``epochs``.

    Args:
        task, model, data: as for ``train_local``.
        received: the global model, (m,) float32; its last ``len(head)`` parameters do not matter.
        head: the site's own last parameters, float32.
        options: as for ``train_local``; steps are those of the body, but ``on_progress`` hears of both.

    Returns:
        The round's result and the new head. The update is exactly zero in the head, the loss is over both trainings,
        and the steps are the body's.

    Raises:
        TrainingError, DataError: as for ``train_local``.
    """
    cut = len(received) - len(head)
    body, own = slice(0, cut), slice(cut, None)
    settings, on_progress = options["settings"], options.get("on_progress")
    of_head = replace(settings, epochs=settings.head_epochs, max_steps=0)
    head_steps, body_steps = of_head.steps(len(data)), settings.steps(len(data))
    head_result = train_local(
        task,
        model,
        np.concatenate([received[body], head]),
        data,
        settings=of_head,
        seed=derive_seed(options["seed"], "head"),
        site=options["site"],
        on_progress=part_of_round(on_progress, after=body_steps),
        trained=own,
    )
    head = head + head_result.update[own]
    start = np.concatenate([received[body], head])
    options["on_progress"] = part_of_round(on_progress, before=head_steps)
    result = train_local(task, model, start, data, trained=body, **options)
    if head_result.loss is not None and result.loss is not None:
        loss = (head_result.steps * head_result.loss + result.steps * result.loss) / (head_result.steps + result.steps)
        result = replace(result, loss=loss)
    return result, head


class FedRepHead:
    """FedRep: the common body under the target's own head, which :func:`train_with_head` trains in each round."""

    def __init__(self, trainer: PersonalTrainer, memory: PersonalMemory) -> None:
        self._trainer, self._memory = trainer, memory
        self._size = head_size(layer_sizes(layer_table(trainer.model)), trainer.settings.personal_layers)

    def train(self, received: Vector, run_id: str, round_number: int, factor: float) -> None:
        """Do nothing: the round's own training trains the head."""

    def evaluate(self, model: Vector, run_id: str, round_number: int, data: Samples) -> Evaluation:
        """Return loss and metrics of the round's new body under the head that was trained in the round."""
        cut = len(model) - self._size
        head = vector_from_bytes(self._memory.personal(run_id, round_number + 1), model[cut:])
        return self._trainer.evaluate(np.concatenate([model[:cut], head]), data)


# --- nearest rows: kNN-Per (Marfoq et al. 2022) -----------------------------------------------------------------------


class KnnPer:
    """kNN-Per: the common model mixed with the labels of the target's nearest rows. Nothing is trained or kept.

    Raises:
        TrainingError: as for ``KnnModel``.
    """

    def __init__(self, trainer: PersonalTrainer, settings: KnnSettings) -> None:
        self._trainer, self._settings = trainer, settings
        with task_code(type(trainer.task), "evaluation"):
            self._knn_model()  # so that an unfit model is found before the first round

    def train(self, received: Vector, run_id: str, round_number: int, factor: float) -> None:
        """Do nothing: the model is the common one."""

    def evaluate(self, model: Vector, run_id: str, round_number: int, data: Samples) -> Evaluation:  # noqa: ARG002
        """Return loss and metrics of the mixture; its outputs are logarithms of probabilities, or of odds."""
        self._trainer.load(model)
        task = self._trainer.task
        with task_code(type(task), "evaluation"):
            outputs = self._knn_model()(data.features)
        return evaluation_of(task, outputs, data.labels)

    def _knn_model(self) -> KnnModel:
        """Return the mixture for the module's present parameters."""
        return KnnModel(self._trainer.model, self._trainer.data, self._settings)


# --- a mixture with the common model: APFL (Deng, Kamani, Mahdavi 2020, algorithm 1) ----------------------------------


_ALPHA = struct.Struct("<d")


class Apfl:
    """APFL: the mixture ``alpha v + (1 - alpha) w`` of a personal model v and the common model w.

    In each step of a round, w moves as in the target's own training, on the same rows. v moves by the gradient of the
    loss at the mixture with respect to v: alpha times the gradient at the mixture. v starts from the first model of
    the run. An adaptive alpha moves once in a round, on its first batch, by its own gradient
    ``<v - w, gradient at the mixture>`` times the learning rate, and stays within [0, 1].

    Args:
        trainer: has the rows and the settings.
        memory: keeps v and alpha between rounds.
        alpha: in [0, 1]; the first value of an adaptive one.
        adaptive: whether alpha moves.
    """

    def __init__(self, trainer: PersonalTrainer, memory: PersonalMemory, *, alpha: float, adaptive: bool) -> None:
        self._trainer, self._memory = trainer, memory
        self._alpha, self._adaptive = alpha, adaptive

    def train(self, received: Vector, run_id: str, round_number: int, factor: float) -> None:
        """Train v over the epochs of the target's own training; keep v and alpha.

        Raises:
            TrainingError: v is not finite.
            DataError: the task's own code, or torch on its behalf, fails.
        """
        alpha, own = self._kept(self._memory.personal(run_id, round_number), received)
        trainer = self._trainer
        settings = trainer.settings.with_learning_rate_factor(factor)
        seed = trainer.round_seed(run_id, round_number)  # that of the round's own training
        with task_code(type(trainer.task), "training"):
            chance = new_generator(derive_seed(seed, "variations"))
            steps = _ApflRound(trainer, received, own, alpha, settings, chance=chance)
        with seeded_torch(derive_seed(seed, "layers"), steps.device), task_code(type(trainer.task), "training"):
            for batch in batches(len(trainer.data), settings, derive_seed(seed, "batches")):
                steps.take(batch, adapt=self._adaptive)
        own = steps.own.cpu().numpy()
        if not np.isfinite(own).all():
            raise TrainingError(
                f"{trainer.site}: its own model is not finite in round {round_number}",
                hint="lower training.learning-rate",
            )
        self._memory.keep_personal(run_id, round_number, _ALPHA.pack(steps.alpha) + own.astype("<f4").tobytes())

    def evaluate(self, model: Vector, run_id: str, round_number: int, data: Samples) -> Evaluation:
        """Return loss and metrics of the mixture with the round's new model."""
        alpha, own = self._kept(self._memory.personal(run_id, round_number + 1), model)
        mixed = (alpha * own.astype(np.float64) + (1 - alpha) * model.astype(np.float64)).astype(np.float32)
        return self._trainer.evaluate(mixed, data)

    def _kept(self, state: bytes | None, otherwise: Vector) -> tuple[float, Vector]:
        if state is None:
            return self._alpha, otherwise
        return _ALPHA.unpack_from(state)[0], vector_from_bytes(state[_ALPHA.size :], otherwise)


class _ApflRound:
    """The steps of v and w in one round."""

    def __init__(
        self,
        trainer: PersonalTrainer,
        received: Vector,
        own: Vector,
        alpha: float,
        settings: TrainingSettings,
        *,
        chance: torch.Generator,
    ) -> None:
        self.device = next(trainer.model.parameters()).device
        self._task, self._rate, self._first = trainer.task, settings.learning_rate, True
        self._vary, self._chance = settings.vary, chance
        self._flat = FlatModel(trainer.model, received, self.device)
        self._model: nn.Module = self._flat.model.train()
        self._features, self._labels = moved(trainer.data.features, self.device), trainer.data.labels.to(self.device)
        self._common = self._flat.values.clone()
        self._common_optimizer, self._own_optimizer = (
            new_optimizer(len(received), settings, self.device) for _ in range(2)
        )
        self.own = torch.from_numpy(own.copy()).to(self.device)
        self.alpha = alpha

    def take(self, batch: Tensor, *, adapt: bool) -> None:
        """Move v and w by their gradients on a batch; the first step also moves alpha if ``adapt``."""
        alpha, rows = self.alpha, batch.to(self.device)
        features, labels = in_memory(take(self._features, rows), self.device), self._labels[rows]
        if self._vary:
            features = self._task.varied(features, self._chance)
        common_gradient = self._gradient(self._common, features, labels)
        mixture_gradient = self._gradient(alpha * self.own + (1 - alpha) * self._common, features, labels)
        if adapt and self._first:
            slope = float(torch.dot(self.own - self._common, mixture_gradient))
            self.alpha = min(1.0, max(0.0, alpha - self._rate * slope))
        self._first = False
        self._common_optimizer.step(self._common, common_gradient)
        self._own_optimizer.step(self.own, mixture_gradient.mul_(alpha))

    def _gradient(self, at: Tensor, features: Inputs, labels: Tensor) -> Tensor:
        self._flat.values.copy_(at)
        self._flat.gradient.zero_()
        self._task.loss(self._model(features), labels).backward()  # type: ignore[no-untyped-call]
        self._flat.take_back()
        return self._flat.gradient.clone()
