"""What it is worth to correct FedGP and auto-beta for the noise of DP-SGD, whose variance every site knows of its own.

    python benchmarks/noisy_projection.py --measure --cache FOLDER [--workers N]
    python benchmarks/noisy_projection.py     from noisy_projection.json: print the tables

Digits and digits with frozen features, noise at all sites, the schedules of `dp_cost_runs.py`. Every run plays the
rounds of a federation in one process, without network, masks and norm caps. A seed settles the noise too, so that the
variants of a rule begin alike.

A source's aligned update is g_i = u_i + n_i, where n_i has variance s^2 in each of m coordinates, and so
E ||g_i||^2 = ||u_i||^2 + m s^2, while inner products with the target's update, whose noise is another one, are without
bias. What is measured of g_i may be corrected by

    ||g_i||^2 - c m s^2,    c = 0: as it is;    1: that of u_i;    1 - 1/N: that of u_i and the noise of a mean over N

The last one is no compromise between the others: of the mean of c_i g_i over N sources with one u, the multiple that is
nearest to the multiple of u is <g_T, u> / (||u||^2 + m s^2 / N).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import dp_cost_runs
import numpy as np
from dp_cost_runs import BOTH, SOURCES, TARGET
from federated import Job, workers
from numpy.typing import NDArray
from offline_rounds import OfflineSites
from studies import Cache, as_text, measure, shown, this_machine

from securefda.aggregator.target import TargetRound, train_target
from securefda.operations.records import REPORTED_ROUNDS
from securefda.privacy.planning import schedule_of
from securefda.privacy.private_training import train_private
from securefda.rules import Contribution, RoundPlan, Rule, alignment_factor, round_plan
from securefda.rules.beta import StepGeometry, weight_of_source
from securefda.rules.norm_caps import caps_for, contribution_norms, scale_to_caps
from securefda.rules.projection import Products, scale_layers
from securefda.rules.statistics import TargetStatistics
from securefda.site.config import FederationConfig, PrivacySection
from securefda.tasks import Samples, Task
from securefda.training import LocalResult, TrainingSettings, Vector, build_model, derive_seed
from securefda.training.trainer import SiteTrainer

FIGURES = Path(__file__).parent / "noisy_projection.json"
STUDIES = ("digits", "digits-frozen")
EPSILONS = (8.0, 4.0, 1.0)
SEEDS = 6
RULES = (Rule.FEDGP, Rule.FEDGP_AUTO, Rule.FEDDA_AUTO)
AS_IT_IS, UNBIASED, OF_A_MEAN = "as it is", "of u", "of u and a mean's noise"
IN_PROJECTION = "of u, in the projection alone"
LAYER_CAPS, MODEL_CAPS = "norm caps by layer", "norm caps by model"
VARIANTS = (
    *(AS_IT_IS, UNBIASED, OF_A_MEAN, IN_PROJECTION),
    *(f"{variant}, {caps}" for caps in (LAYER_CAPS, MODEL_CAPS) for variant in (AS_IT_IS, IN_PROJECTION)),
)
ALONE = {Rule.TARGET_ONLY: TARGET, Rule.SOURCE_ONLY: SOURCES}
"""To compare with: rule -> where it trains, with noise."""

GAIN = 1.0
"""Points by which a correction has to be better in the mean over seeds, to count."""

Vector64 = NDArray[np.float64]


def counted_share(variant: str, sources: int) -> float:
    """c: how much of a source's own noise is taken off the squares of its length."""
    if variant.startswith(AS_IT_IS):
        return 0.0
    return 1 - 1 / sources if variant == OF_A_MEAN else 1.0


def update_variance(settings: TrainingSettings, rows: int, steps: int) -> float:
    """Variance of the noise in each coordinate of an update by SGD without momentum.

    Raises:
        ValueError: the settings have another optimizer, with which the noise is not known like that.
    """
    if settings.dp is None:
        return 0.0
    if settings.optimizer != "sgd" or settings.momentum:
        raise ValueError("optimizer: of sgd without momentum alone the noise of an update is a sum")
    expected = rows * schedule_of(settings, rows).sampling_rate
    deviation = settings.learning_rate * settings.dp.noise_multiplier * settings.dp.max_grad_norm / expected
    return steps * deviation**2


def corrected_squares(squares: Vector64, sizes: Vector64, variance: float, counted: float) -> Vector64:
    """``squares - counted * sizes * variance``, at least what chance alone makes of noise without an update."""
    if counted == 0 or variance == 0:
        return squares
    least = np.sqrt(2 * sizes) * variance
    return np.maximum(squares - counted * sizes * variance, np.minimum(least, squares))


