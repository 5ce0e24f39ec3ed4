"""The study of sessions among neighbours: its bounds and its extrapolation, on figures that are made up."""

import json
import math
import sys

import pytest
from benchmark_studies import BENCHMARKS, imported_study


@pytest.fixture(scope="module")
def study():
    with imported_study("many_sources") as module:
        yield module


def cell(study, sources, colluders, **figures):
    usual = {f"source_cpu_{step}_ms": 1.0 for step in study.STEPS}
    usual |= {"source_cpu_session_ms": 100.0, "aggregator_cpu_session_ms": 1000.0, "aggregator_session_growth_mb": 10.0}
    usual |= {"neighbours": 8, "shares": 6, "dropped": sources // 10, "load": 1.0}
    return usual | {"sources": sources, "colluders": colluders} | figures


@pytest.fixture
def cells(study):
    """Every size, the largest whole session exactly at its bars."""
    at_bar = {
        "source_cpu_session_ms": 200.0,
        "aggregator_cpu_session_ms": 30_000.0,
        "aggregator_session_growth_mb": 1073.7,
    }
    whole = [cell(study, n, c, **(at_bar if n == 1000 else {})) for n, c, _ in study.WHOLE]
    sampled = cell(study, *study.SAMPLED, sampled=3, extrapolated_aggregator_cpu_session_ms=150_000.0)
    return [*whole, sampled]


def run(study, cells, folder, monkeypatch):
    path = folder / "figures.json"
    path.write_text(json.dumps({"cells": cells}))
    monkeypatch.setattr(sys, "argv", ["many_sources.py", "--check", "--figures", str(path)])
    return study.main()


def test_figures_at_their_bounds_pass_and_are_shown(study, cells, tmp_path, monkeypatch, capsys):
    assert run(study, cells, tmp_path, monkeypatch) == 0
    shown = capsys.readouterr()
    assert "| ... over N = 100, all | 1.00 | 1.00 | 1.00 | 2.00 | 1.00 |" in shown.out
    assert "150 s, extrapolated |" in shown.out
    assert shown.err == "Every bound holds.\n"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("source_cpu_session_ms", 201.0),
        ("aggregator_cpu_session_ms", 30_001.0),
        ("aggregator_session_growth_mb", 1074.0),
    ],
)
def test_one_figure_beyond_its_bound_ends_the_check_with_1(study, cells, tmp_path, monkeypatch, capsys, name, value):
    cells[3][name] = value
    assert run(study, cells, tmp_path, monkeypatch) == 1
    assert capsys.readouterr().err.startswith("MISSED: N = 1000")


def test_a_size_that_was_not_measured_is_missing(study, cells, tmp_path, monkeypatch, capsys):
    assert run(study, cells[:-1], tmp_path, monkeypatch) == 1
    assert capsys.readouterr().err == "MISSING: N = 5000\n"


def test_extrapolation_follows_the_power_of_the_sessions_of_neighbours(study):
    cells = [
        cell(study, 300, None, aggregator_cpu_session_ms=9e9),
        cell(study, 500, 25, aggregator_cpu_session_ms=2000.0),
        cell(study, 1000, 50, aggregator_cpu_session_ms=8000.0),
    ]
    found = study.extrapolated(cells, 5000)
    assert math.isclose(found["power_of_sources"], 2.0)
    assert math.isclose(found["extrapolated_aggregator_cpu_session_ms"], 200_000.0)


def test_a_few_sources_of_a_session_take_every_step(study):
    found = study.sampled_sources(study.Job("", 20, 50, 2, 0), 2)
    assert [set(one) for one in found] == [set(study.STEPS)] * 2
    assert all(seconds > 0 for one in found for seconds in one.values())


def test_committed_figures_are_of_every_size_and_keep_the_bounds(study):
    cells = json.loads((BENCHMARKS / "many_sources.json").read_text())["cells"]
    assert study.misses(cells) == []
