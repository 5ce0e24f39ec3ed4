"""The metrics by which a model is judged: their names, which direction is better, and how they are printed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class TaskMetric:
    """One of the metrics that a task returns.

    Attributes:
        name: its key in what :meth:`securefda.tasks.Task.metrics` returns.
        words: its name for people; empty: ``name`` with spaces.
        better: whether a higher or a lower value is the better one.
        percent: whether it is a share of rows, in [0, 1], which is printed in percent.
    """

    name: str
    words: str = ""
    better: Literal["higher", "lower"] = "higher"
    percent: bool = False

    @property
    def title(self) -> str:
        """The name for people."""
        return self.words or self.name.replace("_", " ")

    @property
    def unit(self) -> str:
        """The unit of a difference, in words, with a space before it; empty without one."""
        return " points" if self.percent else ""

    def text(self, value: float | None) -> str:
        """Return a value for people, or a dash for None."""
        if value is None:
            return "-"
        return f"{100 * value:.1f} %" if self.percent else _number(value)

    def difference(self, value: float) -> str:
        """Return a difference of two values with its sign, in points where they are printed in percent."""
        if self.percent:
            return f"{round(100 * value, 1) + 0.0:+.1f}"  # adding zero leaves no "-0.0"
        return f"{'+' if value >= 0 else '-'}{_number(abs(value))}"

    def named(self, value: float | None) -> str:
        """Return the name and the value."""
        return f"{self.title} {self.text(value)}"

    def rank(self, value: float) -> float:
        """Return a number that is the higher, the better the value is."""
        return value if self.better == "higher" else -value


def _number(value: float) -> str:
    return f"{value:.3f}" if value == 0 or 0.001 <= abs(value) < 10 else f"{value:.3g}"


ACCURACY = TaskMetric("accuracy", percent=True)
METRICS: Mapping[str, TaskMetric] = {
    metric.name: metric
    for metric in (
        ACCURACY,
        TaskMetric("balanced_accuracy", percent=True),
        TaskMetric("auroc", "AUROC"),
        TaskMetric("sensitivity", percent=True),
        TaskMetric("specificity", percent=True),
        TaskMetric("f1", "F1"),
        TaskMetric("expected_calibration_error", "calibration error", better="lower"),
        TaskMetric("brier", "Brier score", better="lower"),
        TaskMetric("mae", "MAE", better="lower"),
        TaskMetric("rmse", "RMSE", better="lower"),
        TaskMetric("r2", "R²"),
        TaskMetric("dice", "Dice"),
        TaskMetric("concordance", "concordance index"),
    )
}
"""By name. ``securefda.tasks.metric_functions`` computes them. A task declares others as ``own_metrics``."""


def metric_of(name: str) -> TaskMetric:
    """Return the metric of this name; one that is not known is printed as a number."""
    return METRICS.get(name) or TaskMetric(name)


def with_balance(metric: TaskMetric, values: Mapping[str, float]) -> str:
    """Return the value of a metric; behind an accuracy also the balanced one, since one class can be rare."""
    text, balanced = metric.text(values.get(metric.name)), values.get("balanced_accuracy")
    if metric != ACCURACY or balanced is None:
        return text
    return f"{text}, balanced {metric.text(balanced)}"


def metrics_text(values: Mapping[str, float | None], apart_from: Iterable[str] = ()) -> str:
    """Return all metrics with their values, for example ``balanced accuracy 71.0 %, AUROC 0.812``."""
    left_out = set(apart_from)
    return ", ".join(metric_of(name).named(value) for name, value in values.items() if name not in left_out)
