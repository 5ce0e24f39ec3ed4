"""The gap statistic, its gradient, and the shares of attention that follow from it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from securefda.rules import (
    Contribution,
    ContributionSum,
    RoundPlan,
    Rule,
    Strategy,
    attend,
    attention_share,
    combine,
    first_order_gain,
    gap_gradient,
    gap_statistic,
    least_share,
    round_plan,
)


def clustered(rows: int = 40, width: int = 5, clusters: int = 4, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    draws = np.random.default_rng(seed)
    members = draws.integers(clusters, size=rows)
    return draws.normal(size=(clusters, width))[members] + draws.normal(size=(rows, width)), members


def by_pairs(features: np.ndarray, members: np.ndarray) -> float:
    """Eq. 3 as it is printed, a sum over pairs of rows, and the same with all rows as one cluster."""

    def scatter(rows: np.ndarray) -> float:
        return sum(float(np.sum((one - other) ** 2)) for one in rows for other in rows) / (2 * len(rows))

    return sum(scatter(features[members == number]) for number in np.unique(members)) / scatter(features)


# --- the statistic ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_statistic_is_the_sum_over_pairs_of_rows(seed):
    features, members = clustered(seed=seed)

    assert gap_statistic(features, members) == pytest.approx(by_pairs(features, members), rel=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_gradient_is_that_of_automatic_differentiation(seed):
    features, members = clustered(seed=seed)
    rows = torch.tensor(features, requires_grad=True)
    within = sum(
        ((rows[members == number] - rows[members == number].mean(0)) ** 2).sum() for number in np.unique(members)
    )
    (within / ((rows - rows.mean(0)) ** 2).sum()).backward()

    assert np.allclose(gap_gradient(features, members), rows.grad.numpy(), rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize(
    ("features", "members", "named"),
    [
        (np.zeros((3, 2)), [0, 1, 1], "features: all rows are alike"),
        (np.array([[0.0, math.nan], [1.0, 2.0]]), [0, 1], "features"),
        (np.zeros(3), [0, 1, 1], "features"),
        (np.eye(3), [0, 1], "clusters: must be 3 whole numbers"),
        (np.eye(3), [0.0, 1.0, 1.0], "clusters: must be 3 whole numbers"),
    ],
)
def test_wrong_features_and_clusters_are_named(features, members, named):
    for function in (gap_statistic, gap_gradient):
        with pytest.raises(ValueError, match=f"^{named}"):
            function(features, members)


# --- the shares -------------------------------------------------------------------------------------------------------


def test_first_order_gain_is_how_much_a_short_update_lowers_the_statistic():
    features, members = clustered()
    update = 1e-6 * np.random.default_rng(3).normal(size=features.shape)
    lowered = gap_statistic(features, members) - gap_statistic(features + update, members)

    assert first_order_gain(gap_gradient(features, members).ravel(), update.ravel()) == pytest.approx(lowered, rel=1e-3)


@pytest.mark.parametrize(("gradient", "update"), [([1.0, 2.0], [1.0]), ([math.inf], [1.0]), ([1.0], [math.nan])])
def test_wrong_vectors_have_no_gain(gradient, update):
    with pytest.raises(ValueError, match=r"^(gradient|update): "):
        first_order_gain(gradient, update)


def test_shares_are_a_softmax_where_no_bound_bites():
    gains = np.array([-0.004, 0.0, 0.003, 0.009])
    shares = np.array([attention_share(gain, temperature=0.01, bound=1.0) for gain in gains])
    softmax = np.exp(gains / 0.01) / np.exp(gains / 0.01).sum()

    assert np.allclose(shares / shares.sum(), softmax, rtol=1e-12)


@pytest.mark.parametrize("gain", [-1e300, -1.0, 0.0, 1.0, 1e300])
def test_no_gain_takes_a_share_out_of_its_bounds(gain):
    assert least_share(0.5) <= attention_share(gain, temperature=1e-6, bound=0.5) <= 1.0


@pytest.mark.parametrize(
    ("gain", "temperature", "bound", "named"),
    [
        (math.nan, 1.0, 1.0, "gain"),
        (0.0, 0.0, 1.0, "temperature"),
        (0.0, math.inf, 1.0, "temperature"),
        (0.0, 1.0, 0.0, "bound"),
        (0.0, 1.0, 5.1, "bound"),
    ],
)
def test_a_share_of_numbers_out_of_range_is_refused(gain, temperature, bound, named):
    with pytest.raises(ValueError, match=f"^{named}: "):
        attention_share(gain, temperature=temperature, bound=bound)


# --- the rule ---------------------------------------------------------------------------------------------------------


def plan(**settings) -> RoundPlan:
    return RoundPlan(rule=Rule.FADA_ATTENTION, attention_temperature=0.5, **settings)


def test_update_is_the_mean_by_samples_and_softmax_of_the_gains():
    draws = np.random.default_rng(4)
    gradient, updates, samples = draws.normal(size=6), draws.normal(size=(3, 6)) / 20, np.array([10.0, 20.0, 5.0])
    total = ContributionSum(6)
    for update, count in zip(updates, samples, strict=True):
        total.add(attend(plan(), gradient, update), count)
    weights = samples * np.exp(-updates @ gradient / 0.5)

    assert np.allclose(total.combine(Rule.FADA_ATTENTION), weights @ updates / weights.sum(), rtol=1e-12)


def test_a_gain_that_is_known_takes_the_place_of_the_gradient():
    update = np.array([1.0, -2.0])
    found: Contribution = attend(plan(), None, update, gain=0.25)
    share = attention_share(0.25, temperature=0.5, bound=1.0)

    assert found.keep == share
    assert np.array_equal(found.vector, share * update)


def test_without_gain_and_gradient_there_is_no_share():
    with pytest.raises(ValueError, match=r"^gap_gradient: fada_attention needs it"):
        attend(plan(), None, np.ones(2))


def test_a_sum_without_shares_is_no_update():
    with pytest.raises(ValueError, match=r"^kept: must be above 0"):
        combine(Rule.FADA_ATTENTION, np.ones(2), 0.0, 3.0)


def test_settings_of_attention_reach_every_round_after_warm_up():
    strategy = Strategy(
        rule=Rule.FADA_ATTENTION, rounds=3, warm_up_rounds=1, attention_gain="exact", attention_bound=2.0
    )
    first, second = round_plan(strategy, 1), round_plan(strategy, 2)

    assert first.rule is Rule.SOURCE_ONLY
    assert second.rule is Rule.FADA_ATTENTION
    assert (second.attention_gain, second.attention_bound) == ("exact", 2.0)
    assert second.needs_single_updates


@pytest.mark.parametrize(
    "setting", [{"attention_gain": "second-order"}, {"attention_temperature": 0.0}, {"attention_bound": 6.0}]
)
def test_settings_out_of_range_are_named(setting):
    (name,) = setting
    with pytest.raises(ValueError, match=f"^{name}: "):
        Strategy(rule=Rule.FADA_ATTENTION, rounds=1, **setting)
