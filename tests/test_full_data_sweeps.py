"""The study of sweeps on full data: which runs there are, what differs from ``full_data.py``, and its tables."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def study() -> Iterator[ModuleType]:
    sys.path.insert(0, str(BENCHMARKS))
    yield importlib.import_module("full_data_sweeps")
    sys.path.remove(str(BENCHMARKS))
    for name in ("full_data_sweeps", "full_data_runs", "studies"):
        sys.modules.pop(name, None)


def all_cells(study, seeds=(0,)):
    factors = study.chosen_factors(study.SCHEDULES)
    return [cell for sweep in study.SWEEPS for cell in study.cells(sweep, seeds, factors)]


def known_of(cells, accuracy):
    return {cell.key: {"accuracy": accuracy(cell), "beta": 0.25, "cpu_s": 1.0} for cell in cells}


def test_every_run_is_one_that_loads_with_its_column_and_the_chosen_schedule(study, tmp_path):
    chosen = {(row["study"], row["rule"]): row["factor"] for row in json.loads(study.SCHEDULES.read_text())["rows"]}
    cells = all_cells(study)
    assert len({cell.key for cell in cells}) == len(cells)
    for cell in cells:
        own = {"fedda": "fedda_auto", "fedgp": "fedgp_auto"}.get(cell.like.rule, cell.like.rule)
        assert cell.like.factor == (1.0 if own == "source_only" else chosen[cell.like.study, own])
    jobs = {
        cell.key: cell.like.job(tmp_path, study.SWEEPS[cell.sweep].columns[cell.column])
        for cell in cells
        if cell.like.rule == "fedgp" and cell.like.target in {"", "minus-90"}
    }
    betas = [job.config.strategy.beta for key, job in jobs.items() if key.startswith("beta ")]
    assert betas == [0.2, 0.4, 0.6, 0.8]
    noises = [job.config.task.options["noise"] for key, job in jobs.items() if key.startswith("noise ")]
    assert noises == [0.2, 0.4, 0.6]


def test_a_table_has_means_over_targets_beside_the_papers_figures(study):
    cells = all_cells(study)
    rows = study.rows_of(known_of(cells, lambda cell: 80.0 + (cell.like.target == "plus-90") * 3), cells)
    tables = study.tables(rows)
    assert set(tables) == set(study.SWEEPS)
    assert "| fedgp | 81.0 (84.2) | 81.0 (84.5) | 81.0 (86.4) | 81.0 (86.8) |" in tables["beta"].splitlines()
    assert "| fedgp_auto | 80.0, β 0.25 (73.0) | 80.0, β 0.25 |" in tables["rows"].splitlines()


def test_a_mean_lacks_no_target(study):
    cells = all_cells(study)
    without = next(cell.key for cell in cells if (cell.sweep, cell.column, cell.like.rule) == ("beta", "0.4", "fedda"))
    known = known_of(cells, lambda _: 80.0)
    del known[without]
    rows = study.rows_of(known, cells)
    assert ("beta", "0.4", "fedda") not in {(row["sweep"], row["column"], row["rule"]) for row in rows}
    assert "| fedda | 80.0 (77.0) | – | 80.0 (54.1) | 80.0 (50.6) |" in study.tables(rows)["beta"].splitlines()
