"""One round of training at one site by DP-SGD (Abadi et al. 2016). Import it where it is needed: it imports Opacus.

Opacus computes and clips the gradient of each row. What it is given here instead of its own: noise
(:mod:`securefda.dp.noise_optimizer`), the rows of each step (:mod:`securefda.dp.sampling`), and a loss that is taken
row by row, so that no row has a part in another's gradient.

Everything that comes out of a round is computed from noisy gradients, the step count and the number of rows. There is
no training loss and no training accuracy.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from opacus import PrivacyEngine
from opacus.validators import ModuleValidator
from opacus.validators.errors import UnsupportedModuleError
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from securefda.dp.noise import NoiseSource
from securefda.dp.noise_optimizer import take_noise_from
from securefda.dp.planning import Schedule
from securefda.dp.sampling import draw_rows
from securefda.errors import ConfigError, TrainingError
from securefda.tasks import Samples, Task, task_code
from securefda.training.device import choose_device
from securefda.training.local import LocalResult, StepObserver, require_steps
from securefda.training.seeds import derive_seed, seeded_torch
from securefda.training.settings import NoiseSettings, TrainingSettings
from securefda.training.vectors import FlatModel, Vector

_MEND = "a gradient was not finite, which noise does not hide; look at the site's data, or lower the learning rate"
_INSTEAD = {
    "BatchNorm": "torch.nn.GroupNorm",
    "InstanceNorm": "torch.nn.GroupNorm",
    "LSTM": "opacus.layers.DPLSTM",
    "GRU": "opacus.layers.DPGRU",
    "RNN": "opacus.layers.DPRNN",
    "MultiheadAttention": "opacus.layers.DPMultiheadAttention",
}
"""Start of a layer's class that mixes rows, or that hides its parameters from Opacus -> what to use in its place."""

_PROBES = 3
"""Rows of the site on which a model is tried before the first round."""

RandomBytes = Callable[[int], bytes]


def schedule_of(settings: TrainingSettings, samples: int, rounds: int = 1) -> Schedule:
    """Return how often a site's rows are used: what a round is charged by.

    Raises:
        ConfigError: ``training.batch-size`` is larger than the data.
    """
    if settings.batch_size > samples:
        why = f"{settings.batch_size} is larger than the data, which have {samples} rows"
        raise ConfigError("training.batch-size", why, hint=f"set it to {samples} or less")
    return Schedule(samples, settings.batch_size, settings.epochs, rounds)


def train_private(
    task: Task,
    model: nn.Module,
    received: Vector,
    data: Samples,
    *,
    settings: TrainingSettings,
    seed: int,
    site: str,
    fewest_steps: int = 1,
    on_step: StepObserver | None = None,
    random_bytes: RandomBytes = os.urandom,
) -> LocalResult:
    """Train from the received model on one site's rows for one round, as ``train_local`` does, by DP-SGD.

    Each step draws every row with probability 1 / (batches of an epoch), scales each row's gradient down to
    ``settings.dp.max_grad_norm`` over all layers, adds noise, and divides by the expected number of rows. Two calls
    with the same arguments give different updates. Memory: with per-sample gradients as many vectors of length m as
    a step drew rows; with ghost clipping none of that kind.

    Args:
        task: gives the loss of each row by itself, ``row_losses``.
        model: as for ``train_local``; rows must not mix in it, see :func:`require_separate_rows`.
        received: the global model, (m,) float32; not changed.
        data: the site's training rows.
        settings: how to train; ``dp`` is set.
        seed: of this site in this round: for layers that draw (dropout), never for noise or for which rows a step has.
        site: site id, for messages.
        fewest_steps: refuse to train with fewer.
        on_step: called after each step, in order, with what noise has touched already.
        random_bytes: where noise and the rows of each step come from; anything but ``os.urandom`` is for tests.

    Returns:
        The update; loss and accuracy are None.

    Raises:
        TrainingError: too few steps, a layer that DP-SGD cannot train, a gradient that is not finite.
        ConfigError: the batch is larger than the data.
        DataError: the task's own code, or torch on its behalf, fails.
    """
    if settings.dp is None:
        raise ValueError("train_private needs settings with dp")
    schedule = schedule_of(settings, len(data))
    require_steps(site, len(data), settings, fewest_steps)
    device = choose_device(settings.device)
    flat = FlatModel(model, received, device)
    flat.release_gradient()
    flat.model.train()
    with (
        seeded_torch(derive_seed(seed, "layers"), device),
        _steps_of(task, flat.model, data, settings, random_bytes) as step,
        task_code(type(task), "training"),
    ):
        before = flat.values.clone() if on_step is not None else None
        for _ in range(schedule.steps_per_round):
            step(torch.from_numpy(draw_rows(len(data), schedule.sampling_rate, random_bytes)).to(device))
            if on_step is not None and before is not None:
                on_step(torch.sub(flat.values, before).cpu().numpy())
                before.copy_(flat.values)
    update: Vector = flat.values.cpu().numpy() - received
    if not np.isfinite(update).all():
        raise TrainingError(f"{site}: the update is not finite", hint="lower training.learning-rate")
    return LocalResult(update, schedule.steps_per_round, len(data), None, None, settings.learning_rate)


