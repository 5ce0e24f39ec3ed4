"""The suites of ``securefda bench accuracy``, as data: which rules on which columns, and what must come of it.

A rule is a line of `RULES`; to add one, add a line, and its name to a group or to a suite. Everything that no line
here sets is as in the example federation of the data set, the same for all rules and columns.

Figures of the paper, to stand beside ours: Jiang, Zhang, Koyejo, ICLR 2024. Percent on the target's test rows.

Names of rules and columns are those of `securefda.bench.suites`.

What a suite of accuracy is made of: data sets, columns, rules. The suites themselves are in `suites`.

What a suite's figures must show. A bar gives a line for each point that does not hold or was not measured.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Literal, Protocol

from securefda.rules.strategy import CANDIDATES, choose_rule
from securefda.tasks.fed_heart import HOSPITALS

MEAN = "mean"
"""Column of the mean over all columns."""


@dataclass(frozen=True, slots=True)
class Published:
    """A table of the paper.

    Attributes:
        where: its number or numbers, for example ``Table 17``.
        columns: their names, in the order of the figures.
        rows: rule -> figure of each column; None where the paper has none.
    """

    where: str
    columns: tuple[str, ...]
    rows: Mapping[str, tuple[float | None, ...]]

    def figure(self, rule: str, column: str) -> float | None:
        """The paper's figure; None where there is none."""
        if rule not in self.rows or column not in self.columns:
            return None
        return self.rows[rule][self.columns.index(column)]


FED_HEART = Published(
    "Table 17",
    ("cleveland", "hungarian", "switzerland", "va", MEAN),
    {
        "source_only": (76.92, 75.96, 62.50, 55.56, 67.74),
        "fedavg": (75.96, 76.40, 62.50, 55.56, 67.61),
        "fedda": (79.81, 78.65, 67.50, 62.22, 72.05),
        "fedgp": (78.85, 80.45, 68.75, 65.33, 73.35),
        "fedda_auto": (80.77, 80.90, 68.75, 71.11, 75.38),
        "fedgp_auto": (80.77, 79.78, 68.75, 69.78, 74.77),
        "ditto": (76.92, 73.03, 62.50, 55.56, 67.00),
        "apfl": (51.92, 57.30, 31.25, 42.22, 45.67),
        "knn_per": (56.00, 56.00, 56.00, 56.00, 56.00),
    },
)

COLORED_MNIST = Published(
    "Tables 1 and 2",
    ("plus-90", "plus-80", "minus-90", MEAN),
    {
        "source_only": (56.82, 62.37, 27.77, 48.99),
        "finetune_offline": (66.58, 69.09, 53.86, 63.18),
        "fedda": (60.49, 65.07, 33.04, 52.87),
        "fedgp": (83.68, 74.41, 89.76, 82.42),
        "fedda_auto": (85.29, 73.13, 88.83, 82.72),
        "fedgp_auto": (86.18, 76.49, 89.62, 84.10),
        "target_only": (85.60, 73.54, 87.05, 82.06),
        "oracle": (89.94, 80.32, 89.99, 86.75),
        "fedavg": (None, None, None, 48.7),
        "ditto": (None, None, None, 50.9),
        "fedrep": (None, None, None, 44.5),
        "apfl": (None, None, None, 45.2),
        "knn_per": (None, None, None, 49.1),
    },
)

NOISY_FASHION = Published(
    "Table 12, without filter Figure 4",
    ("0", "0.2", "0.4", "0.6", "0.8"),
    {
        "source_only": (83.94, 25.49, 18.55, 16.71, 14.99),
        "finetune_offline": (81.39, 48.26, 40.15, 36.64, 33.71),
        "fedda": (86.41, 69.73, 58.60, 50.13, 45.51),
        "fedgp": (76.33, 75.09, 71.09, 68.01, 62.22),
        "fedgp_no_filter": (None, None, 69.51, 65.46, 60.70),
        "fedda_auto": (78.25, 77.03, 72.68, 67.69, 62.85),
        "fedgp_auto": (76.19, 75.09, 71.46, 67.53, 62.93),
        "target_only": (74.00, 70.59, 66.03, 61.26, 57.82),
        "oracle": (82.00, 82.53, 81.20, 75.60, 72.60),
    },
)

