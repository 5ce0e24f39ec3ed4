"""A round at the aggregator: what was done for it so far, the update that its sums amount to, and its record.

The sums that an attempt opened become V, w and n of the round's rule, and these the update of the model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Literal

import numpy as np

from securefda.aggregator.attempt import PartialSum, RoundSum
from securefda.aggregator.ranges import question_of
from securefda.aggregator.site import ByteCounts, TargetSite
from securefda.aggregator.store import Asked
from securefda.aggregator.target import TargetPart, TargetRound, attention_of, evaluate_at_target
from securefda.operations.records import RoundLine, SeenLine
from securefda.protocol.contribution import FaultySum, RoundTerms, check_kept, check_sum, clip_contribution
from securefda.protocol.encoding import Vector64, vector_to_wire
from securefda.protocol.messages import Header, Visibility
from securefda.rules import ContributionSum, DeltaErrors, RoundPlan, Rule, combine
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


def total_of(terms: RoundTerms, target: TargetPart | None, sums: RoundSum) -> RoundTotal:
    """Put the sums together, each as its level gives it.

    In a sum of level ``sum`` or ``individual`` the rule was evaluated on each source. On a cohort it is evaluated here,
    on its mean as if it were a source.

    Raises:
        FaultySum: a sum is not what honest parts give.
    """
    total, errors = ContributionSum(terms.header.n_summed), DeltaErrors(0.0, 0.0, 0.0)
    for part in sums.parts:
        if not part.statistics.weight > 0:
            raise FaultySum("a sum has no samples")
        check_sum(terms, part.vector, part.statistics.weight, len(part.members))
        if part.level is Visibility.COHORT:
            samples = part.statistics.weight
            contribution = evaluate_at_target(terms, target, part.vector / samples)
            clip_contribution(terms.header, contribution)
            total.add(contribution, samples)
            found = contribution.errors and contribution.errors.times(samples)
        else:
            total.add_sum(part.vector, part.statistics.kept, part.statistics.weight)
            found = part.statistics.errors
        errors = errors.plus(found) if found else errors
    check_kept(terms.plan, total.kept, total.samples)
    mean_errors = errors.times(1 / total.samples) if terms.plan.select and total.samples > 0 else None
    return RoundTotal(total.vector, total.kept, total.samples, mean_errors)


def update_of(rule: Rule, total: RoundTotal, target: TargetRound | None, max_samples: int) -> Vector64:
    """What the sums amount to, float64: the round's update of the model, and behind it the mean pull, if any."""
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


