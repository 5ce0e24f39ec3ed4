"""A step of DP-SGD by Opacus: the clipped gradients of the rows it is given, their noise, and the move.

The sender of the model chooses its weights, so nothing here may depend on them being reasonable. A row whose gradient
is not finite counts as one without gradient: an error would tell of it. And with ghost clipping, whose sum is made in
a second pass, that pass must give the very gradients that the first one measured: see :func:`_ghost_backward`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from opacus import PrivacyEngine
from opacus.validators import ModuleValidator
from opacus.validators.errors import UnsupportedModuleError
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from securefda.errors import TrainingError
from securefda.privacy.noise import NoiseSource, take_noise_from
from securefda.tasks import Samples, Task
from securefda.training.settings import NoiseSettings, TrainingSettings

_HINT = "look at the site's data, or lower training.learning-rate"
_NO_GHOST = "set training.dp.ghost-clipping = false"
_INSTEAD = {
    "BatchNorm": "torch.nn.GroupNorm",
    "InstanceNorm": "torch.nn.GroupNorm",
    "LSTM": "opacus.layers.DPLSTM",
    "GRU": "opacus.layers.DPGRU",
    "RNN": "opacus.layers.DPRNN",
    "MultiheadAttention": "opacus.layers.DPMultiheadAttention",
}
"""Start of a layer's class that mixes rows, or that hides its parameters from Opacus -> what to use in its place."""

RandomBytes = Callable[[int], bytes]
Backward = Callable[[Tensor, Tensor], None]
"""Gives the optimizer the clipped gradients of rows: (features (b, ...), labels (b, ...)), b >= 0."""


@contextmanager
def steps_of(
    task: Task, model: nn.Module, data: Samples, settings: TrainingSettings, random_bytes: RandomBytes
) -> Iterator[Callable[[Tensor], None]]:
    """Yield what takes a step on the rows whose numbers it is given, none being an answer too.

    Opacus' hooks are on the model for as long as the block.

    Raises:
        TrainingError: a layer that DP-SGD cannot train.
    """
    device = next(model.parameters()).device
    features, labels = data.features.to(device), data.labels.to(device)
    with optimizer_of(task, model, data, settings) as (optimizer, backward):
        take_noise_from(NoiseSource(random_bytes), optimizer)

        def step(rows: Tensor) -> None:
            backward(features[rows], labels[rows])
            try:
                optimizer.step()
            except ValueError as error:  # of the noise, which no row can bring about: their sum is bounded
                raise TrainingError(f"training stopped at a step: {error}", hint=_HINT) from None

        yield step


@contextmanager
def optimizer_of(
    task: Task, model: nn.Module, data: Samples, settings: TrainingSettings
) -> Iterator[tuple[Any, Backward]]:
    """Yield Opacus' optimizer, and what gives it the clipped gradients of rows. Raises TrainingError."""
    if settings.dp is None:
        raise ValueError("no dp")
    row_loss = _RowLoss(task)
    with _quiet():
        wrapped, optimizer = _made_private(model, row_loss, data, settings, settings.dp)
    ghost = settings.dp.ghost_clipping
    pass_of = _ghost_backward if ghost else _plain_backward

    def backward(features: Tensor, labels: Tensor) -> None:
        optimizer.zero_grad()
        if len(features):
            pass_of(wrapped, optimizer, row_loss, features, labels)
        else:
            _no_gradient(optimizer.params, ghost)

    try:
        with _quiet():
            yield optimizer, backward
    finally:
        wrapped.cleanup()
        # Remove what Opacus leaves behind: sums without noise, and rows where a step failed
        for module in model.modules():
            for name in ("activations", "max_batch_len"):
                vars(module).pop(name, None)
        for parameter in model.parameters():
            vars(parameter).pop("summed_grad", None)
            parameter.grad = None


def unfit(model: nn.Module, error: Exception | None) -> TrainingError:
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


class _RowLoss(nn.Module):
    """A task's loss of each row by itself, (batch,)."""

    reduction = "mean"  # Opacus asks for it, of the criterion that it is given

    def __init__(self, task: Task) -> None:
        super().__init__()
        self._task = task

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        losses = self._task.row_losses(outputs, labels)
        if losses.shape != labels.shape[:1]:
            shape = tuple(losses.shape)
            hint = f"row_losses of task {type(self._task).__name__} must return one number for each row"
            raise TrainingError(f"the losses of {len(labels)} rows have the shape {shape}", hint=hint)
        return losses


