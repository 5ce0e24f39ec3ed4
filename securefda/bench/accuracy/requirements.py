"""Requirements on a suite's figures: a line for each point that does not hold or was not measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from securefda.bench.accuracy.columns import Column
from securefda.bench.accuracy.paper import MEAN
from securefda.bench.accuracy.results import Results
from securefda.rules.strategy import CANDIDATES, choose_rule
from securefda.task_metric import metric_of


@dataclass(frozen=True, slots=True)
class AtLeast:
    """A rule reaches ``points`` percent, or this many points more than another rule; in units of the suite's metric.

    In each of the named columns; without names, in the mean over all columns. ``data`` leaves those of one data set.
    """

    rule: str
    points: float
    over: str = ""
    columns: tuple[str, ...] = ()
    data: str = ""

    def misses(self, results: Results) -> Iterator[str]:
        """See `AcceptanceCriterion`."""
        for column in self.columns or (MEAN,):
            reached = results.overall(self.rule, column, self.data)
            other = results.overall(self.over, column, self.data) if self.over else 0.0
            where = f"{self.data}, {column}" if self.data else column
            if reached is None or other is None:
                yield missing(where, self.rule, *([self.over] if self.over else []))
            elif reached < other + self.points:
                than = f"{self.over} + {self.points:g} = " if self.over else ""
                form = ".1f" if metric_of(results.suite.metric).percent else ".3f"
                must = format(other + self.points, form)
                yield f"MISSED: {where}: {self.rule} is {reached:{form}}, must reach {than}{must}"


@dataclass(frozen=True, slots=True)
class BestAtLeast:
    """The best of these rules is, in the mean over all columns, this many points above another rule, or below it."""

    rules: tuple[str, ...]
    points: float
    over: str

    def misses(self, results: Results) -> Iterator[str]:
        """See `AcceptanceCriterion`."""
        reached = {rule: value for rule in self.rules if (value := results.overall(rule, MEAN)) is not None}
        other = results.overall(self.over, MEAN)
        if other is None or len(reached) < len(self.rules):
            yield missing(MEAN, *self.rules, self.over)
            return
        best = max(reached, key=lambda rule: reached[rule])
        if reached[best] < other + self.points:
            must = f"{self.over} {'+' if self.points >= 0 else '-'} {abs(self.points):g} = {other + self.points:.1f}"
            yield f"MISSED: {MEAN}: {best}, the best of {len(reached)}, is {reached[best]:.1f}, must reach {must}"


@dataclass(frozen=True, slots=True)
class AtMost:
    """A rule's mean over all columns stays at or below ``points`` percent, which proves that the suite has a shift."""

    rule: str
    points: float

    def misses(self, results: Results) -> Iterator[str]:
        """See `AcceptanceCriterion`."""
        reached = results.overall(self.rule, MEAN)
        if reached is None:
            yield missing(MEAN, self.rule)
        elif reached > self.points:
            yield f"MISSED: {MEAN}: {self.rule} is {reached:.1f}, may not be above {self.points:.1f}"


@dataclass(frozen=True, slots=True)
class BestIsOneOf:
    """In a column, no measured rule is above the best of these, apart from rules with more data."""

    rules: tuple[str, ...]
    column: str
    apart_from: tuple[str, ...] = ()

    def misses(self, results: Results) -> Iterator[str]:
        """See `AcceptanceCriterion`."""
        reached = {rule: results.overall(rule, self.column) for rule in results.rules if rule not in self.apart_from}
        known = {rule: value for rule, value in reached.items() if value is not None}
        if not set(self.rules) <= set(known):
            yield missing(self.column, *self.rules)
            return
        best = max(known, key=lambda rule: known[rule])
        if known[best] > max(known[rule] for rule in self.rules):
            yield f"MISSED: {self.column}: {best} is best with {known[best]:.1f}, not {' or '.join(self.rules)}"


@dataclass(frozen=True, slots=True)
class Steadier:
    """On every data set, a rule's range of accuracy over the columns is smaller than another rule's."""

    rule: str
    than: str

    def misses(self, results: Results) -> Iterator[str]:
        """See `AcceptanceCriterion`."""
        for data in results.data:
            own, other = results.spread(self.rule, data), results.spread(self.than, data)
            if own is None or other is None:
                yield missing(data, self.rule, self.than)
            elif own >= other:
                yield f"MISSED: {data}: {self.rule} varies by {own:.1f} points, {self.than} by {other:.1f}"


