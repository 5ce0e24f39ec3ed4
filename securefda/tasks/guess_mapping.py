"""A first mapping of a site's file to the columns of a task, guessed from names, units in names, and spellings.

What was guessed stands as a comment in the file. What could not be is left to fill in, and no run begins before.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from securefda.errors import DataError
from securefda.tasks.guess import guess_format
from securefda.tasks.mapping import UNITS, ColumnMapping, SiteMapping, converted, read_table, toml_key, toml_value
from securefda.tasks.table_files import SUFFIXES, UMLAUTS, CsvFormat, SeveralSheets, Table, category, is_number
from securefda.tasks.tabular import TabularOptions
from securefda.text import names, printable

_NEAR = 0.8
_MOST_LEVELS = 20
_SAME_UNIT = 1.5
"""Medians in one unit differ at most by this factor."""

_HEADING = """\
# How {site} writes its rows: securefda new guessed it from {file}. Look at each line. This file stays with the rows and
# is never sent. securefda task check and preflight compare it with the rows and with the task's columns.
"""


@dataclass(frozen=True, slots=True)
class Draft:
    """A file's rows as a first mapping reads them.

    Attributes:
        table: its rows, without the columns that are still to be filled in.
        text: of the mapping; empty if the file needs none.
        open: columns of the task that are to be filled in.
    """

    table: Table
    text: str
    open: tuple[str, ...]


def draft_mapping(
    path: Path, site: str, example: Table, options: TabularOptions, like: CsvFormat, *, may_lack_label: bool = False
) -> Draft:
    """Guess how a file without a mapping is written, and which of its columns are the task's.

    Args:
        path: the file.
        site: whose it is.
        example: a table with the task's columns.
        options: of the task.
        like: how the federation's file says that files are written; what a file does not show is as there.
        may_lack_label: whether a file without the label is complete.

    Raises:
        DataError: the file cannot be read, has less than half of the columns, or no others that could be the rest.
    """
    csv_format = guess_format(path, like=like) if path.suffix.lower() not in SUFFIXES[1:] else like
    wanted = [*options.label.columns, *options.read, *filter(None, [options.group])]
    raw, sheet = _read(path, csv_format, wanted)
    matched = match_names(wanted, list(raw.cells))
    needed = wanted[len(options.label.columns) :] if may_lack_label else wanted
    unmatched = [name for name in needed if name not in matched]
    left = [name for name in raw.cells if name not in {*matched.values(), *options.columns}]
    if 2 * len(matched) < len(needed) or len(left) < len(unmatched):
        raise DataError(str(path), f"has no column {unmatched[0]}")
    head = [f"sheet = {toml_value(sheet)}"] if sheet else []
    for key in ("separator", "decimal", "encoding"):
        if getattr(csv_format, key) != getattr(like, key):
            head.append(f"{key} = {toml_value(getattr(csv_format, key))}")
    columns, lines = dict[str, ColumnMapping](), []
    for name in wanted:
        if name in matched:
            one, remark = _column(name, matched[name], raw, example, options)
            columns[name] = one
            if one != ColumnMapping() or remark:
                lines.append(
                    f"{toml_key(name)} = {toml_value(one.model_dump(by_alias=True, exclude_defaults=True))}{remark}"
                )
    remark = printable(f"  # fill in; not matched yet: {names(left)}")
    lines += [f'{toml_key(name)} = {{ from = "" }}{remark}' for name in unmatched]
    table = SiteMapping(column=columns).apply(raw, str(path))
    parts = [_HEADING.format(site=site, file=printable(path.name)), *head, *(["", "[column]", *lines] if lines else [])]
    return Draft(table, "\n".join([*parts, ""]) if head or lines else "", tuple(unmatched))


def _read(path: Path, csv_format: CsvFormat, wanted: Sequence[str]) -> tuple[Table, str]:
    """Read a file; of several sheets, that with the most of the columns, and its name."""

    def read(sheet: str) -> Table:
        return read_table(
            path,
            separator=csv_format.separator,
            decimal=csv_format.decimal,
            encoding=csv_format.encoding,
            sheet=sheet,
        )

    try:
        return read(""), ""
    except SeveralSheets as error:
        tables = dict[str, Table]()
        for sheet in error.sheets:
            try:
                tables[sheet] = read(sheet)
            except DataError:
                continue
        if not tables:
            raise
    best = max(tables, key=lambda sheet: len(match_names(wanted, list(tables[sheet].cells))))
    return tables[best], best


def match_names(wanted: Sequence[str], header: Sequence[str]) -> dict[str, str]:
    """Return column of the task -> the name in the header that is probably the same; each name once.

    Equal names come first, then those that differ in case, blanks and signs, then those with further words, such as a
    unit, then near ones. Where several names would do, none is taken.
    """
    found = {name: name for name in wanted if name in header}
    ways: tuple[Callable[[str, str], bool], ...] = (
        lambda name, one: "".join(_words(name)) == "".join(_words(one)),
        lambda name, one: set(_words(name)) < set(_words(one)),
        _near,
    )
    for fits in ways:
        free = [one for one in header if one not in found.values()]
        open_names = [name for name in wanted if name not in found]
        fitting = {name: [one for one in free if fits(name, one)] for name in open_names}
        for name, ones in fitting.items():
            if len(ones) == 1 and sum(ones[0] in others for others in fitting.values()) == 1:
                found[name] = ones[0]
    return found


def _near(name: str, one: str) -> bool:
    """Whether two names are spelt alike, with the same numbers."""
    alike = get_close_matches("".join(_words(name)), ["".join(_words(one))], cutoff=_NEAR)
    return bool(alike) and re.findall(r"[0-9]+", name) == re.findall(r"[0-9]+", one)


def _words(name: str) -> list[str]:
    """Return the words and numbers of a name in small letters, in order."""
    return re.findall(r"[^\W_]+", name.casefold().translate(UMLAUTS))


def _column(name: str, own: str, raw: Table, example: Table, options: TabularOptions) -> tuple[ColumnMapping, str]:
    """Guess how a column of the file becomes the task's, with a comment on what was guessed."""
    remarks = ["guessed from the name"] if own != name else []
    further = [word for word in _words(own) if word not in _words(name)]
    unit = next((unit for word in reversed(further) for unit in UNITS if unit.casefold() == word), None)
    to = _unit_of_the_task(name, unit, _median(raw, own), _median(example, name)) if unit else None
    if to is not None:
        remarks = [f"guessed from the name and the medians: {unit} to {to}"]
    elif further:
        remarks = [f"guessed from the name; if {further[-1]} is another unit than the task's, add unit and to"]
    levels, others = _levels(options.categories[name], raw, own)
    if levels:
        remarks.append("levels guessed from their spelling")
    if others:
        remarks.append(f"fill in levels: {names(others)}; the task has {names(options.categories[name])}")
    units = (unit, to) if to is not None and unit != to else (None, None)
    one = ColumnMapping(from_=own if own != name else None, unit=units[0], to=units[1], levels=levels)
    return one, printable(f"  # {'; '.join(remarks)}") if remarks else ""


