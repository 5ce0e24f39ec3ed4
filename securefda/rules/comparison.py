"""Alignment of a source's update with the target's schedule (Appendix C.9 of the paper), and their comparison.

The comparison has the inner products on which beta, projection and estimated errors depend.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from securefda.rules import checks
from securefda.rules.beta import Estimator, StepGeometry
from securefda.rules.blocks import Reals, Vector, step_products
from securefda.rules.projection import SMALLEST_SQUARED_NORM, Products, layer_slices
from securefda.rules.statistics import TargetStatistics
from securefda.rules.strategy import RoundPlan

LARGEST_RATIO = 1e9
"""Largest ratio of two learning rates, or of its inverse. Beyond it, a configuration is mistaken."""


def alignment_factor(*, target_steps: int, source_steps: int, learning_rate_ratio: float) -> float:
    """Return a > 0 such that ``a * u_i`` is a source's aligned update of the round.

    A source that took more steps than the target, or longer ones, has moved further in the same direction. The factor
    scales its update to the target's number of steps and learning rate. One aligned step is ``a * u_i / B``.

    Args:
        target_steps: steps (batches) of the target in the round, B >= 1.
        source_steps: steps of the source in the round, s_i >= 1.
        learning_rate_ratio: the target's learning rate of the round over the source's, within 1e-9 and 1e9.

    Raises:
        ValueError: an argument is out of its range; the message starts with its name.
    """
    steps = checks.whole_number("target_steps", target_steps, least=1)
    own_steps = checks.whole_number("source_steps", source_steps, least=1)
    ratio = checks.number_between("learning_rate_ratio", learning_rate_ratio, 1 / LARGEST_RATIO, LARGEST_RATIO)
    return steps * ratio / own_steps


def align_update(update: npt.ArrayLike, *, target_steps: int, source_steps: int, learning_rate_ratio: float) -> Vector:
    """Return the aligned update ``g_i`` of a source, float64 ``(n_params,)``, see `alignment_factor`.

    Raises:
        ValueError: an argument is out of its range, or ``update`` is not a finite vector; the message starts with the
            argument's name.
    """
    factor = alignment_factor(
        target_steps=target_steps, source_steps=source_steps, learning_rate_ratio=learning_rate_ratio
    )
    return np.multiply(checks.vector("update", update), factor, dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Inner products of the target's update and a source's aligned one, and the target's statistics.

    Attributes:
        statistics: of the target's steps.
        products: in each layer, of the target's update and the source's as it is averaged.
        alignment: factor with which the source's update becomes aligned; 1 if it is.
        geometry: over the whole vector, of the target's mean step and the source's aligned step.
        target: g_T, ``(n_params,)``.
        along_layers: <x_j, gbar> of each step of the target in each layer ``(B, n_layers)``; None if the plan does not
            need it, or without the single steps.
    """

    statistics: TargetStatistics
    products: Products
    alignment: float
    geometry: StepGeometry
    target: Reals = field(repr=False)
    along_layers: Vector | None

    @property
    def along(self) -> Vector | None:
        """<x_j, gbar> of each step ``(B,)``, over the whole vector."""
        return None if self.along_layers is None else self.along_layers.sum(axis=1)

    @property
    def aligned(self) -> Products:
        """In each layer, of the target's update and the source's aligned one."""
        return self.products.of_source_times(self.alignment)

    def by_layer(self, sizes: Sequence[int]) -> list[Comparison]:
        """Return one comparison per layer.

        The target publishes its noise as one number, sigma^2. Each layer is assumed to have the share of sigma^2 that
        it has of ||x-bar||^2, that is, the same relative noise. If x-bar is zero, the shares follow the layers' sizes.

        Args:
            sizes: of the layers, which sum to n_params.
        """
        steps, aligned = float(self.statistics.steps), self.aligned
        squared = aligned.target_squared
        lengths = squared if squared.sum() > SMALLEST_SQUARED_NORM else np.asarray(sizes, dtype=np.float64)
        parts = []
        for number, (part, share) in enumerate(zip(layer_slices(sizes), lengths / lengths.sum(), strict=True)):
            one, target = slice(number, number + 1), self.target[part]
            products = Products(squared[one], aligned.inner[one], aligned.source_squared[one])
            geometry = StepGeometry.of_round(products, steps=self.statistics.steps, size=target.size)
            scatter = self.statistics.scatter * float(share)
            mean_square = geometry.mean_squared + scatter * (steps - 1) / steps
            statistics = TargetStatistics(self.statistics.steps, mean_square, scatter)
            parts.append(Comparison(statistics, products, 1.0, geometry, target, None))
        return parts

    def noise_along(self, estimator: Estimator) -> float:
        """Return the part of sigma^2 along the source's direction, summed over layers: the noise that projection keeps.

        The mean-field estimator assumes sigma^2 to be spread evenly over all directions. The source has one direction
        in each layer in which its update is not zero.
        """
        squared = self.aligned.source_squared
        moves = squared > SMALLEST_SQUARED_NORM
        if estimator is not Estimator.EXACT:
            return self.statistics.mean_variance * int(moves.sum()) / self.geometry.size
        if self.along_layers is None:
            raise ValueError("step_updates: the exact estimator needs them")
        variances = np.var(self.along_layers, axis=0, ddof=1)[moves]
        of_a_step = squared[moves] / float(self.statistics.steps) ** 2
        return float(np.sum(variances / of_a_step)) / self.statistics.steps


def compare(
    plan: RoundPlan,
    statistics: TargetStatistics | None,
    target_update: npt.ArrayLike | None,
    source: Reals,
    sizes: Sequence[int],
    *,
    step_updates: npt.ArrayLike | None = None,
    alignment: float = 1.0,
) -> Comparison:
    """Compare a source's update with the target's under a plan.

    Args:
        plan: of the round; decides whether single steps are needed.
        statistics: of the target's steps in the round.
        target_update: g_T, ``(n_params,)``.
        source: g_i, finite, ``(n_params,)``; already aligned if the plan aligns.
        sizes: the layers' sizes, which sum to n_params.
        step_updates: the target's single steps ``(B, n_params)``, only where ``plan.needs_step_updates``.
        alignment: the factor by which ``source`` is still to be aligned (`alignment_factor`); 1 if the plan aligns.

    Raises:
        ValueError: an argument is missing, has a wrong shape or value, is not finite, or contradicts another; the
            message starts with the argument's name.
    """
    factor = checks.number_between("alignment", alignment, 0, math.inf, open_below=True)
    if plan.align and factor != 1.0:
        raise ValueError("alignment: must be 1 where the plan aligns the update itself")
    if statistics is None or target_update is None:
        raise ValueError(f"{'statistics' if statistics is None else 'target_update'}: {plan.rule} needs it")
    target = checks.vector("target_update", target_update, size=source.size)
    products = Products.of(target, source, sizes)
    along = None
    if step_updates is not None and plan.needs_step_updates:
        steps = checks.matrix("step_updates", step_updates, columns=source.size)
        if steps.shape[0] != statistics.steps:
            raise ValueError(f"step_updates: must have {statistics.steps} rows, has {steps.shape[0]}")
        by_layer = [step_products(steps[:, part], source[part]) for part in layer_slices(sizes)]
        along = np.stack(by_layer, axis=1) * (factor / statistics.steps)
    geometry = StepGeometry.of_round(products.of_source_times(factor), steps=statistics.steps, size=source.size)
    statistics.require_agreement(geometry.mean_squared)
    return Comparison(statistics, products, factor, geometry, target, along)
