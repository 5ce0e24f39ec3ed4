"""What a federation gains over its target alone, by the figures of the studies: table and chart of the overview.

``tables.py`` writes both: the table into the page, the chart as ``overview.svg``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from studies import markdown

from securefda.pages.charts import svg_file
from securefda.pages.parts import Chart, Series

AUTO = ("fedda_auto", "fedgp_auto")


@dataclass(frozen=True, slots=True)
class Gain:
    """Percent of one data set: of the target alone, of the warm-started target if it was measured, and by each rule.

    Attributes:
        short: the name in the chart, of at most 14 letters.
    """

    data: str
    short: str
    alone: float
    warm: float | None
    by_rule: Mapping[str, float]

    @property
    def best(self) -> str:
        """The rule with the best figure, chosen after the fact."""
        return max(self.by_rule, key=lambda rule: self.by_rule[rule])

    @property
    def over_alone(self) -> float:
        """Points of the best rule above the target alone."""
        return self.by_rule[self.best] - self.alone

    @property
    def over_warm(self) -> float | None:
        """Points of the best rule above the warm-started target."""
        return None if self.warm is None else self.by_rule[self.best] - self.warm


def gains(folder: Path) -> list[Gain]:
    """A row for each data set, from the figures in ``folder``."""

    def figures(name: str) -> Any:
        return json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))

    demo = {row["name"]: fmean(row["accuracies"]) for row in figures("demo")["rows"]}
    suites = figures("accuracy")["tables"]
    full = figures("full_data")["rows"]
    one_round = {row["data"]: row for row in figures("one_round")["rows"]}

    def suite(name: str) -> dict[str, float]:
        place = 0 if name == "digits" else -1  # digits has one target, the others end in the mean over theirs
        return {row["name"]: row["cells"][place]["mean"] for row in suites[name]["rows"]}

    def study(name: str) -> dict[str, float]:
        return {
            row["rule"]: fmean(value for of in row["accuracy"].values() for value in of)
            for row in full
            if row["study"] == name and row["seeds"]
        }

    def trained(data: str, short: str, found: Mapping[str, float], alone: str, warm: str) -> Gain:
        return Gain(data, short, found[alone], found[warm], {rule: found[rule] for rule in AUTO if rule in found})

    def solved(data: str, short: str) -> Gain:
        row = one_round[data]
        return Gain(data, short, row["target alone"]["mean"], None, {"analytic": row["labels"]["mean"]})

    return [
        trained(
            "the demo's digits, baselines tuned", "demo", demo, "target_only, best of 9", "warm_target, best of 9"
        ),
        trained("Fed-Heart, public scaling", "Fed-Heart", suite("fed-heart-public"), "target_only", "warm_target"),
        trained(
            "Fed-Heart, each hospital's scaling", "own scaling", suite("fed-heart"), "target_only", "warm_target"
        ),
        trained("digits", "digits", suite("digits"), "target_only", "warm_target"),
        trained("ColoredMNIST, all images", "ColoredMNIST", study("ColoredMNIST"), "target_only", "warm_target"),
        trained(
            "noisy Fashion-MNIST, all images", "noisy Fashion", study("noisy Fashion-MNIST"), "target_only",
            "fine_tuning",
        ),
        solved("Amazon reviews, 100 labels", "reviews"),
        solved("Office-Caltech10, 3 a class", "photos"),
        solved("eICU, 20 %, AUROC", "ICU"),
        solved("TCGA-BRCA, 50 %, concordance", "survival"),
    ]  # fmt: skip


def tables(rows: Sequence[Gain]) -> dict[str, str]:
    """Return the table by its name."""
    head = (
        *("data", "over the target alone", "over the warm-started target", "rule", "with the sources"),
        *("target alone", "warm-started target"),
    )
    return {"gains": markdown(head, map(_cells, rows))}


def _cells(row: Gain) -> tuple[str, ...]:
    over_warm, warm = ("–", "–") if row.over_warm is None else (f"{row.over_warm:+.1f}", f"{row.warm:.1f}")
    best = (row.best, f"{row.by_rule[row.best]:.1f}")
    return row.data, f"{row.over_alone:+.1f}", over_warm, *best, f"{row.alone:.1f}", warm


def plot(rows: Sequence[Gain]) -> str:
    """Return the chart as a file of SVG."""
    alone = [(place, row.over_alone) for place, row in enumerate(rows, 1)]
    warm = [(place, row.over_warm) for place, row in enumerate(rows, 1) if row.over_warm is not None]
    series = (Series("above the target alone", alone), Series("above the warm-started target", warm))
    names = [row.short for row in rows]
    chart = Chart("What the sources add", "", series, unit="points", bars=True, names=names)
    about = "; ".join(
        f"{row.data}: {row.over_alone:+.1f} points above the target alone"
        + ("" if row.over_warm is None else f", {row.over_warm:+.1f} above the warm-started target")
        for row in rows
    )
    return svg_file(chart, about) + "\n"
