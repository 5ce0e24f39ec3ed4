"""The growth check of ``benchmarks/scale.py``, on figures that are made up."""

import json
import sys

import pytest
from benchmark_studies import imported_study


@pytest.fixture(scope="module")
def scale():
    with imported_study("scale") as module:
        yield module


@pytest.fixture
def cells(scale):
    """A grid in which every step costs exactly what its fastest growing term asks for."""
    made = []
    for sources, dropped in zip(scale.SOURCES, scale.DROPPED, strict=True):
        for params in scale.PARAMS:
            cell = {"sources": sources, "dropped": dropped, "params": params}
            made.append(cell | {step.name: sum(step.work(cell)) for step in scale.STEPS})
    for cell in made:
        cell |= {f"{side}_cpu_session_ms": 1.0 * cell["sources"] for side in ("source", "aggregator")}
        cell |= {"source_message_bytes_up": 1, "source_message_bytes_down": 1}
    return made


def run(scale, cells, folder, monkeypatch) -> int:
    figures = folder / "figures.json"
    figures.write_text(json.dumps({"cells": cells}))
    arguments = ["scale.py", "--check", "--figures", str(figures), "--plot", str(folder / "plot.svg")]
    monkeypatch.setattr(sys, "argv", arguments)
    return scale.main()


def test_costs_that_grow_as_their_work_pass_and_are_plotted(scale, cells, tmp_path, monkeypatch, capsys):
    assert run(scale, cells, tmp_path, monkeypatch) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.count("\n| ") >= len(cells) + len(scale.STEPS)
    assert (tmp_path / "plot.svg").read_text().startswith("<?xml")


@pytest.mark.parametrize("grown", ["sources", "params"])
def test_every_step_that_grows_with_one_power_more_is_found_and_no_other(scale, cells, grown):
    for step in scale.STEPS:
        faster = [cell | {step.name: cell[step.name] * cell[grown]} for cell in cells]
        assert {one.step.name for one in scale.growths(faster) if not one.is_within_bound} == {step.name}


def test_a_step_that_grows_too_fast_ends_the_check_with_1_and_is_named(scale, cells, tmp_path, monkeypatch, capsys):
    step = scale.STEPS[-1]
    faster = [cell | {step.name: cell[step.name] * cell["sources"]} for cell in cells]
    assert run(scale, faster, tmp_path, monkeypatch) == 1
    out, err = capsys.readouterr()
    assert "(!)" in out
    assert all(line.startswith(step.words) for line in err.splitlines())


def test_a_plot_of_the_same_figures_is_the_same_file(scale, cells, tmp_path):
    for name in ("one.svg", "other.svg"):
        scale.plot(cells, tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "other.svg").read_bytes()
