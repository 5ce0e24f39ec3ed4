"""The runs of a suite, and the means for tables, plots and requirements."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from securefda.bench.accuracy.columns import RULES, Column, Suite
from securefda.bench.accuracy.federated import RunResult
from securefda.bench.accuracy.paper import MEAN

BySeed = dict[int, float]


@dataclass(frozen=True, slots=True)
class RunKey:
    """The identity of a run in a suite: a target of a column under a rule, with a seed. ``target`` may be empty."""

    data: str
    column: str
    target: str
    rule: str
    seed: int

    def __str__(self) -> str:
        """Return the key in words, for progress and errors."""
        parts = dict.fromkeys(part for part in (self.data, self.column, self.target, self.rule) if part)
        return f"{', '.join(parts)}, seed {self.seed}"


class Results:
    """Runs by key, with the means of a suite."""

    def __init__(self, suite: Suite, runs: Mapping[RunKey, RunResult], data: Collection[str] | None = None) -> None:
        """Keep ``runs``; columns are those of ``data``, or for None of the data sets that have any run."""
        self.suite, self.runs = suite, runs
        present = {key.data for key in runs} if data is None else data
        self.columns = tuple(column for column in suite.columns if column.data in present)
        self.data = tuple(data for data in suite.data if data in present)
        self.rules = tuple(rule for rule in RULES if rule in {key.rule for key in runs})
        self.seeds = sorted({key.seed for key in runs})

    def complete(self, seeds: Collection[int], data: Collection[str]) -> Results:
        """Return the results of these seeds and data sets only, without cells in which a rule lacks a seed on a target.

        What is left can be compared: every mean is over the same seeds.
        """
        whole = {
            (column.data, column.name, rule)
            for column in self.suite.columns
            for rule in self.rules
            if column.data in data
            and all(
                RunKey(column.data, column.name, target, rule, seed) in self.runs
                for target in column.targets
                for seed in seeds
            )
        }
        runs = {
            key: result
            for key, result in self.runs.items()
            if key.seed in seeds and (key.data, key.column, key.rule) in whole
        }
        return Results(self.suite, runs, data)

    def columns_of(self, data: str) -> tuple[Column, ...]:
        """Return the columns of a data set."""
        return tuple(column for column in self.columns if column.data == data)

    def metrics_of(self, data: str) -> list[str]:
        """Return the names of all metrics that runs of a data set have; the suite's own comes first."""
        names = dict.fromkeys(name for key, result in self.runs.items() if key.data == data for name in result.metrics)
        return sorted(names, key=lambda name: name != self.suite.metric)

    def by_seed(self, rule: str, column: Column, metric: str = "") -> BySeed:
        """Return a metric, of the suite unless it is named, for every seed that all targets of the column have.

        It is the mean over the targets, in percent where `RunResult.metrics` is.
        """
        name = metric or self.suite.metric
        return self._by_seed(rule, column, lambda result: result.metrics.get(name))

    def losses_by_seed(self, rule: str, column: Column) -> BySeed:
        """Return the loss, mean over the column's targets, for every seed that all have; NaN becomes infinite."""
        return self._by_seed(rule, column, lambda result: math.inf if math.isnan(result.loss) else result.loss)

    def average_by_seed(self, rule: str, columns: Iterable[Column], metric: str = "") -> BySeed:
        """Return a metric as of `by_seed`, mean over columns, for every seed that all of them have."""
        return _common([self.by_seed(rule, column, metric) for column in columns])

    def mean(self, rule: str, column: Column, metric: str = "") -> float | None:
        """Return a metric as of `by_seed`, mean over the seeds; None without a seed that all targets have."""
        return _mean(self.by_seed(rule, column, metric))

    def mean_loss(self, rule: str, column: Column) -> float | None:
        """Return the loss, mean over the seeds; None without a seed that all targets have."""
        return _mean(self.losses_by_seed(rule, column))

    def overall(self, rule: str, column: str, data: str = "") -> float | None:
        """Return the suite's metric in the named column, or over all columns (`MEAN`); None as of `mean`.

        ``data`` leaves only the columns of that data set.
        """
        columns = self.columns_of(data) if data else self.columns
        if column == MEAN:
            return _mean(self.average_by_seed(rule, columns))
        return next((self.mean(rule, one) for one in columns if one.name == column), None)

    def spread(self, rule: str, data: str) -> float | None:
        """Return largest less smallest mean over the columns of a data set; None if one was not measured."""
        means = [self.mean(rule, column) for column in self.columns_of(data)]
        known = [value for value in means if value is not None]
        return max(known) - min(known) if known and len(known) == len(means) else None

    def first_errors(self, rule: str, column: Column) -> dict[str, float]:
        """Return estimated errors by rule in the first round that has them, mean over the runs of a column; empty
        without.
        """
        return _mean_errors([result.delta_errors[0] for result in self._of(rule, column) if result.delta_errors])

    def mean_errors(self, rule: str, column: Column) -> dict[str, float]:
        """Return estimated errors by rule over all rounds that have them, mean over the runs of a column."""
        return _mean_errors([errors for result in self._of(rule, column) for errors in result.delta_errors])

    def betas(self, rule: str, column: Column) -> dict[str, list[tuple[int, float]]]:
        """Return source -> (round, β), mean over the runs of a column that have one in that round."""
        lines: dict[str, list[tuple[int, float]]] = {}
        results = list(self._of(rule, column))
        for source in dict.fromkeys(source for result in results for source in result.betas):
            by_round = zip(*(result.betas[source] for result in results if source in result.betas), strict=False)
            known = ((number, [beta for beta in betas if beta is not None]) for number, betas in enumerate(by_round, 1))
            lines[source] = [(number, fmean(betas)) for number, betas in known if betas]
        return lines

    def difference(self, other: Results, rule: str) -> float | None:
        """Return own less other mean over all columns, on the seeds that both have; None without one."""
        own, theirs = (one.average_by_seed(rule, self.columns) for one in (self, other))
        seeds = [seed for seed in own if seed in theirs]
        return fmean(own[seed] - theirs[seed] for seed in seeds) if seeds else None

    def _of(self, rule: str, column: Column) -> Iterable[RunResult]:
        return (
            result
            for key, result in self.runs.items()
            if (key.rule, key.data, key.column) == (rule, column.data, column.name)
        )

    def _by_seed(self, rule: str, column: Column, figure: Callable[[RunResult], float | None]) -> BySeed:
        columns = []
        for target in column.targets:
            keys = {seed: RunKey(column.data, column.name, target, rule, seed) for seed in self.seeds}
            figures = {seed: figure(self.runs[key]) for seed, key in keys.items() if key in self.runs}
            columns.append({seed: value for seed, value in figures.items() if value is not None})
        return _common(columns)


def _common(parts: list[BySeed]) -> BySeed:
    """Return the means over the parts, for the seeds that all of them have."""
    if not parts:
        return {}
    return {seed: fmean(part[seed] for part in parts) for seed in parts[0] if all(seed in part for part in parts)}


def _mean_errors(found: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: fmean(errors[name] for errors in found) for name in found[0]} if found else {}


def _mean(values: BySeed) -> float | None:
    return fmean(values.values()) if values else None