def _plain_backward(wrapped: Any, optimizer: Any, row_loss: nn.Module, features: Tensor, labels: Tensor) -> None:
    """The gradient of each row, which Opacus will clip; zeros for a row of which one is not finite."""
    row_loss(wrapped(features), labels).mean().backward()
    _require_a_gradient_of_each(optimizer.params, "grad_sample", len(features))
    sums = torch.stack([parameter.grad_sample.flatten(1).sum(1) for parameter in optimizer.params])
    unfit_rows = ~sums.isfinite().all(dim=0)  # a sum that overflows counts too: whichever, the row alone decides
    if unfit_rows.any():
        for parameter in optimizer.params:
            parameter.grad_sample[unfit_rows] = 0.0


def _ghost_backward(wrapped: Any, optimizer: Any, row_loss: nn.Module, features: Tensor, labels: Tensor) -> None:
    """The sum of clipped gradients, by a second pass over losses that are scaled by what the first one measured.

    Rounding must not part the two passes: with weights made for it, a gradient that is all cancellation would be
    measured as nothing and come out as anything. So a row is scaled by a power of two, which is exact; the gradient of
    a layer is one outer product for each row (:func:`_linear_norms`); and where a row is not finite, both passes are
    made again without it.
    """
    losses = row_loss(wrapped(features), labels)
    losses.sum().backward(retain_graph=True)
    _require_a_gradient_of_each(optimizer.params, "_norm_sample", len(features))
    norms = wrapped.get_norm_sample() / len(features)  # Opacus takes the loss for a mean, and multiplies
    optimizer.zero_grad()
    fit = norms.isfinite()
    if not fit.all():
        del losses
        if fit.any():
            _ghost_backward(wrapped, optimizer, row_loss, features[fit], labels[fit])
        else:
            _no_gradient(optimizer.params, ghost=True)
        return
    exponents = torch.floor(torch.log2(wrapped.max_grad_norm / (norms * (1 + 1e-5) + 1e-6))).clamp(max=0.0)
    wrapped.disable_hooks()
    (torch.exp2(exponents) * losses).sum().backward()
    wrapped.enable_hooks()


def _linear_norms(layer: nn.Linear, activations: list[Tensor], backprops: Tensor) -> dict[Any, Tensor]:
    """Norm of each row's gradient of a linear layer: of an outer product, the product of the norms.

    Opacus' own takes squares in float32, and differences of them where a row is several vectors: both can come out as
    nothing where the gradient is large.
    """
    inputs = activations[0]
    if backprops.dim() != 2 or inputs.dim() != 2:
        raise TrainingError("ghost clipping needs layers that see one vector of each row", hint=_NO_GHOST)
    out, into = (torch.linalg.vector_norm(part.to("cpu", torch.float64), dim=1) for part in (backprops, inputs))
    of_weight, of_bias = ((layer.weight, out * into),), () if layer.bias is None else ((layer.bias, out),)
    return {parameter: norms.to(backprops) for parameter, norms in (*of_weight, *of_bias)}


def _no_gradient(parameters: Iterable[Any], ghost: bool) -> None:
    """A step without rows: its sum is zero, and it will have its noise."""
    for parameter in parameters:
        if ghost:
            parameter.grad = torch.zeros_like(parameter)
        else:
            parameter.grad_sample = torch.zeros((1, *parameter.shape), device=parameter.device)


def _require_a_gradient_of_each(parameters: Iterable[Any], name: str, rows: int) -> None:
    """Refuse parts of rows that are clipped each by itself: the row would then move the sum by a multiple."""
    for parameter in parameters:
        found = getattr(parameter, name, None)
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
    model: nn.Module, row_loss: nn.Module, data: Samples, settings: TrainingSettings, dp: NoiseSettings
) -> tuple[Any, Any]:
    """Opacus' model and optimizer. Its loader and its accountant are not used: rows and epsilon come from us."""
    loader = DataLoader(TensorDataset(data.features, data.labels), batch_size=settings.batch_size)
    try:
        wrapped, optimizer, *_ = PrivacyEngine().make_private(
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
        raise unfit(model, error) from error
    if dp.ghost_clipping:
        try:
            for module in wrapped.iterate_submodules(model):
                if type(module) is not nn.Linear:
                    kind = type(module).__name__
                    why = f"layer {kind} has parameters, and ghost clipping takes Linear alone"
                    raise TrainingError(f"model {type(model).__name__}: {why}", hint=_NO_GHOST)
        except TrainingError:
            wrapped.cleanup()
            raise
        wrapped.NORM_SAMPLERS = {nn.Linear: _linear_norms}
    return wrapped, optimizer


def _torch_optimizer(model: nn.Module, settings: TrainingSettings) -> torch.optim.Optimizer:
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    rate, decay = settings.learning_rate, settings.weight_decay
    if settings.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=rate, weight_decay=decay)
    return torch.optim.SGD(parameters, lr=rate, weight_decay=decay, momentum=settings.momentum)
