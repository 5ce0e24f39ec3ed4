"""Auto-beta with one number for each layer, beside the definition written out."""

from __future__ import annotations

import numpy as np
import pytest

from securefda.rules import (
    ContributionSum,
    RoundPlan,
    Rule,
    Strategy,
    TargetStatistics,
    contribute,
    delta_errors,
    round_plan,
)

SIZES, STEPS = (3, 5, 2), 4
PARTS = [slice(0, 3), slice(3, 8), slice(8, 10)]
SAMPLES = (10.0, 30.0)


def problem(seed: int, noise: float = 0.3) -> tuple[TargetStatistics, np.ndarray, np.ndarray]:
    """Statistics, g_T and two sources' updates of 10 parameters."""
    generator = np.random.default_rng(seed)
    drift = generator.normal(size=10) * np.repeat([1.0, 0.2, 3.0], SIZES)
    steps = drift + noise * generator.normal(size=(STEPS, 10))
    sources = STEPS * (drift + generator.normal(size=(2, 10)) * np.repeat([0.1, 0.4, 1.0], SIZES))
    return TargetStatistics.from_batches(steps), steps.sum(axis=0), sources


def beta_of(statistics: TargetStatistics, target: np.ndarray, source: np.ndarray, part: slice, rule: Rule) -> float:
    """Of one layer, by its definition: sigma^2 divided by the squared length of g_T, and all distances of the layer."""
    mean, aligned = target / STEPS, source / STEPS
    variance = statistics.mean_variance * np.sum(mean[part] ** 2) / np.sum(mean**2)
    if rule is Rule.FEDDA_AUTO:
        distance = np.sum((mean[part] - aligned[part]) ** 2) - variance
    else:
        unit = aligned[part] / np.linalg.norm(aligned[part])
        size = part.stop - part.start
        distance = np.sum((mean[part] - mean[part] @ unit * unit) ** 2) - variance * (1 - 1 / size)
    return variance / (variance + max(distance, 0.0))


@pytest.mark.parametrize("rule", [Rule.FEDDA_AUTO, Rule.FEDGP_AUTO])
@pytest.mark.parametrize("seed", range(5))
def test_a_rounds_update_is_the_rule_with_the_betas_of_each_layer(seed: int, rule: Rule) -> None:
    statistics, target, sources = problem(seed)
    total, expected = ContributionSum(10), np.zeros(10)
    for source, samples in zip(sources, SAMPLES, strict=True):
        plan = RoundPlan(rule=rule, beta_per_layer=True)
        total.add(contribute(plan, statistics, target, source, layers=SIZES), samples)
        for part in PARTS:
            beta, other = beta_of(statistics, target, source, part, rule), source[part]
            if rule is Rule.FEDGP_AUTO:
                other = max(target[part] @ other, 0.0) / (other @ other) * other
            expected[part] += samples / sum(SAMPLES) * ((1 - beta) * target[part] + beta * other)
    np.testing.assert_allclose(total.combine(rule, target), expected, rtol=1e-10, atol=1e-12)


def test_the_beta_that_is_kept_makes_the_rest_the_shortest() -> None:
    statistics, target, sources = problem(2)
    plan = RoundPlan(rule=Rule.FEDDA_AUTO, beta_per_layer=True)
    found = contribute(plan, statistics, target, sources[0], layers=SIZES)
    betas = np.repeat([beta_of(statistics, target, sources[0], part, plan.rule) for part in PARTS], SIZES)
    rest = lambda beta: float(np.sum(((beta - betas) * target) ** 2))  # noqa: E731
    assert found.beta is not None
    assert found.keep == 1 - found.beta
    for other in (found.beta - 0.01, found.beta + 0.01):
        assert rest(found.beta) < rest(other)


@pytest.mark.parametrize("seed", range(5))
def test_errors_are_the_sums_over_layers(seed: int) -> None:
    statistics, target, sources = problem(seed)
    plan = RoundPlan(rule=Rule.FEDDA_AUTO, select=True, beta_per_layer=True)
    found = contribute(plan, statistics, target, sources[0], layers=SIZES)
    variances = statistics.mean_variance * np.array([np.sum(target[part] ** 2) for part in PARTS]) / np.sum(target**2)
    betas = np.array([beta_of(statistics, target, sources[0], part, Rule.FEDDA_AUTO) for part in PARTS])
    distances = variances * (1 / betas - 1)
    assert found.errors is not None
    assert found.errors.source_only == pytest.approx(distances.sum(), rel=1e-9)
    assert found.errors.fedda == pytest.approx((betas * distances).sum(), rel=1e-9)
    assert found.errors.fedgp <= statistics.mean_variance * (1 + 1e-12)
    assert found.errors == delta_errors(plan, statistics, target, sources[0], layers=SIZES)


@pytest.mark.parametrize("rule", [Rule.FEDDA_AUTO, Rule.FEDGP_AUTO])
def test_layers_without_length_are_no_trouble(rule: Rule) -> None:
    plan, still = RoundPlan(rule=rule, beta_per_layer=True), np.zeros(10)
    _, target, sources = problem(3)
    target[PARTS[1]], sources[0][PARTS[2]] = 0.0, 0.0
    fits = TargetStatistics(STEPS, float(target @ target) / STEPS**2 + 0.3, 0.4)
    for own, source, of in ((target, sources[0], fits), (still, sources[1], TargetStatistics(STEPS, 0.3, 0.4))):
        found = contribute(plan, of, own, source, layers=SIZES)
        assert np.isfinite(found.vector).all()
        assert 0 <= found.keep <= 1


def test_fixed_betas_are_one_for_all() -> None:
    statistics, target, sources = problem(4)
    found = [
        contribute(RoundPlan(rule=Rule.FEDGP, beta=0.3, beta_per_layer=each), statistics, target, sources[0])
        for each in (False, True)
    ]
    np.testing.assert_array_equal(found[0].vector, found[1].vector)


@pytest.mark.parametrize(
    "plan", [{"rule": "fedgp_auto", "estimator": "exact"}, {"rule": "fedgp_filtered_auto"}], ids=str
)
def test_rules_that_take_single_steps_have_one_beta(plan: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"^beta_per_layer: must be false, .* takes the single steps as a whole"):
        Strategy(rounds=2, beta_per_layer=True, **plan)


def test_a_round_has_what_the_strategy_says() -> None:
    assert round_plan(Strategy(rule=Rule.AUTO, rounds=2, beta_per_layer=True), 2).beta_per_layer
    with pytest.raises(ValueError, match=r"^beta_per_layer:"):
        Strategy(rule=Rule.AUTO, rounds=2, beta_per_layer="yes")
