"""T41: whatever gradient a target makes up, no source weighs more than the bound of attention lets it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from hashlib import sha256
from typing import Any

import numpy as np
import pytest

from securefda.protocol.encoding import vector_to_wire
from securefda.protocol.messages import Advertise, AttentionTerms, Header, MaskedInput, TargetTerms, Update, Visibility
from securefda.rules import Strategy, attention_share, first_order_gain, least_share
from securefda.site.policy import SourcePolicy, default_policy
from securefda.training import Vector
from threat_model.adversaries.above_policy import AbovePolicy, Change
from threat_model.adversaries.attention_lever import STEEP, OtherBytes, OtherGradients, WeightsOneUp, lever_for
from threat_model.scores import RECOVERED_COSINE, cosine, cosine_under_norm_caps
from threat_model.sites import CLIP, MAX_SAMPLES, N_PARAMS, TARGET, known_gap, known_update
from threat_model.stage import MakesStage, Stage
from threat_model.switches import NORM_CAP, POLICY, checks_off, switched_off

VICTIM, N = 1, 5
LEFT = 3
"""Four of five sources must survive: the victim and three others."""

ALL = range(1, N + 1)
LARGEST_BOUND = 5.0
"""The largest attention bound of the rule; the default, of policy and rule, is 1."""

START = np.zeros(N_PARAMS, np.float32)
UpdatesOf = Callable[[int, int, Vector], Vector]


def twice_as_long(index: int, round_number: int, received: Vector) -> Vector:
    """The victim's update has twice the length of each other one."""
    own = known_update(index, round_number, received)
    return own if index == VICTIM else np.float32(0.5) * own


def with_bound(bound: float) -> Strategy:
    return Strategy(rule="fada_attention", attention_bound=bound, rounds=1)


def levered(
    staged: MakesStage,
    bound: float,
    *,
    kappa: float = 0.0,
    updates: UpdatesOf = known_update,
    gradient: Vector | None = None,
    **options: Any,
) -> Stage:
    """A stage whose target publishes the lever for the victim, or another ``gradient``."""
    lever = lever_for(VICTIM, {index: updates(index, 1, START) for index in ALL}) if gradient is None else gradient
    return staged(
        N,
        aggregator=partial(WeightsOneUp, victim=VICTIM, gradient=lever),
        updates=updates,
        settings={"strategy": with_bound(bound), "kappa": kappa},
        **options,
    )


def opened(stage: Stage) -> Any:
    """The sum that the attacker opened, (m,)."""
    return stage.adversary.attack().vector


def shares(stage: Stage) -> dict[int, float]:
    """By how much the update of each source in the sum was multiplied, beside its rows."""
    members = sorted(stage.adversary.summed)
    parts = np.stack([stage.weight(index) * stage.update(index).astype(np.float64) for index in members])
    found = np.linalg.lstsq(parts.T, opened(stage), rcond=None)[0]
    return dict(zip(members, found.tolist(), strict=True))


def of_others(stage: Stage) -> float:
    """Length of what the others put into the sum, in lengths of the victim's own contribution."""
    own = shares(stage)[VICTIM] * stage.weight(VICTIM) * stage.update(VICTIM).astype(np.float64)
    return float(np.linalg.norm(opened(stage) - own) / np.linalg.norm(own))


def exposure(stage: Stage) -> float:
    """Cosine of what was opened and the victim's update."""
    return cosine(opened(stage), stage.update(VICTIM))


def policy(bound: float = 1.0, **changes: Any) -> SourcePolicy:
    """The policy of the stage's sources, with this bound of attention."""
    permits = default_policy("sum", 2, 0, 2, clip=CLIP, max_samples=MAX_SAMPLES, kappa=0.0)
    limits = permits.limits.model_copy(update={"attention_bound_max": bound})
    return permits.model_copy(update={"limits": limits, **changes})


# How far one source can be weighted up, and that the policy bounds it.


