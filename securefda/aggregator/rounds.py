"""A round at the aggregator: its state, its line in the run's records, and what earlier lines say of the next round."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Literal

import numpy as np

from securefda.aggregator.folds import FoldedTraining
from securefda.aggregator.ranges import sum_kind
from securefda.aggregator.site import ByteCounts, TargetSite
from securefda.aggregator.store import RoundRequest
from securefda.aggregator.sums import PartialSum, RoundSum, RoundTotal
from securefda.aggregator.target import TargetOutput, TargetRound, attention_of
from securefda.operations.records import NO_PART, Candidate, RoundLine, SeenLine
from securefda.protocol.encoding import vector_to_wire
from securefda.protocol.messages import Header, Visibility
from securefda.rules import RoundPlan, Rule
from securefda.training import Vector


@dataclass(slots=True)
class CurrentRound:
    """A round in progress.

    Attributes:
        number: counts from 1.
        plan: the round's rule and its parameters.
        attempt: number of the last attempt that began; 0 before the first.
        request: what the attempts ask of their sources, all of them the same; None before the first.
        traffic_before: byte counts of the process when the round began.
        trained: whether the target has trained, which it does once for all attempts.
        target: the result of that training; None if the rule uses nothing of the target.
        seconds: time spent, by phase.
        refused: policy key or check for which a source refused, by roster index.
        silent: sources whose missing nonces ended an attempt; later attempts at the round are without them.
        forbidden: policy key for which a source left the run before an attempt, by roster index.
        levels: visibility level of each source in the last attempt, by roster index.
        with_metrics: whether the sources add loss and accuracy in the last attempt.
        released_to: site ids that were sent the target's update.
        sum_kind: of the last attempt, see :func:`securefda.aggregator.ranges.sum_kind`.
        capped: whether contributions are under a norm cap in the last attempt.
        confident: number of the target's rows whose pseudo-label counted; None where labels are given, and before the
            target has trained.
        out_of_range: whether a source refused because too many of its coordinates were beyond the ranges (CLIPPED).
        target_cosine: cosine of g_T and the round's update of the model. Every site learns that update, so this
            measures how much of g_T it shows. None where there is no g_T.
        step_share: share of the rule's update that the target chose to take; None if it takes all without a choice.
        source_share: the sources' share of the step of the model; None before there is one.
        folded: the target's training without folds of its rows; None without folds, and in warm-up.
        fold_losses: by candidate, on the folds of the target's rows; None without folds, and in warm-up.
        chosen: the candidate that the target keeps; None as above.
    """

    number: int
    plan: RoundPlan
    attempt: int
    traffic_before: ByteCounts
    request: RoundRequest | None = None
    trained: bool = False
    target: TargetOutput | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    silent: set[int] = field(default_factory=set)
    forbidden: dict[int, str] = field(default_factory=dict)
    levels: dict[int, Visibility] = field(default_factory=dict)
    with_metrics: bool = False
    released_to: set[str] = field(default_factory=set)
    sum_kind: bytes = b""
    capped: bool = False
    confident: int | None = None
    out_of_range: bool = False
    target_cosine: float | None = None
    step_share: float | None = None
    source_share: float | None = None
    folded: FoldedTraining | None = None
    fold_losses: Mapping[Candidate, float] | None = None
    chosen: Candidate | None = None

    @property
    def own(self) -> TargetRound | None:
        """The target's training result; None if it did not train."""
        return self.target if isinstance(self.target, TargetRound) else None

    @property
    def asked_at_sum(self) -> bool:
        """Whether sources were at ``sum`` in the first attempt."""
        return self.request is not None and self.request.at_sum

    def begin(self, header: Header, request: RoundRequest) -> None:
        """Note that an attempt begins with this header, which asks for ``request``."""
        self.attempt, self.with_metrics, self.request = header.attempt, header.metrics, request
        self.sum_kind = sum_kind(header.rule, header.levels)
        self.capped = header.norm_cap is not None and self.plan.rule is not Rule.TARGET_ONLY
        self.levels = dict(zip(header.participants, header.levels, strict=True))

    def add_seconds(self, phase: str, seconds: float) -> None:
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
        if self.source_share is not None:
            line["source_share"] = self.source_share
        if self.fold_losses is not None and self.chosen is not None:
            line["fold_losses"], line["chosen"] = dict(self.fold_losses), self.chosen
        if outcome is not None:
            partial_sums = outcome.partial_sums
            whole = self.plan.rule.adds_moments  # one cap for the whole vector; where features are 0, so is their layer
            line["emptied"] = _emptied(site, partial_sums) if self.capped and not whole else []
            line["seen"] = [
                seen
                for partial in partial_sums
                for seen in _seen(site, partial, max_samples, with_metrics=self.with_metrics)
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
        """What a round's line says without its sums."""
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


def _seen(site: TargetSite, partial: PartialSum, max_samples: int, *, with_metrics: bool) -> Iterator[SeenLine]:
    """What the aggregator learnt about the members of a sum: about each at ``individual``, else about all together.

    Without metrics, loss and accuracy are None: the zeros in their places mean nothing.
    """
    level, statistics = partial.level.label, partial.statistics
    if partial.level is Visibility.INDIVIDUAL:
        for index, report in sorted(partial.reports.items()):
            loss, accuracy = (report.loss, report.accuracy) if with_metrics else (None, None)
            yield SeenLine(
                level=level,
                members=[site.name(index)],
                rows=report.samples,
                loss=loss,
                accuracy=accuracy,
                clipped=partial.clipped[index],
            )
        return
    yield SeenLine(
        level=level,
        members=[site.name(index) for index in sorted(partial.members)],
        rows=round(statistics.weight * max_samples),
        loss=statistics.loss / statistics.weight if with_metrics else None,
        accuracy=statistics.accuracy / statistics.weight if with_metrics else None,
    )


def _emptied(site: TargetSite, partial_sums: Iterable[PartialSum]) -> list[str]:
    """Layers that are zero in a sum at ``sum``: too few sources contributed enough there, so the norm cap was zero."""
    sums = [partial.vector for partial in partial_sums if partial.level is Visibility.SUM]
    sizes = site.trainer.sizes
    edges = np.cumsum(sizes)[:-1]
    return [
        name
        for vector in sums
        for (name, _), layer in zip(site.trainer.layers, np.split(vector[: sum(sizes)], edges), strict=True)
        if not layer.any()
    ]


SILENT_ROUNDS = 3
"""After so many rounds in a row in which norm caps left the sources no part in the step, the run says so, once."""


def is_silenced(line: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> bool:
    """Whether ``line``, which follows ``records``, is the first to end `SILENT_ROUNDS` rounds without the sources.

    In each of them norm caps emptied a layer, and the sources had no part in the step. So layers count by the length
    of what is left in them, not by number: a sum with biases alone is as good as none.
    """
    last = [*records, line][-SILENT_ROUNDS:]
    empty = [bool(one.get("emptied")) and one.get("source_share", 1.0) < NO_PART for one in last]
    return len(empty) == SILENT_ROUNDS and all(empty) and not any(one.get("silenced") for one in records)


def last_errors(records: Sequence[Mapping[str, Any]]) -> dict[Rule, float] | None:
    """The estimated errors of the last round that has them; None before there is one."""
    for record in reversed(records):
        if record.get("delta_errors"):
            return {Rule(rule): error for rule, error in record["delta_errors"].items()}
    return None


def largest_factor(records: Sequence[Mapping[str, Any]], plan: RoundPlan, max_samples: int) -> float:
    """The largest sum of the sources' n_i beta_i, in units of ``max_samples``, in the rounds so far of a plan's rule.

    It bounds the factor n_i beta_i of each. At most 1; also 1 before there is such a round, and where each layer has a
    beta of its own.
    """
    factors = [
        record["mean_beta"] * sum(seen["rows"] for seen in record["seen"]) / max_samples
        for record in records
        if record["rule"] == plan.rule and record.get("mean_beta") is not None and not plan.beta_per_layer
    ]
    return min(1.0, max(factors, default=1.0)) or 1.0
