"""BatchNorm: weight and bias are federated like other parameters, running statistics stay at their site.

A layer's ``running_mean`` and ``running_var`` are moments of a site's rows, and nothing of them is in the vector that
travels. Training does not read them: it normalises by the batch. A model is evaluated with moments of the rows of the
site that evaluates it (AdaBN, Li et al. 2017), see :func:`estimate_statistics`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from securefda.errors import TrainingError
from securefda.protocol.encoding import Vector
from securefda.tasks import Rows, Task, task_code
from securefda.tasks.inputs import batched, in_memory
from securefda.training.memory import PersonalMemory, statistics_key
from securefda.training.training_settings import TrainingSettings

_MOST_ROWS = 1024
_INSTEAD = "use torch.nn.GroupNorm instead"

Statistic = NDArray[np.float32] | NDArray[np.int64]
"""A running mean or variance, or the number of batches behind them."""


def batch_norm_layers(model: nn.Module) -> list[tuple[str, _BatchNorm]]:
    """Return the name and module of every BatchNorm layer of a model, in the order of ``named_modules``."""
    return [(name, module) for name, module in model.named_modules() if isinstance(module, _BatchNorm)]


def require_fit_norms(model: nn.Module) -> None:
    """Check that sites can federate every layer that normalises over rows.

    Raises:
        TrainingError: a BatchNorm without running statistics, without a shape, or with statistics that are not float32
            on the CPU; a SyncBatchNorm; another norm with running statistics.
    """
    for name, module in model.named_modules():
        if not isinstance(module, _NormBase):
            continue
        layer = f"model {type(model).__name__}: layer {name or '(the model)'} is {type(module).__name__}"
        if not isinstance(module, _BatchNorm):
            if module.track_running_stats:
                raise TrainingError(f"{layer}, whose running statistics are not federated parameters", hint=_INSTEAD)
            continue
        if isinstance(module, nn.SyncBatchNorm):
            why = f"{layer}, which takes its statistics over several processes"
            raise TrainingError(why, hint="use torch.nn.BatchNorm1d, BatchNorm2d or BatchNorm3d, or torch.nn.GroupNorm")
        mean, variance = module.running_mean, module.running_var
        if mean is None or variance is None:
            why = f"{layer} with track_running_stats=False: what it says of a row depends on the rows evaluated with it"
            raise TrainingError(why, hint="leave track_running_stats on, or use torch.nn.GroupNorm instead")
        if isinstance(mean, nn.parameter.UninitializedBuffer):
            raise TrainingError(f"{layer}, which has no shape yet", hint="give the layer its input size")
        for statistic in (mean, variance):
            if statistic.dtype != torch.float32 or statistic.device.type != "cpu":
                why = f"{layer}, whose running statistics are {statistic.dtype} on {statistic.device}"
                raise TrainingError(why, hint="make the layer torch.float32, on the CPU")


def settings_for_model(settings: TrainingSettings, model: nn.Module) -> TrainingSettings:
    """Return the settings with the smallest batch that ``model`` allows: two rows with BatchNorm, else one."""
    return replace(settings, smallest_batch=2) if batch_norm_layers(model) else settings


# --- the statistics themselves ----------------------------------------------------------------------------------------


def running_statistics(model: nn.Module) -> dict[str, Tensor]:
    """Return the running statistics of all BatchNorm layers by their names in PyTorch; empty without such a layer."""
    return {
        f"{name}.{kind}".lstrip("."): buffer
        for name, module in batch_norm_layers(model)
        for kind, buffer in module.named_buffers(recurse=False)
    }


def statistics_to_bytes(model: nn.Module) -> bytes:
    """Return the running statistics in their order, as float32 and int64, little-endian."""
    return b"".join(buffer.detach().cpu().numpy().tobytes() for buffer in running_statistics(model).values())


def bytes_to_statistics(state: bytes, model: nn.Module) -> None:
    """Load the statistics that :func:`statistics_to_bytes` returned into ``model``.

    Raises:
        TrainingError: they belong to another model.
    """
    buffers = running_statistics(model)
    needed = sum(buffer.numel() * buffer.element_size() for buffer in buffers.values())
    if len(state) != needed:
        raise TrainingError(
            f"what was kept of this site's BatchNorm statistics has {len(state)} bytes, and {needed} are needed",
            hint="give the settings of that run, or another --out folder",
        )
    place = 0
    with torch.no_grad():
        for buffer in buffers.values():
            kind = "<f4" if buffer.is_floating_point() else "<i8"
            values = np.frombuffer(state, dtype=kind, count=buffer.numel(), offset=place)
            buffer.copy_(torch.from_numpy(values.copy()).view(buffer.shape))
            place += values.nbytes


def estimate_statistics(task: Task, model: nn.Module, rows: Rows) -> None:
    """Replace the running statistics of ``model``, as it stands, by moments of ``rows``; without BatchNorm, do nothing.

    The rows pass once, in their order, in the fewest parts of at most 1,024 that differ by no more than one row. Every
    BatchNorm layer normalises by the part, and all other layers are in evaluation mode. A layer's ``running_mean`` and
    ``running_var`` become means over the parts, whatever its momentum and its earlier statistics. So on the CPU, with
    the same number of threads, the same rows and parameters give the same bits.

    Args:
        task: the model's task, for messages.
        model: the model; it is left in evaluation mode.
        rows: at least 2, with labels or without.

    Raises:
        DataError: the task's own code, or torch on its behalf, fails.
    """
    norms = [norm for _, norm in batch_norm_layers(model)]
    if not norms:
        return
    device = next(model.parameters()).device
    with torch.no_grad(), task_code(type(task), "evaluation"), _estimating(model, norms):
        for part in batched(rows.features, _MOST_ROWS, even=True):
            model(in_memory(part, device))


@contextmanager
def normalising_by_batch(model: nn.Module) -> Iterator[None]:
    """Let the BatchNorm layers of ``model`` normalise by the batch in the block, and keep their running statistics."""
    norms = [norm for _, norm in batch_norm_layers(model)]
    for norm in norms:
        # Else batches of training would move what the site keeps for evaluation.
        norm.track_running_stats = False
        norm.train()
    try:
        yield
    finally:
        for norm in norms:
            norm.track_running_stats = True  # `require_fit_norms` refuses others
            norm.eval()


@contextmanager
def _estimating(model: nn.Module, norms: list[_BatchNorm]) -> Iterator[None]:
    """Put a model into evaluation mode, but let its BatchNorm layers average anew over all batches in the block."""
    momenta = [norm.momentum for norm in norms]
    model.eval()
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # PyTorch's cumulative mean
        norm.train()
    try:
        yield
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
        model.eval()


class SiteStatistics:
    """The running statistics of a site's model, from round to round and for evaluation.

    A model without BatchNorm has none, and no method does anything.

    Args:
        task: the model's task, for messages.
        model: the model, newly built; its statistics are those of the first round.
        rows: the site's training rows.
        memory: keeps the statistics between rounds.
    """

    def __init__(self, task: Task, model: nn.Module, rows: Rows, memory: PersonalMemory) -> None:
        self._task, self._model, self._rows, self._memory = task, model, rows, memory
        self._first = statistics_to_bytes(model)
        self._estimated: tuple[Vector, bytes] | None = None

    def recall(self, run_id: str, round_number: int) -> None:
        """Load the statistics of this site's last round before ``round_number`` into the model.

        Raises:
            TrainingError: they belong to another model.
        """
        if self._first:
            kept = self._memory.personal(statistics_key(run_id), round_number)
            bytes_to_statistics(self._first if kept is None else kept, self._model)

    def keep(self, run_id: str, round_number: int) -> None:
        """Keep the model's present statistics as those of a round."""
        if self._first:
            self._memory.keep_personal(statistics_key(run_id), round_number, statistics_to_bytes(self._model))

    def estimate(self, vector: Vector) -> None:
        """Load the statistics for evaluation, see :func:`estimate_statistics`; those of the last vector are cached.

        Args:
            vector: the model's present parameters, float32 (m,).
        """
        if not self._first:
            return
        if self._estimated is not None and np.array_equal(self._estimated[0], vector):
            bytes_to_statistics(self._estimated[1], self._model)
            return
        estimate_statistics(self._task, self._model, self._rows)
        # A copy: the vector is that of the model, which trains on.
        self._estimated = (vector.copy(), statistics_to_bytes(self._model))
