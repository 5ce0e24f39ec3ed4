"""What to look at in the columns of tables before a run: codes for missing values, identifiers, units, leakage.

A line names a column and counts rows. Of their contents it quotes only usual codes for a missing value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import torch
from numpy.typing import NDArray

from securefda.tasks.metric_functions import auroc
from securefda.tasks.table_files import Table, category, is_date, is_number
from securefda.tasks.tabular import TENTHS_APART, TabularOptions
from securefda.text import counted, names

Numbers = NDArray[np.float64]

_CODE = re.compile(r"-1|-?9|-?([789])\1+(\.\1+)?")
"""How a number that stands for a missing value is usually written."""

_WORDS = {
    *(".", "-", "--", "n/a", "na", "n.a.", "none", "null", "nil", "nan", "nat", "#n/a", "#nv", "unknown", "missing"),
    *("not available", "not recorded", "not done", "k.a.", "unbekannt", "fehlt"),
}
"""Texts, in small letters, that stand for a missing value in a column of numbers."""

_NAME = re.compile(r"(^|[^a-z])(id|nr|no|nummer|number|mrn|pid|patient|fall|case|index)([^a-z]|$)", re.IGNORECASE)
_SURE_NAME = re.compile(r"(^|[^a-z])(id|mrn|pid)([^a-z]|$)", re.IGNORECASE)
"""How the column of an identifier is often called, and how no other one is."""

_FEWEST = 20
"""With fewer rows, what looks unusual may be chance."""

_MOST_ROWS = 5_000
_REPEATED = 5
"""A number in so many rows is there on purpose; a class in fewer rows says nothing about what tells it apart."""

_MOST_CODES, _LARGEST_CODE = 6, 20
_MOST_GROUPS = 20
_SEPARATES = 0.99
_ALIKE = 1.25
"""A change of unit multiplies all percentiles by the same factor, up to this one."""

_ANOTHER_UNIT, _SURELY_ANOTHER_UNIT = 1.8, 5.0
_FACTORS = {
    2.2: "kg and pounds",
    2.54: "inches and cm",
    10: "cm and mm",
    12: "years and months",
    18: "mmol/l and mg/dl of glucose",
    38.7: "mmol/l and mg/dl of cholesterol",
    88.4: "mg/dl and µmol/l of creatinine",
    100: "m and cm",
    365: "years and days",
    1000: "kg and g",
}


def numbers_of(cells: Sequence[str], decimal: str) -> Numbers:
    """Return cells as numbers, (n,); none unless all are numbers that a model can take."""
    if not all(is_number(cell, decimal) for cell in cells):
        return np.empty(0)
    numbers = np.array([float(cell.replace(decimal, ".")) for cell in cells], dtype=np.float64)
    return numbers if np.abs(numbers).max(initial=0) <= np.finfo(np.float32).max else np.empty(0)


def center_and_spread(numbers: Numbers) -> tuple[float, float]:
    """Return the median, and a standard deviation that no tenth of the numbers can move far.

    It is the range from the 10th to the 90th percentile, divided by what that is of a normal distribution. Where these
    are equal, it is the median distance of the other numbers from the median; 0 if there are none.
    """
    low, center, high = np.quantile(numbers, (0.1, 0.5, 0.9))
    if high > low:
        return float(center), float(high - low) / TENTHS_APART
    distances = np.abs(numbers[numbers != center] - center)
    return float(center), float(np.median(distances)) if len(distances) else 0.0


@dataclass(frozen=True, slots=True)
class Codes:
    """The numbers of a column that stand for a missing value, or may: each as it is written, and its rows."""

    sure: Mapping[str, int]
    doubtful: Mapping[str, int]

    def without(self, numbers: Numbers) -> Numbers:
        """Return the numbers that are none of them."""
        return numbers[~np.isin(numbers, [float(code) for code in (*self.sure, *self.doubtful)])]


def codes_in(numbers: Numbers) -> Codes:
    """Find the numbers of a column that stand for a missing value.

    Sure is a usual code, such as 999 or -1, in two rows or more, if it is as far from all other numbers as these are
    spread, or negative and they are not. Doubtful is such a code in one row or less far off; 0 far below all others;
    and the smallest or largest number if many rows have it and no other is near.
    """
    values, counts = np.unique(numbers, return_counts=True)
    rows = {_written(value): int(count) for value, count in zip(values, counts, strict=True)}
    usual = [text for text in rows if _CODE.fullmatch(text)]
    sure: dict[str, int] = {}
    doubtful: dict[str, int] = {}
    rest = Codes({}, dict.fromkeys(usual, 0)).without(numbers)
    if len(rest) < _FEWEST // 2:
        return Codes(sure, doubtful)
    low, first, third, high = np.quantile(rest, (0.01, 0.25, 0.75, 0.99))
    tail = np.unique(rest[rest > third], return_counts=True)[1]
    for text in usual:
        value, count, is_long = float(text), rows[text], len(text.lstrip("-")) > 1
        if low <= value <= high:
            continue
        distance = np.abs(rest - value).min()
        is_negative = value < 0 <= low and len(np.unique(rest)) > 2
        is_usual = is_long or (text != "-1" and high > low and count >= _REPEATED)
        if count > 1 and (is_negative or (is_usual and distance >= max(high - low, 1))):
            sure[text] = count
        elif is_long:
            is_frequent = distance > 1 and count >= max(_REPEATED, 2 * tail.max(initial=0))
            if is_negative or distance >= third - first or is_frequent:
                doubtful[text] = count
    rest = Codes(sure, doubtful).without(numbers)
    for value, is_far in ((0.0, _is_far_zero), (rest.min(), _is_far_extreme), (rest.max(), _is_far_extreme)):
        others, text = rest[rest != value], _written(value)
        is_one_of_many = len(rest) > len(others) > len(rest) / 2 and len(np.unique(others)) > _MOST_CODES
        if is_one_of_many and (text == "0" or rows[text] >= _REPEATED) and is_far(value, others):
            doubtful[text] = rows[text]
    return Codes(sure, doubtful)


def _is_far_zero(_zero: float, others: Numbers) -> bool:
    low, high = np.quantile(others, (0.1, 0.9))
    return bool(others.min() >= (high - low) / 2 > 0)


def _is_far_extreme(extreme: float, others: Numbers) -> bool:
    first, third = np.quantile(others, (0.25, 0.75))
    width = third - first
    is_outside = not first - 3 * width <= extreme <= third + 3 * width
    return bool(is_outside and np.abs(others - extreme).min() >= width > 0)


def _written(value: float) -> str:
    return f"{value:.0f}" if float(value).is_integer() else repr(float(value))


def words_for_missing(present: Sequence[str], decimal: str) -> dict[str, int]:
    """Return the words for a missing value in a column whose other cells are numbers, each with its rows.

    There are none if less than half of the cells are numbers, or if another text is among them.
    """
    others = [cell for cell in present if not is_number(cell, decimal)]
    if 2 * len(others) > len(present) or not {cell.casefold() for cell in others} <= _WORDS:
        return {}
    return {word: others.count(word) for word in sorted(set(others))}


def identifier(name: str, numbers: Numbers, rows: int) -> str:
    """Return what makes a column of numbers look like an identifier, in words; empty if nothing does.

    Whole numbers, most of them different, are assigned and not measured if none occurs twice although they lie close
    together; if their range is far wider than their count, and they are not rounded; if they are in the order of the
    rows; or if the column's name says so. Under a name such as ``hospital_id`` they may repeat.
    """
    different = len(np.unique(numbers))
    if (numbers % 1).any():
        return ""
    if different > _MOST_CODES and _SURE_NAME.search(name):
        return f"{different:,} different whole numbers in {rows:,} rows, under the name of an identifier"
    if different < min(_FEWEST, rows) or 10 * different < 9 * len(numbers):
        return ""
    width, is_unique = numbers.max() - numbers.min(), different == rows
    lies_close = is_unique and width < rows**2 / 8  # of numbers drawn evenly, four pairs or more would be equal
    is_wide = width > 1000 * different and (numbers % 10 == 0).mean() < 0.3
    in_order = is_unique and bool((np.diff(numbers) > 0).all())
    if not (lies_close or is_wide or in_order or _NAME.search(name)):
        return ""
    return f"{different:,} different whole numbers in {rows:,} rows, as an identifier has"


def are_days(numbers: Numbers) -> bool:
    """Return whether all numbers are dates, written YYYYMMDD."""
    years, months, days = numbers // 10_000, numbers // 100 % 100, numbers % 100
    in_range = (years // 100 >= 18) & (years // 100 <= 21) & (months % 13 > 0) & (months < 13) & (days % 32 > 0)
    return bool(len(numbers)) and bool((in_range & (days < 32)).all())


def are_codes(numbers: Numbers) -> bool:
    """Return whether a column holds few small whole numbers, which may stand for categories."""
    values = np.unique(numbers)
    are_few = len(numbers) >= _FEWEST and 3 <= len(values) <= _MOST_CODES
    return are_few and bool(values[0] >= 0 and values[-1] <= _LARGEST_CODE and not (values % 1).any())


def in_rows(codes: Mapping[str, int], rows: int) -> str:
    """Say in how many rows each code is."""
    return ", ".join(f'"{code}" in {count:,} of {counted(rows, "row")}' for code, count in codes.items())


def look_at(tables: Mapping[str, Table], options: TabularOptions) -> list[str]:
    """Return a line for each thing to look at in the label and the columns that a task reads.

    What the options say already, such as a code listed under ``missing-values``, is not among them. What several sites
    share is one line. Of a long table at most `_MOST_ROWS` are looked at, evenly spread.

    Args:
        tables: of the sites, the target first; numbers of different sites are compared.
        options: of the task.
    """
    tables = {site: table.part(range(0, len(table), -(-len(table) // _MOST_ROWS))) for site, table in tables.items()}
    found: dict[tuple[str, str], dict[str, list[str]]] = {}
    here = ((site, remark) for site, table in tables.items() for remark in _in_table(table, options))
    for site, (column, seen, advice) in (*_constant(tables, options), *here):
        found.setdefault((column, advice), {}).setdefault(seen, []).append(site)
    remarks = []
    for (column, advice), by_seen in found.items():
        said = [f"{seen} at {names(sites)}" if len(tables) > 1 else seen for seen, sites in by_seen.items()]
        remarks.append((column, f"{'; '.join(said)}. {advice}"))
    return gathered([*remarks, *(_units(tables, options) if len(tables) > 1 else ())])


def gathered(remarks: Iterable[tuple[str, str]]) -> list[str]:
    """Return a line for each different remark, with the columns that it is about: a wide table has many alike."""
    columns: dict[str, list[str]] = {}
    for column, remark in remarks:
        columns.setdefault(remark, []).append(column)
    return [f"{names(those)}: {remark}" for remark, those in columns.items()]


def _constant(tables: Mapping[str, Table], options: TabularOptions) -> Iterator[tuple[str, tuple[str, str, str]]]:
    """Yield sites with the columns that never vary there, unless they hold codes or categories that do elsewhere."""
    for name in options.read:
        different = {
            site: len(_categories(options.present(table, name)))
            for site, table in tables.items()
            if name in table.cells  # else its mapping is still to be filled in
        }
        for site, count in different.items():
            if not count:
                yield site, (name, "no value in any row", 'If it is so at every site, write type = "ignored"')
            elif count == 1 and not 1 < max(different.values()) <= _MOST_CODES:
                advice = (
                    'If it stands for a missing value, list it as such; if it is so everywhere, write type = "ignored"'
                )
                yield site, (name, "one value in all rows", advice)


def _categories(cells: Iterable[str]) -> set[str]:
    """Return the different values of cells; those of a column of many numbers are left as they are written."""
    different = {*cells}
    return {*map(category, different)} if len(different) <= 2 * _MOST_GROUPS else different


def _in_table(table: Table, options: TabularOptions) -> Iterator[tuple[str, str, str]]:
    """Yield columns, what was seen there, and what to write."""
    label = options.label
    numbers = numbers_of(options.present(table, label.column), table.decimal)
    also = "take it out of classes, and " if label.classes else ""
    yield from _codes(label.column, numbers, f'{also}write missing-values = [{{}}] and missing = "drop-row" there')
    for name, column in options.read.items():
        present = options.present(table, name)
        if column.type == "category":
            if present and all(map(is_date, present)):
                yield name, "dates", "Export an age or a number of days instead"
        elif len(numbers := numbers_of(present, table.decimal)):
            yield from _codes(name, numbers, 'write missing-values = [{}] and missing = "fill"')
            if seen := identifier(name, numbers, len(table)):
                yield name, seen, 'If it is an identifier, write type = "ignored"'
            elif are_codes(numbers):
                advice = 'If they are codes, write type = "category" and list them as values; counts may stay numbers'
                yield name, "few small whole numbers", advice
    yield from _leaks(table, options)


def _codes(name: str, numbers: Numbers, advice: str) -> Iterator[tuple[str, str, str]]:
    codes = codes_in(numbers)
    for code, count in {**codes.sure, **codes.doubtful}.items():
        usual = bool(_CODE.fullmatch(code)) or code == "0"
        seen = in_rows({code: count}, len(numbers)) if usual else f"one number in {count:,} of {len(numbers):,} rows"
        what = f'"{code}"' if usual else "..."
        yield name, f"{seen}, far from all others", f"If it stands for a missing value, {advice.format(what)}"


def _units(tables: Mapping[str, Table], options: TabularOptions) -> Iterator[tuple[str, str]]:
    """Yield the columns whose numbers at a site are a multiple of those at the first one, and by how much."""
    for name, column in options.read.items():
        tenths = {site: _tenths(options.present(table, name), table.decimal) for site, table in tables.items()}
        first, *others = [site for site, each in tenths.items() if column.type == "number" and len(each)] or [""]
        sites: dict[str, list[str]] = {}
        for site in others:
            least, factor, most = (float(each) for each in np.sort(tenths[site] / tenths[first]))
            is_alike = most <= least * _ALIKE and not 1 / _ANOTHER_UNIT < factor < _ANOTHER_UNIT
            if is_alike or least > _SURELY_ANOTHER_UNIT or most < 1 / _SURELY_ANOTHER_UNIT:
                sites.setdefault(_in_words(factor, first), []).append(site)
        for times_those, those in sites.items():
            yield name, f"numbers at {names(those)} are about {times_those}. Bring them to one unit"


def _tenths(present: Sequence[str], decimal: str) -> Numbers:
    """Return the 10th, 50th and 90th percentile of a column without codes, (3,); (0,) if they can show no unit."""
    numbers = numbers_of(present, decimal)
    numbers = codes_in(numbers).without(numbers)
    if len(numbers) < _FEWEST // 2 or len(np.unique(numbers)) <= _MOST_CODES or np.quantile(numbers, 0.1) <= 0:
        return np.empty(0)
    return np.quantile(numbers, (0.1, 0.5, 0.9))


def _in_words(factor: float, site: str) -> str:
    apart = max(factor, 1 / factor)
    known = min(_FACTORS, key=lambda each: abs(np.log(each / apart)))
    is_known = 1 / _ALIKE**0.5 < known / apart < _ALIKE**0.5
    figure = f"{known if is_known else apart:.3g}"
    times = f"{figure} times" if factor > 1 else f"1/{figure} of"
    return f"{times} those at {site}{f', as {_FACTORS[known]} are apart' if is_known else ''}"


def _leaks(table: Table, options: TabularOptions) -> Iterator[tuple[str, str, str]]:
    """Yield the columns that predict the label by themselves."""
    label = options.label
    name = label.event or label.column
    if name not in table.cells:
        return
    of_label, labelled = table.cells[name], np.flatnonzero(~options.missing(table, name))
    texts, is_class = [of_label[row] for row in labelled.tolist()], bool(label.classes or label.event)
    classes = np.array([category(text) for text in texts])
    numbers = np.empty(0) if is_class else numbers_of(texts, table.decimal)
    if is_class:  # rare ones say nothing
        values, counts = np.unique(classes, return_counts=True)
        kept = np.isin(classes, values[counts >= _REPEATED])
        labelled, classes = labelled[kept], classes[kept]
    if len(labelled) < _FEWEST or len(np.unique(classes)) < 2:
        return
    advice = 'If it is known only together with the label, write type = "ignored"'
    part = table.part(labelled.tolist())
    for name, column in options.read.items():
        if name not in table.cells:
            continue
        if is_class and _separates(part, name, classes, options):
            yield name, "by itself tells the classes of the label apart in nearly all rows", advice
        elif len(numbers) and column.type == "number" and _orders(part, name, numbers):
            yield name, "in nearly the same order of rows as the label", advice


def _separates(table: Table, name: str, classes: NDArray[np.str_], options: TabularOptions) -> bool:
    """Return whether the values of a column, or whether there is one, tell nearly all rows of each class apart."""
    cells, missing = table.cells[name], options.missing(table, name)
    if len(groups := _categories(cells)) <= _MOST_GROUPS:
        texts = np.where(missing, "", np.array([category(cell) for cell in cells]))
        return len(groups) * _REPEATED <= len(cells) and _tells_apart(texts, classes)
    present = [cell for cell, is_missing in zip(cells, missing, strict=True) if not is_missing]
    numbers, of_numbers = numbers_of(present, table.decimal), classes[~missing]
    every, counts = np.unique(of_numbers, return_counts=True)
    if len(numbers) and len(every) == len(np.unique(classes)) and counts.min() >= _REPEATED:
        areas = [
            _area(numbers[of_numbers == one], numbers[of_numbers == other]) for one, other in combinations(every, 2)
        ]
        if min(areas) >= _SEPARATES:
            return True
    return _tells_apart(missing, classes)


def _area(of_one: Numbers, of_other: Numbers) -> float:
    """Return the AUROC of one class beside another, whichever has the larger numbers."""
    scores = torch.from_numpy(np.concatenate([of_one, of_other]))
    area = auroc(scores, torch.arange(len(scores)) < len(of_one))
    return max(area, 1 - area)


def _tells_apart(groups: NDArray[np.generic], classes: NDArray[np.str_]) -> bool:
    """Return whether the most frequent class of its group is right for nearly all rows of each class, on average."""
    _, group = np.unique(groups, return_inverse=True)
    _, number = np.unique(classes, return_inverse=True)
    table = np.zeros((group.max() + 1, number.max() + 1))
    np.add.at(table, (group, number), 1)
    right = np.bincount(table.argmax(axis=1), table.max(axis=1), table.shape[1])
    return bool((right / table.sum(axis=0)).mean() >= _SEPARATES)


def _orders(table: Table, name: str, labels: Numbers) -> bool:
    """Return whether a column of numbers has nearly the rank correlation 1 or -1 with the label."""
    numbers = numbers_of(table.cells[name], table.decimal)
    if len(np.unique(numbers)) < 2 or len(np.unique(labels)) < 2:
        return False
    return bool(abs(np.corrcoef(_ranks(numbers), _ranks(labels))[0, 1]) >= _SEPARATES)


def _ranks(numbers: Numbers) -> Numbers:
    """Return the rank of each number, (n,); equal ones share the mean of theirs."""
    _, place, equal = np.unique(numbers, return_inverse=True, return_counts=True)
    ranks: Numbers = (equal.cumsum() - (equal - 1) / 2)[place]
    return ranks
