"""The difference of two models' accuracies on the same test rows, with a paired interval over these rows."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from securefda.operations.records import Help

Z = 1.959963984540054
"""The 0.975 quantile of the normal distribution."""


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
