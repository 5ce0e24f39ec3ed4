"""One round of training at one site by DP-SGD (Abadi et al. 2016). Import it where it is needed: it imports Opacus.

Opacus computes and clips the gradient of each row. Three parts of Opacus are replaced: its noise, by that of
:mod:`securefda.privacy.noise`; its sampler, by `draw_rows` below; and the mean loss, by one per row, so that no row has
a part in another's gradient.

Everything that comes out of a round is computed from noisy gradients, the step count and the number of rows. There is
no training loss and no training accuracy.

Each step draws every row by itself (Poisson sampling), with bits of the operating system. The sampling rate lowers
epsilon only as long as it is unknown which rows a step drew. Opacus' own sampler takes its bits from a generator of
torch, whose 64-bit seed would be all that hides them.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from securefda.errors import ConfigError, TrainingError
from securefda.privacy.planning import Schedule
from securefda.privacy.private_steps import RandomBytes, steps_of
from securefda.protocol.contribution import LocalResult
from securefda.protocol.encoding import Vector
from securefda.tasks import Samples, Task, task_code
from securefda.training.device import choose_device
from securefda.training.local import StepObserver, require_steps
from securefda.training.seeds import secret_torch
from securefda.training.settings import TrainingSettings
from securefda.training.vectors import FlatModel

_WORD_BYTES = 8


def draw_rows(samples: int, rate: float, random_bytes: Callable[[int], bytes] = os.urandom) -> NDArray[np.int64]:
    """Return the rows of one step, ascending; none is an answer too.

    Args:
        samples: number of rows, >= 1.
        rate: in (0, 1], the probability of each; what is drawn with is less by at most 2**-64.
        random_bytes: ``random_bytes(n)`` returns n of them.

    Raises:
        ValueError: ``samples`` or ``rate`` is out of bounds, or ``random_bytes`` gave another number of bytes.
    """
    if samples < 1 or not 0 < rate <= 1:
        raise ValueError(f"rows are drawn from at least one and with a rate in (0, 1], not {samples} and {rate}")
    if rate == 1:
        return np.arange(samples)
    drawn = random_bytes(_WORD_BYTES * samples)
    if len(drawn) != _WORD_BYTES * samples:
        raise ValueError(f"the random source returned {len(drawn)} bytes instead of {_WORD_BYTES * samples}")
    below = np.uint64(int(rate * 2.0**64))  # exact: a float64 times a power of two
    return np.flatnonzero(np.frombuffer(drawn, dtype="<u8") < below)


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
    site: str,
    fewest_steps: int = 1,
    on_step: StepObserver | None = None,
    random_bytes: RandomBytes = os.urandom,
) -> LocalResult:
    """Train from the received model on one site's rows for one round, as ``train_local`` does, by DP-SGD.

    Each step draws every row with probability 1 / (batches of an epoch), scales each row's gradient down to
    ``settings.dp.max_grad_norm`` over all layers, adds noise, and divides by the expected number of rows; a row
    whose gradient is not finite has none. Two calls with the same arguments give different updates. Memory: with
    per-sample gradients as many vectors of length m as a step drew rows; with ghost clipping none of that kind, but
    it takes linear layers alone and scales a row down by powers of two, to between half the norm and the norm.

    Args:
        task: gives the loss of each row by itself, ``row_losses``.
        model: as for ``train_local``; rows must not mix in it, see :mod:`securefda.privacy.private_checks`.
        received: the global model, (m,) float32; not changed.
        data: the site's training rows.
        settings: how to train; ``dp`` is set.
        site: site id, for messages.
        fewest_steps: refuse to train with fewer.
        on_step: called after each step, in order, with what noise has touched already.
        random_bytes: where noise, the rows of each step and what layers draw come from; anything but ``os.urandom`` is
            for tests. Dropout draws by a row's place in its step: where others know what it draws, a row more would
            change the gradients of all behind it.

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
    flat = FlatModel(model, received, device)
    flat.release_gradient()
    flat.model.train()
    with (
        secret_torch(random_bytes, device),
        steps_of(task, flat.model, data, settings, random_bytes) as step,
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
