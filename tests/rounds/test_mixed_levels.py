"""Rounds with sources at individual, cohort and sum: one model, g_T to the sum alone, each part by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rounds_definition import trained, update_by_definition
from rounds_federation import TARGET, AnySigned, Federation, is_header, site_id, until, without_schedules

from securefda.operations.records import RoundLine
from securefda.protocol.messages import (
    Abort,
    Advertise,
    KeyList,
    MaskedInput,
    Refusal,
    Result,
    ShareBundle,
    SurvivorSignature,
    Unmask,
    Update,
    Visibility,
)

INDIVIDUAL, COHORT, SUM = Visibility
NO_CAPS = {"kappa": 0.0}
IN_CLEAR, IN_COHORT, IN_SUM = (1, 2), (3, 4, 5, 6), (7, 8, 9, 10)
THREE_LEVELS = dict.fromkeys(IN_COHORT, COHORT) | dict.fromkeys(IN_SUM, SUM)
TWO_LEVELS = dict.fromkeys((3, 4, 5, 6), SUM)
RULES = ["source_only", "fedavg", "fedda", "fedgp", "fedda_auto", "fedgp_auto"]


def mixed(folder: Path, n: int, permits: dict[int, Visibility], **options: Any) -> Federation:
    """A federation in which every source has the visibility that its own policy allows."""
    settings = NO_CAPS | options.pop("settings", {})
    return Federation(folder, n, visibility=INDIVIDUAL, permits=permits, settings=settings, **options)


def play(federation: Federation) -> Federation:
    federation.open().go()
    return federation


def groups_of(line: RoundLine) -> list[list[int]]:
    """The inputs of the rule: each cohort, and each other source by itself."""
    groups = []
    for seen in line["seen"]:
        members = [int(site.removeprefix("source-")) for site in seen["members"]]
        groups += [members] if seen["level"] == "cohort" else [[member] for member in members]
    return groups


def silent(*lost: int, kind: type) -> Any:
    """A network that loses these sources' messages of one kind."""

    def link(sender: int, recipient: int, message: AnySigned) -> AnySigned | None:
        return None if sender in lost and isinstance(message.body, kind) else message

    return link


@pytest.mark.parametrize("rule", RULES)
def test_a_round_of_all_three_levels_is_the_definition_with_the_cohort_as_a_source(tmp_path: Path, rule: str) -> None:
    federation = play(mixed(tmp_path, 10, THREE_LEVELS, rule=rule, rounds=1, beta=0.3))
    (line,) = federation.watch.lines
    assert line["levels"] == {site_id(i): THREE_LEVELS.get(i, INDIVIDUAL).label for i in range(1, 11)}
    assert sorted(map(len, groups_of(line))) == [1] * 6 + [4]
    sites = trained(federation)
    expected = sites.model + update_by_definition(rule, sites, groups_of(line), beta=0.3)
    assert np.max(np.abs(federation.run.model - expected)) < 1e-6
    one_by_one = sites.model + update_by_definition(rule, sites, [[i] for i in range(1, 11)], beta=0.3)
    assert (np.max(np.abs(one_by_one - expected)) < 1e-9) == (rule in ("source_only", "fedavg", "fedda"))


@pytest.mark.parametrize("rule", RULES)
def test_without_a_cohort_mixed_levels_give_the_model_of_all_in_clear(tmp_path: Path, rule: str) -> None:
    both = [
        play(mixed(tmp_path / name, 6, permits, rule=rule, rounds=3, beta=0.3))
        for name, permits in (("mixed", TWO_LEVELS), ("clear", {}))
    ]
    one, other = (federation.run.model for federation in both)
    assert both[0].watch.statuses == both[1].watch.statuses == ["finished"] * 3
    assert np.all(np.abs(one - other) <= np.spacing(np.abs(other)))
    accuracies = [[line["accuracy"] for line in federation.watch.lines] for federation in both]
    assert accuracies[0] == accuracies[1]


