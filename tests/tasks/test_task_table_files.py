"""Excel and Parquet become the same cells as CSV; what a table cannot be is refused by name."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Callable, Sequence
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import openpyxl
import pyarrow
import pyarrow.parquet
import pytest
import sklearn.datasets

from securefda.errors import ConfigError, DataError
from securefda.tasks import table_files
from securefda.tasks.guess import guess_format
from securefda.tasks.mapping import read_table
from securefda.tasks.table_files import SeveralSheets


def workbook(path: Path, rows: Sequence[Sequence[object]], change: Callable[[Any], None] = lambda _: None) -> Path:
    book = openpyxl.Workbook()
    for row in rows:
        book.active.append(row)
    change(book)
    book.save(path)
    return path


ROWS = [["age", "sex"], [40, "m"], [41.5, "w"]]


def test_an_excel_sheet_becomes_cells(tmp_path: Path) -> None:
    rows = [
        ["Alter", " Größe ", "krank", "am", "Notiz"],
        [40, 1.7, True, datetime(2024, 3, 12), "a, b"],
        [None] * 5,
        [41.0, None, False, datetime(2024, 3, 12, 10, 30), "  c "],
    ]
    table = read_table(workbook(tmp_path / "a.xlsx", rows))
    assert dict(table.cells) == {
        "Alter": ["40", "41"],
        "Größe": ["1.7", ""],
        "krank": ["1", "0"],
        "am": ["2024-03-12", "2024-03-12 10:30:00"],
        "Notiz": ["a, b", "c"],
    }
    assert (list(table.lines), table.counted_in, table.decimal) == ([2, 4], "row", ".")
    assert table.source == "a.xlsx (sheet Sheet)"


def add_sheet(book: Any) -> None:
    book.create_sheet("Mai").append(["age"])
    book["Mai"].append([7])
    book.create_sheet("empty")


def test_of_several_sheets_the_mapping_names_one(tmp_path: Path) -> None:
    path = workbook(tmp_path / "a.xlsx", ROWS, add_sheet)
    with pytest.raises(SeveralSheets, match="has 2 sheets with cells") as caught:
        read_table(path)
    assert (caught.value.sheets, "Sheet, Mai" in caught.value.hint) == (("Sheet", "Mai"), True)
    (tmp_path / "a.mapping.toml").write_text('sheet = "Mai"')
    assert read_table(path).cells == {"age": ["7"]}
    (tmp_path / "a.mapping.toml").write_text('sheet = "mai"')
    with pytest.raises(DataError, match="has no sheet mai") as no_sheet:
        read_table(path)
    assert no_sheet.value.hint == "did you mean Mai?"


def merge(book: Any) -> None:
    book.active.merge_cells("A2:A3")


def add_formula(book: Any) -> None:
    book.active["B2"] = "=A2*2"


def far_cell(book: Any) -> None:
    book.active["XFD1048576"] = 1


def no_name(book: Any) -> None:
    book.active["C2"] = 5


def title(book: Any) -> None:
    book.active.insert_rows(1)
    book.active["A1"] = "Export of May"


EXCEL: dict[str, tuple[list[list[object]], Callable[[Any], None], str, str]] = {
    "formulas": (ROWS, add_formula, "sheet Sheet: has 1 formula", "B2 is the first"),
    "merged cells": (ROWS, merge, "sheet Sheet: has 1 group of merged cells", "A2:A3"),
    "a cell far out": (ROWS, far_cell, "has 1,048,576 rows of 16,384 cells", "remove empty rows"),
    "a column without a name": (ROWS, no_name, "has 1 column without a name", "C1"),
    "a title": (ROWS, title, "has 1 column without a name", "leave titles"),
    "nothing": ([], lambda _: None, "has no rows", ""),
    "a header alone": ([["age", "sex"]], lambda _: None, "has no rows", ""),
    "a name twice": ([["age", "age"], [1, 2]], lambda _: None, "1 name above more than one column", ""),
}


@pytest.mark.parametrize(("rows", "change", "why", "hint"), EXCEL.values(), ids=EXCEL.keys())
def test_what_is_no_table_in_excel_is_named(
    tmp_path: Path, rows: list[list[object]], change: Callable[[Any], None], why: str, hint: str
) -> None:
    path = workbook(tmp_path / "a.xlsx", rows, change)
    with pytest.raises(DataError) as caught:
        read_table(path, who="north")
    assert str(caught.value).startswith(f"north: {path}")
    assert why in str(caught.value)
    assert hint in caught.value.hint


def test_macros_passwords_and_other_spreadsheets_are_refused(tmp_path: Path) -> None:
    path = workbook(tmp_path / "a.xlsx", ROWS)
    with zipfile.ZipFile(path, "a") as packed:
        packed.writestr("xl/vbaProject.bin", b"")
    with pytest.raises(DataError, match="holds macros"):
        read_table(path)
    path.write_bytes(bytes.fromhex("d0cf11e0a1b11ae1") + bytes(100))
    with pytest.raises(DataError, match="has a password, or is an Excel file of before 2007"):
        read_table(path)
    with pytest.raises(DataError, match=r"\.ods files are not read"):
        read_table(tmp_path / "a.ods")


def test_a_workbook_that_unpacks_to_more_than_is_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_files, "_MOST_UNPACKED", 1 << 20)
    path = workbook(tmp_path / "a.xlsx", ROWS)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("xl/media/bomb.xml", bytes(1 << 21))
    with pytest.raises(DataError, match="has more than 1 MiB once unpacked"):
        read_table(path)


def parquet(path: Path, **columns: Any) -> Path:
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    return path


def test_a_parquet_file_becomes_cells(tmp_path: Path) -> None:
    path = parquet(
        tmp_path / "a.parquet",
        whole=[1, None, 3],
        real=[1.5, float("nan"), 2.0],
        short=pyarrow.array([0.1, None, 2.5], pyarrow.float32()),
        money=[Decimal("1.50"), None, Decimal("2.00")],
        truth=[True, False, None],
        day=[date(2024, 3, 12)] * 3,
        kind=pyarrow.array(["m", "w", None]).dictionary_encode(),
    )
    table = read_table(path)
    assert dict(table.cells) == {
        "whole": ["1", "", "3"],
        "real": ["1.5", "", "2"],
        "short": ["0.1", "", "2.5"],
        "money": ["1.5", "", "2"],
        "truth": ["1", "0", ""],
        "day": ["2024-03-12"] * 3,
        "kind": ["m", "w", ""],
    }
    assert (list(table.lines), table.counted_in, table.source) == ([1, 2, 3], "row", "a.parquet")


@pytest.mark.parametrize(("values", "kind"), [([[1], [2]], "list"), ([{"a": 1}], "dict"), ([b"x"], "bytes")])
def test_values_that_are_no_cells_are_refused(tmp_path: Path, values: list[Any], kind: str) -> None:
    with pytest.raises(DataError, match=f"holds values of the kind {kind}"):
        read_table(parquet(tmp_path / "a.parquet", x=values))


def test_text_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_files, "MAX_DATA_BYTES", 1 << 20)
    path = parquet(tmp_path / "a.parquet", x=pyarrow.array(["x" * 1000] * 2000).dictionary_encode())
    assert path.stat().st_size < 1 << 20
    with pytest.raises(DataError, match="has more than 1 MiB"):
        read_table(path)


@pytest.mark.parametrize("suffix", ["xlsx", "parquet"])
def test_a_number_kept_as_text_is_named_by_its_row(tmp_path: Path, suffix: str) -> None:
    from test_task_mapping import at_a_site

    task = at_a_site(tmp_path, "")
    values = [["age", "size", "sex", "ill"], *([40 + n, "1,5" if n == 3 else 1.5, "male", "yes"] for n in range(8))]
    path = tmp_path / f"north.{suffix}"
    if suffix == "xlsx":
        workbook(path, values)
    else:
        header, *rows = values
        parquet(path, **{str(name): [str(row[n]) for row in rows] for n, name in enumerate(header)})
    (tmp_path / "north.csv").unlink()
    with pytest.raises(DataError, match=r"north, train, column size: 1 of 8 rows hold no number") as caught:
        task.train_data("north")
    assert caught.value.hint.startswith(f"row {5 if suffix == 'xlsx' else 4} is the first; it is a text there")


@pytest.mark.parametrize(
    ("suffix", "module", "extra"), [("xlsx", "openpyxl", "excel"), ("parquet", "pyarrow", "parquet")]
)
def test_without_the_extra_the_command_to_install_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, module: str, extra: str
) -> None:
    (tmp_path / f"a.{suffix}").touch()
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=rf"\.{suffix} files need {module}") as caught:
        read_table(tmp_path / f"a.{suffix}")
    assert caught.value.hint == f"pip install 'securefda[{extra}]'"


def test_scikit_learns_header_of_counts_is_no_row(tmp_path: Path) -> None:
    path = tmp_path / "iris.csv"
    path.write_text("3,2,setosa,virginica\n5.1,3.5,0\n4.9,3.0,1\n4.7,3.2,1\n")
    table = read_table(path)
    assert dict(table.cells) == {
        "feature 1": ["5.1", "4.9", "4.7"],
        "feature 2": ["3.5", "3.0", "3.2"],
        "class": ["setosa", "virginica", "virginica"],
    }
    assert list(table.lines) == [2, 3, 4]
    for other in ("3,2,a,b\n1,2\n3,4\n5,6\n", "4,2,a,b\n1,2,0\n3,4,1\n5,6,0\n"):  # no such counts
        path.write_text(other)
        with pytest.raises(DataError, match="more or fewer cells"):
            read_table(path)


@pytest.mark.parametrize(
    ("name", "rows", "columns", "classes"),
    [
        ("breast_cancer.csv", 569, 31, {"malignant", "benign"}),
        ("iris.csv", 150, 5, {"setosa", "versicolor", "virginica"}),
        ("wine_data.csv", 178, 14, {"class_0", "class_1", "class_2"}),
    ],
)
def test_the_files_of_scikit_learn_are_read(name: str, rows: int, columns: int, classes: set[str]) -> None:
    path = Path(sklearn.datasets.__file__).parent / "data" / name
    assert guess_format(path).separator == ","
    table = read_table(path)
    assert (len(table), len(table.cells), set(table.cells["class"])) == (rows, columns, classes)
