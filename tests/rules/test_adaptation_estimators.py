"""The three estimators of auto-beta are unbiased, before they are clipped at zero.

Each case draws 4000 rounds with a fixed seed and takes the z-score of the estimates' mean. For an unbiased estimator
|z| > 5 has a probability of 6e-7; estimators that leave out one correction must exceed 5.
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
VARIANCE = float(np.sum(UNEVEN**2)) / STEPS


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


ESTIMATES = {
    "variance of the mean step": (UNEVEN, lambda batches, s, g: s.mean_variance, VARIANCE),
    "distance": (UNEVEN, lambda batches, s, g: squared_distance(s, g), DISTANCE),
    "projected distance": (UNEVEN, lambda batches, s, g: projected_squared_distance(s, g, batches @ SOURCE), ACROSS),
    "mean-field under even noise": (EVEN, lambda batches, s, g: projected_squared_distance(s, g), ACROSS),
}
WITHOUT_A_CORRECTION = {
    "variance without Bessel's": (UNEVEN, lambda batches, s, g: s.mean_variance * (STEPS - 1) / STEPS, VARIANCE),
    "distance without the scatter's": (
        UNEVEN,
        lambda batches, s, g: g.mean_squared - 2 * g.inner + g.source_squared,
        DISTANCE,
    ),
    "projected without the scatter's": (
        UNEVEN,
        lambda batches, s, g: g.mean_squared - g.inner**2 / g.source_squared,
        ACROSS,
    ),
    "mean-field under uneven noise": (UNEVEN, lambda batches, s, g: projected_squared_distance(s, g), ACROSS),
}


@pytest.mark.parametrize(("deviations", "estimate", "truth"), ESTIMATES.values(), ids=ESTIMATES)
def test_estimates_are_unbiased(deviations, estimate, truth):
    assert z_score((estimate(*drawn) for drawn in rounds(deviations)), truth) < LIMIT


@pytest.mark.parametrize(("deviations", "estimate", "truth"), WITHOUT_A_CORRECTION.values(), ids=WITHOUT_A_CORRECTION)
def test_estimates_that_leave_out_a_correction_are_found_biased(deviations, estimate, truth):
    assert z_score((estimate(*drawn) for drawn in rounds(deviations)), truth) > LIMIT


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
