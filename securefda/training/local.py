"""The training loop of one round at one site, and the evaluation of a model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import NotRequired, Protocol, TypedDict

import numpy as np
import torch
from torch import Tensor, nn

from securefda.errors import DataError, TrainingDiverged, TrainingError
from securefda.protocol.encoding import Vector
from securefda.task_metric import ACCURACY, TaskMetric, metric_of
from securefda.tasks import Inputs, Samples, Task, task_code
from securefda.tasks.inputs import batched, in_memory, joined, map_tensors, moved, named_tensors, take, with_tensors
from securefda.tasks.metric_functions import confusion_matrix
from securefda.text import counted, names
from securefda.training.batch_norm import settings_for_model
from securefda.training.device import choose_device
from securefda.training.optimizers import Optimizer, new_optimizer
from securefda.training.parameter_vectors import FlatModel
from securefda.training.round_progress import ProgressObserver, observed
from securefda.training.seeds import Seed, derive_seed, new_generator, seeded_torch
from securefda.training.support import RowSupport
from securefda.training.team import Team, shared_steps
from securefda.training.training_settings import TrainingSettings

FEWEST_TARGET_STEPS = 2
"""A target needs two steps in a round, since auto-beta estimates the variance between steps."""

_EVALUATION_ROWS = 1024
_MOST_KEPT_OUTPUTS = 1 << 20
"""Outputs of more numbers are not kept for an interval: those of ten evaluations would take 40 MiB."""

_MOST_CLASSES = 20
"""Of more classes no page shows which is taken for which."""

_DATA_HINT = "lower training.learning-rate, or look at the site's data"
_MORE_STEPS = "lower batch-size or raise epochs in the site's training settings"

StepObserver = Callable[[Vector], None]
"""Receives a step x_j, float32 (m,): parameters after minus before. The array is valid during the call only."""

GradientTerm = Callable[[Tensor, Tensor], None]
"""Adds a term to the gradient of a step in place; takes (values, gradient), both (m,)."""

WHOLE_MODEL = slice(None)


@dataclass(frozen=True, slots=True, repr=False)
class LocalResult:
    """The result of one round of training at a site.

    Attributes:
        update: local model minus received model, (m,) float32, finite.
        steps: number of optimizer steps taken; 0 where too few pseudo-labels counted.
        samples: number of rows trained on (n of the rules), counted once whatever the epochs.
        loss: mean loss per row over the round; None with DP-SGD, which releases noisy gradients and nothing else.
        accuracy: over the rows of the last epoch, each predicted before the step that used it; in [0, 1]. None with
            DP-SGD, and for a task whose metrics have none.
        learning_rate: the effective one.
        epsilon: spent ε of the data set after this round, over all its rounds; None without DP-SGD.
        confident: number of rows whose pseudo-label counted; None where labels are given.
        pull: on the features of the target's rows, (T, d) float32; None under rules that do not compare features.
        noise_variance: variance of DP-SGD's noise in each coordinate of the update, if the site's settings correct the
            projection for it; else 0.
        loss_growth: mean loss at the last step over that at the first; 1 where it was not looked at.
    """

    update: Vector
    steps: int
    samples: int
    loss: float | None
    accuracy: float | None
    learning_rate: float
    epsilon: float | None = None
    confident: int | None = None
    pull: Vector | None = None
    noise_variance: float = 0.0
    loss_growth: float = 1.0

    def __repr__(self) -> str:
        # The protocol hides the update, so it must not reach a log through a traceback either.
        return f"LocalResult(update=<{len(self.update)} values>, steps={self.steps}, samples={self.samples})"


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A model's mean loss and its task's metrics over ``samples`` rows, as far as these rows define them.

    ``metric`` is the chosen one. ``by_row`` returns what two models are compared by, row by row, float32: the accuracy
    of each row, (n,), if it is chosen; else the number of outputs of a row, k, and all outputs, (1 + n * k,). None if
    the accuracy is not the mean over rows, or there are too many outputs to keep. ``confusion`` has the names of the
    classes, and how many rows of each, a line each, are taken for which; None of a task without class names, or with
    many.
    """

    loss: float
    metrics: dict[str, float]
    samples: int
    metric: TaskMetric = ACCURACY
    by_row: Callable[[], Vector | None] = field(default=lambda: None, compare=False, repr=False)
    confusion: tuple[tuple[str, ...], list[list[int]]] | None = None


