"""Files with the rows of a table, of three kinds: CSV, Excel and Parquet. Each becomes cells of text.

A number of an Excel or Parquet file is written with a point, a date as in ISO 8601, true as 1, and nothing as "".
"""

from __future__ import annotations

import csv
import io
import math
import re
import unicodedata
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, time
from decimal import Decimal
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from securefda.disk import MAX_DATA_BYTES, read_whole
from securefda.errors import ConfigError, DataError, reading_hint
from securefda.text import counted, names

SUFFIXES = (".csv", ".xlsx", ".parquet")
MISSING_VALUES = ("", "NA", "N/A", "NaN", "nan", "NULL", "null", "?")
UMLAUTS = str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue", "ß": "ss"})
OTHER_SHEETS = (".xls", ".xlsm", ".xlsb", ".ods", ".numbers")
_OLD_EXCEL = bytes.fromhex("d0cf11e0a1b11ae1")
"""The first bytes of Excel files of before 2007, and of those with a password."""

_MOST_UNPACKED = 256 << 20
_MOST_CELLS = 5_000_000
"""Of a sheet: openpyxl takes some hundred bytes for each."""

_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_WHOLE = re.compile(r"(-?[0-9]+)[.,]0+")
_DATE = re.compile(r"[0-9]{1,4}[./-][0-9]{1,2}[./-][0-9]{1,4}([ T].*)?")
_EXACT = 2.0**53


def plain(text: str) -> str:
    """Normalise a cell, a column's name or a category for comparison: one form of each umlaut, no blanks around it."""
    return unicodedata.normalize("NFC", text).strip()


def category(text: str) -> str:
    """Normalise a category's cell for comparison: as `plain` does, and ``1.0`` becomes ``1``."""
    text = plain(text)
    whole = _WHOLE.fullmatch(text)
    return whole[1] if whole else text


def is_number(text: str, decimal: str) -> bool:
    """Return whether a cell is a number with this decimal mark, without thousands separators."""
    return not (decimal == "," and "." in text) and _NUMBER.fullmatch(text.replace(decimal, ".")) is not None


def is_date(text: str) -> bool:
    """Return whether a cell looks like a date: three numbers with points, slashes or hyphens between, perhaps a
    time.
    """
    return _DATE.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class CsvFormat:
    """The format of a CSV file."""

    separator: str = ","
    decimal: Literal[".", ","] = "."
    encoding: str = "utf-8"


@dataclass(frozen=True, slots=True)
class Table:
    """The rows of a file or query, as text.

    Attributes:
        path: of the file; of a query, the mapping that holds it.
        cells: ``cells[name][i]`` is the cell of column ``name`` in row i.
        lines: the line or row of the file in which each row is.
        decimal: the decimal mark of the cells.
        missing_values: the cells that stand for no value.
        counted_in: what ``lines`` count: ``line`` or ``row``.
        source: where the rows come from and how they were read, for people at the site.
    """

    path: Path
    cells: Mapping[str, Sequence[str]]
    lines: Sequence[int]
    decimal: Literal[".", ","] = "."
    missing_values: tuple[str, ...] = MISSING_VALUES
    counted_in: Literal["line", "row"] = "line"
    source: str = ""

    def __len__(self) -> int:
        return len(self.lines)

    def part(self, rows: Sequence[int]) -> Table:
        """Return the table with these rows only."""
        cells = {name: [column[row] for row in rows] for name, column in self.cells.items()}
        return replace(self, cells=cells, lines=[self.lines[row] for row in rows])

    def missing(self, name: str) -> NDArray[np.bool_]:
        """Return which rows have no value in a column, (n,)."""
        return np.array([cell in self.missing_values for cell in self.cells[name]], dtype=bool)


class SeveralSheets(DataError):
    """An Excel file has several sheets, and none was named; ``sheets`` are their names."""

    def __init__(self, key: str, sheets: Sequence[str]) -> None:
        hint = f'name one as sheet = "NAME" in the site\'s mapping: {names(sheets)}'
        super().__init__(key, f"has {len(sheets)} sheets with cells", hint=hint)
        self.sheets = tuple(sheets)


def read_file_of_rows(path: Path, csv_format: CsvFormat, *, sheet: str = "", key: str, absent: str) -> Table:
    """Read a file by its suffix: Excel, Parquet, or else CSV.

    Args:
        path: the file.
        csv_format: how it is written, if it is CSV.
        sheet: of an Excel file; needed if there are several.
        key: names the file in errors, which hold no cell of it. Their hints may name a line.
        absent: a hint for a file that is missing.

    Raises:
        DataError: the file is missing, is not of its kind, has no rows, or two columns of one name.
        ConfigError: the package that reads this kind is not installed.
    """
    suffix = path.suffix.lower()
    if suffix in OTHER_SHEETS:
        raise DataError(key, f"{suffix} files are not read", hint="save the sheet as .xlsx without macros, or as CSV")
    try:
        data = read_whole(path)
    except OSError as error:
        raise DataError(key, f"cannot be read: {error.strerror}", hint=reading_hint(error, absent)) from error
    if suffix == ".xlsx":
        return _of_excel(path, data, sheet, key)
    if suffix == ".parquet":
        return _of_parquet(path, data, key)
    return _of_csv(path, data, csv_format, key)