def require_separate_rows(task: Task, model: nn.Module, data: Samples, settings: TrainingSettings) -> None:
    """Refuse, before the first round, what DP-SGD cannot train: its bound holds for rows that do not mix.

    That they were prepared apart, the task says of itself. Layers that Opacus knows are refused by name. Of any other,
    rows of the site tell: what the model and the loss say of one row must not change with the rows beside it, and a
    row that is clipped must have its own gradient, shorter.

    Raises:
        TrainingError: names the layer and what to use instead.
        DataError: the task's own code fails.
    """
    if not task.separate_rows:
        raise TrainingError(
            f"task {type(task).__name__}: it prepares rows with numbers of other rows, and noise would not cover those",
            hint='prepare each row by itself, with public numbers; Fed-Heart does with task.options.scaling = "public"',
        )
    model.train()
    faults = ModuleValidator.validate(model, strict=False)
    if faults or any(isinstance(module, nn.RNNBase) for module in model.modules()):
        raise _unfit(model, faults[0] if faults else None)
    _require_same_beside_others(task, model, data)
    _require_losses_agree(task, model, data)
    for row in range(min(len(data), _PROBES)):
        _require_own_gradient(task, model, Samples(data.features[[row]], data.labels[[row]]), settings)


def _require_same_beside_others(task: Task, model: nn.Module, data: Samples) -> None:
    features, labels = data.features[:_PROBES], data.labels[:_PROBES]
    moved = features[1:].flip(0) + (1 if features.is_floating_point() else 0)  # a whole number may be a word's
    others = torch.cat([features[:1], moved]), torch.cat([labels[:1], labels[1:].flip(0)])
    among, beside = (_said_of_first(task, model, *batch) for batch in ((features, labels), others))
    if not torch.allclose(among, beside, rtol=1e-4, atol=1e-5):
        raise TrainingError(
            f"model {type(model).__name__}: what it or its loss says of a row depends on the rows beside it, so that "
            "no row's gradient bounds what the row changes",
            hint="use layers that treat each row by itself; torch.nn.GroupNorm instead of a norm over the batch",
        )


def _require_losses_agree(task: Task, model: nn.Module, data: Samples) -> None:
    """A task that overrides ``loss`` alone, where the one it extends has both, would train on two different losses."""
    features, labels = data.features[:_PROBES], data.labels[:_PROBES]
    with seeded_torch(0, torch.device("cpu")), torch.no_grad(), task_code(type(task), "row_losses"):
        outputs = model(features)
        own = task.row_losses(outputs, labels)
        one_by_one = [task.loss(outputs[[row]], labels[[row]]) for row in range(len(features))]
    if not torch.allclose(own, torch.stack(one_by_one).to(own), rtol=1e-4, atol=1e-5):
        raise TrainingError(
            f"task {type(task).__name__}: row_losses says otherwise than loss does of each row",
            hint="override both, or neither",
        )


