"""The study of what a masking session costs: its bounds, on figures that are made up."""

import json
import sys

import pytest
from benchmark_studies import BENCHMARKS, imported_study


@pytest.fixture(scope="module")
def study():
    with imported_study("masking_session") as module:
        yield module


@pytest.fixture
def cells(study):
    """The figures of every size, each exactly at its bound."""
    committed = json.loads((BENCHMARKS / "masking_session.json").read_text())["cells"]
    at_bound = [dict(cell) for cell in committed]
    for cell in at_bound:
        cell |= {line.name: line.bounds.get(cell["sources"], 1.0) for line in study.LINES if line.name}
    return at_bound


def run(study, cells, folder, monkeypatch):
    path = folder / "figures.json"
    path.write_text(json.dumps({"cells": cells}))
    monkeypatch.setattr(sys, "argv", ["masking_session.py", "--check", "--figures", str(path)])
    return study.main()


def test_figures_at_their_bounds_pass_and_are_shown(study, cells, tmp_path, monkeypatch, capsys):
    assert run(study, cells, tmp_path, monkeypatch) == 0
    shown = capsys.readouterr()
    assert "≤ 3 s at N = 100 | 0.50 s | 3.00 s |" in shown.out
    assert shown.err == "Every bound holds.\n"


@pytest.mark.parametrize(
    ("sources", "name", "value"),
    [
        (10, "session_s", 0.51),
        (100, "session_s", 3.01),
        (10, "keystream_add_over_raw", 0.69),
        (10, "aggregator_cpu_r4_open_ms", 61.0),
        (100, "aggregator_process_cpu_s", 20.1),
        (100, "source_cpu_session_ms", 1001.0),
        (10, "masked_upload_bytes_per_parameter", 2.61),
    ],
)
def test_one_figure_beyond_its_bound_is_named_and_ends_the_check_with_1(
    study, cells, tmp_path, monkeypatch, capsys, sources, name, value
):
    next(cell for cell in cells if cell["sources"] == sources)[name] = value
    assert run(study, cells, tmp_path, monkeypatch) == 1
    shown = capsys.readouterr()
    assert shown.out.count("(!)") == 1
    [missed] = shown.err.splitlines()
    [line] = [line for line in study.LINES if line.name == name]
    assert missed.startswith(f"MISSED: N = {sources}, {line.words}: ")


@pytest.mark.parametrize("name", ["aggregator_cpu_r4_open_ms", "masked_upload_bytes_per_parameter"])
def test_a_bound_for_ten_sources_says_nothing_of_a_hundred(study, cells, name):
    cells[1][name] = 1e6
    assert study.misses(cells) == []


def test_a_size_that_was_not_measured_is_missing(study, cells):
    assert study.misses(cells[:1]) == ["MISSING: N = 100, m = 100000, 10 dropped"]
