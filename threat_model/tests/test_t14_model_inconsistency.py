"""T14: a victim whose model is another one than everybody's is in no sum that opens."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from securefda.protocol.messages import Advertise, MaskedInput, Refusal, ShareBundle, Unmask
from threat_model.adversaries.model_inconsistency import ModelInconsistency
from threat_model.scores import NOTHING_LEARNT_COSINE, RECOVERED_COSINE, cosine
from threat_model.sites import CLIP, LAYERS, N_PARAMS
from threat_model.stage import MakesStage, Stage
from threat_model.switches import checks_off, switched_off
from threat_model.unbound import MODEL_IN_CONTEXT, OF_ONE_HEADER, of_one_header_off

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


def assert_victim_is_the_sum(stage: Stage) -> None:
    assert [stage.alarms(index) for index in ALL] == [[]] * 5
    assert cosine(stage.adversary.attack(), stage.update(VICTIM)) > RECOVERED_COSINE
    assert not any(np.any(stage.update(index, received=DEAD)) for index in OTHERS)


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
@pytest.mark.control
def test_update_of_the_victim_is_the_sum_where_sources_train_any_model_that_comes(staged: MakesStage) -> None:
    """All have one header, so that nothing else differs."""
    stage = attacked(staged, announced=False)
    with switched_off(checks_off("HEADER_MODEL"), roster=stage.roster):
        stage.play()
    assert_victim_is_the_sum(stage)


@pytest.mark.threat("T14")
@pytest.mark.parametrize("check", OF_ONE_HEADER)
def test_every_check_of_what_others_made_for_another_header_is_enough_by_itself(staged: MakesStage, check: str) -> None:
    """They are one mitigation in four places. At the last of them the victim finds itself alone with its view."""
    stage = attacked(staged)
    with switched_off(of_one_header_off(but=check), roster=stage.roster):
        stage.play()
    is_last = check == "CONSISTENCY_INPUT"
    assert [stage.alarms(index) for index in OTHERS] == [[check]] * 4
    assert stage.alarms(VICTIM) == ["CONSISTENCY_QUORUM" if is_last else check]
    assert_nothing_left(stage, *ALL, kinds=(Unmask,) if is_last else (MaskedInput,))
    assert stage.adversary.attack() is None


@pytest.mark.threat("T14")
def test_sum_over_different_models_is_uniform_noise_though_all_that_others_made_was_accepted(
    staged: MakesStage,
) -> None:
    stage = attacked(staged)
    with switched_off(of_one_header_off(), roster=stage.roster):
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
        stage.play()
        assert_victim_is_the_sum(stage)
