"""The question behind ``securefda budget advise`` and its answer; needs no torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from securefda.errors import ConfigError, ExitCode, SecureFdaError
from securefda.privacy.planning import Plan, PlanRequest
from securefda.rules.strategy import Rule

EPSILONS = (1.0, 2.0, 4.0, 8.0)
WITHIN = 0.02
"""The advised epsilon is the smallest whose accuracy is this near to the best one with noise."""


class EpsilonSpentError(SecureFdaError):
    """The rows have already cost as much as every epsilon in the question."""

    exit_code = ExitCode.BUDGET


@dataclass(frozen=True, slots=True)
class Question:
    """The settings to compare for a site.

    Attributes:
        epsilons: each > 0; empty for `EPSILONS` and that of the site's budget.
        rounds: each >= 1; empty for those of the run, and half as many.
        batches: each >= 1; empty for that of the site's settings, and a larger one: four times it, or
            a quarter of the rows where that is more.
        others: rows of every other site, >= 1; None for as many as at this one.
        target_rows: rows of the target, >= 1, where that is another site; None for as many as ``others``.
        stand_in: a CSV file, a folder of images or a data folder with public rows; None: rows are drawn, or dealt out
            anew where all rows of the task are public.
        best_accuracy: that the best model would have on rows that are drawn, in (0, 1).
        everywhere: whether all sites train with noise, not only those of this site's role.
        seeds: runs of each setting, >= 1.
        time_limit_s: no run begins that would not end within it; the first one always does. > 0.

    Raises:
        ConfigError: a value out of bounds; ``key`` is the option's.
    """

    epsilons: tuple[float, ...] = ()
    rounds: tuple[int, ...] = ()
    batches: tuple[int, ...] = ()
    others: int | None = None
    target_rows: int | None = None
    stand_in: Path | None = None
    best_accuracy: float = 0.9
    everywhere: bool = False
    seeds: int = 2
    time_limit_s: float = 600.0

    def __post_init__(self) -> None:
        _require_each("--epsilon", self.epsilons, "a number above 0", lambda one: math.isfinite(one) and one > 0)
        for option, values in (("--rounds", self.rounds), ("--batch", self.batches)):
            _require_each(option, values, "at least 1", lambda one: one >= 1)
        for option, count in (("--others", self.others), ("--target-rows", self.target_rows)):
            _require_each(option, () if count is None else (count,), "at least 1", lambda one: one >= 1)
        _require_each("--best-accuracy", (self.best_accuracy,), "between 0 and 1", lambda one: 0 < one < 1)
        _require_each("--seeds", (self.seeds,), "at least 1", lambda one: one >= 1)
        _require_each("--time-limit", (self.time_limit_s,), "a number above 0", lambda one: one > 0)
        if self.stand_in is not None and not self.stand_in.exists():
            raise ConfigError("--stand-in", f"{self.stand_in} is missing", hint="name a file or folder of public rows")


def _require_each(option: str, values: Sequence[Any], what: str, holds: Callable[[Any], bool]) -> None:
    for value in values:
        if not holds(value):
            raise ConfigError(option, f"must be {what}, not {value!r}")


@dataclass(slots=True)
class Cell:
    """One setting, and the results of its runs.

    Attributes:
        epsilon: with all that was spent before; None without noise.
        rounds, batch: of the setting.
        plan: the noise that keeps the epsilon at this site; None without noise.
        accuracies: of each run that has ended, mean over its last five rounds, in [0, 1].
        alone: of each run without noise, the accuracy of the target by itself; empty where that trains with noise.
        failed: why a run ended early; empty where none did.
    """

    epsilon: float | None
    rounds: int
    batch: int
    plan: Plan | None
    accuracies: list[float] = field(default_factory=list)
    alone: list[float] = field(default_factory=list)
    failed: str = ""

    @property
    def accuracy(self) -> float | None:
        """The mean over the runs; None if one failed or none has ended."""
        return fmean(self.accuracies) if self.accuracies and not self.failed else None


@dataclass(frozen=True, slots=True)
class Advice:
    """The result of the runs.

    Attributes:
        cells: every setting, those without noise among them.
        best: epsilon, None for no noise -> its best setting.
        advised: the setting to take.
        plan: its noise at this site.
        request: what the planner was asked for it.
        past_epsilon: what the ledger holds already.
        stand_in: where the rows come from, for people.
        counts: site -> rows of the stand-in that it trained on, the target first.
        guess: accuracy of the one label that is most frequent; None where labels are numbers.
        alone: accuracy of the target without any source; None where it was not measured.
        rule: of the strategy.
        metric: what the accuracies are, for people: of times to an event, the concordance index.
        noisy: sides that trained with noise, for people.
        strategy: keys of the target's strategy that make the advised rounds -> value.
        seconds: that the runs took.
        out_of_time: whether the limit kept a run from beginning.
        notes: lines for the user.
    """

    cells: tuple[Cell, ...]
    best: Mapping[float | None, Cell]
    advised: Cell
    plan: Plan
    request: PlanRequest
    past_epsilon: float
    stand_in: str
    counts: Mapping[str, int]
    guess: float | None
    alone: float | None
    rule: str
    metric: str
    noisy: str
    strategy: Mapping[str, int]
    seconds: float
    out_of_time: bool
    notes: tuple[str, ...]

    @property
    def of_moments(self) -> bool:
        """Whether a run is one release of second moments of all rows, without batches."""
        return self.rule == Rule.ANALYTIC
