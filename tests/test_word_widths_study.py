"""The study of what narrow words cost: its grid, how figures become rows, and what its check asks."""

import json
import sys

import pytest
from benchmark_studies import imported_study

from securefda.protocol.packing import WORD_BITS


@pytest.fixture(scope="module")
def study():
    with imported_study("word_widths") as module:
        yield module


@pytest.fixture(scope="module")
def runs(study):
    return sys.modules["word_widths_runs"]


def figures(accuracy=70.0, **others):
    found = {"accuracy": accuracy, "lost": 0, "refused": 0, "sums": 100, "emptied": 5}
    return found | {"parts": 500, "zeroed": 25, "capped": 200, "clipped": 0} | others


@pytest.fixture
def known(runs):
    """Figures of every cell, all alike."""
    return {cell.key: figures() for cell in runs.cells()}


def run(study, known, folder, monkeypatch):
    path = folder / "figures.json"
    path.write_text(study.as_text(study.rows_of(known), {}))
    json.loads(path.read_text())
    monkeypatch.setattr(sys, "argv", ["word_widths.py", "--check", "--figures", str(path)])
    return study.main()


def costing(known, study, rule, bits, *points):
    """Seeds of one cell that lose so many points, one after the other."""
    changed = {f"{study}/{rule}/{bits}/{seed}": figures(70.0 - cost) for seed, cost in enumerate(points)}
    assert changed.keys() <= known.keys()
    return known | changed


def test_widths_that_cost_nothing_pass_and_are_shown(study, known, tmp_path, monkeypatch, capsys):
    assert run(study, known, tmp_path, monkeypatch) == 0
    shown = capsys.readouterr().out
    assert "| digits | 5 | fedgp_auto | 5 | 70.0 ± 0.0 | +0.00 ± 0.00 | **+0.00 ± 0.00** | +0.00 ± 0.00 |" in shown
    assert "| label shift, source_only | 5.0; 5.0 | 5.0; 5.0 | 5.0; 5.0 | 5.0; 5.0 |" in shown


def test_a_cost_beyond_the_bar_and_two_standard_errors_is_found_and_nothing_else(study, known):
    found = study.misses(study.rows_of(costing(known, "digits", "fedda_auto", 20, 0.5, 0.5, 0.5, 0.5, 0.5)))
    assert found == ["MISSED: digits, fedda_auto, 20 bits: costs +0.50 ± 0.00 points, 0.3 are allowed"]
    # 0.8 in the mean, and 0.37 its standard error
    assert study.misses(study.rows_of(costing(known, "digits", "fedda_auto", 20, 2.0, 1.0, 1.0, 0.0, 0.0))) == []


def test_what_is_no_default_may_cost_anything(study, known):
    assert study.misses(study.rows_of(costing(known, "digits", "fedda_auto", 16, 5.0, 5.0, 5.0, 5.0, 5.0))) == []


def test_a_small_cost_everywhere_is_found_over_all_tasks_and_rules(study, runs, known, tmp_path, monkeypatch, capsys):
    for name, one in runs.STUDIES.items():
        for rule in runs.RULES:  # half of the seeds tell nothing by themselves: their spread is wide
            points = [2.0 if seed % 2 else -1.0 for seed in range(one.seeds)]
            known = costing(known, name, rule, 20, *points)
    assert study.misses(study.rows_of(known)) == []
    for name, one in runs.STUDIES.items():
        for rule in runs.RULES:
            known = costing(known, name, rule, 20, *[2.0 if seed % 2 else -0.5 for seed in range(one.seeds)])
    assert run(study, known, tmp_path, monkeypatch) == 1
    assert capsys.readouterr().err.startswith("MISSED: all tasks and rules: default widths cost 0.")


def test_a_default_width_that_loses_rounds_or_makes_sources_refuse_is_found(study, known):
    known["fed-heart/source_only/20/1"] = figures(lost=1, refused=2)
    known["fed-heart/source_only/16/1"] = figures(lost=3)
    assert study.misses(study.rows_of(known)) == ["MISSED: fed-heart, source_only, 20 bits: 1 rounds lost, 2 refusals"]


def test_a_seed_that_one_width_lacks_counts_for_none_and_is_missing(study, known):
    known.pop("label shift/fedgp_auto/24/2")
    rows = study.rows_of(known)
    of_rule = [row for row in rows if (row["study"], row["rule"]) == ("label shift", "fedgp_auto")]
    assert [row["seeds"] for row in of_rule] == [[0, 1]] * len(WORD_BITS)
    assert study.misses(rows) == ["MISSING: label shift, fedgp_auto: not all seeds at every width"]


def test_without_any_figures_everything_is_missing(study, runs):
    assert len(study.misses([])) == len(runs.STUDIES) * len(runs.RULES)
    assert study.tables([]) == {}


def test_every_cell_has_a_configuration_of_its_width_and_rule(runs):
    for cell in runs.cells():
        if cell.seed == 0:
            config = cell.job(["task.data-dir=."]).config
            assert (config.session.bits, config.strategy.rule) == (cell.bits, cell.rule)


def test_the_default_of_every_study_is_among_the_widths_and_narrower_than_32(runs):
    assert {runs.default_width(runs.sources_of(name)) for name in runs.STUDIES} == {20}


def test_a_run_says_what_became_of_its_layers(runs):
    job = runs.Cell("digits", "fedgp_auto", 20, 0).job(["strategy.rounds=2", "strategy.warm-up-rounds=1"])
    found = runs.run_cell(job)
    layers = runs._layers(job)
    assert (found.sums, found.parts) == (2 * layers, 2 * 5 * layers)
    assert (found.lost, found.refused, found.clipped) == (0, 0, 0)
    assert 0 < found.capped + found.zeroed <= found.parts
    assert found.emptied <= found.sums
    assert 0 < found.accuracy <= 100


def test_a_run_that_ends_early_is_an_error_that_travels_between_processes(runs):
    job = runs.Cell("fed-heart", "source_only", 20, 0).job(["task.data-dir=/nowhere"])
    with pytest.raises(RuntimeError, match="nowhere"):
        runs.run_cell(job)