@pytest.mark.threat("T41")
@pytest.mark.parametrize("bound", [0.1, 0.5, 1.0])
def test_no_source_weighs_more_than_the_bound_lets_it(staged: MakesStage, bound: float) -> None:
    stage = levered(staged, bound).play()
    found = shares(stage)
    assert len(found) == LEFT + 1
    assert found.pop(VICTIM) == pytest.approx(1, abs=1e-6)
    assert list(found.values()) == pytest.approx([least_share(bound)] * LEFT, abs=1e-6)
    assert of_others(stage) > least_share(bound) * math.sqrt(LEFT)  # the others have more rows
    assert exposure(stage) < RECOVERED_COSINE


@pytest.mark.threat("T41")
def test_header_with_a_bound_above_the_policy_is_refused_before_anything_leaves(staged: MakesStage) -> None:
    stage = levered(staged, LARGEST_BOUND, policies=dict.fromkeys(ALL, policy(1.0))).play()
    for index in ALL:
        assert stage.refusals(index) == stage.alarms(index) == ["limits.attention-bound-max"]
        assert not any(stage.said(index, kind) for kind in (Advertise, MaskedInput, Update))
    assert stage.adversary.attack() is None


@pytest.mark.threat("T41")
@pytest.mark.control
def test_sum_is_the_victims_alone_where_the_bound_is_not_compared_with_the_policy(staged: MakesStage) -> None:
    stage = levered(staged, LARGEST_BOUND, policies=dict.fromkeys(ALL, policy(1.0)))
    with switched_off(POLICY, roster=stage.roster):
        stage.play()
    assert exposure(stage) > 1 - 1e-6
    assert of_others(stage) < 1e-3


@pytest.mark.threat("T41")
@pytest.mark.control
def test_sum_is_the_victims_alone_where_the_policy_permits_the_largest_bound(staged: MakesStage) -> None:
    """No switch: the policy's own ``limits.attention-bound-max``."""
    stage = levered(staged, LARGEST_BOUND, policies=dict.fromkeys(ALL, policy(LARGEST_BOUND))).play()
    assert shares(stage)[VICTIM] == pytest.approx(1, abs=1e-6)
    assert exposure(stage) > 1 - 1e-6
    assert of_others(stage) < 1e-3


# The norm cap holds for the updates times their shares.


@pytest.mark.threat("T41")
@pytest.mark.parametrize("updates", [known_update, twice_as_long])
@pytest.mark.parametrize("bound", [1.0, LARGEST_BOUND])
@pytest.mark.parametrize("kappa", [1.0, 2.0])
def test_norm_cap_holds_on_top_of_whatever_bound(
    staged: MakesStage, kappa: float, bound: float, updates: UpdatesOf
) -> None:
    stage = levered(staged, bound, kappa=kappa, updates=updates).play()
    assert stage.accepted(VICTIM) == 1
    assert exposure(stage) <= cosine_under_norm_caps(kappa)


@pytest.mark.threat("T41")
@pytest.mark.control
def test_victim_whose_update_is_longer_is_alone_at_the_default_bound_where_nobody_scales(staged: MakesStage) -> None:
    stage = levered(staged, 1.0, kappa=1.0, updates=twice_as_long)
    with switched_off(NORM_CAP, roster=stage.roster):
        stage.play()
    assert exposure(stage) > RECOVERED_COSINE


# What remains: the sum of the shares is a number of its own.


def rows_that_gain(stage: Stage, gradient: Vector) -> float:
    """Rows of the sources in the sum whose update points against the gradient, in units of ``max_samples``."""
    gains = {index: first_order_gain(gradient, stage.update(index)) for index in stage.adversary.summed}
    return sum(stage.weight(index) for index, gain in gains.items() if gain > 0)


