"""A site's own dialect: how its rows are written, as `SITE.mapping.toml` beside them says. It never leaves the site.

The file of a site decides over the task's options, key by key: its separator, decimal mark and encoding, its names of
columns, its units, and its spellings of categories.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from securefda.errors import ConfigError, DataError
from securefda.settings import OptionalSettingsPath, Settings, parse_settings, read_toml
from securefda.tasks.table_files import (
    MISSING_VALUES,
    SUFFIXES,
    CsvFormat,
    Table,
    category,
    is_number,
    plain,
    read_file_of_rows,
)
from securefda.tasks.table_query import Query
from securefda.text import counted, names

MAPPING_SUFFIX: Final = ".mapping.toml"

UNITS: Final[Mapping[str, tuple[str, float, float]]] = {
    "seconds": ("time", 1, 0),
    "minutes": ("time", 60, 0),
    "hours": ("time", 3600, 0),
    "days": ("time", 86400, 0),
    "weeks": ("time", 7 * 86400, 0),
    "months": ("time", 365.25 * 86400 / 12, 0),
    "years": ("time", 365.25 * 86400, 0),
    "mm": ("length", 1, 0),
    "cm": ("length", 10, 0),
    "m": ("length", 1000, 0),
    "in": ("length", 25.4, 0),
    "ft": ("length", 304.8, 0),
    "mg": ("mass", 1, 0),
    "g": ("mass", 1000, 0),
    "kg": ("mass", 1e6, 0),
    "lb": ("mass", 453592.37, 0),
    "mmHg": ("pressure", 133.322387415, 0),
    "kPa": ("pressure", 1000, 0),
    "celsius": ("temperature", 1, 273.15),
    "fahrenheit": ("temperature", 5 / 9, 459.67 * 5 / 9),
    "kelvin": ("temperature", 1, 0),
}
"""Unit -> its dimension; the factor and the offset that turn a number of it into one of the dimension's base unit."""


def converted(number: float, unit: str, to: str) -> float:
    """Return a number of ``unit`` in the unit ``to`` of the same dimension, to 12 digits."""
    (_, factor, offset), (_, divisor, shift) = UNITS[unit], UNITS[to]
    return float(f"{(number * factor + offset - shift) / divisor:.12g}")


def toml_value(value: object) -> str:
    """Format a text, a number, a list, or a table of these as TOML on one line."""
    if isinstance(value, Mapping):
        pairs = ", ".join(f"{toml_key(key)} = {toml_value(one)}" for key, one in value.items())
        return f"{{ {pairs} }}" if pairs else "{}"
    if isinstance(value, float):
        return f"{value:g}"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # DEL, which TOML does not take