class RoundOptions(TypedDict):
    """The arguments that every way to train a round takes, as :func:`train_local` describes them."""

    settings: TrainingSettings
    seed: Seed
    site: str
    fewest_steps: NotRequired[int]
    on_step: NotRequired[StepObserver | None]
    on_progress: NotRequired[ProgressObserver | None]


class AuxiliaryLoss(Protocol):
    """A term added to the loss of each batch, such as that of a domain classifier trained beside the model."""

    def observing(self) -> AbstractContextManager[None]:
        """Context in which it records the batches that pass through the model."""

    def added_loss(self, task: Task, labels: Tensor) -> Tensor:
        """Return the term to add to the loss of the last batch, a scalar."""


def train_local(
    task: Task,
    model: nn.Module,
    received: Vector,
    data: Samples,
    *,
    settings: TrainingSettings,
    seed: Seed,
    site: str,
    fewest_steps: int = 1,
    on_step: StepObserver | None = None,
    on_progress: ProgressObserver | None = None,
    trained: slice = WHOLE_MODEL,
    add_gradient: GradientTerm | None = None,
    row_weights: Tensor | None = None,
    auxiliary: AuxiliaryLoss | None = None,
    team: Team | None = None,
    optimizer: Optimizer | None = None,
    least_rows: int = 1,
) -> LocalResult:
    """Train from the received model on one site's rows for one round.

    On the CPU, with the same number of torch threads, the same arguments give the same bits. Torch's global generators
    have no influence and are left unchanged. Memory: the values, the gradient and the optimizer's state (two vectors
    with Adam) while training, one vector for the update at the end, and one more if steps are observed.

    Args:
        task: computes the loss.
        model: from ``build_model``; its parameters are overwritten. BatchNorm's running statistics continue from their
            present values.
        received: the global model, (m,) float32; not changed.
        data: the site's training rows.
        settings: how to train, with the effective learning rate.
        seed: this site's seed for the round, see ``round_seed``.
        site: site id, for messages.
        fewest_steps: refuse to train with fewer; ``FEWEST_TARGET_STEPS`` at the target.
        on_step: called after each step, in order.
        on_progress: called about once a second.
        trained: the slice of the vector that is trained; all other parameters keep their exact values.
        add_gradient: called before each step; adds a term to the gradient.
        row_weights: (n,), weight of each row's loss in the mean of its batch; None: 1 for each.
        auxiliary: a term added to the loss of each batch; the reported loss excludes it.
        team: processes that train together, each on its part of every batch. The leader decides the batches, and its
            result has the loss and the accuracy over all parts.
        optimizer: takes the steps; None: a new one from the settings.
        least_rows: parameters that fewer rows moved keep their received values, see :mod:`securefda.training.support`.
            If above 1, the batch of a step is processed in parts, so no row may depend on others of its batch; not
            with ``team`` or ``auxiliary``.

    Raises:
        TrainingDiverged: a loss or the update is NaN or infinite.
        TrainingError: there are too few steps; ``received`` has another length; or the metrics are unfit, as of
            :func:`checked_metrics`.
        DataError: the task's own code, or torch on its behalf, fails.
    """
    settings = settings_for_model(settings, model)
    require_steps(site, len(data), settings, fewest_steps)
    device = choose_device(settings.device)
    with (
        seeded_torch(derive_seed(seed, "layers"), device),
        task_code(type(task), "training"),
        nullcontext() if auxiliary is None else auxiliary.observing(),
    ):
        flat = FlatModel(model, received, device)
        flat.model.train()
        support = RowSupport(least_rows, len(data), flat.gradient) if least_rows > 1 else None

        def run_steps() -> tuple[int, _RoundRecord]:
            # A function, so that the vectors that it holds are freed before the update is computed.
            loss = _Loss(
                task,
                flat.model,
                moved(data.features, device),
                data.labels.to(device),
                weights=None if row_weights is None else row_weights.to(device),
                variations=new_generator(derive_seed(seed, "variations")) if settings.vary else None,
                auxiliary=auxiliary,
            )
            values, gradient = flat.values[trained], flat.gradient[trained]
            stepper = optimizer or new_optimizer(len(values), settings, device)
            before = flat.values.clone() if on_step is not None else None
            steps, record = 0, _RoundRecord(len(data))
            with shared_steps(team, batches(len(data), settings, derive_seed(seed, "batches"))) as step_rows:
                for rows in observed(step_rows, settings.steps(len(data)), on_progress):
                    # Not set to None: the parameters keep their views into this one vector.
                    flat.gradient.zero_()
                    batch = (rows if team is None else team.share(rows)).to(device)
                    mean_loss, outputs = torch.zeros((), device=device), list[tuple[Inputs, Tensor]]()
                    for part in [batch] if support is None else support.parts(batch):
                        if len(part):  # weighted by its share, each part's mean adds up to the mean over all rows
                            part_loss, of_part = loss.backward(part, len(part) / len(rows))
                            mean_loss += part_loss
                            outputs.append(of_part)
                    flat.take_back()
                    if team is not None:
                        team.sum(mean_loss)
                        team.sum(flat.gradient, last=True)
                    loss_value = mean_loss.item()
                    steps += 1
                    if not math.isfinite(loss_value):
                        raise TrainingDiverged(
                            f"{site}: training diverges: the loss is {loss_value} at step {steps}", hint=_DATA_HINT
                        )
                    if add_gradient is not None:
                        # After the loss was judged: a term of the rule is no reason to blame the data of the site.
                        add_gradient(flat.values, flat.gradient)
                    stepper.step(values, gradient)
                    record.add(loss_value, len(rows), outputs)
                    if on_step is not None and before is not None:
                        on_step(torch.sub(flat.values, before, out=before).cpu().numpy())
                        before.copy_(flat.values)
            if team is not None:
                record.collect(team)
            return steps, record

        steps, record = run_steps()
        accuracy = record.accuracy(task) if team is None or team.leads else None
    flat.release_gradient()
    # By subtraction, not as a sum of steps: the receiver adds it to the same float32 numbers.
    update: Vector = flat.values.cpu().numpy() - received
    if support is not None:
        support.hold_back(update)
    if not np.isfinite(update).all():
        raise TrainingDiverged(
            f"{site}: training diverges: the update is not finite after step {steps}", hint=_DATA_HINT
        )
    return LocalResult(
        update, steps, len(data), record.mean_loss, accuracy, settings.learning_rate, loss_growth=record.growth
    )