@pytest.mark.threat("T41")
@pytest.mark.parametrize("seed", range(4))
def test_sum_of_shares_tells_the_rows_of_those_who_point_one_way(staged: MakesStage, seed: int) -> None:
    """A residual: with steep gains that sum is a count, of those who point one way."""
    gradient = np.float32(STEEP) * np.random.default_rng(seed).standard_normal(N_PARAMS, np.float32)
    stage = levered(staged, 1.0, kappa=1.0, gradient=gradient).play()
    assert stage.adversary.rows_on_its_side() == pytest.approx(rows_that_gain(stage, gradient), abs=1e-6)


@pytest.mark.threat("T41")
def test_sum_of_shares_tells_the_rows_of_a_source_that_points_another_way_than_all_others(staged: MakesStage) -> None:
    """A residual: no norm cap and no bound of attention hides a number of rows."""
    stage = levered(staged, 0.1, kappa=1.0).play()
    assert stage.adversary.rows_on_its_side() == pytest.approx(stage.weight(VICTIM), abs=1e-6)


# Lies in the header, and beside it.


def assert_refused(stage: Stage, index: int, name: str) -> None:
    """By this name; nothing that depends on the source's rows has left, and nothing has changed."""
    assert stage.refusals(index) == stage.alarms(index) == [name]
    assert not any(stage.said(index, kind) for kind in (Advertise, MaskedInput, Update))
    assert stage.accepted(index) == 0
    header = stage.adversary.heard.views[index].header
    assert not stage.store(index).history(bytes(32), header.body.run_id, header.body.round).released


DIGEST = sha256(vector_to_wire(START)).digest()


def ruled(**changes: Any) -> Change:
    return lambda header, _: replace(header, rule=replace(header.rule, **changes))


def no_digest(header: Header, _: int) -> Header:
    return replace(header, gap_gradient_digest=b"")


def with_digest(header: Header, _: int) -> Header:
    return replace(header, gap_gradient_digest=DIGEST)


TERMS = AttentionTerms("first-order", 0.01, 1.0)
FADA, PLAIN = with_bound(1.0), Strategy(rule="source_only", rounds=1)
HEADER_LIES: dict[str, tuple[str, Strategy, Visibility, Change]] = {
    "no terms of attention": ("HEADER_TARGET", FADA, Visibility.SUM, ruled(attention=None)),
    "no terms of attention and no gradient": (
        "HEADER_RULE",
        FADA,
        Visibility.SUM,
        lambda header, index: no_digest(ruled(attention=None)(header, index), index),
    ),
    "terms of attention under another rule": (
        "HEADER_RULE",
        PLAIN,
        Visibility.INDIVIDUAL,
        ruled(attention=TERMS),
    ),
    "terms of attention and a gradient under another rule": (
        "HEADER_RULE",
        PLAIN,
        Visibility.SUM,
        lambda header, index: with_digest(ruled(attention=TERMS)(header, index), index),
    ),
    "gains of a kind that there is not": (
        "HEADER_RULE",
        FADA,
        Visibility.INDIVIDUAL,
        ruled(attention=replace(TERMS, gain="guessed")),
    ),
    "no gradient at sum": ("HEADER_TARGET", FADA, Visibility.SUM, no_digest),
    "a gradient at individual": ("HEADER_TARGET", FADA, Visibility.INDIVIDUAL, with_digest),
    "a gradient under another rule": ("HEADER_TARGET", PLAIN, Visibility.SUM, with_digest),
    "estimates of errors": (
        "HEADER_RULE",
        FADA,
        Visibility.SUM,
        lambda header, index: replace(ruled(select=True)(header, index), target=TargetTerms(4, 0.1, DIGEST, 1.0, 0.5)),
    ),
    "a gradient beside exact gains": (
        "HEADER_TARGET",
        FADA,
        Visibility.SUM,
        ruled(attention=replace(TERMS, gain="exact")),
    ),
}


