"""One round of training at one site by DP-SGD (Abadi et al. 2016). Import it where it is needed: it imports Opacus.

Opacus computes and clips the gradient of each row. Three parts of Opacus are replaced: its noise, by that of
:mod:`securefda.privacy.noise`; its sampler, by `draw_rows` below; and the mean loss, by one per row, so that no row
contributes to another's gradient.

Everything that comes out of a round is computed from noisy gradients, the step count and the number of rows. There is
no training loss and no training accuracy.

Each step draws every row by itself (Poisson sampling), with bits of the operating system. The sampling rate lowers
epsilon only as long as it is unknown which rows a step drew. Opacus' own sampler takes its bits from a generator of
torch, whose 64-bit seed would be all that hides them.

The sender of the model chooses its weights, so no step may rely on them being reasonable. A row whose gradient is not
finite counts as a row without a gradient, because an error would reveal it. Ghost clipping must sum exactly the
gradients that it measured: see :func:`_ghost_backward`.
"""

from __future__ import annotations

import os
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from opacus import PrivacyEngine
from opacus.layers.dp_rnn import DPRNNBase
from opacus.validators import ModuleValidator
from opacus.validators.errors import UnsupportedModuleError
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.rnn import PackedSequence
from torch.utils.data import DataLoader, TensorDataset

from securefda.errors import DataError, TrainingDiverged, TrainingError
from securefda.privacy.noise import NoiseSource, take_noise_from
from securefda.privacy.planning import schedule_of
from securefda.protocol.encoding import Vector
from securefda.protocol.secret import RandomBytes
from securefda.tasks import Inputs, Samples, Task, task_code
from securefda.tasks.inputs import in_memory, moved, named_tensors, take
from securefda.text import counted, duration, first_of, human_bytes
from securefda.training.device import choose_device
from securefda.training.local import LocalResult, StepObserver, require_steps
from securefda.training.parameter_vectors import FlatModel
from securefda.training.round_progress import ProgressObserver, observed
from securefda.training.seeds import secret_torch, seeded_torch
from securefda.training.team import Team, shared_steps
from securefda.training.training_settings import NoiseSettings, TrainingSettings

_WORD_BYTES = 8

_PROBES = 3
"""Rows of the site on which a model is tried."""

_COMPARED = 256
"""Rows of the site over which the loss of a batch is compared with that of its rows."""

_SHORTEST_PROBE = 1e-3
"""Norm of a row's gradient from which on it is compared: Opacus adds 1e-6 to norms, and a trained model gives less."""

_MOVE = 0.1
"""Standard deviation of what is added to each parameter for a second trial: a first model may have zeros in it."""

_LONG_ROUND_S = 10.0
_MUCH_MEMORY = 2**30
"""An operator is told about rounds of so many seconds, and about gradients of so many bytes."""

_HINT = "look at the site's data, or lower training.learning-rate"
_NO_GHOST = "set training.dp.ghost-clipping = false"
_PLAIN = (
    "give it one tensor, by position and in training mode; put a parameter of your own into a layer that takes and "
    "returns one tensor, without dropout in it"
)
_INSTEAD = {
    "BatchNorm": "torch.nn.GroupNorm",
    "InstanceNorm": "torch.nn.GroupNorm",
    "LSTM": "opacus.layers.DPLSTM",
    "GRU": "opacus.layers.DPGRU",
    "RNN": "opacus.layers.DPRNN",
    "MultiheadAttention": "opacus.layers.DPMultiheadAttention",
    "EmbeddingBag": "torch.nn.Embedding and a mean over its words",
}
"""Start of a layer's class that mixes rows, or that hides its parameters from Opacus -> what to use in its place."""

_HIDDEN = (nn.RNNBase, nn.RNNCellBase, nn.EmbeddingBag)
"""Layers of these kinds that Opacus's validator passes, though it has no gradient of each row for them."""

_OF_SPECTRAL_NORM = {"_u", "weight_u"}
"""Buffers of ``spectral_norm``, which it moves in each pass of training."""

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
"""What Opacus has formulas of its own for; subclasses it derives by torch."""

Backward = Callable[[Inputs, Tensor], None]
"""Gives the optimizer the clipped gradients of rows: (features of b rows, labels (b, ...)), b >= 0."""


def draw_rows(samples: int, rate: float, random_bytes: RandomBytes = os.urandom) -> NDArray[np.int64]:
    """Return the rows of one step, ascending; there may be none.

    Args:
        samples: number of rows, >= 1.
        rate: in (0, 1], the probability of each row; the probability used is lower by at most 2**-64.
        random_bytes: ``random_bytes(n)`` returns n of them.

    Raises:
        ValueError: ``samples`` or ``rate`` is out of bounds, or ``random_bytes`` gave another number of bytes.
    """
    if samples < 1 or not 0 < rate <= 1:
        raise ValueError(f"rows are drawn from at least one and with a rate in (0, 1], not {samples} and {rate}")
    # 2^64 fits no word to compare with.
    if rate == 1:
        return np.arange(samples)
    drawn = random_bytes(_WORD_BYTES * samples)
    if len(drawn) != _WORD_BYTES * samples:
        raise ValueError(f"the random source returned {len(drawn)} bytes instead of {_WORD_BYTES * samples}")
    # Rounded down, so that the rate is never above the one that is charged.
    below = np.uint64(int(rate * 2.0**64))  # exact: a float64 times a power of two
    return np.flatnonzero(np.frombuffer(drawn, dtype="<u8") < below)