@dataclass(frozen=True, slots=True)
class Judgement:
    """One point of a grid: the estimated errors, and the results of the runs.

    What they say is read off the first round that estimates them, mean over seeds. It is the only one whose model has
    not been trained on the target's rows, as the estimators take it to be, and in which all rules but target_only still
    have one model. The manual's page on accuracy compares it with later rounds.

    Attributes:
        column: where.
        distance: d², the estimated error of source_only; ``variance``: σ², that of target_only.
        predicted: the rule that ``auto`` takes for these errors; ``later``: for the mean errors of all its rounds.
        actual: the rule with the smallest loss.
        losses: rule -> mean loss over seeds.
    """

    column: Column
    distance: float
    variance: float
    predicted: str
    later: str
    actual: str
    losses: dict[str, float]

    def holds(self, within: float, rule: str) -> bool:
        """Return whether the loss of a rule is at most this share above the best one's."""
        return self.losses[rule] <= (1 + within) * self.losses[self.actual]


@dataclass(frozen=True, slots=True)
class SelectionHolds:
    """Estimated errors find the best rule, and ``auto``, which uses them, is never the worst and close to the best.

    They have to in the first round that estimates them and as a mean over all rounds.

    Attributes:
        share: of the grid in which the rule with the smallest estimated error has to be best.
        within: how far its loss may be above the best one's, as a share of it, and still count as best.
        points: by how many points of accuracy auto may be below the best fixed rule, mean over the grid.
    """

    share: float = 0.75
    within: float = 0.02
    points: float = 1.0

    def misses(self, results: Results) -> Iterator[str]:
        """See `AcceptanceCriterion`."""
        judged = judgements(results)
        if not judged or len(judged) < len(results.columns):
            yield missing("grid", *CANDIDATES, "auto")
            return
        yield from self._wrong("first round", judged, [one.predicted for one in judged])
        yield from self._wrong("all rounds", judged, [one.later for one in judged])
        for one in judged:
            worst = max(one.losses[rule] for rule in CANDIDATES)
            if one.losses["auto"] > worst:
                yield f"MISSED: {one.column.name}: loss of auto is {one.losses['auto']:.4g}, of the worst {worst:.4g}"
        if (lost := _lost(results)) > self.points:
            yield f"MISSED: auto is {lost:.2f} points below the best rule on average, may be {self.points:g}"

    def _wrong(self, rounds: str, found: Sequence[Judgement], rules: Sequence[str]) -> Iterator[str]:
        right = sum(one.holds(self.within, rule) for one, rule in zip(found, rules, strict=True)) / len(found)
        if right < self.share:
            what = f"the estimated errors are right on {right:.0%} of the grid, must be on {self.share:.0%}"
            yield f"MISSED: {rounds}: {what}"


def judgements(results: Results) -> list[Judgement]:
    """Return predictions and results for every column in which all candidates and auto were measured."""
    judged = []
    for column in results.columns:
        errors = results.first_errors("auto", column)
        losses = {rule: results.mean_loss(rule, column) for rule in (*CANDIDATES, "auto")}
        known = {rule: loss for rule, loss in losses.items() if loss is not None}
        if not errors or len(known) < len(losses):
            continue
        judged.append(
            Judgement(
                column,
                distance=errors["source_only"],
                variance=errors["target_only"],
                predicted=_choice(errors),
                later=_choice(results.mean_errors("auto", column)),
                actual=min(CANDIDATES, key=lambda rule: known[rule]),
                losses=known,
            )
        )
    return judged


def _choice(errors: Mapping[str, float]) -> str:
    return choose_rule({rule: errors[rule] for rule in CANDIDATES})


def missing(where: str, *rules: str) -> str:
    """Return the line of a requirement that cannot be judged."""
    return f"MISSING: {where}: {' or '.join(rules)} was not measured with every seed on every target"


def _lost(results: Results) -> float:
    """Return the points of accuracy by which auto is below the best fixed rule, mean over the columns."""
    return fmean(
        max(_known(results, rule, column) for rule in CANDIDATES) - _known(results, "auto", column)
        for column in results.columns
    )


def _known(results: Results, rule: str, column: Column) -> float:
    value = results.mean(rule, column)
    return float("nan") if value is None else value


def compare_levels(
    own: Results, other: Results, points: float, rules: Iterable[str]
) -> tuple[list[str], Sequence[tuple[str, float]]]:
    """Compare two measurements of one suite, rule by rule, on the runs that both have.

    Args:
        own: at one level.
        other: of the same suite, at another.
        points: how far means over all columns may be apart.
        rules: names of those to compare.

    Returns:
        A line for every rule whose means are further apart or that has none in both, and (rule, own less other) of
        every other one.
    """
    differences = {rule: own.difference(other, rule) for rule in rules}
    lines = [
        f"MISSING: {rule} was not measured with every seed at both levels"
        if difference is None
        else f"MISSED: {rule}: {abs(difference):.2f} points between the levels, may be {points:g}"
        for rule, difference in differences.items()
        if difference is None or abs(difference) > points
    ]
    return lines, [(rule, difference) for rule, difference in differences.items() if difference is not None]