def corrected_beta(
    rule: Rule, statistics: TargetStatistics, geometry: StepGeometry, variance: float, counted: float
) -> float:
    """Auto-beta with what is counted of a source's noise taken off the distance.

    Args:
        rule: fedda_auto or fedgp_auto.
        statistics: of the target's steps, which have its own noise in them.
        geometry: of the mean step and the source's aligned step.
        variance: of the noise in each coordinate of the source's aligned step.
        counted: c.
    """
    own, size = statistics.mean_variance, geometry.size
    if rule is Rule.FEDDA_AUTO:
        apart = geometry.mean_squared - 2 * geometry.inner + geometry.source_squared
        return weight_of_source(own, max(apart - own - counted * size * variance, 0.0))
    squares, sizes = np.array([geometry.source_squared]), np.array([float(size)])
    squared = float(corrected_squares(squares, sizes, variance, counted)[0])
    signal = max(geometry.mean_squared - own, 0.0)
    # <x-bar, gbar>^2 has the square of both noises in it.
    chance = own / size * geometry.source_squared + (variance * signal if counted else 0.0)
    return weight_of_source(own, max(signal - max(geometry.inner**2 - chance, 0.0) / squared, 0.0))


class NoisyTrainer(SiteTrainer):
    """Trains by DP-SGD with noise that follows from a seed, without a ledger: for studies alone."""

    def __init__(self, task: Task, site: str, rows: Samples, settings: TrainingSettings, seed: int) -> None:
        super().__init__(task, site, rows, settings, seed)
        self._how = task, site, rows, settings
        self._private_model = build_model(task, derive_seed(seed, "model"))
        self._bytes = np.random.default_rng([seed, *site.encode()]).bytes

    def train(self, received: Vector, round_number: int, factor: float, **others: Any) -> LocalResult:
        """As :meth:`SiteTrainer.train`, with noise where the settings say so."""
        task, site, rows, settings = self._how
        if settings.dp is None:
            return super().train(received, round_number, factor, **others)
        kept = {name: others[name] for name in ("fewest_steps", "on_step") if name in others}
        by = settings.with_learning_rate_factor(factor)
        how = {"settings": by, "site": site, "random_bytes": self._bytes, **kept}
        return train_private(task, self._private_model, received, rows, **how)


class NoisySites(OfflineSites):
    """Sites that train with noise, whose sources correct what they hand in.

    Attributes:
        betas: of every part so far.
        signal: share of ||g_i||^2 that is not noise, of every part.
        lengths: ||P(g_T | g_i)|| / ||g_T|| as handed in, of every part of FedGP.
    """

    def __init__(self, config: FederationConfig, seed: int, variant: str) -> None:
        super().__init__(config, seed)
        self._counted = counted_share(variant, len(config.federation.sources))
        self._counted_in_beta = self._counted if variant in (UNBIASED, OF_A_MEAN) else 0.0
        self.betas: list[float] = []
        self.signal: list[float] = []
        self.lengths: list[float] = []

    def _trainer(self, site: str, rows: Samples, settings: TrainingSettings) -> SiteTrainer:
        return NoisyTrainer(self._task, site, rows, settings, self._seed)

    def part(self, plan: RoundPlan, target: TargetRound | None, result: LocalResult) -> Contribution:
        """What a source hands in, corrected by what it knows of its own noise."""
        if target is None or target.statistics is None or plan.rule not in RULES:
            return super().part(plan, target, result)
        own, steps = target.result.update.astype(np.float64), target.result.steps
        ratio = target.result.learning_rate / result.learning_rate
        factor = alignment_factor(target_steps=steps, source_steps=result.steps, learning_rate_ratio=ratio)
        aligned = factor * result.update.astype(np.float64)
        by = self.sources[0].settings.with_learning_rate_factor(plan.learning_rate_factor)
        variance = factor**2 * update_variance(by, result.samples, result.steps)
        sizes = np.array(self.target.sizes, dtype=np.float64)
        products = Products.of(own, aligned, self.target.sizes)
        beta = plan.beta
        if plan.rule is not Rule.FEDGP:
            geometry = StepGeometry.of_round(products, steps=steps, size=own.size)
            beta = corrected_beta(plan.rule, target.statistics, geometry, variance / steps**2, self._counted_in_beta)
        multiples = np.ones(len(sizes))
        if plan.rule.projects:
            squares = corrected_squares(products.source_squared, sizes, variance, self._counted)
            tiny = np.finfo(np.float64).tiny
            multiples = np.maximum(products.inner, 0.0) / np.maximum(squares, tiny)
            # In no layer longer than g_T, as a projection is
            longest = np.sqrt(products.target_squared / np.maximum(products.source_squared, tiny))
            multiples = np.minimum(multiples, longest)
            projected = float(np.sum(multiples**2 * products.source_squared))
            self.lengths.append((projected / float(products.target_squared.sum())) ** 0.5)
        squared = float(products.source_squared.sum())
        self.betas.append(beta)
        self.signal.append(1 - own.size * variance / squared)
        vector = scale_layers(aligned, self.target.sizes, multiples * beta)
        return Contribution(vector=vector, keep=1.0 - beta, beta=beta)