def table_of_values(path: Path, rows: Iterable[tuple[int, Sequence[object]]], key: str) -> Table:
    """Make a table of values that have types, each row with its number, the header first. Raises DataError as
    `read_file_of_rows`.
    """
    lines: list[tuple[int, list[str]]] = []
    size = 0
    for number, row in rows:
        try:
            texts = [_text_of(value) for value in row]
        except TypeError as error:
            hint = f"row {number} is the first; export numbers, texts and dates"
            raise DataError(key, f"holds {error}", hint=hint) from error
        size += sum(map(len, texts))
        if size > MAX_DATA_BYTES:
            raise DataError(key, f"has more than {MAX_DATA_BYTES >> 20} MiB of text", hint="take fewer rows or columns")
        if any(texts):
            lines.append((number, texts))
    return replace(_table(path, lines, key), counted_in="row")


def _text_of(value: object) -> str:  # noqa: PLR0911 - a table of types
    """Return a value of another type as a cell; raises TypeError, naming what it is."""
    match value:
        case None:
            return ""
        case str():
            return value
        case bool() | np.bool_():
            return str(int(value))
        case int():
            return str(value)
        case float() | np.floating():
            number = float(value)
            if math.isnan(number):
                return ""
            return str(int(number)) if number.is_integer() and abs(number) < _EXACT else str(value)
        case Decimal():
            return f"{value.normalize():f}" if value.is_finite() else ""
        case datetime():
            return value.isoformat(" ").removesuffix(" 00:00:00")
        case date() | time():
            return value.isoformat()
    raise TypeError(f"values of the kind {type(value).__name__}")


def _table(path: Path, lines: Sequence[tuple[int, Sequence[str]]], key: str) -> Table:
    """Make a table of numbered lines, of which the first has the columns' names."""
    header = [plain(name) for name in lines[0][1]] if lines else []
    if len(lines) < 2:
        raise DataError(key, "has no rows", hint="the first line names the columns, each further one is a row")
    if len(set(header)) < len(header):
        doubled = sum(header.count(name) > 1 for name in set(header))
        why = f"{counted(doubled, 'name')} above more than one column"
        raise DataError(key, why, hint="give each column its own name")
    uneven = [number for number, line in lines if len(line) != len(header)]
    if uneven:
        why = f"{len(uneven)} of {len(lines) - 1} rows have more or fewer cells than the header has names"
        raise DataError(key, why, hint=f"line {uneven[0]} is the first; a decimal comma needs another separator")
    columns = zip(*(line for _, line in lines[1:]), strict=True)
    cells = {name: [plain(cell) for cell in column] for name, column in zip(header, columns, strict=True)}
    return Table(path, MappingProxyType(cells), [number for number, _ in lines[1:]])


def _of_csv(path: Path, data: bytes, csv_format: CsvFormat, key: str) -> Table:
    """Read CSV whose first line names the columns. Empty lines, and a first line such as ``sep=;``, are skipped."""
    encoding = csv_format.encoding
    try:
        text = data.decode("utf-8-sig" if encoding.lower().replace("_", "-") == "utf-8" else encoding)
    except UnicodeError as error:
        hint = 'set task.options.encoding; files of Windows are often "cp1252"'
        raise DataError(key, f"is not {encoding} text", hint=hint) from error
    stream = io.StringIO(text.removeprefix("\ufeff"), newline="")
    reader = csv.reader(stream, delimiter=csv_format.separator, strict=True)
    try:
        lines = [(reader.line_num, line) for line in reader if any(cell.strip() for cell in line)]
    except csv.Error as error:
        hint = f"line {reader.line_num}: look for a quotation mark that is not closed, or for another separator"
        raise DataError(key, "is not a table of cells in quotes", hint=hint) from error
    if lines and lines[0][1][0].lower().startswith("sep="):
        lines = lines[1:]
    mark, encoded = csv_format.separator, "" if encoding == "utf-8" else f", {encoding}"
    source = f"{path.name} (separator {mark!r}, decimal mark {csv_format.decimal!r}{encoded})"
    return replace(_table(path, _with_names(lines), key), decimal=csv_format.decimal, source=source)


def _with_names(lines: list[tuple[int, list[str]]]) -> list[tuple[int, list[str]]]:
    """Name the columns of a file of scikit-learn: its first line counts rows and features, and names the classes."""
    if not lines or len(lines[0][1]) < 2:
        return lines
    (number, (rows, features, *classes)), *others = lines
    if not (rows.isdecimal() and features.isdecimal() and int(rows) == len(others) > 0):
        return lines
    if any(len(line) != int(features) + 1 for _, line in others):
        return lines
    named = {str(place): name for place, name in enumerate(classes) if name}
    header = [*(f"feature {place}" for place in range(1, int(features) + 1)), "class"]
    return [(number, header), *((at, [*line[:-1], named.get(line[-1], line[-1])]) for at, line in others)]


