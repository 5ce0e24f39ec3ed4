"""The target's statistics: both ways to compute them, and what they are checked against."""

from __future__ import annotations

import tracemalloc

import adaptation_definitions as definitions
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from securefda.rules import StepStatistics, TargetStatistics
from securefda.rules.blocks import BLOCK


def streamed(steps) -> StepStatistics:
    running = StepStatistics(steps.shape[1])
    for step in steps:
        running.add(step)
    return running


@given(seed=st.integers(0, 10**6), steps=st.integers(2, 7), size=st.integers(1, 9), offset=st.floats(-100, 100))
def test_statistics_are_their_definitions(seed, steps, size, offset):
    batches = np.random.default_rng(seed).normal(size=(steps, size)) + offset
    mean_square = np.mean([definitions.inner(row, row) for row in batches])

    for statistics in (TargetStatistics.from_batches(batches), streamed(batches).finish()):
        assert statistics.steps == steps
        assert statistics.mean_square == pytest.approx(mean_square, rel=1e-13)
        assert statistics.scatter == pytest.approx(definitions.total_sample_variance(batches), rel=1e-10)
        assert statistics.mean_variance == statistics.scatter / steps


def test_streamed_mean_is_the_mean_across_blocks():
    batches = np.random.default_rng(1).normal(size=(5, 2 * BLOCK + 3)).astype(np.float32)

    running = streamed(batches)

    np.testing.assert_allclose(running.mean, batches.astype(np.float64).mean(axis=0), rtol=1e-12, atol=1e-15)
    assert running.steps == 5
    assert running.finish().scatter == pytest.approx(TargetStatistics.from_batches(batches).scatter, rel=1e-12)


def test_streaming_many_steps_needs_one_float64_vector():
    size = 500_000
    step = np.random.default_rng(2).normal(size=size).astype(np.float32)
    tracemalloc.start()

    running = StepStatistics(size)
    for _ in range(10):
        running.add(step)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert running.finish().steps == 10
    assert peak < 8 * size + 64 * BLOCK


def test_a_step_that_is_refused_leaves_the_statistics_as_they_were():
    batches = np.random.default_rng(3).normal(size=(3, 4))
    running = streamed(batches)
    before = running.finish()

    for bad in ([1.0, np.nan, 0.0, 0.0], [1.0, np.inf, 0.0, 0.0], [1.0, 2.0]):
        with pytest.raises(ValueError, match=r"^step: "):
            running.add(bad)

    assert running.finish() == before
    assert np.array_equal(running.mean, streamed(batches).mean)


@pytest.mark.parametrize("steps", [0, 1])
def test_fewer_than_two_steps_say_how_to_get_more(steps):
    with pytest.raises(ValueError, match=r"^steps: .*at least 2.*smaller batches or more epochs"):
        streamed(np.ones((steps, 3))).finish()
    with pytest.raises(ValueError, match=r"^steps: .*at least 2"):
        TargetStatistics(steps=steps, mean_square=1.0, scatter=0.5)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("steps", 2.0),
        ("steps", -3),
        ("steps", True),
        ("mean_square", -1.0),
        ("mean_square", float("nan")),
        ("mean_square", float("inf")),
        ("mean_square", None),
        ("scatter", -1.0),
        ("scatter", float("nan")),
        ("scatter", float("inf")),
        ("scatter", 1.5),
    ],
)
def test_statistics_that_cannot_be_are_refused_by_name(field, value):
    arguments = {"steps": 5, "mean_square": 1.0, "scatter": 0.5}

    with pytest.raises(ValueError, match=rf"^{field}: "):
        TargetStatistics(**(arguments | {field: value}))


def test_statistics_agree_with_their_own_update_and_with_no_other():
    batches = np.random.default_rng(4).normal(size=(6, 30)).astype(np.float32) + np.float32(0.2)
    update = batches.sum(axis=0)
    statistics = TargetStatistics.from_batches(batches)

    statistics.require_agreement(float(update @ update) / 36)

    for wrong in (1.05, 0.95):
        with pytest.raises(ValueError, match=r"^statistics: "):
            statistics.require_agreement(wrong**2 * float(update @ update) / 36 + 0.01)


def test_statistics_of_a_target_that_did_not_move_agree():
    TargetStatistics.from_batches(np.zeros((3, 4))).require_agreement(0.0)