def _said_of_first(task: Task, model: nn.Module, features: Tensor, labels: Tensor) -> Tensor:
    with seeded_torch(0, torch.device("cpu")), torch.no_grad(), task_code(type(task), "the model"):
        outputs = model(features)
        return torch.cat([outputs[0].flatten().float(), task.row_losses(outputs, labels)[:1].flatten().float()])


def _require_own_gradient(task: Task, model: nn.Module, row: Samples, settings: TrainingSettings) -> None:
    """Opacus sees what passes through layers. A parameter that is used elsewhere too would escape it, and the clip."""
    own = _gradient(task, model, row)
    length = float(torch.linalg.vector_norm(own))
    if settings.dp is None or not 0 < length < math.inf:
        return
    half = replace(settings, batch_size=1, dp=replace(settings.dp, max_grad_norm=length / 2))
    with (
        seeded_torch(0, torch.device("cpu")),
        _optimizer_of(task, model, row, half) as (optimizer, backward),
        task_code(type(task), "training"),
    ):
        backward(row.features, row.labels, 1.0)
        optimizer.pre_step()
        clipped = torch.cat([parameter.summed_grad.flatten() for parameter in optimizer.params])
    if not torch.allclose(clipped, own / 2, rtol=1e-2, atol=1e-3 * length):
        raise TrainingError(
            f"model {type(model).__name__}: the gradient of a row that Opacus clips is not the row's gradient",
            hint="use every parameter in the layer that has it and nowhere else, and keep the rows in dimension 0",
        )


def _gradient(task: Task, model: nn.Module, row: Samples) -> Tensor:
    """Of all federated parameters, (m,), without Opacus."""
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    with seeded_torch(0, torch.device("cpu")), task_code(type(task), "training"):
        loss = task.row_losses(model(row.features), row.labels).sum()
        parts = torch.autograd.grad(loss, [parameter for _, parameter in named], allow_unused=True)
    for (name, _), part in zip(named, parts, strict=True):
        if part is None:
            raise TrainingError(
                f"model {type(model).__name__}: parameter {name} has no part in the loss, so it would only gain noise",
                hint="leave it out, or set its requires_grad to False",
            )
    return torch.cat([part.flatten() for part in parts])


class _RowLoss(nn.Module):
    """A task's loss of each row by itself, (batch,), or the mean of these; Opacus sets ``reduction``."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.reduction = "mean"
        self._task = task

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        losses = self._task.row_losses(outputs, labels)
        if losses.shape != labels.shape[:1]:
            shape = tuple(losses.shape)
            hint = f"row_losses of task {type(self._task).__name__} must return one number for each row"
            raise TrainingError(f"the losses of {len(labels)} rows have the shape {shape}", hint=hint)
        return losses if self.reduction == "none" else losses.mean()


@contextmanager
def _steps_of(
    task: Task, model: nn.Module, data: Samples, settings: TrainingSettings, random_bytes: RandomBytes
) -> Iterator[Callable[[Tensor], None]]:
    """Yield what takes a step on the rows it is given; Opacus' hooks are on the model for as long as the block."""
    device = next(model.parameters()).device
    features, labels = data.features.to(device), data.labels.to(device)
    with _optimizer_of(task, model, data, settings) as (optimizer, backward):
        take_noise_from(NoiseSource(random_bytes), optimizer)

        def step(rows: Tensor) -> None:
            # A step that drew no row still has its noise. Opacus' layers take no empty batch: a row times zero is one.
            drawn, weight = (rows, 1.0) if len(rows) else (torch.zeros(1, dtype=torch.long, device=device), 0.0)
            backward(features[drawn], labels[drawn], weight)
            try:
                optimizer.step()
            except ValueError as error:  # of the noise
                raise TrainingError(f"training stopped at a step: {error}", hint=_MEND) from None

        yield step


