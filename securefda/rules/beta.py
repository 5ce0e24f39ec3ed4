"""Auto-beta: the weight of a source, from the target's noise and the distance between target and source.

The target's update is a noisy mean of few steps; a source's update is precise but points elsewhere. Beta weighs the
variance of the former, sigma^2, against the squared distance of the latter: d^2 for FedDA, and for FedGP tau^2 d^2, the
part that projection cannot remove. Equation 3 and Appendix A.5 of the paper give them as

    d^2       = mean_j ||x_j - gbar||^2 - S_x
    tau^2 d^2 = mean_j ||y_j||^2 - sample_var(y),    y_j = x_j - <x_j, u> u,    u = gbar / ||gbar||

where x_1..x_B are the target's steps and gbar is the source's aligned step. Since M = ||x-bar||^2 + S_x (B - 1) / B,
expanding the squares leaves

    d^2       = ||x-bar - gbar||^2 - S_x / B
    tau^2 d^2 = ||x-bar||^2 - <x-bar, u>^2 - (S_x - S_p) / B

with S_p the sample variance of <x_j, u>. So x-bar, S_x and gbar suffice, and the target's single steps are needed only
for S_p. The mean-field estimator replaces S_p by S_x / n_params (Appendix A.4: noise spread evenly over all
directions). Unless a distance is clipped at zero, this changes beta by exactly
``beta_exact * beta_mean_field * |S_p / S_x - 1 / n_params|``, which is small if n_params is large or beta small.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from securefda.rules import checks
from securefda.rules.blocks import Vector, step_products
from securefda.rules.projection import SMALLEST_SQUARED_NORM, Products
from securefda.rules.statistics import TargetStatistics, require_steps

ROUNDING = 64 * float(np.finfo(np.float64).eps)
"""A squared distance is a difference of squares. Below this part of them it is rounding error and counts as zero."""


class Estimator(StrEnum):
    """How S_p is estimated."""

    EXACT = "exact"
    """From the target's single steps."""

    MEAN_FIELD = "mean-field"
    """As S_x / n_params."""


class BetaRule(StrEnum):
    """The rule for which beta is computed."""

    FEDDA = "fedda"
    FEDGP = "fedgp"

    FEDGP_FILTERED = "fedgp_filtered"
    """FedGP with a distance that accounts for its filter: delta tau^2 d^2 + (1 - delta) ||x-bar||^2 replaces tau^2 d^2,
    with delta = 1 - (1 - a) / B, where a is the share of the target's steps with a positive inner product with the
    source's step. Note that delta is not itself such a share: it lies between 1 - 1 / B and 1."""


@dataclass(frozen=True, slots=True)
class StepGeometry:
    """Inner products of the target's mean step and a source's aligned step, over the whole vector, float64.

    Attributes:
        mean_squared: ||x-bar||^2.
        inner: <x-bar, gbar>.
        source_squared: ||gbar||^2.
        size: n_params.
    """

    mean_squared: float
    inner: float
    source_squared: float
    size: int

    @classmethod
    def of_round(cls, products: Products, *, steps: int, size: int) -> StepGeometry:
        """Compute it from the layers' products of the round's updates g_T and g_i, each ``steps`` times a mean step."""
        squared = float(steps) ** 2
        return cls(
            mean_squared=float(products.target_squared.sum()) / squared,
            inner=float(products.inner.sum()) / squared,
            source_squared=float(products.source_squared.sum()) / squared,
            size=size,
        )

    @property
    def source_is_zero(self) -> bool:
        """Whether the source's step is zero, so that it has no direction."""
        return self.source_squared <= SMALLEST_SQUARED_NORM


def squared_distance(statistics: TargetStatistics, geometry: StepGeometry) -> float:
    """Return the unbiased estimate of d^2 = ||E x - gbar||^2. It can be negative; beta clips it at zero."""
    apart = geometry.mean_squared - 2 * geometry.inner + geometry.source_squared
    return _beyond_rounding(apart - statistics.mean_variance, geometry.mean_squared + geometry.source_squared)


def projected_squared_distance(
    statistics: TargetStatistics, geometry: StepGeometry, along: Vector | None = None
) -> float:
    """Return the estimate of tau^2 d^2, the squared length of E x orthogonal to gbar. It can be negative.

    Args:
        statistics: of the target's steps.
        geometry: of their mean and the source's step.
        along: <x_j, gbar> of each step ``(B,)``, which makes the estimate unbiased for every noise. None: the
            mean-field estimator, which is unbiased for noise that is equal in all directions.
    """
    if geometry.source_is_zero:
        return _beyond_rounding(geometry.mean_squared - statistics.mean_variance, geometry.mean_squared)
    if along is None:
        along_variance = statistics.scatter / geometry.size
    else:
        along_variance = float(np.var(along, ddof=1)) / geometry.source_squared
    across = geometry.mean_squared - geometry.inner * (geometry.inner / geometry.source_squared)
    return _beyond_rounding(across - (statistics.scatter - along_variance) / statistics.steps, geometry.mean_squared)


