"""How close an attacker's estimate is to the secret, and the bounds that tests check.

Every bound is stated here once. An estimate and a secret are vectors of m = 4096 coordinates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Estimate = NDArray[np.floating[Any]]

RECOVERED_COSINE = 0.99
"""From here on an update counts as recovered, where it is not recovered to the last step of the encoding."""

NOTHING_LEARNT_COSINE = 0.1
"""Up to here nothing was learnt of the direction.

The cosine of a fixed vector and a random direction in m dimensions exceeds c in magnitude with probability at most
``2 exp(-m c^2 / 2)``: 2.6e-9 for m = 4096, so one false alarm in 10^8 tests.
"""


def cosine_of_one_in(k: int) -> float:
    """Return the cosine up to which only this is known of a direction: it is one of ``k`` in a sum, of about equal
    weight.
    """
    return float(1 / np.sqrt(k)) + NOTHING_LEARNT_COSINE


def cosine_under_norm_caps(kappa: float) -> float:
    """Return the cosine that the norm cap permits for one direction in a sum of about orthogonal parts."""
    return float(1 / np.sqrt(1 + kappa)) + 0.05


RECOVERED_AUC = 0.9
"""From here on an attacker tells members from others."""


def cosine(estimate: Estimate, secret: Estimate) -> float:
    """Return the cosine of the angle between two vectors (m,); 0 if one of them is zero."""
    one, other = np.asarray(estimate, np.float64), np.asarray(secret, np.float64)
    norms = float(np.linalg.norm(one) * np.linalg.norm(other))
    return float(one @ other) / norms if norms else 0.0


def relative_error(estimate: Estimate, secret: Estimate) -> float:
    """Return ``||estimate - secret|| / ||secret||``."""
    secret64 = np.asarray(secret, np.float64)
    return float(np.linalg.norm(np.asarray(estimate, np.float64) - secret64) / np.linalg.norm(secret64))


def is_recovered(estimate: Estimate, secret: Estimate, precision: float) -> bool:
    """Return whether no coordinate is off by more than ``precision``, the resolution of the encoding."""
    return bool(np.max(np.abs(np.asarray(estimate, np.float64) - np.asarray(secret, np.float64))) <= precision)


def auc(members: Sequence[float], others: Sequence[float]) -> float:
    """Return the probability that a member scores above another, ties counting half: the area under the ROC curve."""
    ours, theirs = np.asarray(members, np.float64)[:, None], np.asarray(others, np.float64)[None, :]
    return float(np.mean((ours > theirs) + 0.5 * (ours == theirs)))


def psnr(estimate: Estimate, secret: Estimate) -> float:
    """Return the peak signal-to-noise ratio in dB for values in [0, 1]; the estimate is clipped, 200 if equal."""
    cut = np.clip(np.asarray(estimate, np.float64), 0, 1)
    error = float(np.mean((cut - np.asarray(secret, np.float64)) ** 2))
    return float(-10 * np.log10(max(error, 1e-20)))