def require_steps(site: str, samples: int, settings: TrainingSettings, fewest: int = FEWEST_TARGET_STEPS) -> None:
    """Raise TrainingError if a round over ``samples`` rows has fewer than ``fewest`` steps, or too small batches."""
    if min(samples, settings.batch_size) < settings.smallest_batch:
        raise TrainingError(
            f"{site}: {counted(samples, 'row')} in batches of {settings.batch_size}, and the model has BatchNorm, for "
            f"which a batch needs at least {settings.smallest_batch}",
            hint="raise batch-size in the site's training settings, give it more rows, or use torch.nn.GroupNorm",
        )
    steps = settings.steps(samples)
    if steps < fewest:
        bound = f", at most {counted(settings.max_steps, 'step')}," if settings.max_steps else ""
        raise TrainingError(
            f"{site}: {samples} rows in batches of {settings.batch_size} for {counted(settings.epochs, 'epoch')}{bound}"
            f" make {counted(steps, 'step')} in a round, and at least {fewest} are needed",
            hint="raise max-steps in the site's training settings" if settings.max_steps == steps else _MORE_STEPS,
        )


def evaluate(task: Task, model: nn.Module, data: Samples) -> Evaluation:
    """Return loss and metrics of ``model``, with its present parameters and on its device, over all rows of ``data``.

    Raises:
        TrainingError: as of :func:`checked_metrics`.
        DataError: the task's own code, or torch on its behalf, fails.
    """
    return evaluation_of(task, outputs_of(task, model, data.features), data.labels)


