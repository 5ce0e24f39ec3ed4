"""What the rows of the target say of sigma^2, beside its training of the round; `securefda.rules.variance` has the law.

Both estimates take the rows alone into account that train, and what they find is one number. Neither changes what the
target trains: they draw from seeds of their own.
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
from securefda.training.seeds import Seed, derive_seed, generator_of
from securefda.training.settings import TrainingSettings


class _StandingStill:
    """An optimizer that notes gradients and moves nothing."""

    def __init__(self, statistics: GradientStatistics, weight_decay: float) -> None:
        self._statistics, self._weight_decay = statistics, weight_decay

    def step(self, values: Tensor, gradient: Tensor) -> None:
        self._statistics.add(gradient.add(values, alpha=self._weight_decay).cpu().numpy())


def fixed_point_variance(
    task: Task, model: nn.Module, received: Vector, data: Samples, *, settings: TrainingSettings, seed: Seed, site: str
) -> float:
    """sigma^2 of the mean step, in squared parameter units, from the gradients of one epoch's batches at ``received``.

    It costs as much as an epoch.

    Args:
        task, model, received, data, settings, seed, site: as for ``train_local``.

    Raises:
        TrainingError: an epoch has one batch; also as for ``train_local``.
        DataError: as there.
    """
    require_batches(site, len(data), settings)
    statistics = GradientStatistics(len(received))
    still = _StandingStill(statistics, settings.weight_decay)
    epoch, weights = replace(settings, epochs=1, max_steps=0), gradient_weights(settings, settings.steps(len(data)))
    train_local(task, model, received, data, settings=epoch, seed=seed, site=site, optimizer=still)
    of_a_batch = statistics.batch_variance(over_length=ADAM_EPSILON if settings.optimizer == "adam" else None)
    return step_variance(of_a_batch, weights, statistics.count)


def cross_fitted_variance(
    task: Task, model: nn.Module, received: Vector, data: Samples, *, settings: TrainingSettings, seed: Seed, site: str
) -> float:
    """sigma^2 of the mean step, in squared parameter units, from a run on each half of the rows.

    Halves are drawn at random. Their batches are half as large, so that each run has as many steps, and a row has as
    many, as in the training of the round; about as many where rows or batches cannot be halved. It costs as much.

    Args:
        task, model, received, data, settings, seed, site: as for ``train_local``.

    Raises:
        TrainingError: the halves are too small; also as for ``train_local``.
        DataError: as there.
    """
    require_halves(site, len(data), settings)
    order, half = torch.randperm(len(data), generator=generator_of(derive_seed(seed, "halves"))), halved(settings)
    steps = []
    for number, rows in enumerate((order[: len(data) // 2].sort().values, order[len(data) // 2 :].sort().values)):
        part, own = Samples(data.features[rows], data.labels[rows]), derive_seed(seed, "half", number)
        result = train_local(task, model, received, part, settings=half, seed=own, site=site)
        steps.append(result.update / result.steps)
    return halves_variance(*steps)


def halved(settings: TrainingSettings) -> TrainingSettings:
    """How a run on half of the rows trains."""
    return replace(settings, batch_size=max(settings.smallest_batch, settings.batch_size // 2))


def require_batches(site: str, samples: int, settings: TrainingSettings) -> None:
    """Raise TrainingError where an epoch over ``samples`` rows has fewer than two batches."""
    if len(settings.batch_sizes(samples)) < 2:
        raise TrainingError(
            f"{site}: {counted(samples, 'row')} in batches of {settings.batch_size} make one batch in an epoch, "
            "and the variance of gradients at one point needs two",
            hint='lower training.batch-size, or set strategy.variance to "steps" or "cross-fitted"',
        )


def require_halves(site: str, samples: int, settings: TrainingSettings) -> None:
    """Raise TrainingError where half of ``samples`` rows are too few for a batch."""
    if samples // 2 < settings.smallest_batch:
        raise TrainingError(
            f"{site}: {counted(samples, 'row')} cannot be halved, a batch needs at least {settings.smallest_batch}",
            hint='give the site more rows, or set strategy.variance to "steps"',
        )
