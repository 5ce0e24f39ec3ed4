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
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Literal

from securefda.disk import read_whole
from securefda.errors import ConfigError, DataError, reading_hint
from securefda.tasks.column_cautions import (
    Numbers,
    are_codes,
    are_days,
    center_and_spread,
    codes_in,
    identifier,
    in_rows,
    numbers_of,
    words_for_missing,
)
from securefda.tasks.table_files import MISSING_VALUES, CsvFormat, Table, category, is_date, plain
from securefda.tasks.tabular import Column, Label, TabularOptions
from securefda.text import counted, names

FEWEST_OF_A_CATEGORY = 5
_MOST_CATEGORIES = 20
_MOST_CLASSES = 20
_LINES = 200
_PLAIN = CsvFormat()


@dataclass(frozen=True, slots=True)
class Guess:
    """The guessed columns of an example, with notes on what is left out or decided."""

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
    header = list(table.cells)
    label, group, event = plain(label) or header[-1], plain(group), plain(event)
    for option, name in (("--label", label), ("--group", group), ("--event", event)):
        if name and name not in header:
            near = get_close_matches(name, header, n=1)
            hint = f"did you mean {near[0]}?" if near else f"columns: {', '.join(header)}"
            if option == "--label" and not near:
                hint += "; where the target alone has no labels, name a source's table, and --target"
            raise ConfigError(f"{option} {name}", f"{table.path} has no such column", hint=hint)
    columns: dict[str, Column] = {}
    remarks = {label: ""}
    for name in header:
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
    if event:
        described = _time(table, label, event, csv_format)
    else:
        described, remarks[label] = _label(table, label, csv_format)
    return Guess(described, columns, {name: text for name, text in remarks.items() if text})


def _column(name: str, cells: Sequence[str], csv_format: CsvFormat) -> tuple[Column, str]:
    """Guess a column's type, with a note if there is something to say."""
    present = [cell for cell in cells if cell not in MISSING_VALUES]
    numbers, codes = _numbers_and_codes(present, csv_format)
    why = _not_read(name, present, numbers, len(cells))
    if why:
        return Column(type="ignored"), f"{why}; not read"
    missing: Literal["fill", "refuse"] = "fill" if len(present) < len(cells) or codes else "refuse"
    remarks = [f"{in_rows(codes, len(present))}: read as a missing value (missing-values)"] if codes else []
    categories = [cell for cell in present if category(cell) not in codes]
    values, rare = _frequent(categories)
    if len(numbers) and not (are_codes(numbers) and len(values) > 1):
        center, scale = _round_scaling(numbers)
        column = Column(type="number", center=center, scale=scale, missing=missing, missing_values=tuple(codes))
        return column, "; ".join(remarks)
    if len(numbers):
        remarks.append('few small whole numbers, read as categories: if they count, type = "number", center, scale')
    if rare:
        remarks.append(f"values of fewer than {FEWEST_OF_A_CATEGORY} rows are left out")
    column = Column(
        type="category",
        values=values,
        missing=missing,
        missing_values=tuple(codes),
        unknown="fill" if rare else "refuse",
    )
    return column, "; ".join(remarks)


def _not_read(name: str, present: Sequence[str], numbers: Numbers, rows: int) -> str:
    """Return why a column is of no use to a model; empty if it is of use."""
    counts = Counter(numbers.tolist() if len(numbers) else map(category, present))
    if len(counts) < 2:
        every = (
            "all rows" if len(numbers) in (0, len(present)) else "all rows but those with a code for a missing value"
        )
        return f"has one value in {every}" if counts else "has no value"
    if all(is_date(cell) for cell in present) or are_days(numbers):
        return "holds dates: export an age or a number of days"
    if len(numbers):
        fewest, apart = min(counts.values()), abs(numbers.max() - numbers.min())
        if len(counts) == 2 and fewest < FEWEST_OF_A_CATEGORY and apart > 1:
            return f"has one number in all but {counted(fewest, 'row')}"
        seen = identifier(name, numbers, rows)
        return f"has {seen}" if seen else ""
    if len(counts) > _MOST_CATEGORIES or 2 * len(counts) > len(present):
        return "has many different values, not all of them numbers, as a name, an identifier or free text"
    return "" if len(_frequent(present)[0]) > 1 else "has one frequent value, and rare ones"


def _numbers_and_codes(present: Sequence[str], csv_format: CsvFormat) -> tuple[Numbers, dict[str, int]]:
    """Return the numbers of a column, none unless all its cells are numbers or codes for a missing value, and the codes
    with their rows. A number that only may be a code is neither.
    """
    words = words_for_missing(present, csv_format.decimal)
    numbers = numbers_of([cell for cell in present if cell not in words], csv_format.decimal)
    codes = codes_in(numbers)
    sure = {code.replace(".", csv_format.decimal): count for code, count in codes.sure.items()}
    return codes.without(numbers), words | sure


