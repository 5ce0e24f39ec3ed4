"""Derivation of a tabular task's options from one example CSV file: its format and the type of each column.

The options go to every site, so they contain only round numbers, and no category that fewer than `FEWEST_OF_A_CATEGORY`
rows of the example have. This is no guarantee of privacy: replace private values by public numbers by hand.
"""

from __future__ import annotations

import codecs
import csv
import io
import math
import re
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Literal

from securefda.disk import read_whole
from securefda.errors import ConfigError, DataError, reading_hint
from securefda.tasks.table_files import MISSING_VALUES, CsvFormat, Table, category, is_date, is_number, plain
from securefda.tasks.tabular import Column, Label

FEWEST_OF_A_CATEGORY = 5
_MOST_CATEGORIES = 20
_MOST_CLASSES = 20
_LINES = 200
_PLAIN = CsvFormat()
_IDENTIFIER = re.compile(r"(^|[^a-z])(id|nr|no|nummer|number|mrn|pid|patient|fall|case|index)([^a-z]|$)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Guess:
    """The guessed columns of an example, with notes on columns that are not read or have rare values."""

    label: Label
    columns: dict[str, Column]
    remarks: dict[str, str]


def guess_format(
    path: Path, *, separator: str = "", decimal: str = "", encoding: str = "", like: CsvFormat = _PLAIN
) -> CsvFormat:
    """Guess a file's format; arguments that are given are taken as they are. What the file does not show is as in
    ``like``.

    Raises:
        DataError: the file cannot be read.
    """
    try:
        data = read_whole(path)
    except OSError as error:
        is_folder = isinstance(error, IsADirectoryError)
        hint = "name the target's CSV file in it" if is_folder else "check the path"
        raise DataError(str(path), f"cannot be read: {error.strerror}", hint=reading_hint(error, hint)) from error
    tried = encoding or _encoding_of(data, like.encoding)
    try:
        text = data.decode(tried)
    except (UnicodeError, LookupError) as error:
        if not encoding:
            raise DataError(
                str(path), "is no text", hint="name a CSV file; --encoding says how it is written"
            ) from error
        raise DataError(str(path), f"is not {encoding} text", hint='files of Windows are often "cp1252"') from error
    encoding = tried
    lines = [line for line in text.removeprefix("\ufeff").splitlines()[:_LINES] if line.strip(" ;,\t")]
    lines = lines[1:] if lines and lines[0].lower().startswith("sep=") else lines
    separator = separator or max(f"{like.separator};\t|,", key=lambda mark: _columns_by(mark, lines))
    if not decimal:
        commas = sum(len(re.findall(r"(?<![0-9,.])-?[0-9]+,[0-9]+(?![0-9,.])", line)) for line in lines)
        points = sum(len(re.findall(r"(?<![0-9,.])-?[0-9]+\.[0-9]+(?![0-9,.])", line)) for line in lines)
        shown = like.decimal if commas == points else "," if commas > points else "."
        decimal = "." if separator == "," else shown
    return CsvFormat(separator, "," if decimal == "," else ".", encoding)


def _encoding_of(data: bytes, like: str) -> str:
    if data.isascii() and b"\0" not in data:
        return "utf-8" if like.startswith("utf-16") else like
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return "cp1252"
    return "utf-8"


def _columns_by(separator: str, lines: Sequence[str]) -> int:
    """Return how many columns a separator gives; 0 if the lines do not all have the same number."""
    try:
        lengths = [len(line) for line in csv.reader(io.StringIO("\n".join(lines)), delimiter=separator) if line]
    except csv.Error:
        return 0
    (length, *others) = set(lengths[1:] if len(lengths) > 2 else lengths) or {0}  # the first may count rows
    return 0 if others or length < 2 else length


def guess(table: Table, csv_format: CsvFormat, label: str = "", group: str = "", event: str = "") -> Guess:
    """Guess the type of each column of an example.

    Args:
        table: the example's rows.
        csv_format: how its file is written.
        label: the column to predict; default: the last one.
        group: the column that names what rows belong together; it is not read.
        event: where the label is a time, the column that says whether the event happened then.

    Raises:
        ConfigError: there is no such column.
        DataError: no model can predict the label, or no other column can be read.
    """
    names = list(table.cells)
    label, group, event = plain(label) or names[-1], plain(group), plain(event)
    for option, name in (("--label", label), ("--group", group), ("--event", event)):
        if name and name not in names:
            near = get_close_matches(name, names, n=1)
            hint = f"did you mean {near[0]}?" if near else f"columns: {', '.join(names)}"
            if option == "--label" and not near:
                hint += "; where the target alone has no labels, name a source's table, and --target"
            raise ConfigError(f"{option} {name}", f"{table.path} has no such column", hint=hint)
    columns: dict[str, Column] = {}
    remarks: dict[str, str] = {}
    for name in names:
        if name in (label, event):
            continue
        columns[name], remarks[name] = (
            (Column(type="ignored"), "the group") if name == group else _column(name, table.cells[name], csv_format)
        )
    if all(column.type == "ignored" for column in columns.values()):
        hint = (
            f"separator {csv_format.separator!r}, decimal mark {csv_format.decimal!r}: name others, or look at the file"
        )
        raise DataError(str(table.path), f"no column but {label} holds numbers or categories", hint=hint)
    predicted = _time(table, label, event, csv_format) if event else _label(table, label, csv_format)
    return Guess(predicted, columns, {name: text for name, text in remarks.items() if text})


def _column(name: str, cells: Sequence[str], csv_format: CsvFormat) -> tuple[Column, str]:
    """Guess a column's type, with a note if there is something to say."""
    present = [cell for cell in cells if cell not in MISSING_VALUES]
    numbers = _numbers(present, csv_format)
    why = _not_read(name, present, numbers, len(cells))
    if why:
        return Column(type="ignored"), why
    missing: Literal["fill", "refuse"] = "fill" if len(present) < len(cells) else "refuse"
    if numbers:
        center, scale = _round_scaling(numbers)
        return Column(type="number", center=center, scale=scale, missing=missing), ""
    values, rare = _frequent(present)
    remark = f"values of fewer than {FEWEST_OF_A_CATEGORY} rows are left out" if rare else ""
    return Column(type="category", values=values, missing=missing, unknown="fill" if rare else "refuse"), remark


def _not_read(name: str, present: Sequence[str], numbers: Sequence[float], rows: int) -> str:
    """Return why a column is of no use to a model; empty if it is of use."""
    different = len(set(map(category, present)))
    if different < 2:
        return "has one value in all rows" if different else "has no value"
    if numbers:
        whole = all(number.is_integer() for number in numbers)
        named = _IDENTIFIER.search(name) or list(numbers) == sorted(numbers)
        return "has another whole number in each row: an identifier?" if whole and named and different == rows else ""
    if all(is_date(cell) for cell in present):
        return "holds dates: export an age or a number of days"
    if different > _MOST_CATEGORIES or 2 * different > len(present):
        return "has many different values, not all of them numbers: a name, an identifier, or free text?"
    return "" if len(_frequent(present)[0]) > 1 else "has one frequent value, and rare ones"


def _numbers(present: Sequence[str], csv_format: CsvFormat) -> list[float]:
    """Return the cells as numbers; empty unless all are numbers."""
    if not all(is_number(cell, csv_format.decimal) for cell in present):
        return []
    return [float(cell.replace(",", ".")) for cell in present]


def _frequent(present: Sequence[str]) -> tuple[tuple[str, ...], bool]:
    """Return the categories that enough rows have, and whether there are others."""
    counts = Counter(map(category, present))
    frequent = tuple(sorted(value for value, count in counts.items() if count >= FEWEST_OF_A_CATEGORY))
    return frequent, len(frequent) < len(counts)


def _label(table: Table, name: str, csv_format: CsvFormat) -> Label:
    cells = table.cells[name]
    present = [cell for cell in cells if cell not in MISSING_VALUES]
    missing: Literal["drop-row", "refuse"] = "drop-row" if len(present) < len(cells) else "refuse"
    numbers = _numbers(present, csv_format)
    classes = sorted(set(map(category, present)))
    if 2 <= len(classes) <= _MOST_CLASSES:
        return Label(column=name, classes=tuple(classes), missing=missing)
    if len(classes) > 1 and numbers:
        center, scale = _round_scaling(numbers)
        return Label(column=name, center=center, scale=scale, tolerance=scale / 2, missing=missing)
    what = "one value" if len(classes) == 1 else f"{len(classes)} different values, and not all are numbers"
    hint = f"--label names the column to predict; columns: {', '.join(table.cells)}"
    raise DataError(str(table.path), f"column {name} cannot be predicted: it has {what}", hint=hint)


def _time(table: Table, name: str, event: str, csv_format: CsvFormat) -> Label:
    """Guess a horizon, 1, 2 or 5 times a power of ten below most times, and by Kaplan and Meier the share without the
    event then.
    """
    rows = [pair for pair in zip(table.cells[name], table.cells[event], strict=True) if not {*pair} & {*MISSING_VALUES}]
    times, events = (_numbers([pair[place] for pair in rows], csv_format) for place in (0, 1))
    for column, numbers, fits, hint in (
        (name, times, bool(times) and min(times) >= 0 < max(times), "times count from when a row is first seen"),
        (event, events, set(events) == {0, 1}, "1 where it happened, 0 where not; levels in a mapping turn others"),
    ):
        if not fits:
            what = "no numbers" if not numbers else "other numbers than a time or 0 and 1 can be"
            raise DataError(f"{table.path}, column {column}", f"holds {what}", hint=hint)
    late = sorted(times)[9 * len(times) // 10]
    power = 10.0 ** math.floor(math.log10(late or max(times)))
    horizon = max(step * power for step in (1, 2, 5) if step * power <= (late or max(times)))
    share, at_risk = 1.0, len(times)
    for time, happened in sorted(zip(times, events, strict=True), key=lambda pair: (pair[0], -pair[1])):
        if time <= horizon and happened:
            share *= 1 - 1 / at_risk
        at_risk -= 1
    missing: Literal["drop-row", "refuse"] = "drop-row" if len(rows) < len(table) else "refuse"
    survival = min(0.9, max(0.1, round(share, 1)))
    return Label(column=name, event=event, horizon=_tidy(horizon), survival=survival, missing=missing)


def _round_scaling(numbers: Sequence[float]) -> tuple[float, float]:
    """Return a center and a scale in round numbers: the scale is 1, 2 or 5 times a power of ten, the center a multiple
    of it.

    Two different numbers become -1 and 1.
    """
    least, most = min(numbers), max(numbers)
    if set(numbers) == {least, most}:
        return _tidy((least + most) / 2), _tidy((most - least) / 2)
    deviation = statistics.pstdev(numbers)
    power = 10.0 ** math.floor(math.log10(deviation))
    scale = min((power * step for step in (1, 2, 5, 10)), key=lambda candidate: abs(math.log(candidate / deviation)))
    return _tidy(round(statistics.fmean(numbers) / scale) * scale), _tidy(scale)


def _tidy(number: float) -> float:
    return float(f"{number:.6g}")
