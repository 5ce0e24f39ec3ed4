"""What a sum of second moments tells an aggregator that follows the protocol: rows, members and shares of classes.

    python benchmarks/gram_attack.py --measure --data-dir DIR    attack, and write the figures; a few minutes
    python benchmarks/gram_attack.py [--check]    from gram_attack.json: print the tables

DIR holds the folders amazon_review, office_caltech and pacs; data that it lacks are left out. Fed-Heart is bundled.
Rows are drawn from one pool, so that no attack wins by telling sites apart; sums are exact, at the default bound of a
row.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import roc_curve
from studies import as_text, markdown, this_machine, told

from securefda.errors import PolicyRefusal
from securefda.rules.analytic import Moments, bounded_rows, rare_values
from securefda.site.policy import check_moments, default_policy
from securefda.tasks import TaskSettings
from securefda.tasks.fed_heart import HOSPITALS, FedHeart

FIGURES = Path(__file__).parent / "gram_attack.json"
SOURCES = (1, 3, 5, 10)
BOUND = 1.0
_DRAWS, _CANDIDATES = 5, 400
_ALONE = 0.999
"""A row with this leverage makes up nearly all of the sum of squares in some direction."""
_SAME = 1e-6
"""Relative error up to which a row has been read."""

Matrix = NDArray[np.float64]


@dataclass(frozen=True, repr=False)
class Pool:
    """Rows to draw from.

    Attributes:
        features: (n, d).
        codes: of their classes, (n, c): two values in each column.
        base_levels: directions (d + 1,) that an attacker knows to be 1 for a category without a column, and 0 else.
    """

    features: Matrix
    codes: Matrix
    base_levels: Sequence[Matrix] = ()

    @cached_property
    def vectors(self) -> Matrix:
        """Return v = (z, y) of each row, as `extended` sums them up, (n, d + c) or (n, d + 1 + c)."""
        rows, wanted, _ = bounded_rows(self.features, self.codes, bound=BOUND)
        return np.column_stack([rows, wanted[:, :-1] if wanted.shape[1] > 1 else wanted])

    @property
    def code_values(self) -> tuple[Matrix, Matrix]:
        """Return the two values of each code, (c,)."""
        return self.codes.min(axis=0), self.codes.max(axis=0)

    @cached_property
    def directions(self) -> Matrix:
        """Return what to multiply A with, for each feature's unusual values and each base level, (k, d + 1)."""
        usual = rare_values(self.features, 1)[1]
        return np.array([*np.column_stack([np.eye(len(usual)), -usual]), *self.base_levels])

    def moments(self, which: NDArray[np.int64]) -> Moments:
        """Return those of some rows."""
        return Moments.of(self.features[which], self.codes[which], bound=BOUND)


def synthetic() -> Pool:
    """Thirty-two normal features, and eight categories that 0.1 to 30 % of the rows have."""
    numbers = np.random.default_rng(1)
    count, rates = 30_000, np.geomspace(0.001, 0.3, 8)
    features = np.column_stack([numbers.normal(size=(count, 32)), numbers.random((count, 8)) < rates])
    labels = features[:, :32] @ numbers.normal(size=32) + numbers.normal(size=count) > 8.0  # about one in thirteen
    return Pool(features, np.where(labels, 1.0, -1.0)[:, None])


def fed_heart() -> Pool:
    """All 740 rows; chest pain and the electrocardiogram each have a level without a column."""
    task = FedHeart(TaskSettings(HOSPITALS[0], HOSPITALS[1:], options={"scaling": "public", "target-fraction": 1.0}))
    parts = [of(site) for site in HOSPITALS for of in (task.train_data, task.test_data)]
    features = np.concatenate([part.features.numpy() for part in parts]).astype(np.float64)
    codes = np.concatenate([task.head_targets(part.labels, 1).numpy() for part in parts]).astype(np.float64)
    base_levels = []
    for columns in ((8, 9, 10), (11, 12)):  # a level's column is 1 for it, and -1 for every other
        direction = np.zeros(14)
        direction[list(columns)], direction[-1] = -0.5, 1 - len(columns) / 2
        base_levels.append(direction)
    return Pool(features, codes, base_levels)


