"""Statistics of the target's steps in a round: the three numbers that it publishes beside its update.

With x_1..x_B the steps and x-bar their mean, these are the number of steps B, the mean square M = mean_j ||x_j||^2, and
the scatter S_x = sum_j ||x_j - x-bar||^2 / (B - 1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from securefda.rules import checks
from securefda.rules.blocks import Vector, blocks, squared_norm

FEWEST_STEPS = 2
"""A scatter needs two steps."""

AGREEMENT = 1e-3
"""Largest relative difference between the three numbers and the update. Float32 rounding causes about 1e-6."""


def require_steps(name: str, steps: object) -> int:
    """Return ``steps`` if it is a whole number of at least `FEWEST_STEPS`.

    Raises:
        ValueError: it is not; the message starts with ``name`` and says how to get more steps.
    """
    count = checks.whole_number(name, steps, least=0)
    if count < FEWEST_STEPS:
        raise ValueError(
            f"{name}: the target needs at least {FEWEST_STEPS} steps in a round, has {count}; "
            "give it smaller batches or more epochs"
        )
    return count


@dataclass(frozen=True, slots=True)
class TargetStatistics:
    """Statistics of the target's steps in a round.

    Attributes:
        steps: B, at least 2.
        mean_square: M = mean_j ||x_j||^2, squared parameter units.
        scatter: S_x = sum_j ||x_j - x-bar||^2 / (B - 1), the total sample variance of a step, squared parameter units.
            If the target estimates sigma^2 in another way (`securefda.rules.variance`), this is B sigma^2, and
            ``mean_square`` is set to match.

    Raises:
        ValueError: a number is out of its range, or the scatter exceeds what the mean square allows; the message
            starts with the attribute's name.
    """

    steps: int
    mean_square: float
    scatter: float

    def __post_init__(self) -> None:
        steps = require_steps("steps", self.steps)
        checks.number_between("mean_square", self.mean_square, 0, math.inf)
        checks.number_between("scatter", self.scatter, 0, math.inf)
        if self.scatter * (steps - 1) / steps > self.mean_square * (1 + AGREEMENT):
            raise ValueError("scatter: exceeds the mean square of the steps")

    @classmethod
    def from_batches(cls, target_batches: npt.ArrayLike) -> TargetStatistics:
        """Compute the statistics from all steps ``(B, n_params)``.

        Raises:
            ValueError: ``target_batches`` is not a finite matrix of at least 2 rows.
        """
        steps = checks.matrix("target_batches", target_batches)
        count = require_steps("target_batches", steps.shape[0])
        mean = np.mean(steps, axis=0, dtype=np.float64)
        mean_square = sum(squared_norm(step) for step in steps) / count
        scatter = sum(squared_norm(step - mean) for step in steps) / (count - 1)
        return cls(steps=count, mean_square=mean_square, scatter=scatter)

    def with_mean_variance(self, variance: float) -> TargetStatistics:
        """Return a copy with sigma^2 set to ``variance``, at least 0, and the same norm of x-bar."""
        mean_squared = max(self.mean_square - self.scatter * (self.steps - 1) / self.steps, 0.0)
        return TargetStatistics(
            steps=self.steps, mean_square=mean_squared + variance * (self.steps - 1), scatter=variance * self.steps
        )

    @property
    def mean_variance(self) -> float:
        """sigma^2 = S_x / B, the estimated variance of the target's mean step (equation 3 of the paper)."""
        return self.scatter / self.steps

    def require_agreement(self, mean_squared_norm: float) -> None:
        """Check the identity M = ||x-bar||^2 + S_x (B - 1) / B against the update that the statistics belong to.

        Args:
            mean_squared_norm: ||x-bar||^2 = ||g_T||^2 / B^2 of the published update.

        Raises:
            ValueError: the identity fails by more than `AGREEMENT`: the publisher's numbers and update do not match.
        """
        expected = mean_squared_norm + self.scatter * (self.steps - 1) / self.steps
        if abs(self.mean_square - expected) > AGREEMENT * max(self.mean_square, expected):
            raise ValueError("statistics: do not belong to this target_update")


class StepStatistics:
    """Running statistics of a target's steps, in O(n_params) memory for any number of steps.

    Holds one float64 vector, the running mean (Welford 1962). Pass every step of the round to `add`, in any order.
    """

    __slots__ = ("_mean", "_scatter_sum", "_square_sum", "_steps")

    def __init__(self, size: int) -> None:
        """Start without steps; ``size`` is n_params."""
        self._mean = np.zeros(checks.whole_number("size", size, least=1))
        self._steps = 0
        self._square_sum = 0.0
        self._scatter_sum = 0.0

    def add(self, step: npt.ArrayLike) -> None:
        """Add one step: parameters after it minus parameters before, ``(n_params,)``, float32 or float64.

        Raises:
            ValueError: ``step`` is not a finite vector of n_params; the statistics are as before.
        """
        vector = checks.vector("step", step, size=self._mean.size)
        self._steps += 1
        self._square_sum += squared_norm(vector)
        for block in blocks(vector.size):
            deviation = vector[block] - self._mean[block]
            self._mean[block] += deviation / self._steps
            self._scatter_sum += squared_norm(deviation) * (self._steps - 1) / self._steps

    @property
    def steps(self) -> int:
        """Number of steps so far."""
        return self._steps

    @property
    def mean(self) -> Vector:
        """A copy of the mean step x-bar so far, float64 ``(n_params,)``."""
        return self._mean.copy()

    def finish(self) -> TargetStatistics:
        """Return the statistics of the steps so far.

        Raises:
            ValueError: fewer than 2 steps were added.
        """
        require_steps("steps", self._steps)
        return TargetStatistics(
            steps=self._steps,
            mean_square=self._square_sum / self._steps,
            scatter=self._scatter_sum / (self._steps - 1),
        )