@pytest.mark.threat("T41")
@pytest.mark.parametrize("claim", HEADER_LIES)
def test_header_that_contradicts_itself_is_refused(staged: MakesStage, claim: str) -> None:
    name, strategy, level, change = HEADER_LIES[claim]
    adversary = partial(AbovePolicy, victim=VICTIM, change=change)
    stage = staged(N, aggregator=adversary, settings={"strategy": strategy}, visibility=level).play()
    assert_refused(stage, VICTIM, name)


def attention_stage(staged: MakesStage, aggregator: Any) -> Stage:
    return staged(N, aggregator=aggregator, settings={"strategy": with_bound(1.0)})


Vectors = tuple[bytes, ...]
VECTOR_LIES: dict[str, Callable[[Vectors], Vectors]] = {
    "another gradient": lambda vectors: (vectors[0], bytes(len(vectors[1]))),
    "a gradient cut short": lambda vectors: (vectors[0], vectors[1][:-4]),
    "no gradient": lambda vectors: vectors[:1],
}


@pytest.mark.threat("T41")
@pytest.mark.parametrize("claim", VECTOR_LIES)
def test_gradient_that_is_not_the_one_of_the_header_is_refused(staged: MakesStage, claim: str) -> None:
    adversary = partial(OtherBytes, victim=VICTIM, forge=VECTOR_LIES[claim])
    assert_refused(attention_stage(staged, adversary).play(), VICTIM, "HEADER_TARGET")


@pytest.mark.threat("T41")
@pytest.mark.control
def test_one_source_weighs_by_another_gradient_where_digests_are_not_compared(staged: MakesStage) -> None:
    adversary = partial(OtherBytes, victim=VICTIM, forge=VECTOR_LIES["another gradient"])
    stage = attention_stage(staged, adversary)
    with switched_off(checks_off("HEADER_TARGET"), roster=stage.roster):
        stage.play()
    gradient = known_gap(START, 1, "").gradient
    gains = {index: first_order_gain(gradient, stage.update(index)) for index in ALL} | {VICTIM: 0.0}
    share = partial(attention_share, temperature=with_bound(1.0).attention_temperature, bound=1.0)
    by_share = [stage.weight(index) * share(gain) for index, gain in gains.items()]
    assert stage.adversary.aggregate().kept == pytest.approx(sum(by_share), abs=1e-6)


@pytest.mark.threat("T41")
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_gradient_that_is_not_finite_is_refused_by_every_source(staged: MakesStage, value: float) -> None:
    gradient = START.copy()
    gradient[7] = value
    stage = attention_stage(staged, partial(WeightsOneUp, victim=VICTIM, gradient=gradient)).play()
    for index in ALL:
        assert_refused(stage, index, "HEADER_TARGET")


def two_gradients(staged: MakesStage) -> Stage:
    first, second = (known_update(TARGET, number, START) for number in (1, 2))
    return attention_stage(staged, partial(OtherGradients, gradients=(first, second)))


@pytest.mark.threat("T41")
def test_second_attempt_with_another_gradient_is_refused(staged: MakesStage) -> None:
    stage = two_gradients(staged).play()
    for index in ALL:
        assert len(stage.said(index, Advertise)) == 1
        assert stage.refusals(index) == ["HEADER_ORDER"]
        assert not stage.said(index, MaskedInput)


@pytest.mark.threat("T41")
def test_second_attempt_with_the_same_gradient_is_not(staged: MakesStage) -> None:
    gradient = known_update(TARGET, 1, START)
    stage = attention_stage(staged, partial(OtherGradients, gradients=(gradient, gradient))).play()
    for index in ALL:
        assert len(stage.said(index, Advertise)) == 2
        assert stage.refusals(index) == []


@pytest.mark.threat("T41")
@pytest.mark.control
def test_second_gradient_is_taken_where_attempts_may_ask_for_anything(staged: MakesStage) -> None:
    stage = two_gradients(staged)
    with switched_off(checks_off("HEADER_ORDER"), roster=stage.roster):
        stage.play()
    assert len(stage.said(VICTIM, Advertise)) == 2
