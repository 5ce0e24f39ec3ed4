"""Auto-beta against equation 3 and Appendix A.5 as they are printed, and what the mean-field estimator changes."""

from __future__ import annotations

import adaptation_definitions as definitions
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from securefda.rules import auto_beta
from securefda.rules.beta import StepGeometry, projected_squared_distance, squared_distance
from securefda.rules.blocks import BLOCK
from securefda.rules.projection import Products
from securefda.rules.statistics import TargetStatistics

RULES = ["fedda", "fedgp", "fedgp_filtered"]
ESTIMATORS = ["exact", "mean-field"]


def drift_and_noise(seed: int, steps: int, size: int, drift: float, sources: int = 3):
    """Steps around a common drift of length ``drift`` with unit noise in each step, and sources of that length."""
    generator = np.random.default_rng(seed)
    direction = generator.normal(size=size)
    noise = generator.normal(size=(steps, size)) / np.sqrt(size)
    batches = drift * direction / np.linalg.norm(direction) + noise
    return batches, drift * generator.normal(size=(sources, size)) / np.sqrt(size)


def geometry_of(batches, source) -> StepGeometry:
    centre = np.mean(batches, axis=0)
    return StepGeometry.of_round(Products.of(centre, source, [centre.size]), steps=1, size=centre.size)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("steps", [2, 3, 10])
@pytest.mark.parametrize("drift", [0.01, 0.3, 3.0])
def test_beta_is_equation_3(rule, estimator, steps, drift):
    batches, sources = drift_and_noise(steps, steps, 14, drift)

    result = auto_beta(batches, sources, rule, estimator=estimator)

    expected = [definitions.beta(batches, source, rule, estimator) for source in sources]
    np.testing.assert_allclose(result, expected, rtol=1e-12, atol=1e-15)
    assert result.shape == (3,)
    assert result.dtype == np.float64


def test_exact_beta_of_a_vector_longer_than_a_block_is_equation_3():
    batches, sources = drift_and_noise(1, 3, BLOCK + 100, 1.0, sources=1)

    for rule in RULES:
        expected = definitions.beta(batches, sources[0], rule)
        np.testing.assert_allclose(auto_beta(batches, sources, rule), [expected], rtol=1e-12)


@given(seed=st.integers(0, 10**6), steps=st.integers(2, 6), size=st.integers(2, 9), drift=st.floats(0.1, 10))
def test_source_side_expansion_is_the_direct_formula(seed, steps, size, drift):
    batches, sources = drift_and_noise(seed, steps, size, drift, sources=1)
    statistics, geometry = TargetStatistics.from_batches(batches), geometry_of(batches, sources[0])
    scale = statistics.mean_square + geometry.source_squared

    distance = squared_distance(statistics, geometry)
    across = projected_squared_distance(statistics, geometry, batches @ sources[0])

    assert distance == pytest.approx(definitions.distance(batches, sources[0]), rel=0, abs=1e-12 * scale)
    assert across == pytest.approx(definitions.projected_distance(batches, sources[0]), rel=0, abs=1e-12 * scale)


@given(seed=st.integers(0, 10**6), steps=st.integers(2, 8), size=st.integers(2, 20))
def test_mean_field_changes_beta_by_just_what_its_docstring_says(seed, steps, size):
    batches, sources = drift_and_noise(seed, steps, size, 3.0, sources=1)
    direction = sources[0] / np.linalg.norm(sources[0])
    share = np.var(batches @ direction, ddof=1) / definitions.total_sample_variance(batches)

    exact, mean_field = (auto_beta(batches, sources, "fedgp", estimator=name)[0] for name in ESTIMATORS)

    if max(exact, mean_field) < 1:  # no distance was clipped
        assert abs(exact - mean_field) == pytest.approx(exact * mean_field * abs(share - 1 / size), rel=1e-8, abs=1e-12)


@pytest.mark.parametrize(("size", "bound"), [(14, 0.005), (5000, 1e-4), (44_000, 1e-4)])
def test_mean_field_changes_beta_less_than_the_stated_bound_under_even_noise(size, bound):
    """Even noise, target steps whose drift is as long as their noise: 100 draws with fixed seeds, B = 10."""
    worst = 0.0
    for seed in range(100 if size < 1000 else 10):
        batches, sources = drift_and_noise(seed, 10, size, 1.0, sources=3)
        exact, mean_field = (auto_beta(batches, sources, "fedgp", estimator=name) for name in ESTIMATORS)
        worst = max(worst, float(np.abs(exact - mean_field).max()))

    assert 0 < worst < bound


def test_mean_field_differs_by_more_where_all_noise_points_along_the_source():
    """Companion to the bound above: the premise of even noise is needed."""
    generator = np.random.default_rng(4)
    source = np.eye(14)[:1]
    batches = np.eye(14)[1] + generator.normal(size=(10, 1)) * source

    exact, mean_field = (auto_beta(batches, source, "fedgp", estimator=name)[0] for name in ESTIMATORS)

    assert abs(exact - mean_field) > 0.005


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_without_noise_and_distance_beta_is_1(estimator):
    """Neither is left but for rounding, which must not decide between 0 and 1."""
    for seed in range(20):
        step = np.random.default_rng(seed).normal(size=14)
        batches = np.tile(step, (7, 1))
        for rule in ("fedda", "fedgp"):
            assert auto_beta(batches, [step], rule, estimator=estimator).tolist() == [1.0]
            assert auto_beta(batches * 1e3, [step * 1e3], rule, estimator=estimator).tolist() == [1.0]
    assert auto_beta(np.zeros((2, 3)), np.zeros((1, 3)), "fedgp_filtered", estimator=estimator).tolist() == [1.0]


@pytest.mark.parametrize("rule", RULES)
def test_a_source_that_did_not_move_has_a_beta(rule):
    batches, _ = drift_and_noise(6, 10, 14, 1.0)
    still = np.zeros((1, 14))

    for estimator in ESTIMATORS:
        result = auto_beta(batches, still, rule, estimator=estimator)
        np.testing.assert_allclose(result, [definitions.beta(batches, still[0], rule)], rtol=1e-12)