@contextmanager
def _optimizer_of(
    task: Task, model: nn.Module, data: Samples, settings: TrainingSettings
) -> Iterator[tuple[Any, Callable[[Tensor, Tensor, float], None]]]:
    """Yield Opacus' optimizer, and what gives it the gradients of rows, their losses times a weight."""
    if settings.dp is None:
        raise ValueError("no dp")
    with _quiet():
        wrapped, optimizer, row_loss = _made_private(task, model, data, settings, settings.dp)

    def backward(features: Tensor, labels: Tensor, weight: float) -> None:
        optimizer.zero_grad()
        (row_loss(wrapped(features), labels) * weight).backward()
        _require_a_gradient_of_each(optimizer.params, len(features))

    try:
        with _quiet():
            yield optimizer, backward
    finally:
        wrapped.cleanup()
        _forget_rows(model)


def _forget_rows(model: nn.Module) -> None:
    """Remove what Opacus leaves behind: sums without noise, and rows where a step failed."""
    for module in model.modules():
        for name in ("activations", "max_batch_len"):
            vars(module).pop(name, None)
    for parameter in model.parameters():
        vars(parameter).pop("summed_grad", None)
        parameter.grad = None


def _require_a_gradient_of_each(parameters: Iterable[Any], rows: int) -> None:
    """Refuse parts of rows that are clipped each by itself: the row would then move the sum by a multiple."""
    for parameter in parameters:
        sample = parameter.grad_sample
        found = sample if sample is not None else getattr(parameter, "_norm_sample", None)
        if not isinstance(found, Tensor) or len(found) != rows:
            raise TrainingError(
                "a layer has no gradient of each row, or more than one",
                hint="use every parameter in each step, once, and keep the rows in dimension 0 of every layer",
            )


@contextmanager
def _quiet() -> Iterator[None]:
    """Without two warnings: that Opacus' own noise is not from a CSPRNG, and that inputs need no gradient."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Secure RNG turned off", category=UserWarning)
        warnings.filterwarnings("ignore", message="Full backward hook is firing", category=UserWarning)
        yield


def _made_private(
    task: Task, model: nn.Module, data: Samples, settings: TrainingSettings, dp: NoiseSettings
) -> tuple[Any, Any, Callable[[Tensor, Tensor], Any]]:
    """Opacus' model, optimizer and loss. Its loader and its accountant are not used: rows and epsilon come from us."""
    row_loss = _RowLoss(task)
    loader = DataLoader(TensorDataset(data.features, data.labels), batch_size=settings.batch_size)
    try:
        private = PrivacyEngine().make_private(
            module=model,
            optimizer=_torch_optimizer(model, settings),
            criterion=row_loss,
            data_loader=loader,
            noise_multiplier=dp.noise_multiplier,
            max_grad_norm=dp.max_grad_norm,
            poisson_sampling=False,
            grad_sample_mode="ghost" if dp.ghost_clipping else "hooks",
        )
    except (UnsupportedModuleError, NotImplementedError) as error:
        raise _unfit(model, error) from error
    wrapped, optimizer = private[0], private[1]
    return wrapped, optimizer, private[2] if dp.ghost_clipping else row_loss


def _torch_optimizer(model: nn.Module, settings: TrainingSettings) -> torch.optim.Optimizer:
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    rate, decay = settings.learning_rate, settings.weight_decay
    if settings.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=rate, weight_decay=decay)
    return torch.optim.SGD(parameters, lr=rate, weight_decay=decay, momentum=settings.momentum)


def _unfit(model: nn.Module, error: Exception | None) -> TrainingError:
    """The first layer that is in the way, and what to use instead."""
    for name, module in model.named_modules():
        kind = type(module).__name__
        instead = next((use for start, use in _INSTEAD.items() if kind.startswith(start)), None)
        if instead and (isinstance(module, nn.RNNBase) or ModuleValidator.validate(module, strict=False)):
            return TrainingError(
                f"model {type(model).__name__}: layer {name or '(the model)'} is {kind}, which DP-SGD cannot train",
                hint=f"use {instead} instead",
            )
    words = " ".join(str(error).split())
    return TrainingError(f"model {type(model).__name__}: DP-SGD cannot train it", hint=f"Opacus says: {words[:300]}")
