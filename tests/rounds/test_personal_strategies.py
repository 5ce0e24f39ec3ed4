"""Strategies that measure the target with a model of its own: rounds of fedavg on the wire, a state that survives."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rounds_federation import TARGET, Federation, is_header, rows_of, until
from source_stores import store_at

from securefda.aggregator.store import AggregatorStore
from securefda.operations.records import summarise
from securefda.protocol.messages import ShareDelivery, SourcesKeep, Update, Visibility
from securefda.source.source_store import SourceStore
from securefda.training import Vector
from securefda.training.memory import state_keys
from securefda.training.personal import FineTuned

ROUNDS = 3
NO_CAPS = {"kappa": 0.0}
STRATEGIES: dict[str, dict[str, Any]] = {
    "ditto": {"ditto_lambda": 0.5, "personal_epochs": 2},
    "apfl": {"apfl_adaptive": True},
    "knn_per": {"knn_neighbours": 3},
    "fedrep": {},
    "personalized_fedavg": {"reptile_rounds": 1, "personal_epochs": 2, "server_momentum": 0.5},
}
Left = tuple[Any, ...]
Undisturbed = Callable[[str], "tuple[Federation, Left]"]


def begun(folder: Path, rule: str, level: Visibility = Visibility.SUM) -> Federation:
    strategy = STRATEGIES.get(rule, {})
    settings = {**NO_CAPS, "sources_keep": SourcesKeep.FINAL}  # NONE deletes own layers at the end
    return Federation(folder, rounds=ROUNDS, visibility=level, settings=settings, rule=rule, **strategy).open()


def left_by(federation: Federation) -> Left:
    """All that a run comes to: the model, what was measured, and what the sites keep to themselves."""
    stores = [federation.store, *federation.stores.values()]
    measured = [(line["accuracy"], line["loss"]) for line in federation.store.records()]
    run = federation.run.run_id
    own = [[store.personal(run, number) for number in (ROUNDS, ROUNDS + 1)] for store in stores]
    return federation.run.model.tobytes(), measured, own


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """A run at ``sum`` in which nothing happens, closed, and what it left; one for each strategy."""

    @cache
    def play(rule: str) -> tuple[Federation, Left]:
        federation = begun(tmp_path_factory.mktemp(rule), rule).go()
        assert federation.statuses == ["finished"] * ROUNDS
        return federation, left_by(federation)

    return play


@pytest.mark.parametrize("rule", STRATEGIES)
def test_the_line_and_the_summary_say_that_the_model_is_the_targets_own(undisturbed: Undisturbed, rule: str) -> None:
    lines = undisturbed(rule)[0].watch.lines
    assert [line["evaluated"] for line in lines] == ["personal"] * ROUNDS
    assert summary_of(lines).evaluated == "personal"


def test_other_strategies_say_nothing_and_their_summary_that_it_is_the_common_one(undisturbed: Undisturbed) -> None:
    lines = undisturbed("fedavg")[0].watch.lines
    assert not any("evaluated" in line for line in lines)
    assert summary_of(lines).evaluated == "global"


def summary_of(lines: Any) -> Any:
    return summarise(lines, run_id="", task="", strategy={}, visibility={}, rounds_planned=ROUNDS, status="finished")


@pytest.mark.parametrize("rule", ["ditto", "apfl", "knn_per"])
def test_what_is_the_targets_own_changes_nothing_that_others_see(undisturbed: Undisturbed, rule: str) -> None:
    plain, own = undisturbed("fedavg")[0], undisturbed(rule)[0]
    rules = [[m.body.rule for *_, m in one.passed if is_header(m)] for one in (plain, own)]
    assert rules[0] == rules[1]
    assert own.names() == plain.names()
    assert np.array_equal(own.run.model, plain.run.model)
    losses = [[line["loss"] for line in one.watch.lines] for one in (plain, own)]
    assert all(one != other for one, other in zip(*losses, strict=True))


@pytest.mark.parametrize("rule", ["fedgp_auto", "fedda_auto", "target_only"])
def test_a_head_on_any_rule_is_measured_and_changes_nothing_that_others_see(tmp_path: Path, rule: str) -> None:
    plain, own = (
        Federation(tmp_path / head, rounds=ROUNDS, settings=NO_CAPS, rule=rule, head=head).open().go()
        for head in ("none", "knn")
    )
    assert own.names() == plain.names()
    assert np.array_equal(own.run.model, plain.run.model)
    assert [line["evaluated"] for line in own.watch.lines] == ["personal"] * ROUNDS
    assert all(one["loss"] != other["loss"] for one, other in zip(plain.watch.lines, own.watch.lines, strict=True))


@pytest.mark.parametrize("rule", STRATEGIES)
def test_every_round_is_one_of_fedavg_that_publishes_nothing_of_the_target(undisturbed: Undisturbed, rule: str) -> None:
    federation = undisturbed(rule)[0]
    headers = [message.body for *_, message in federation.passed if is_header(message)]
    assert {header.rule.rule for header in headers} == {"fedavg"}
    assert {header.target for header in headers} == {None}
    assert [line["rule"] for line in federation.watch.lines] == ["fedavg"] * ROUNDS


def test_a_round_that_is_lost_ends_in_a_run_that_goes_on(tmp_path: Path) -> None:
    federation = begun(tmp_path, "ditto")
    until(federation, 1, ShareDelivery, round_number=2)
    federation.restart_aggregator().go()
    assert federation.statuses == ["finished", "lost", "finished"]
    assert "evaluated" not in federation.watch.lines[-2]


def test_the_coordinates_of_a_head_are_exactly_zero_in_every_update_and_in_the_models_change(tmp_path: Path) -> None:
    """The head of these models is the bias, the last 3 of 15 parameters."""
    federation = begun(tmp_path, "fedrep", Visibility.INDIVIDUAL)
    first = federation.run.model.copy()
    found: list[Vector] = []
    for _ in range(3):
        update = until(federation, TARGET, Update)
        found.append(np.frombuffer(update.vectors[0], "<f4"))
        federation.arrives_next(update.message.sender, TARGET, update)
        federation.deliver()
    federation.go()
    assert all(not update[12:].any() and update[:12].all() for update in found)
    change = federation.run.model - first
    assert not change[12:].any()
    assert change[:12].all()


def test_every_site_has_a_head_of_its_own_that_differs_and_moves(undisturbed: Undisturbed) -> None:
    heads = [head for pair in undisturbed("fedrep")[1][2] for head in pair]
    assert all(len(head) == 12 for head in heads)
    assert len(set(heads)) == 8


@pytest.mark.parametrize("rule", ["fedavg", "knn_per", "personalized_fedavg"])
def test_what_has_no_memory_keeps_nothing(undisturbed: Undisturbed, rule: str) -> None:
    assert undisturbed(rule)[1][2] == [[None, None]] * 4


@pytest.mark.parametrize("rule", ["ditto", "apfl"])
def test_a_model_of_the_targets_own_is_kept_by_nobody_else(undisturbed: Undisturbed, rule: str) -> None:
    of_target, *of_sources = undisturbed(rule)[1][2]
    assert len(set(of_target)) == 2
    assert of_sources == [[None, None]] * 3


def test_personalized_fedavg_is_measured_after_epochs_at_the_target(undisturbed: Undisturbed) -> None:
    federation = undisturbed("personalized_fedavg")[0]
    model, test_data = federation.run.model, federation.run._site.test_data
    expected = FineTuned(rows_of(3), 2).evaluate(model, "", ROUNDS, test_data)
    assert federation.watch.lines[-1]["loss"] == expected.loss
    assert expected.loss != federation.run._site.trainer.evaluate(model, test_data).loss


def remember(store: AggregatorStore | SourceStore) -> None:
    """Have a source take the model that it trained from for one that it may have."""
    if isinstance(store, SourceStore):
        store.remember_trained(bytes(16), 1, np.zeros(1, np.float32), bytes(32), (1.0,))


@pytest.mark.parametrize("keeps_own", [False, True])
def test_what_a_source_kept_of_a_run_goes_with_its_end_unless_it_is_to_stay(tmp_path: Path, keeps_own: bool) -> None:
    store, run = store_at(tmp_path / "state.sqlite"), bytes(16)
    places = state_keys(run.hex())
    assert len(places) == 3
    for place in (*places, "another run"):
        store.keep_personal(place, 1, b"state")
    remember(store)
    store.end_run(run, keeps_own=keeps_own)
    assert [store.personal(place, 2) is not None for place in (*places, "another run")] == [keeps_own] * 3 + [True]
    store.close()


@pytest.mark.parametrize("kind", [AggregatorStore, store_at])
def test_a_store_keeps_the_last_two_rounds_of_each_run_across_restarts(
    tmp_path: Path, kind: Callable[[Path], AggregatorStore | SourceStore]
) -> None:
    store = kind(tmp_path / "state.sqlite")
    for number in (1, 2, 4):
        store.keep_personal("a", number, b"of round %d" % number)
        remember(store)
    store.keep_personal("b", 7, b"of another run")
    store.keep_personal("a", 4, b"of round 4, again")
    remember(store)
    store.close()
    store = kind(tmp_path / "state.sqlite")
    kept = [store.personal("a", before) for before in (2, 3, 4, 5, 99)]
    assert kept == [None, b"of round 2", b"of round 2", b"of round 4, again", b"of round 4, again"]
    assert store.personal("b", 8) == b"of another run"
    assert store.personal("c", 8) is None
    store.close()