def of_files(folder: Path, pattern: str) -> Pool:
    """All rows of some files with features and class numbers; of rows with the same features, one."""
    parts = [np.load(file) for file in sorted(folder.glob(pattern))]
    features = np.concatenate([part["features"] for part in parts]).astype(np.float64)
    labels = np.concatenate([part["labels"] for part in parts])
    once = np.sort(np.unique(features, axis=0, return_index=True)[1])
    classes = int(labels.max()) + 1
    return Pool(features[once], np.eye(classes)[labels[once]] - 1 / classes)


def pools(data: Path) -> dict[str, tuple[Callable[[], Pool], tuple[int, ...]]]:
    """Name -> how it is made, and rows of each source."""
    found: dict[str, tuple[Callable[[], Pool], tuple[int, ...]]] = {
        "synthetic": (synthetic, (4, 20, 41, 164, 656, 2624)),
        "Fed-Heart": (fed_heart, (4, 14, 28, 56)),
    }
    for name, pattern, sizes in (
        ("Amazon reviews", "amazon_review/*.npz", (40, 401, 700)),
        ("Office-Caltech, EfficientNet", "office_caltech/efficientnet_lite0_*.npz", (30, 200)),
        ("PACS, EfficientNet", "pacs/efficientnet_lite0_*.npz", (400, 1281)),
    ):
        if any(data.glob(pattern)):
            found[name] = (partial(of_files, data, pattern), sizes)
    return found


def extended(moments: Moments, pool: Pool) -> Matrix:
    """Sum of v v^T over v = (z, y), the last y left out where there are several, which add up to a constant.

    Each row has at most one class, so that the products of two y follow from the counts of classes.
    """
    low, high = (values[: len(values) - 1 or 1] for values in pool.code_values)
    cross, count, apart = moments.cross[: len(low)], moments.gram[-1, -1], high - low
    of_class = cross[:, -1] - low * count  # times how far the two values are apart
    products = count * np.outer(low, low) + np.outer(low, of_class) + np.outer(of_class, low)
    products[np.diag_indices_from(products)] += apart * of_class
    return np.block([[moments.gram, cross.T], [cross, products]])


def leverages(second: Matrix, rows: Matrix) -> Matrix:
    """Share of each row in the sum of squares, in the direction in which it is largest, (n,); of members at most 1."""
    values, basis = np.linalg.eigh(second)
    return np.square(rows @ basis) @ (1 / np.maximum(values, values[-1] * 1e-10))


def candidate_rows(moments: Moments, pool: Pool) -> tuple[Matrix, Matrix]:
    """What the attacker takes for rows (k, d): a mean for each class, and for each feature's unusual values."""
    of_class = [
        code - value * moments.gram[-1]
        for values in pool.code_values
        for code, value in zip(moments.cross, values, strict=True)
    ]
    return _as_rows(np.array(of_class)), _as_rows(pool.directions @ moments.gram)


def _as_rows(sums: Matrix) -> Matrix:
    there = np.abs(sums[:, -1]) > 1e-9
    return np.asarray(sums[there, :-1] / sums[there, -1:], np.float64)


def read(candidates: Matrix, rows: Matrix) -> set[int]:
    """Which rows (n, d) are among the candidates."""
    found: set[int] = set()
    for candidate in candidates:
        apart = np.linalg.norm(rows - candidate, axis=1)
        nearest = int(apart.argmin())
        if apart[nearest] <= _SAME * np.linalg.norm(rows[nearest]):
            found.add(nearest)
    return found


def found_at(members: Matrix, others: Matrix, alarms: float = 0.01) -> float:
    """Share of members above all but a share of the others."""
    return float(np.mean(members > np.quantile(others, 1 - alarms)))