def _levels(categories: Sequence[str], table: Table, own: str) -> tuple[dict[str, str], list[str]]:
    """Match the values of a column to categories that are spelt otherwise, by case or by first letters.

    Values of which none is known, and that match none, are returned as well.
    """
    values = dict.fromkeys(map(category, table.cells[own])).keys() - set(table.missing_values)
    strange = sorted(values - set(categories))
    found: dict[str, str] = {}
    for value in strange:
        small = value.casefold()
        alike = [one for one in categories if one.casefold() == small] or [
            one for one in categories if one.casefold().startswith(small) or small.startswith(one.casefold())
        ]
        if len(alike) == 1 and alike[0] not in {*found.values(), *values}:
            found[value] = alike[0]
    is_known = bool(found) or bool(values & set(categories))
    return found, [] if is_known or not categories else strange[:_MOST_LEVELS]


def _unit_of_the_task(name: str, unit: str, own: float | None, example: float | None) -> str | None:
    """Return the unit in which the task has a number: that in its name, or the one that brings the medians together."""
    units = [one for one in UNITS if UNITS[one][0] == UNITS[unit][0]]
    named = [one for one in units if one.casefold() in _words(name)]
    if named or not (own and example and own > 0 and example > 0):
        return named[0] if named else None
    apart = {one: abs(math.log(max(converted(own, unit, one), 1e-300) / example)) for one in units}
    nearest = min(units, key=lambda one: apart[one])
    return nearest if apart[nearest] < math.log(_SAME_UNIT) else None


def _median(table: Table, name: str) -> float | None:
    decimal = table.decimal
    numbers = [float(cell.replace(decimal, ".")) for cell in table.cells[name] if is_number(cell, decimal)]
    return statistics.median(numbers) if numbers else None
