"""Fixed β, other noises, shifts, numbers of labelled rows and visibilities, on all of MNIST and Fashion-MNIST.

    python benchmarks/full_data_sweeps.py --measure --data-dir DIR --cache FOLDER [--only NAME ...]    run what lacks
    python benchmarks/full_data_sweeps.py [--check]    from full_data_sweeps.json: print the tables

Every run is one of ``full_data.py`` with one setting changed, and with the schedule that was chosen there for the rule;
rules with a fixed β on ColoredMNIST, for which none was, keep the study's rates.
The column of the setting that is unchanged comes from ``full_data.json``.

A study that was stopped goes on where it was; its figures are written after every run. ``--check`` ends with 1 where a
seed is missing.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from full_data_runs import ADAPTED, SEEDS, STUDIES, Cell, Figures, Row, command_line, merged, run_missing
from studies import Cache, as_text, markdown, this_machine, told

from securefda.bench.accuracy.paper import (
    BETA_COLORED_MNIST,
    LABEL_SHIFT,
    NOISY_FASHION,
    TARGET_SIZE_FASHION,
    Published,
)

HERE = Path(__file__).parent
FIGURES = HERE / "full_data_sweeps.json"
UNCHANGED = HERE / "full_data.json"

ROW = ("sweep", "column", "rule")
"""What names a row."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """One setting over several values.

    Attributes:
        study: of `full_data_runs.STUDIES`, that a run is like otherwise.
        columns: value as a table shows it -> its settings; none for the study's own value.
        rules: that are run at every value.
        published: the paper's table, if it has one.
        beside: rules that the setting does not concern: they have the study's own figure at every value.
    """

    study: str
    columns: Mapping[str, tuple[str, ...]]
    rules: tuple[str, ...]
    published: Published | None = None
    beside: tuple[str, ...] = ()


def _shift(eta: float) -> tuple[str, ...]:
    """Settings of a label shift; 15 % of the target's images are labelled, of 6,000 in a class."""
    majority, minority = 18_000, 42_000
    rows = round(0.15 * (majority * (1 - eta) + minority * eta))
    return (f"task.options.eta={eta:g}", f"task.options.target-rows={rows}")


