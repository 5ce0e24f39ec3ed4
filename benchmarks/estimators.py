"""How near estimates of sigma^2 and d^2 are to the truth, how often ``auto`` names the best rule, and what it is worth.

    python benchmarks/estimators.py --measure --data-dir DIR --cache FOLDER [--workers N] [--seeds N]
    python benchmarks/estimators.py     from estimators.json: print the tables

DIR holds ``fed_heart``. Every run plays the rounds of a federation in one process, without network, masks and norm
caps, on one thread.

Truth: in some rounds under fedda_auto the target also trains, from the same model, on sets of test rows, each as large
as its own. The variance between these is sigma^2, and the distance of a source's update from their mean, less what the
variance adds, is d^2. Names: the candidate with the smallest mean of a whole run's estimates, beside the losses of runs
that follow one candidate.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from federated import Job, workers
from offline_rounds import OfflineSites
from studies import Cache, as_text, measure, shown, this_machine

from securefda.aggregator.target import TargetRound, train_target
from securefda.operations.records import REPORTED_ROUNDS
from securefda.rules import (
    CANDIDATES,
    RoundPlan,
    Rule,
    Variance,
    alignment_factor,
    choose_rule,
    mean_errors,
    round_plan,
)
from securefda.samples import sample
from securefda.site.config import load_federation
from securefda.tasks import Samples
from securefda.training import LocalResult

FIGURES = Path(__file__).parent / "estimators.json"
MOST_SEEDS = 5
STUDIES = ("truth", "names", "accuracy")
EVERY = 8
"""Rounds between two with a truth."""

WITHIN = 0.02
"""How far a loss may be above the best one's, as a share of it, and count as best."""

TRUTHS = {
    **{
        f"rbf, shift {shift}, {rows} rows": ("rbf", shift, rows)
        for shift, rows in ((0.4, 100), (0.4, 300), (0.8, 100), (0.8, 300))
    },
    "digits": ("digits",),
}
GRID = {
    f"shift {shift}, {rows} rows": ("rbf", shift, rows)
    for shift, rows in (
        (0, 10),
        (0, 1000),
        (0.2, 30),
        (0.2, 1000),
        (0.4, 30),
        (0.4, 100),
        (0.4, 1000),
        (0.8, 30),
        (0.8, 300),
        (0.8, 1000),
    )
}
HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
SUITES = {"digits": ("digits",), **{f"fed_heart, {name}": ("fed_heart", name) for name in HOSPITALS}}

ESTIMATES = {
    "steps": (),
    "fixed-point": ("strategy.variance=fixed-point",),
    "cross-fitted": ("strategy.variance=cross-fitted",),
    "steps, per layer": ("strategy.beta-per-layer=true",),
    "cross-fitted, per layer": ("strategy.variance=cross-fitted", "strategy.beta-per-layer=true"),
}
KEPT_OUT = ("strategy.validation-share=0.2", "strategy.step=validated")
VARIANTS = {
    **ESTIMATES,
    "steps, validated": KEPT_OUT,
    "cross-fitted, per layer, validated": (*ESTIMATES["cross-fitted, per layer"], *KEPT_OUT),
}
GROUPS = {
    "digits": ("accuracy", ["digits"]),
    "Fed-Heart": ("accuracy", [name for name in SUITES if name != "digits"]),
    "rbf": ("names", list(GRID)),
}
"""Of the accuracies: study and columns, over which the mean is taken."""

AUTO = (Rule.FEDDA_AUTO, Rule.FEDGP_AUTO)
ALONE = (Rule.TARGET_ONLY, Rule.SOURCE_ONLY)


