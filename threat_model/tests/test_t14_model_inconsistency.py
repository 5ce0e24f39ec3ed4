"""T14: a victim whose model is another one than everybody's is in no sum that opens."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from securefda.secagg.messages import Advertise, MaskedInput, Refusal, ShareBundle, Unmask
from threat_model.adversaries.model_inconsistency import ModelInconsistency
from threat_model.scores import NOTHING_LEARNT_COSINE, RECOVERED_COSINE, cosine
from threat_model.sites import CLIP, LAYERS, N_PARAMS
from threat_model.stage import MakesStage, Stage
from threat_model.switches import checks_off, switched_off
from threat_model.unbound import BOXES_IN_CONTEXT, MODEL_IN_CONTEXT

VICTIM, OTHERS, ALL = 2, [1, 3, 4, 5], [1, 2, 3, 4, 5]
OUTPUTS, INPUTS = LAYERS[0][1]
ROWS, RATE = 20, 0.5
DEAD = np.concatenate([np.zeros(INPUTS * OUTPUTS), np.full(OUTPUTS, -1e3)]).astype(np.float32)
"""A model whose biases are so low that no unit is ever active: no row moves it."""

FIRST = np.zeros(N_PARAMS, np.float32)


def one_step(index: int, round_number: int, received: Any) -> Any:
    """One step of gradient descent of a layer of rectified linear units, on rows of the site's own."""
    numbers = np.random.default_rng((14, index, round_number))
    rows, wanted = numbers.normal(size=(ROWS, INPUTS)), numbers.normal(size=(ROWS, OUTPUTS))
    weights, biases = received[: INPUTS * OUTPUTS].reshape(INPUTS, OUTPUTS), received[INPUTS * OUTPUTS :]
    before = rows @ weights + biases
    error = (np.maximum(before, 0) - wanted) * (before >= 0) / ROWS
    return (-RATE * np.concatenate([(rows.T @ error).ravel(), error.sum(axis=0)])).astype(np.float32)


def attacked(staged: MakesStage, **options: Any) -> Stage:
    adversary = partial(ModelInconsistency, victim=VICTIM, dead=DEAD, **options)
    return staged(5, aggregator=adversary, updates=one_step, first_models=(FIRST, DEAD))  # else T40's checks refuse it


def assert_nothing_left(stage: Stage, *indices: int, kinds: tuple[type, ...] = (ShareBundle, MaskedInput)) -> None:
    assert not any(stage.said(index, kind) for index in indices for kind in kinds)


@pytest.mark.threat("T14")
def test_sources_with_different_models_find_keys_that_were_not_signed_for_theirs(staged: MakesStage) -> None:
    stage = attacked(staged).play()
    assert [stage.alarms(index) for index in ALL] == [["KEY_SIGNATURE"]] * 5
    assert_nothing_left(stage, *ALL)
    assert stage.adversary.attack() is None


@pytest.mark.threat("T14")
def test_victim_that_is_shown_itself_alone_is_too_few_and_the_others_sum_without_it(staged: MakesStage) -> None:
    stage = attacked(staged, shown="alike").play()
    assert stage.alarms(VICTIM) == ["KEY_QUORUM"]
    assert_nothing_left(stage, VICTIM)
    assert all(stage.said(index, Unmask) for index in OTHERS)
    assert not np.any(stage.adversary.attack())


@pytest.mark.threat("T14")
def test_sources_train_no_model_that_is_not_the_one_in_the_header(staged: MakesStage) -> None:
    stage = attacked(staged, announced=False).play()
    for index in OTHERS:
        assert stage.refusals(index) == ["HEADER_MODEL"]
        assert_nothing_left(stage, index, kinds=(Advertise,))
    assert stage.alarms(VICTIM) == ["KEY_QUORUM"]
    assert_nothing_left(stage, VICTIM, kinds=(Refusal, ShareBundle, MaskedInput))
    assert stage.adversary.attack() is None


@pytest.mark.threat("T14")
@pytest.mark.parametrize(
    ("accepted", "check"), [(["KEY_SIGNATURE"], "SHARE_NONCE"), (["KEY_SIGNATURE", "SHARE_NONCE"], "SHARE_BOX")]
)
def test_shares_of_sources_with_another_model_are_refused_though_their_keys_were_accepted(
    staged: MakesStage, accepted: list[str], check: str
) -> None:
    stage = attacked(staged)
    with switched_off(checks_off(*accepted), roster=stage.roster):
        stage.play()
    assert [stage.alarms(index) for index in ALL] == [[check]] * 5
    assert_nothing_left(stage, *ALL, kinds=(MaskedInput,))
    assert stage.adversary.attack() is None


@pytest.mark.threat("T14")
def test_input_of_a_source_with_another_model_is_refused_though_keys_and_boxes_were_accepted(
    staged: MakesStage,
) -> None:
    stage = attacked(staged)
    with switched_off(checks_off("KEY_SIGNATURE", "SHARE_NONCE"), BOXES_IN_CONTEXT, roster=stage.roster):
        stage.play()
    assert [stage.alarms(index) for index in OTHERS] == [["CONSISTENCY_INPUT"]] * 4
    assert_nothing_left(stage, *ALL, kinds=(Unmask,))
    assert stage.adversary.attack() is None


@pytest.mark.threat("T14")
def test_sum_over_different_models_is_uniform_noise_though_keys_and_boxes_were_accepted(staged: MakesStage) -> None:
    stage = attacked(staged)
    accepted = checks_off("KEY_SIGNATURE", "SHARE_NONCE", "CONSISTENCY_INPUT")
    with switched_off(accepted, BOXES_IN_CONTEXT, roster=stage.roster):
        stage.play()
    assert all(stage.said(index, MaskedInput) for index in ALL)
    assert all(stage.said(index, Unmask) for index in OTHERS)
    noise = stage.adversary.attack()
    assert abs(cosine(noise, stage.update(VICTIM))) < NOTHING_LEARNT_COSINE
    # The ring is laid out for ten inputs: half of it is beyond what five can reach, which is the RANGE alarm.
    beyond = np.mean(np.abs(noise) > 5 * CLIP)
    assert abs(beyond - 0.5) < 6 * 0.5 / np.sqrt(N_PARAMS)


@pytest.mark.threat("T14")
@pytest.mark.control
def test_update_of_the_victim_is_the_sum_where_the_model_is_bound_to_nothing(staged: MakesStage) -> None:
    stage = attacked(staged)
    with switched_off(MODEL_IN_CONTEXT, roster=stage.roster):
        opened = stage.play().adversary.attack()
    assert [stage.alarms(index) for index in ALL] == [[]] * 5
    assert cosine(opened, stage.update(VICTIM)) > RECOVERED_COSINE
    assert not any(np.any(stage.update(index, received=DEAD)) for index in OTHERS)
