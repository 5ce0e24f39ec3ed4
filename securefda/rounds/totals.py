"""From the sums that an attempt opened to V, w and n of the round's rule."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from securefda.adaptation import Contribution, ContributionSum, DeltaErrors, Rule, combine
from securefda.rounds.attempts import PartialSum, RoundSum
from securefda.rounds.tail import Vector64
from securefda.rounds.target import TargetRound
from securefda.rounds.terms import check_sum, clip_contribution, evaluate_rule
from securefda.secagg.messages import Header, Visibility
from securefda.training import Vector


@dataclass(frozen=True, slots=True, repr=False)
class RoundTotal:
    """V (float64, (m,)), w and n of the rules, in units of the header's ``max_samples``.

    ``errors`` are the estimated errors of the rules, means over the samples; None where they are not asked for.
    """

    vector: Vector64
    kept: float
    samples: float
    errors: DeltaErrors | None = None

    @property
    def mean_beta(self) -> float:
        """Mean of beta, weighted by samples: 1 - w/n."""
        return 1.0 - self.kept / self.samples


def evaluate_at_target(header: Header, target: TargetRound | None, update: Vector | Vector64) -> Contribution:
    """Evaluate the round's rule on the aligned update of a source, or the mean of a cohort (m,).

    Raises:
        ValueError: the update and the target's numbers contradict each other.
    """
    if target is None:
        return evaluate_rule(header, None, None, update)
    return evaluate_rule(header, target.statistics, target.result.update, update, target.step_updates)


def total_of(header: Header, target: TargetRound | None, outcome: RoundSum) -> RoundTotal:
    """Put the sums together, each as its level gives it.

    In a sum of level ``sum`` or ``individual`` the rule was evaluated on each source. On a cohort it is evaluated here,
    on its mean as if it were a source.

    Raises:
        ValueError: a sum is not what honest parts give.
    """
    total = _Total(header)
    for part in outcome.parts:
        if not part.figures.samples > 0:
            raise ValueError("a sum has no samples")
        check_sum(header, part.vector, part.figures.samples, len(part.members))
        if part.level is Visibility.COHORT:
            contribution, samples = _of_cohort(header, target, part)
            total.sum.add(contribution, samples)
            total.add_errors(contribution.errors, samples)
        else:
            total.sum.add_sum(part.vector, part.figures.kept, part.figures.samples)
            total.add_errors(part.figures.errors, 1.0)
    return total.finished()


def _of_cohort(header: Header, target: TargetRound | None, cohort: PartialSum) -> tuple[Contribution, float]:
    """What a cohort contributes, and its weight."""
    samples = cohort.figures.samples
    contribution = evaluate_at_target(header, target, cohort.vector / samples)
    clip_contribution(header, contribution)
    return contribution, samples


class _Total:
    """Running total over the parts of a round."""

    def __init__(self, header: Header) -> None:
        self.sum = ContributionSum(header.n_params)
        self._errors = DeltaErrors(0.0, 0.0, 0.0) if header.rule.select else None

    def add_errors(self, errors: DeltaErrors | None, weight: float) -> None:
        """Add errors ``weight`` times."""
        if self._errors is not None and errors is not None:
            self._errors = self._errors.plus(errors.times(weight))

    def finished(self) -> RoundTotal:
        samples = self.sum.samples
        errors = None if self._errors is None or not samples > 0 else self._errors.times(1 / samples)
        return RoundTotal(self.sum.vector, self.sum.kept, samples, errors)


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
