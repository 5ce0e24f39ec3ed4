"""One federation for each cell of the study of privacy budgets: which there are, how one runs, and what it gave."""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from statistics import fmean, median

import securefda.privacy.private_training  # noqa: F401 - here, so that no run's time has the import of Opacus in it
from securefda.bench.accuracy.federated import Job
from securefda.errors import SecureFdaError
from securefda.local.simulator import simulate
from securefda.operations.progress import SilentReporter
from securefda.operations.records import REPORTED_ROUNDS
from securefda.operations.run_folder import SITES_FOLDER, RunRecord, read_run
from securefda.privacy.events import Budget
from securefda.privacy.ledger import Ledger
from securefda.privacy.planning import Schedule, plan_noise
from securefda.rules import Rule, round_plan
from securefda.site.config import FederationConfig, load_federation, strategy_of
from securefda.site.config.sections import DEFAULT_DATA_SET
from securefda.site.privacy_account import data_set_of, ledger_file
from securefda.tasks import Samples, TaskSettings, load_task
from securefda.tasks.fed_heart import HOSPITALS

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
OWN, SOURCES, TARGET, BOTH = "example", "sources", "target", "both"
"""Where noise is added; `OWN` is the example's own plain training, the others follow the study's schedule."""

_SIDES: dict[str, tuple[str, ...]] = {SOURCES: ("source",), TARGET: ("target",), BOTH: ("source", "target")}

RULES = {
    "fedgp_auto": (OWN, SOURCES, TARGET, BOTH),
    "fedda_auto": (OWN, SOURCES, TARGET, BOTH),
    "target_only": (OWN, TARGET),
    "source_only": (OWN, SOURCES),
}
"""Rule -> where noise is added in turn."""

TIMED = {f"{OWN}, noise at {place}": sides for place, sides in _SIDES.items()}
"""Place -> sides that add noise to the example's own batches and epochs: not for its accuracy, but for its seconds."""

TIMED_RULE = "fedgp_auto"
_TIMED_NOISE = 1.0

NO_NOISE = 0.001
"""Noise multiplier for epsilon = infinity: the schedule and the clipped gradients are kept, the noise is nothing."""

_ANYTHING = 1e9


@dataclass(frozen=True, slots=True)
class Study:
    """An example configuration, the targets that it is run with, and how DP-SGD trains there.

    Attributes:
        example: its file.
        targets: each in turn.
        seeds: number of them, from 0.
        delta: of every site, below one over its rows.
        source_batches: batches of an epoch at the source with the fewest rows; the others have the same batch size.
        settings: of the schedule, beside the batch sizes; the target takes two steps a round on all of its rows.
        plain_rate: learning rate of a side that adds no noise, which then has the example's own batches and epochs;
            None: it follows the schedule.
        task: settings of the task, in every run of the study.
        timed: whether rounds of the example's own batches and epochs are timed with noise.
        rules: rule -> where noise is added in turn.
        epsilons: with noise; there is a run without, too.
        data: the folder of its files, below the one that is given; "" for rows that come with a package.
    """

    example: str
    targets: tuple[str, ...]
    seeds: int
    delta: float
    source_batches: int
    settings: tuple[str, ...]
    plain_rate: float | None = None
    task: tuple[str, ...] = ()
    timed: bool = True
    rules: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: RULES)
    epsilons: tuple[float, ...] = EPSILONS
    data: str = ""


def _schedule(*, rounds: int, warm_up: int, learning_rate: float, norm: float, clip: float) -> tuple[str, ...]:
    """SGD alike at all sites."""
    alike = ("optimizer=sgd", f"learning-rate={learning_rate}", f"dp.max-grad-norm={norm}")
    return (
        f"strategy.rounds={rounds}",
        f"strategy.warm-up-rounds={warm_up}",
        f"session.clip={clip}",
        "training.source.epochs=1",
        "training.target.epochs=2",
        *(f"training.{side}.{setting}" for side in ("source", "target") for setting in alike),
    )


