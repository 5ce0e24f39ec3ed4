"""What a target gains that chooses by folds of its rows between a rule's model and its own from the same warm start.

    python benchmarks/folds.py --measure --data-dir DIR --cache FOLDER [--workers N] [--seeds N]
    python benchmarks/folds.py     from folds.json: print the tables

DIR holds ``fed_heart``, ``mnist`` and ``fashion_mnist``. Every run plays the rounds of a federation in one process,
without network, masks and norm caps, on one thread. A run of a rule with folds measures three models on the same test
rows: the rule's, that of the target alone since the warm-up (*warm_target*), and the one that the target keeps.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import sqrt
from statistics import fmean, stdev
from typing import Any

import numpy as np
from federated import Job
from offline_rounds import OfflineSites
from studies import as_text, shown, this_machine
from variants import MOST_SEEDS, VariantCell, found_in, measured, study_parser

from securefda.aggregator.folds import RULE, WARM_TARGET, Folds, chosen
from securefda.aggregator.target import TargetRound, train_target
from securefda.operations.records import REPORTED_ROUNDS
from securefda.rules import STEP_SHARES, Contribution, RoundPlan, best_share, partial_step, round_plan
from securefda.training import LocalResult, Vector

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
DOMAINS = ("plus-90", "plus-80", "minus-90")
COUNT = 5
"""Folds."""


def _sites(target: str, every: Sequence[str]) -> tuple[str, str]:
    return f"federation.target={target}", f"federation.sources={json.dumps([one for one in every if one != target])}"


def _rows(rows: int, batch: int, *more: str) -> tuple[str, ...]:
    return (f"task.options.target-rows={rows}", f"training.target.batch-size={batch}", *more)


COLUMNS: Mapping[str, tuple[str, str, tuple[str, ...]]] = {
    **{f"digits, {rows} rows": ("digits", "", _rows(rows, min(rows // 5, 20))) for rows in (20, 50, 100)},
    **{
        f"Fed-Heart, {one}, {scaling}": (
            "fed_heart",
            "fed_heart",
            (*_sites(one, HOSPITALS), f"task.options.scaling={scaling}"),
        )
        for scaling in ("public", "site")
        for one in HOSPITALS
    },
    **{
        f"rbf, shift {shift}, {rows} rows": ("rbf", "", _rows(rows, rows // 10, f"task.options.shift={shift}"))
        for shift, rows in ((0.4, 30), (0.8, 30), (0.8, 300))
    },
    "ColoredMNIST, -90 %": ("colored_mnist", "mnist", _sites("minus-90", DOMAINS)),
    "label shift, η = 0": ("label_shift_fashion_mnist", "fashion_mnist", ("task.options.eta=0",)),
    "noisy Fashion, 0.4": ("noisy_fashion_mnist", "fashion_mnist", ("task.options.noise=0.4",)),
}
"""Name -> sample, folder of its files, settings."""

STEP_BY_STEP, VALIDATED = "fedda_auto, share by folds", "fedda_auto, validated step"
PLAIN = ("target_only", "source_only")
FOLDED = ("fedda_auto", "fedgp_auto")
VARIANTS: Mapping[str, tuple[str, ...]] = {
    **{rule: (f"strategy.rule={rule}",) for rule in PLAIN},
    **{rule: (f"strategy.rule={rule}", f"strategy.folds={COUNT}") for rule in FOLDED},
    VALIDATED: (
        "strategy.rule=fedda_auto",
        "strategy.step=validated",
        "strategy.validation-share=0.2",
    ),
}

LEFT_OUT = {
    "fed_heart": (STEP_BY_STEP,),
    "mnist": (STEP_BY_STEP, VALIDATED),
    "fashion_mnist": (STEP_BY_STEP, VALIDATED),
}
"""Folder of a column's files -> variants that would take too long there."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Accuracies in percent, means over the last five rounds; without folds all three are of the one model.

    Attributes:
        accuracy: of the model that the target keeps.
        rule: of the rule's.
        alone: of the target alone since the warm-up.
        kept_alone: the rounds in which the target kept its own, of those with a choice, as a share.
        seconds: of the rounds after the warm-up.
        seconds_of_folds: of these, what the folds took.
    """

    accuracy: float
    rule: float
    alone: float
    kept_alone: float = 0.0
    seconds: float = 0.0
    seconds_of_folds: float = 0.0


class InMemory:
    """Keeps the candidates' models of a run."""

    def __init__(self) -> None:
        self._kept: dict[int, bytes] = {}

    def personal(self, key: str, before: int) -> bytes | None:  # noqa: ARG002 - there is one
        """The state of the round before."""
        return self._kept.get(before - 1)

    def keep_personal(self, key: str, round_number: int, state: bytes) -> None:  # noqa: ARG002 - there is one
        """Keep it, and nothing older."""
        self._kept = {round_number: state}


