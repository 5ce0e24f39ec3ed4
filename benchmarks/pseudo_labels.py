"""What pseudo-labels at a target without labels are worth: beside source_only, and beside all labels given.

    python benchmarks/pseudo_labels.py --measure --data-dir DIR --cache FOLDER [--workers N]
    python benchmarks/pseudo_labels.py    from pseudo_labels.json: print the table

DIR holds ``fed_heart`` and ``fashion_mnist``; without it digits alone are run. Every run plays the rounds of a
federation in one process, without network, masks and norm caps: the model is that of a masked sum without norm caps,
but for rounding. The threshold, the least share and the weights of labels were chosen on other targets: digits that are
mirrored, and the hospitals va and hungarian.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from federated import Job
from offline_rounds import OfflineSites
from studies import as_text, shown, this_machine
from variants import MOST_SEEDS, VariantCell, found_in, mean_and_spread, measured, study_parser

from securefda.aggregator.target import train_target
from securefda.operations.records import REPORTED_ROUNDS
from securefda.rules import round_plan
from securefda.training.pseudo import PseudoLabelSettings

PSEUDO = "training.target.labels=pseudo"
VARIANTS = {
    "source_only": ("strategy.rule=source_only", "training.target.labels=none"),
    "fedgp_auto, pseudo-labels": ("strategy.rule=fedgp_auto", PSEUDO),
    "fedda_auto, pseudo-labels": ("strategy.rule=fedda_auto", PSEUDO),
    "fedgp, β = 0.5, pseudo-labels": ("strategy.rule=fedgp", "strategy.beta=0.5", PSEUDO),
    "fedgp_auto, all labels given": ("strategy.rule=fedgp_auto",),
}


@dataclass(frozen=True, slots=True)
class Study:
    """A sample federation whose target has all its rows, and the folder of its data, if it needs one."""

    example: str
    settings: tuple[str, ...]
    data: str = ""


def hospitals(target: str, *sources: str) -> Study:
    """Fed-Heart with this target."""
    named = ", ".join(f'"{source}"' for source in sources)
    return Study(
        "fed_heart",
        (
            f"federation.target={target}",
            f"federation.sources=[{named}]",
            "task.options.target-fraction=1.0",
            "task.options.scaling=site",
            "training.target.batch-size=4",
            "training.target.learning-rate=0.1",
            "training.source.learning-rate=0.1",
            "strategy.rounds=30",
        ),
        "fed_heart",
    )


STUDIES = {
    "digits": Study("digits", ("task.options.target-rows=400",)),
    "fed-heart, cleveland": hospitals("cleveland", "hungarian", "switzerland", "va"),
    "fed-heart, switzerland": hospitals("switzerland", "cleveland", "hungarian", "va"),
    "noisy fashion-mnist": Study("noisy_fashion_mnist", ("task.options.target-rows=270",), "fashion_mnist"),
}


@dataclass(frozen=True, slots=True)
class Figures:
    """What a run gave.

    Attributes:
        accuracy: mean over the last five rounds, in percent.
        confident: mean share of the rows whose pseudo-label counted in the last five rounds; None without such labels.
        trained: share of the rounds after warm-up in which the target trained.
    """

    accuracy: float
    confident: float | None
    trained: float | None


def run_cell(job: Job) -> Figures:
    """Play all rounds of one federation, in this process, without network and masks."""
    sites, training = OfflineSites(job.config, job.seed), job.config.training.target
    strategy, target = sites.strategy, sites.target
    if training.labels == "pseudo":
        target = sites.target_on_pseudo_labels(PseudoLabelSettings(training.pseudo_threshold, training.pseudo_share))
    accuracies: list[float] = []
    confident: list[int] = []
    trained: list[bool] = []
    for number in range(1, strategy.rounds + 1):
        plan = round_plan(strategy, number)
        own = train_target(target, sites.model, number, plan)
        if own is not None and own.result.confident is not None:
            confident.append(own.result.confident)
            trained.append(own.result.steps > 0)
            if not trained[-1]:
                plan, own = round_plan(strategy, 1), None
        results = sites.train_sources(plan, number)
        parts = [sites.part(plan, own, result) for result in results]
        sites.move(sites.update_of(plan, own, parts, results))
        accuracies.append(sites.target.evaluate(sites.model, sites.test_data).metrics["accuracy"])
    accuracy = 100 * fmean(accuracies[-REPORTED_ROUNDS:])
    if not confident:
        return Figures(accuracy, None, None)
    return Figures(accuracy, fmean(confident[-REPORTED_ROUNDS:]), fmean(trained))


def cells() -> Iterator[VariantCell]:
    """Every run, study by study and seed by seed."""
    for name, study in STUDIES.items():
        for seed in range(MOST_SEEDS):
            for variant, settings in VARIANTS.items():
                yield VariantCell(name, variant, seed, study.example, (*study.settings, *settings))


def rows_of(known: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row for each study and variant, of the seeds that were run, from figures by cell."""
    rows = []
    for (study, variant), found in found_in(known, cells()).items():
        row: dict[str, Any] = {"study": study, "variant": variant, "seeds": list(found)}
        row["accuracies"] = [round(figures["accuracy"], 2) for figures in found.values()]
        for name in ("confident", "trained"):
            values = [figures[name] for figures in found.values() if figures[name] is not None]
            row[name] = round(fmean(values), 3) if values else None
        rows.append(row)
    return rows


def tables(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The table as Markdown."""
    at = {(row["study"], row["variant"]): row for row in rows}
    studies = [study for study in STUDIES if any(row["study"] == study for row in rows)]
    lines = [f"| | {' | '.join(studies)} |", f"|---|{'---|' * len(studies)}"]
    for variant in VARIANTS:
        lines.append(f"| {variant} | {' | '.join(_accuracy(at.get((study, variant))) for study in studies)} |")
    shares = [f"| rows that count; rounds in which the target trained | {' | '.join(studies)} |", lines[1]]
    for variant in (name for name in VARIANTS if name.endswith("pseudo-labels")):
        shares.append(f"| {variant} | {' | '.join(_shares(at.get((study, variant))) for study in studies)} |")
    return {"accuracy": "\n".join(lines), "shares": "\n".join(shares)}


def _accuracy(row: Mapping[str, Any] | None) -> str:
    return mean_and_spread(row["accuracies"] if row else None)


def _shares(row: Mapping[str, Any] | None) -> str:
    return "–" if row is None else f"{row['confident']:.0f}; {100 * row['trained']:.0f} %"


def main() -> int:
    """Measure where asked to, then print the tables."""
    given = study_parser(__doc__, "pseudo_labels", "fed_heart and fashion_mnist").parse_args()
    if given.measure:
        data = {
            name: [f"task.data-dir={given.data_dir.absolute() / study.data}"] if study.data and given.data_dir else []
            for name, study in STUDIES.items()
        }
        runnable = [cell for cell in cells() if given.data_dir or not STUDIES[cell.study].data]
        rows = rows_of(measured(given, run_cell, runnable, data))
        given.figures.write_text(as_text(rows, this_machine()))
    print(shown(tables(json.loads(given.figures.read_text())["rows"])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
