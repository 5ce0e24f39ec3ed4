"""Statistics of tables before any training: what the sites' columns hold, from one sum over the sources.

Every row adds a vector of bounded numbers: for a column of numbers its place on public bins, its scaled value and the
square of that; for a category its value; for both, whether it is missing. Under the rule ``analytic`` the sources add
these vectors up, masked, and with noise where their policies ask for it. The model of such a run is their mean. Means,
deviations, quantiles, missing shares and label balance follow from it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from securefda.errors import ConfigError
from securefda.tasks.base import Rows, Samples, Unlabelled
from securefda.tasks.features import EncodedRows
from securefda.tasks.table_files import Table, category
from securefda.tasks.tabular import Tabular, is_far
from securefda.text import names

FACTORY = "securefda.tasks.table_statistics:TableStatistics"
CONSTANTS = "sums.bias"
"""The layer that holds the means of what rows add."""

LONGEST = 0.32
"""Bound on what a row adds to the sum that is sent, ``session.clip``: no row of any table is longer."""

_EDGES = np.array([-100, -10, -4, -3, -2, -1.5, -1, -0.5, 0, 0.5, 1, 1.5, 2, 3, 4, 10, 100], np.float64)
"""Between the bins of a scaled number. The outermost show a wrong unit, or a number that stands for a missing value."""

_FAR_BINS = [0, 1, -2, -1]
"""Of numbers more than ten scales from the center."""

_FARTHEST = 4.0
"""A scaled number farther from 0 counts as this in mean and deviation, so that no single one moves them far."""

_APART = 2.0
"""From so many deviations between their medians on, a site and the sources are said to differ."""

_RARE_CLASS = 0.05
_SURE = 3.0
"""A share is named where it is above the noise by this many of its standard deviations."""

_ROUNDING = 1e-3
"""A share of rows that the encoding of a sum can make of nothing."""

_TO_DEVIATION = 1.349
"""The distance between the quartiles of a normal distribution, in standard deviations."""

Shares = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class NumberStatistics:
    """Statistics of a column of numbers, in its own unit.

    Attributes:
        column: its name.
        missing: the share of rows without a value.
        mean, deviation: of the values, those more than four scales from the public center taken as that far.
        median, spread: from the bins; the spread is the deviation of a normal distribution with these quartiles.
        far: the share of values more than ten scales from the public center.
        noise: the standard deviation of the noise in a share; 0 without noise.
        bins: the share of values in each bin; `edges` in the unit of the column lie between.
    """

    column: str
    missing: float
    mean: float
    deviation: float
    median: float
    spread: float
    far: float
    noise: float
    bins: tuple[float, ...]
    edges: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class CategoryStatistics:
    """Statistics of a category or of classes.

    Attributes:
        column: its name.
        missing: the share of rows without a value.
        unlisted: the share of rows with a value that the options do not list.
        shares: listed value -> its share of rows.
        noise: as of :class:`NumberStatistics`.
    """

    column: str
    missing: float
    unlisted: float
    shares: dict[str, float]
    noise: float


Statistics = NumberStatistics | CategoryStatistics


@dataclass(frozen=True, slots=True)
class _ColumnSums:
    """What a row adds for one column: of a category one entry for each of ``values``, else bins, value and square."""

    name: str
    values: tuple[str, ...] = ()
    center: float = 0.0
    scale: float = 1.0

    @property
    def width(self) -> int:
        return 2 + len(self.values) if self.values else 4 + len(_EDGES)

    @property
    def longest(self) -> int:
        """The largest squared length of what a row adds."""
        return 1 if self.values else 3

    def of_category(self, cells: Sequence[str], missing: NDArray[np.bool_]) -> Shares:
        """Return missing, unlisted, and each value; one of them is 1, ``(n, 2 + values)``."""
        marks = np.array([category(cell) for cell in cells], object)[:, None] == np.array(self.values, object)
        marks &= ~missing[:, None]
        return np.column_stack([missing, ~missing & ~marks.any(axis=1), marks]).astype(np.float64)

    def of_number(self, numbers: Shares, missing: NDArray[np.bool_]) -> Shares:
        """Return missing, the scaled value and its square in [-1, 1], and each bin, ``(n, 4 + edges)``."""
        scaled = (numbers - self.center) / self.scale
        near = np.clip(scaled, -_FARTHEST, _FARTHEST) / _FARTHEST
        bins = np.eye(len(_EDGES) + 1)[np.searchsorted(_EDGES, scaled, side="right")]
        present = np.column_stack([near, near**2, bins]) * ~missing[:, None]
        return np.column_stack([missing, present])

    def places(self, sums: Shares) -> Shares:
        """Return the entries of which one is 1 in each row."""
        return sums if self.values else np.delete(sums, (1, 2))

    def statistics(self, sums: Shares, noise: float) -> Statistics:
        """Return the statistics from what rows add, divided by any number; with noise an entry may lie below 0.

        A row adds 1 in all to the places of a column. So they tell how many rows count, even where a norm cap scaled
        them, or a policy kept a place with few rows. ``noise`` is the deviation of the noise in an entry.
        """
        bins = sums[3:]
        rows = max(float(self.places(sums).sum()), 1e-12)
        missing = min(max(float(sums[0]) / rows, 0.0), 1.0)
        if self.values:
            shares = np.maximum(sums[1:] / rows, 0.0).tolist()
            of_values = dict(zip(self.values, shares[1:], strict=True))
            return CategoryStatistics(self.name, missing, shares[0], of_values, noise / rows)
        present = max(float(bins.sum()), 1e-12)
        far = max(float(bins[_FAR_BINS].sum()) / present, 0.0)
        near, square = sums[1] / present * _FARTHEST, sums[2] / present * _FARTHEST**2
        bins = np.maximum(bins, 0.0) / max(float(np.maximum(bins, 0.0).sum()), 1e-12)
        low, median, high = (self.center + self.scale * _quantile(bins, share) for share in (0.25, 0.5, 0.75))
        return NumberStatistics(
            self.name,
            missing,
            mean=float(self.center + self.scale * near),
            deviation=float(self.scale * np.sqrt(max(square - near**2, 0.0))),
            median=median,
            spread=(high - low) / _TO_DEVIATION,
            far=far,
            noise=noise / rows,
            bins=tuple(bins.tolist()),
            edges=tuple((self.center + self.scale * _EDGES).tolist()),
        )


def _quantile(bins: Shares, share: float) -> float:
    """Return a quantile of scaled numbers, taken as equally frequent within a bin; at most the outermost edges."""
    below = np.concatenate([[0.0], np.cumsum(bins)])
    return float(np.interp(share, below[1:-1], _EDGES))


class TableStatistics(Tabular):
    """A table as for :class:`Tabular`, with the same options, of which statistics are wanted and no model.

    The target's rows stay out of the sum. Rows are those that would train: what is held out does not count.

    Raises:
        ConfigError, DataError: as of :class:`Tabular`; but a missing value or an unlisted category is counted.
    """

    sums_only = True
    metric = "mae"

    @cached_property
    def measured(self) -> tuple[_ColumnSums, ...]:
        """Return what is measured, in order: the columns that the options read, then the label."""
        options, label = self.options, self.options.label
        read = [
            _ColumnSums(name, column.values, column.center or 0.0, column.scale or 1.0)
            for name, column in options.read.items()
        ]
        if label.event:
            half = (label.horizon or 1.0) / 2
            return (*read, _ColumnSums(label.column, (), half, half), _ColumnSums(label.event, ("0", "1")))
        return (*read, _ColumnSums(label.column, label.classes, label.center or 0.0, label.scale or 1.0))

    @property
    def width(self) -> int:
        """How many numbers a row adds, k."""
        return sum(column.width for column in self.measured)

    @property
    def _unit(self) -> float:
        """By which a row's entries are multiplied, so that no row is longer than one half."""
        return 0.5 / float(np.sqrt(sum(column.longest for column in self.measured)))

    def model(self) -> nn.Module:
        """Return a constant for each entry of what is summed, and a digest of the options that sites must share."""
        head = nn.Linear(1, self.width)
        nn.init.zeros_(head.weight)
        nn.init.zeros_(head.bias)
        described = b"statistics " + self.options.description()
        return nn.Sequential(OrderedDict[str, nn.Module](rows=EncodedRows(described, unit=False), sums=head))

    def train_data(self, site: str) -> Samples | Unlabelled:
        """Return features of 0, ``(n, 1)``, and what each row adds, ``(n, k)``; of the target no labels."""
        if site == self.settings.target:
            return Unlabelled(torch.zeros(len(self._part(site, held_out=False)), 1))
        added = self.added(site)
        return Samples(torch.zeros(len(added), 1), torch.from_numpy(added * self._unit).float())

    def test_data(self, site: str) -> Samples | None:  # noqa: ARG002 - nothing is tested
        """Return None: there is no model to test."""
        return None

    def row_losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the squared distance of each row from the constants, which their mean makes least."""
        return (outputs - labels).square().mean(dim=1)

    def metrics(self, outputs: Tensor, labels: Tensor) -> dict[str, float]:
        """Return the mean distance of an entry from its constant."""
        return {"mae": float((outputs - labels).abs().mean())}

    def scaling_caution(self, rows: Rows) -> str:  # noqa: ARG002 - the statistics say it
        """Return nothing: this run is to find the scaling."""
        return ""

    def inputs_from(self, path: Path) -> Tensor:  # noqa: ARG002 - as of any path
        """Raise ConfigError: the model of such a run predicts nothing."""
        raise ConfigError("RUN", "holds statistics, and no model that predicts", hint="securefda statistics shows them")

    def added(self, site: str) -> Shares:
        """Return what each of a site's rows adds, ``(n, k)``, each entry in [-1, 1].

        Raises:
            DataError: the site's file is unfit, or has no rows.
        """
        table = self._part(site, held_out=False)
        where = f"{site}, train"
        self._require_some(np.ones(len(table), np.bool_), site, where, table)
        return np.concatenate([self._of_column(column, table, where) for column in self.measured], axis=1)

    def _of_column(self, sums: _ColumnSums, table: Table, where: str) -> Shares:
        if sums.name not in table.cells:  # the label, at a target without labels
            return np.eye(sums.width)[np.zeros(len(table), np.int64)]
        if sums.values:
            return sums.of_category(table.cells[sums.name], self.options.missing(table, sums.name))
        return sums.of_number(*self._column_of_numbers(table, sums.name, where))

    def of_constants(self, constants: Tensor) -> tuple[Statistics, ...]:
        """Return the statistics that the model's constants ``(k,)`` say."""
        return self._statistics(constants.double().numpy() / self._unit)

    def of_site(self, site: str) -> tuple[Statistics, ...]:
        """Return the statistics of a site's own rows; raises as :meth:`added`."""
        return self._statistics(self.added(site).mean(axis=0))

    def _statistics(self, means: Shares) -> tuple[Statistics, ...]:
        parts = np.split(means, np.cumsum([column.width for column in self.measured])[:-1])
        columns = list(zip(self.measured, parts, strict=True))
        places = np.concatenate([column.places(part) for column, part in columns])
        below = places[places < -_ROUNDING]  # no place has fewer than no rows: what is below 0 is noise
        noise = float(np.sqrt(np.square(below).mean())) if len(below) else 0.0
        return tuple(column.statistics(part, noise) for column, part in columns)

    def cautions(self, sources: Sequence[Statistics], own: Sequence[Statistics], site: str) -> Iterator[str]:
        """Yield what somebody should look at before training: one line each.

        Args:
            sources: statistics of the sources together.
            own: of the rows of ``site``.
            site: whose rows these are.
        """
        for column, theirs, ours in zip(self.measured, sources, own, strict=True):
            for who, seen in (("the sources", theirs), (site, ours)):
                yield from self._of_column_at(column, seen, who)
            if isinstance(theirs, NumberStatistics) and isinstance(ours, NumberStatistics) and theirs.spread > 0:
                apart = (ours.median - theirs.median) / theirs.spread
                if abs(apart) > _APART:
                    yield (
                        f"{column.name}: the median at {site} is {ours.median:.4g}, {apart:+.1f} deviations from the "
                        f"sources' {theirs.median:.4g}: another unit, or how the domains differ?"
                    )

    def _of_column_at(self, sums: _ColumnSums, seen: Statistics, who: str) -> Iterator[str]:
        described = self.options.read.get(sums.name)
        sure = _SURE * seen.noise + _ROUNDING
        if seen.missing > sure and described is not None and described.missing == "refuse":
            yield f'{sums.name}: {seen.missing:.1%} of the rows at {who} have no value: set missing = "fill"'
        if isinstance(seen, CategoryStatistics):
            if seen.unlisted > sure and (described is None or described.unknown == "refuse"):
                yield f"{sums.name}: {seen.unlisted:.1%} of the rows at {who} have a value that is not listed"
            rare = [name for name, share in seen.shares.items() if share < _RARE_CLASS]
            if described is None and rare:
                yield f"{sums.name}: fewer than {_RARE_CLASS:.0%} of the rows at {who} are {names(rare)}"
            return
        if seen.far > sure * len(_FAR_BINS) ** 0.5:
            yield (
                f"{sums.name}: {seen.far:.1%} of the values at {who} lie more than 10 scales from the center: another "
                "unit, or numbers that stand for a missing value?"
            )
            return
        if is_far((seen.median - sums.center) / sums.scale, seen.spread / sums.scale):
            yield f"{sums.name}: the public center and scale do not suit the rows at {who}"

    def as_json(self, statistics: Sequence[Statistics]) -> dict[str, Any]:
        """Return column -> its statistics, for JSON."""
        return {one.pop("column"): one for one in map(asdict, statistics)}
