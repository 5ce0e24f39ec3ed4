"""Estimated Delta errors: how far the update of each rule is from the one that the target would make without noise.

Definition 3.7 of the paper chooses a rule by them. All are in squared parameter units per step of the target:

    target_only   sigma^2
    source_only   d_i^2
    fedda_auto    (1 - beta)^2 sigma^2 + beta^2 d_i^2            with the beta of fedda_auto
    fedgp_auto    (1 - beta)^2 sigma^2 + beta^2 tau^2 d_i^2      with the beta of fedgp_auto

for one source, and the mean by samples over sources. The distances are clipped at zero, as beta clips them.

An auto-beta minimises its own line, to beta times the distance. So fedda_auto is never above target_only or
source_only, nor is fedgp_auto above target_only: by these estimates target_only and source_only are chosen only in a
tie.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy.typing as npt

from securefda.adaptation import checks
from securefda.adaptation.beta import (
    BetaRule,
    Estimator,
    projected_squared_distance,
    require_along,
    squared_distance,
    weight_of_source,
)
from securefda.adaptation.comparison import Comparison, compare
from securefda.adaptation.statistics import TargetStatistics
from securefda.adaptation.strategy import RoundPlan, Rule


@dataclass(frozen=True, slots=True)
class DeltaErrors:
    """Estimated Delta errors of the rules that `Rule.AUTO` chooses from, of one source or the mean of several.

    One source's are as private as what they are made of, and so are not in the repr.

    Attributes:
        target_only: sigma^2, the same for every source.
        source_only: d_i^2 of the *aligned* update (where the plan aligns), although source_only itself does not align.
        fedda: of fedda_auto, within [0, sigma^2].
        fedgp: of fedgp_auto, within [0, sigma^2].
    """

    target_only: float
    source_only: float
    fedda: float
    fedgp: float

    def __repr__(self) -> str:
        return "DeltaErrors()"

    @property
    def by_rule(self) -> Mapping[Rule, float]:
        """The errors by the rule they are of, as `choose_rule` and `round_plan` take them."""
        return {
            Rule.TARGET_ONLY: self.target_only,
            Rule.SOURCE_ONLY: self.source_only,
            Rule.FEDDA_AUTO: self.fedda,
            Rule.FEDGP_AUTO: self.fedgp,
        }


def source_errors(comparison: Comparison, estimator: Estimator) -> DeltaErrors:
    """Return the estimated errors for one source.

    Args:
        comparison: of its aligned update with the target's.
        estimator: how to estimate tau^2 d^2.

    Raises:
        ValueError: the exact estimator lacks the target's single steps; the message starts with ``step_updates``.
    """
    statistics, geometry, along = comparison.statistics, comparison.geometry, comparison.along
    require_along(BetaRule.FEDGP, estimator, along)
    variance = statistics.mean_variance
    distance = max(squared_distance(statistics, geometry), 0.0)
    exact_along = along if estimator is Estimator.EXACT else None
    across = max(projected_squared_distance(statistics, geometry, exact_along), 0.0)
    return DeltaErrors(
        target_only=variance,
        source_only=distance,
        fedda=_least_error(variance, distance),
        fedgp=_least_error(variance, across),
    )


def delta_errors(
    plan: RoundPlan,
    statistics: TargetStatistics,
    target_update: npt.ArrayLike,
    source_update: npt.ArrayLike,
    *,
    source_steps: int,
    learning_rate_ratio: float,
    layers: Sequence[int] | None = None,
    step_updates: npt.ArrayLike | None = None,
) -> DeltaErrors:
    """Return the estimated errors for one source, the same to the last bit as `contribute` sets them.

    Args:
        plan: with ``select``; its rule does not matter.
        statistics: as for `contribute`, and so are the others.
        target_update: g_T, ``(n_params,)``.
        source_update: u_i, ``(n_params,)``.
        source_steps: at least 1.
        learning_rate_ratio: within 1e-9 and 1e9.
        layers: sizes that sum to n_params; None is one layer.
        step_updates: ``(B, n_params)``, where ``plan.needs_step_updates``.

    Raises:
        ValueError: an argument is missing, has a wrong shape or value, is not finite, or contradicts another; the
            message starts with the argument's name.
    """
    if not plan.select:
        raise ValueError("plan: errors are estimated only where it selects")
    source = checks.vector("source_update", source_update)
    comparison = compare(
        plan,
        statistics,
        target_update,
        source,
        checks.layer_sizes(layers, source.size),
        source_steps=source_steps,
        learning_rate_ratio=learning_rate_ratio,
        step_updates=step_updates,
    )
    return source_errors(comparison, plan.estimator)


def mean_errors(errors: Sequence[DeltaErrors], weights: npt.ArrayLike | None = None) -> DeltaErrors:
    """Return the mean over sources by ``weights``, for example numbers of samples.

    Args:
        errors: of each source, at least one.
        weights: ``(N,)``, not negative and not all zero; None is uniform.

    Raises:
        ValueError: an argument is out of its range; the message starts with its name.
    """
    if not errors:
        raise ValueError("errors: must be of at least one source")
    samples = checks.source_weights(weights, len(errors))
    parts = (samples / samples.sum()).tolist()
    return DeltaErrors(
        target_only=sum(part * one.target_only for part, one in zip(parts, errors, strict=True)),
        source_only=sum(part * one.source_only for part, one in zip(parts, errors, strict=True)),
        fedda=sum(part * one.fedda for part, one in zip(parts, errors, strict=True)),
        fedgp=sum(part * one.fedgp for part, one in zip(parts, errors, strict=True)),
    )


def _least_error(variance: float, distance: float) -> float:
    """(1 - beta)^2 variance + beta^2 distance at its least; rounding takes it above neither of the two."""
    return min(weight_of_source(variance, distance) * distance, variance)
