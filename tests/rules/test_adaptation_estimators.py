"""The three estimators of auto-beta are unbiased, before they are clipped at zero.

Each test draws 4000 rounds with a fixed seed and takes the z-score of the estimates' mean. For an unbiased estimator
|z| > 5 has a probability of 6e-7; each companion uses an estimator that leaves out one correction, and must exceed 5.
"""

from __future__ import annotations

import numpy as np
import pytest

from securefda.rules.beta import StepGeometry, projected_squared_distance, squared_distance
from securefda.rules.projection import Products
from securefda.rules.statistics import TargetStatistics

SEED = 7
ROUNDS = 4000
STEPS = 5
LIMIT = 5.0
DRIFT = np.array([0.4, -0.2, 0.1, 0.3, 0.0, -0.5])
SOURCE = np.array([0.3, 0.1, -0.2, 0.6, 0.2, 0.1])
DIRECTION = SOURCE / np.linalg.norm(SOURCE)
DISTANCE = float(np.sum((DRIFT - SOURCE) ** 2))
ACROSS = float(np.sum((DRIFT - DRIFT @ DIRECTION * DIRECTION) ** 2))

UNEVEN = np.array([2.0, 0.1, 0.5, 1.5, 0.7, 0.2])
EVEN = np.ones(6)


def rounds(deviations):
    """Yield (batches, statistics, geometry) of independent rounds with the given standard deviations of the noise."""
    generator = np.random.default_rng(SEED)
    for noise in generator.normal(size=(ROUNDS, STEPS, DRIFT.size)):
        batches = DRIFT + noise * deviations
        products = Products.of(batches.mean(axis=0), SOURCE, [SOURCE.size])
        geometry = StepGeometry.of_round(products, steps=1, size=SOURCE.size)
        yield batches, TargetStatistics.from_batches(batches), geometry


def z_score(estimates, truth: float) -> float:
    values = np.array(list(estimates))
    return abs(float((values.mean() - truth) / (values.std(ddof=1) / np.sqrt(values.size))))


def test_variance_of_the_mean_step_is_unbiased():
    truth = float(np.sum(UNEVEN**2)) / STEPS

    assert z_score((s.mean_variance for _, s, _ in rounds(UNEVEN)), truth) < LIMIT


def test_variance_without_bessels_correction_is_found_biased():
    truth = float(np.sum(UNEVEN**2)) / STEPS

    assert z_score((s.mean_variance * (STEPS - 1) / STEPS for _, s, _ in rounds(UNEVEN)), truth) > LIMIT


def test_distance_is_unbiased():
    assert z_score((squared_distance(s, g) for _, s, g in rounds(UNEVEN)), DISTANCE) < LIMIT


def test_distance_without_the_scatter_correction_is_found_biased():
    estimates = (g.mean_squared - 2 * g.inner + g.source_squared for _, _, g in rounds(UNEVEN))

    assert z_score(estimates, DISTANCE) > LIMIT


def test_projected_distance_is_unbiased_under_uneven_noise():
    estimates = (projected_squared_distance(s, g, batches @ SOURCE) for batches, s, g in rounds(UNEVEN))

    assert z_score(estimates, ACROSS) < LIMIT


def test_projected_distance_without_the_scatter_correction_is_found_biased():
    estimates = (g.mean_squared - g.inner**2 / g.source_squared for _, _, g in rounds(UNEVEN))

    assert z_score(estimates, ACROSS) > LIMIT


def test_mean_field_projected_distance_is_unbiased_under_even_noise():
    assert z_score((projected_squared_distance(s, g) for _, s, g in rounds(EVEN)), ACROSS) < LIMIT


def test_mean_field_projected_distance_is_found_biased_under_uneven_noise():
    assert z_score((projected_squared_distance(s, g) for _, s, g in rounds(UNEVEN)), ACROSS) > LIMIT


@pytest.mark.parametrize("estimate", [squared_distance, projected_squared_distance])
def test_estimates_are_not_clipped(estimate):
    """Near a distance of zero an unbiased estimator has to be negative at times."""
    generator = np.random.default_rng(SEED)
    values = []
    for _ in range(50):
        batches = SOURCE + generator.normal(size=(STEPS, SOURCE.size))
        products = Products.of(batches.mean(axis=0), SOURCE, [SOURCE.size])
        geometry = StepGeometry.of_round(products, steps=1, size=SOURCE.size)
        values.append(estimate(TargetStatistics.from_batches(batches), geometry))

    assert min(values) < 0 < max(values)
