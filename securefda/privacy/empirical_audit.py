"""What a training run gave away of its rows, measured: a lower bound of epsilon from one run with canaries. Pure.

The audit of Steinke, Nasr, Jagielski 2023 ("Privacy Auditing with One (1) Training Run"). Each of m canaries is in the
data or not, by a fair coin of its own. The auditor sees what training gave out, guesses the coins of r canaries, at
both ends of a score, and abstains from the others. If training is (epsilon, delta)-differentially private, many right
guesses are improbable; where they came nonetheless, it is not.

**No delta.** Let s be the coins and t the guesses, made from the output. Coins are fair, so given the output and the
coins before i the odds that coin i is as guessed are those of the output under the two values of that coin, at most
e^epsilon. Each guess is right with a probability of at most q = e^epsilon / (1 + e^epsilon), whatever the others were,
and the number of right guesses is at most, in distribution, a Binomial(r, q) variable B.

**With delta.** Two laws that are (epsilon, delta)-close are (epsilon, 0)-close but for a part of weight delta in each.
Summed over m coins, B may be too small by a number F of guesses with E[F] <= 2 m delta (the paper's proof of
Theorem 3.1). Then P[right >= v] <= P[B + F >= v] = P[B >= v] + sum over i of P[F = i] P[v > B >= v - i], and under
E[F] <= 2 m delta that sum is largest where all weight is on one i: 2 m delta max over i >= 1 of
P[v > B >= v - i] / i. This is Theorem 3.1 of the paper, and what its Appendix D computes.

What must hold, and this module cannot check: the coins are fair and independent, nothing of the data but the canaries
depends on them, and the number of guesses was fixed before the run. That each coin decides whether a row is used,
and not which row is used, makes the bound one of the same neighbouring relation as the ledger's epsilon.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

_HALVINGS = 60


def epsilon_lower_bound(guesses: int, correct: int, canaries: int, delta: float, confidence: float = 0.95) -> float:
    """Return the largest epsilon that the guesses reject: training was not (that epsilon, ``delta``)-DP.

    For training that is (epsilon, ``delta``)-DP, what is returned exceeds epsilon with a probability of at most
    1 - ``confidence``. No luck shows more than ``guesses`` can: with all of 100 right, 3.5; with all of 1000, 5.8.

    Args:
        guesses: r, coins guessed; fixed before the run.
        correct: of them, guessed right.
        canaries: m, coins thrown, those abstained from included.
        delta: in [0, 1).
        confidence: in (0, 1).

    Returns:
        At least 0, finite; 0 where nothing is rejected.

    Raises:
        ValueError: not 0 <= correct <= guesses <= canaries, or ``delta`` or ``confidence`` is out of bounds.
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be between 0 and 1, not {confidence!r}")
    level = 1 - confidence
    if p_value(guesses, correct, canaries, 0.0, delta) > level:
        return 0.0
    # At the upper end, all guesses are right with this probability, and a p-value is at least that.
    low, high = 0.0, -math.log(math.expm1(-math.log(level) / guesses))
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        is_rejected = p_value(guesses, correct, canaries, middle, delta) <= level
        low, high = (middle, high) if is_rejected else (low, middle)
    return low


def p_value(guesses: int, correct: int, canaries: int, epsilon: float, delta: float) -> float:
    """Return the most that the probability of ``correct`` or more right guesses is, under (epsilon, delta)-DP.

    Args and ValueError: as for :func:`epsilon_lower_bound`; ``epsilon`` is at least 0.
    """
    if not 0 <= correct <= guesses <= canaries:
        raise ValueError(f"{correct} right of {guesses} guesses about {canaries} canaries cannot be")
    if not 0 <= delta < 1 or not epsilon >= 0:
        raise ValueError(f"epsilon must be at least 0 and delta in [0, 1), not {epsilon!r} and {delta!r}")
    if correct == 0:
        return 1.0
    # Probabilities of 0, ..., ``guesses`` right ones, each of probability e^epsilon / (1 + e^epsilon)
    counts = np.arange(guesses + 1)
    factorials = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, guesses + 1)))])
    choices = factorials[-1] - factorials - factorials[::-1]
    success, failure = -math.log1p(math.exp(-epsilon)), -epsilon - math.log1p(math.exp(-epsilon))
    law: NDArray[np.float64] = np.exp(choices + counts * success + (guesses - counts) * failure)
    at_least = float(law[correct:].sum())
    just_below = np.cumsum(law[:correct][::-1])  # P[v > B >= v - i] for i = 1, ..., v; no larger i gives more
    excess = float(np.max(just_below / np.arange(1, correct + 1)))
    return min(1.0, at_least + 2 * canaries * delta * excess)


def throw_coins(canaries: int, random_bytes: Callable[[int], bytes] = os.urandom) -> NDArray[np.bool_]:
    """Return fair coins, (canaries,): which of them are in the data. Anything but ``os.urandom`` is for tests."""
    return np.frombuffer(random_bytes(canaries), dtype=np.uint8) < 128


def correct_guesses(scores: NDArray[np.float64], included: NDArray[np.bool_], per_side: int) -> int:
    """Guess "in" for the ``per_side`` highest scores and "out" for as many lowest; return how many are right.

    Args:
        scores: (canaries,), finite; higher where the canary seems to be in the data. Where scores are equal, the
            later of them counts as the higher.
        included: (canaries,), the coins.
        per_side: half the number of guesses.

    Raises:
        ValueError: lengths differ, a score is not finite, or there are more guesses than canaries.
    """
    if scores.shape != included.shape or scores.ndim != 1 or not np.isfinite(scores).all():
        raise ValueError(f"scores of {scores.shape}, all finite, are needed for coins of {included.shape}")
    if not 0 <= 2 * per_side <= len(scores):
        raise ValueError(f"{per_side} guesses on either side do not fit {len(scores)} canaries")
    order = np.argsort(scores, kind="stable")
    wrong_low = np.count_nonzero(included[order[:per_side]])
    right_high = np.count_nonzero(included[order[len(order) - per_side :]])
    return int(per_side - wrong_low + right_high)