def source_beta(
    rule: BetaRule,
    estimator: Estimator,
    statistics: TargetStatistics,
    geometry: StepGeometry,
    along: Vector | None = None,
) -> float:
    """Return the beta of one source, in [0, 1].

    Args:
        rule: the rule it is for.
        estimator: how to estimate tau^2 d^2; FedDA ignores it.
        statistics: of the target's steps.
        geometry: of their mean and the source's aligned step.
        along: <x_j, gbar> of each step ``(B,)``; required if `needs_steps`.

    Raises:
        ValueError: ``along`` is missing.
    """
    require_along(rule, estimator, along)
    if rule is BetaRule.FEDDA:
        distance = max(squared_distance(statistics, geometry), 0.0)
    else:
        exact_along = along if estimator is Estimator.EXACT else None
        distance = max(projected_squared_distance(statistics, geometry, exact_along), 0.0)
    if rule is BetaRule.FEDGP_FILTERED and along is not None:
        delta = 1 - (1 - float(np.mean(along > 0))) / statistics.steps
        distance = delta * distance + (1 - delta) * geometry.mean_squared
    return weight_of_source(statistics.mean_variance, distance)


def weight_of_source(variance: float, distance: float) -> float:
    """Return the beta in [0, 1] that minimises ``(1 - beta)^2 variance + beta^2 distance``; 1 if both are zero."""
    return variance / (variance + distance) if variance + distance > 0 else 1.0


def require_along(rule: BetaRule, estimator: Estimator, along: Vector | None) -> None:
    """Check that the products with the single steps are given if `needs_steps`.

    Raises:
        ValueError: they are missing; the message starts with ``step_updates``.
    """
    if along is None and needs_steps(rule, estimator):
        raise ValueError(f"step_updates: {rule} with the {estimator} estimator needs the target's single steps")


def needs_steps(rule: BetaRule, estimator: Estimator) -> bool:
    """Return whether beta needs the target's single steps, beyond their statistics."""
    return rule is BetaRule.FEDGP_FILTERED or (rule is BetaRule.FEDGP and estimator is Estimator.EXACT)


def auto_beta(
    target_batches: npt.ArrayLike, sources: npt.ArrayLike, rule: str, *, estimator: str = Estimator.EXACT
) -> Vector:
    """Return the beta of each source (equation 3 of the paper).

    Args:
        target_batches: the target's steps x_1..x_B of a round, ``(B, n_params)``, B at least 2; or other
            independent draws of its mean step, such as from two runs on halves of its rows.
        sources: the sources' per-step aligned updates, ``(N, n_params)``.
        rule: ``fedda``, ``fedgp`` or ``fedgp_filtered``.
        estimator: ``exact`` or ``mean-field``; a rule without tau^2 d^2 ignores it.

    Returns:
        Float64 ``(N,)`` in [0, 1]. If both noise and distance are zero (0 / 0), beta is 1.

    Raises:
        ValueError: a shape is wrong, a value is not finite, B is below 2, or a name is unknown; the message starts
            with the argument's name.
    """
    beta_rule = checks.choice("rule", rule, BetaRule)
    beta_estimator = checks.choice("estimator", estimator, Estimator)
    steps = checks.matrix("target_batches", target_batches)
    require_steps("target_batches", steps.shape[0])
    source_updates = checks.matrix("sources", sources, columns=steps.shape[1])
    statistics = TargetStatistics.from_batches(steps)
    mean: Vector = np.asarray(np.mean(steps, axis=0, dtype=np.float64))
    betas = np.empty(source_updates.shape[0])
    for index, source in enumerate(source_updates):
        geometry = StepGeometry.of_round(Products.of(mean, source, [mean.size]), steps=1, size=mean.size)
        along = step_products(steps, source) if needs_steps(beta_rule, beta_estimator) else None
        betas[index] = source_beta(beta_rule, beta_estimator, statistics, geometry, along)
    return betas


def _beyond_rounding(difference: float, largest: float) -> float:
    return difference if abs(difference) > ROUNDING * largest else 0.0