def train_private(
    task: Task,
    model: nn.Module,
    received: Vector,
    data: Samples,
    *,
    settings: TrainingSettings,
    site: str,
    fewest_steps: int = 1,
    on_step: StepObserver | None = None,
    on_progress: ProgressObserver | None = None,
    random_bytes: RandomBytes = os.urandom,
    team: Team | None = None,
) -> LocalResult:
    """Train from the received model on one site's rows for one round, as ``train_local`` does, by DP-SGD.

    Each step draws every row with probability 1 / (batches of an epoch), scales each row's gradient down to
    ``settings.dp.max_grad_norm`` over all layers, adds noise, and divides by the expected number of rows; a row
    whose gradient is not finite has none. Two calls with the same arguments give different updates.

    Memory: per-sample gradients need one vector of length m for each row that a step drew. Ghost clipping needs none of
    these; it takes linear layers alone. Both bound rows alike.

    Args:
        task: gives the loss of each row by itself, ``row_losses``.
        model: as for ``train_local``; rows must not mix in it, see :func:`require_separate_rows`.
        received: the global model, (m,) float32; not changed.
        data: the site's training rows.
        settings: how to train, as :func:`fitting` returns them; ``dp`` is set.
        site: site id, for messages.
        fewest_steps: refuse to train with fewer.
        on_step: called after each step, in order, with the step after noise was added.
        on_progress: called about once a second. It hears counts of steps, which the schedule says beforehand.
        random_bytes: source of the noise, of the rows of each step and of what layers draw; anything but ``os.urandom``
            is for tests. Dropout draws by a row's position in its step. If others knew what it draws, one more row
            would change the gradients of all rows behind it.
        team: processes that train together. The leader draws the rows of each step, also for the others, and makes the
            noise; a process without rows in a step takes part with a sum of zero.

    Returns:
        The update; loss and accuracy are None.

    Raises:
        TrainingError: too few steps, a layer that DP-SGD cannot train, an update that is not finite.
        ConfigError: the batch is larger than the data.
        DataError: the task's own code, or torch on its behalf, fails.
    """
    if settings.dp is None:
        raise ValueError("train_private needs settings with dp")
    schedule = schedule_of(settings, len(data))
    require_steps(site, len(data), settings, fewest_steps)
    device = choose_device(settings.device)
    # With TF32, which the task's code or a variable may have turned on, a GPU rounds the factors of a clipped sum to 11
    # bits, and a row may be longer than its bound. It stays off in this process.
    torch.set_float32_matmul_precision("highest")
    with task_code(type(task), "training"):
        flat = FlatModel(model, received, device)
    flat.release_gradient()
    flat.model.train()
    with (
        secret_torch(random_bytes, device),
        task_code(type(task), "training"),
        steps_of(task, flat.model, data, settings, random_bytes, team=team) as step,
    ):
        before = flat.values.clone() if on_step is not None else None
        drawn: Iterator[Tensor] = (
            torch.from_numpy(draw_rows(len(data), schedule.sampling_rate, random_bytes))
            for _ in range(schedule.steps_per_round)
        )
        with shared_steps(team, drawn) as steps:
            for rows in observed(steps, schedule.steps_per_round, on_progress):
                step((rows if team is None else team.share(rows)).to(device))
                flat.take_back()
                if on_step is not None and before is not None:
                    on_step(torch.sub(flat.values, before).cpu().numpy())
                    before.copy_(flat.values)
    update: Vector = flat.values.cpu().numpy() - received
    if not np.isfinite(update).all():
        raise TrainingDiverged(
            f"{site}: training diverges: the update is not finite", hint="lower training.learning-rate"
        )
    taken, variance = schedule.steps_per_round, 0.0
    if settings.dp.correct_projection:
        # From the settings only: a variance, and never the noise that was drawn.
        variance = settings.noise_variance(len(data), schedule.sampling_rate, taken)
    return LocalResult(update, taken, len(data), None, None, settings.learning_rate, noise_variance=variance)


@dataclass(frozen=True, slots=True)
class RoundCost:
    """What a round of training with noise costs at a site, by one timed step.

    Attributes:
        steps: of the round.
        step_seconds: of one step on as many rows as are expected, with its noise.
        gradient_bytes: memory for the gradient of each of these rows; 0 with ghost clipping.
    """

    steps: int
    step_seconds: float
    gradient_bytes: int

    @property
    def seconds(self) -> float:
        """Of the round."""
        return self.steps * self.step_seconds

    def words(self) -> list[str]:
        """Return a line for the operator if the round is long or takes much memory; else none."""
        if self.seconds < _LONG_ROUND_S and self.gradient_bytes < _MUCH_MEMORY:
            return []
        memory = f" and {human_bytes(self.gradient_bytes)} for gradients of rows" if self.gradient_bytes else ""
        return [
            f"a round of training with noise takes about {duration(self.seconds)} here "
            f"({counted(self.steps, 'step')} of {self.step_seconds:.2g} s){memory}"
        ]


