"""From the sums that an attempt opened to V, w and n of the round's rule."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from securefda.adaptation import ContributionSum, Rule, combine
from securefda.rounds.attempts import PartialSum, RoundSum
from securefda.rounds.target import TargetRound
from securefda.rounds.terms import Vector64, check_sum, clip_contribution, evaluate_rule
from securefda.secagg.messages import Header, Visibility


@dataclass(frozen=True, slots=True, repr=False)
class RoundTotal:
    """V (float64, (m,)), w and n of the rules, in units of the header's ``max_samples``."""

    vector: Vector64
    kept: float
    samples: float

    @property
    def mean_beta(self) -> float:
        """Mean of beta, weighted by samples: 1 - w/n."""
        return 1.0 - self.kept / self.samples


def total_of(header: Header, target: TargetRound | None, outcome: RoundSum) -> RoundTotal:
    """Put the sums together; at ``cohort`` the rule is evaluated here, on each cohort's mean as if it were a source.

    Raises:
        ValueError: a sum is not what honest parts give.
    """
    for part in outcome.parts:
        check_sum(header, part.vector, part.samples, len(part.members))
    if header.visibility is Visibility.COHORT:
        return _over_cohorts(header, target, outcome.parts)
    (part,) = outcome.parts
    return RoundTotal(part.vector, part.kept, part.samples)


def _over_cohorts(header: Header, target: TargetRound | None, cohorts: tuple[PartialSum, ...]) -> RoundTotal:
    total = ContributionSum(header.n_params)
    statistics = target.statistics if target else None
    target_update = target.result.update if target else None
    step_updates = target.step_updates if target else None
    for cohort in cohorts:
        if not cohort.samples > 0:
            raise ValueError("a cohort has no samples")
        mean = cohort.vector / cohort.samples
        contribution = evaluate_rule(header, statistics, target_update, mean, step_updates)
        clip_contribution(header, contribution)
        total.add(contribution, cohort.samples)
    return RoundTotal(total.vector, total.kept, total.samples)


def update_of(rule: Rule, total: RoundTotal, target: TargetRound | None, max_samples: int) -> Vector64:
    """The round's update of the model, float64 (m,).

    Raises:
        ValueError: the total is not one that honest parts give.
    """
    target_samples = target.result.samples / max_samples if target and rule is Rule.FEDAVG else None
    update = combine(
        rule,
        total.vector,
        total.kept,
        total.samples,
        target_update=target.result.update if target else None,
        target_samples=target_samples,
    )
    return update.astype(np.float64, copy=False)
