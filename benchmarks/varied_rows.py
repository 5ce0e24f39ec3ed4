"""What varied rows are worth to a target without labels, and what pseudo-labels are worth on top of them.

    python benchmarks/varied_rows.py --measure --data-dir DIR --cache FOLDER [--workers N] [--seeds N]
    python benchmarks/varied_rows.py    from varied_rows.json: print the tables

DIR holds ``mnist`` and ``usps``. Each domain is the target once, and the other three are its sources. Every run plays
the rounds of a federation in one process, without network, masks and norm caps. How rows are varied, and the schedule,
were chosen on synthetic, mnist-m and usps as targets with another seed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from pseudo_labels import run_cell
from variants import (
    DOMAINS,
    MOST_SEEDS,
    VariantCell,
    domain_arguments,
    domain_cells,
    domain_study,
    found_in,
    mean_and_spread,
)

SETTINGS = (
    "task.options.rows=2000",
    "task.options.target-rows=2000",
    "training.source.batch-size=64",
    "training.target.batch-size=64",
    "training.source.threads=1",
    "training.target.threads=1",
    "strategy.rounds=20",
    "strategy.warm-up-rounds=6",
    "strategy.lr-after-warm-up=1.0",
)
ALONE = ("strategy.rule=source_only", "training.target.labels=none")
PSEUDO = ("strategy.beta=0.5", "training.target.labels=pseudo")
VARIED = "training.source.vary=true"
VARIANTS = {
    "source_only": ALONE,
    "source_only, varied": (*ALONE, VARIED),
    "fedda, β = 0.5, varied, pseudo-labels": ("strategy.rule=fedda", *PSEUDO, VARIED),
    "fedgp, β = 0.5, varied, pseudo-labels": ("strategy.rule=fedgp", *PSEUDO, VARIED),
}
BESIDE = "source_only, varied"


def cells(seeds: int = MOST_SEEDS) -> Iterator[VariantCell]:
    """Every run, seed by seed, mnist-m first."""
    return domain_cells(SETTINGS, VARIANTS, seeds)


def rows_of(known: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row for each target and variant, of the seeds that were run, from figures by cell."""
    return [
        {
            "target": target,
            "variant": variant,
            "seeds": list(found),
            "accuracies": [round(figures["accuracy"], 2) for figures in found.values()],
            "confident": [figures["confident"] for figures in found.values()],
        }
        for (target, variant), found in found_in(known, cells()).items()
    ]


def tables(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The table as Markdown: each variant's mean over the targets, and how far it is above source_only on varied rows.

    Both only where the variant was run with every target.
    """
    at = {(row["target"], row["variant"]): row["accuracies"] for row in rows}
    lines = [f"| | {' | '.join(DOMAINS)} | mean | above {BESIDE} |", f"|---|{'---|' * (len(DOMAINS) + 2)}"]
    means: dict[str, float] = {}
    for variant in VARIANTS:
        found = [at[target, variant] for target in DOMAINS if (target, variant) in at]
        if len(found) == len(DOMAINS):
            means[variant] = fmean(map(fmean, found))
    for variant in VARIANTS:
        cells_here = [mean_and_spread(at.get((target, variant))) for target in DOMAINS]
        mean = f"{means[variant]:.1f}" if variant in means else "–"
        above = f"{means[variant] - means[BESIDE]:.1f}" if variant in means and BESIDE in means else "–"
        lines.append(f"| {variant} | {' | '.join(cells_here)} | {mean} | {above} |")
    return {"accuracy": "\n".join(lines)}


def main() -> int:
    """Measure where asked to, and print the tables."""
    given = domain_arguments(__doc__, "varied_rows")
    domain_study(given, run_cell, cells, rows_of, tables)
    return 0


if __name__ == "__main__":
    sys.exit(main())
