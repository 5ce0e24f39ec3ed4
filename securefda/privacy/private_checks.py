"""What DP-SGD cannot train, found before the first round: its bound holds for rows that do not mix."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from opacus.validators import ModuleValidator
from torch import Tensor, nn

from securefda.errors import TrainingError
from securefda.privacy.private_steps import optimizer_of, unfit
from securefda.tasks import Samples, Task, task_code
from securefda.training.seeds import seeded_torch
from securefda.training.settings import TrainingSettings

_PROBES = 3
"""Rows of the site on which a model is tried."""

_MOVE = 0.1
"""Standard deviation of what is added to each parameter for a second trial: a first model may have zeros in it."""


def require_separate_rows(task: Task, model: nn.Module, data: Samples, settings: TrainingSettings) -> None:
    """Refuse, before the first round, what DP-SGD cannot train: its bound holds for rows that do not mix.

    That they were prepared apart, the task says of itself. Layers that Opacus knows are refused by name. Of any other,
    rows of the site tell: what the model and the loss say of one row must not change with the rows beside it, with
    their number or its place, and a row that is clipped must have its own gradient, shorter. Tried on a few rows, with
    the model as it is and with one moved at random; this finds mistakes and is no proof.

    Raises:
        TrainingError: names the layer and what to use instead.
        DataError: the task's own code fails.
    """
    if not task.separate_rows:
        raise TrainingError(
            f"task {type(task).__name__}: it does not say that it prepares each row by itself, with public numbers",
            hint='where it does, set separate_rows = True; Fed-Heart does with task.options.scaling = "public"',
        )
    faults = ModuleValidator.validate(model.train(), strict=False)
    if faults or any(isinstance(module, nn.RNNBase) for module in model.modules()):
        raise unfit(model, faults[0] if faults else None)
    first = [parameter.detach().clone() for parameter in model.parameters()]
    try:
        _try_model(task, model, data, settings)
        _move(model)
        _try_model(task, model, data, settings)
    finally:
        with torch.no_grad():
            for parameter, values in zip(model.parameters(), first, strict=True):
                parameter.copy_(values)


def _try_model(task: Task, model: nn.Module, data: Samples, settings: TrainingSettings) -> None:
    # The first row alone, among others, behind them, and beside copies of one of them
    features, labels = data.features[:_PROBES], data.labels[:_PROBES]
    order = list(range(len(features)))
    places = {"among others": order, "behind others": [*order[1:], 0], "beside copies": [0, *order[-1:] * 4]}
    model.eval()  # dropout draws by place
    alone = _said_of(task, model, features[:1], labels[:1], 0)
    for rows in places.values():
        _require_same(model, alone, _said_of(task, model, features[rows], labels[rows], rows.index(0)))
    model.train()
    moved = features[1:].flip(0) + (1 if features.is_floating_point() else 0)  # a whole number may be a word's
    others = torch.cat([features[:1], moved]), torch.cat([labels[:1], labels[1:].flip(0)])
    _require_same(model, _said_of(task, model, features, labels, 0), _said_of(task, model, *others, 0))
    _require_losses_agree(task, model, data)
    for row in range(min(len(data), _PROBES)):
        _require_own_gradient(task, model, Samples(data.features[[row]], data.labels[[row]]), settings)


def _move(model: nn.Module) -> None:
    with seeded_torch(1, torch.device("cpu")), torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=_MOVE)


def _require_same(model: nn.Module, one: Tensor, other: Tensor) -> None:
    if not torch.allclose(one, other, rtol=1e-4, atol=1e-5, equal_nan=True):
        raise TrainingError(
            f"model {type(model).__name__}: what it or its loss says of a row depends on the rows beside it, so that "
            "no row's gradient bounds what the row changes",
            hint="use layers that treat each row by itself; torch.nn.GroupNorm instead of a norm over the batch",
        )


def _said_of(task: Task, model: nn.Module, features: Tensor, labels: Tensor, row: int) -> Tensor:
    with seeded_torch(0, torch.device("cpu")), torch.no_grad(), task_code(type(task), "the model"):
        outputs = model(features)
        losses = task.row_losses(outputs, labels)
        return torch.cat([outputs[row].flatten().float(), losses[row : row + 1].flatten().float()])


def _require_losses_agree(task: Task, model: nn.Module, data: Samples) -> None:
    """A task that overrides ``loss`` alone, where the one it extends has both, would train on two different losses."""
    features, labels = data.features[:_PROBES], data.labels[:_PROBES]
    with seeded_torch(0, torch.device("cpu")), torch.no_grad(), task_code(type(task), "row_losses"):
        outputs = model(features)
        own = task.row_losses(outputs, labels)
        one_by_one = [task.loss(outputs[[row]], labels[[row]]) for row in range(len(features))]
    if not torch.allclose(own, torch.stack(one_by_one).to(own), rtol=1e-4, atol=1e-5, equal_nan=True):
        raise TrainingError(
            f"task {type(task).__name__}: row_losses says otherwise than loss does of each row",
            hint="override both, or neither",
        )


def _require_own_gradient(task: Task, model: nn.Module, row: Samples, settings: TrainingSettings) -> None:
    """Opacus sees what passes through layers. A parameter that is used elsewhere too would escape it, and the clip."""
    own = _gradient(task, model, row)
    length = float(torch.linalg.vector_norm(own))
    if settings.dp is None or not 0 < length < math.inf:
        return
    # Ghost clipping scales by a power of two: a half, unless it measures less than the row has.
    clip = 0.999 * length if settings.dp.ghost_clipping else length / 2
    half = replace(settings, batch_size=1, dp=replace(settings.dp, max_grad_norm=clip))
    with (
        seeded_torch(0, torch.device("cpu")),
        optimizer_of(task, model, row, half) as (optimizer, backward),
        task_code(type(task), "training"),
    ):
        backward(row.features, row.labels)
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