def toml_key(name: str) -> str:
    """Return a key as TOML has it: in quotes where it needs them."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else toml_value(name)


def one_character(value: str) -> str:
    """Return a separator. Raises ValueError if it is none."""
    if len(value) != 1 or value in '"\r\n':
        raise ValueError("must be one character, such as , or ; or a tab")
    return value


def known_encoding(value: str) -> str:
    """Return the name of an encoding. Raises ValueError if Python does not know it."""
    try:
        "".encode(value)
    except LookupError:
        raise ValueError("must be an encoding that Python knows, such as utf-8 or cp1252") from None
    return value


def _unit(value: str) -> str:
    if value not in UNITS:
        raise ValueError(f"must be one of {', '.join(UNITS)}")
    return value


def _named(value: str) -> str:
    if not value:
        raise ValueError("is to be filled in: the name of a column of the file")
    return value


Name = Annotated[str, AfterValidator(plain)]
Separator = Annotated[str, AfterValidator(one_character)]
Decimal = Literal[".", ","]
Encoding = Annotated[str, AfterValidator(known_encoding)]
MissingValues = Annotated[tuple[Name, ...], Field(strict=False)]
_Unit = Annotated[str, AfterValidator(_unit)]
_Category = Annotated[str, AfterValidator(category)]
_Finite = Annotated[float, Field(allow_inf_nan=False)]


class ColumnMapping(Settings):
    """The column of a site's file that is a column of the task."""

    from_: Annotated[Name, AfterValidator(_named)] | None = None
    """Its name in the file; without it, the same as in the task."""

    unit: _Unit | None = None
    """The unit of its numbers in the file."""

    to: _Unit | None = None
    """The unit that the task has them in."""

    factor: _Finite | None = None
    """Or, for a unit that is not listed: the task's number is the file's number times this,"""

    offset: _Finite = 0.0
    """plus this."""

    levels: Annotated[Mapping[_Category, _Category], Field(strict=False)] = Field(default_factory=dict)
    """Value in the file = value in the task; "" for a missing one. Others stay as they are."""

    @model_validator(mode="after")
    def _one_conversion(self) -> Self:
        if (self.unit is None) != (self.to is None):
            raise ValueError("needs both unit and to, or neither")
        if self.unit and self.to and UNITS[self.unit][0] != UNITS[self.to][0]:
            raise ValueError(f"cannot turn {self.unit} into {self.to}: give factor and offset")
        if self.unit and self.factor is not None:
            raise ValueError("has a unit and a factor: one of them")
        if self.offset and self.factor is None:
            raise ValueError("has an offset without a factor")
        return self

    def number(self, number: float) -> float:
        """Return a number of the file as the task has it."""
        if self.unit and self.to:
            return converted(number, self.unit, self.to)
        return float(f"{number * (self.factor or 0) + self.offset:.12g}")

    def apply(self, cells: Sequence[str], decimal: str) -> Sequence[str]:
        """Return the cells as the task has them. A cell that is to be converted and is no number stays as it is."""
        if self.levels:
            cells = [self.levels.get(category(cell), cell) for cell in cells]
        if self.unit or self.factor is not None:
            cells = [self._converted(cell, decimal) if is_number(cell, decimal) else cell for cell in cells]
        return cells

    def _converted(self, cell: str, decimal: str) -> str:
        number = self.number(float(cell.replace(decimal, ".")))
        return (f"{number:.0f}" if number.is_integer() else f"{number!r}").replace(".", decimal)

    def text(self, name: str) -> str:
        """Describe the mapping of the task's column ``name`` for people."""
        parts = [f"from {self.from_}"] if self.from_ not in (None, name) else []
        parts += [f"{self.unit} to {self.to}"] if self.unit else []
        parts += [f"times {self.factor:g}" + (f" plus {self.offset:g}" if self.offset else "")] if self.factor else []
        parts += [counted(len(self.levels), "level")] if self.levels else []
        return f"{name} {', '.join(parts)}" if parts else name


