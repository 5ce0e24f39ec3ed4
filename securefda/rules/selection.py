"""Estimated Delta errors: the expected squared distance of each rule's update from the target's noiseless update.

A rule is chosen by them (Definition 3.7 of the paper). They are in squared parameter units per step of the target:

    target_only   sigma^2
    source_only   d_i^2
    fedda_auto    (1 - beta)^2 sigma^2 + beta^2 d_i^2            with the beta of fedda_auto
    fedgp_auto    (1 - beta)^2 sigma^2 + beta^2 tau^2 d_i^2      with the beta of fedgp_auto
                  + (2 beta - beta^2) sigma_u^2

for one source; for several, their mean weighted by samples. Distances are clipped at zero, as in beta.

The last term is the noise that projection keeps. With u the source's direction in a layer, the update
(1 - beta) g + beta <g, u> u has all the noise of g along u, whatever beta is; sigma_u^2 is its sum over layers. Without
this term fedgp_auto would always win, since tau^2 d^2 is never above d^2; with it, fedda_auto wins for a source that is
right. Layers that the filter drops are treated as if they were kept, and the cosine form like the orthogonal one. As in
the paper, the distance is over the whole vector; projecting layer by layer leaves at most that, and often less.

The first two terms are least at their auto-beta, where they equal beta times the distance. So fedda_auto is never above
target_only or source_only, and fedgp_auto is capped at the error of target_only. By these estimates target_only and
source_only are chosen only in a tie.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy.typing as npt

from securefda.rules import checks
from securefda.rules.beta import (
    BetaRule,
    Estimator,
    projected_squared_distance,
    require_along,
    squared_distance,
    weight_of_source,
)
from securefda.rules.comparison import Comparison, compare
from securefda.rules.statistics import TargetStatistics
from securefda.rules.strategy import RoundPlan, Rule


@dataclass(frozen=True, slots=True)
class DeltaErrors:
    """Estimated Delta errors of the rules that need a source: of one source, or a sum or mean over several.

    The errors of one source are as private as its update, so the repr is empty. The error of target_only, sigma^2, is
    the same for every source: `TargetStatistics.mean_variance`.

    Attributes:
        source_only: d_i^2 of the *aligned* update, although source_only itself does not align.
        fedda: of fedda_auto; except in a sum, at most sigma^2 and at most ``source_only``.
        fedgp: of fedgp_auto; except in a sum, at most sigma^2.
    """

    source_only: float = field(repr=False)
    fedda: float = field(repr=False)
    fedgp: float = field(repr=False)

    def times(self, factor: float) -> DeltaErrors:
        """Return each error times ``factor``."""
        return DeltaErrors(self.source_only * factor, self.fedda * factor, self.fedgp * factor)

    def plus(self, other: DeltaErrors) -> DeltaErrors:
        """Return the sum of both, rule by rule."""
        return DeltaErrors(self.source_only + other.source_only, self.fedda + other.fedda, self.fedgp + other.fedgp)

    def by_rule(self, mean_variance: float) -> Mapping[Rule, float]:
        """Return the errors of all candidates, as `choose_rule` and `round_plan` take them.

        Args:
            mean_variance: sigma^2, the error of target_only.
        """
        return {
            Rule.TARGET_ONLY: mean_variance,
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
    beta = weight_of_source(variance, across)
    kept = beta * (2 - beta) * comparison.noise_along(estimator)
    return DeltaErrors(
        source_only=distance,
        fedda=_least_error(variance, distance),
        fedgp=min(_least_error(variance, across) + kept, variance),
    )


def delta_errors(
    plan: RoundPlan,
    statistics: TargetStatistics,
    target_update: npt.ArrayLike,
    source_update: npt.ArrayLike,
    *,
    layers: Sequence[int] | None = None,
    step_updates: npt.ArrayLike | None = None,
    alignment: float = 1.0,
) -> DeltaErrors:
    """Return the estimated errors for one source, bit for bit those of `contribute`.

    Args:
        plan: with ``select``; its rule does not matter.
        statistics: of the target's steps, as for `contribute`.
        target_update: g_T, ``(n_params,)``.
        source_update: g_i, ``(n_params,)``.
        layers: sizes that sum to n_params; None is one layer.
        step_updates: ``(B, n_params)``, where ``plan.needs_step_updates``.
        alignment: as for `contribute`.

    Raises:
        ValueError: an argument is missing, has a wrong shape or value, is not finite, or contradicts another; the
            message starts with the argument's name.
    """
    if not plan.select:
        raise ValueError("plan: errors are estimated only where it selects")
    source = checks.vector("source_update", source_update)
    sizes = checks.layer_sizes(layers, source.size)
    comparison = compare(plan, statistics, target_update, source, sizes, step_updates=step_updates, alignment=alignment)
    parts = comparison.by_layer(sizes) if plan.beta_per_layer else [comparison]
    return sum_of_errors(source_errors(part, plan.estimator) for part in parts)


def sum_of_errors(errors: Iterable[DeltaErrors]) -> DeltaErrors:
    """Return the sum of errors, rule by rule, for example over layers."""
    total = DeltaErrors(0.0, 0.0, 0.0)
    for one in errors:
        total = total.plus(one)
    return total


def mean_errors(errors: Sequence[DeltaErrors], weights: npt.ArrayLike | None = None) -> DeltaErrors:
    """Return the mean over sources weighted by ``weights``, for example numbers of samples.

    Args:
        errors: of each source, at least one.
        weights: ``(N,)``, not negative and not all zero; None is uniform.

    Raises:
        ValueError: an argument is out of its range; the message starts with its name.
    """
    if not errors:
        raise ValueError("errors: must be of at least one source")
    samples = checks.source_weights(weights, len(errors))
    total = sum_of_errors(one.times(weight) for one, weight in zip(errors, samples.tolist(), strict=True))
    return total.times(1 / float(samples.sum()))


def _least_error(variance: float, distance: float) -> float:
    """(1 - beta)^2 variance + beta^2 distance at auto-beta, at most either of the two despite rounding."""
    return min(weight_of_source(variance, distance) * distance, variance)
