"""Tables without code: each site's rows in a file or query, numbers and categories; the label is a class, number or
time.

The federation's options contain all that sites must have in common: columns, categories, scaling, classes. Nothing is
learnt from a site's rows before training, so one row changes no other, and DP-SGD can bound the effect of a row. How
a site writes its rows, it says in a mapping of its own.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from torch import Tensor, nn

from securefda.errors import ConfigError, DataError
from securefda.settings import Settings, parse_options
from securefda.tasks.base import Rows, Samples, Task, TaskSettings, Unlabelled, seed_with
from securefda.tasks.features import MULTI_LABEL_FACTORY
from securefda.tasks.held_out import HeldOut
from securefda.tasks.mapping import (
    MAPPING_SUFFIX,
    Decimal,
    Encoding,
    MissingValues,
    Name,
    Separator,
    file_of_site,
    read_table,
    toml_key,
)
from securefda.tasks.metric_functions import class_metrics, concordance, number_metrics
from securefda.tasks.table_files import MISSING_VALUES, Table, category, is_date, is_number
from securefda.text import names

FACTORY = "securefda.tasks.tabular:Tabular"
_SPELT = "a site that spells one otherwise lists it in the levels of its mapping"
TENTHS_APART = 2.563
"""Standard deviations between the 10th and the 90th percentile of a normal distribution."""

_FAR_CENTER = 2.0
"""A site's median this many public scales from the public center is far from it."""

_FAR_SPREAD = 5.0
"""A site's spread is far from the public scale if one is this many times the other."""


def is_far(median: float, spread: float) -> bool:
    """Return whether a site's numbers lie far from the public scaling; both arguments are in public scales."""
    return abs(median) > _FAR_CENTER or (spread > 0 and not 1 / _FAR_SPREAD <= spread <= _FAR_SPREAD)


def _different(values: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(values)) < len(values):
        raise ValueError("must differ from each other")
    if not all(values):
        raise ValueError("must not be empty")
    return values


def _one_column(name: object) -> object:
    if isinstance(name, list):
        raise ValueError(
            "must be one column: for several labels of a row run once for each, or save the rows as features "
            f"for {MULTI_LABEL_FACTORY}"
        )
    return name


Values = Annotated[
    tuple[Annotated[str, AfterValidator(category)], ...], Field(strict=False), AfterValidator(_different)
]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Column(Settings):
    """A column, read by the model or not."""

    type: Literal["number", "category", "ignored"]
    """What the column holds; a column that is not listed is ignored as well."""

    center: Finite | None = None
    """For a number: the value to subtract, public and the same at every site."""

    scale: Positive | None = None
    """For a number: the value to divide by after that, also public."""

    values: Values = ()
    """For a category: all values that it can have at any site."""

    missing: Literal["refuse", "fill", "drop-row"] = "refuse"
    """How to treat a row without a value: refuse it; fill in the center and a mark, or no category; or drop the row."""

    missing_values: Values = ()
    """The contents of a cell without a value in this column alone, such as 999; ``999.0`` is the same."""

    unknown: Literal["refuse", "fill"] = "refuse"
    """For a category: how to treat a value that is not listed: refuse it, or read it as no category."""

    @model_validator(mode="after")
    def _has_what_its_type_needs(self) -> Self:
        scaled = self.center is not None and self.scale is not None
        if self.type == "number" and not scaled:
            raise ValueError("a number needs center and scale: round numbers that are public, no site's own mean")
        if self.type == "category" and not self.values:
            raise ValueError("a category needs values: all that it can have at any site")
        if self.type != "number" and (self.center is not None or self.scale is not None):
            raise ValueError("center and scale are of a number")
        if self.type != "category" and (self.values or self.unknown != "refuse"):
            raise ValueError("values and unknown are of a category")
        return self


