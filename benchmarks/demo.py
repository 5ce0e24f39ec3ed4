"""Measures what the sources add in ``securefda demo``, beside baselines that are tuned in their own favour.

    python benchmarks/demo.py --measure --cache FOLDER    run what FOLDER lacks, write demo.json
    python benchmarks/demo.py [--check]                   print the table; with --check fail where a gain is too small

All runs are of the sample ``three_hospitals`` as it is: at visibility ``sum``, masked, with norm caps. The last
model of each run is judged on the clinic's 500 test rows. target_only and warm_target are tried with three learning
rates and three numbers of rounds each; of the nine, the one with the best mean on the *test* rows counts, which no
clinic could choose. Intervals are of paired differences: 10,000 bootstrap samples of the test rows of each seed.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from studies import Cache, as_text, markdown, this_machine, told

from securefda.bench.accuracy.columns import RULES, Schedule
from securefda.bench.accuracy.federated import use_one_thread
from securefda.local.simulator import simulate
from securefda.operations.progress import SilentReporter
from securefda.operations.trained import trained_model
from securefda.samples import sample
from securefda.site.config import load_federation

FIGURES = Path(__file__).parent / "demo.json"
EXAMPLE, RULE = "three_hospitals", "fedda_auto"
SEEDS = (0, 1, 2)
RATES, ROUNDS = (0.0025, 0.005, 0.01), (8, 16, 32)
TUNED = ("target_only", "warm_target")
LEAST = {"target_only, best of 9": 5.0, "warm_target, best of 9": 2.0, "source_only": 5.0}
"""Row -> points that the rule must be above it, with an interval apart from 0."""

_SAMPLES = 10_000


@dataclass(frozen=True, slots=True)
class Variant:
    """A rule with the target's learning rate and the number of rounds, in which a warm-up counts."""

    rule: str
    rate: float = 0.005
    rounds: int = 16


@dataclass(frozen=True, slots=True)
class Cell:
    """One run."""

    variant: Variant
    seed: int

    @property
    def key(self) -> str:
        """Its name in the cache."""
        return f"{self.variant.rule}/{self.variant.rate:g}/{self.variant.rounds}/{self.seed}"


@dataclass(frozen=True, slots=True)
class Right:
    """Of each test row, 1 where the last model is right."""

    rows: str


def variants() -> Iterator[Variant]:
    """Yield what is run: the demo's rules as they are, then the grid of the two baselines."""
    yield from (Variant(rule) for rule in ("source_only", *TUNED, "fedgp_auto", RULE))
    for rule in TUNED:
        grid = (Variant(rule, rate, rounds) for rate in RATES for rounds in ROUNDS)
        yield from (one for one in grid if one != Variant(rule))


def run(cell: Cell) -> Right:
    """Run a federation and judge its last model."""
    one = cell.variant
    common = [
        f"strategy.rounds={one.rounds}",
        f"training.target.learning-rate={one.rate}",
        "strategy.compare-target-only=false",
    ]
    schedule = Schedule.of(load_federation(sample(EXAMPLE), common))
    config = load_federation(sample(EXAMPLE), [*common, *RULES[one.rule].settings_for(schedule)])
    with tempfile.TemporaryDirectory() as folder:
        simulate(config, Path(folder), cell.seed, SilentReporter())
        task, model = trained_model(Path(folder))
    test = task.test_data(config.federation.target)
    assert test is not None
    with torch.no_grad():
        right = model(test.features).argmax(dim=1) == test.labels
    return Right("".join("01"[int(each)] for each in right))


def figures_of(known: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each line of the table: accuracies by seed in percent, and the rule's gain with its interval."""
    right = {one: [_bits(known[Cell(one, seed).key]["rows"]) for seed in SEEDS] for one in variants()}
    lines = {one.rule: one for one in (Variant("source_only"), Variant("target_only"))}
    for rule in TUNED:
        lines[rule] = Variant(rule)
        grid = [one for one in right if one.rule == rule]
        lines[f"{rule}, best of 9"] = max(grid, key=lambda one: float(np.mean([each.mean() for each in right[one]])))
    lines |= {rule: Variant(rule) for rule in ("fedgp_auto", RULE)}
    return [
        {
            "name": name,
            "rate": one.rate,
            "rounds": one.rounds,
            "accuracies": [round(100 * float(each.mean()), 1) for each in right[one]],
            "gain": None if name == RULE else _gain(right[Variant(RULE)], right[one]),
        }
        for name, one in lines.items()
    ]


def _bits(rows: str) -> NDArray[np.float64]:
    return np.array([each == "1" for each in rows], dtype=np.float64)


def _gain(ours: Sequence[NDArray[np.float64]], other: Sequence[NDArray[np.float64]]) -> list[float]:
    """Return the mean difference over the seeds in points, and the ends of its 95 % interval."""
    generator = np.random.default_rng(0)
    differences = [mine - theirs for mine, theirs in zip(ours, other, strict=True)]
    drawn = [each[generator.integers(len(each), size=(_SAMPLES, len(each)))].mean(axis=1) for each in differences]
    low, high = np.quantile(np.mean(drawn, axis=0), (0.025, 0.975))
    return [round(100 * float(value), 1) for value in (np.mean([each.mean() for each in differences]), low, high)]


def tables(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the table as Markdown, by name."""
    head = ["", *(f"seed {seed}" for seed in SEEDS), "mean", f"{RULE} is above it by"]
    lines = []
    for row in rows:
        name = row["name"]
        if "best" in name:
            name += f" (rate {row['rate']:g}, {row['rounds']} rounds)"
        gain = "" if row["gain"] is None else "{:.1f} ({:.1f} to {:.1f})".format(*row["gain"])
        mean = float(np.mean(row["accuracies"]))
        lines.append([name, *(f"{each:.1f}" for each in row["accuracies"]), f"{mean:.1f}", gain])
    return {"rules": markdown(head, lines)}


def misses(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for each gain that is smaller than it must be, or whose interval holds 0."""
    gains = {row["name"]: row["gain"] for row in rows if row["gain"] is not None}
    return [
        f"MISSED: {RULE} is {points} points above {name} ({low} to {high}), must be {LEAST[name]}"
        for name, (points, low, high) in gains.items()
        if name in LEAST and (points < LEAST[name] or low <= 0)
    ]


def main() -> int:
    """Measure where asked to, print the table, check it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true", help="run what the cache lacks, and write demo.json")
    parser.add_argument("--cache", type=Path, help="folder that keeps what was run")
    parser.add_argument("--check", action="store_true", help="end with 1 where a gain is too small")
    given = parser.parse_args()
    if given.measure:
        if given.cache is None:
            parser.error("--measure needs --cache")
        use_one_thread()
        cache = Cache(given.cache, "demo")
        for cell in (Cell(one, seed) for one in variants() for seed in SEEDS):
            if cell.key not in cache.read():
                cache.add(cell, run(cell))
                print(cell.key, flush=True)
        FIGURES.write_text(as_text(figures_of(cache.read()), this_machine()))
    rows = json.loads(FIGURES.read_text())["rows"]
    return told(tables(rows), misses(rows), check=given.check)


if __name__ == "__main__":
    raise SystemExit(main())