def auc(members: Matrix, others: Matrix) -> float:
    """Chance that a member scores above another row."""
    truth = np.r_[np.ones(len(members)), np.zeros(len(others))]
    false, true, _ = roc_curve(truth, np.r_[members, others])
    return float(np.trapezoid(true, false))


def one_draw(pool: Pool, sources: int, rows: int, seed: int) -> dict[str, float]:
    """Attack one sum: the figures of a row of `tables`."""
    order = np.random.default_rng((sources, rows, seed)).permutation(len(pool.features))
    taken, others = order[: sources * rows], order[sources * rows :][:_CANDIDATES]
    own, total = taken[:rows], pool.moments(taken)
    both = pool.vectors[np.r_[own, others]]
    (plain, unlike), (labelled, unlike_labelled) = (
        np.split(-leverages(second, both[:, : len(second)]), [rows]) for second in (total.gram, extended(total, pool))
    )
    by_class, by_feature = (read(rows_, pool.features[own]) for rows_ in candidate_rows(total, pool))
    half = len(others) // 2
    figures = {
        "auc": auc(plain, unlike),
        "auc_labelled": auc(labelled, unlike_labelled),
        "found": found_at(labelled, unlike_labelled),
        "null": auc(unlike_labelled[:half], unlike_labelled[half:]),
        "by_class": len(by_class) / rows,
        "by_feature": len(by_feature) / rows,
        "in_some_direction": float(np.mean(-labelled > _ALONE)),
    }
    return figures | _under_the_policy(pool, own, taken[rows:])


def _under_the_policy(pool: Pool, own: NDArray[np.int64], others: NDArray[np.int64]) -> dict[str, float]:
    """The same where the attacked source alone checks its rows, by the default policy."""
    true, codes = pool.features[own], pool.codes[own]
    try:
        features, codes = check_moments(default_policy(), true, codes)
    except PolicyRefusal as refusal:
        return {"refused": 1.0, refusal.key: 1.0}
    checked = Moments.of(features, codes, bound=BOUND)
    if len(others):
        beside = pool.moments(others)
        checked = Moments(checked.gram + beside.gram, checked.cross + beside.cross, checked.rows + beside.rows)
    rows = read(np.concatenate(candidate_rows(checked, pool)), true)
    changed = float(np.mean(features != true))
    return {"refused": 0.0, "read_under_policy": len(rows) / len(own), "changed": changed}


def prevalence(sources: int, rows: int) -> dict[str, Any]:
    """How well one source's share of a class is guessed from the exact share over the sum, in points.

    Shares are uniform in [0, 0.35]; the guess is linear in the sum's share, fitted to other federations.
    """
    numbers = np.random.default_rng((7, sources, rows))
    drawn = numbers.binomial(rows, numbers.uniform(0, 0.35, (20_000, sources))) / rows
    own, of_sum = drawn[:, 0], drawn.mean(axis=1)
    known, tried = slice(0, 10_000), slice(10_000, None)
    slope, offset = np.polyfit(of_sum[known], own[known], 1)
    wrong = own[tried] - (slope * of_sum[tried] + offset)
    without = own[tried] - own[known].mean()
    return {
        "study": "prevalence",
        "sources": sources,
        "rows": rows,
        "error": 100 * float(np.abs(wrong).mean()),
        "error_of_mean": 100 * float(np.abs(without).mean()),
        "r2": 1 - float(np.square(wrong).sum() / np.square(without).sum()),
    }


def measured(data: Path) -> list[dict[str, Any]]:
    """All figures, means over the draws."""
    found = []
    for name, (make, sizes) in pools(data).items():
        pool = make()
        for rows in sizes:
            for sources in SOURCES:
                if sources * rows + _CANDIDATES // 4 > len(pool.features):
                    continue
                draws = [one_draw(pool, sources, rows, seed) for seed in range(_DRAWS)]
                keys = dict.fromkeys(key for draw in draws for key in draw)
                row = {"study": name, "sources": sources, "rows": rows, "numbers": pool.features.shape[1] + 1}
                means = {key: _mean(draws, key) for key in keys}
                found.append(row | {key: round(value, 6) for key, value in means.items()})
                print(found[-1], file=sys.stderr, flush=True)
    return [*found, *(prevalence(sources, 100) for sources in SOURCES)]


