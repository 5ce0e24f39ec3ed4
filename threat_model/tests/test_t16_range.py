"""T16: sums are exact up to the limit of the ring, and what is beyond it is an alarm or never leaves a source."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from securefda.protocol.messages import Abort, Advertise, Checkpoint, Cosigned, Join, Refusal, Result, Visibility
from securefda.rules import Strategy
from threat_model.adversaries.false_inputs import FalseInput, NotFinite, TightRing, added, at_the_limit, other_share
from threat_model.scores import cosine
from threat_model.sites import CLIP, N_PARAMS, known_update
from threat_model.stage import MakesStage, Stage
from threat_model.switches import checks_off, switched_off
from threat_model.unchecked_sums import RANGE, SHARES, SUM_AT_THE_CLIP
from threat_model.watched import WatchedAggregator

LIAR, ALL = 3, [1, 2, 3, 4, 5]
WITNESSED = (Checkpoint, Cosigned)
JOINED = (Join, *WITNESSED)
"""The messages of every source before the first round."""

BEYOND = "beyond the clip at the weight that came with it"
SIGNS = np.resize([1.0, -1.0], N_PARAMS)


def near_the_clip(index: int, round_number: int, received: Any) -> Any:
    """Honest updates that all point the same way, at nine tenths of the clip."""
    return (0.9 * CLIP * SIGNS).astype(np.float32)


@pytest.mark.threat("T16")
@pytest.mark.parametrize("bits", [16, 20, 24, 32])
def test_sum_of_as_many_largest_inputs_as_the_ring_is_laid_out_for_is_exact(staged: MakesStage, bits: int) -> None:
    everyone = dict.fromkeys(ALL, partial(FalseInput, falsify=at_the_limit))
    settings = {"bits": bits}
    stage = staged(5, aggregator=partial(TightRing, n_max=5), sources=everyone, settings=settings).play()
    np.testing.assert_allclose(stage.adversary.attack(), 5 * CLIP * SIGNS, rtol=1e-15)
    assert [stage.alarms(index) for index in ALL] == [[]] * 5


@pytest.mark.threat("T16")
def test_largest_inputs_of_all_sources_give_the_clip_and_no_alarm(staged: MakesStage) -> None:
    everyone = dict.fromkeys(ALL, partial(FalseInput, falsify=at_the_limit))
    stage = staged(5, aggregator=WatchedAggregator, sources=everyone).play()
    assert stage.aggregator.operator.alarms == []
    np.testing.assert_array_equal(stage.aggregator.model, (CLIP * SIGNS).astype(np.float32))


@pytest.mark.threat("T16")
@pytest.mark.parametrize("n_max", [1, 2, 4])
def test_sources_refuse_a_ring_that_is_laid_out_for_fewer_than_take_part(staged: MakesStage, n_max: int) -> None:
    stage = staged(5, aggregator=partial(TightRing, n_max=n_max), updates=near_the_clip).play()
    for index in ALL:
        assert stage.refusals(index) == ["HEADER_WRAP"]
        assert [type(one.message.body) for one in stage.passed if one.sender == index] == [*JOINED, Refusal]
    assert stage.adversary.attack() is None


@pytest.mark.threat("T16")
@pytest.mark.control
def test_sum_of_honest_inputs_comes_out_with_its_signs_turned_where_the_ring_may_be_too_small(
    staged: MakesStage,
) -> None:
    stage = staged(5, aggregator=partial(TightRing, n_max=2), updates=near_the_clip)
    with switched_off(checks_off("HEADER_WRAP"), roster=stage.roster):
        stage.play()
    assert [stage.alarms(index) for index in ALL] == [[]] * 5
    assert cosine(stage.adversary.attack(), stage.mean_of(ALL)) < -0.99


def lying(staged: MakesStage, n: int, amount: int, coordinates: int) -> Stage:
    lie = partial(FalseInput, falsify=added(amount, coordinates))
    return staged(n, aggregator=WatchedAggregator, sources={LIAR: lie})


def assert_lost_by(stage: Stage, check: str) -> None:
    """One alarm, no result, and the model as it was."""
    (alarm,) = stage.aggregator.operator.alarms
    assert check in alarm
    assert not np.any(stage.aggregator.model)
    assert stage.said(0, Result) == []
    assert [line["status"] for line in stage.aggregator.operator.lines] == ["lost"]


@pytest.mark.threat("T16")
def test_lie_of_half_the_ring_in_every_coordinate_suspects_all(
    staged: MakesStage,
) -> None:
    stage = lying(staged, 5, 2**31, N_PARAMS).play()
    assert_lost_by(stage, "source " + " or ".join(f"source-{index}" for index in ALL) + " fails check RANGE")
    assert {one.message.body.check for one in stage.said(0, Abort)} == {"RANGE"}


@pytest.mark.threat("T16")
@pytest.mark.parametrize(
    ("sixteenths", "check"),
    [(1, ""), (2, ""), (3, BEYOND), (5, "RANGE"), (8, "RANGE"), (-1, ""), (-2, ""), (-3, BEYOND), (-6, "RANGE")],
)
def test_lie_in_one_coordinate_raises_an_alarm_or_stays_within_the_clip(
    staged: MakesStage, sixteenths: int, check: str
) -> None:
    """In sixteenths of the ring, laid out for six inputs of which three take part, at a weight of 1.86 in all.

    Of lies drawn evenly over the ring 1.86 / 6, 31 %, pass; of lies in k coordinates, 0.31^k do.
    """
    stage = lying(staged, 3, sixteenths * 2**28, 1).play()
    if check:
        assert_lost_by(stage, check)
    else:
        assert stage.aggregator.operator.alarms == []
        assert np.sign(sixteenths) * (stage.aggregator.model[0] - stage.mean_of([1, 2, 3])[0]) > 0.25
        assert np.max(np.abs(stage.aggregator.model)) <= CLIP


@pytest.mark.threat("T16")
@pytest.mark.control
def test_one_lie_moves_the_model_beyond_the_clip_where_the_sum_is_not_held_to_it(staged: MakesStage) -> None:
    stage = lying(staged, 3, 5 * 2**27, N_PARAMS)
    with switched_off(SUM_AT_THE_CLIP, roster=stage.roster):
        stage.play()
    assert stage.aggregator.operator.alarms == []
    assert np.max(np.abs(stage.mean_of([1, 2, 3]))) < 0.5 * CLIP
    assert np.max(stage.aggregator.model) > 1.3 * CLIP


@pytest.mark.threat("T16")
@pytest.mark.control
def test_lie_of_half_the_ring_turns_the_model_round_where_no_range_is_checked(staged: MakesStage) -> None:
    stage = lying(staged, 3, 2**31, N_PARAMS)
    with switched_off(RANGE, roster=stage.roster):
        stage.play()
    assert stage.aggregator.operator.alarms == []
    assert np.min(np.abs(stage.aggregator.model)) > 2 * CLIP
    assert cosine(stage.aggregator.model, stage.mean_of([1, 2, 3])) < 0


# Shares of attention, whose sum divides that of the updates.

BOUND = 1.0


def with_share(staged: MakesStage, factor: float) -> Stage:
    """A liar who hands in so many times the largest share; all honest ones, at no gain to speak of, have about e^-1."""
    settings = {"strategy": Strategy(rule="fada_attention", attention_bound=BOUND, attention_temperature=1.0, rounds=1)}
    lie = partial(FalseInput, falsify=other_share(factor))
    return staged(3, aggregator=WatchedAggregator, sources={LIAR: lie}, settings=settings, updates=near_the_clip)


@pytest.mark.threat("T16")
@pytest.mark.parametrize("factor", [-0.68, -0.5, 3.0])
def test_share_of_attention_that_takes_the_sum_of_all_beyond_the_bound_loses_the_round(
    staged: MakesStage, factor: float
) -> None:
    assert_lost_by(
        with_share(staged, factor).play(), "shares of attention are more or less than the bound lets them be"
    )


@pytest.mark.threat("T16")
@pytest.mark.parametrize("factor", [0.0, 0.5, 1.5])
def test_share_of_attention_that_leaves_the_sum_within_the_bound_passes(staged: MakesStage, factor: float) -> None:
    """A residual: by at most e^(2 bound) it makes the model's step longer or shorter than an honest sum would."""
    stage = with_share(staged, factor).play()
    assert stage.aggregator.operator.alarms == []
    assert np.max(np.abs(stage.aggregator.model)) <= CLIP * np.exp(2 * BOUND)