def evaluation_of(task: Task, outputs: Inputs, labels: Tensor) -> Evaluation:
    """Return loss and metrics of a model's outputs for rows with these labels.

    Raises:
        TrainingError: as of :func:`checked_metrics`.
        DataError: the task's own code fails.
    """
    with torch.no_grad(), task_code(type(task), "evaluation"):
        loss = float(task.loss(outputs, labels))
        metrics = task.metrics(outputs, labels)
    metrics, metric = checked_metrics(metrics, task), task.chosen_metric
    by_row = partial(_row_accuracies, task, outputs, labels, metrics.get(ACCURACY.name, math.nan))
    if metric.name != ACCURACY.name:
        by_row = partial(_kept_outputs, outputs)
    return Evaluation(loss, metrics, len(labels), metric, by_row, _confusion(task, outputs, labels))


def _confusion(task: Task, outputs: Inputs, labels: Tensor) -> tuple[tuple[str, ...], list[list[int]]] | None:
    with task_code(type(task), "class_names"):
        classes = task.class_names()
    is_logits = isinstance(outputs, Tensor) and outputs.shape == (len(labels), len(classes))
    are_numbers = labels.ndim == 1 and not labels.is_floating_point()
    if not (is_logits and are_numbers and 2 <= len(classes) <= _MOST_CLASSES):
        return None
    return classes, confusion_matrix(outputs.argmax(dim=1), labels, len(classes)).tolist()


def _kept_outputs(outputs: Inputs) -> Vector | None:
    if not isinstance(outputs, Tensor) or outputs.ndim > 2 or outputs.numel() > _MOST_KEPT_OUTPUTS:
        return None
    width = torch.tensor([outputs[0].numel()])
    kept: Vector = torch.cat([width, outputs.flatten()]).float().numpy()
    return kept


def _row_accuracies(task: Task, outputs: Inputs, labels: Tensor, accuracy: float) -> Vector | None:
    """Return the accuracy of each row if ``accuracy`` is their mean. Many figures cannot be computed of one row."""
    try:
        with torch.no_grad(), task_code(type(task), "evaluation"):
            rows = np.asarray(task.row_accuracies(outputs, labels), np.float32)
    except DataError:
        return None
    is_mean = rows.shape == (len(labels),) and bool((rows >= 0).all() and (rows <= 1).all())
    return rows if is_mean and math.isclose(float(rows.mean(dtype=np.float64)), accuracy, abs_tol=1e-6) else None


def outputs_of(task: Task, model: nn.Module, features: Inputs) -> Inputs:
    """Return the outputs of ``model`` for ``features``. The model stays on its device; the outputs are on the CPU.

    Raises:
        DataError: the task's own code, or torch on its behalf, fails.
    """
    device = next(model.parameters()).device
    model.eval()
    with torch.no_grad(), task_code(type(task), "evaluation"):
        return joined([in_memory(model(in_memory(rows, device))) for rows in batched(features, _EVALUATION_ROWS)])


def checked_metrics(metrics: dict[str, float], task: Task) -> dict[str, float]:
    """Return a task's metrics without those that its rows do not define, or that are infinite.

    Raises:
        TrainingError: the metrics are no mapping, or lack the chosen one; or one is not one number, or outside [0, 1]
            although it is printed in percent.
    """
    name = type(task).__name__
    given: object = metrics
    if not isinstance(given, Mapping):
        hint = "metrics() returns a dictionary of numbers"
        raise TrainingError(f"task {name}: its metrics are of type {type(given).__name__}", hint=hint)
    if (chosen := task.chosen_metric.name) not in given:
        other = f", or choose one of {names(list(map(str, given)), 5)} as task.metric" if given else ""
        raise TrainingError(f"task {name}: its metrics lack {chosen}", hint=f"add it to metrics(){other}")
    own, numbers = {metric.name: metric for metric in task.own_metrics}, dict[str, float]()
    for key, value in given.items():
        metric = own.get(key) or metric_of(key)
        bound = "it must lie in [0, 1]" if metric.percent else "metrics() returns one number for each name"
        try:
            numbers[key] = float(value)
        except (TypeError, ValueError, RuntimeError):  # RuntimeError: a tensor of several numbers
            fault = f"of type {type(value).__name__}, not one number"
            raise TrainingError(f"task {name}: its {metric.title} is {fault}", hint=bound) from None
        has_none = math.isnan(numbers[key]) and metric != ACCURACY  # of which all rows have one
        if metric.percent and not (0 <= numbers[key] <= 1 or has_none):
            raise TrainingError(f"task {name}: its {metric.title} is {numbers[key]:g}", hint=bound)
    return {key: value for key, value in numbers.items() if math.isfinite(value)}


