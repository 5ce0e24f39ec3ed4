"""T48: an aggregator reads rows from a sum of second moments, and tells which rows are behind it."""

from __future__ import annotations

from typing import Any

import numpy as np

from securefda.aggregator.headers import AttemptPosition
from securefda.aggregator.target import TargetOutput
from securefda.rules import Moments, RoundPlan
from securefda.training.head import HeadFitter
from threat_model.adversaries.base import MaliciousAggregator
from threat_model.adversaries.masks import Vector64
from threat_model.sites import INPUTS, OUTPUTS


class ReadsSecondMoments(MaliciousAggregator):
    """Follows the protocol under the rule ``analytic``, and looks at the sum.

    Powers: what an honest aggregator sees at ``sum``. It knows what each feature means and its usual value. It controls
    no source.
    Goal: the only row of a class or of a category; whether a row that it knows is among those behind the sum.
    Source: sums over the rows of one cell of a table, as in tables of statistical offices (Cox 1980); leverages of a
    regression (Hoaglin and Welsch 1978).
    """

    threat = "T48"

    def train(self, place: AttemptPosition, plan: RoundPlan) -> TargetOutput | None:  # noqa: ARG002 - of the base
        """Return an honest target's part: it fits its head afterwards. No header asks for a loss."""
        self.with_metrics.clear()
        return HeadFitter(self.seat.site.trainer, self.seat.settings.clip)  # type: ignore[arg-type]

    def moments(self) -> Moments:
        """Return the second moments of all rows behind the sum."""
        opened: Any = self.aggregate()  # in units of max-samples rows
        return Moments.from_means(
            opened.vector, width=INPUTS, outputs=OUTPUTS, rows=float(self.seat.settings.max_samples)
        )

    def row_of_class(self, number: int) -> Vector64:
        """Return the mean row of a class, (inputs,): its only row, if it has one."""
        moments = self.moments()
        return _row(moments.gram[-1] / OUTPUTS + moments.cross[number])

    def row_of_category(self, feature: int, usual: float = 0.0) -> Vector64:
        """Return the mean row, (inputs,), of the rows in which a feature has not its usual value."""
        gram = self.moments().gram
        return _row(gram[feature] - usual * gram[-1])

    def likeness(self, rows: Vector64) -> Vector64:
        """Return how well rows (n, inputs) fit among those behind the sum, (n,)."""
        moments = self.moments()
        values, basis = np.linalg.eigh(moments.gram)
        with_constant = np.column_stack([rows, np.ones(len(rows))])
        fit: Vector64 = -np.square(with_constant @ basis) @ (1 / np.maximum(values, 1e-6 * values[-1]))
        return fit


def _row(total: Vector64) -> Vector64:
    """Return a sum of rows with a constant as a row, (inputs,)."""
    row: Vector64 = total[:-1] / total[-1] if total[-1] else np.zeros(len(total) - 1)
    return row
