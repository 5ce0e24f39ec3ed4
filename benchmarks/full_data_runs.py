"""One federation for each cell of the study of full data: which there are, how one runs, and what it gave."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol

from studies import Cache

from securefda.bench.accuracy.federated import Job, run, use_one_thread
from securefda.samples import sample
from securefda.site.config import load_federation

Row = Mapping[str, Any]
"""Of a file of figures."""

VALIDATION_SEED = 10
"""Of the search; in no table."""
SEEDS = (0, 1, 2)
WARM_UP = 2

LOCAL = ("target_only", "warm_target", "fine_tuning")
"""Rules whose target trains at one rate, the study's times the factor, and hardly ever asks the sources."""
ADAPTED = ("target_only", "warm_target", "fedda_auto", "fedgp_auto")
RULES: Mapping[str, tuple[str, ...]] = {
    "warm_target": ("strategy.rule=finetune_offline",),
    "fine_tuning": ("strategy.rule=finetune_offline",),
    "fedda_auto, cross-fitted": ("strategy.rule=fedda_auto", "strategy.variance=cross-fitted"),
    "fedgp_auto, cross-fitted": ("strategy.rule=fedgp_auto", "strategy.variance=cross-fitted"),
}
"""What a table calls a rule, where that is not its name -> its settings."""

CROSS_FITTED = ("fedda_auto, cross-fitted", "fedgp_auto, cross-fitted")

_FEDGP = ("strategy.projection=cosine", "strategy.align=true")
_FIXED, _AUTO = ("training.target.batch-size=16",), ("training.target.batch-size=4",)
AUTHORS: Mapping[str, tuple[float, tuple[str, ...]]] = {
    "source_only": (1.0, _FIXED),
    "warm_target": (1.0, _FIXED),
    "fine_tuning": (0.1, _AUTO),
    "fedda": (1.0, _FIXED),
    "fedgp": (1.0, (*_FIXED, *_FEDGP)),
    "fedda_auto": (0.1, _AUTO),
    "fedgp_auto": (0.1, (*_AUTO, *_FEDGP)),
}
"""Rule -> factor on both learning rates after the warm-up and settings, as in the authors' published code.

``fine_tuning`` is the baseline of the auto rules, and ``warm_target`` that of those with a fixed β: after the warm-up,
the target alone at the same rate.
"""


@dataclass(frozen=True, slots=True)
class Study:
    """An example, what differs from it here, and what is tried.

    Attributes:
        example: name of the sample configuration.
        folder: of its files below the caller's.
        settings: beside the example's.
        rounds: of rules that need the sources in every round, warm-up included.
        local_rounds: of `LOCAL` rules, which cost less: never fewer.
        rate: the target's learning rate, before any factor.
        factors: on both learning rates after the warm-up; one of them is chosen for each rule. One above 1 is on the
            target's alone.
        more_factors: tried as well for `LOCAL` rules, so that none of them wants a rate that it was not given.
        rules: that are compared, as tables call them.
        given: rule -> its factor, which is then not searched for, and its settings.
        targets: who takes turns as the target; one empty name for the example's own.
    """

    example: str
    folder: str
    settings: tuple[str, ...]
    rounds: int
    local_rounds: int
    rate: float
    factors: tuple[float, ...]
    more_factors: tuple[float, ...]
    rules: tuple[str, ...]
    given: Mapping[str, tuple[float, tuple[str, ...]]] = field(default_factory=dict)
    targets: tuple[str, ...] = ("",)

    def factors_of(self, rule: str) -> tuple[float, ...]:
        """What is tried for a rule; one factor where it is given."""
        if rule in self.given:
            return (self.given[rule][0],)
        return (*self.factors, *self.more_factors) if rule in LOCAL else self.factors


_FASHION = (
    *("training.source.epochs=1", "training.source.learning-rate=0.01", "training.source.batch-size=64"),
    "session.max-samples=6000",
    "strategy.align=false",  # as the authors ran FedDA; orthogonal projection has no scale
)
STUDIES = {
    # The authors' schedule. target_only is not in it, and has the best of three rates.
    "noisy Fashion-MNIST": Study(
        "noisy_fashion_mnist",
        "fashion_mnist",
        (
            *(*_FASHION, *_AUTO, "task.options.images=all", "task.options.noise=0.4"),
            *("task.options.noise-drawn=at-use", "training.target.vary=true"),
        ),
        rounds=52,
        local_rounds=52,
        rate=0.005,
        factors=(0.1,),
        more_factors=(0.05, 0.25),
        rules=("target_only", *AUTHORS),
        given=AUTHORS,
    ),
    # 15 % of the target's images at this shift, as in the authors' published code
    "label shift": Study(
        "label_shift_fashion_mnist",
        "fashion_mnist",
        (
            *(*_FASHION, "task.options.images=train", "task.options.eta=0.15", "task.options.target-rows=3240"),
            "training.target.batch-size=16",
        ),
        rounds=14,
        local_rounds=14,
        rate=0.005,
        factors=(0.1, 0.25),
        more_factors=(0.5,),
        rules=(*ADAPTED, *CROSS_FITTED),
    ),
    "ColoredMNIST": Study(
        "colored_mnist",
        "mnist",
        (
            *("training.source.epochs=1", "training.target.epochs=1", "task.options.images=all"),
            "session.max-samples=20000",
        ),
        rounds=20,
        local_rounds=52,
        rate=0.002,
        factors=(0.25, 0.5, 1.0, 2.0, 4.0, 8.0),
        more_factors=(),
        rules=(*ADAPTED, *CROSS_FITTED),
        targets=("plus-90", "plus-80", "minus-90"),
    ),
}


