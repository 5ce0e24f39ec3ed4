"""The preparation of a table's rows as part of a model, for other software: raw columns in, outputs out.

Cells are prepared as `Tabular` does it: numbers are scaled, categories become a feature for each value, and what is
missing is marked. Text cannot pass through torch, so a category comes as the place of its value; who exports the model
puts `PreparedTable.places` before it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from securefda.tasks.table_files import is_number
from securefda.tasks.tabular import Column, TabularOptions

UNKNOWN, MISSING = -1, -2
"""Places of a value that the options do not list, and of none."""


class PreparedTable(nn.Module):
    """A model behind the preparation of its columns.

    Where training refuses a row or leaves it out, for a missing value or an unlisted category, all outputs are NaN.

    Args:
        model: takes features (n, k) float32.
        options: of the task.
    """

    def __init__(self, model: nn.Module, options: TabularOptions) -> None:
        super().__init__()
        self.model, self.options = model, options

    def forward(self, columns: Mapping[str, Tensor]) -> Tensor:
        """Return the outputs of rows, (n, c).

        Args:
            columns: name to numbers, (n, 1) float64 with NaN for a missing one; or to places of categories, (n, 1)
                int64.
        """
        parts = [
            part
            for name, column in self.options.read.items()
            for part in _features(column, columns[name], self._codes(column))
        ]
        outputs: Tensor = self.model(torch.cat(parts, dim=1).float())
        return outputs

    @property
    def places(self) -> dict[str, dict[str, int]]:
        """Return of each category's column the place of every cell that is known; all others are `UNKNOWN`."""
        return {
            name: {value: place for place, value in enumerate(column.values)}
            | dict.fromkeys((*self.options.missing_values, *column.missing_values), MISSING)
            for name, column in self.options.read.items()
            if column.type == "category"
        }

    def _codes(self, column: Column) -> list[float]:
        """Return the numbers that stand for a missing value in a column."""
        texts = (text.replace(",", ".") for text in (*self.options.missing_values, *column.missing_values))
        return [float(text) for text in texts if is_number(text, ".")]

    def columns_of(self, features: Tensor) -> dict[str, Tensor]:
        """Return columns that `forward` prepares to these features, (n, k) float32, but for rounding."""
        columns, place = {}, 0
        for name, column in self.options.read.items():
            if column.type == "category":
                marks = features[:, place : place + len(column.values)]
                known = marks.argmax(dim=1, keepdim=True)
                columns[name] = torch.where(marks.sum(dim=1, keepdim=True) > 0, known, MISSING)
                place += len(column.values)
                continue
            columns[name] = features[:, [place]].double() * (column.scale or 1) + (column.center or 0)
            place += 1
            if column.missing == "fill":
                columns[name] = torch.where(features[:, [place]] > 0, math.nan, columns[name])
                place += 1
        return columns


def _features(column: Column, given: Tensor, codes: Sequence[float]) -> list[Tensor]:
    """Return the features of a column, (n, 1 or more) float64 each; ``codes`` are numbers that stand for none."""
    if column.type == "category":
        marks = (given == torch.arange(len(column.values))).double()
        for place, what in ((MISSING, column.missing), (UNKNOWN, column.unknown)):
            if what != "fill":
                marks = torch.where(given == place, math.nan, marks)
        return [marks]
    for code in codes:
        given = torch.where(given == code, math.nan, given)
    scaled = (given - (column.center or 0)) / (column.scale or 1)
    if column.missing != "fill":
        return [scaled]
    missing = given.isnan()
    return [torch.where(missing, 0.0, scaled), missing.double()]
