"""Fixed β, other noises and estimators, other numbers of labelled rows, on the whole of MNIST and Fashion-MNIST.

    python benchmarks/full_data_sweeps.py --measure --data-dir DIR --cache FOLDER [--sweeps NAME ...]
    python benchmarks/full_data_sweeps.py    from full_data_sweeps.json: print the tables

Every run is one of ``full_data.py`` with one setting changed, and with the schedule that was chosen there for the rule.
No schedule was chosen for a rule with a fixed β: it takes that of the rule with auto-β. source_only keeps its rate.

A study that was stopped goes on where it was; its figures are written after every run.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from full_data_runs import STUDIES, Cell, run_cell
from studies import Cache, as_text, shown, this_machine

from securefda.bench.accuracy.federated import use_one_thread
from securefda.bench.accuracy.paper import (
    BETA_COLORED_MNIST,
    NOISY_FASHION,
    TARGET_SIZE_FASHION,
    Published,
)

HERE = Path(__file__).parent
FIGURES = HERE / "full_data_sweeps.json"
SCHEDULES = HERE / "full_data.json"
SCHEDULE_OF = {"fedda": "fedda_auto", "fedgp": "fedgp_auto"}
"""Rule -> the rule whose factor on the learning rates it takes, where that is another."""
OWN_SCHEDULE = {"source_only": 1.0}
"""Rule -> its factor, of rules that the search left out."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """One setting over several values.

    Attributes:
        study: of `full_data_runs.STUDIES`, that a run is like otherwise.
        columns: value as a table shows it -> its settings.
        rules: that are run at every value.
        published: the paper's table.
    """

    study: str
    columns: Mapping[str, tuple[str, ...]]
    rules: tuple[str, ...]
    published: Published


ALL_RULES = ("source_only", "target_only", "fedda", "fedgp", "fedda_auto", "fedgp_auto")
SWEEPS = {
    "beta": Sweep(
        "ColoredMNIST",
        {f"{beta:g}": (f"strategy.beta={beta:g}",) for beta in (0.2, 0.4, 0.6, 0.8)},
        ("fedda", "fedgp"),
        BETA_COLORED_MNIST,
    ),
    "noise": Sweep(
        "noisy Fashion-MNIST",
        {f"{noise:g}": (f"task.options.noise={noise:g}",) for noise in (0.2, 0.4, 0.6)},
        ALL_RULES,
        NOISY_FASHION,
    ),
    "estimator": Sweep(
        "noisy Fashion-MNIST", {"cross-fitted": ("strategy.variance=cross-fitted",)}, ("fedgp_auto",), NOISY_FASHION
    ),
    "rows": Sweep(
        "noisy Fashion-MNIST",
        {str(rows): (f"task.options.target-rows={rows}",) for rows in (200, 500)},
        ALL_RULES[1:],
        TARGET_SIZE_FASHION,
    ),
}


@dataclass(frozen=True, slots=True)
class SweepCell:
    """One run: a cell of ``full_data.py`` with the settings of a column."""

    sweep: str
    column: str
    like: Cell

    @property
    def key(self) -> str:
        """Its name in the cache."""
        return f"{self.sweep} {self.column}: {self.like.key}"


def cells(sweep: str, seeds: Sequence[int], factors: Mapping[tuple[str, str], float]) -> Iterator[SweepCell]:
    """Every run of a sweep, seed by seed.

    Args:
        sweep: of `SWEEPS`.
        seeds: of the runs.
        factors: on the learning rates after warm-up, by study and rule.
    """
    of = SWEEPS[sweep]
    for seed in seeds:
        for column in of.columns:
            for rule in of.rules:
                factor = OWN_SCHEDULE.get(rule) or factors[of.study, SCHEDULE_OF.get(rule, rule)]
                for target in STUDIES[of.study].targets:
                    yield SweepCell(sweep, column, Cell(of.study, target, rule, factor, seed))


def chosen_factors(schedules: Path) -> dict[tuple[str, str], float]:
    """The factors that ``full_data.py`` chose, by study and rule."""
    return {(row["study"], row["rule"]): row["factor"] for row in json.loads(schedules.read_text())["rows"]}


def rows_of(known: Mapping[str, Mapping[str, Any]], of: Sequence[SweepCell]) -> list[dict[str, Any]]:
    """A row for each sweep, column and rule: accuracy and mean β by seed, means over targets that were all run."""
    runs: dict[tuple[str, str, str], dict[int, list[Mapping[str, Any] | None]]] = {}
    for cell in of:
        by_seed = runs.setdefault((cell.sweep, cell.column, cell.like.rule), {})
        by_seed.setdefault(cell.like.seed, []).append(known.get(cell.key))
    rows = []
    for (sweep, column, rule), by_seed in runs.items():
        whole = {seed: [run for run in found if run] for seed, found in by_seed.items() if all(found)}
        if not whole:
            continue
        betas = [run["beta"] for found in whole.values() for run in found if run["beta"] is not None]
        rows.append(
            {"sweep": sweep, "column": column, "rule": rule, "seeds": list(whole)}
            | {"accuracy": [round(fmean(run["accuracy"] for run in found), 2) for found in whole.values()]}
            | {"beta": round(fmean(betas), 3) if betas else None}
            | {"cpu_s": round(fmean(run["cpu_s"] for found in whole.values() for run in found), 1)}
        )
    return rows


def tables(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """A table of each sweep in Markdown, with the paper's figures in brackets."""
    return {name: _table(sweep, [row for row in rows if row["sweep"] == name]) for name, sweep in SWEEPS.items()}