def cost_of(task: Task, model: nn.Module, data: Samples, settings: TrainingSettings) -> RoundCost:
    """Estimate what a round costs, by one step whose result is thrown away; nothing is charged, for nothing leaves.

    Args are those of :func:`fitting`; ``settings`` are what it returned.

    Raises:
        DataError: the task's own code, or torch on its behalf, fails.
        TrainingError: the model cannot be trained by these settings.
    """
    if settings.dp is None:
        raise ValueError("no dp")
    rows = torch.arange(min(settings.batch_size, len(data)))
    batch, device = Samples(in_memory(take(data.features, rows)), data.labels[rows]), choose_device(settings.device)
    first = [parameter.detach().clone() for parameter in model.parameters()]
    try:
        with (
            seeded_torch(0, device),
            task_code(type(task), "training"),
            steps_of(task, model.to(device).train(), batch, settings, os.urandom) as step,
        ):
            begun = time.perf_counter()
            step(rows.to(device))
            next(model.parameters()).sum().item()  # a GPU has done the step when this returns
            seconds = time.perf_counter() - begun
    finally:
        with torch.no_grad():
            for parameter, values in zip(model.to("cpu").parameters(), first, strict=True):
                parameter.copy_(values)
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    of_rows = 0 if settings.dp.ghost_clipping else 4 * trained * len(batch)
    return RoundCost(schedule_of(settings, len(data)).steps_per_round, seconds, of_rows)


@contextmanager
def steps_of(
    task: Task,
    model: nn.Module,
    data: Samples,
    settings: TrainingSettings,
    random_bytes: RandomBytes,
    *,
    team: Team | None = None,
) -> Iterator[Callable[[Tensor], None]]:
    """Yield a function that takes one step on the rows whose numbers it is given, perhaps none.

    Opacus' hooks stay on the model until the block ends.

    Raises:
        TrainingError: a layer that DP-SGD cannot train.
    """
    device = next(model.parameters()).device
    features, labels = moved(data.features, device), data.labels.to(device)
    with optimizer_of(task, model, data, settings) as (optimizer, backward):
        take_noise_from(NoiseSource(random_bytes), optimizer, team)

        def step(rows: Tensor) -> None:
            backward(in_memory(take(features, rows), device), labels[rows])
            try:
                optimizer.step()
            except ValueError as error:  # from the noise; no row can cause it, because their sum is bounded
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
    ghost = bool(settings.dp.ghost_clipping)
    if ghost:  # Opacus would copy each gradient, to add it to those of earlier passes: a step has one
        optimizer.accumulate = partial(_take_sums, optimizer)
    # Ghost clipping here has one backward pass and hooks of its own: see _ghost_backward
    through, pass_of = (model, _ghost_backward) if ghost else (wrapped, _plain_backward)

    def backward(features: Inputs, labels: Tensor) -> None:
        optimizer.zero_grad(set_to_none=True)
        if len(labels):
            pass_of(through, optimizer, row_loss, features, labels)
        else:  # a step without rows still gets its noise
            for parameter in optimizer.params:
                if ghost:
                    parameter.grad = torch.zeros_like(parameter)
                else:
                    parameter.grad_sample = torch.zeros((1, *parameter.shape), device=parameter.device)

    try:
        with _quiet(), _fit_inputs(model):
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