def test_the_targets_update_goes_to_those_at_sum_and_to_nobody_else(tmp_path: Path) -> None:
    federation = play(mixed(tmp_path, 10, THREE_LEVELS, rule="fedgp_auto", rounds=1))
    count = {to: vectors for sender, to, name, vectors in federation.vectors if sender == TARGET and name == "Header"}
    assert count == {index: 2 if index in IN_SUM else 1 for index in range(1, 11)}
    (line,) = federation.watch.lines
    assert line["target_update_to"] == sorted(map(site_id, IN_SUM))


def test_nobody_at_sum_is_nobody_who_gets_the_targets_update_or_its_digest(tmp_path: Path) -> None:
    permits = dict.fromkeys((3, 4, 5, 6), COHORT)
    federation = play(mixed(tmp_path, 6, permits, rule="fedgp_auto", rounds=1))
    headers = [message.body for *_, message in federation.passed if is_header(message)]
    assert all(header.target.update_digest == b"" and header.target.mean_square == 0 for header in headers)
    assert {vectors for sender, _, name, vectors in federation.vectors if name == "Header"} == {1}
    assert federation.watch.lines[0]["target_update_to"] == []


@pytest.mark.parametrize("kind", [Advertise, ShareBundle, MaskedInput, SurvivorSignature, Unmask])
def test_a_masked_part_that_loses_its_quorum_leaves_the_updates_in_clear(tmp_path: Path, kind: type) -> None:
    federation = mixed(tmp_path, 6, TWO_LEVELS, rule="fedda_auto", rounds=1)
    federation.link = silent(3, 4, kind=kind)
    play(federation)
    (line,) = federation.watch.lines
    assert (line["status"], line["attempts"]) == ("finished", 1)
    assert line["survivors"] == ["source-1", "source-2"]
    assert "alarm: " in federation.watch.text
    sites = trained(federation)
    expected = sites.model + update_by_definition("fedda_auto", sites, [[1], [2]])
    assert np.max(np.abs(federation.run.model - expected)) < 1e-6


def test_without_any_update_in_clear_the_round_goes_on_with_the_masked_ones(tmp_path: Path) -> None:
    federation = mixed(tmp_path, 6, TWO_LEVELS, rule="fedda_auto", rounds=1)
    federation.link = silent(1, 2, kind=Update)
    play(federation)
    (line,) = federation.watch.lines
    assert (line["status"], line["attempts"], line["dropped"]) == ("finished", 1, ["source-1", "source-2"])
    sites = trained(federation)
    expected = sites.model + update_by_definition("fedda_auto", sites, [[i] for i in (3, 4, 5, 6)])
    assert np.max(np.abs(federation.run.model - expected)) < 1e-6


def test_a_round_of_which_both_parts_are_lost_is_lost(tmp_path: Path) -> None:
    federation = mixed(tmp_path, 6, TWO_LEVELS, rule="fedda_auto", rounds=2)

    def link(sender: int, recipient: int, message: AnySigned) -> AnySigned | None:
        first = federation.round_in_progress is not None and federation.round_in_progress.number == 1
        return None if first and sender in (1, 2, 3, 4) and isinstance(message.body, (Update, Advertise)) else message

    federation.link = link
    play(federation)
    assert federation.watch.statuses == ["lost", "finished"]
    assert federation.watch.lines[0]["attempts"] == 1  # updates may have left: never again


def test_the_boxes_wait_for_the_last_update_in_clear(tmp_path: Path) -> None:
    """Their training is as long as that of the others, and R2 has the short deadline of a phase."""
    federation = mixed(tmp_path, 6, TWO_LEVELS, rule="source_only", rounds=1).open()
    last = until(federation, TARGET, Update)
    other = until(federation, TARGET, Update)
    federation.deliver_all()
    assert "ShareDelivery" not in federation.names()
    assert federation.names(to=TARGET).count("ShareBundle") == 4
    assert federation.run.waiting_for() == tuple(site_id(parcel.message.sender) for parcel in (last, other))
    for parcel in (last, other):
        federation.submit(parcel.message.sender, parcel)
    federation.deliver()
    assert "ShareDelivery" not in federation.queued
    federation.deliver()
    assert federation.queued.count("ShareDelivery") == 4
    federation.go()
    assert federation.watch.lines[0]["survivors"] == [site_id(index) for index in range(1, 7)]