IN_CLEAR = {"sum, norm caps": (), "individual": ("privacy.visibility=individual",)}
RULES = STUDIES["noisy Fashion-MNIST"].rules
SWEEPS = {
    "beta": Sweep(
        "ColoredMNIST",
        {f"{beta:g}": (f"strategy.beta={beta:g}",) for beta in (0.2, 0.4, 0.6, 0.8)},
        ("fedda", "fedgp"),
        BETA_COLORED_MNIST,
        beside=("warm_target",),
    ),
    "noise": Sweep(
        "noisy Fashion-MNIST",
        {
            "0.2": ("task.options.noise=0.2",),
            "0.4": (),
            **{noise: (f"task.options.noise={noise}",) for noise in ("0.6", "0.8")},
        },
        RULES,
        NOISY_FASHION,
    ),
    "rows": Sweep(
        "noisy Fashion-MNIST",
        {"100": (), "200": ("task.options.target-rows=200",)},
        RULES,
        TARGET_SIZE_FASHION,
    ),
    "eta": Sweep("label shift", {"0.3": _shift(0.3), "0.15": (), "0.05": _shift(0.05)}, ADAPTED, LABEL_SHIFT),
    "clear-shift": Sweep("label shift", IN_CLEAR, ("warm_target", "fedda_auto", "fedgp_auto")),
    "clear-noise": Sweep("noisy Fashion-MNIST", IN_CLEAR, ("fedda_auto",)),
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

    @property
    def rule(self) -> str:
        """As tables call it."""
        return self.like.rule

    def run(self, data_dir: Path) -> Figures:
        """Run it in this process."""
        return self.like.run(data_dir, SWEEPS[self.sweep].columns[self.column])


def cells(sweep: str, factors: Mapping[tuple[str, str], float]) -> Iterator[SweepCell]:
    """Every run of a sweep, seed by seed.

    Args:
        sweep: of `SWEEPS`.
        factors: on the learning rates after warm-up, by study and rule; 1 where none was chosen.
    """
    of = SWEEPS[sweep]
    changed = [column for column, settings in of.columns.items() if settings]
    for seed in SEEDS:
        for column in changed:
            for rule in of.rules:
                factor = factors.get((of.study, rule), 1.0)
                for target in STUDIES[of.study].targets:
                    yield SweepCell(sweep, column, Cell(of.study, target, rule, factor, seed))


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


def unchanged_rows(of_study: Sequence[Row]) -> list[dict[str, Any]]:
    """Rows of the columns whose setting is the study's own or does not concern the rule, from ``full_data.json``."""
    return [
        {"sweep": name, "column": column, "rule": row["rule"], "seeds": row["seeds"], "beta": row["beta"]}
        | {"accuracy": [fmean(of_seed) for of_seed in zip(*row["accuracy"].values(), strict=True)]}
        for name, sweep in SWEEPS.items()
        for column, settings in sweep.columns.items()
        for row in of_study
        if row["study"] == sweep.study and row["seeds"]
        if row["rule"] in sweep.beside or (row["rule"] in sweep.rules and not settings)
    ]


def misses(rows: Sequence[Row], of_study: Sequence[Row]) -> list[str]:
    """A line for each column and rule that lacks a seed."""
    by_cell = _by_cell(rows, of_study)
    wanted = [
        (name, rule, column) for name, sweep in SWEEPS.items() for rule in sweep.rules for column in sweep.columns
    ]
    lacking = [cell for cell in wanted if cell not in by_cell or by_cell[cell]["seeds"] != list(SEEDS)]
    return [f"MISSING: {', '.join(cell)}: lacks a seed" for cell in lacking]


def tables(rows: Sequence[Row], of_study: Sequence[Row]) -> dict[str, str]:
    """A table of each sweep in Markdown, with the paper's figures in brackets; ``of_study`` are rows of full_data."""
    by_cell = _by_cell(rows, of_study)
    return {name: _table(name, by_cell) for name in SWEEPS}


def _by_cell(rows: Sequence[Row], of_study: Sequence[Row]) -> dict[tuple[str, str, str], Row]:
    """By sweep, rule and column."""
    return {(row["sweep"], row["rule"], row["column"]): row for row in [*rows, *unchanged_rows(of_study)]}


def _table(name: str, by_cell: Mapping[tuple[str, str, str], Row]) -> str:
    sweep = SWEEPS[name]
    head, paper = ["rule", *sweep.columns], sweep.published
    lines = [
        [
            rule,
            *(
                _cell(by_cell.get((name, rule, column)), paper.figure(rule, column) if paper else None)
                for column in sweep.columns
            ),
        ]
        for rule in (*sweep.beside, *sweep.rules)
    ]
    return markdown(head, lines)


def _cell(row: Row | None, published: float | None) -> str:
    if row is None:
        return "not measured"
    beta = f", β {row['beta']:.2f}" if row["beta"] is not None and row["rule"].endswith("_auto") else ""
    papers = "" if published is None else f" ({published:.1f})"
    return f"{fmean(row['accuracy']):.1f}{beta}{papers}" + ("" if len(row["seeds"]) == len(SEEDS) else " *")


def main() -> int:
    """Measure if asked to, then print the tables."""
    asked = command_line(__doc__.splitlines()[0], FIGURES, SWEEPS)
    of_study = json.loads(UNCHANGED.read_text())["rows"]
    if asked.measure:
        factors = {(row["study"], row["rule"]): row["factor"] for row in of_study}
        factors |= {(name, rule): given[0] for name, study in STUDIES.items() for rule, given in study.given.items()}
        everything = [cell for name in SWEEPS for cell in cells(name, factors)]
        cache = Cache(asked.cache, "full_data_sweeps")

        def write() -> None:
            found = merged(asked.figures, rows_of(cache.read(), everything), ROW)
            asked.figures.write_text(as_text(found, this_machine()))

        run_missing((cell for cell in everything if cell.sweep in asked.only), asked, cache, write)
        write()
    rows = json.loads(asked.figures.read_text())["rows"]
    return told(tables(rows, of_study), misses(rows, of_study), check=asked.check)


if __name__ == "__main__":
    sys.exit(main())
