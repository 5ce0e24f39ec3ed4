"""The stage is a real federation: without a lie everything goes through, and an attacker's bookkeeping is right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from securefda.protocol.messages import Advertise, MaskedInput, Survivors, Visibility
from securefda.rules import Strategy
from securefda.transport.in_memory import Passed
from threat_model.adversaries.base import MaliciousAggregator
from threat_model.adversaries.sources import ColludingSource, MaliciousSource
from threat_model.scores import NOTHING_LEARNT_COSINE, auc, cosine, is_recovered, relative_error
from threat_model.stage import MakesStage, honest_aggregator

pytestmark = pytest.mark.machinery

ALL = [1, 2, 3, 4, 5]


@pytest.mark.parametrize("aggregator", [honest_aggregator, MaliciousAggregator])
@pytest.mark.parametrize("visibility", list(Visibility))
@pytest.mark.parametrize("rule", ["source_only", "fedgp_auto"])
def test_run_without_a_lie_raises_no_alarm(
    staged: MakesStage, aggregator: Any, visibility: Visibility, rule: str
) -> None:
    strategy = Strategy(rule=rule, rounds=2)
    stage = staged(8, aggregator=aggregator, visibility=visibility, settings={"strategy": strategy}).play()
    assert [stage.accepted(index) for index in stage.sources] == [2] * 8
    assert not any(stage.alarms(index) for index in stage.sources)


def test_aggregator_of_the_attacker_opens_the_sum_and_no_single_update(staged: MakesStage) -> None:
    stage = staged(aggregator=MaliciousAggregator).play()
    assert is_recovered(stage.adversary.aggregate().update, stage.mean_of(ALL), stage.precision(1))
    for index in ALL:
        assert abs(cosine(stage.adversary.estimate(index), stage.update(index))) < NOTHING_LEARNT_COSINE


def test_aggregator_of_the_attacker_opens_the_sum_without_a_dropped_source(staged: MakesStage) -> None:
    def loses_input_of_3(passed: Passed) -> list[Passed]:
        return [] if passed.sender == 3 and isinstance(passed.message.body, MaskedInput) else [passed]

    stage = staged(aggregator=MaliciousAggregator, network=loses_input_of_3).play()
    (lists,) = {one.message.body for one in stage.said(0, Survivors)}
    assert lists.dropped == (3,)
    assert is_recovered(stage.adversary.aggregate().update, stage.mean_of([1, 2, 4, 5]), stage.precision(1))


def test_aggregator_knows_of_a_colluder_what_the_colluder_knows(staged: MakesStage) -> None:
    stage = staged(aggregator=MaliciousAggregator, sources={4: ColludingSource}).play()
    adversary = stage.adversary
    assert is_recovered(adversary.estimate(4), stage.update(4), stage.precision(4))
    assert adversary.pair_seeds_of(2).keys() == {4}
    assert adversary.master_of(2) is None


def test_source_of_the_attacker_that_overrides_nothing_is_taken_for_honest(staged: MakesStage) -> None:
    stage = staged(sources={1: MaliciousSource}).play()
    assert [stage.accepted(index) for index in ALL] == [1] * 5


def test_restarted_source_reports_anew_and_knows_its_past(staged: MakesStage) -> None:
    stage = staged(settings={"strategy": Strategy(rule="source_only", rounds=2)}).play()
    before = len(stage.said(1, Advertise))
    stage.restart(1)
    stage.go()
    assert len(stage.said(1, Advertise)) == before == 2


def test_scores_of_what_is_known_by_hand() -> None:
    assert cosine(np.array([1.0, 0.0]), np.array([1.0, 1.0])) == pytest.approx(0.5**0.5)
    assert cosine(np.zeros(2), np.ones(2)) == 0
    assert relative_error(np.array([3.0, 4.0]), np.array([3.0, 0.0])) == pytest.approx(4 / 3)
    assert auc([2.0, 1.0], [1.0, 0.0]) == 0.875
    assert is_recovered(np.array([1.0]), np.array([1.5]), 0.5)
    assert not is_recovered(np.array([1.0]), np.array([1.5]), 0.49)