def run_cell(job: Job) -> Figures:
    """Play all rounds of one federation; with folds, the target chooses what it keeps."""
    return _play(job, by_step=False)


def run_step_by_step(job: Job) -> Figures:
    """The same, but the folds choose in each round how much of the rule's update the target takes."""
    return _play(job, by_step=True)


def _play(job: Job, *, by_step: bool) -> Figures:
    sites, count = OfflineSites(job.config, job.seed), job.config.strategy.folds
    strategy, records = sites.strategy, list[dict[str, Any]]()
    folds = Folds.of(sites.target, count, job.seed, InMemory()) if count else None
    without: list[Vector] = []
    accuracies: dict[str, list[float]] = {"kept": [], RULE: [], WARM_TARGET: []}
    began, seconds_of_folds = time.monotonic(), 0.0
    for number in range(1, strategy.rounds + 1):
        plan = round_plan(strategy, number)
        target = train_target(sites.target, sites.model, number, plan)
        results = sites.train_sources(plan, number) if plan.needs_sources else []
        parts = [sites.part(plan, target, result) for result in results]
        update = sites.update_of(plan, target, parts, results) if parts else target.result.update
        if strategy.validates_step and target is not None:
            update = sites.validated(target, update)
        received, played, began_folds = sites.model, None, time.monotonic()
        if folds is not None and target is not None:
            update_with = partial(_update_with, sites, plan, target, parts, results)
            if by_step:
                without = without or [received.copy() for _ in folds.folds]
                share = share_by_folds(folds, without, number, plan, update_with)
                update = partial_step(target.result.update, update, share)
            else:
                trained = folds.train("", number, plan.learning_rate_factor, received)
                played = folds.finish("", number, trained, update_with)
        seconds_of_folds += time.monotonic() - began_folds
        sites.move(update)
        models = dict.fromkeys(accuracies, sites.model)
        if played is not None:
            which = chosen(played.losses, records)
            records.append({"fold_losses": played.losses, "chosen": which})
            models[WARM_TARGET] = played.alone
            models["kept"] = models[which]
        for name, model in models.items():
            accuracies[name].append(sites.target.evaluate(model, sites.test_data).metrics["accuracy"])
    last = {name: 100 * fmean(values[-REPORTED_ROUNDS:]) for name, values in accuracies.items()}
    alone = sum(one["chosen"] == WARM_TARGET for one in records) / max(len(records), 1)
    return Figures(last["kept"], last[RULE], last[WARM_TARGET], alone, time.monotonic() - began, seconds_of_folds)


def _update_with(
    sites: OfflineSites,
    plan: RoundPlan,
    target: TargetRound,
    parts: list[Contribution],
    results: list[LocalResult],
    own: Vector,
) -> Vector:
    """The round's update with the same sums and another update of the target."""
    return sites.update_of(plan, target.with_update(own), parts, results)


def share_by_folds(
    folds: Folds, models: list[Vector], number: int, plan: RoundPlan, update_of: Callable[[Vector], Vector]
) -> float:
    """The share of the rule's update with the least loss on the folds, in this round; moves the models without them."""
    steps = []
    for model, fold in zip(models, folds.folds, strict=True):
        own = folds.trainer.train_on(fold.others, model, number, plan.learning_rate_factor)
        update = update_of(own)
        steps.append([(model + partial_step(own, update, share)).astype(np.float32) for share in STEP_SHARES])
    losses = [
        sum(
            folds.trainer.evaluate(of_fold[place], fold.left_out).loss * len(fold.left_out)
            for of_fold, fold in zip(steps, folds.folds, strict=True)
        )
        for place in range(len(STEP_SHARES))
    ]
    share = best_share(losses)
    models[:] = [of_fold[STEP_SHARES.index(share)] for of_fold in steps]
    return share


def cells(seeds: Iterable[int] = range(MOST_SEEDS), *, by_step: bool = False) -> Iterator[VariantCell]:
    """Every run, seed by seed: those where the target chooses a model or, ``by_step``, a share in each round."""
    variants = {STEP_BY_STEP: VARIANTS["fedda_auto"]} if by_step else VARIANTS
    for seed in seeds:
        for column, (example, folder, settings) in COLUMNS.items():
            for name, own in variants.items():
                if name not in LEFT_OUT.get(folder, ()):
                    yield VariantCell(column, name, seed, example, (*settings, *own))