LABEL_SHIFT = Published(
    "Table 13",
    ("0.45", "0.3", "0.15", "0.1", "0.05", "0"),
    {
        "source_only": (83.97, 79.71, 69.15, 59.90, 52.51, 0.00),
        "finetune_offline": (79.84, 80.21, 83.13, 85.43, 89.63, 33.25),
        "fedda": (82.44, 80.85, 77.50, 76.51, 68.26, 59.56),
        "fedgp": (82.97, 83.24, 85.97, 88.72, 91.89, 98.71),
        "fedda_auto": (83.94, 83.91, 86.50, 89.45, 91.87, 98.51),
        "fedgp_auto": (84.68, 84.14, 86.72, 89.58, 92.03, 98.53),
        "target_only": (81.05, 82.44, 84.00, 88.02, 89.80, 98.32),
        "oracle": (87.68, 88.06, 90.56, 91.90, 93.46, 98.73),
    },
)

# Means of Tables 9 to 11, which have one target each.
BETA_COLORED_MNIST = Published(
    "mean of Tables 9 to 11",
    ("0.2", "0.4", "0.6", "0.8"),
    {"fedda": (77.01, 65.24, 54.11, 50.59), "fedgp": (84.18, 84.55, 86.37, 86.77)},
)

# At noise 0.4, which is the task's default; 500 and 1000 rows are more than the target has of 3,600 images.
TARGET_SIZE_FASHION = Published(
    "Tables 15 and 16, noise 0.4",
    ("100", "200"),
    {
        "fedavg": (59.36, 60.20),
        "fedda": (58.60, 58.59),
        "fedgp": (71.09, 70.93),
        "fedda_auto": (72.21, 74.30),
        "fedgp_auto": (71.93, 72.96),
    },
)


Settings = tuple[str, ...]
"""``KEY=VALUE`` each, as for ``--set``."""

Plot = Literal["columns", "line", "betas", "selection"]
"""Accuracy by column; accuracy over ``Column.x``; β over rounds; predicted against actual best rule."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """The rounds of an example federation, and the target's learning rate before and after warm-up."""

    rounds: int = 1
    warm_up_rounds: int = 0
    learning_rate: float = 1.0
    lr_after_warm_up: float = 1.0


