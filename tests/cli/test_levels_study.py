"""The tables and the check of ``benchmarks/levels.py``, on figures that are made up."""

import json
import sys

import pytest
from benchmark_studies import imported_study


@pytest.fixture(scope="module")
def levels():
    with imported_study("levels") as module:
        yield module


def figures(accuracy=70.0, predictions="same"):
    return {
        "accuracy": accuracy,
        "accuracies": [accuracy / 100],
        "predictions": predictions,
        "model": "same",
        "seconds": 0.5,
        "bytes": 1000.0,
        "zeroed": 0.0,
        "capped": 0.25,
        "cosine": 0.5,
        "chosen": {"fedgp_auto": 1},
    }


@pytest.fixture
def known(levels):
    """Figures of every cell, all alike."""
    return {cell.key: figures() for name in levels.STUDIES for cell in levels.cells_of(name)}


def run(levels, known, folder, monkeypatch):
    path = folder / "figures.json"
    path.write_text(json.dumps({"rows": levels.rows_of(known)}))
    arguments = ["levels.py", "--check", "--figures", str(path), "--plot", str(folder / "plot.svg")]
    monkeypatch.setattr(sys, "argv", arguments)
    return levels.main()


def change(known, study, level, rule, **changes):
    chosen = [key for key in known if key.startswith(f"{study}/{level}/{rule}/")]
    assert chosen
    return known | {key: known[key] | changes for key in chosen}


def test_levels_that_cost_nothing_pass_and_are_plotted(levels, known, tmp_path, monkeypatch, capsys):
    assert run(levels, known, tmp_path, monkeypatch) == 0
    assert "| fedgp_auto | 70.0 ± 0.0 |" in capsys.readouterr().out
    assert (tmp_path / "plot.svg").read_text().startswith("<?xml")


@pytest.mark.parametrize(
    ("rule", "allowed"), [("fedgp_auto", 1.0), ("fedda_auto", 1.0), ("fedgp", 1.5), ("fedda", 1.5)]
)
@pytest.mark.parametrize(
    ("study", "example", "capped"),
    [("fed-heart", ", no filter", "sum, caps on the model"), ("digits", "", "sum, caps by layer")],
)
def test_caps_that_cost_a_rule_more_than_it_may_lose_are_found_and_nothing_else(
    levels, known, study, example, capped, rule, allowed
):
    rule += example if rule.startswith("fedgp") else ""
    just = change(known, study, capped, rule, accuracy=70.0 - allowed + 0.01)
    more = change(known, study, capped, rule, accuracy=70.0 - allowed - 0.1)
    assert levels.misses(levels.rows_of(just)) == []
    [found] = levels.misses(levels.rows_of(more))
    assert found.startswith(f"MISSED: {study}, {rule}: ")


@pytest.mark.parametrize("other", [{"predictions": "other"}, {"model": "other"}, {"accuracies": [0.1]}])
def test_a_sum_that_gives_another_model_than_updates_in_clear_ends_the_check_with_1(
    levels, known, tmp_path, monkeypatch, capsys, other
):
    assert run(levels, change(known, "digits", "sum", "auto", **other), tmp_path, monkeypatch) == 1
    assert "MISSED: digits, auto: a sum without caps gives another model" in capsys.readouterr().err


def test_a_study_without_a_sum_beside_updates_in_clear_is_missing(levels, known):
    rows = [row for row in levels.rows_of(known) if (row["study"], row["level"]) != ("digits", "sum")]
    assert levels.misses(rows) == ["MISSING: digits: no run at sum beside one at individual"]


def test_a_seed_that_one_target_lacks_counts_for_none_and_is_missed(levels, known):
    known.pop("fed-heart/individual/fedda_auto/va/4")
    rows = {(row["study"], row["level"], row["rule"]): row for row in levels.rows_of(known)}
    assert rows["fed-heart", "individual", "fedda_auto"]["seeds"] == [0, 1, 2, 3]
    assert levels.misses([*rows.values()]) == [
        "MISSING: fed-heart, fedda_auto: not all seeds at individual and sum, caps on the model"
    ]


def test_every_cell_of_the_grid_has_a_configuration(levels):
    for name in levels.STUDIES:
        for cell in levels.cells_of(name):
            if cell.seed == 0:
                cell.job(["task.data-dir=."])
