"""The study of sweeps on full data: which runs there are, what differs from ``full_data.py``, and its tables."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType

import pytest
from benchmark_studies import imported_study


@pytest.fixture(scope="module")
def study() -> Iterator[ModuleType]:
    with imported_study("full_data_sweeps") as module:
        yield module


@pytest.fixture(scope="module")
def factors(study):
    """A factor of its own for each rule of each study, as ``full_data.py`` would choose them."""
    runs = sys.modules["full_data_runs"]
    rules = [(name, rule) for name, of in runs.STUDIES.items() for rule in of.rules]
    return {rule: number / 100 for number, rule in enumerate(rules, start=1)}


@pytest.fixture
def cells(study, factors):
    return [cell for sweep in study.SWEEPS for cell in study.cells(sweep, factors)]


def known_of(cells, accuracy):
    return {cell.key: {"accuracy": accuracy(cell), "beta": 0.25, "cpu_s": 1.0} for cell in cells}


def test_every_run_is_one_that_loads_with_its_column_and_the_chosen_schedule(study, factors, cells, tmp_path):
    assert len({cell.key for cell in cells}) == len(cells)
    for cell in cells:
        of, rule = cell.like.study, cell.like.rule
        assert cell.like.factor == factors.get((of, rule), 1.0)
    jobs = {
        cell.key: cell.like.job(tmp_path, study.SWEEPS[cell.sweep].columns[cell.column])
        for cell in cells
        if (cell.like.rule, cell.like.seed) in {("fedgp", 0), ("target_only", 0)}
        and cell.like.target in {"", "minus-90"}
    }
    betas = [job.config.strategy.beta for key, job in jobs.items() if key.startswith("beta ")]
    assert betas == [0.2, 0.4, 0.6, 0.8]
    noises = {job.config.task.options["noise"] for key, job in jobs.items() if key.startswith("noise ")}
    assert noises == {0.2, 0.6}
    shifts = [job.config.task.options for key, job in jobs.items() if key.startswith("eta ")]
    assert [(options["eta"], options["target-rows"]) for options in shifts] == [(0.3, 3780), (0.05, 2880)]


def row_of_study(study, rule, accuracies):
    """A row of ``full_data.json`` with one target; None stands for a seed that was not run."""
    seeds = [seed for seed, accuracy in enumerate(accuracies) if accuracy is not None]
    by_target = {"": [accuracy for accuracy in accuracies if accuracy is not None]}
    return {"study": study, "rule": rule, "seeds": seeds, "accuracy": by_target, "beta": 0.5}


def test_a_table_has_means_over_targets_and_seeds_beside_the_papers_figures(study, cells):
    known = known_of(cells, lambda cell: 80.0 + (cell.like.target == "plus-90") * 3 + cell.like.seed)
    tables = study.tables(study.rows_of(known, cells), [])
    assert set(tables) == set(study.SWEEPS)
    assert "| fedgp | 82.0 (84.2) | 82.0 (84.5) | 82.0 (86.4) | 82.0 (86.8) |" in tables["beta"].splitlines()
    assert "| fedgp_auto | – | 81.0, β 0.25 (73.0) | 81.0, β 0.25 |" in tables["rows"].splitlines()


def test_the_unchanged_column_is_that_of_the_study(study, cells):
    of_study = [
        row_of_study("noisy Fashion-MNIST", "fedgp_auto", [70.0, 71.0, 72.0]),
        row_of_study("noisy Fashion-MNIST", "fedgp", [60.0, None, None]),
        row_of_study("noisy Fashion-MNIST", "fedgp_auto, cross-fitted", [90.0, 90.0, 90.0]),
        row_of_study("label shift", "fedgp_auto", [50.0, 50.0, 50.0]),
    ]
    tables = study.tables(study.rows_of(known_of(cells, lambda _: 80.0), cells), of_study)
    noise = tables["noise"].splitlines()
    assert "| fedgp_auto | 80.0, β 0.25 (75.1) | 71.0, β 0.50 (71.5) | 80.0, β 0.25 (67.5) |" in noise
    assert "| fedgp | 80.0 (75.1) | 60.0 (71.1) * | 80.0 (68.0) |" in noise  # one seed of three
    assert not any("90.0" in line for line in noise)


@pytest.fixture(scope="module")
def of_study(study):
    """All rows of ``full_data.json``, at 80 with every seed."""
    runs = sys.modules["full_data_runs"]
    return [row_of_study(name, rule, [80.0] * 3) for name, of in runs.STUDIES.items() for rule in of.rules]


def test_a_mean_lacks_no_target_and_a_missing_seed_is_said(study, cells, of_study):
    without = [cell for cell in cells if (cell.sweep, cell.column, cell.like.rule) == ("beta", "0.4", "fedda")]
    known = known_of(cells, lambda _: 80.0)
    assert study.misses(study.rows_of(known, cells), of_study) == []
    del known[without[0].key]
    rows = study.rows_of(known, cells)
    assert study.misses(rows, of_study) == ["MISSING: beta, fedda, 0.4: lacks a seed"]
    assert "| fedda | 80.0 (77.0) | 80.0 (65.2) * | 80.0 (54.1) | 80.0 (50.6) |" in study.tables(rows, [])["beta"]
    for cell in without:
        known.pop(cell.key, None)
    table = study.tables(study.rows_of(known, cells), [])["beta"].splitlines()
    assert "| fedda | 80.0 (77.0) | – | 80.0 (54.1) | 80.0 (50.6) |" in table
