"""One round of training at one site by DP-SGD (Abadi et al. 2016). Import it where it is needed: it imports Opacus.

Opacus computes and clips the gradient of each row. What it is given here instead of its own: noise
(:mod:`securefda.dp.noise_optimizer`), the rows of each step (:mod:`securefda.dp.sampling`), and a loss that is taken
row by row, so that no row has a part in another's gradient.

Everything that comes out of a round is computed from noisy gradients, the step count and the number of rows. There is
no training loss and no training accuracy.
"""

from __future__ import annotations

import os

import numpy as np
import torch
from torch import nn

from securefda.dp.planning import Schedule
from securefda.dp.sampling import draw_rows
from securefda.errors import ConfigError, TrainingError
from securefda.tasks import Samples, Task, task_code
from securefda.training.device import choose_device
from securefda.training.local import LocalResult, StepObserver, require_steps
from securefda.training.private_steps import RandomBytes, steps_of
from securefda.training.seeds import secret_torch
from securefda.training.settings import TrainingSettings
from securefda.training.vectors import FlatModel, Vector


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
        model: as for ``train_local``; rows must not mix in it, see :mod:`securefda.training.private_checks`.
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