def _frequent(present: Sequence[str]) -> tuple[tuple[str, ...], bool]:
    """Return the categories that enough rows have, and whether there are others."""
    counts = Counter(map(category, present))
    frequent = tuple(sorted(value for value, count in counts.items() if count >= FEWEST_OF_A_CATEGORY))
    return frequent, len(frequent) < len(counts)


def _label(table: Table, name: str, csv_format: CsvFormat) -> tuple[Label, str]:
    """Describe the label, with a note if there is something to say."""
    cells = table.cells[name]
    present = [cell for cell in cells if cell not in MISSING_VALUES]
    missing: Literal["drop-row", "refuse"] = "drop-row" if len(present) < len(cells) else "refuse"
    classes = sorted(set(map(category, present)))
    if 2 <= len(classes) <= _MOST_CLASSES:
        return Label(column=name, classes=tuple(classes), missing=missing), ""
    numbers, codes = _numbers_and_codes(present, csv_format)
    if len(classes) > 1 and len(numbers):
        center, scale = _round_scaling(numbers)
        missing = "drop-row" if codes else missing
        label = Label(
            column=name, center=center, scale=scale, tolerance=scale / 2, missing=missing, missing_values=tuple(codes)
        )
        return label, f"{in_rows(codes, len(present))}: such rows are left out (missing-values)" if codes else ""
    what = "one value" if len(classes) == 1 else f"{len(classes)} different values, and not all are numbers"
    hint = f"--label names the column to predict; columns: {', '.join(table.cells)}"
    raise DataError(str(table.path), f"column {name} cannot be predicted: it has {what}", hint=hint)


def _time(table: Table, name: str, event: str, csv_format: CsvFormat) -> Label:
    """Guess a horizon, 1, 2 or 5 times a power of ten below most times, and by Kaplan and Meier the share without the
    event then.
    """
    rows = [pair for pair in zip(table.cells[name], table.cells[event], strict=True) if not {*pair} & {*MISSING_VALUES}]
    times, events = (numbers_of([pair[place] for pair in rows], csv_format.decimal).tolist() for place in (0, 1))
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


def _round_scaling(numbers: Numbers) -> tuple[float, float]:
    """Return a center and a scale in round numbers: the scale is 1, 2 or 5 times a power of ten, the center a multiple
    of it. They follow from percentiles, which a few wrong numbers do not move.

    Two different numbers become -1 and 1.
    """
    least, most = float(numbers.min()), float(numbers.max())
    if set(numbers.tolist()) == {least, most}:
        return _tidy((least + most) / 2), _tidy((most - least) / 2)
    center, spread = center_and_spread(numbers)
    power = 10.0 ** math.floor(math.log10(spread))
    scale = min((power * step for step in (1, 2, 5, 10)), key=lambda candidate: abs(math.log(candidate / spread)))
    return _tidy(round(center / scale) * scale), _tidy(scale)


def _tidy(number: float) -> float:
    return float(f"{number:.6g}")


def widened(found: Guess, tables: Mapping[str, Table]) -> Guess:
    """Return a guess that suits the tables of other sites too: where they lack values, their categories and classes.

    Center and scale stay those of the example. Categories of fewer than `FEWEST_OF_A_CATEGORY` rows of each table are
    still left out, and read as no category.
    """
    columns, remarks = dict(found.columns), dict(found.remarks)
    options = TabularOptions(label=found.label, columns=columns)
    label, notes = found.label, dict[str, list[str]]()
    for site, table in tables.items():
        for name, column in options.read.items():
            present = options.present(table, name)
            if len(present) < len(table) and column.missing == "refuse":
                columns[name] = columns[name].model_copy(update={"missing": "fill"})
                notes.setdefault(name, []).append(site)
            if column.type == "category":
                frequent, rare = _frequent(present)
                values = tuple(sorted({*columns[name].values, *frequent}))
                unknown = "fill" if rare and not set(map(category, present)) <= {*values} else columns[name].unknown
                columns[name] = columns[name].model_copy(update={"values": values, "unknown": unknown})
        if label.column in table.cells:
            present = options.present(table, label.column)
            if label.classes:
                more = sorted({*map(category, present)} - {*label.classes})
                label = label.model_copy(update={"classes": (*label.classes, *more)})
            if len(present) < len(table):
                label = label.model_copy(update={"missing": "drop-row"})
    for name, sites in notes.items():
        said = f"no value in some rows of {names(sites)}: filled in"
        remarks[name] = f"{remarks[name]}; {said}" if name in remarks else said
    return Guess(label, columns, remarks)
