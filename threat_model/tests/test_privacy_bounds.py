"""The bounds of differential privacy that attacks are held to."""

from __future__ import annotations

import math

import numpy as np
import pytest

from threat_model.privacy_bounds import FALSE_ALARM, auc_bound, guess_bound, too_many_right

pytestmark = pytest.mark.machinery

EPSILONS = (0.0, 0.1, 0.5, 1.0, 3.0, 8.0)
DELTAS = (0.0, 1e-5, 0.01, 0.1)
POINTS = 200_001


def area_of_the_region(epsilon: float, delta: float) -> float:
    """Numerically, under the best ROC curve in the region of (epsilon, delta)-DP."""
    fpr = np.linspace(0, 1, POINTS)
    tpr = np.minimum(math.exp(epsilon) * fpr + delta, 1 - math.exp(-epsilon) * (1 - delta - fpr))
    return float(np.trapezoid(np.minimum(tpr, 1), fpr))


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("delta", DELTAS)
def test_bound_within_one_run_is_above_the_area_for_independent_runs(epsilon: float, delta: float) -> None:
    area = area_of_the_region(epsilon, delta)
    assert area == pytest.approx(1 - (1 - delta) ** 2 / (1 + math.exp(epsilon)), abs=1e-4)
    assert area <= auc_bound(epsilon, delta) + 1e-4
    assert auc_bound(epsilon, delta) <= 1


def test_epsilon_zero_reveals_nothing_and_a_large_one_all() -> None:
    assert auc_bound(0.0, 0.0) == 0.5
    assert guess_bound(0.0, 0.0, 64) == 1 / 64
    assert auc_bound(50.0, 0.0) == pytest.approx(1.0)
    assert guess_bound(50.0, 0.0, 64) == 1.0


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_randomised_response_keeps_both_bounds_and_comes_near_that_of_guesses(epsilon: float) -> None:
    """Exact, no draws: K-ary randomised response is epsilon-DP for rows that are exchanged, so also under these."""
    candidates = 64
    right = math.exp(epsilon) / (math.exp(epsilon) + candidates - 1)
    assert 0.9 * guess_bound(epsilon, 0.0, candidates) < right <= guess_bound(epsilon, 0.0, candidates)
    kept = math.exp(epsilon) / (1 + math.exp(epsilon))  # a member's bit is 1 with this, another's with 1 - kept
    assert kept**2 + kept * (1 - kept) <= auc_bound(epsilon, 0.0)


@pytest.mark.parametrize(("trials", "probability"), [(30, 0.05), (60, 0.115), (8, 0.01)])
def test_count_that_raises_an_alarm_is_the_smallest_that_is_improbable(trials: int, probability: float) -> None:
    draws = np.random.default_rng(1).binomial(trials, probability, 200_000)
    count = too_many_right(trials, probability)
    law = [math.comb(trials, k) * probability**k * (1 - probability) ** (trials - k) for k in range(trials + 1)]
    assert sum(law[count:]) <= FALSE_ALARM < sum(law[count - 1 :])
    assert draws.max() < count


def test_no_count_is_improbable_where_every_guess_may_be_right() -> None:
    assert too_many_right(5, 1.0) == 6