@contextmanager
def _fit_inputs(model: nn.Module) -> Iterator[None]:
    """Give convolutions what Opacus can follow, and refuse packed rows.

    Opacus cuts patches out of images as if in memory the channels always came before the pixels. What it is compared
    with has to see them so too, since dropout draws in the order of memory.
    """
    hooks = [
        # Not contiguous(): of one pixel, both orders count as that, and padding it keeps the wrong one.
        layer.register_forward_pre_hook(lambda _, given: tuple(part.flatten().view(part.shape) for part in given))
        for layer in model.modules()
        if type(layer) is nn.Conv2d
    ]
    hooks += [
        layer.register_forward_pre_hook(partial(_require_unpacked, model, name), with_kwargs=True)
        for name, layer in model.named_modules()
        if isinstance(layer, DPRNNBase)
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _require_unpacked(model: nn.Module, name: str, _: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Refuse rows that were sorted by length: Opacus would take a row's gradient here for that of another elsewhere."""
    if any(isinstance(part, PackedSequence) for part in (*given, *named.values())):
        hint = "give it padded rows, and take of row i what it gives at the row's last step: output[i, length - 1]"
        raise _unfit_layer(model, name, "is given packed rows, whose order DP-SGD loses", hint)


def unfit(model: nn.Module, error: Exception | None) -> TrainingError:
    """The first layer that is in the way, and what to use instead."""
    for name, module in model.named_modules():
        kind = next(kind.__name__ for kind in type(module).__mro__ if kind.__module__.startswith("torch.nn."))
        instead = next((use for start, use in _INSTEAD.items() if kind.startswith(start)), None)
        is_known = type(module) in ModuleValidator.VALIDATORS
        if instead and (_is_hidden(module) or (is_known and ModuleValidator.validate(module, strict=False))):
            return _unfit_layer(model, name, f"is {kind}, which DP-SGD cannot train", f"use {instead} instead")
    words = " ".join(str(error).split())
    return TrainingError(f"model {type(model).__name__}: DP-SGD cannot train it", hint=f"Opacus says: {words[:300]}")


def _is_hidden(module: nn.Module) -> bool:
    return isinstance(module, _HIDDEN) and any(map(_is_trained, module.parameters()))


def _unfit_layer(model: nn.Module, name: str, why: str, hint: str) -> TrainingError:
    return TrainingError(f"model {type(model).__name__}: layer {name or '(the model)'} {why}", hint=hint)


class _RowLoss(nn.Module):
    """A task's loss of each row by itself, (batch,)."""

    reduction = "mean"  # Opacus asks for it, of the criterion that it is given

    def __init__(self, task: Task) -> None:
        super().__init__()
        self._task = task

    def forward(self, outputs: Inputs, labels: Tensor) -> Tensor:
        losses = self._task.row_losses(outputs, labels)
        if losses.shape != labels.shape[:1]:
            shape = tuple(losses.shape)
            hint = f"row_losses of task {type(self._task).__name__} must return one number for each row"
            raise TrainingError(f"the losses of {len(labels)} rows have the shape {shape}", hint=hint)
        return losses


def _plain_backward(wrapped: Any, optimizer: Any, row_loss: nn.Module, features: Inputs, labels: Tensor) -> None:
    """The gradient of each row, which Opacus will clip; zeros for a row of which one is not finite."""
    losses = row_loss(wrapped(features), labels)
    # Opacus adds up the passes through a layer by position. Where one sees some of the rows, they are others' there.
    for name, layer in wrapped._module.named_modules():
        if any(part.shape[:1] != labels.shape[:1] for inputs in getattr(layer, "activations", ()) for part in inputs):
            raise _no_gradient_of_each(f"layer {name or '(the model)'}", isinstance(layer, nn.Embedding))
    losses.mean().backward()
    for name, parameter in wrapped._module.named_parameters():
        of_rows = getattr(parameter, "grad_sample", None)
        if parameter.requires_grad and not (isinstance(of_rows, Tensor) and len(of_rows) == len(labels)):
            layer = wrapped._module.get_submodule(name.rpartition(".")[0])
            raise _no_gradient_of_each(f"parameter {name}", isinstance(layer, nn.Embedding))
    sums = torch.stack([parameter.grad_sample.reshape(len(labels), -1).sum(1) for parameter in optimizer.params])
    unfit_rows = ~sums.isfinite().all(dim=0)  # a sum that overflows counts too: it depends on the row alone
    if unfit_rows.any():
        for parameter in optimizer.params:
            parameter.grad_sample[unfit_rows] = 0.0
    for parameter in optimizer.params:
        # Under autocast it has 16 bits. Its norm would have them too, and a clipped row be some thousandths too long.
        parameter.grad_sample = parameter.grad_sample.to(parameter.dtype)


def _ghost_backward(model: nn.Module, optimizer: Any, row_loss: nn.Module, features: Inputs, labels: Tensor) -> None:
    """The sum of clipped gradients, from what went into each linear layer and from the gradient of what came out.

    A row's gradient of a layer is the outer product of the two, so its norm is the product of theirs, and the sum over
    rows is one product of matrices. Both are made of the same numbers ("book-keeping", Bu et al. 2023): where a second
    backward pass makes the sum, as in Opacus, rounding can part it from what the first one measured, and with weights
    made for it a gradient that was measured as nothing comes out as anything. A row is measured again once it is
    scaled: rounding can lengthen one that has the smallest numbers of float32, which then counts as without gradient.

    Norms are those of float64. Squares in float32 can come out as nothing where the gradient is large.
    """
    layers = _through_layers(model, row_loss, features, labels)
    covered = [id(parameter) for layer, _, _ in layers for parameter in _trained(layer)]
    if sorted(covered) != sorted(map(id, optimizer.params)):
        raise _no_gradient_of_each()
    for _, inputs, outputs in layers:
        if inputs.dim() != 2 or outputs.dim() != 2:
            raise TrainingError("ghost clipping needs layers that see one vector of each row", hint=_NO_GHOST)
        if len(outputs) != len(labels):
            raise _no_gradient_of_each()
    of_inputs, bound = [_lengths(inputs) for _, inputs, _ in layers], float(optimizer.max_grad_norm)
    norms = _row_norms(layers, of_inputs)
    # A little below the bound, so that rounding seldom makes a scaled row longer
    # than it, and the row is not lost below.
    factors = (bound / (norms * (1 + 1e-5) + 1e-6)).clamp(max=1.0)
    scaled = [(layer, inputs, outputs * factors.to(outputs).unsqueeze(1)) for layer, inputs, outputs in layers]
    # The other rows count as rows without gradient. An error would reveal to the sender of the
    # model that there is one (decision 0018).
    fit = norms.isfinite() & (_row_norms(scaled, of_inputs) <= bound)
    for layer, inputs, outputs in scaled:
        rows = fit.to(outputs.device)
        given, clipped = inputs[rows], outputs[rows]
        for parameter in _trained(layer):
            parameter.grad = clipped.t() @ given if parameter is layer.weight else clipped.sum(dim=0)


_Passes = list[tuple[nn.Linear, Tensor, Tensor]]
"""(Layer, what went in, gradient of the rows' losses by what came out) of each pass through a linear layer."""


def _lengths(rows: Tensor) -> Tensor:
    lengths: Tensor = torch.linalg.vector_norm(rows.to("cpu", torch.float64), dim=1)
    return lengths


def _row_norms(passes: _Passes, of_inputs: list[Tensor]) -> Tensor:
    """Return the norm of each row's gradient over all layers; ``of_inputs`` are the lengths of what went in."""
    squares = torch.zeros(len(of_inputs[0]), dtype=torch.float64)
    for (layer, _, outputs), into in zip(passes, of_inputs, strict=True):
        out = _lengths(outputs)
        for parameter in _trained(layer):
            squares += (out * into if parameter is layer.weight else out).square()
    return squares.sqrt()


def _through_layers(model: nn.Module, row_loss: nn.Module, features: Inputs, labels: Tensor) -> _Passes:
    """The passes of these rows, with numbers as wide as the parameters': under autocast they have 16 bits."""
    passed: list[tuple[nn.Linear, Tensor, int, GradientEdge]] = []

    def keep(layer: nn.Module, given: tuple[Tensor, ...], named: dict[str, Tensor], output: Tensor) -> None:
        if not isinstance(layer, nn.Linear) or not output.requires_grad:
            raise _no_gradient_of_each()
        inputs = (*given, *named.values())[0].detach()
        passed.append((layer, inputs, inputs._version, get_gradient_edge(output)))

    layers = [module for module in model.modules() if isinstance(module, nn.Linear) and _trained(module)]
    hooks = [layer.register_forward_hook(keep, with_kwargs=True) for layer in layers]
    try:
        losses = row_loss(model(features), labels)
    finally:
        for hook in hooks:
            hook.remove()
    # The graph ends at the layers' outputs: gradients of weights, each of all rows, are not computed
    gradients = torch.autograd.grad(losses.sum(), [edge for *_, edge in passed], allow_unused=True)
    passes = []
    for (layer, inputs, version, _), gradient in zip(passed, gradients, strict=True):
        if gradient is None or inputs._version != version:  # written to after the layer had read it
            raise _no_gradient_of_each()
        passes.append((layer, inputs.to(layer.weight.dtype), gradient.to(layer.weight.dtype)))
    return passes


def _is_trained(parameter: nn.Parameter) -> bool:
    return parameter.requires_grad


def _trained(layer: nn.Linear) -> list[nn.Parameter]:
    return list(filter(_is_trained, layer.parameters(recurse=False)))


def _take_sums(optimizer: Any) -> None:
    for parameter in optimizer.params:
        parameter.summed_grad, parameter.grad = parameter.grad, None


def _no_gradient_of_each(what: str = "a layer", is_embedding: bool = False) -> TrainingError:
    """For rows whose parts would be clipped separately: such a row would move the sum by a multiple of the bound."""
    hint = "use every parameter in each step, once, and keep the rows in dimension 0 of every layer"
    if is_embedding:
        hint = "give it numbers for each row: of positions, torch.arange(length).expand(len(rows), length)"
    return TrainingError(f"{what} has no gradient of each row, or more than one", hint=hint)


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress warnings: Opacus's own noise is not from a CSPRNG (it is not used), inputs need no gradient, and for
    layers that it does not know it enters an autocast that does nothing.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Secure RNG turned off", category=UserWarning)
        warnings.filterwarnings("ignore", message="Full backward hook is firing", category=UserWarning)
        warnings.filterwarnings("ignore", message="In CPU autocast", category=UserWarning)
        yield


def _made_private(
    model: nn.Module, row_loss: nn.Module, data: Samples, settings: TrainingSettings, dp: NoiseSettings
) -> tuple[Any, Any]:
    """Opacus' model and optimizer. Its loader and its accountant are not used: rows and epsilon come from us."""
    # Opacus takes only counts from it: no row is ever loaded.
    loader = DataLoader(TensorDataset(data.labels), batch_size=settings.batch_size)
    given = [parameter for parameter in model.parameters() if parameter.requires_grad]
    rate, decay = settings.learning_rate, settings.weight_decay
    plain: torch.optim.Optimizer = (
        torch.optim.Adam(given, lr=rate, weight_decay=decay)
        if settings.optimizer == "adam"
        else torch.optim.SGD(given, lr=rate, weight_decay=decay, momentum=settings.momentum)
    )
    try:
        wrapped, optimizer, *_ = PrivacyEngine().make_private(
            module=model,
            optimizer=plain,
            criterion=row_loss,
            data_loader=loader,
            noise_multiplier=dp.noise_multiplier,
            max_grad_norm=dp.max_grad_norm,
            # Its sampler draws with a generator of torch, whose seed can be tried; rows come from `draw_rows`.
            poisson_sampling=False,
            grad_sample_mode="ghost" if dp.ghost_clipping else "hooks",
        )
        # Opacus multiplies by one over the batches and cuts off: of 49 rows in 49 batches that is 0
        optimizer.expected_batch_size = len(data) // len(loader)
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
        wrapped.remove_hooks()
    return wrapped, optimizer


def fitting(task: Task, model: nn.Module, data: Samples, settings: TrainingSettings) -> TrainingSettings:
    """Return the settings with the way to clip that the model takes, and refuse what DP-SGD cannot train.

    Where the settings leave it open, that is ghost clipping if the model has nothing but linear layers that see one
    vector of each row: it bounds rows as gradients of each row do, in less time and memory.

    Args and errors are those of :func:`require_separate_rows`.
    """
    if settings.dp is None:
        raise ValueError("no dp")
    trained = [module for module in model.modules() if any(map(_is_trained, module.parameters(recurse=False)))]
    if settings.dp.ghost_clipping is None and all(type(module) is nn.Linear for module in trained):
        with suppress(TrainingError, DataError):  # gradients of each row may do, and say what is in their way
            ghost = replace(settings, dp=replace(settings.dp, ghost_clipping=True))
            require_separate_rows(task, model, data, ghost)
            return ghost
    require_separate_rows(task, model, data, settings)
    return replace(settings, dp=replace(settings.dp, ghost_clipping=bool(settings.dp.ghost_clipping)))


def require_separate_rows(task: Task, model: nn.Module, data: Samples, settings: TrainingSettings) -> None:
    """Refuse, before the first round, what DP-SGD cannot train: its bound holds for rows that do not mix.

    The task itself says that it prepares each row separately. Layers that Opacus knows to mix rows are refused by name.
    Everything else is tried on a few rows of the site, with the model as it is and with its parameters moved at random:
    what the model and the loss give for a row must not depend on the other rows, their number or its position, and a
    clipped row must have its own gradient, only shorter. This finds mistakes; it is no proof.

    Raises:
        TrainingError: names the layer and what to use instead.
        DataError: the task's own code fails.
    """
    if not task.separate_rows:
        raise TrainingError(
            f"task {type(task).__name__}: it does not say that it prepares each row by itself, with public numbers",
            hint='where it does, set separate_rows = True; Fed-Heart does with task.options.scaling = "public"',
        )
    for name, module in model.train().named_modules():
        _require_fit_layer(model, name, module)
    faults = ModuleValidator.validate(model, strict=False)
    if faults or any(map(_is_hidden, model.modules())):
        raise unfit(model, faults[0] if faults else None)
    for name, module in model.named_modules():
        _require_no_buffers(model, name, module)
    first = [parameter.detach().clone() for parameter in model.parameters()]
    with _fit_inputs(model):
        if settings.dp is not None and not settings.dp.ghost_clipping:
            _require_no_writes(task, model, data)
        try:
            _try_model(task, model, data, settings)
            with seeded_torch(1, torch.device("cpu")), torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(torch.randn_like(parameter), alpha=_MOVE)
            _try_model(task, model, data, settings)
        finally:
            with torch.no_grad():
                for parameter, values in zip(model.parameters(), first, strict=True):
                    parameter.copy_(values)


def _require_fit_layer(model: nn.Module, name: str, module: nn.Module) -> None:
    if isinstance(module, torch.jit.ScriptModule):
        hint = "build the model of torch.nn modules; securefda export writes TorchScript of the trained model"
        raise _unfit_layer(model, name, "is TorchScript, which DP-SGD cannot train", hint)
    if type(module).__name__ == "OptimizedModule":  # of torch._dynamo, whose import takes seconds
        hint = "return the model from the task's model() without torch.compile"
        raise _unfit_layer(model, name, "is compiled, which DP-SGD cannot train", hint)
    if isinstance(module, nn.Embedding) and module.padding_idx is not None and module.weight.requires_grad:
        why = "has a padding_idx, and noise would move the vector that stays at zero there"
        hint = "leave padding_idx out, and multiply what the layer gives by (ids != padding).unsqueeze(-1)"
        raise _unfit_layer(model, name, why, hint)
    if isinstance(module, nn.Embedding) and module.max_norm is not None:
        why = "has a max_norm, which shortens the vectors of the words in the rows, without noise"
        hint = "leave max_norm out, and shorten what the layer gives instead of its weights"
        raise _unfit_layer(model, name, why, hint)
    if type(module) in _CONVOLUTIONS and module.padding_mode != "zeros" and any(map(_is_trained, module.parameters())):
        why = f"pads by padding_mode {module.padding_mode!r}, and Opacus computes the gradient of zeros there"
        hint = "pad before it, by ReflectionPad, ReplicationPad or CircularPad of torch.nn, and leave padding out"
        raise _unfit_layer(model, name, why, hint)
    if isinstance(module, _BatchNorm) and not any(map(_is_trained, module.parameters())):
        # In evaluation mode too: a site that measures a model estimates the statistics from its rows, without noise
        why = "is a frozen norm whose statistics come from the site's rows"
        hint = "fold it into the layer before: torch.nn.utils.fusion.fuse_conv_bn_eval or fuse_linear_bn_eval"
        if not module.affine:
            why = "is a norm without parameters whose statistics come from the site's rows"
            hint = f"use torch.nn.GroupNorm instead; in a frozen encoder {hint}"
        raise _unfit_layer(model, name, why, hint)
    if type(module) is nn.LayerNorm and module.bias is None and any(map(_is_trained, module.parameters())):
        why = "has a weight and no bias, and Opacus computes the gradients of both or of neither"
        raise _unfit_layer(model, name, why, "leave bias=False out")


def _require_no_buffers(model: nn.Module, name: str, module: nn.Module) -> None:
    """Refuse a layer in which a pass may write to a buffer what no noise protects. Opacus refuses it without a name."""
    buffers = [buffer for buffer, _ in module.named_buffers()]
    if not (buffers and any(map(_is_trained, module.parameters(recurse=False)))):
        return
    why = f"has parameters that are trained and buffers ({first_of(buffers, 2)}), and DP-SGD takes no layer with both"
    hint = "put its own parameters into one module and the buffers into another, neither inside the other"
    if any(buffer.rpartition(".")[2] in _OF_SPECTRAL_NORM for buffer in buffers):
        hint = "leave spectral_norm out, or use torch.nn.utils.parametrizations.weight_norm"
    raise _unfit_layer(model, name, why, hint)


def _require_no_writes(task: Task, model: nn.Module, data: Samples) -> None:
    """Refuse a model that changes in place what a layer with parameters gave: Opacus' hooks do not survive that."""
    given: list[tuple[str, Tensor, int]] = []

    def keep(name: str, _layer: nn.Module, _inputs: Any, output: object) -> None:
        if isinstance(output, Tensor):
            given.append((name, output, output._version))

    hooks = [
        module.register_forward_hook(partial(keep, name))
        for name, module in model.named_modules()
        if any(map(_is_trained, module.parameters(recurse=False)))
    ]
    try:
        with seeded_torch(0, torch.device("cpu")), torch.no_grad(), task_code(type(task), "the model"):
            model(in_memory(take(data.features, slice(_PROBES))))
    finally:
        for hook in hooks:
            hook.remove()
    for name, output, version in given:
        if output._version != version:
            why = "gives what the model then changes in place, which DP-SGD cannot follow"
            raise _unfit_layer(model, name, why, "write x = x + f(x) for x += f(x), and ReLU() for ReLU(inplace=True)")


def _try_model(task: Task, model: nn.Module, data: Samples, settings: TrainingSettings) -> None:
    features, labels = in_memory(take(data.features, slice(_PROBES))), data.labels[:_PROBES]
    order = list(range(len(labels)))
    model.eval()  # dropout draws by position
    alone = _outputs_of(task, model, take(features, [0]), labels[:1], 0)
    for rows in (order, [*order[1:], 0], [0, *order[-1:] * 4]):  # among others, behind them, beside copies of one
        _require_same(model, alone, _outputs_of(task, model, take(features, rows), labels[rows], rows.index(0)))
    model.train()
    # Others of the site's rows, since a number of the probe's own making may be no word, or out of the model's range
    last = len(data) - 1 if len(data) > 2 else 0
    beside = [0, *[last] * (len(labels) - 1)]
    others = _outputs_of(task, model, in_memory(take(data.features, torch.tensor(beside))), data.labels[beside], 0)
    _require_same(model, _outputs_of(task, model, features, labels, 0), others)
    _require_losses_agree(task, model, data)
    for rows in [*([row] for row in order), order, order[::-1]]:  # together too: a layer may see them in its own order
        _require_own_gradients(task, model, Samples(take(features, rows), labels[rows]), settings)


def _require_same(model: nn.Module, first: Tensor, second: Tensor) -> None:
    if not torch.allclose(first, second, rtol=1e-4, atol=1e-5, equal_nan=True):
        raise TrainingError(
            f"model {type(model).__name__}: what it or its loss says of a row depends on the rows beside it, so that "
            "no row's gradient bounds what the row changes",
            hint="use layers that treat each row by itself; torch.nn.GroupNorm instead of a norm over the batch",
        )


def _outputs_of(task: Task, model: nn.Module, features: Inputs, labels: Tensor, row: int) -> Tensor:
    with seeded_torch(0, torch.device("cpu")), torch.no_grad(), task_code(type(task), "the model"):
        outputs = model(features)
        losses = task.row_losses(outputs, labels)
        of_row = [*named_tensors(take(outputs, row), "").values(), losses[row]]
        return torch.cat([tensor.flatten().float() for tensor in of_row])


def _require_losses_agree(task: Task, model: nn.Module, data: Samples) -> None:
    """Refuse a task that overrides only one of ``loss`` and ``row_losses``: it would train on two different losses."""
    features, labels = in_memory(take(data.features, slice(_PROBES))), data.labels[:_PROBES]
    with seeded_torch(0, torch.device("cpu")), torch.no_grad(), task_code(type(task), "row_losses"):
        outputs = model(features)
        own = task.row_losses(outputs, labels)
        one_by_one = [task.loss(take(outputs, [row]), labels[[row]]) for row in range(len(labels))]
    if not torch.allclose(own, torch.stack(one_by_one).to(own), rtol=1e-4, atol=1e-5, equal_nan=True):
        raise TrainingError(
            f"task {type(task).__name__}: row_losses says otherwise than loss does of each row",
            hint="override both, or neither",
        )


def loss_lines(task: Task, model: nn.Module, data: Samples) -> list[str]:
    """Return a line for the operator if the loss of a batch is not the mean over its rows, which noise trains on."""
    count = min(len(data), _COMPARED)
    rows = torch.arange(count) * len(data) // count  # files are often sorted by label
    features, labels = in_memory(take(data.features, rows)), data.labels[rows]
    with seeded_torch(0, torch.device("cpu")), torch.no_grad(), task_code(type(task), "loss"):
        outputs = model.eval()(features)
        mean, of_rows = task.loss(outputs, labels), task.row_losses(outputs, labels).mean()
    if torch.allclose(mean.to(of_rows), of_rows, rtol=1e-3, atol=1e-5):
        return []
    return [
        "the loss of a batch is not the mean of its rows' losses, which training with noise takes: the weights of "
        "classes cancel in the loss of one row; multiply each row's loss by its weight, and return their mean"
    ]


def _require_own_gradients(task: Task, model: nn.Module, rows: Samples, settings: TrainingSettings) -> None:
    """Opacus sees only what passes through layers. A parameter used outside of them would escape the clip."""
    own = _gradients(task, model, rows)
    lengths = torch.linalg.vector_norm(own, dim=1)
    compared = lengths > _SHORTEST_PROBE
    if settings.dp is None or not bool(compared.any() and lengths.isfinite().all()):
        return
    bound = float(lengths[compared].min()) / 2
    half = replace(settings, batch_size=len(rows), dp=replace(settings.dp, max_grad_norm=bound))
    try:
        with (
            seeded_torch(0, torch.device("cpu")),
            optimizer_of(task, model, rows, half) as (optimizer, backward),
            task_code(type(task), "training"),
        ):
            backward(rows.features, rows.labels)
            optimizer.pre_step()
            clipped = torch.cat([parameter.summed_grad.flatten() for parameter in optimizer.params])
    except DataError as error:  # without Opacus the same rows went through
        why = "has no gradient of each row that Opacus can compute"
        raise _unfit_layer(model, _layer_at(model, error.__cause__ or error), why, f"{_PLAIN}; {error.hint}") from error
    if not torch.allclose(clipped, (bound / lengths).clamp(max=1.0) @ own, rtol=1e-2, atol=2e-3 * bound):
        raise TrainingError(
            f"model {type(model).__name__}: the gradient of a row that Opacus clips is not the row's gradient",
            hint="use every parameter in the layer that has it, nowhere else; keep rows in dimension 0, in their order",
        )


def _layer_at(model: nn.Module, error: BaseException) -> str:
    """The name of the layer whose gradient Opacus was at when it failed; empty for the model."""
    names = {id(module): name for name, module in model.named_modules()}
    frames = [frame.f_locals for frame, _ in traceback.walk_tb(error.__traceback__)]
    found = [names.get(id(known.get(key))) for known in frames for key in ("module", "layer")]
    return next((name for name in reversed(found) if name is not None), "")


def _gradients(task: Task, model: nn.Module, rows: Samples) -> Tensor:
    """The gradient of all federated parameters for each of b rows, (b, m), computed without Opacus."""
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    with seeded_torch(0, torch.device("cpu")), task_code(type(task), "training"):
        losses = task.row_losses(model(rows.features), rows.labels)
        parameters = [parameter for _, parameter in named]
        of_rows = [torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True) for loss in losses]
    for (name, _), *parts in zip(named, *of_rows, strict=True):
        if all(part is None for part in parts):
            raise TrainingError(
                f"model {type(model).__name__}: parameter {name} has no part in the loss, so it would only gain noise",
                hint="leave it out, or set its requires_grad to False",
            )
    return torch.stack([_joined(parts, parameters) for parts in of_rows])


def _joined(parts: Iterable[Tensor | None], parameters: list[nn.Parameter]) -> Tensor:
    pairs = zip(parts, parameters, strict=True)
    return torch.cat([(torch.zeros_like(of) if part is None else part).flatten() for part, of in pairs])
