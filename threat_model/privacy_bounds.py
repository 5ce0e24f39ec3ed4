"""Bounds that (epsilon, delta)-differential privacy sets for any attacker; tests compare scores with them.

One neighbouring relation throughout, the ledger's: a row is in the data or not
(:data:`securefda.privacy.dp_events.GUARANTEE`).
"""

from __future__ import annotations

import math

FALSE_ALARM = 1e-6
"""With at most this probability a test that draws afresh blames training that keeps its promise."""


def auc_bound(epsilon: float, delta: float) -> float:
    """Return the largest expected area under the ROC curve of any attacker who tells members from others.

    Some rows are candidates, a random half of them is in the data, and an observer of the output scores each. The
    area is the probability that a member i scores above another row j, ties counting half. Compare with data that
    lack both: by differential privacy P[j at or above i] is then at most e^epsilon times as large, plus delta. There
    i and j are alike, so that over both orders of the pair it is 1/2. Hence 1 - area >= e^-epsilon (1/2 - delta).

    This holds for many candidates in one run, whose scores depend on one another. One candidate in each of many
    independent runs has the smaller bound 1 - (1 - delta)^2 / (1 + e^epsilon): the area over the region of Kairouz, Oh,
    Viswanath 2015, Theorem 2.1, in which TPR <= e^epsilon FPR + delta, and likewise of the complements.

    Args:
        epsilon: at least 0.
        delta: in [0, 1/2].
    """
    return 1 - math.exp(-epsilon) * (0.5 - delta)


def guess_bound(epsilon: float, delta: float, candidates: int) -> float:
    """Return the largest probability of naming the row that was drawn uniformly from ``candidates`` known ones.

    Let the data without that row be D. Under D the guesses "it is i" are disjoint events, so their probabilities sum
    to at most 1; with row i in the data, that of "it is i" is at most e^epsilon times as large, plus delta. The mean
    over i is e^epsilon / candidates + delta (Balle, Cherubin, Hayes 2022, with another proof).
    """
    return min(1.0, math.exp(epsilon) / candidates + delta)


def too_many_right(trials: int, probability: float) -> int:
    """Return the smallest count that a Binomial(trials, probability) reaches with at most :data:`FALSE_ALARM`.

    Trials need not be independent, if each is right with at most this probability whatever the others were.
    """
    law = [math.comb(trials, k) * probability**k * (1 - probability) ** (trials - k) for k in range(trials + 1)]
    return next((count for count in range(trials + 1) if math.fsum(law[count:]) <= FALSE_ALARM), trials + 1)