class Label(Settings):
    """The column that the model predicts: a class, a number, or the time to an event."""

    column: Annotated[Name, BeforeValidator(_one_column)]
    """Its name in the header of the files."""

    classes: Values = ()
    """All classes, in order; empty where the label is a number or a time."""

    center: Finite | None = None
    """For a number: the value to subtract before training, public."""

    scale: Positive | None = None
    """For a number: the value to divide by after that, also public."""

    tolerance: Positive | None = None
    """For a number: the error up to which a prediction counts as accurate."""

    event: Name = ""
    """For a time: the column that is 1 where the event happened then, and 0 where the row was last seen without it."""

    horizon: Positive | None = None
    """For a time: training looks no further."""

    survival: Annotated[float, Field(gt=0, lt=1)] | None = None
    """For a time: the share of rows expected to reach the horizon without the event, public."""

    missing: Literal["refuse", "drop-row"] = "refuse"
    """How to treat a row without a label: refuse it, or drop it."""

    missing_values: Values = ()
    """The contents of a cell without a label, such as 999, beside those of every column."""

    @model_validator(mode="after")
    def _is_one_kind(self) -> Self:
        kinds = ((self.classes,), (self.center, self.scale, self.tolerance), (self.event, self.horizon, self.survival))
        begun = [kind for kind in kinds if any(part not in (None, "", ()) for part in kind)]
        if len(begun) > 1:
            raise ValueError("has classes, or center, scale and tolerance, or event, horizon and survival: one of them")
        if not begun or any(part in (None, "") for part in begun[0]):
            raise ValueError(
                "needs classes; or for a number center, scale and tolerance; or for a time event, horizon and survival"
            )
        if len(self.classes) == 1:
            raise ValueError("needs at least two classes")
        return self

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the columns that hold it."""
        return (self.column, self.event) if self.event else (self.column,)

    def until_horizon(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return of times whether the event happened by the horizon, and how many were expected by then, (n, 1) each.

        Expected is the cumulative hazard until the row's time or the horizon, of the constant hazard that leaves the
        share ``survival`` at the horizon.
        """
        times, events = labels[:, :1], labels[:, 1:]
        return events * (times <= 1), -math.log(self.survival or 1) * times.clamp(max=1)


class TabularOptions(Settings):
    """The options of a tabular task."""

    label: Label
    columns: Annotated[Mapping[Name, Column], Field(strict=False)]
    """Name in the header of the files = what the column is; at least one that is not ignored."""

    hidden_units: Annotated[int, Field(ge=0, le=4096)] = 16
    """Units of the model's one hidden layer; 0 for a linear model."""

    separator: Separator = ","
    """The separator between the cells of a line of CSV. A site's mapping decides over it and the next three."""

    decimal: Decimal = "."
    """The decimal mark of CSV."""

    encoding: Encoding = "utf-8"
    """Encoding of CSV; a byte order mark at its beginning is skipped."""

    missing_values: MissingValues = MISSING_VALUES
    """The contents of a cell without a value."""

    group: Name = ""
    """Column whose rows with the same value stay on one side of the split, such as the patient's number."""

    test_share: float = 0.2
    """Share of the target's rows that are held out, about."""

    source_test_share: float = 0.1
    """The same at every source."""

    split_seed: int = 0
    """Another number holds out other rows."""

    stratify: bool = False
    """Whether the target holds out the same share of each class; one more row can then move another one."""

    @model_validator(mode="after")
    def _something_is_read(self) -> Self:
        if self.label.column in self.columns and self.columns[self.label.column].type != "ignored":
            raise ConfigError(f"task.options.columns.{self.label.column}", "is the label", hint="remove it here")
        if self.label.event in self.read:
            raise ConfigError(f"task.options.columns.{self.label.event}", "is part of the label", hint="remove it here")
        if not self.read:
            raise ConfigError("task.options.columns", "names no column that the model reads")
        if self.separator == self.decimal:
            raise ConfigError("task.options.separator", f"{self.separator} is the decimal mark as well")
        return self

    @property
    def read(self) -> dict[str, Column]:
        """Return the columns that the model reads, by name, so that the order of the file does not matter."""
        return {name: self.columns[name] for name in sorted(self.columns) if self.columns[name].type != "ignored"}

    @property
    def categories(self) -> dict[str, tuple[str, ...]]:
        """Return every column that the options name, with its categories; a number has none."""
        label = {self.label.column: self.label.classes} | ({self.label.event: ("0", "1")} if self.label.event else {})
        group: dict[str, tuple[str, ...]] = {self.group: ()} if self.group else {}
        return group | {name: column.values for name, column in self.columns.items()} | label

    def contents(self, table: Table) -> Iterable[bytes]:
        """Return the content of each row that decides whether it is held out: its group, or all cells that are read."""
        read = [self.group] if self.group else [*self.read, *self.label.columns]
        columns = (table.cells[name] for name in read if name in table.cells)
        return (json.dumps(cells).encode() for cells in zip(*columns, strict=True))

    def description(self) -> bytes:
        """Return what must be equal at all sites, in one form: the label, and the columns that the model reads.

        How a missing value is spelt is each site's own.
        """
        own = {"missing_values"}
        columns = {name: column.model_dump(exclude=own) for name, column in self.read.items()}
        return json.dumps([self.label.model_dump(exclude=own), columns], sort_keys=True).encode()

    def missing(self, table: Table, name: str) -> NDArray[np.bool_]:
        """Return which rows have no value in a column, (n,): as their site spells it, or by the column's own codes."""
        codes = (self.label if name in self.label.columns else self.columns[name]).missing_values
        missing = table.missing(name)
        if codes:
            missing |= np.array([category(cell) in codes for cell in table.cells[name]], dtype=bool)
        return missing

    def present(self, table: Table, name: str) -> list[str]:
        """Return the cells of a column that hold a value; none if the table does not have the column."""
        if name not in table.cells:
            return []
        missing = self.missing(table, name)
        return [cell for cell, gone in zip(table.cells[name], missing, strict=True) if not gone]