@pytest.mark.threat("T16")
@pytest.mark.control
def test_one_share_moves_the_model_as_far_as_it_likes_where_their_sum_is_not_held_to_the_bound(
    staged: MakesStage,
) -> None:
    stage = with_share(staged, -0.68)
    with switched_off(SHARES, roster=stage.roster):
        stage.play()
    assert stage.aggregator.operator.alarms == []
    assert np.max(np.abs(stage.aggregator.model)) > CLIP * np.exp(2 * BOUND)


@pytest.mark.threat("T16")
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_update_that_is_not_finite_is_refused_by_its_source_before_anything_of_it_leaves(
    staged: MakesStage, value: float
) -> None:
    def diverged_at_3(index: int, round_number: int, received: Any) -> Any:
        update = known_update(index, round_number, received)
        update[7] = value if index == LIAR else update[7]
        return update

    stage = staged(5, aggregator=WatchedAggregator, updates=diverged_at_3).play()
    assert [type(one.message.body) for one in stage.passed if one.sender == LIAR] == [
        *JOINED,
        Advertise,
        Refusal,
        *WITNESSED,
    ]
    assert all(stage.said(index, Advertise) for index in [1, 2, 4, 5])
    assert np.all(np.isfinite(stage.aggregator.model))
    np.testing.assert_allclose(stage.aggregator.model, stage.mean_of([1, 2, 4, 5]), atol=stage.precision(1))


@pytest.mark.threat("T16")
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_update_in_clear_that_is_not_finite_names_its_source_and_is_left_out(staged: MakesStage, value: float) -> None:
    liar = {LIAR: partial(NotFinite, value=value)}
    stage = staged(5, aggregator=WatchedAggregator, sources=liar, visibility=Visibility.INDIVIDUAL).play()
    (alarm,) = stage.aggregator.operator.alarms
    assert alarm.startswith(f"alarm: source source-{LIAR} fails check INPUT_FINITE")
    np.testing.assert_allclose(stage.aggregator.model, stage.mean_of([1, 2, 4, 5]), atol=stage.precision(1))