def _mean(draws: Sequence[Mapping[str, float]], key: str) -> float:
    """Mean over the draws that were not refused; of refusals, over all."""
    if key == "refused" or key.startswith("moments."):
        return fmean(draw.get(key, 0.0) for draw in draws)
    return fmean(draw[key] for draw in draws if key in draw)


def tables(rows: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Three tables in Markdown."""
    every = list(rows)
    attacked = [row for row in every if row["study"] != "prevalence"]
    members, read_rows = [], []
    for row in attacked:
        place = [row["study"], str(row["rows"]), str(row["sources"])]
        each = _short(row["sources"] * row["rows"] / row["numbers"])
        aucs = [f"{row['auc']:.2f}", f"{row['auc_labelled']:.2f}", f"{100 * row['found']:.0f}", f"{row['null']:.2f}"]
        members.append([place[0], str(row["numbers"]), *place[1:], each, *aucs])
        names = ("by_class", "by_feature", "in_some_direction", "refused", "read_under_policy", "changed")
        shares = ["–" if name not in row else _short(100 * row[name]) for name in names]
        read_rows.append([*place, *shares])
    classes = [
        [
            str(row["sources"]),
            str(row["rows"]),
            *(f"{row[key]:.1f}" for key in ("error", "error_of_mean")),
            f"{row['r2']:.2f}",
        ]
        for row in every
        if row["study"] == "prevalence"
    ]
    auc_head = ("AUC, features", "AUC, with label", "found at 1 %", "AUC of other rows")
    read_head = ("by class, %", "by feature, %", "alone in some direction, %", "refused, %", "read under the policy, %")
    per_number = ("numbers in a row", "rows of each source", "N", "rows in the sum for each number")
    return {
        "members": markdown(("data", *per_number, *auc_head), members),
        "rows": markdown(("data", "rows of each source", "N", *read_head, "values kept back, %"), read_rows),
        "classes": markdown(("N", "rows of each source", "error, points", "guessing the mean", "R²"), classes),
    }


def _short(number: float) -> str:
    return f"{number:.0f}" if number >= 10 else f"{number:.2g}"


def misses(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Controls that do not hold, a line each."""
    wrong = []
    for row in rows:
        if row["study"] == "prevalence":
            if row["sources"] == 1 and row["r2"] < 0.999:
                wrong.append(f"prevalence is not exact at N = 1: {row['r2']}")
            continue
        place = f"{row['study']}, N = {row['sources']}, {row['rows']} rows"
        if row["sources"] * row["rows"] < row["numbers"] and row["auc"] < 0.99:
            wrong.append(f"{place}: fewer rows than numbers, and an AUC of {row['auc']}")
        if abs(row["null"] - 0.5) > 0.1:
            wrong.append(f"{place}: rows of another draw are told apart, {row['null']}")
        if row.get("read_under_policy", 0) > row["by_class"] + row["by_feature"]:
            wrong.append(f"{place}: the policy shows more rows, {row['read_under_policy']}")
    return wrong


def main() -> int:
    """Measure if asked to, then print the tables; with --check, 1 where a control does not hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--data-dir", type=Path)
    asked = parser.parse_args()
    if asked.measure:
        if asked.data_dir is None:
            parser.error("--measure needs --data-dir")
        FIGURES.write_text(as_text(measured(asked.data_dir), this_machine()))
    rows = json.loads(FIGURES.read_text())["rows"]
    return told(tables(rows), misses(rows), check=asked.check)


if __name__ == "__main__":
    sys.exit(main())
