"""Whether training towards features that are alike helps a target without labels: FADA's models, DANN and DAN.

    python benchmarks/alignment.py --measure --data-dir DIR --cache FOLDER [--workers N] [--seeds N]
    python benchmarks/alignment.py    from alignment.json: print the table

DIR holds ``mnist`` and ``usps``. Each domain is the target once, and the other three are its sources. Every run is a
simulated federation with visibility individual, on one thread.

The step of the target and the weight of the losses were chosen on mnist-m as the target; so its column is no test of
that choice.
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

from federated import Job, RunResult, run, workers
from studies import Cache, as_text, measure, shown, this_machine

from securefda.samples import sample
from securefda.site.config import load_federation

FIGURES = Path(__file__).parent / "alignment.json"
TARGETS = ("mnist-m", "synthetic", "mnist", "usps")
MOST_SEEDS = 5
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
        settings = [*sites, *SETTINGS, f"strategy.rule={self.variant}", *given]
        return Job(load_federation(sample("digit_domains"), settings), self.seed)


@dataclass(frozen=True, slots=True)
class Figures:
    """What a run gave on the target's test rows, in percent: the mean over the last five rounds, and every round."""

    accuracy: float
    accuracies: list[float]


def run_cell(job: Job) -> Figures:
    """Simulate one federation."""
    result: RunResult = run(job)
    return Figures(result.accuracy, [round(one, 1) for one in result.accuracies])


def cells(seeds: int = MOST_SEEDS) -> Iterator[Cell]:
    """Every run, seed by seed, mnist-m first."""
    for seed in range(seeds):
        yield from (Cell(target, variant, seed) for target in TARGETS for variant in VARIANTS)


def rows_of(known: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row for each target and variant, of the seeds that every variant was run with, from figures by cell."""
    rows = []
    for target in TARGETS:
        played = range(MOST_SEEDS)
        seeds = [seed for seed in played if all(Cell(target, variant, seed).key in known for variant in VARIANTS)]
        for variant in VARIANTS if seeds else ():
            found = [known[Cell(target, variant, seed).key] for seed in seeds]
            rows.append(
                {
                    "target": target,
                    "variant": variant,
                    "seeds": seeds,
                    "accuracies": [round(figures["accuracy"], 2) for figures in found],
                    "rounds": [figures["accuracies"] for figures in found],
                }
            )
    return rows


def tables(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The table as Markdown."""
    at = {(row["target"], row["variant"]): row["accuracies"] for row in rows}
    targets = [target for target in TARGETS if (target, "source_only") in at]
    lines = [f"| | {' | '.join(targets)} | mean |", f"|---|{'---|' * (len(targets) + 1)}"]
    for variant in VARIANTS:
        found = [at[target, variant] for target in targets]
        mean = f"{fmean(map(fmean, found)):.1f}" if found else "–"
        lines.append(f"| {variant} | {' | '.join(map(_accuracy, found))} | {mean} |")
    lines.append(f"| seeds | {' | '.join(str(len(at[target, 'source_only'])) for target in targets)} | |")
    return {"accuracy": "\n".join(lines)}


def _accuracy(values: Sequence[float]) -> str:
    return f"{fmean(values):.1f}" + (f" ± {stdev(values):.1f}" if len(values) > 1 else "")


def main() -> int:
    """Measure where asked to, and print the table."""
    given = _arguments()
    if given.measure:
        data = [f"task.data-dir={given.data_dir.absolute()}"]
        cache = Cache(given.cache, "alignment")

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
    parser.add_argument("--cache", type=Path, default=Path("alignment-cache"), help="folder for what was run already")
    parser.add_argument("--workers", type=int, default=1, help="federations beside each other")
    parser.add_argument("--seeds", type=int, choices=range(1, MOST_SEEDS + 1), default=2, help="of each target")
    parser.add_argument("--figures", type=Path, default=FIGURES, help="the measured figures, JSON")
    given = parser.parse_args()
    if given.measure and given.data_dir is None:
        parser.error("--measure needs --data-dir")
    return given


if __name__ == "__main__":
    sys.exit(main())
