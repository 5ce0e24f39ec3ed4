"""T31: wrong shares give no wrong sum; with an answer to spare the sum is right and their sender named."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from securefda.protocol.messages import Abort, MaskedInput, Result, Unmask
from securefda.transport.in_memory import Passed
from threat_model.adversaries.wrong_shares import WrongShares
from threat_model.scores import NOTHING_LEARNT_COSINE, cosine
from threat_model.sites import roster_of
from threat_model.stage import MakesStage, Stage
from threat_model.switches import switched_off
from threat_model.unchecked_sums import COMMITMENTS, OPENED_SUMS, RANGE
from threat_model.watched import WatchedAggregator

LIAR, LOST, ALL = 1, 5, [1, 2, 3, 4, 5, 6]


def loses_input_of_5(passed: Passed) -> list[Passed]:
    return [] if passed.sender == LOST and isinstance(passed.message.body, MaskedInput) else [passed]


def liars(*indices: int, of: int | None = None) -> dict[str, Any]:
    return {"sources": {index: partial(WrongShares, of=of) for index in indices}}


def played(staged: MakesStage, **options: Any) -> Stage:
    settings = {"threshold": 4} | options.pop("settings", {})
    return staged(6, aggregator=WatchedAggregator, settings=settings, **options).play()


def results(stage: Stage) -> set[Result]:
    return {one.message.body for one in stage.said(0, Result)}


def fails(names: str, check: str) -> str:
    return f"source {names} fails check {check}: "


@pytest.mark.threat("T31")
@pytest.mark.parametrize("network", [lambda passed: [passed], loses_input_of_5], ids=["nobody lost", "one lost"])
@pytest.mark.parametrize("of", [None, 3, LOST])
def test_holder_of_wrong_shares_is_named_and_the_sum_is_right(staged: MakesStage, network: Any, of: int | None) -> None:
    honest, stage = played(staged, network=network), played(staged, network=network, **liars(LIAR, of=of))
    (alarm,) = stage.aggregator.operator.alarms
    assert alarm.startswith("alarm: " + fails("source-1", "UNMASK_SHARE"))
    assert_same_sum(stage, honest)


def assert_same_sum(stage: Stage, honest: Stage) -> None:
    assert results(stage) == results(honest) != set()
    assert [stage.accepted(index) for index in ALL] == [honest.accepted(index) for index in ALL]
    assert np.array_equal(stage.aggregator.model, honest.aggregator.model)


@pytest.mark.threat("T31")
def test_two_holders_of_wrong_shares_are_named_and_the_sum_is_right(staged: MakesStage) -> None:
    """More than decoding can find with two answers to spare, so sets of four are tried against the commitments."""
    honest, stage = played(staged), played(staged, **liars(LIAR, 4))
    alarms = stage.aggregator.operator.alarms
    assert [alarm.split(": ")[1] for alarm in alarms] == [fails(f"source-{i}", "UNMASK_SHARE")[:-2] for i in (LIAR, 4)]
    assert_same_sum(stage, honest)


@pytest.mark.threat("T31")
def test_with_exactly_t_answers_a_wrong_share_opens_nothing(staged: MakesStage) -> None:
    stage = played(staged, settings={"threshold": 6}, **liars(LIAR, of=3))
    (alarm,) = stage.aggregator.operator.alarms
    assert fails("source-3", "SHARE_COMMITMENT") in alarm
    assert "it dealt wrong shares, or holders sent wrong ones" in alarm
    assert_lost(stage, "SHARE_COMMITMENT")


def assert_lost(stage: Stage, check: str) -> None:
    """Every source gets the reason; the model stays as it was, and there is no second try after inputs have left."""
    assert results(stage) == set()
    assert {one.message.body.check for one in stage.said(0, Abort)} == {check}
    assert len(stage.said(0, Abort)) == 6
    assert not np.any(stage.aggregator.model)
    assert [line["status"] for line in stage.aggregator.operator.lines] == ["lost"]
    assert len(stage.said(LIAR, Unmask)) == 1


@pytest.mark.threat("T31")
@pytest.mark.control
@pytest.mark.parametrize("threshold", [4, 6])
def test_without_commitments_a_wrong_share_costs_the_sum_and_all_are_accused(
    staged: MakesStage, threshold: int
) -> None:
    with switched_off(COMMITMENTS, roster=roster_of(6)):
        stage = played(staged, settings={"threshold": threshold}, **liars(LIAR, of=3))
    (alarm,) = stage.aggregator.operator.alarms
    assert fails(" or ".join(f"source-{index}" for index in ALL), "RANGE") in alarm
    assert_lost(stage, "RANGE")


# A wrong sum that counts needs more: what opens is checked twice, and either is enough. The control above is one half.


@pytest.mark.threat("T31")
def test_commitments_are_enough_against_a_wrong_sum_where_its_range_is_not_checked(staged: MakesStage) -> None:
    honest = played(staged)
    with switched_off(RANGE, roster=roster_of(6)):
        spare = played(staged, **liars(LIAR, of=3))
        none_to_spare = played(staged, settings={"threshold": 6}, **liars(LIAR, of=3))
    (alarm,) = spare.aggregator.operator.alarms
    assert alarm.startswith("alarm: " + fails("source-1", "UNMASK_SHARE"))
    assert_same_sum(spare, honest)
    assert_lost(none_to_spare, "SHARE_COMMITMENT")


@pytest.mark.threat("T31")
@pytest.mark.control
def test_wrong_share_gives_a_wrong_sum_and_no_alarm_where_nothing_that_opens_is_checked(staged: MakesStage) -> None:
    honest = played(staged, settings={"threshold": 6})
    with switched_off(OPENED_SUMS, roster=roster_of(6)):
        stage = played(staged, settings={"threshold": 6}, **liars(LIAR, of=3))
    assert stage.aggregator.operator.alarms == []
    assert [stage.accepted(index) for index in ALL] == [1] * 6
    assert abs(cosine(stage.aggregator.model, honest.aggregator.model)) < NOTHING_LEARNT_COSINE


@pytest.mark.threat("T31")
@pytest.mark.control
def test_honest_are_accused_of_wrong_shares_where_nothing_that_opens_is_checked(staged: MakesStage) -> None:
    """The first t answers give the secret, right or wrong; holders whose share differs from it are named."""
    with switched_off(OPENED_SUMS, roster=roster_of(6)):
        stage = played(staged, **liars(LIAR, of=3))
    alarms = stage.aggregator.operator.alarms
    assert [alarm.split(": ")[1] for alarm in alarms] == [fails(f"source-{i}", "UNMASK_SHARE")[:-2] for i in (5, 6)]