@dataclass(frozen=True, slots=True)
class NoisyJob(Job):
    """A federation, a seed, and what is corrected."""

    variant: str


@dataclass(frozen=True, slots=True)
class Cell:
    """One run."""

    study: str
    rule: Rule
    variant: str
    epsilon: float
    seed: int

    @property
    def key(self) -> str:
        """Its name in the cache."""
        return f"{self.study}/{self.rule}/{self.variant}/{self.epsilon:g}/{self.seed}"

    def job(self, given: Iterable[str]) -> NoisyJob:
        """The federation and the seed; ``given`` are settings of the caller."""
        place = ALONE.get(self.rule, BOTH)
        made = dp_cost_runs.Cell(self.study, str(self.rule), place, self.epsilon, "target", self.seed).job(given)
        return NoisyJob(made.config, made.seed, self.variant)


@dataclass(frozen=True, slots=True)
class Figures:
    """What a run gave.

    Attributes:
        accuracy: on the target's test rows, mean over the last five rounds, in percent.
        beta: mean over sources and rounds; None without.
        signal: likewise, share of a source's squared length that is not noise.
        length: likewise, that of the projection over that of the target's update.
    """

    accuracy: float
    beta: float | None
    signal: float | None
    length: float | None


def run_cell(job: NoisyJob) -> Figures:
    """Play all rounds of one federation, in this process."""
    sites, accuracies = NoisySites(job.config, job.seed, job.variant), list[float]()
    for number in range(1, sites.strategy.rounds + 1):
        plan = round_plan(sites.strategy, number)
        results = sites.train_sources(plan, number) if plan.needs_sources else []
        target = train_target(sites.target, sites.model, number, plan)
        if plan.needs_sources:
            parts = [sites.part(plan, target, result) for result in results]
            if job.variant.endswith((LAYER_CAPS, MODEL_CAPS)):
                sizes = sites.target.sizes if job.variant.endswith(LAYER_CAPS) else (sites.model.size,)
                cap(parts, [result.samples for result in results], sizes, job.config.privacy)
            sites.move(sites.update_of(plan, target, parts, results))
        elif target is not None:
            sites.move(target.result.update)
        accuracies.append(sites.target.evaluate(sites.model, sites.test_data).metrics["accuracy"])
    means = (fmean(found) if found else None for found in (sites.betas, sites.signal, sites.lengths))
    return Figures(100 * fmean(accuracies[-REPORTED_ROUNDS:]), *means)


def variants_of(rule: Rule) -> tuple[str, ...]:
    """What is corrected in turn."""
    if rule not in RULES:
        return (AS_IT_IS,)
    return VARIANTS if rule is Rule.FEDGP_AUTO else VARIANTS[:3]


def cap(parts: Sequence[Contribution], samples: Sequence[int], sizes: Sequence[int], privacy: PrivacySection) -> None:
    """Scale the parts of a sum to the norm caps of the federation, in place; norms are not rounded to codes."""
    norms = [contribution_norms(part.vector, sizes, rows) for part, rows in zip(parts, samples, strict=True)]
    caps = caps_for(np.array(norms), kappa=privacy.norm_cap_kappa, others=privacy.min_others)
    for part, own in zip(parts, norms, strict=True):
        scale_to_caps(part.vector, sizes, own, caps)


def cells() -> Iterator[Cell]:
    """Every run, seed by seed."""
    for seed in range(SEEDS):
        for study in reversed(STUDIES):
            for epsilon in EPSILONS:
                for rule in RULES:
                    yield from (Cell(study, rule, variant, epsilon, seed) for variant in variants_of(rule))
                yield from (Cell(study, rule, AS_IT_IS, epsilon, seed) for rule in ALONE)


