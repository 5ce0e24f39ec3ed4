"""The model card: what it says about each site, and what it leaves out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from securefda.operations.model_card import card_of, card_text
from securefda.operations.records import SiteLine
from securefda.operations.run_folder import RunRecord

DIGEST = "ab" * 32
SUMMARY: dict[str, Any] = {
    "run_id": "cd" * 16,
    "task": "heart:Heart",
    "strategy": {"rule": "fedda_auto"},
    "visibility": {"north": "sum"},
    "rounds": 2,
    "rounds_planned": 3,
    "target_accuracy": 0.8,
    "final_accuracy": 0.82,
    "target_only": {"accuracy": 0.7},
    "target_privacy": {"epsilon": 1.25, "limit": 4.0, "delta": 1e-5, "accountant": "rdp"},
    "adapted": {"kept": False, "accuracy": 0.9, "digest": "ef" * 32},
    "model_round": 2,
    "model_digest": "12" * 32,
    "status": "interrupted",
    "ended": "2026-11-29T20:00:00Z",
    "setting": {
        "federation": "heart",
        "target": "clinic",
        "sources": ["north", "south"],
        "task_options": {"store": "/data/secret"},
        "data_dir": "/data",
    },
    "versions": {"securefda": "0.1.0"},
}


def record(summary: dict[str, Any] = SUMMARY, **sites: list[SiteLine]) -> RunRecord:
    return RunRecord(Path("run"), summary, (), {site: tuple(lines) for site, lines in sites.items()})


def test_a_source_is_described_by_its_own_records_where_they_are_here() -> None:
    lines: list[SiteLine] = [
        {"round": 1, "samples": 40, "epsilon": 0.50001, "delta": 1e-6, "policy": DIGEST},
        {"round": 2, "refused": {"key": "dp.required"}},
    ]
    card = card_of(record(north=lines))
    assert card["sources"] == [
        {"site": "north", "visibility": "sum", "samples": 40, "epsilon": 0.50001, "delta": 1e-6, "policy": DIGEST},
        {"site": "south", "visibility": None},
    ]
    text = card_text(card)
    assert f"| `north` | source | sum | 40 | ε = 0.5001 at δ = 1e-06 | `{DIGEST}` |" in text
    assert "| `south` | source | took no part | known to that site alone | known to that site alone |" in text
    assert "| `clinic` | target | | known to that site alone | ε = 1.2500 at δ = 1e-05 | |" in text


def test_the_card_says_how_far_the_run_came_and_what_it_measured() -> None:
    card = card_of(record())
    assert card["metrics"] == {
        "last_rounds": {"accuracy": 0.8},
        "last_round": {"accuracy": 0.82},
        "target_only": {"accuracy": 0.7},
    }
    assert card["models"] == {"last": {"round": 2, "sha256": "12" * 32}, "best": None, "adapted": None}
    text = card_text(card)
    assert "in 2 of 3 rounds" in text
    assert "interrupted on 2026-11-29T20:00:00Z" in text
    assert "- for comparison, the target alone: 70.0 %" in text


def test_the_card_says_by_how_much_the_federation_helped() -> None:
    help_ = {"difference": 0.1, "low": 0.05, "high": 0.15, "test_rows": 200}
    helped = {**SUMMARY, "target_only": {"accuracy": 0.7, "help": help_}, "source_share": 0.375}
    card = card_of(record(helped))
    assert card["help"] == {"target_only": help_}
    text = card_text(card)
    assert "compared: +10.0 points over the target alone (95 %: +5.0 to +15.0)" in text
    assert "- the sources' share of the steps: 38 %" in text
    warmed = card_text(card_of(record({**helped, "warm_target": {"accuracy": 0.75}})))
    assert "- the sources' share of the steps after warm-up: 38 %" in warmed
    assert "compared:" not in card_text(card_of(record()))


def test_a_task_without_accuracy_has_its_own_metric_on_the_card() -> None:
    metric = {"name": "rmse", "words": "RMSE", "better": "lower", "percent": False}
    own = {"target_accuracy": None, "final_accuracy": None, "metric": metric, "target_metrics": {"rmse": 2.5}}
    text = card_text(card_of(record({**SUMMARY, **own, "target_only": {"accuracy": None, "metrics": {"rmse": 3.25}}})))
    assert "RMSE on the target's test rows" in text
    assert "- mean of the last 2 rounds: 2.500" in text
    assert "- for comparison, the target alone: 3.250" in text


def test_a_run_of_one_round_has_no_mean_of_five() -> None:
    alone = {"accuracy": 0.7, "help": {"difference": 0.1, "low": 0.05, "high": 0.15, "test_rows": 200}}
    text = card_text(card_of(record({**SUMMARY, "rounds": 1, "rounds_planned": 1, "target_only": alone})))
    assert "- after the only round: 80.0 %" in text
    assert "- after the only round, compared: +10.0 points" in text
    assert "five" not in text


@pytest.mark.parametrize(
    ("strategy", "measured"),
    [
        ({"rule": "ditto"}, False),
        ({"rule": "knn_per", "head": "none"}, False),
        ({"rule": "fedda_auto", "head": "knn"}, False),
        ({"rule": "fedda_auto", "head": "none", "folds": 5}, True),
        ({"rule": "of_a_later_release"}, True),
    ],
)
def test_figures_of_a_model_that_no_file_holds_are_said_to_be(strategy: dict[str, Any], *, measured: bool) -> None:
    card = card_of(record({**SUMMARY, "strategy": strategy}))
    assert card["models_measured"] is measured
    assert "The last layers stayed at each site." not in card_text(card)
    assert ("The run's figures are of a model of the target's own" in card_text(card)) is not measured


def test_models_without_trained_last_layers_are_said_to_be() -> None:
    assert "The last layers stayed at each site." in card_text(
        card_of(record({**SUMMARY, "strategy": {"rule": "fedrep"}}))
    )


def test_a_run_without_a_round_has_no_model() -> None:
    card = card_of(record({**SUMMARY, "rounds": 0, "target_accuracy": None, "model_round": 0, "model_digest": ""}))
    assert card["models"] == {"last": None, "best": None, "adapted": None}
    assert "- none: no round has finished" in card_text(card)


@pytest.mark.parametrize("changes", [{"strategy": {"rule": "target_only"}}, {"rounds": 0, "target_accuracy": None}])
def test_a_source_that_no_round_asked_took_no_part(changes: dict[str, Any]) -> None:
    card = card_of(record({**SUMMARY, "visibility": {"north": "sum", "south": "sum"}, **changes}))
    assert {source["visibility"] for source in card["sources"]} == {None}


def test_the_card_names_no_path_and_no_option_of_the_task() -> None:
    card = card_of(record())
    assert "/data" not in card_text(card) + json.dumps(card)


def test_names_of_a_folder_from_elsewhere_stay_within_their_cell() -> None:
    hostile = {**SUMMARY, "setting": {**SUMMARY["setting"], "target": "clinic` |\n# Approved\n| `"}}
    text = card_text(card_of(record(hostile)))
    assert "\n# Approved" not in text
    assert len([line for line in text.splitlines() if line.startswith("| `")]) == 3