STUDIES = {
    "digits": Study(
        "digits.toml",
        ("target",),
        seeds=3,
        delta=1e-5,
        source_batches=2,
        settings=_schedule(rounds=10, warm_up=2, learning_rate=4.0, norm=1.0, clip=64.0),
        plain_rate=0.5,
    ),
    "digits-frozen": Study(
        "digits.toml",
        ("target",),
        seeds=3,
        delta=1e-5,
        source_batches=2,
        settings=_schedule(rounds=10, warm_up=2, learning_rate=0.5, norm=1.0, clip=64.0),
        plain_rate=0.05,
        task=("task.options.features=mnist",),
        timed=False,
    ),
    "fed-heart": Study(
        "fed_heart.toml",
        HOSPITALS,
        seeds=2,
        delta=1e-5,
        source_batches=1,
        settings=_schedule(rounds=20, warm_up=4, learning_rate=1.0, norm=1.0, clip=64.0),
        data="fed_heart",
    ),
    **{
        f"fashion-frozen{name}": Study(
            "noisy_fashion_mnist.toml",
            ("target",),
            seeds=2,
            delta=1e-5,
            source_batches=10,
            settings=_schedule(rounds=6, warm_up=1, learning_rate=0.3, norm=10.0, clip=64.0),
            task=(
                *("task.options.features=mnist", "task.options.images=all", f"task.options.noise={noise}"),
                *("session.max-samples=6000", "strategy.lr-after-warm-up=1.0"),
            ),
            timed=False,
            rules={"fedda_auto": (BOTH,), "target_only": (TARGET,), "source_only": (SOURCES,)},
            epsilons=epsilons,
            data="fashion_mnist",
        )
        for name, noise, epsilons in (("", 0.0, (1.0, 4.0)), ("-noisy", 0.4, (4.0,)))
    },
}
"""The schedules were chosen at epsilon 4 on seed 100, which is none of those reported, that of Fashion-MNIST on some of
its training rows. Looking at the rows for that is not charged to any budget."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of the study. ``epsilon`` is infinite without noise."""

    study: str
    rule: str
    place: str
    epsilon: float
    target: str
    seed: int

    @property
    def key(self) -> str:
        """Its name in the cache."""
        return "/".join(str(value) for value in asdict(self).values())

    @property
    def urgency(self) -> tuple[int, int]:
        """Sort key: seed by seed, and digits first."""
        return list(STUDIES).index(self.study), self.seed

    def job(self, given: Iterable[str]) -> Job:
        """The federation and the seed; ``given`` are settings of the caller."""
        study = STUDIES[self.study]
        settings, file = self._plain(given), EXAMPLES / study.example
        plain = load_federation(file, settings)
        if self.place == OWN:
            return Job(plain, self.seed)
        if self.place in TIMED:
            settings += [f"training.{side}.dp.noise-multiplier={_TIMED_NOISE}" for side in TIMED[self.place]]
            return Job(load_federation(file, [*settings, f"privacy.budget.target-epsilon={_ANYTHING}"]), self.seed)
        settings += [*study.settings, *_batches(plain, study)]
        settings += self._privacy(load_federation(file, settings), plain)
        return Job(load_federation(file, settings), self.seed)

    def _plain(self, given: Iterable[str]) -> list[str]:
        settings = [f"strategy.rule={self.rule}", *STUDIES[self.study].task, *given]
        sources = [site for site in STUDIES[self.study].targets if site != self.target]
        if sources:
            settings += [f"federation.target={self.target}", f"federation.sources={json.dumps(sources)}"]
            # With a hospital's own means, as the paper has them, no epsilon would be true.
            settings.append(f"task.options.scaling={'site' if self.place == OWN else 'public'}")
        return settings

    def _privacy(self, config: FederationConfig, plain: FederationConfig) -> list[str]:
        """The noise of each side that adds any, and the budget that the ledgers hold it to."""
        study = STUDIES[self.study]
        budget = Budget(min(self.epsilon, _ANYTHING), study.delta, "rdp")
        settings = [f"privacy.budget.target-epsilon={budget.epsilon}", f"privacy.budget.target-delta={budget.delta}"]
        for side, own in (("source", plain.training.source), ("target", plain.training.target)):
            values: dict[str, float] = {}
            if side in _SIDES[self.place]:
                noise = NO_NOISE if math.isinf(self.epsilon) else noise_of(config, side, budget)
                values = {"dp.noise-multiplier": noise}
            elif study.plain_rate is not None:
                values = {"learning-rate": study.plain_rate, "batch-size": own.batch_size, "epochs": own.epochs}
            settings += [f"training.{side}.{key}={value}" for key, value in values.items()]
        return settings


def cells_of(name: str) -> list[Cell]:
    """The cells of a study in the order in which they are run."""
    study = STUDIES[name]
    lines = [
        (rule, place, epsilon)
        for rule, places in study.rules.items()
        for place in places
        for epsilon in ((math.inf,) if place == OWN else (math.inf, *reversed(study.epsilons)))
    ]
    if study.timed:
        lines += [(TIMED_RULE, place, math.inf) for place in TIMED]
    found = [
        Cell(name, rule, place, epsilon, target, seed)
        for seed in range(study.seeds)
        for rule, place, epsilon in lines
        for target in study.targets
    ]
    return sorted(found, key=lambda cell: cell.urgency)