class Tabular(Task):
    """Rows of a file: ``SITE.csv``, ``.xlsx`` or ``.parquet`` in the ``task.data-dir`` of each site, or what
    ``SITE.mapping.toml`` there names.

    A number becomes (number - center) / scale, and with ``missing = "fill"`` one feature more, 1 where it is missing.
    A category becomes one feature for each value, 1 for the row's own. Features stand in the order of the columns'
    names. Columns that the options do not name are not read.

    The model is a perceptron with one hidden layer, or linear. Its first weights follow from the seed and from the
    options' columns and label. So a source refuses a run whose target describes them otherwise.

    The file of a target without labels need not have the label's column, and cells in it may be empty. A row without a
    label is always one to train on; one with a label may be held out.

    Of classes the metrics are those of :func:`securefda.tasks.metric_functions.class_metrics`. Of a number they are
    ``rmse``, which comes first, ``mae`` and ``r2`` in its own unit, and ``accuracy``, the share of rows within
    ``tolerance``. Of a time there is ``concordance`` alone.

    For a time the model puts out the logarithm of a row's hazard beside the public one, and the analytic rule fits what
    happened until the horizon minus what was expected: the martingale residual of a model without features.

    Raises:
        ConfigError: an option is missing, unknown or wrong.
        DataError: on first use of a site's data, the file or a row is unfit. The message names site, split, column
            and number of rows; the hint, which stays at the site, a line of the file.
    """

    separate_rows = True

    def __init__(self, settings: TaskSettings) -> None:
        super().__init__(settings)
        self.options = parse_options(TabularOptions, settings.options)
        if not self.options.label.classes:
            self.metric = "concordance" if self.options.label.event else "rmse"
        self._at_target, self._at_sources = HeldOut.of(settings)
        self._tables: dict[str, Table] = {}

    def model(self) -> nn.Module:
        """Return features -> ``hidden-units`` rectified units -> a logit for each class, or one number."""
        inputs, hidden = len(self.feature_names()), self.options.hidden_units
        outputs = len(self.options.label.classes) or 1
        seed_with(self.options.description())
        if not hidden:
            return nn.Linear(inputs, outputs)
        return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))

    def train_data(self, site: str) -> Samples | Unlabelled:
        """Return the site's training rows: features (n, k) float32, labels (n,) int64, or (n, 1) float32.

        Labels that are times are (n, 2): the time in horizons, and 1 for an event.
        """
        if self.settings.lacks_labels(site):
            table, where = self._part(site, held_out=False), f"{site}, train"
            features, complete = self._features(table, where)
            self._require_some(complete, site, where, table)
            return Unlabelled(torch.from_numpy(features[complete]))
        return self._samples(site, held_out=False)

    def test_data(self, site: str) -> Samples | None:
        """Return the rows that the site holds out, of the same form; of an unlabelled target those with a label.

        None where there are none of an unlabelled target, and at sources that hold out the share 0.
        """
        if self.settings.lacks_labels(site) and not any(self._holds_out(site)):
            return None
        return self._samples(site, held_out=True) if self._split_of(site).share else None

    def require_own_sides(self, site: str) -> None:
        """Raise ConfigError at a target that holds out by class."""
        self._split_of(site).require_own_sides(site)

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the mean cross-entropy, squared error of the scaled label, or negative log-likelihood of the time."""
        return self.row_losses(outputs, labels).mean()

    def row_losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of each row."""
        label = self.options.label
        if label.classes:
            return nn.functional.cross_entropy(outputs, labels, reduction="none")
        if label.event:
            happened, expected = label.until_horizon(labels)
            return (expected * outputs.exp() - happened * outputs)[:, 0]
        return nn.functional.mse_loss(outputs, labels, reduction="none").mean(dim=1)

    def metrics(self, outputs: Tensor, labels: Tensor) -> dict[str, float]:
        """Return the metrics of classes, of a number or of a time, by name."""
        label = self.options.label
        if label.event:
            index = concordance(outputs[:, 0], labels[:, 0], labels[:, 1])
            return {"concordance": index}
        if not label.classes:
            predicted, true = ((each.double() * (label.scale or 1)) for each in (outputs, labels))
            near = (predicted - true).abs() <= (label.tolerance or 0)
            return number_metrics(predicted, true) | {"accuracy": float(near.double().mean())}
        return class_metrics(outputs, labels)

    def head_targets(self, labels: Tensor, outputs: int) -> Tensor:
        """Return what a linear head fits, (n, outputs): of times, the events by the horizon minus the expected."""
        if not self.options.label.event:
            return super().head_targets(labels, outputs)
        happened, expected = self.options.label.until_horizon(labels)
        return happened - expected

    def guesses(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the most probable class of each row, and its probability.

        Raises:
            ConfigError: the label is a number or a time, of which a model does not say how sure it is.
        """
        if not self.options.label.classes:
            return super().guesses(outputs)
        sure, classes = torch.softmax(outputs, dim=1).max(dim=1)
        return classes, sure

    def inputs_from(self, path: Path) -> Tensor:
        """Return the features (n, k) of a file, which needs no label and is otherwise as a site's own. A mapping beside
        it says how it is written; the path may be that of a mapping.

        Raises:
            DataError: as for a site's own file; also where a value is missing whose row training leaves out.
        """
        table = self._table(path, "")
        features, complete = self._features(table, str(path), is_trained=True)
        incomplete = [line for line, whole in zip(table.lines, complete, strict=True) if not whole]
        if incomplete:
            why = f"{len(incomplete)} of {len(table)} rows lack a value without which training leaves a row out"
            raise DataError(
                str(path), why, hint=f"{table.counted_in} {incomplete[0]} is the first; fill in the value, or remove it"
            )
        return torch.from_numpy(features)

    def predictions(self, outputs: Tensor) -> list[dict[str, str | float]]:
        """Return the most probable class of each row with the probability of every class, the number in its unit, or
        how many times the public hazard the row's is.
        """
        label = self.options.label
        if label.event:
            return [{f"relative hazard of {label.event}": hazard} for hazard in outputs[:, 0].double().exp().tolist()]
        if not label.classes:
            numbers = (outputs[:, 0].double() * (label.scale or 1) + (label.center or 0)).tolist()
            return [{label.column: number} for number in numbers]
        rows: list[list[float]] = torch.softmax(outputs.double(), dim=1).tolist()
        return [
            {label.column: label.classes[row.index(max(row))]}
            | {f"probability {name}": value for name, value in zip(label.classes, row, strict=True)}
            for row in rows
        ]

    def class_names(self) -> tuple[str, ...]:
        """Return the classes, in order; none where the label is a number or a time."""
        return self.options.label.classes

    def feature_names(self) -> tuple[str, ...]:
        """Return column, ``column missing`` or ``column = value`` for each feature."""
        names: list[str] = []
        for name, column in self.options.read.items():
            if column.type == "category":
                names += [f"{name} = {value}" for value in column.values]
            else:
                names += [name, f"{name} missing"] if column.missing == "fill" else [name]
        return tuple(names)

    def scaling_caution(self, rows: Rows) -> str:
        """Name the columns of numbers whose median or spread here is far from the public center and scale; else empty.

        Rows without a value do not count. A column that hardly varies has no spread to compare.
        """
        places = {name: place for place, name in enumerate(self.feature_names())}
        far = []
        for name, column in self.options.read.items():
            if column.type != "number":
                continue
            values = rows.features[:, places[name]]
            if column.missing == "fill":
                values = values[rows.features[:, places[name] + 1] == 0]
            if not len(values):
                continue
            low, median, high = np.quantile(values.double().numpy(), (0.1, 0.5, 0.9))
            spread = (high - low) / TENTHS_APART
            if is_far(median, spread):
                far.append(f"{name} (median {median:+.1f} scales from the center, spread {spread:.2g} scales)")
        if not far:
            return ""
        return (
            f"this site's rows lie far from the public scaling of {names(far)}: check the unit, or agree with the "
            "other sites on a center and scale that suit the rows of all"
        )

    def unread_columns(self, site: str) -> tuple[str, ...]:
        """Return the columns of a site's file that its options do not name."""
        return tuple(name for name in self.table(site).cells if name not in self.options.categories)

    def source_of(self, site: str) -> str:
        """Describe where a site's rows are and how they are read, for people at the site."""
        return self.table(site).source

    def table(self, site: str) -> Table:
        """Return the site's file. Raises what reading its rows does."""
        self.require_site(site)
        if site not in self._tables:
            if self.settings.data_dir is None:
                hint = f"set task.data-dir to the folder that holds {site}.csv"
                raise ConfigError("task.data-dir", "a tabular task reads each site's rows from a file", hint=hint)
            self._tables[site] = self._table(file_of_site(self.settings.data_dir, site), site)
        return self._tables[site]

    def _table(self, path: Path, site: str) -> Table:
        """Read a file and check that its columns are there; only a site's own file needs the label."""
        options = self.options
        has_label = bool(site) and not self.settings.lacks_labels(site)
        table = read_table(
            path,
            separator=options.separator,
            decimal=options.decimal,
            encoding=options.encoding,
            missing_values=options.missing_values,
            who=site,
            columns=options.categories,
            optional=() if has_label else options.label.columns,
        )
        wanted = [*options.read, *(options.label.columns if has_label else ()), *filter(None, [options.group])]
        absent = [name for name in wanted if name not in table.cells]
        if absent:
            key = f"{site}: {table.path}" if site else str(table.path)
            hint = self._hint_at(absent, table)
            if site == self.settings.target and absent == [options.label.column]:
                hint += '; a target without labels sets labels = "none" in its training settings'
            raise DataError(key, f"has no column {', '.join(absent)}", hint=hint)
        return table

    def _hint_at(self, absent: Sequence[str], table: Table) -> str:
        """Return a hint about absent columns. The header stays at the site: a file without one has a row in its
        place.
        """
        header = list(table.cells)
        other = next((mark for mark in ";,\t|" if mark != self.options.separator and mark in header[0]), "")
        if len(header) == 1 and other:
            return f"its lines seem to be separated otherwise: set task.options.separator = {json.dumps(other)}"
        near, mapping = get_close_matches(absent[0], header, n=1), f"{table.path.stem}{MAPPING_SUFFIX}"
        if near:
            return f"is it {near[0]}? Then rename it, or say so in {mapping} beside it"
        named = ", ".join(header)
        return f"the first line must name the columns; it names {named}. Other names than the task's go into {mapping}"

    def _split_of(self, site: str) -> HeldOut:
        return self._at_target if site == self.settings.target else self._at_sources

    def _holds_out(self, site: str) -> list[bool]:
        """Return which rows of a site's file are held out; at a target without labels, none that lacks one."""
        table, split_of, label = self.table(site), self._split_of(site), self.options.label
        name = label.event or label.column
        cells = table.cells.get(name, [""] * len(table))
        strata = map(category, cells) if label.classes or label.event else [""] * len(table)
        sides = split_of.sides(self.options.contents(table), strata)
        if not self.settings.lacks_labels(site):
            return sides
        labelled = ~self.options.missing(table, name) if name in table.cells else np.zeros(len(table), np.bool_)
        return [side and bool(has_label) for side, has_label in zip(sides, labelled, strict=True)]

    def _part(self, site: str, *, held_out: bool) -> Table:
        return self.table(site).part([row for row, side in enumerate(self._holds_out(site)) if side == held_out])

    def _require_some(self, kept: NDArray[np.bool_], site: str, where: str, table: Table) -> None:
        """Raise DataError if no row of a part is kept."""
        if kept.any():
            return
        rows, share = len(self.table(site)), self._split_of(site).share
        why = f"no row of the {rows} in {table.path.name} is left" if len(table) else f"has none of {rows} rows"
        hint = f"the share held out is {share:g}; another split-seed holds out other rows"
        if site != self.settings.target:
            hint += ", and source-test-share = 0 none at the sources"
        raise DataError(where, why, hint=hint)

    def _samples(self, site: str, *, held_out: bool) -> Samples:
        table, options = self._part(site, held_out=held_out), self.options
        where = f"{site}, {'test' if held_out else 'train'}"
        features, complete = self._features(table, where)
        labels, labelled = self._labels(table, where)
        kept = complete & labelled
        self._require_some(kept, site, where, table)
        targets = torch.from_numpy(labels[kept])
        return Samples(
            torch.from_numpy(features[kept]), targets[:, 0].long() if options.label.classes else targets.float()
        )

    def _features(
        self, table: Table, where: str, *, is_trained: bool = False
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Return features (n, k), and which rows have every value that they need.

        Once a model is trained, no hint is to set an option that would ask for another one.
        """
        parts: list[NDArray[np.float64]] = []
        complete = np.ones(len(table), dtype=bool)
        for name, column in self.options.read.items():
            cells, place = table.cells[name], _Place(where, name, table, is_trained)
            missing = self.options.missing(table, name)
            if column.missing == "refuse":
                place.refuse(missing, "hold no value", f'set missing = "fill" or "drop-row" in {_table_of(name)}')
            elif column.missing == "drop-row":
                complete &= ~missing
            if column.type == "category":
                parts.append(self._one_hot(cells, column, missing, place))
            else:
                numbers = self._numbers(cells, missing, place)
                scaled = np.where(missing, 0.0, (numbers - (column.center or 0)) / (column.scale or 1))
                place.refuse(np.abs(scaled) > np.finfo(np.float32).max, "hold a number that is too large")
                parts.append(scaled[:, None])
                if column.missing == "fill":
                    parts.append(missing[:, None].astype(np.float64))
        return np.concatenate(parts, axis=1).astype(np.float32), complete

    def _labels(self, table: Table, where: str) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Return class numbers, scaled numbers, or times and events (n, 1 or 2), and which rows have them."""
        label = self.options.label
        cells, place = table.cells[label.column], _Place(where, label.column, table)
        missing = self.options.missing(table, label.column)
        if label.missing == "refuse":
            place.refuse(missing, "hold no label", 'set task.options.label.missing = "drop-row" to leave such rows out')
        if label.event:
            cells, of_event = table.cells[label.event], _Place(where, label.event, table)
            unknown = self.options.missing(table, label.event)
            if label.missing == "refuse":
                of_event.refuse(unknown & ~missing, "hold no event", "1 where it happened, 0 where not")
            times, events = (
                self._numbers(table.cells[label.column], missing, place),
                self._numbers(cells, unknown, of_event),
            )
            place.refuse(times < 0, "hold a negative time", "times count from when a row is first seen")
            of_event.refuse(~np.isin(events, (0, 1)), "hold neither 0 nor 1", "1 where the event happened, 0 where not")
            return np.column_stack([times / (label.horizon or 1), events]), ~(missing | unknown)
        if not label.classes:
            numbers = self._numbers(cells, missing, place)
            return (numbers - (label.center or 0))[:, None] / (label.scale or 1), ~missing
        numbered = {value: number for number, value in enumerate(label.classes)}
        classes = [numbered.get(category(cell), -1) for cell in cells]
        unknown = np.array([number < 0 for number in classes], dtype=bool) & ~missing
        place.refuse(
            unknown, "hold a class that is not listed", f"list every class in task.options.label.classes; {_SPELT}"
        )
        return np.array(classes, dtype=np.float64)[:, None], ~missing

    def _one_hot(
        self, cells: Sequence[str], column: Column, missing: NDArray[np.bool_], place: _Place
    ) -> NDArray[np.float64]:
        values = np.array(column.values, dtype=object)
        marks = np.array([category(cell) for cell in cells], dtype=object)[:, None] == values[None, :]
        if column.unknown == "refuse":
            hint = f'list it under values in {_table_of(place.column)}, or set unknown = "fill" there; {_SPELT}'
            place.refuse(~marks.any(axis=1) & ~missing, "hold a category that is not listed", hint)
        return np.where(missing[:, None], 0.0, marks.astype(np.float64))

    def _numbers(self, cells: Sequence[str], missing: NDArray[np.bool_], place: _Place) -> NDArray[np.float64]:
        """Return the numbers of a column (n,), 0 for a missing one."""
        decimal = place.table.decimal
        unfit = np.array([not is_number(cell, decimal) for cell in cells], dtype=bool) & ~missing
        if unfit.any():
            hint, is_of_the_model = _number_hint(cells[int(unfit.argmax())], place.table)
            place.refuse(unfit, "hold no number", hint, is_of_the_model=is_of_the_model)
        texts = zip(cells, missing, strict=True)
        return np.array([0.0 if gone else float(cell.replace(decimal, ".")) for cell, gone in texts])

    def _column_of_numbers(self, table: Table, name: str, where: str) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Return the numbers of a column (n,), 0 for a missing one, and which are missing."""
        missing = self.options.missing(table, name)
        return self._numbers(table.cells[name], missing, _Place(where, name, table)), missing


def _number_hint(cell: str, table: Table) -> tuple[str, bool]:
    """Return a hint at a cell that is no number, and whether following it would change the model."""
    other = "," if table.decimal == "." else "."
    if is_date(cell):
        hint = 'dates are not read: export an age or a number of days, or set the column\'s type to "ignored"'
        return hint, True
    if is_number(cell, other) and table.counted_in == "row":
        return "it is a text there: have its file or query hold a number", False
    if is_number(cell, other):
        hint = f'set task.options.decimal = "{other}" if that is the decimal mark; marks of thousands are not read'
        return hint, False
    return "task.options.missing-values lists what stands for a missing value", False


def _table_of(column: str) -> str:
    """Return the name of a column's table in a federation's file."""
    return f"[task.options.columns.{toml_key(column)}]"


@dataclass(frozen=True, slots=True)
class _Place:
    """The place of refused rows: site and split, column, table, and whether a model is trained already."""

    where: str
    column: str
    table: Table
    is_trained: bool = False

    def refuse(self, rows: NDArray[np.bool_], what: str, hint: str = "", *, is_of_the_model: bool = True) -> None:
        """Raise DataError if any of ``rows`` is True; the message counts them, the hint names the first line.

        ``is_of_the_model`` says whether what the hint advises makes another model.
        """
        if not rows.any():
            return
        if self.is_trained and is_of_the_model:
            hint = "correct the value, or remove the row: the model is trained for the columns as they were described"
        first = f"{self.table.counted_in} {self.table.lines[int(rows.argmax())]} is the first"
        raise DataError(
            f"{self.where}, column {self.column}",
            f"{int(rows.sum())} of {len(self.table)} rows {what}",
            hint=f"{first}; {hint}" if hint else first,
        )
