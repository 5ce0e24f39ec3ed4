"""T43: what a target learns of one source by the features that it makes up is bounded as any part of a sum is."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from securefda.protocol.messages import Advertise, MaskedInput, Update
from securefda.rules import Strategy
from securefda.site.policy import SourcePolicy
from securefda.training import Vector
from threat_model.adversaries.attention_lever import OtherBytes
from threat_model.adversaries.chosen_features import ChoosesFeatures, OtherFeatures
from threat_model.scores import RECOVERED_COSINE, cosine, cosine_of_one_in, cosine_under_norm_caps
from threat_model.sites import ROWS, WIDTH, KnownUpdates, known_features, known_update
from threat_model.stage import MakesStage, Stage
from threat_model.switches import NORM_CAP, checks_off, switched_off

VICTIM, N = 1, 5
LEFT = 4
"""Four of five sources must survive."""

ALL = range(1, N + 1)
STRATEGY = Strategy(rule="f_dan", rounds=1)
OWN_ROWS = 50


def rows_of(index: int) -> Vector:
    """Features of a source's rows, (50, d): a cloud at a place of its own, ten times as far away as it is wide."""
    numbers = np.random.default_rng((20_262, index))
    centre = np.zeros(WIDTH)
    centre[index] = 10.0
    return (centre + numbers.standard_normal((OWN_ROWS, WIDTH))).astype(np.float32)


def by_kernel(index: int, round_number: int, features: Vector) -> Vector:
    """Return a source's answer under f_dan: away from each feature is the way to its own rows that are near."""
    away = features[:, None, :] - rows_of(index)[None, :, :]
    near = np.exp(-np.sum(away**2, axis=2, keepdims=True) / (2 * WIDTH))
    return np.mean(near * away, axis=1).astype(np.float32)


NEAR_VICTIM = (rows_of(VICTIM)[:ROWS] + np.float32(0.5) * known_features(1)).astype(np.float32)
FAR_FROM_ALL = known_features(1)


def asked(staged: MakesStage, features: Vector, *, kappa: float = 0.0, **options: Any) -> Stage:
    """A stage whose target sends these features, to sources whose own features lie apart."""
    return staged(
        N,
        aggregator=partial(ChoosesFeatures, victim=VICTIM, features=features),
        trainers={index: KnownUpdates(index, known_update, by_kernel) for index in ALL},
        settings={"strategy": STRATEGY, "kappa": kappa},
        **options,
    )


def exposure(stage: Stage, features: Vector) -> float:
    """Cosine of what was opened behind the update and the victim's own pull."""
    return cosine(stage.adversary.pull().ravel(), by_kernel(VICTIM, 1, features).ravel())


@pytest.mark.threat("T43")
def test_what_is_opened_is_the_sum_of_the_pulls_and_no_features(staged: MakesStage) -> None:
    stage = asked(staged, FAR_FROM_ALL).play()
    assert len(stage.adversary.summed) == LEFT
    whole = sum(stage.weight(index) * by_kernel(index, 1, FAR_FROM_ALL) for index in stage.adversary.summed)
    assert np.max(np.abs(stage.adversary.pull() - whole)) < 1e-6
    assert exposure(stage, FAR_FROM_ALL) < cosine_of_one_in(LEFT) + 0.4  # all lie away from zero, more or less alike
    for index in ALL:
        assert not any(by_kernel(index, 1, FAR_FROM_ALL).tobytes() in vector for vector in sent(stage, index))


def sent(stage: Stage, index: int) -> list[bytes]:
    """The vectors that a source sent."""
    return [bytes(vector) for one in stage.said(index, MaskedInput) for vector in one.vectors]


@pytest.mark.threat("T43")
@pytest.mark.parametrize("kappa", [1.0, 2.0])
def test_features_near_one_sources_rows_show_no_pull_of_it_alone(staged: MakesStage, kappa: float) -> None:
    stage = asked(staged, NEAR_VICTIM, kappa=kappa).play()
    assert exposure(stage, NEAR_VICTIM) < cosine_under_norm_caps(kappa) < RECOVERED_COSINE


@pytest.mark.threat("T43")
@pytest.mark.control
def test_features_near_one_sources_rows_show_its_pull_where_parts_are_not_capped(staged: MakesStage) -> None:
    stage = asked(staged, NEAR_VICTIM, kappa=1.0)
    with switched_off(NORM_CAP, roster=stage.roster):
        stage.play()
    assert exposure(stage, NEAR_VICTIM) > RECOVERED_COSINE


