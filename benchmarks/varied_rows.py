"""What varied rows are worth to a target without labels, and what pseudo-labels are worth on top of them.

    python benchmarks/varied_rows.py --measure --data-dir DIR --cache FOLDER [--workers N] [--seeds N]
    python benchmarks/varied_rows.py    from varied_rows.json: print the tables

DIR holds ``mnist`` and ``usps``. Each domain is the target once, and the other three are its sources. Every run plays
the rounds of a federation in one process, without network, masks and norm caps. How rows are varied, and the schedule,
were chosen on synthetic, mnist-m and usps as targets with another seed.
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

from federated import Job, workers
from pseudo_labels import Figures, run_cell
from studies import Cache, as_text, measure, shown, this_machine

from securefda.samples import sample
from securefda.site.config import load_federation

FIGURES = Path(__file__).parent / "varied_rows.json"
TARGETS = ("mnist-m", "synthetic", "mnist", "usps")
MOST_SEEDS = 5
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


@dataclass(frozen=True, slots=True)
class Cell:
    """One run; its study is the target."""

    study: str
    variant: str
    seed: int

    @property
    def key(self) -> str:
        """Its name in the cache."""
        return f"{self.study}/{self.variant}/{self.seed}"

    def job(self, given: Iterable[str]) -> Job:
        """The federation and the seed."""
        sources = json.dumps([site for site in TARGETS if site != self.study])
        sites = (f"federation.target={self.study}", f"federation.sources={sources}")
        settings = [*sites, *SETTINGS, *VARIANTS[self.variant], *given]
        return Job(load_federation(sample("digit_domains"), settings), self.seed)


def cells(seeds: int = MOST_SEEDS) -> Iterator[Cell]:
    """Every run, seed by seed."""
    for seed in range(seeds):
        yield from (Cell(target, variant, seed) for variant in VARIANTS for target in TARGETS)


def rows_of(known: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row for each target and variant, of the seeds that were run, from figures by cell."""
    rows = []
    for target in TARGETS:
        for variant in VARIANTS:
            keys = {seed: Cell(target, variant, seed).key for seed in range(MOST_SEEDS)}
            found = {seed: known[key] for seed, key in keys.items() if key in known}
            if not found:
                continue
            rows.append(
                {
                    "target": target,
                    "variant": variant,
                    "seeds": list(found),
                    "accuracies": [round(figures["accuracy"], 2) for figures in found.values()],
                    "confident": [figures["confident"] for figures in found.values()],
                }
            )
    return rows


def tables(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The table as Markdown: each variant's mean over the targets, and how far it is above source_only on varied rows.

    Both only where the variant was run with every target.
    """
    at = {(row["target"], row["variant"]): row["accuracies"] for row in rows}
    lines = [f"| | {' | '.join(TARGETS)} | mean | above {BESIDE} |", f"|---|{'---|' * (len(TARGETS) + 2)}"]
    means: dict[str, float] = {}
    for variant in VARIANTS:
        found = [at[target, variant] for target in TARGETS if (target, variant) in at]
        if len(found) == len(TARGETS):
            means[variant] = fmean(map(fmean, found))
    for variant in VARIANTS:
        cells_here = [_accuracy(at.get((target, variant))) for target in TARGETS]
        mean = f"{means[variant]:.1f}" if variant in means else "–"
        above = f"{means[variant] - means[BESIDE]:.1f}" if variant in means and BESIDE in means else "–"
        lines.append(f"| {variant} | {' | '.join(cells_here)} | {mean} | {above} |")
    return {"accuracy": "\n".join(lines)}


def _accuracy(values: Sequence[float] | None) -> str:
    if not values:
        return "–"
    return f"{fmean(values):.1f}" + (f" ± {stdev(values):.1f}" if len(values) > 1 else "")


def main() -> int:
    """Measure where asked to, and print the tables."""
    given = _arguments()
    if given.measure:
        data = [f"task.data-dir={given.data_dir.absolute()}"]
        cache = Cache(given.cache, "varied_rows")

        def done(cell: Cell, figures: Figures) -> None:
            print(f"{cell.key}: {figures.accuracy:.1f} %", file=sys.stderr, flush=True)

        with workers(given.workers) as pool:
            measure(pool, run_cell, cells(given.seeds), cache, dict.fromkeys(TARGETS, data), done)
        given.figures.write_text(as_text(rows_of(cache.read()), this_machine()))
    print(shown(tables(json.loads(given.figures.read_text())["rows"])))
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--measure", action="store_true", help="run what the cache lacks first")
    parser.add_argument("--data-dir", type=Path, help="folder with mnist and usps")
    parser.add_argument("--cache", type=Path, default=Path("varied-rows-cache"), help="folder for what was run already")
    parser.add_argument("--workers", type=int, default=1, help="federations beside each other")
    parser.add_argument("--seeds", type=int, choices=range(1, MOST_SEEDS + 1), default=1, help="of each target")
    parser.add_argument("--figures", type=Path, default=FIGURES, help="the measured figures, JSON")
    given = parser.parse_args()
    if given.measure and given.data_dir is None:
        parser.error("--measure needs --data-dir")
    return given


if __name__ == "__main__":
    sys.exit(main())
