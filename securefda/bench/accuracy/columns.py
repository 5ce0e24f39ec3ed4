"""The building blocks of an accuracy suite: rules, data sets, columns, requirements. The suites are in ``suites``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, Self

from securefda.bench.accuracy.paper import Published

if TYPE_CHECKING:
    from securefda.bench.accuracy.results import Results
    from securefda.site.config import FederationConfig

Settings = tuple[str, ...]
"""``KEY=VALUE`` each, as for ``--set``."""

Plot = Literal["columns", "line", "betas", "selection"]
"""The suite's metric by column; the same over ``Column.x``; β over rounds; predicted against actual best rule."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """The rounds of an example federation, and the target's learning rate before and after warm-up."""

    rounds: int = 1
    warm_up_rounds: int = 0
    learning_rate: float = 1.0
    lr_after_warm_up: float = 1.0

    @classmethod
    def of(cls, config: FederationConfig) -> Self:
        """Return the schedule of a federation."""
        from securefda.site.config import strategy_of

        strategy, rate = strategy_of(config.strategy), config.training.target.learning_rate
        return cls(strategy.rounds, strategy.warm_up_rounds, rate, strategy.lr_after_warm_up)


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
        """Return all of its settings, for a schedule."""
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
        settings: beside the example's, in all runs; a rule's come after them.
        targets: sites that take turns as the target, the others being the sources; empty for the example's own.
        levels: level -> settings that this data set needs there beside the level's name.
        split: option of the task that is set to a run's seed, where rows are not held out by the seed itself.
    """

    example: str
    folder: str = ""
    targets: tuple[str, ...] = ()
    settings: Settings = ()
    levels: Mapping[str, Settings] = field(default_factory=dict)
    split: str = ""

    def target_settings(self, target: str) -> Settings:
        """Return the settings that make ``target`` the target; none for the empty name."""
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
        metric: name of the metric that tables begin with, and that plots and requirements are about; higher is better.
    """

    title: str
    columns: tuple[Column, ...]
    rules: tuple[str, ...]
    plots: tuple[Plot, ...]
    bars: tuple[AcceptanceCriterion, ...] = ()
    published: Mapping[str, Published] = field(default_factory=dict)
    axis: str = ""
    averaged: bool = False
    losses: bool = False
    metric: str = "accuracy"

    @property
    def data(self) -> tuple[str, ...]:
        """Names of its data sets, in order."""
        return tuple(dict.fromkeys(column.data for column in self.columns))


class AcceptanceCriterion(Protocol):
    """A requirement on the results of a suite."""

    def misses(self, results: Results) -> Iterator[str]:
        """Yield a line for each point that does not hold, or cannot be judged because runs are missing."""


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
        BenchRule("analytic", settings=("strategy.rounds=1",)),
        BenchRule(
            "analytic_unlabelled",
            "analytic",
            ("strategy.rounds=1", "training.target.labels=none"),
        ),
        BenchRule(
            "analytic_aligned",
            "analytic",
            ("strategy.rounds=1", "training.target.labels=none", "strategy.align-moments=mean"),
        ),
        BenchRule("fedgp_no_filter", "fedgp", ("strategy.filter=false",)),
        BenchRule("fedgp_with_filter", "fedgp", ("strategy.filter=true",)),
        BenchRule("fedgp_auto_with_filter", "fedgp_auto", ("strategy.filter=true",)),
        BenchRule("fedgp_filtered_auto", settings=("privacy.visibility=individual",)),  # single steps
        BenchRule("personalized_fedavg", settings=("strategy.reptile-rounds={fifth_of_rounds}",)),
        BenchRule("ditto", settings=("strategy.ditto-lambda=1",)),  # this and the next two as in Appendix C.2
        BenchRule("apfl", settings=("strategy.apfl-alpha=0.5",)),
        BenchRule(
            "knn_per", settings=("strategy.knn-neighbours=10", "strategy.knn-weight=0.5", "strategy.knn-scale=1")
        ),
        BenchRule("fedrep", settings=("training.target.personal-layers=2", "training.source.personal-layers=2")),
        *(BenchRule(rule) for rule in ("f_dann", "f_dan", "fada_attention", "fada_adversarial", "fada")),
        # The least bound makes all weights equal but for a thousandth: the same rule without attention.
        BenchRule("fada_adversarial_equal", "fada_adversarial", ("strategy.attention-bound=0.001",)),
        BenchRule("fada_equal", "fada", ("strategy.attention-bound=0.001",)),
        BenchRule("fedda_auto_pseudo", "fedda_auto", ("training.target.labels=pseudo",)),
        BenchRule("fedgp_auto_pseudo", "fedgp_auto", ("training.target.labels=pseudo",)),
        BenchRule("fedda_auto_knn", "fedda_auto", ("strategy.head=knn",)),
        BenchRule("fedgp_auto_knn", "fedgp_auto", ("strategy.head=knn",)),
        # The adapted rules train at a lower rate after warm-up, target_only in no round.
        BenchRule("target_only_low_rate", "target_only", ("training.target.learning-rate={rate_after_warm_up}",)),
        # What the target comes to without the rounds after warm-up: against it their gain is measured.
        BenchRule(
            "warm_target",
            "finetune_offline",
            (
                "strategy.finetune-rounds={rounds_after_warm_up}",
                "training.target.learning-rate={rate_after_warm_up}",
            ),
        ),
    )
}
"""By name, in the order of the tables and of the colours. FedGP filters where its line or else the example says so."""
