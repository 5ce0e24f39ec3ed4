"""Estimates of sigma^2 at the target from more training than that of the round; see `securefda.rules.variance`.

Both estimates use the training rows only and return one number. They draw from their own seeds, so the training of the
round is the same with and without them.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from securefda.errors import TrainingError
from securefda.protocol.encoding import Vector
from securefda.rules.variance import GradientStatistics, halves_variance, step_variance
from securefda.tasks import Samples, Task
from securefda.text import counted
from securefda.training.local import train_local
from securefda.training.optimizers import ADAM_EPSILON, gradient_weights
from securefda.training.seeds import Seed, derive_seed, new_generator
from securefda.training.training_settings import TrainingSettings


class _GradientRecorder:
    """An optimizer that records gradients and moves nothing."""

    def __init__(self, statistics: GradientStatistics, weight_decay: float) -> None:
        self._statistics, self._weight_decay = statistics, weight_decay

    def step(self, values: Tensor, gradient: Tensor) -> None:
        self._statistics.add(gradient.add(values, alpha=self._weight_decay).cpu().numpy())


def fixed_point_variance(
    task: Task, model: nn.Module, received: Vector, data: Samples, *, settings: TrainingSettings, seed: Seed, site: str
) -> float:
    """Estimate sigma^2 of the mean step, in squared parameter units, from one epoch's gradients at ``received``.

    It costs as much as an epoch.

    Args:
        task, model, received, data, settings, seed, site: as for ``train_local``.

    Raises:
        TrainingError: an epoch has one batch; also as for ``train_local``.
        DataError: as for ``train_local``.
    """
    require_batches(site, len(data), settings)
    statistics = GradientStatistics(len(received))
    recorder = _GradientRecorder(statistics, settings.weight_decay)
    epoch, weights = replace(settings, epochs=1, max_steps=0), gradient_weights(settings, settings.steps(len(data)))
    train_local(task, model, received, data, settings=epoch, seed=seed, site=site, optimizer=recorder)
    batch_variance = statistics.batch_variance(over_length=ADAM_EPSILON if settings.optimizer == "adam" else None)
    return step_variance(batch_variance, weights, statistics.count)


def cross_fitted_variance(
    task: Task, model: nn.Module, received: Vector, data: Samples, *, settings: TrainingSettings, seed: Seed, site: str
) -> float:
    """Estimate sigma^2 of the mean step, in squared parameter units, from a training on each half of the rows.

    The halves are drawn at random. Their batches are half as large, so that each training has as many steps, and each
    row is in as many, as in the round; about as many if rows or batches cannot be halved. It costs as much as a round.

    Args:
        task, model, received, data, settings, seed, site: as for ``train_local``.

    Raises:
        TrainingError: the halves are too small; also as for ``train_local``.
        DataError: as for ``train_local``.
    """
    require_halves(site, len(data), settings)
    order = torch.randperm(len(data), generator=new_generator(derive_seed(seed, "halves")))
    half = replace(settings, batch_size=max(settings.smallest_batch, settings.batch_size // 2))
    steps = []
    for number, rows in enumerate((order[: len(data) // 2].sort().values, order[len(data) // 2 :].sort().values)):
        part, own = data.at(rows), derive_seed(seed, "half", number)
        result = train_local(task, model, received, part, settings=half, seed=own, site=site)
        steps.append(result.update / result.steps)
    return halves_variance(*steps)


def require_batches(site: str, samples: int, settings: TrainingSettings) -> None:
    """Raise TrainingError if an epoch over ``samples`` rows has fewer than two batches."""
    if len(settings.batch_sizes(samples)) < 2:
        raise TrainingError(
            f"{site}: {counted(samples, 'row')} in batches of {settings.batch_size} make one batch in an epoch, "
            "and the variance of gradients at one point needs two",
            hint='lower training.batch-size, or set strategy.variance to "steps" or "cross-fitted"',
        )


def require_halves(site: str, samples: int, settings: TrainingSettings) -> None:
    """Raise TrainingError if half of ``samples`` rows are too few for a batch."""
    if samples // 2 < settings.smallest_batch:
        raise TrainingError(
            f"{site}: {counted(samples, 'row')} cannot be halved, a batch needs at least {settings.smallest_batch}",
            hint='give the site more rows, or set strategy.variance to "steps"',
        )