def settings_of(column: Sequence[Any]) -> tuple[str, list[str]]:
    """The sample and the settings of a column."""
    match column:
        case "rbf", shift, rows:
            options = [f"task.options.shift={shift}", f"task.options.target-rows={rows}"]
            return "rbf", [*options, f"training.target.batch-size={max(1, rows // 10)}"]
        case "fed_heart", target:
            sources = json.dumps([site for site in HOSPITALS if site != target])
            scaling = "task.options.scaling=site"
            return "fed_heart", [f"federation.target={target}", f"federation.sources={sources}", scaling]
    return str(column[0]), []


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of a study: "truth", "names" or "accuracy"."""

    study: str
    column: str
    rule: Rule
    variant: str
    seed: int

    @property
    def key(self) -> str:
        """Its name in the cache."""
        return f"{self.study}/{self.column}/{self.rule}/{self.variant}/{self.seed}"

    def job(self, given: Iterable[str]) -> Job:
        """The federation and the seed."""
        name, settings = settings_of({"truth": TRUTHS, "names": GRID, "accuracy": SUITES}[self.study][self.column])
        place = list(given) if name == "fed_heart" else []
        settings = [*settings, f"strategy.rule={self.rule}", *VARIANTS[self.variant], *place]
        return Job(load_federation(sample(name), settings), self.seed)


@dataclass(frozen=True, slots=True)
class Figures:
    """What a run gave.

    Attributes:
        accuracy: on the target's test rows, mean over the last five rounds, in percent.
        loss: on these, of the last model.
        errors: candidate -> estimated error, mean over the rounds that estimate them; empty but for ``auto``.
        truth: of each round with a truth, sigma^2 and d^2: the true ones, and those of each estimate.
    """

    accuracy: float
    loss: float
    errors: dict[str, float] = field(default_factory=dict)
    truth: list[dict[str, Any]] = field(default_factory=list)


def run_cell(job: Job) -> Figures:
    """Play all rounds of one federation, in this process, without network and masks."""
    return _play(job, fresh=0)


def run_beside_the_truth(job: Job) -> Figures:
    """The same, with rounds that are compared with fresh rows."""
    return _play(job, fresh=EVERY)


def _play(job: Job, fresh: int) -> Figures:
    sites = OfflineSites(job.config, job.seed)
    strategy, errors = sites.strategy, list[Mapping[Rule, float]]()
    measured, truth = [], []
    for number in range(1, strategy.rounds + 1):
        plan = round_plan(strategy, number, errors[-1] if errors else None)
        results = sites.train_sources(plan, number) if plan.needs_sources else []
        target = train_target(sites.target, sites.model, number, plan)
        if fresh and target is not None and (number - strategy.warm_up_rounds - 1) % fresh == 0:
            truth.append(compared(sites, plan, number, target, results))
        if plan.needs_sources:
            parts = [sites.part(plan, target, result) for result in results]
            update = sites.update_of(plan, target, parts, results)
            if plan.select and target is not None and target.statistics is not None:
                found = [part.errors for part in parts if part.errors is not None]
                mean = mean_errors(found, [float(result.samples) for result in results])
                errors.append(mean.by_rule(target.statistics.mean_variance))
        elif target is not None:
            update = target.result.update
        if strategy.validates_step and target is not None:
            update = sites.validated(target, update)
        sites.move(update)
        measured.append(sites.target.evaluate(sites.model, sites.test_data))
    last = [one.metrics["accuracy"] for one in measured[-REPORTED_ROUNDS:]]
    means = {str(rule): fmean(one[rule] for one in errors) for rule in CANDIDATES} if errors else {}
    return Figures(100 * fmean(last), measured[-1].loss, means, truth)


def compared(
    sites: OfflineSites, plan: RoundPlan, number: int, target: TargetRound, results: Sequence[LocalResult]
) -> dict[str, Any]:
    """sigma^2 and d^2 of a round, mean over sources: true ones, and estimates of each kind."""
    rows, test = sites.target_rows, sites.test_data
    means = []
    for start in range(0, len(test) - rows + 1, rows):
        part = Samples(test.features[start : start + rows], test.labels[start : start + rows])
        trained = sites.target_beside(part).train(sites.model, number, plan.learning_rate_factor)
        means.append(trained.update.astype(np.float64) / trained.steps)
    centre, count = np.mean(means, axis=0), len(means)
    true = float(np.sum((np.array(means) - centre) ** 2)) / (count - 1)
    own, steps = target.result.update.astype(np.float64) / target.result.steps, target.result.steps
    sources = [
        result.update
        * alignment_factor(
            target_steps=steps,
            source_steps=result.steps,
            learning_rate_ratio=target.result.learning_rate / result.learning_rate,
        )
        / steps
        for result in results
    ]
    found: dict[str, Any] = {"round": number}
    found["true"] = [true, fmean(float(np.sum((centre - one) ** 2)) for one in sources) - true / count]
    found["error"] = float(np.sum((own - centre) ** 2)) - true / count
    for kind in Variance:
        if kind is Variance.STEPS and target.statistics is not None:
            variance = target.statistics.mean_variance
        else:
            variance = sites.target.step_variance(sites.model, number, plan.learning_rate_factor, kind)
        found[kind] = [variance, fmean(max(float(np.sum((own - one) ** 2)) - variance, 0.0) for one in sources)]
    return found


def cells(seeds: int = MOST_SEEDS) -> Iterator[Cell]:
    """Every run, seed by seed."""
    for seed in range(seeds):
        yield from (Cell("truth", column, Rule.FEDDA_AUTO, "steps", seed) for column in TRUTHS)
        for column in SUITES:
            yield Cell("accuracy", column, Rule.TARGET_ONLY, "steps", seed)
            yield from (Cell("accuracy", column, rule, variant, seed) for rule in AUTO for variant in VARIANTS)
        for column in GRID:
            yield from (Cell("names", column, rule, "steps", seed) for rule in ALONE)
            for variant in ESTIMATES:
                yield from (Cell("names", column, rule, variant, seed) for rule in (*AUTO, Rule.AUTO))


def rows_of(known: Mapping[str, Mapping[str, Any]], seeds: int) -> list[dict[str, Any]]:
    """A row for each run, of those that are known."""
    rows = []
    for cell in cells(seeds):
        if (figures := known.get(cell.key)) is None:
            continue
        row = {"study": cell.study, "column": cell.column, "rule": str(cell.rule), "variant": cell.variant}
        row |= {"seed": cell.seed, "accuracy": round(figures["accuracy"], 2), "loss": _short(figures["loss"])}
        if figures["errors"]:
            row["errors"] = {rule: _short(error) for rule, error in figures["errors"].items()}
        if figures["truth"]:
            row["truth"] = [{key: _short(value) for key, value in at.items()} for at in figures["truth"]]
        rows.append(row)
    return rows


def _short(value: Any) -> Any:
    if isinstance(value, list):
        return [_short(one) for one in value]
    return value if isinstance(value, int) else float(f"{value:.4g}")


# --- tables -----------------------------------------------------------------------------------------------------------


def tables(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The tables as Markdown."""
    return {"truth": truth_table(rows), "names": names_table(rows), "accuracy": accuracy_table(rows)}


