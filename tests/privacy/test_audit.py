"""The bound of an audit: against exact arithmetic, the paper's own figure, and mechanisms whose epsilon is known."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import beta

from securefda.privacy.empirical_audit import correct_guesses, epsilon_lower_bound, p_value, throw_coins

TRIALS = 2000
CONFIDENCE = 0.95
MOST_EXCEEDING = 138
"""Of 2000 trials: more than this many of probability 0.05 have a probability below 1e-4."""


def exact_p_value(guesses: int, correct: int, canaries: int, odds: int, delta: Fraction) -> Fraction:
    """Theorem 3.1 in rational numbers, for e^epsilon = ``odds``, with the maximum over all i that it names."""
    right = Fraction(odds, odds + 1)
    law = [math.comb(guesses, k) * right**k * (1 - right) ** (guesses - k) for k in range(guesses + 1)]
    excess = max(sum(law[max(0, correct - i) : correct]) / i for i in range(1, canaries + 1))
    return min(Fraction(1), sum(law[correct:]) + 2 * canaries * delta * excess)


@pytest.mark.parametrize(("guesses", "correct", "canaries"), [(1, 1, 1), (10, 7, 12), (40, 40, 60), (60, 21, 60)])
@pytest.mark.parametrize("odds", [1, 2, 5, 400])
@pytest.mark.parametrize("delta", [Fraction(0), Fraction(1, 100_000), Fraction(1, 50)])
def test_p_value_is_the_theorem_s_in_exact_arithmetic(
    guesses: int, correct: int, canaries: int, odds: int, delta: Fraction
) -> None:
    exact = float(exact_p_value(guesses, correct, canaries, odds, delta))

    assert p_value(guesses, correct, canaries, math.log(odds), float(delta)) == pytest.approx(exact, rel=1e-9)


def test_bound_is_the_one_that_the_paper_gives_for_75_right_of_100() -> None:
    assert epsilon_lower_bound(100, 75, 1000, 1e-4) == pytest.approx(0.673, abs=0.0005)


@pytest.mark.parametrize(
    ("guesses", "correct", "canaries", "delta", "confidence", "theirs"),
    [
        (100, 75, 1000, 1e-4, 0.95, 0.6729847),
        (250, 250, 1000, 1e-5, 0.95, 4.3912238),
        (250, 245, 1000, 1e-5, 0.95, 3.1306288),
        (250, 211, 1000, 1e-5, 0.95, 1.3923885),
        (250, 173, 1000, 1e-5, 0.95, 0.5762003),
        (250, 142, 2000, 1e-5, 0.95, 0.0543900),
        (250, 130, 1000, 1e-5, 0.95, 0.0),
        (1000, 1000, 2000, 1e-6, 0.95, 5.8037230),
        (1000, 990, 1000, 1e-6, 0.99, 3.8885374),
        (400, 398, 1000, 1e-10, 0.999999, 3.0131738),
        (10, 10, 40, 1e-5, 0.95, 1.0504202),
        (5000, 4990, 10000, 1e-6, 0.95, 5.6796019),
        (40, 33, 60, 1e-3, 0.95, 0.7827121),
        (100, 99, 1000, 1e-3, 0.90, 1.7443795),
    ],
)
def test_bound_is_that_of_jax_privacy(
    guesses: int, correct: int, canaries: int, delta: float, confidence: float, theirs: float
) -> None:
    """What ``CanaryScoreAuditor.epsilon_one_run`` of jax-privacy 2.0.0 returned, which finds it to 1e-6."""
    assert epsilon_lower_bound(guesses, correct, canaries, delta, confidence) == pytest.approx(theirs, abs=1e-6)


@pytest.mark.parametrize(("guesses", "correct"), [(100, 60), (100, 99), (100, 100), (1000, 700), (5000, 4990)])
def test_bound_without_delta_is_that_of_clopper_and_pearson_on_the_rate_of_right_guesses(
    guesses: int, correct: int
) -> None:
    rate = beta.ppf(1 - CONFIDENCE, correct, guesses - correct + 1)

    bound = epsilon_lower_bound(guesses, correct, guesses, 0.0, CONFIDENCE)

    assert bound == pytest.approx(math.log(rate / (1 - rate)), rel=1e-7)


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 2.0, 4.0])
def test_bound_exceeds_epsilon_of_randomized_response_in_at_most_one_of_20_runs(epsilon: float) -> None:
    # Seed 7, 2000 runs of 300 answers; a run exceeds with at most 0.05, so false alarm below 1e-4.
    right = np.random.default_rng(7).binomial(300, 1 / (1 + math.exp(-epsilon)), TRIALS)

    exceeding = _exceeding(right, epsilon, 0.0)

    assert exceeding <= MOST_EXCEEDING
    if epsilon > 0:
        assert exceeding >= 20, "randomized response is the worst case, and the bound should be close"


def test_randomized_response_of_more_epsilon_than_claimed_is_found_out() -> None:
    right = np.random.default_rng(7).binomial(300, 1 / (1 + math.exp(-2.5)), TRIALS)

    assert _exceeding(right, 2.0, 0.0) > TRIALS / 2


def test_bound_holds_where_delta_is_used_up_by_giving_answers_away() -> None:
    # Seed 7. A true answer is given openly with probability delta, else by randomized response: (1, delta)-DP.
    delta, generator = 0.005, np.random.default_rng(7)
    open_ones = generator.binomial(300, delta, TRIALS)
    right = open_ones + generator.binomial(300 - open_ones, 1 / (1 + math.exp(-1.0)))

    assert _exceeding(right, 1.0, delta) <= MOST_EXCEEDING


def test_bound_holds_for_canaries_in_gaussian_noise_with_guesses_at_both_ends() -> None:
    # Seed 7, 500 runs. Each score is its coin plus noise of standard deviation 1.
    generator, epsilon = np.random.default_rng(7), 3.0
    delta = _delta_of_gaussian(epsilon)
    bounds = []
    for _ in range(500):
        coins = generator.random(400) < 0.5
        right = correct_guesses(coins + generator.normal(size=400), coins, 40)
        bounds.append(epsilon_lower_bound(80, right, 400, delta))

    assert sum(bound > epsilon for bound in bounds) == 0
    assert np.mean(bounds) > 0.5


def test_bound_falls_with_delta_with_wrong_guesses_and_with_confidence() -> None:
    best = epsilon_lower_bound(200, 195, 1000, 0.0)

    assert best > epsilon_lower_bound(200, 195, 1000, 1e-4) > epsilon_lower_bound(200, 195, 1000, 1e-3)
    assert best > epsilon_lower_bound(200, 194, 1000, 0.0)
    assert best > epsilon_lower_bound(200, 195, 1000, 0.0, confidence=0.99)


def test_what_is_returned_is_rejected_and_what_lies_above_it_is_not() -> None:
    bound = epsilon_lower_bound(200, 195, 1000, 1e-4)

    assert p_value(200, 195, 1000, bound, 1e-4) <= 0.05 < p_value(200, 195, 1000, bound + 1e-6, 1e-4)


@pytest.mark.parametrize("correct", [0, 50, 55])
def test_guesses_no_better_than_chance_prove_nothing(correct: int) -> None:
    assert epsilon_lower_bound(100, correct, 100, 1e-5) == 0


def test_no_guess_proves_nothing() -> None:
    assert epsilon_lower_bound(0, 0, 100, 1e-5) == 0


@pytest.mark.parametrize(
    ("guesses", "correct", "canaries", "delta", "confidence"),
    [
        (10, 11, 20, 0.0, 0.95),
        (21, 11, 20, 0.0, 0.95),
        (10, -1, 20, 0.0, 0.95),
        (10, 5, 20, 1.0, 0.95),
        (10, 5, 20, -1e-9, 0.95),
        (10, 5, 20, math.nan, 0.95),
        (10, 5, 20, 0.0, 1.0),
        (10, 5, 20, 0.0, 0.0),
    ],
)
def test_counts_that_cannot_be_are_refused(
    guesses: int, correct: int, canaries: int, delta: float, confidence: float
) -> None:
    with pytest.raises(ValueError, match=r"cannot be|must be"):
        epsilon_lower_bound(guesses, correct, canaries, delta, confidence)


def test_highest_scores_are_guessed_in_and_lowest_out() -> None:
    coins = np.array([True, False, True, False, True, False])
    scores = np.array([9.0, -9.0, 8.0, 7.0, -8.0, 0.0])

    assert correct_guesses(scores, coins, 1) == 2
    assert correct_guesses(scores, coins, 2) == 3
    assert correct_guesses(scores, coins, 3) == 4
    assert correct_guesses(scores, coins, 0) == 0


@pytest.mark.parametrize(
    ("scores", "per_side"), [([1.0, 2.0, 3.0, 4.0], 3), ([1.0, 2.0], 1), ([1.0, 2.0, 3.0, math.nan], 1)]
)
def test_scores_that_do_not_fit_the_coins_are_refused(scores: list[float], per_side: int) -> None:
    with pytest.raises(ValueError, match=r"scores|fit"):
        correct_guesses(np.array(scores), np.array([True, False, True, False]), per_side)


def test_coins_are_fair_as_the_bytes_are() -> None:
    every_byte = throw_coins(256, lambda count: bytes(range(count)))

    assert every_byte.sum() == 128
    assert throw_coins(1000).shape == (1000,)


def _exceeding(right: np.ndarray, epsilon: float, delta: float) -> int:
    """In how many of the runs of 300 guesses the bound lies above ``epsilon``."""
    bounds = {count: epsilon_lower_bound(300, count, 300, delta, CONFIDENCE) for count in set(right.tolist())}
    return sum(bounds[count] > epsilon for count in right.tolist())


def _delta_of_gaussian(epsilon: float) -> float:
    """Delta of noise of standard deviation 1 at sensitivity 1 (Balle and Wang 2018, Theorem 8)."""
    above, below = (math.erfc(-x / math.sqrt(2)) / 2 for x in (0.5 - epsilon, -0.5 - epsilon))
    return above - math.exp(epsilon) * below