@dataclass(frozen=True, slots=True)
class BenchRule:
    """A row of the tables.

    Attributes:
        name: what tables and ``--rules`` call it.
        rule: of the strategy; empty where it is the name.
        settings: beside the rule. ``{rounds_after_warm_up}`` stands for how many rounds the schedule has after warm-up,
            ``{fifth_of_rounds}`` for a fifth of all, at least one, and ``{rate_after_warm_up}`` for the target's
            learning rate in rounds after warm-up.
    """

    name: str
    rule: str = ""
    settings: Settings = ()

    def settings_for(self, schedule: Schedule) -> Settings:
        """All of its settings, for a schedule."""
        numbers = {
            "{rounds_after_warm_up}": schedule.rounds - schedule.warm_up_rounds,
            "{fifth_of_rounds}": max(schedule.rounds // 5, 1),
            "{rate_after_warm_up}": f"{schedule.learning_rate * schedule.lr_after_warm_up:g}",
        }
        filled = list(self.settings)
        for name, number in numbers.items():
            filled = [text.replace(name, str(number)) for text in filled]
        return (f"strategy.rule={self.rule or self.name}", *filled)


@dataclass(frozen=True, slots=True)
class DataSet:
    """An example federation with the files that it needs.

    Attributes:
        example: name of the sample configuration.
        folder: of its files below ``--data-dir``; empty where the data are bundled.
        targets: sites that take turns as the target, the others being the sources; empty for the example's own.
        levels: level -> settings that this data set needs there beside the level's name.
    """

    example: str
    folder: str = ""
    targets: tuple[str, ...] = ()
    levels: Mapping[str, Settings] = field(default_factory=dict)

    def target_settings(self, target: str) -> Settings:
        """What makes ``target`` the target; nothing for the empty name."""
        if not target:
            return ()
        sources = [site for site in self.targets if site != target]
        return (f"federation.target={target}", f"federation.sources={json.dumps(sources)}")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: a data set under some settings. Its figure is the mean over its targets.

    Attributes:
        data: name of the data set; each has a table and a panel of its own.
        name: heading.
        settings: beside the example's.
        targets: who is the target; the empty name for the example's own.
        x: its place on a plot over x; ``y`` is a second axis, of a grid.
    """

    data: str
    name: str
    settings: Settings = ()
    targets: tuple[str, ...] = ("",)
    x: float | None = None
    y: float | None = None


@dataclass(frozen=True, slots=True)
class Suite:
    """Columns times rules.

    Attributes:
        title: of tables and plots.
        columns: in order.
        rules: names, in order; what is run unless others are asked for.
        plots: which there are.
        bars: what ``--check`` requires.
        published: data set -> the paper's figures.
        axis: what x is.
        averaged: whether a mean over the columns of a data set says something.
        losses: whether there is a table of losses too.
    """

    title: str
    columns: tuple[Column, ...]
    rules: tuple[str, ...]
    plots: tuple[Plot, ...]
    bars: tuple[Bar, ...] = ()
    published: Mapping[str, Published] = field(default_factory=dict)
    axis: str = ""
    averaged: bool = False
    losses: bool = False

    @property
    def data(self) -> tuple[str, ...]:
        """Names of its data sets, in order."""
        return tuple(dict.fromkeys(column.data for column in self.columns))


if TYPE_CHECKING:
    from securefda.bench.results import Results

    pass


class Bar(Protocol):
    """One requirement."""

    def misses(self, results: Results) -> Iterator[str]:
        """A line for everything that does not hold, or cannot be judged for want of runs."""


@dataclass(frozen=True, slots=True)
class AtLeast:
    """A rule reaches ``points`` percent, or so many points more than another rule.

    In each of the named columns; without names, in the mean over all columns.
    """

    rule: str
    points: float
    over: str = ""
    columns: tuple[str, ...] = ()

    def misses(self, results: Results) -> Iterator[str]:
        """See `Bar`."""
        for column in self.columns or (MEAN,):
            reached = results.overall(self.rule, column)
            other = results.overall(self.over, column) if self.over else 0.0
            if reached is None or other is None:
                yield missing(column, self.rule, *([self.over] if self.over else []))
            elif reached < other + self.points:
                than = f"{self.over} + {self.points:g} = " if self.over else ""
                yield f"MISSED: {column}: {self.rule} is {reached:.1f}, must reach {than}{other + self.points:.1f}"


@dataclass(frozen=True, slots=True)
class AtMost:
    """A rule's mean over all columns stays at or below ``points`` percent: the suite has a shift worth its name."""

    rule: str
    points: float

    def misses(self, results: Results) -> Iterator[str]:
        """See `Bar`."""
        reached = results.overall(self.rule, MEAN)
        if reached is None:
            yield missing(MEAN, self.rule)
        elif reached > self.points:
            yield f"MISSED: {MEAN}: {self.rule} is {reached:.1f}, may not be above {self.points:.1f}"


@dataclass(frozen=True, slots=True)
class BestIsOneOf:
    """In a column no rule that was measured is above the best of these, apart from those that have more data."""

    rules: tuple[str, ...]
    column: str
    apart_from: tuple[str, ...] = ()

    def misses(self, results: Results) -> Iterator[str]:
        """See `Bar`."""
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
    """On every data set, a rule's accuracy varies less over the columns than another rule's: largest less smallest."""

    rule: str
    than: str

    def misses(self, results: Results) -> Iterator[str]:
        """See `Bar`."""
        for data in results.data:
            own, other = results.spread(self.rule, data), results.spread(self.than, data)
            if own is None or other is None:
                yield missing(data, self.rule, self.than)
            elif own >= other:
                yield f"MISSED: {data}: {self.rule} varies by {own:.1f} points, {self.than} by {other:.1f}"


@dataclass(frozen=True, slots=True)
class Judgement:
    """One point of a grid: what the estimated errors say, and what the runs gave.

    What they say is read off the first round that estimates them, mean over seeds. It is the only one whose model has
    not been trained on the target's rows, as the estimators take it to be, and in which all rules but target_only still
    have one model. `benchmarks/rbf_errors.py` compares it with later rounds.

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
        """Whether the loss of a rule is at most this far above the best one's, as a share of it."""
        return self.losses[rule] <= (1 + within) * self.losses[self.actual]


@dataclass(frozen=True, slots=True)
class SelectionHolds:
    """Estimated errors find the best rule, and ``auto``, which goes by them, is never the worst and near the best.

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
        """See `Bar`."""
        found = judgements(results)
        if not found or len(found) < len(results.columns):
            yield missing("grid", *CANDIDATES, "auto")
            return
        yield from self._wrong("first round", found, [one.predicted for one in found])
        yield from self._wrong("all rounds", found, [one.later for one in found])
        for one in found:
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
    """What was predicted and what came of it, for every column in which all candidates and auto were measured."""
    found = []
    for column in results.columns:
        errors = results.first_errors("auto", column)
        losses = {rule: results.mean_loss(rule, column) for rule in (*CANDIDATES, "auto")}
        known = {rule: loss for rule, loss in losses.items() if loss is not None}
        if not errors or len(known) < len(losses):
            continue
        found.append(
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
    return found


def _choice(errors: Mapping[str, float]) -> str:
    return choose_rule({rule: errors[rule] for rule in CANDIDATES})


def missing(where: str, *rules: str) -> str:
    """The line of a bar that cannot be judged."""
    return f"MISSING: {where}: {' or '.join(rules)} was not measured with every seed on every target"


def _lost(results: Results) -> float:
    """Points of accuracy that auto is below the best fixed rule, mean over the columns."""
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
    found = {rule: own.difference(other, rule) for rule in rules}
    lines = [
        f"MISSING: {rule} was not measured with every seed at both levels"
        if difference is None
        else f"MISSED: {rule}: {abs(difference):.2f} points between the levels, may be {points:g}"
        for rule, difference in found.items()
        if difference is None or abs(difference) > points
    ]
    return lines, [(rule, difference) for rule, difference in found.items() if difference is not None]


RULES = {
    rule.name: rule
    for rule in (
        BenchRule("source_only"),
        BenchRule("target_only"),
        BenchRule("oracle"),
        BenchRule("fedavg"),
        BenchRule("finetune_offline", settings=("strategy.finetune-rounds={rounds_after_warm_up}",)),
        BenchRule("fedda"),  # with beta = 0.5, unless the column says otherwise
        BenchRule("fedgp"),
        BenchRule("fedda_auto"),
        BenchRule("fedgp_auto"),
        BenchRule("auto"),
        BenchRule("fedgp_no_filter", "fedgp", ("strategy.filter=false",)),
        BenchRule("fedgp_with_filter", "fedgp", ("strategy.filter=true",)),
        BenchRule("fedgp_auto_with_filter", "fedgp_auto", ("strategy.filter=true",)),
        BenchRule("fedgp_filtered_auto", settings=("privacy.visibility=individual",)),  # single steps
        BenchRule("personalized_fedavg", settings=("strategy.reptile-rounds={fifth_of_rounds}",)),
        BenchRule("ditto", settings=("strategy.ditto-lambda=1",)),  # this and the next two as in Appendix C.2
        BenchRule("apfl", settings=("strategy.apfl-alpha=0.5",)),
        BenchRule("knn_per", settings=("strategy.knn-neighbours=10",)),
        BenchRule("fedrep", settings=("training.target.personal-layers=2", "training.source.personal-layers=2")),
        # The adapted rules train at a lower rate after warm-up, target_only in no round.
        BenchRule("target_only_low_rate", "target_only", ("training.target.learning-rate={rate_after_warm_up}",)),
    )
}
"""By name, in the order of the tables and of the colours. FedGP filters where its line or else the example says so."""

BASELINES = ("source_only", "target_only", "oracle", "fedavg", "finetune_offline")
ADAPTING = ("fedda", "fedgp", "fedda_auto", "fedgp_auto", "auto", "fedgp_no_filter")
OF_FASHION = (
    *("source_only", "target_only", "target_only_low_rate", "oracle", "finetune_offline"),
    *("fedda", "fedgp", "fedda_auto", "fedgp_auto"),
)
"""The rules of the paper's tables on Fashion-MNIST."""

PERSONAL = ("personalized_fedavg", "ditto", "apfl", "knn_per", "fedrep")
"""Measured with a model of the target's own; the paper compares with them on ColoredMNIST and Fed-Heart."""

HEART_RULES = ("fedda", "fedgp", "fedda_auto", "fedgp_auto", "auto", "fedgp_with_filter", "fedgp_auto_with_filter")
"""Of Fed-Heart, whose example runs without the filter."""

HEART_PERSONAL = ("personalized_fedavg", "ditto", "apfl", "knn_per")
"""Its model is one layer, of which fedrep would leave nothing to train together."""

DOMAINS = ("plus-90", "plus-80", "minus-90")

DATA = {
    "digits": DataSet(
        "digits",
        levels={
            "cohort": ("privacy.cohort-size=2", "privacy.min-others=1", "privacy.max-colluders=0")
        },  # two cohorts, of 2 and 3
    ),
    "fed-heart": DataSet("fed_heart", "fed_heart", HOSPITALS),
    "colored-mnist": DataSet("colored_mnist", "mnist", DOMAINS),
    "noisy-fashion": DataSet("noisy_fashion_mnist", "fashion_mnist"),
    "label-shift": DataSet("label_shift_fashion_mnist", "fashion_mnist"),
    "rbf": DataSet("rbf"),
}

BETAS = (0.2, 0.4, 0.6, 0.8)
NOISES = (0.0, 0.2, 0.4, 0.6, 0.8)
ETAS = (0.45, 0.3, 0.15, 0.1, 0.05, 0.0)
SHIFTS = (0.0, 0.1, 0.2, 0.4, 0.8)
GRID_ROWS = (10, 30, 100, 300, 1000)
STRONG_NOISE = ("0.4", "0.6", "0.8")


def _each_target(data: str) -> tuple[Column, ...]:
    return tuple(Column(data, target, targets=(target,)) for target in DATA[data].targets)


def _over(data: str, setting: str, values: tuple[float, ...]) -> tuple[Column, ...]:
    """A column for each value of one setting, over all targets."""
    targets = DATA[data].targets or ("",)
    return tuple(Column(data, f"{value:g}", (f"{setting}={value:g}",), targets, x=value) for value in values)


def _grid(data: str) -> tuple[Column, ...]:
    """Every shift with every number of labelled rows: d² grows with the one, and σ² falls with the other.

    Of the target's rows a tenth makes a step, so that all columns have rounds of ten steps.
    """
    return tuple(
        Column(
            data,
            f"shift {shift:g}, {rows} rows",
            (
                f"task.options.shift={shift}",
                f"task.options.target-rows={rows}",
                f"training.target.batch-size={rows // 10}",
            ),
            x=shift,
            y=rows,
        )
        for shift in SHIFTS
        for rows in GRID_ROWS
    )


SUITES = {
    "digits": Suite(
        title="Digits",
        columns=(Column("digits", "target"),),
        rules=(*BASELINES, "target_only_low_rate", *ADAPTING, *PERSONAL),
        plots=("columns", "betas"),
        bars=(
            AtLeast("fedgp_auto", 2.0, over="target_only"),
            AtLeast("fedgp_auto", 20.0, over="source_only"),
        ),
    ),
    "fed-heart": Suite(
        title="Fed-Heart",
        columns=_each_target("fed-heart"),
        rules=(*BASELINES, *HEART_RULES, *HEART_PERSONAL),
        plots=("columns", "betas"),
        bars=(
            AtLeast("fedgp_auto", 74.8),
            AtLeast("fedda_auto", 75.0),
            AtLeast("fedgp_auto", 6.0, over="source_only"),
            AtLeast("fedda_auto", 6.0, over="source_only"),
        ),
        published={"fed-heart": FED_HEART},
        averaged=True,
    ),
    "colored-mnist": Suite(
        title="ColoredMNIST",
        columns=_each_target("colored-mnist"),
        rules=(*BASELINES, "target_only_low_rate", *ADAPTING, *PERSONAL),
        plots=("columns", "betas"),
        bars=(
            AtLeast("fedgp_auto", 82.0),
            AtLeast("fedgp", 20.0, over="fedda"),
            AtLeast("fedda_auto", 20.0, over="fedda"),
            AtMost("source_only", 55.0),
        ),
        published={"colored-mnist": COLORED_MNIST},
        averaged=True,
    ),
    "noisy-fashion": Suite(
        title="Fashion-MNIST, noisy features at the target",
        columns=_over("noisy-fashion", "task.options.noise", NOISES),
        rules=(*OF_FASHION, "fedgp_no_filter"),
        plots=("line", "betas"),
        bars=(
            *(AtLeast(rule, 3.0, "target_only", STRONG_NOISE) for rule in ("fedda_auto", "fedgp_auto")),
            *(AtLeast(rule, 5.0, "fedda", STRONG_NOISE) for rule in ("fedda_auto", "fedgp_auto")),
            BestIsOneOf(("fedda", "source_only"), "0", apart_from=("oracle",)),
        ),
        published={"noisy-fashion": NOISY_FASHION},
        axis="standard deviation of the target's noise",
    ),
    "label-shift": Suite(
        title="Fashion-MNIST, label shift",
        columns=_over("label-shift", "task.options.eta", ETAS),
        rules=OF_FASHION,
        plots=("line", "betas"),
        published={"label-shift": LABEL_SHIFT},
        axis="η; smaller is a larger shift",
    ),
    "rbf": Suite(
        title="Radial basis functions",
        columns=_grid("rbf"),
        rules=("source_only", "target_only", "fedda_auto", "fedgp_auto", "fedda", "fedgp", "auto"),
        plots=("selection",),
        bars=(SelectionHolds(),),
        losses=True,
    ),
    "beta-sweep": Suite(
        title="Fixed β",
        columns=tuple(column for data in DATA for column in _over(data, "strategy.beta", BETAS)),
        rules=("fedda", "fedgp"),
        plots=("line",),
        bars=(Steadier("fedgp", "fedda"),),
        published={"colored-mnist": BETA_COLORED_MNIST},
        axis="β",
    ),
    "target-size": Suite(
        title="Labelled rows of the target",
        columns=(
            *_over("digits", "task.options.target-rows", (25, 50, 100, 200, 400)),
            *_over("colored-mnist", "task.options.target-rows", (6, 18, 60)),
            *_over("noisy-fashion", "task.options.target-rows", (25, 50, 100, 200)),
        ),
        rules=("target_only", "fedavg", "fedda", "fedgp", "fedda_auto", "fedgp_auto"),
        plots=("line",),
        published={"noisy-fashion": TARGET_SIZE_FASHION},
        axis="labelled rows of the target",
    ),
}
"""By name, as in ``--suite``."""