def truth_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Means of estimates over the means of the truth, in the first of the rounds and in the later ones."""
    lines = [
        f"| | σ², true | {' | '.join(Variance)} | d², true | {' | '.join(Variance)} | error of g_T |",
        f"|{'---|' * 10}",
    ]
    for column in TRUTHS:
        runs = [row["truth"] for row in rows if row["study"] == "truth" and row["column"] == column]
        for name, of in (("first round", slice(1)), ("later rounds", slice(1, None))):
            if not (found := [one for run in runs for one in run[of]]):
                continue
            cells = []
            for at in (0, 1):
                true = fmean(one["true"][at] for one in found)
                ratios = [fmean(one[kind][at] for one in found) / true for kind in Variance]
                cells += [_scientific(true), *(f"{ratio:.2f}" for ratio in ratios)]
            cells.append(f"{fmean(one['error'] for one in found) / fmean(one['true'][0] for one in found):.2f}")
            lines.append(f"| {column}, {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def names_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """In how many columns the rule that estimates name is the best one, and how far ``auto`` is above that."""
    lines = [
        "| σ² from | named by all rounds is best | loss of auto over the best | of fedda_auto | of fedgp_auto |",
        f"|{'---|' * 5}",
    ]
    for variant in ESTIMATES:
        right, excess = [], list[list[float]]()
        for column in GRID:
            losses = {rule: _losses(rows, column, rule, variant) for rule in (*CANDIDATES, Rule.AUTO)}
            if any(loss is None for loss in losses.values()):
                continue
            known = {rule: loss for rule, loss in losses.items() if loss is not None}
            errors = [row["errors"] for row in _runs(rows, "names", column, Rule.AUTO, variant)]
            named = choose_rule({rule: fmean(one[rule] for one in errors) for rule in CANDIDATES})
            best = min(known[rule] for rule in CANDIDATES)
            right.append(known[named] <= (1 + WITHIN) * best)
            excess.append([known[rule] / best - 1 for rule in (Rule.AUTO, *AUTO)])
        if right:
            shares = [f"{100 * fmean(column):.1f} %" for column in zip(*excess, strict=True)]
            lines.append(f"| {variant} | {sum(right)} of {len(right)} | {' | '.join(shares)} |")
    return "\n".join(lines)


def _runs(
    rows: Sequence[Mapping[str, Any]], study: str, column: str, rule: Rule, variant: str
) -> list[Mapping[str, Any]]:
    variant = "steps" if rule in ALONE else variant
    key = {"study": study, "column": column, "rule": str(rule), "variant": variant}
    return [row for row in rows if all(row[name] == value for name, value in key.items())]


def _losses(rows: Sequence[Mapping[str, Any]], column: str, rule: Rule, variant: str) -> float | None:
    runs = _runs(rows, "names", column, rule, variant)
    return fmean(run["loss"] for run in runs) if runs else None


def accuracy_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Accuracy on digits, and in the means over the four hospitals and over the grid of the names."""
    lines = [
        f"| | {' | '.join(f'{group}, {rule}' for group in GROUPS for rule in AUTO)} |",
        f"|{'---|' * (1 + 2 * len(GROUPS))}",
    ]
    for name, variant, rules in (("target_only", "steps", 2 * [Rule.TARGET_ONLY]), *((v, v, AUTO) for v in VARIANTS)):
        found = [_mean(rows, study, columns, rule, variant) for study, columns in GROUPS.values() for rule in rules]
        lines.append(f"| {name} | {' | '.join(found)} |")
    return "\n".join(lines)