def site_rows(config: FederationConfig, seed: int = 0) -> dict[str, Samples]:
    """Site -> the rows that it trains on; how many there are does not depend on the seed."""
    sites, section = config.federation, config.task
    settings = TaskSettings(sites.target, tuple(sites.sources), seed, section.data_dir, section.options)
    task = load_task(section.factory, settings)
    return {site: task.train_data(site) for site in (sites.target, *sites.sources)}


def _batches(config: FederationConfig, study: Study) -> list[str]:
    rows = {site: len(samples) for site, samples in site_rows(config).items()}
    fewest = min(rows[source] for source in config.federation.sources)
    return [
        f"training.source.batch-size={-(-fewest // study.source_batches)}",
        f"training.target.batch-size={rows[config.federation.target]}",
    ]


def rounds_of(config: FederationConfig) -> dict[str, int]:
    """Side -> rounds in which it trains; the target rests in warm-up rounds."""
    strategy = strategy_of(config.strategy)
    rules = [round_plan(strategy, number).rule for number in range(1, strategy.rounds + 1)]
    return {
        "source": sum(rule.needs_sources for rule in rules),
        "target": sum(rule is not Rule.SOURCE_ONLY for rule in rules),
    }


def noise_of(config: FederationConfig, side: str, budget: Budget) -> float:
    """The smallest noise multiplier with which every site of ``side`` keeps ``budget``; the sources have one."""
    sites = [config.federation.target] if side == "target" else config.federation.sources
    training = config.training.target if side == "target" else config.training.source
    rows, rounds = site_rows(config), rounds_of(config)[side]
    schedules = {Schedule(len(rows[site]), training.batch_size, training.epochs, rounds) for site in sites}
    return max(_planned(schedule, budget) for schedule in schedules)


@cache
def _planned(schedule: Schedule, budget: Budget) -> float:
    return plan_noise(schedule, budget).noise_multiplier


@dataclass(frozen=True, slots=True)
class Figures:
    """What one run gave.

    Attributes:
        accuracy: on the target's test rows, mean over the last five rounds, in percent.
        accuracies: of every finished round, in [0, 1].
        seconds: of a round, median, wall clock.
        processor: seconds of processor time of the run over its rounds.
        beta: mean over sources and the rounds that have one; None without any.
        clipped: coordinates that the session's clip changed.
        noise: side -> its noise multiplier; 0 is plain training.
        spent: side -> the largest epsilon in a ledger; only of a side that has one.
    """

    accuracy: float
    accuracies: tuple[float, ...]
    seconds: float
    processor: float
    beta: float | None
    clipped: int
    noise: Mapping[str, float]
    spent: Mapping[str, float]


def run_cell(job: Job) -> Figures:
    """Run one federation to its end.

    Raises:
        RuntimeError: it ended early; the package's own errors do not travel between processes.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        started = time.process_time()
        try:
            simulate(job.config, folder, job.seed, SilentReporter())
        except SecureFdaError as error:
            raise RuntimeError(str(error)) from None
        return _figures(job, read_run(folder), folder, time.process_time() - started)


def _figures(job: Job, record: RunRecord, folder: Path, processor: float) -> Figures:
    lines = list(record.rounds)
    of_sources = [line for source in job.config.federation.sources for line in record.sites.get(source, ())]
    betas = [beta for line in of_sources if (beta := line.get("beta")) is not None]
    training = job.config.training
    accuracies = tuple(line["accuracy"] for line in lines if "accuracy" in line)  # a lost round has none
    return Figures(
        accuracy=100 * fmean(accuracies[-REPORTED_ROUNDS:]),
        accuracies=accuracies,
        seconds=median(sum(line["seconds"].values()) for line in lines),
        processor=processor / len(lines),
        beta=fmean(betas) if betas else None,
        clipped=sum(line.get("clipped", 0) for line in of_sources),
        noise={"source": training.source.dp.noise_multiplier, "target": training.target.dp.noise_multiplier},
        spent=_spent(job, folder),
    )


def _spent(job: Job, folder: Path) -> dict[str, float]:
    """From the ledgers that the run left."""
    found: dict[str, float] = {}
    for site, rows in site_rows(job.config, job.seed).items():
        file = ledger_file(folder / SITES_FOLDER / site, DEFAULT_DATA_SET)
        if file.exists():
            side = "target" if site == job.config.federation.target else "source"
            ledger = Ledger(file, data_set_of(site, DEFAULT_DATA_SET, rows))
            spent = ledger.spent(job.config.privacy.budget.target_delta, "rdp")
            found[side] = max(spent, found.get(side, 0.0))
    return found
