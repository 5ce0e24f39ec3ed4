"""T21: what sources are sent tells the target's rows. Nothing prevents it yet; here is how far it goes.

The target makes one step on one row, the worst case. Mitigated is only who is sent the target's update at all.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from securefda.adaptation import Strategy
from securefda.policy import default_policy
from securefda.secagg.messages import Header, Visibility
from securefda.training import Vector
from threat_model.adversaries.target_rows import InvertsTarget
from threat_model.scores import RECOVERED_COSINE, cosine
from threat_model.sites import CLIP, LAYERS, MAX_SAMPLES, TARGET, known_update
from threat_model.stage import MakesStage, Stage
from threat_model.watched import WatchedAggregator

(INPUTS, OUTPUTS), _ = (shape for _, shape in LAYERS)
LABEL, RATE = 17, 0.5
ROW = np.random.default_rng(21).uniform(-1, 1, INPUTS)
CURIOUS = 2


def one_step_on_one_row(index: int, round_number: int, received: Vector) -> Vector:
    """The target: a step of softmax regression on its row. The sources: updates that have nothing to do with it."""
    if index != TARGET:
        return np.float32(0.02) * known_update(index, round_number, received)
    weights, bias = received[: INPUTS * OUTPUTS].reshape(INPUTS, OUTPUTS), received[INPUTS * OUTPUTS :]
    scores = np.exp(ROW @ weights + bias)
    wrong = scores / scores.sum() - np.eye(OUTPUTS)[LABEL]
    step: Vector = (-RATE * np.concatenate([np.outer(ROW, wrong).ravel(), wrong])).astype(np.float32)
    return step


def with_curious_source(staged: MakesStage, **options: Any) -> Stage:
    curious = partial(InvertsTarget, inputs=INPUTS, outputs=OUTPUTS)
    settings = {"strategy": Strategy(rule="fedgp_auto", rounds=2), "kappa": 1.0}
    return staged(
        aggregator=WatchedAggregator,
        sources=dict.fromkeys(options.pop("curious", [CURIOUS]), curious),
        updates=one_step_on_one_row,
        settings=settings,
        **options,
    ).play()


@pytest.mark.threat("T21")
@pytest.mark.control
def test_row_is_rebuilt_exactly_from_the_update_of_a_target_without_noise(staged: MakesStage) -> None:
    stage = with_curious_source(staged)
    row = stage.sources[CURIOUS].from_update()
    np.testing.assert_allclose(row.features, ROW, atol=1e-5)
    assert row.label == LABEL


@pytest.mark.threat("T21")
@pytest.mark.control
@pytest.mark.parametrize("visibility", Visibility)
def test_row_is_rebuilt_from_two_models_at_every_level(staged: MakesStage, visibility: Visibility) -> None:
    stage = with_curious_source(staged, visibility=visibility)
    row = stage.sources[CURIOUS].from_models()
    assert cosine(row.features, ROW) > RECOVERED_COSINE
    assert row.label == LABEL
    for line in stage.aggregator.operator.lines:
        assert line["target_cosine"] > RECOVERED_COSINE  # the log says how near the update of the model comes


@pytest.mark.threat("T21")
def test_target_update_goes_to_sources_at_sum_and_to_no_other(staged: MakesStage) -> None:
    levels = [Visibility.INDIVIDUAL, *[Visibility.COHORT] * 3, *[Visibility.SUM] * 3]
    policies = {
        index: default_policy(level.label, 2, 0, 2, clip=CLIP, max_samples=MAX_SAMPLES)  # type: ignore[arg-type]
        for index, level in enumerate(levels, 1)
    }
    stage = with_curious_source(staged, n=7, curious=range(1, 8), policies=policies, visibility=Visibility.INDIVIDUAL)
    assert [len(stage.sources[index].target_updates) for index in policies] == [0] * 4 + [2] * 3
    assert [len(stage.said(TARGET, Header, to=index)[0].vectors) for index in policies] == [1] * 4 + [2] * 3
    (first, _) = stage.aggregator.operator.lines
    assert first["target_update_to"] == ["source-5", "source-6", "source-7"]