@dataclass(frozen=True, slots=True)
class Figures:
    """What a run gave.

    Attributes:
        accuracy: percent on the target's test rows, mean over the last five rounds.
        accuracies: of every round.
        beta: mean over sources and rounds; None where no round had one.
        cpu_s: seconds of one core.
    """

    accuracy: float
    accuracies: tuple[float, ...]
    beta: float | None
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of the study."""

    study: str
    target: str
    rule: str
    factor: float
    seed: int

    @property
    def key(self) -> str:
        """Its name in the cache."""
        return f"{self.study}, {self.target or 'target'}, {self.rule}, {self.factor:g}, seed {self.seed}"

    def job(self, data_dir: Path, given: Sequence[str] = ()) -> Job:
        """The federation and the seed; ``given`` are settings on top of the study's."""
        study = STUDIES[self.study]
        local = self.rule in LOCAL
        rounds, after = (study.local_rounds, 1.0) if local else (study.rounds, min(self.factor, 1.0))
        rate = study.rate * (self.factor if local else max(self.factor, 1.0))
        settings = (
            *(*study.settings, *_target(study, self.target), *RULES.get(self.rule, (f"strategy.rule={self.rule}",))),
            *(study.given[self.rule][1] if self.rule in study.given else ()),
            *(f"strategy.rounds={rounds}", f"strategy.warm-up-rounds={WARM_UP}"),
            *(f"training.target.learning-rate={rate:g}", f"strategy.lr-after-warm-up={after:g}"),
            *((f"strategy.finetune-rounds={rounds - WARM_UP}",) if local and self.rule != "target_only" else ()),
            *(f"task.data-dir={data_dir / study.folder}", *given),
        )
        return Job(load_federation(sample(study.example), settings, {}), self.seed)

    def run(self, data_dir: Path, given: Sequence[str] = ()) -> Figures:
        """Run it in this process; ``given`` are settings on top of the study's."""
        began = time.process_time()
        result = run(self.job(data_dir, given))
        betas = [beta for of_source in result.betas.values() for beta in of_source if beta is not None]
        return Figures(
            result.accuracy,
            tuple(round(accuracy, 2) for accuracy in result.accuracies),
            fmean(betas) if betas else None,
            round(time.process_time() - began, 1),
        )


def _target(study: Study, target: str) -> tuple[str, ...]:
    sources = json.dumps([site for site in study.targets if site != target])
    return (f"federation.target={target}", f"federation.sources={sources}") if target else ()


class AnyCell(Protocol):
    """One run, of the study or of a sweep."""

    @property
    def key(self) -> str:
        """Its name in the cache."""

    @property
    def rule(self) -> str:
        """As tables call it."""

    def run(self, data_dir: Path) -> Figures:
        """Run it in this process."""


def run_missing(cells: Iterable[AnyCell], asked: argparse.Namespace, cache: Cache, write: Callable[[], None]) -> None:
    """Run the cells of the rules asked for that the cache lacks; keep what each gave and write the figures."""
    use_one_thread()
    for cell in cells:
        if cell.key not in cache.read() and (asked.rules is None or cell.rule in asked.rules):
            found = cell.run(asked.data_dir)
            cache.add(cell, found)
            write()
            print(f"{cell.key}: {found.accuracy:.2f}, {found.cpu_s:.0f} s", flush=True)


def merged(figures: Path, measured: Iterable[Row], names: Sequence[str]) -> list[Row]:
    """Rows in the order of the file, each replaced by the one measured with the same ``names`` if that has no fewer
    seeds; then the others. A file that does not exist yet has none."""
    kept = json.loads(figures.read_text())["rows"] if figures.exists() else []
    new = {tuple(row[name] for name in names): row for row in measured}
    pairs = [(row, new.pop(tuple(row[name] for name in names), row)) for row in kept]
    return [other if len(other["seeds"]) >= len(row["seeds"]) else row for row, other in pairs] + list(new.values())


def command_line(title: str, figures: Path, parts: Iterable[str]) -> argparse.Namespace:
    """What was asked of either script; ``parts`` are the studies or sweeps that ``--only`` may name."""
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--only", nargs="+", choices=list(parts), default=list(parts), metavar="NAME")
    parser.add_argument("--rules", nargs="+", metavar="RULE", help="run these alone; all by default")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--figures", type=Path, default=figures)
    asked = parser.parse_args()
    if asked.measure and (asked.data_dir is None or asked.cache is None):
        parser.error("--measure needs --data-dir and --cache")
    return asked


def searched_cells(name: str) -> Iterator[Cell]:
    """All factors of every rule and target of a study, with the validation seed, where there are several."""
    study = STUDIES[name]
    for rule in study.rules:
        for factor in study.factors_of(rule) if rule not in study.given else ():
            for target in study.targets:
                yield Cell(name, target, rule, factor, VALIDATION_SEED)


def measured_cells(name: str, factors: Mapping[str, float]) -> Iterator[Cell]:
    """Seed by seed, so that a study that is cut off has all rules with fewer seeds; ``factors`` by rule."""
    for seed in SEEDS:
        for rule, factor in factors.items():
            for target in STUDIES[name].targets:
                yield Cell(name, target, rule, factor, seed)
