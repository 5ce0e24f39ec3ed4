"""The privacy budget of a policy in words: what it bounds, what it does not, and what training without noise means."""

from __future__ import annotations

import math

from securefda.dp.events import ASSUMPTIONS
from securefda.policy.model import SourcePolicy
from securefda.secagg.messages import Visibility

_OF_USE = 20.0
"""Epsilon above which a guess may as well be certain: e^20 is 5e8."""


def budget_in_short(policy: SourcePolicy) -> str:
    """For a line that has other numbers in it."""
    dp = policy.dp
    if not dp.required:
        return "training without noise permitted"
    return f"noise required, epsilon at most {dp.target_epsilon:g} at delta {dp.target_delta:g}"


def budget_in_words(policy: SourcePolicy, site: str) -> tuple[str, ...]:
    """What noise bounds of all that leaves ``site``, what counts it, and what stays outside, a few sentences each."""
    if policy.dp.required:
        bounded = f"{site} trains with noise (DP-SGD) or not at all, so all that leaves it is bounded: {_bound(policy)}"
        return (bounded, _ledger(site), *_not_covered(policy, site))
    bounded = (
        f"Where its settings set training.dp.noise-multiplier, {site} trains with noise (DP-SGD), and of such rounds: "
        f"{_bound(policy)}"
    )
    return (_without_noise(policy, site), bounded, _ledger(site), *_not_covered(policy, site))


def budget_assumption(site: str) -> str:
    """What every epsilon of ``site`` rests on."""
    return f"For the privacy budget: {ASSUMPTIONS}; the random numbers of {site}'s machine cannot be guessed."


def _bound(policy: SourcePolicy) -> str:
    dp = policy.dp
    return (
        f"over all rounds and runs of a data set together, at most epsilon = {dp.target_epsilon:g} at delta = "
        f"{dp.target_delta:g} of each row, added or removed. {_odds(dp.target_epsilon)} This holds against the "
        "aggregator, every other site and whoever gets the model, also if all of them work together, at every level."
    )


def _odds(epsilon: float) -> str:
    if epsilon > _OF_USE:
        return "So large an epsilon bounds nothing of use: a guess whether a row was trained on may be certain."
    ratio = math.exp(epsilon)
    # Upper bounds are rounded up.
    times = f"{math.ceil(ratio * 100) / 100:.2f}" if ratio < 100 else f"{math.ceil(ratio)}"
    return (
        "Who has to guess, at even odds and knowing all other rows, whether a given row was trained on is right at "
        f"most e^epsilon = {times} times as often as wrong, apart from delta."
    )


def _ledger(site: str) -> str:
    return (
        f"The ledger at {site} counts it, before each round trains, since it was opened or last reset; a reset takes a "
        f"reason and {site}'s signature, and what was spent before it comes on top. A round that would cost more than "
        "is left is not trained (exit code 11)."
    )


def _without_noise(policy: SourcePolicy, site: str) -> str:
    line = (
        f"{site} may train without noise (dp.required = false), as its own settings say. The ledger does not count "
        "such rounds, and after one of them no epsilon holds for all that left of these rows. What protects then: "
    )
    if policy.visibility is Visibility.INDIVIDUAL:
        return (
            line + "towards the aggregator nothing. What an update, and every later model, tells of a row is unbounded."
        )
    return line + (
        "sums hide which of their sources a part is of. They do not hide what the parts together tell: whether a row "
        "was trained on, or its values, may show in a sum and in every later model, and nothing bounds it."
    )


def _not_covered(policy: SourcePolicy, site: str) -> tuple[str, ...]:
    return (
        f"Not covered: {site}'s number of rows, which is taken as public, as are its steps and sampling rate, which "
        f"follow from it; and when and for how long {site} trains.",
        "Not covered: more than one row at a time. Several rows of one patient are not one unit: of two rows together "
        f"epsilon is {2 * policy.dp.target_epsilon:g}, at a larger delta, and so on. A row that is also in another "
        "data set, or at another site, is counted there by itself.",
    )