class _RoundRecord:
    """Running record of a round of training: the loss over all rows, and the outputs of the current epoch."""

    def __init__(self, samples: int) -> None:
        self._samples = samples
        self._loss_sum, self._rows = 0.0, 0
        self._first = self._last = 0.0
        self._outputs: list[tuple[Inputs, Tensor]] = []

    @property
    def mean_loss(self) -> float:
        return self._loss_sum / self._rows

    @property
    def growth(self) -> float:
        return self._last / self._first if self._first > 0 else 1.0

    def add(self, loss: float, rows: int, outputs: Iterable[tuple[Inputs, Tensor]]) -> None:
        """Add a step: its mean loss over ``rows``, and this process's pairs of outputs and labels, if any."""
        if self._rows % self._samples == 0:
            self._outputs.clear()  # a new epoch
        self._first, self._last = loss if self._rows == 0 else self._first, loss
        self._loss_sum, self._rows = self._loss_sum + loss * rows, self._rows + rows
        self._outputs.extend(outputs)

    def collect(self, team: Team) -> None:
        """Gather the outputs of all processes at the leader."""
        own, form = dict[str, Tensor](), None
        if self._outputs:
            form, labels = self._joined()
            own = {f"outputs {name}": tensor for name, tensor in named_tensors(form, "").items()} | {"labels": labels}
        names = [name for name in own if name != "labels"]  # the leader has rows in every step
        parts = [part for part in team.collect(own) if part]
        self._outputs = [(with_tensors(form, (part[name] for name in names)), part["labels"]) for part in parts]

    def _joined(self) -> tuple[Inputs, Tensor]:
        """Return outputs and labels of all parts, on the CPU."""
        outputs, labels = zip(*self._outputs, strict=True)
        return in_memory(joined(outputs)), torch.cat(labels).cpu()

    def accuracy(self, task: Task) -> float | None:
        outputs, labels = self._joined()
        return checked_metrics(task.metrics(outputs, labels), task).get(ACCURACY.name)


@dataclass(frozen=True, slots=True, repr=False)
class _Loss:
    """The loss of a model on a site's rows.

    Attributes:
        task: computes it.
        model: is on the device of the rows, in training mode.
        features, labels: of all rows, (n, ...).
        weights: of the rows, (n,); None: 1 for each.
        variations: draws how rows are varied; None: they are not.
        auxiliary: a term that is added for the gradient alone.
    """

    task: Task
    model: nn.Module
    features: Inputs
    labels: Tensor
    weights: Tensor | None
    variations: torch.Generator | None
    auxiliary: AuxiliaryLoss | None

    def backward(self, rows: Tensor, share: float) -> tuple[Tensor, tuple[Inputs, Tensor]]:
        """Add the gradient of ``share`` times the mean loss of rows, by their numbers (b,), to the model's gradient.

        Returns:
            ``share`` times the loss without the auxiliary term, a scalar; and the rows' outputs and labels.
        """
        given, labels = in_memory(take(self.features, rows), rows.device), self.labels[rows]
        outputs = self.model(given if self.variations is None else self.task.varied(given, self.variations))
        if self.weights is None:
            loss = self.task.loss(outputs, labels)
        else:
            loss = (self.weights[rows] * self.task.row_losses(outputs, labels)).mean()
        reported = share * loss.detach()
        if self.auxiliary is not None:
            loss = loss + self.auxiliary.added_loss(self.task, labels)
        (share * loss).backward()  # type: ignore[no-untyped-call]
        return reported, (map_tensors(Tensor.detach, outputs), labels)


def batches(samples: int, settings: TrainingSettings, seed: Seed) -> Iterator[Tensor]:
    """Yield the row numbers of each step: a new order in each epoch, the same order on every device."""
    generator = new_generator(seed)

    def epochs() -> Iterator[Tensor]:
        for _ in range(settings.epochs):
            yield from torch.split(torch.randperm(samples, generator=generator), settings.batch_sizes(samples))

    yield from islice(epochs(), settings.steps(samples))