def _mean(rows: Sequence[Mapping[str, Any]], study: str, columns: Sequence[str], rule: Rule, variant: str) -> str:
    runs = [_runs(rows, study, column, rule, variant) for column in columns]
    return f"{fmean(run['accuracy'] for of in runs for run in of):.1f}" if all(runs) else "–"


def _scientific(value: float) -> str:
    return f"{value:.1e}".replace("e-0", "e-")


def main() -> int:
    """Measure where asked to, and print the tables."""
    given = _arguments()
    if given.measure:
        data = [f"task.data-dir={given.data_dir.absolute() / 'fed_heart'}"]
        cache, studies = Cache(given.cache, "estimators"), dict.fromkeys(STUDIES, data)

        def done(cell: Cell, figures: Figures) -> None:
            print(f"{cell.key}: {figures.accuracy:.1f} %, {figures.loss:.3f}", file=sys.stderr, flush=True)

        with workers(given.workers) as pool:
            for seed in range(given.seeds):
                of_seed = [cell for cell in cells(seed + 1) if cell.seed == seed and cell.study in given.studies]
                beside, plain = ([c for c in of_seed if (c.study == "truth") is which] for which in (True, False))
                measure(pool, run_beside_the_truth, beside, cache, studies, done)
                measure(pool, run_cell, plain, cache, studies, done)
        given.figures.write_text(as_text(rows_of(cache.read(), MOST_SEEDS), this_machine()))
    print(shown(tables(json.loads(given.figures.read_text())["rows"])))
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--measure", action="store_true", help="run what the cache lacks first")
    parser.add_argument("--data-dir", type=Path, help="folder with fed_heart")
    parser.add_argument("--cache", type=Path, default=Path("estimators-cache"), help="folder for what was run already")
    parser.add_argument("--workers", type=int, default=1, help="federations beside each other")
    parser.add_argument("--seeds", type=int, choices=range(1, MOST_SEEDS + 1), default=2, help="of each column")
    parser.add_argument("--studies", nargs="+", choices=STUDIES, default=STUDIES, help="which of them to run")
    parser.add_argument("--figures", type=Path, default=FIGURES, help="the measured figures, JSON")
    given = parser.parse_args()
    if given.measure and given.data_dir is None:
        parser.error("--measure needs --data-dir")
    return given


if __name__ == "__main__":
    sys.exit(main())
