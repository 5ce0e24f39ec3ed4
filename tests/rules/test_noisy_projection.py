"""Projection on an update with known noise: without bias where it is corrected, and never longer than the target's."""

from __future__ import annotations

import numpy as np
import pytest

from securefda.rules import RoundPlan, Rule, TargetStatistics, contribute
from securefda.rules.projection import Products, Projection, layer_multiples, without_noise

LAYERS = (400, 100)
SIZE = sum(LAYERS)
VARIANCE = 0.04


def vectors(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.random.Generator]:
    """A target's update and a source's without noise, which agree in part; the noise is twice as long."""
    rng = np.random.default_rng(seed)
    source = rng.normal(scale=0.1, size=SIZE)
    return 0.15 * source + rng.normal(scale=0.05, size=SIZE), source, rng


def multiples(target: np.ndarray, source: np.ndarray, variance: float = 0.0) -> np.ndarray:
    products = without_noise(Products.of(target, source, LAYERS), LAYERS, variance)
    return layer_multiples(products, Projection.ORTHOGONAL, negative=False)


def test_in_the_mean_over_noise_the_multiple_is_that_of_the_update_without_it() -> None:
    target, source, rng = vectors()
    exact = multiples(target, source)
    noisy = [source + rng.normal(scale=VARIANCE**0.5, size=SIZE) for _ in range(400)]

    plain = np.mean([multiples(target, one) for one in noisy], axis=0)
    corrected = np.mean([multiples(target, one, VARIANCE) for one in noisy], axis=0)

    signal = Products.of(source, source, LAYERS).source_squared
    short = signal / (signal + np.array(LAYERS) * VARIANCE)  # what the noise leaves of it
    np.testing.assert_allclose(plain, exact * short, rtol=0.1)
    np.testing.assert_allclose(corrected, exact, rtol=0.2)
    assert np.all(short < 0.25)


@pytest.mark.parametrize("variance", [1e-3, 0.04, 1.0, 1e6])
def test_a_projection_is_in_no_layer_longer_than_the_target(variance: float) -> None:
    for seed in range(50):
        target, source, rng = vectors(seed)
        noisy = source + rng.normal(scale=min(variance, 1.0) ** 0.5, size=SIZE)
        products = Products.of(target, noisy, LAYERS)
        lengths = multiples(target, noisy, variance) * np.sqrt(products.source_squared)
        assert np.all(lengths <= np.sqrt(products.target_squared) * (1 + 1e-12))
        assert np.all(lengths >= multiples(target, noisy) * np.sqrt(products.source_squared))


def test_without_noise_nothing_changes() -> None:
    target, source, _ = vectors()
    products = Products.of(target, source, LAYERS)
    assert without_noise(products, LAYERS, 0.0) is products


def test_a_layer_of_zeros_has_no_projection() -> None:
    target, source, _ = vectors()
    source[:400] = 0
    assert multiples(target, source, VARIANCE)[0] == 0
    target[:] = 0
    assert not multiples(target, source, VARIANCE).any()


@pytest.mark.parametrize("variance", [-1.0, float("nan"), float("inf")])
def test_a_variance_out_of_range_is_refused(variance: float) -> None:
    target, source, _ = vectors()
    with pytest.raises(ValueError, match=r"^variance: "):
        without_noise(Products.of(target, source, LAYERS), LAYERS, variance)


@pytest.mark.parametrize("per_layer", [False, True])
@pytest.mark.parametrize("rule", [Rule.FEDGP, Rule.FEDGP_AUTO, Rule.FEDDA_AUTO])
def test_of_a_part_the_projection_alone_is_corrected(rule: Rule, per_layer: bool) -> None:
    target, source, rng = vectors()
    noisy = source + rng.normal(scale=VARIANCE**0.5, size=SIZE)
    steps = target / 4 + rng.normal(scale=0.02, size=(4, SIZE))
    statistics = TargetStatistics.from_batches(steps)
    plan = RoundPlan(rule=rule, beta_per_layer=per_layer and rule.beta_rule is not None)
    how = {"layers": LAYERS}

    plain = contribute(plan, statistics, steps.sum(axis=0), noisy, **how)
    corrected = contribute(plan, statistics, steps.sum(axis=0), noisy, **how, noise_variance=VARIANCE)

    assert (corrected.beta, corrected.keep) == (plain.beta, plain.keep)
    assert np.array_equal(corrected.vector, plain.vector) == (not rule.projects)