class SiteMapping(Settings):
    """How one site's rows are written; what is left out is as the task's options say."""

    file: OptionalSettingsPath = None
    """The file with the rows; default: the one beside the mapping that has its name."""

    sheet: str = ""
    """The sheet of an Excel file that has several."""

    separator: Separator | None = None
    """The separator between the cells of a line of CSV."""

    decimal: Decimal | None = None
    """The decimal mark of CSV."""

    encoding: Encoding | None = None
    """The encoding of CSV."""

    missing_values: MissingValues | None = None
    """The contents of a cell without a value."""

    column: Annotated[Mapping[Name, ColumnMapping], Field(strict=False)] = Field(default_factory=dict)
    """Column of the task = where its values are in the file; one that is not listed has the same name there."""

    sql: Query | None = None
    """A query, in place of a file."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.sql and self.file:
            raise ValueError("has a file and a query: one of them")
        return self

    def apply(self, table: Table, key: str, optional: Collection[str] = ()) -> Table:
        """Return a table as the task has it; ``optional`` columns of the task may be absent from the file.

        Raises:
            DataError: the file lacks a column that the mapping names.
        """
        taken = {one.from_ or name for name, one in self.column.items()}
        cells = {name: column for name, column in table.cells.items() if name not in taken}
        for name, one in self.column.items():
            own = one.from_ or name
            if own in table.cells:
                cells[name] = one.apply(table.cells[own], table.decimal)
            elif name not in optional:
                near = get_close_matches(own, table.cells, n=1)
                hint = f"is it {near[0]}?" if near else f"its columns: {', '.join(table.cells)}"
                raise DataError(key, f"has no column {own}, which its mapping names for {name}", hint=hint)
        missing = table.missing_values if self.missing_values is None else self.missing_values
        return replace(table, cells=cells, missing_values=("", *missing))

    def require_known(self, key: str, columns: Mapping[str, Collection[str]]) -> None:
        """Check the columns and levels against the task's: name -> its categories, none for a number.

        Raises:
            ConfigError: the task has no such column or category.
        """
        for name, one in self.column.items():
            if name not in columns:
                hint = _nearest(name, columns, "columns of the task")
                raise ConfigError(f"{key}: column.{name}", "the task has no such column", hint=hint)
            unknown = [level for level in one.levels.values() if level and level not in columns[name]]
            if columns[name] and unknown:
                hint = _nearest(unknown[0], columns[name], "its categories")
                raise ConfigError(f"{key}: column.{name}.levels", f"{unknown[0]} is no category of it", hint=hint)

    def text(self, table: Table) -> str:
        """Describe the columns that are mapped, and levels that no row of the file has, for people; empty if none."""
        parts = [one.text(name) for name, one in self.column.items()]
        for name, one in self.column.items():
            values = set(map(category, table.cells.get(one.from_ or name, ())))
            if unseen := [level for level in one.levels if level not in values]:
                parts.append(f"no row has {names(unseen)} in {name}: another spelling?")
        return "; ".join(parts)


def _nearest(given: str, known: Collection[str], what: str) -> str:
    near = get_close_matches(given, known, n=1)
    return f"did you mean {near[0]}?" if near else f"{what}: {names(list(known))}"


def read_mapping(path: Path) -> SiteMapping:
    """Read a site's mapping.

    Raises:
        ConfigError: it cannot be read, or a key or value is wrong; the nearest key is named.
    """
    return parse_settings(SiteMapping, read_toml(path), file=path)


def mapping_of(path: Path) -> Path:
    """Return where the mapping of a file of rows is, if it has one; that of a mapping is itself."""
    return path if path.name.endswith(MAPPING_SUFFIX) else path.with_name(f"{path.stem}{MAPPING_SUFFIX}")


def file_of_site(folder: Path, site: str) -> Path:
    """Return the file of a site's rows in its folder: the mapping if there is one, or else the file with its name.

    Raises:
        DataError: there are several files with its name.
    """
    mapping = folder / f"{site}{MAPPING_SUFFIX}"
    return mapping if mapping.is_file() else _only_file(folder, site)


def _only_file(folder: Path, site: str) -> Path:
    found = [folder / f"{site}{suffix}" for suffix in SUFFIXES if (folder / f"{site}{suffix}").exists()]
    if len(found) > 1:
        hint = f"keep one, or name it as file in {site}{MAPPING_SUFFIX}"
        raise DataError(f"{site}: {folder}", f"has {names([path.name for path in found])}", hint=hint)
    return found[0] if found else folder / f"{site}{SUFFIXES[0]}"


def read_table(
    path: Path,
    *,
    separator: str = ",",
    decimal: Decimal = ".",
    encoding: str = "utf-8",
    missing_values: tuple[str, ...] = MISSING_VALUES,
    sheet: str = "",
    who: str = "",
    columns: Mapping[str, Collection[str]] = MappingProxyType({}),
    optional: Collection[str] = (),
) -> Table:
    """Read a table from a CSV, Excel or Parquet file, or a query, as the task has it.

    Where a mapping is beside the file, it decides over the arguments.

    Args:
        path: the file, or the mapping that names it.
        separator: between the cells of CSV.
        decimal: the decimal mark of CSV.
        encoding: of the text of CSV.
        missing_values: the cells that stand for no value.
        sheet: of an Excel file with several.
        who: site id, for messages; they hold no cell of the file. Their hints may name a line.
        columns: the columns of the task, each with its categories, to compare a mapping with; none: it is not compared.
        optional: columns of the task that the file need not have.

    Raises:
        DataError: the file is missing, is not of its kind, has no rows, two columns of one name, or lines of other
            lengths; or it lacks a column that its mapping names.
        ConfigError: the mapping is wrong.
    """
    mapping, place = SiteMapping(), mapping_of(path)
    if place.is_file():
        mapping = read_mapping(place)
        of_another = mapping.sql or (mapping.file and mapping.file.resolve() != path.resolve())
        if path != place and of_another:
            mapping = SiteMapping()
    key = f"{who}: {path}" if who else str(path)
    if columns:
        mapping.require_known(f"{who}: {place}" if who else str(place), columns)
    if mapping.sql is not None:
        table = mapping.sql.rows(place, key)
    else:
        if path == place:
            path = mapping.file or _only_file(path.parent, path.name.removesuffix(MAPPING_SUFFIX))
            key = f"{who}: {path}" if who else str(path)
        csv_format = CsvFormat(mapping.separator or separator, mapping.decimal or decimal, mapping.encoding or encoding)
        if csv_format.separator == csv_format.decimal:
            raise ConfigError(f"{place}: separator", f"{csv_format.separator} is the decimal mark as well")
        absent = f"set task.data-dir to the folder that holds {path.name}" if who else "check the path"
        table = read_file_of_rows(path, csv_format, sheet=mapping.sheet or sheet, key=key, absent=absent)
    mapped = mapping.apply(replace(table, missing_values=missing_values), key, optional)
    if mapping == SiteMapping():
        return mapped
    told = mapping.text(table)
    return replace(mapped, source=f"{table.source}, as {place.name} says{f': {told}' if told else ''}")