def rows_of(known: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row for each run, of those that are known."""
    rows = []
    for cell in cells():
        if (figures := known.get(cell.key)) is not None:
            of = {"study": cell.study, "rule": str(cell.rule), "variant": cell.variant, "epsilon": cell.epsilon}
            rows.append(of | {"seed": cell.seed} | {name: _short(value) for name, value in figures.items()})
    return rows


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


# --- tables -----------------------------------------------------------------------------------------------------------


def tables(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The tables as Markdown."""
    return {"accuracy": accuracy_table(rows), "inside": inside_table(rows)}


def accuracy_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Accuracy of each rule and correction, mean and standard deviation over seeds."""
    columns = [(study, epsilon) for study in STUDIES for epsilon in EPSILONS]
    heads = (f"{study}, ε = {epsilon:g}" for study, epsilon in columns)
    lines = [f"| rule | squares of g_i | {' | '.join(heads)} |", f"|{'---|' * (2 + len(columns))}"]
    for rule in (*RULES, *ALONE):
        for variant in variants_of(rule):
            found = [[row["accuracy"] for row in _runs(rows, study, rule, variant, at)] for study, at in columns]
            name = variant if rule in RULES else ""
            lines.append(f"| {rule} | {name} | {' | '.join(map(_spread, found))} |")
    return "\n".join(lines)


def inside_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Beta, the share of a source's update that is no noise, and the length of projections."""
    lines = [
        f"| rule | squares of g_i | {' | '.join(f'{study}, β | signal | length' for study in STUDIES)} |",
        f"|{'---|' * (2 + 3 * len(STUDIES))}",
    ]
    for rule in RULES:
        for variant in variants_of(rule):
            found = [[row for at in EPSILONS for row in _runs(rows, study, rule, variant, at)] for study in STUDIES]
            parts = [_mean(of, name) for of in found for name in ("beta", "signal", "length")]
            lines.append(f"| {rule} | {variant} | {' | '.join(parts)} |")
    return "\n".join(lines)


def gains(rows: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str, str, float], float]:
    """Points that a correction gains in the mean over seeds, by study, rule, variant and epsilon."""
    found = {}
    for study in STUDIES:
        for rule in RULES:
            for epsilon in EPSILONS:
                plain = {row["seed"]: row["accuracy"] for row in _runs(rows, study, rule, AS_IT_IS, epsilon)}
                for variant in variants_of(rule)[1:]:
                    pairs = [
                        row["accuracy"] - plain[row["seed"]]
                        for row in _runs(rows, study, rule, variant, epsilon)
                        if row["seed"] in plain
                    ]
                    if pairs:
                        found[study, str(rule), variant, epsilon] = fmean(pairs)
    return found


def _runs(
    rows: Sequence[Mapping[str, Any]], study: str, rule: Rule, variant: str, epsilon: float
) -> list[Mapping[str, Any]]:
    key = {"study": study, "rule": str(rule), "variant": variant, "epsilon": epsilon}
    return [row for row in rows if all(row[name] == value for name, value in key.items())]


def _spread(values: Sequence[float]) -> str:
    return f"{fmean(values):.1f} ± {stdev(values):.1f}" if len(values) > 1 else "–"


def _mean(rows: Sequence[Mapping[str, Any]], name: str) -> str:
    values = [row[name] for row in rows if row[name] is not None]
    return f"{fmean(values):.3f}" if values else "–"


def main() -> int:
    """Measure where asked to, and print the tables."""
    given = _arguments()
    if given.measure:
        cache = Cache(given.cache, "noisy-projection")

        def done(cell: Cell, figures: Figures) -> None:
            print(f"{cell.key}: {figures.accuracy:.1f} %", file=sys.stderr, flush=True)

        with workers(given.workers) as pool:
            measure(pool, run_cell, list(cells()), cache, {study: [] for study in STUDIES}, done)
        given.figures.write_text(as_text(rows_of(cache.read()), this_machine()))
    print(shown(tables(json.loads(given.figures.read_text())["rows"])))
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--measure", action="store_true", help="run what the cache lacks first")
    parser.add_argument("--cache", type=Path, default=Path("noisy-projection-cache"), help="for what was run already")
    parser.add_argument("--workers", type=int, default=1, help="federations beside each other")
    parser.add_argument("--figures", type=Path, default=FIGURES, help="the measured figures, JSON")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
