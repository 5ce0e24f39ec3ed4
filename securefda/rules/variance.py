"""sigma^2, the variance of the target's mean step, from other draws than the steps themselves.

The rules need sigma^2 = E ||x-bar - E x-bar||^2, over draws of the target's rows. The paper takes S_x / B, as if the
steps x_1..x_B were independent draws of one mean. They are not: the gradient falls from step to step, which adds to
S_x; in the second epoch the rows repeat, which takes from it; and an optimiser's memory ties each step to those before.

Two estimates without these faults. Both are one number, which takes the place of S_x / B in every formula, and so a
source needs to know neither which one it is nor anything more of the target:

    fixed-point     gamma_1..gamma_C, the gradients of the C batches of one epoch at the received model, have disjoint
                    rows and one mean. The mean step is about sum_j a_j gamma_j(j), with a_j what the optimiser makes of
                    the gradient of step j, and so its variance follows from that of a batch; see `step_variance`.
    cross-fitted    x-bar' and x-bar'' of two runs, each on half of the rows in batches of half the size, are
                    independent. Each has twice the variance of x-bar, and so ||x-bar' - x-bar''||^2 / 4 is without
                    bias, whatever the optimiser.

With halves, d^2 = ||x-bar - gbar||^2 - sigma^2 is the product <x-bar' - gbar, x-bar'' - gbar> for x-bar their mean:
noise that is independent in both factors drops out of products.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from securefda.rules import checks
from securefda.rules.blocks import Vector, blocks, squared_norm


class Variance(StrEnum):
    """From what the target estimates sigma^2. The values stand in configurations, in no header."""

    STEPS = "steps"
    """From its steps of the round, as the paper does."""

    FIXED_POINT = "fixed-point"
    """From the gradients of one epoch's batches at the received model."""

    CROSS_FITTED = "cross-fitted"
    """From two more runs, each on half of the rows."""


class GradientStatistics:
    """Running mean and mean square, coordinate by coordinate, of gradients at one point; two float64 vectors.

    Feed the gradient of every batch of an epoch to `add`, in any order.
    """

    __slots__ = ("_count", "_mean", "_square")

    def __init__(self, size: int) -> None:
        """Start without gradients; ``size`` is n_params."""
        self._count = 0
        self._mean = np.zeros(checks.whole_number("size", size, least=1))
        self._square = np.zeros(size)

    def add(self, gradient: npt.ArrayLike) -> None:
        """Add the gradient of a batch, ``(n_params,)``, float32 or float64.

        Raises:
            ValueError: ``gradient`` is not a finite vector of n_params; the statistics are as before.
        """
        vector = checks.vector("gradient", gradient, size=self._mean.size)
        self._count += 1
        for block in blocks(vector.size):
            values = vector[block].astype(np.float64)
            self._mean[block] += (values - self._mean[block]) / self._count
            self._square[block] += (values * values - self._square[block]) / self._count

    @property
    def count(self) -> int:
        """Number of gradients so far."""
        return self._count

    def batch_variance(self, *, over_length: float | None = None) -> float:
        """Return the total sample variance of a batch's gradient, at least 0.

        Args:
            over_length: first divide each coordinate by its root mean square plus this, at least 0, as Adam does; None:
                take it as it is.

        Raises:
            ValueError: fewer than 2 gradients were added.
        """
        if self._count < 2:
            raise ValueError(f"gradients: a variance needs at least 2 of them, has {self._count}")
        total = 0.0
        for block in blocks(self._mean.size):
            square = self._square[block]
            variance = np.maximum(square - self._mean[block] ** 2, 0.0)
            if over_length is not None:
                variance = np.divide(
                    variance, (np.sqrt(square) + over_length) ** 2, out=np.zeros_like(square), where=square > 0
                )
            total += float(variance.sum())
        return total * self._count / (self._count - 1)


def step_variance(batch_variance: float, weights: Sequence[float] | Vector, batches: int) -> float:
    """Return the variance of ``sum_j weights_j gamma_j``, in which the same rows return in each epoch.

    Within an epoch the batches have disjoint rows. Each epoch has its own order, and so a row of step j meets each step
    of another epoch with the same chance. The last epoch may be cut short.

    Args:
        batch_variance: total variance of the gradient of one batch, as of `GradientStatistics`.
        weights: a_1..a_B, of the gradient of each step in the mean step, in order.
        batches: of an epoch.

    Raises:
        ValueError: an argument is out of its range; the message starts with its name.
    """
    variance = checks.number_between("batch_variance", batch_variance, 0, np.inf)
    count = checks.whole_number("batches", batches, least=1)
    by_step = checks.vector("weights", weights).astype(np.float64)
    sums = np.add.reduceat(by_step, np.arange(0, by_step.size, count))  # of each epoch
    between = (float(sums.sum()) ** 2 - float((sums**2).sum())) / count
    return variance * (float((by_step**2).sum()) + between)


def halves_variance(first: npt.ArrayLike, second: npt.ArrayLike) -> float:
    """Return ||first - second||^2 / 4, the estimated variance of the mean step on all rows.

    Args:
        first: mean step of a run on half of the rows, ``(n_params,)``.
        second: that of a run on the other half.

    Raises:
        ValueError: an argument is not a finite vector, or the lengths differ; the message starts with its name.
    """
    one = checks.vector("first", first)
    other = checks.vector("second", second, size=one.size)
    return sum(squared_norm(one[block].astype(np.float64) - other[block]) for block in blocks(one.size)) / 4
