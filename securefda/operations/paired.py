"""The difference of two models on the same test rows, with a paired interval over these rows."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from securefda.operations.records import Help

Z = 1.959963984540054
"""The 0.975 quantile of the normal distribution."""


RESAMPLES = 200
"""As many give a standard error: Efron and Tibshirani, An Introduction to the Bootstrap (1993), section 6.4."""


def bootstrap_help(difference: Callable[[npt.NDArray[np.int64]], float], rows: int) -> Help | None:
    """Return a difference with a 95 % interval from a paired bootstrap over test rows: 1.96 of its standard errors.

    It is for metrics that are no means over rows. The seed is fixed, so that the same rows give the same interval. None
    if the metric is not defined on some resample: then there are too few rows of a kind for an interval.

    Args:
        difference: of the two models' metric on rows of these numbers, repeated ones included; NaN if not defined.
        rows: how many there are, at least 1.
    """
    random, middle = np.random.default_rng(0), difference(np.arange(rows))
    drawn = [difference(random.integers(0, rows, rows)) for _ in range(RESAMPLES)]
    margin = Z * float(np.std(drawn, ddof=1))
    if not math.isfinite(middle + margin):
        return None
    return Help(difference=middle, low=middle - margin, high=middle + margin, test_rows=rows)


def paired_help(run: npt.ArrayLike, baseline: npt.ArrayLike) -> Help:
    """Return by how much ``run`` is more accurate than ``baseline``, with a 95 % interval.

    Two rows are added before the normal approximation: half a row that the run alone has right, half a row that the
    baseline alone has right, and one without a difference. Of single rounds, where each row is right or wrong, this is
    the interval of Agresti and Min ("Simple improved confidence intervals for comparing matched proportions", 2005).
    It has its coverage with few rows too, and a width where no row differs. It tells what other rows of the same kind
    would give with these two models, and nothing of another seed.

    Args:
        run: mean accuracy of each test row, ``(n,)``, each in [0, 1], n at least 1.
        baseline: the same of the other model, ``(n,)``.
    """
    differences = np.asarray(run, np.float64) - np.asarray(baseline, np.float64)
    count = differences.size + 2
    middle = float(differences.sum()) / count
    variance = (float(np.square(differences).sum()) + 1) / count - middle * middle
    margin = Z * math.sqrt(variance / count)
    low, high = max(-1.0, middle - margin), min(1.0, middle + margin)
    return Help(difference=float(differences.mean()), low=low, high=high, test_rows=differences.size)
