"""Dynamic attention: a source's weight depends on how its update changes the features of the target's rows.

Source: Peng, Huang, Zhu, Saenko, "Federated Adversarial Domain Adaptation", ICLR 2020, Section 4. There a source has
the weight ``softmax(gain_i)``, and the gain is the amount by which its update lowers the gap statistic (Eq. 3,
`securefda.rules.gap_statistic`). If nobody can apply a single update to the model, the gain is taken to first order,
from the gradient of the statistic.

A source cannot compute its softmax weight alone, but the softmax mean is a ratio of two sums. So a source contributes
its share ``s_i = exp(clip(gain_i / temperature) - bound)`` and its update times that share:

>>> [round(attention_share(gain, temperature=0.5, bound=1.0), 3) for gain in (-9.0, 0.0, 0.25, 9.0)]
[0.135, 0.368, 0.607, 1.0]
"""

from __future__ import annotations

import math
from enum import StrEnum

from securefda.rules import checks

DEFAULT_TEMPERATURE = 0.1
"""In units of the gap statistic, which lies in [0, 1]."""

DEFAULT_BOUND = 1.0
"""No update weighs more than e^2 = 7.4 times another."""

LARGEST_BOUND = 5.0
"""Allows shares down to e^-10. Fixed-point sums would round smaller shares away."""


class Gain(StrEnum):
    """How the gain of an update is computed. The values appear in configurations and headers."""

    FIRST_ORDER = "first-order"
    """``-<gradient, update>``, which a source can compute."""

    EXACT = "exact"
    """The gap statistic before minus after the update. Only the target can compute it, from its rows and the single
    update, or the mean of a cohort."""


def attention_share(gain: float, *, temperature: float, bound: float) -> float:
    """Return a source's share of attention, ``exp(clip(gain / temperature, -bound, bound) - bound)``.

    Args:
        gain: of the source's update, finite; positive where the update lowers the gap statistic.
        temperature: above 0.
        bound: above 0 and at most `LARGEST_BOUND`.

    Returns:
        A number in [exp(-2 bound), 1]. If neither gain is clipped, the ratio of two shares is that of a softmax.

    Raises:
        ValueError: an argument is out of its range; the message starts with its name.
    """
    known = checks.number_between("gain", gain, -math.inf, math.inf)
    scale = checks.number_between("temperature", temperature, 0, math.inf, open_below=True)
    most = checks.number_between("bound", bound, 0, LARGEST_BOUND, open_below=True)
    return math.exp(min(most, max(-most, known / scale)) - most)


def least_share(bound: float) -> float:
    """Return the smallest share that a source can have with this bound."""
    return math.exp(-2 * bound)