def _table(sweep: Sweep, rows: Sequence[Mapping[str, Any]]) -> str:
    by_cell = {(row["rule"], row["column"]): row for row in rows}
    head = ["rule", *sweep.columns]
    lines = [
        [rule, *(_cell(by_cell.get((rule, column)), sweep.published.figure(rule, column)) for column in sweep.columns)]
        for rule in sweep.rules
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *lines))


def _cell(row: Mapping[str, Any] | None, published: float | None) -> str:
    if row is None:
        return "–"
    beta = "" if row["beta"] is None or not row["rule"].endswith("_auto") else f", β {row['beta']:.2f}"
    return f"{fmean(row['accuracy']):.1f}{beta}" + ("" if published is None else f" ({published:.1f})")


def measure(sweeps: Sequence[str], seeds: Sequence[int], data_dir: Path, cache: Cache, figures: Path) -> None:
    """Run what the cache lacks, one after the other; write all figures after each."""
    use_one_thread()
    factors = chosen_factors(SCHEDULES)
    everything = [cell for name in SWEEPS for cell in cells(name, seeds, factors)]
    for cell in everything:
        if cell.sweep not in sweeps or cell.key in cache.read():
            continue
        found = run_cell(cell.like, data_dir, SWEEPS[cell.sweep].columns[cell.column])
        cache.add(cell, found)
        figures.write_text(as_text(rows_of(cache.read(), everything), this_machine()))
        print(f"{cell.key}: {found.accuracy:.2f}, {found.cpu_s:.0f} s", flush=True)


def main() -> int:
    """Measure if asked to, then print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--sweeps", nargs="+", choices=SWEEPS, default=list(SWEEPS), metavar="SWEEP")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0], metavar="SEED")
    parser.add_argument("--figures", type=Path, default=FIGURES)
    asked = parser.parse_args()
    if asked.measure:
        if asked.data_dir is None or asked.cache is None:
            parser.error("--measure needs --data-dir and --cache")
        measure(asked.sweeps, asked.seeds, asked.data_dir, Cache(asked.cache, "full_data_sweeps"), asked.figures)
    print(shown(tables(json.loads(asked.figures.read_text())["rows"])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