def test_one_deadline_ends_the_wait_for_updates_in_clear_and_for_keys(tmp_path: Path) -> None:
    federation = mixed(tmp_path, 7, dict.fromkeys((3, 4, 5, 6, 7), SUM), rule="source_only", rounds=1)
    lost = silent(1, kind=Update)
    also = silent(3, kind=Advertise)
    federation.link = lambda *what: lost(*what) and also(*what)
    play(federation)
    (line,) = federation.watch.lines
    assert line["dropped"] == ["source-1", "source-3"]
    assert line["attempts"] == 1
    assert federation.now == federation.settings.training_deadline_s


@pytest.mark.parametrize("leaver", [1, 3])
def test_a_source_that_leaves_is_waited_for_no_longer(tmp_path: Path, leaver: int) -> None:
    federation = mixed(tmp_path, 7, dict.fromkeys((3, 4, 5, 6, 7), SUM), rule="source_only", rounds=1)

    def link(sender: int, recipient: int, message: AnySigned) -> AnySigned | None:
        if is_header(message) and recipient == leaver:
            federation.kill(leaver)
        return message

    federation.link = link
    play(federation)
    (line,) = federation.watch.lines
    assert line["dropped"] == [site_id(leaver)]
    assert federation.now == 0.0


@pytest.mark.parametrize("refuser", [1, 3])
def test_a_refusal_at_either_level_leaves_the_round_to_the_others(tmp_path: Path, refuser: int) -> None:
    federation = mixed(tmp_path, 7, dict.fromkeys((3, 4, 5, 6, 7), SUM), rule="source_only", rounds=1)
    policy = federation.policy(refuser, allowed_rules=("fedda",))
    federation.sources[refuser] = federation.source(refuser, policy=policy)
    federation.link = without_schedules
    play(federation)
    (line,) = federation.watch.lines
    assert (line["refused"], line["attempts"]) == ({site_id(refuser): "allowed-rules"}, 1)
    assert line["dropped"] == [site_id(refuser)]


def test_every_source_gets_the_same_result_whatever_its_level(tmp_path: Path) -> None:
    federation = play(mixed(tmp_path, 10, THREE_LEVELS, rule="fedgp_auto", rounds=2))
    results = [message for *_, message in federation.passed if isinstance(message.body, Result)]
    assert len({message.signed_bytes for message in results}) == 2
    assert len(results) == 20
    assert {message.body.count for message in results} == {8}
    for index in range(1, 11):
        assert [record["level"] for record in federation.watch.records[index]] == [
            THREE_LEVELS.get(index, INDIVIDUAL).label
        ] * 2


def test_what_a_policy_allows_holds_from_the_next_join(tmp_path: Path) -> None:
    """A source that comes back with a stricter policy is served by it from the next header on."""
    federation = mixed(tmp_path, 6, TWO_LEVELS, rule="source_only", rounds=2).open()
    until(federation, 1, Result)
    federation.permits[1] = SUM
    federation.restart(1)
    federation.go()
    first, second = federation.watch.lines
    assert (first["levels"]["source-1"], second["levels"]["source-1"]) == ("individual", "sum")


def test_aborts_and_refusals_of_one_part_do_not_reach_the_other(tmp_path: Path) -> None:
    federation = mixed(tmp_path, 6, TWO_LEVELS, rule="source_only", rounds=1)
    federation.link = silent(3, 4, kind=Advertise)
    play(federation)
    checks = {to: message.body.check for _, to, message in federation.passed if isinstance(message.body, Abort)}
    assert checks == {3: "DEADLINE", 4: "DEADLINE", 5: "QUORUM", 6: "QUORUM"}
    assert not any(isinstance(message.body, (Refusal, KeyList)) for *_, message in federation.passed)
