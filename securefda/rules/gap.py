"""The gap statistic, which measures how well features cluster; its gradient; and the first-order gain of an update.

Source: Peng, Huang, Zhu, Saenko, "Federated Adversarial Domain Adaptation", ICLR 2020, Eq. 3. Two tight clusters:

>>> features = np.array([[0.0, 0.1], [0.1, 0.0], [1.0, 1.1], [1.1, 1.0]])
>>> round(gap_statistic(features, [0, 0, 1, 1]), 4), round(gap_statistic(features, [0, 1, 0, 1]), 4)
(0.0099, 0.9901)
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from securefda.rules import checks
from securefda.rules.blocks import Reals, Vector, inner_products


def gap_statistic(features: npt.ArrayLike, clusters: npt.ArrayLike) -> float:
    """Return the share of the features' variance that lies within clusters. Smaller is better.

    Eq. 3 is W = sum_r 1 / (2 n_r) sum_{i, j in C_r} ||f_i - f_j||^2, the sum of squares within clusters. A model could
    lower W by making its features small. So W is divided by the sum of squares about the mean of all rows, which makes
    it invariant to shift, scale and rotation of the features.

    Args:
        features: f, ``(T, d)``.
        clusters: cluster index of each row, ``(T,)``, whole numbers.

    Returns:
        A number in [0, 1].

    Raises:
        ValueError: an argument has a wrong shape or is not finite, or all rows are alike; the message starts with its
            name.
    """
    from_centre, from_mean = _deviations(features, clusters)
    return _ratio(from_centre, from_mean)


def gap_gradient(features: npt.ArrayLike, clusters: npt.ArrayLike) -> Vector:
    """Return the gradient of `gap_statistic` with respect to the features for fixed clusters, ``(T, d)``.

    Args:
        features: as for `gap_statistic`.
        clusters: as for `gap_statistic`.

    Raises:
        ValueError: as `gap_statistic`.
    """
    from_centre, from_mean = _deviations(features, clusters)
    gradient: Vector = 2.0 * (from_centre - _ratio(from_centre, from_mean) * from_mean) / np.vdot(from_mean, from_mean)
    return gradient


def first_order_gain(gradient: npt.ArrayLike, update: npt.ArrayLike) -> float:
    """Return the first-order decrease of the gap statistic by an update, ``-<gradient, update>``.

    Args:
        gradient: of the statistic with respect to the model, ``(n_params,)``.
        update: of the model, ``(n_params,)``.

    Raises:
        ValueError: an argument has a wrong shape or is not finite; the message starts with its name.
    """
    direction = checks.vector("gradient", gradient)
    return -inner_products(direction, checks.vector("update", update, size=direction.size))[1]


def _deviations(features: npt.ArrayLike, clusters: npt.ArrayLike) -> tuple[Vector, Vector]:
    """Deviations of the rows from the centre of their cluster, and from the mean of all; float64 ``(T, d)``."""
    rows = checks.matrix("features", features).astype(np.float64)
    members = np.asarray(clusters)
    if members.shape != rows.shape[:1] or not np.issubdtype(members.dtype, np.integer):
        raise ValueError(f"clusters: must be {len(rows)} whole numbers, has shape {members.shape} of {members.dtype}")
    from_mean = rows - rows.mean(axis=0)
    from_centre = np.empty_like(rows)
    for cluster in np.unique(members):
        inside = members == cluster
        from_centre[inside] = rows[inside] - rows[inside].mean(axis=0)
    return from_centre, from_mean


def _ratio(from_centre: Reals, from_mean: Reals) -> float:
    total = float(np.vdot(from_mean, from_mean))
    if not total > 0:
        raise ValueError("features: all rows are alike")
    return min(float(np.vdot(from_centre, from_centre)) / total, 1.0)
