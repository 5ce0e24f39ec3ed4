"""Whether training towards features that are alike helps a target without labels: FADA's models, DANN and DAN.

    python benchmarks/alignment.py --measure --data-dir DIR --cache FOLDER [--workers N] [--seeds N]
    python benchmarks/alignment.py    from alignment.json: print the table

DIR holds ``mnist`` and ``usps``. Each domain is the target once, and the other three are its sources. Every run is a
simulated federation with visibility individual, on one thread.

The step of the target and the weight of the losses were chosen on mnist-m as the target; so its column is no test of
that choice.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from federated import Job, RunResult, run
from variants import (
    DOMAINS,
    MOST_SEEDS,
    VariantCell,
    complete_seeds,
    domain_arguments,
    domain_cells,
    domain_study,
    found_in,
    mean_and_spread,
)

SETTINGS = (
    'task.options.model="disentangled"',
    "task.options.rows=1000",
    "task.options.target-rows=1000",
    "training.target.labels=none",
    "training.target.release-features=true",
    "training.source.batch-size=64",
    "strategy.feature-rows=512",
    "strategy.rounds=12",
    "strategy.warm-up-rounds=4",
    "privacy.visibility=individual",
)
VARIANTS = ("source_only", "f_dann", "f_dan", "fada_adversarial", "fada")


@dataclass(frozen=True, slots=True)
class Figures:
    """What a run gave on the target's test rows, in percent: the mean over the last five rounds, and every round."""

    accuracy: float
    accuracies: list[float]


def run_cell(job: Job) -> Figures:
    """Simulate one federation."""
    result: RunResult = run(job)
    return Figures(result.accuracy, [round(one, 1) for one in result.accuracies])


def cells(seeds: int = MOST_SEEDS) -> Iterator[VariantCell]:
    """Every run, seed by seed, mnist-m first."""
    return domain_cells(SETTINGS, {rule: (f"strategy.rule={rule}",) for rule in VARIANTS}, seeds)


def rows_of(known: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row for each target and variant, of the seeds that every variant was run with, from figures by cell."""
    complete = complete_seeds(known, cells())
    rows = []
    for (target, variant), by_seed in found_in(known, cells()).items():
        if target not in complete:
            continue
        found = [by_seed[seed] for seed in complete[target]]
        rows.append(
            {
                "target": target,
                "variant": variant,
                "seeds": complete[target],
                "accuracies": [round(figures["accuracy"], 2) for figures in found],
                "rounds": [figures["accuracies"] for figures in found],
            }
        )
    return rows


def tables(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The table as Markdown."""
    at = {(row["target"], row["variant"]): row["accuracies"] for row in rows}
    targets = [target for target in DOMAINS if (target, "source_only") in at]
    lines = [f"| | {' | '.join(targets)} | mean |", f"|---|{'---|' * (len(targets) + 1)}"]
    for variant in VARIANTS:
        found = [at[target, variant] for target in targets]
        mean = f"{fmean(map(fmean, found)):.1f}" if found else "–"
        lines.append(f"| {variant} | {' | '.join(map(mean_and_spread, found))} | {mean} |")
    lines.append(f"| seeds | {' | '.join(str(len(at[target, 'source_only'])) for target in targets)} | |")
    return {"accuracy": "\n".join(lines)}


def main() -> int:
    """Measure where asked to, and print the table."""
    given = domain_arguments(__doc__, "alignment")
    domain_study(given, run_cell, cells, rows_of, tables)
    return 0


if __name__ == "__main__":
    sys.exit(main())