@dataclass(slots=True)
class CurrentRound:
    """A round in progress.

    Attributes:
        number: counts from 1.
        plan: what the round does.
        attempt: number of the last attempt that began; 0 before the first.
        asked: what the first attempt asked of its sources; later ones must ask for the same. None before it.
        traffic_before: bytes of the process when the round began.
        trained: whether the target has done its part, once for all attempts.
        target: what that is; None where the rule uses nothing of the target.
        seconds: by phase.
        refused: policy key or check by roster index of the source that refused.
        forbidden: policy key by roster index of the source that left the run because of it, before an attempt.
        levels: roster index -> what the aggregator sees of the source in the last attempt.
        with_metrics: whether the sources hand in loss and accuracy in the last attempt.
        released_to: site ids that were sent the target's update.
        question: what the last attempt asked, see :func:`securefda.aggregator.ranges.question_of`.
        confident: how many of the target's rows had a pseudo-label that counted; None where labels are given, and
            before the target has trained.
        out_of_range: whether a source refused, since too much of its part was beyond the ranges (CLIPPED).
        target_cosine: of g_T and the round's update of the model, which every site gets to know: how far that shows
            g_T. None where there is no g_T.
        step_share: which share of the rule's update the target took; None where it takes all without a choice.
    """

    number: int
    plan: RoundPlan
    attempt: int
    traffic_before: ByteCounts
    asked: Asked | None = None
    trained: bool = False
    target: TargetPart | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    forbidden: dict[int, str] = field(default_factory=dict)
    levels: dict[int, Visibility] = field(default_factory=dict)
    with_metrics: bool = False
    released_to: set[str] = field(default_factory=set)
    question: bytes = b""
    confident: int | None = None
    out_of_range: bool = False
    target_cosine: float | None = None
    step_share: float | None = None

    @property
    def own(self) -> TargetRound | None:
        """What the target trained; None where it did not."""
        return self.target if isinstance(self.target, TargetRound) else None

    @property
    def asked_at_sum(self) -> bool:
        """Whether sources were at ``sum`` in the first attempt: the target's terms say so."""
        return self.asked is not None and self.asked.at_sum

    def begin(self, header: Header, asked: Asked) -> None:
        """An attempt begins with this header."""
        self.attempt, self.with_metrics, self.asked = header.attempt, header.metrics, asked
        self.question = question_of(header.rule, header.levels)
        self.levels = dict(zip(header.participants, header.levels, strict=True))

    def spent(self, phase: str, seconds: float) -> None:
        """Add to the time of a phase."""
        self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds

    def finished_line(
        self,
        site: TargetSite,
        model: Vector,
        participants: Iterable[int],
        *,
        outcome: RoundSum | None,
        total: RoundTotal | None,
        max_samples: int,
    ) -> RoundLine:
        """The line of a finished round, without its evaluation; ``outcome`` is None for a round of the target alone."""
        survivors = outcome.survivors if outcome else frozenset()
        line = self.line(site, model, "finished", participants, survivors)
        line["mean_beta"] = total.mean_beta if total and self.plan.rule.adapts else None
        line["target_cosine"] = self.target_cosine
        if self.step_share is not None:
            line["step_share"] = self.step_share
        if outcome is not None:
            parts = outcome.parts
            line["emptied"] = _emptied(site, parts)
            line["seen"] = [
                seen for part in parts for seen in _seen(site, part, max_samples, with_metrics=self.with_metrics)
            ]
        if total and total.errors and self.own and self.own.statistics:
            errors = total.errors.by_rule(self.own.statistics.mean_variance)
            line["delta_errors"] = {str(rule): error for rule, error in errors.items()}
        return line

    def line(
        self,
        site: TargetSite,
        model: Vector,
        status: Literal["finished", "lost"],
        participants: Iterable[int],
        survivors: frozenset[int] = frozenset(),
    ) -> RoundLine:
        """The line of a round, as far as it does not depend on what its attempt gave."""
        up, down = (
            {site.name(index): count - old.get(index, 0) for index, count in sorted(new.items())}
            for new, old in zip(site.traffic(), self.traffic_before, strict=True)
        )
        line = RoundLine(
            round=self.number,
            rule=str(self.plan.rule),
            mean_beta=None,
            survivors=[site.name(index) for index in sorted(survivors)],
            dropped=[site.name(index) for index in sorted(set(participants) - survivors)],
            refused={site.name(index): key for index, key in sorted({**self.forbidden, **self.refused}.items())},
            levels={site.name(index): level.label for index, level in sorted(self.levels.items())},
            target_update_to=sorted(self.released_to),
            attempts=self.attempt,
            seconds=dict(self.seconds),
            bytes_up=up,
            bytes_down=down,
            model_digest=sha256(vector_to_wire(model)).hexdigest(),
            status=status,
            ended=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        )
        if self.confident is not None:
            line["confident_rows"] = self.confident
        if self.own is not None and self.own.result.epsilon is not None:
            line["target_epsilon"] = self.own.result.epsilon
        attention = attention_of(self.target)
        if attention is not None:
            line["gap"] = attention.gap
        return line


def _seen(site: TargetSite, part: PartialSum, max_samples: int, *, with_metrics: bool) -> Iterator[SeenLine]:
    """What the aggregator learnt of the members of a part: of each at ``individual``, else of all together.

    Without metrics there is no loss and no accuracy, whatever stands in their places.
    """
    level, statistics = part.level.label, part.statistics
    if part.level is Visibility.INDIVIDUAL:
        for index, report in sorted(part.reports.items()):
            loss, accuracy = (report.loss, report.accuracy) if with_metrics else (None, None)
            yield SeenLine(
                level=level,
                members=[site.name(index)],
                rows=report.samples,
                loss=loss,
                accuracy=accuracy,
                clipped=part.clipped[index],
            )
        return
    yield SeenLine(
        level=level,
        members=[site.name(index) for index in sorted(part.members)],
        rows=round(statistics.weight * max_samples),
        loss=statistics.loss / statistics.weight if with_metrics else None,
        accuracy=statistics.accuracy / statistics.weight if with_metrics else None,
    )


def _emptied(site: TargetSite, parts: Iterable[PartialSum]) -> list[str]:
    """Layers in which the sum at ``sum`` is zero: too few had a part there, or too small a one, and all were cut."""
    sums = [part.vector for part in parts if part.level is Visibility.SUM]
    sizes = site.trainer.sizes
    edges = np.cumsum(sizes)[:-1]
    return [
        name
        for vector in sums
        for (name, _), layer in zip(site.trainer.layers, np.split(vector[: sum(sizes)], edges), strict=True)
        if not layer.any()
    ]


def last_errors(records: Sequence[Mapping[str, Any]]) -> dict[Rule, float] | None:
    """The estimated errors of the last round that has them; None before there is one."""
    for record in reversed(records):
        if record.get("delta_errors"):
            return {Rule(rule): error for rule, error in record["delta_errors"].items()}
    return None