@pytest.mark.threat("T43")
@pytest.mark.control
def test_features_near_one_sources_rows_show_its_pull_where_no_policy_asks_for_a_norm_cap(staged: MakesStage) -> None:
    """No switch: the policy's own ``norm-cap.kappa``."""
    assert exposure(asked(staged, NEAR_VICTIM).play(), NEAR_VICTIM) > RECOVERED_COSINE


# The policy, and one question a round.


def assert_refused(stage: Stage, index: int, name: str) -> None:
    assert stage.refusals(index) == [name]
    assert not any(stage.said(index, kind) for kind in (Advertise, MaskedInput, Update))


@pytest.mark.threat("T43")
def test_a_policy_without_the_rule_refuses_it_before_anything_leaves(staged: MakesStage) -> None:
    def without(policy: SourcePolicy) -> SourcePolicy:
        return policy.model_copy(update={"allowed_rules": ("source_only", "fada_attention")})

    permits = without(asked(staged, FAR_FROM_ALL).default_policy())
    stage = asked(staged, FAR_FROM_ALL, policies=dict.fromkeys(ALL, permits)).play()
    for index in ALL:
        assert_refused(stage, index, "allowed-rules")
    assert stage.adversary.attack() is None


def two_questions(staged: MakesStage, *numbers: int) -> Stage:
    questions = tuple(known_features(number) for number in numbers)
    return staged(N, aggregator=partial(OtherFeatures, questions=questions), settings={"strategy": STRATEGY})


@pytest.mark.threat("T43")
def test_a_second_attempt_with_other_features_is_refused(staged: MakesStage) -> None:
    stage = two_questions(staged, 1, 2).play()
    for index in ALL:
        assert len(stage.said(index, Advertise)) == 1
        assert stage.refusals(index) == ["HEADER_ORDER"]
        assert not stage.said(index, MaskedInput)


@pytest.mark.threat("T43")
def test_a_second_attempt_with_the_same_features_is_not(staged: MakesStage) -> None:
    stage = two_questions(staged, 1, 1).play()
    for index in ALL:
        assert len(stage.said(index, Advertise)) == 2
        assert stage.refusals(index) == []


@pytest.mark.threat("T43")
@pytest.mark.control
def test_other_features_are_taken_where_attempts_may_ask_for_anything(staged: MakesStage) -> None:
    stage = two_questions(staged, 1, 2)
    with switched_off(checks_off("HEADER_ORDER"), roster=stage.roster):
        stage.play()
    assert len(stage.said(VICTIM, Advertise)) == 2


Vectors = tuple[bytes, ...]
VECTOR_LIES: dict[str, Callable[[Vectors], Vectors]] = {
    "other features": lambda vectors: (vectors[0], bytes(len(vectors[1]))),
    "features cut short": lambda vectors: (vectors[0], vectors[1][:-4]),
    "no features": lambda vectors: vectors[:1],
}


def to_one(staged: MakesStage, claim: str) -> Stage:
    return staged(
        N,
        aggregator=partial(OtherBytes, victim=VICTIM, forge=VECTOR_LIES[claim]),
        trainers={index: KnownUpdates(index, known_update, by_kernel) for index in ALL},
        settings={"strategy": STRATEGY},
    )


@pytest.mark.threat("T43")
@pytest.mark.parametrize("claim", VECTOR_LIES)
def test_features_that_are_not_those_of_the_header_are_refused(staged: MakesStage, claim: str) -> None:
    assert_refused(to_one(staged, claim).play(), VICTIM, "HEADER_FEATURES")


@pytest.mark.threat("T43")
@pytest.mark.control
def test_one_source_answers_other_features_where_digests_are_not_compared(staged: MakesStage) -> None:
    stage = to_one(staged, "other features")
    with switched_off(checks_off("HEADER_FEATURES"), roster=stage.roster):
        stage.play()
    nothing = np.zeros((ROWS, WIDTH), np.float32)
    told = {index: by_kernel(index, 1, nothing if index == VICTIM else known_features(1)) for index in ALL}
    whole = sum(stage.weight(index) * pull for index, pull in told.items())
    header = stage.adversary.heard.header
    assert np.max(np.abs(stage.adversary.aggregate().vector[header.n_params :].reshape(ROWS, WIDTH) - whole)) < 1e-6


@pytest.mark.threat("T43")
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_features_that_are_not_finite_are_refused_by_every_source(staged: MakesStage, value: float) -> None:
    features = FAR_FROM_ALL.copy()
    features[3, 2] = value
    stage = asked(staged, features).play()
    for index in ALL:
        assert_refused(stage, index, "HEADER_FEATURES")