def _needs(package: str, extra: str, suffix: str) -> ConfigError:
    return ConfigError("task.data-dir", f"{suffix} files need {package}", hint=f"pip install 'securefda[{extra}]'")


def _of_excel(path: Path, data: bytes, sheet: str, key: str) -> Table:
    try:
        import openpyxl  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise _needs("openpyxl", "excel", ".xlsx") from error
    if data.startswith(_OLD_EXCEL):
        hint = "save it as .xlsx without a password"
        raise DataError(key, "has a password, or is an Excel file of before 2007", hint=hint)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as packed:
            members = packed.infolist()
        if any(member.filename.lower().endswith("vbaproject.bin") for member in members):
            raise DataError(key, "holds macros", hint="save it as .xlsx without macros")
        if sum(member.file_size for member in members) > _MOST_UNPACKED:
            why = f"has more than {_MOST_UNPACKED >> 20} MiB once unpacked"
            raise DataError(key, why, hint="save the sheet as CSV or Parquet")
        book = openpyxl.load_workbook(io.BytesIO(data), keep_links=False)
    except DataError:
        raise
    except Exception as error:  # whatever zipfile, expat and openpyxl meet in a damaged file
        raise DataError(key, "is no Excel file, or a damaged one", hint="save it again as .xlsx") from error
    return _of_sheet(path, _sheet_of(book, sheet, key), key)


def _sheet_of(book: Any, wanted: str, key: str) -> Any:
    """Return the sheet of this name; without a name, the only one that is not empty."""
    sheets = {sheet.title: sheet for sheet in book.worksheets}
    filled = [name for name, sheet in sheets.items() if (sheet.max_row, sheet.max_column) != (1, 1)]
    if wanted and wanted not in sheets:
        near = get_close_matches(wanted, sheets, n=1)
        hint = f"did you mean {near[0]}?" if near else f"sheets: {names(list(sheets))}"
        raise DataError(key, f"has no sheet {wanted}", hint=hint)
    if not wanted and len(filled) > 1:
        raise SeveralSheets(key, filled)
    if not wanted and not filled:
        raise DataError(key, "has no rows", hint="the first row names the columns, each further one is a row")
    return sheets[wanted or filled[0]]


def _of_sheet(path: Path, sheet: Any, key: str) -> Table:
    key = f"{key}, sheet {sheet.title}"
    if sheet.max_row * sheet.max_column > _MOST_CELLS:
        why = f"has {sheet.max_row:,} rows of {counted(sheet.max_column, 'cell')}"
        raise DataError(
            key, why, hint="remove empty rows and columns with a format, or save the sheet as CSV or Parquet"
        )
    if sheet.merged_cells.ranges:
        first = min(map(str, sheet.merged_cells.ranges))
        why = f"has {counted(len(sheet.merged_cells.ranges), 'group')} of merged cells"
        raise DataError(key, why, hint=f"{first} is one: unmerge them, and fill in each cell")
    rows = [row for row in sheet.iter_rows() if any(cell.value is not None for cell in row)]
    formulas = [cell.coordinate for row in rows for cell in row if cell.data_type == "f"]
    if formulas:
        hint = f"{formulas[0]} is the first; copy the sheet, and paste its values only"
        raise DataError(key, f"has {counted(len(formulas), 'formula')}", hint=hint)
    used = [place for place in range(sheet.max_column) if any(row[place].value is not None for row in rows)]
    unnamed = [rows[0][place].coordinate for place in used if rows[0][place].value is None]
    if unnamed:
        hint = f"{unnamed[0]} is empty: the first row names the columns; leave titles and notes out"
        raise DataError(key, f"has {counted(len(unnamed), 'column')} without a name", hint=hint)
    values = ((row[0].row, [row[place].value for place in used]) for row in rows)
    return replace(table_of_values(path, values, key), source=f"{path.name} (sheet {sheet.title})")


def _of_parquet(path: Path, data: bytes, key: str) -> Table:
    try:
        import pyarrow  # noqa: PLC0415 - an extra
        import pyarrow.parquet  # noqa: PLC0415
    except ImportError as error:
        raise _needs("pyarrow", "parquet", ".parquet") from error
    try:
        file = pyarrow.parquet.ParquetFile(pyarrow.BufferReader(data))
        groups = [file.metadata.row_group(place).total_byte_size for place in range(file.metadata.num_row_groups)]
        if sum(groups) > MAX_DATA_BYTES:
            why = f"has more than {MAX_DATA_BYTES >> 20} MiB once unpacked"
            raise DataError(key, why, hint="take fewer rows or columns")
        columns = file.read()
        values = [  # those of few bits are not made longer than they are: 0.1 stays 0.1
            list(column.to_numpy()) if str(column.type) in ("float", "halffloat") else column.to_pylist()
            for column in columns.columns
        ]
    except DataError:
        raise
    except Exception as error:  # whatever Arrow meets in a damaged file
        raise DataError(key, "is no Parquet file, or a damaged one", hint="write it again") from error
    rows = enumerate([columns.column_names, *zip(*values, strict=True)])
    return replace(table_of_values(path, rows, key), source=path.name)