def rows_of(known: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row for each run."""
    every = [*cells(), *cells(by_step=True)]
    return [
        {"column": column, "variant": variant, "seed": seed}
        | {name: round(value, 2) for name, value in figures.items()}
        for (column, variant), by_seed in found_in(known, every).items()
        for seed, figures in by_seed.items()
    ]


def tables(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The tables of the page: differences to warm_target, per seed, and what they cost."""
    found: dict[tuple[str, str], dict[int, Mapping[str, Any]]] = {}
    for row in rows:
        found.setdefault((row["column"], row["variant"]), {})[row["seed"]] = row
    columns = [column for column in COLUMNS if (column, FOLDED[0]) in found]
    alone = {column: {seed: row["alone"] for seed, row in found[column, FOLDED[0]].items()} for column in columns}

    def differences(column: str, variant: str, which: str) -> list[float]:
        of_cell = found.get((column, variant), {})
        return [row[which] - alone[column][seed] for seed, row in of_cell.items() if seed in alone[column]]

    shown_variants = {
        "source_only": ("source_only", "rule"),
        "target_only": ("target_only", "rule"),
        **{rule: (rule, RULE) for rule in FOLDED},
        **{f"{rule}, folds": (rule, "accuracy") for rule in FOLDED},
        VALIDATED: (VALIDATED, "rule"),
        STEP_BY_STEP: (STEP_BY_STEP, "rule"),
    }
    lines = [
        f"| | seeds | warm_target | {' | '.join(shown_variants)} |",
        f"|---|---|---{'|---' * len(shown_variants)}|",
    ]
    by_variant = {name: [differences(column, *what) for column in columns] for name, what in shown_variants.items()}
    for place, column in enumerate(columns):
        values, cells_of = alone[column].values(), [_difference(of[place]) for of in by_variant.values()]
        lines.append(f"| {column} | {len(values)} | {fmean(values):.1f} | {' | '.join(cells_of)} |")
    whole = {name: of for name, of in by_variant.items() if all(of)}
    best = [max(0.0, *(fmean(of[place]) for of in whole.values())) for place in range(len(columns))]
    summary: dict[str, Callable[[list[list[float]]], str]] = {
        "mean of the columns": lambda of: f"{fmean(map(fmean, of)):+.1f}",
        "columns with ▼": lambda of: str(sum(_is_below(one) for one in of)),
        "columns in which it is best": lambda of: str(
            sum(fmean(one) > most - 0.05 for one, most in zip(of, best, strict=True))
        ),
    }
    for said, count in summary.items():
        lines.append(f"| {said} | | | {' | '.join(count(of) if all(of) else '–' for of in by_variant.values())} |")
    per_seed = [
        "| | seed | warm_target | " + " | ".join(f"{rule} | folds" for rule in FOLDED) + " |",
        "|---|---|---|---|---|---|---|",
    ]
    for column in columns:
        for seed in sorted(alone[column]):
            of_rules = [found.get((column, rule), {}).get(seed) for rule in FOLDED]
            texts = ["– | –" if row is None else f"{row['rule']:.1f} | {row['accuracy']:.1f}" for row in of_rules]
            per_seed.append(f"| {column} | {seed} | {alone[column][seed]:.1f} | {' | '.join(texts)} |")
    cost = ["| | seconds | of them for the folds |", "|---|---|---|"]
    for column in columns:
        of_rule = list(found[column, FOLDED[-1]].values()) if (column, FOLDED[-1]) in found else []
        if of_rule:
            times = [fmean(row[name] for row in of_rule) for name in ("seconds", "seconds_of_folds")]
            cost.append(f"| {column} | {times[0]:.1f} | {times[1]:.1f} |")
    return {"differences": "\n".join(lines), "seeds": "\n".join(per_seed), "cost": "\n".join(cost)}


def _error(values: Sequence[float]) -> float:
    return stdev(values) / sqrt(len(values)) if len(values) > 1 else 0.0


def _is_below(values: Sequence[float]) -> bool:
    return round(fmean(values), 2) < -round(_error(values), 2)


def _difference(values: Sequence[float]) -> str:
    if not values:
        return "–"
    return f"{fmean(values):+.1f} ± {_error(values):.1f}" + (" ▼" if _is_below(values) else "")


def main() -> int:
    """Measure where asked to, and print the tables."""
    parser = study_parser(__doc__, "folds", "fed_heart, mnist and fashion_mnist")
    parser.add_argument(
        "--seeds", type=int, choices=range(1, MOST_SEEDS + 1), default=MOST_SEEDS, help="of each column"
    )
    parser.add_argument("--columns", nargs="+", choices=COLUMNS, default=list(COLUMNS), help="which of them to run")
    given = parser.parse_args()
    if given.measure:
        if given.data_dir is None:
            parser.error("--measure needs --data-dir")
        root = given.data_dir.absolute()
        data = {name: [f"task.data-dir={root / folder}"] if folder else [] for name, (_, folder, _) in COLUMNS.items()}
        for seed in range(given.seeds):
            for by_step, run in ((False, run_cell), (True, run_step_by_step)):
                asked = [cell for cell in cells([seed], by_step=by_step) if cell.study in given.columns]
                known = measured(given, run, asked, data)
        given.figures.write_text(as_text(rows_of(known), this_machine()))
    print(shown(tables(json.loads(given.figures.read_text())["rows"])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
