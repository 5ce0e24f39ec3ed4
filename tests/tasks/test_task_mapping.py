"""A site's own dialect: its mapping decides how its rows are read, is compared with the task, and stays at the site."""

from __future__ import annotations

import logging
import os
import sqlite3
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pytest
import torch

from securefda.errors import ConfigError, DataError
from securefda.tasks import TaskSettings, load_task
from securefda.tasks.mapping import UNITS, converted, file_of_site, read_mapping, read_table
from securefda.tasks.tabular import FACTORY, Tabular

OPTIONS: Mapping[str, object] = {
    "label": {"column": "ill", "classes": ["no", "yes"]},
    "columns": {
        "age": {"type": "number", "center": 40, "scale": 1, "missing": "fill"},
        "size": {"type": "number", "center": 1.5, "scale": 0.1},
        "sex": {"type": "category", "values": ["female", "male"]},
        "note": {"type": "ignored"},
    },
    "test-share": 0.01,
    "source-test-share": 0.01,
}
PLAIN = "age,size,sex,ill\n" + "".join(f"{40 + n},1.{50 + n},{('female', 'male')[n % 2]},yes\n" for n in range(8))
OTHER = "Alter;Gr\u00f6\u00dfe cm;Geschlecht;krank\n" + "".join(
    f"{12 * (40 + n)};{150 + n},0;{('w', 'm')[n % 2]};1\n" for n in range(8)
)
MAPPING = """
separator = ";"
decimal = ","
encoding = "cp1252"
[column]
age = { from = "Alter", unit = "months", to = "years" }
size = { from = "Gr\u00f6\u00dfe cm", unit = "cm", to = "m" }
sex = { from = "Geschlecht", levels = { m = "male", w = "female" } }
ill = { from = "krank", levels = { 1 = "yes" } }
"""


def at_a_site(folder: Path, rows: str, mapping: str = "", **options: object) -> Tabular:
    folder.mkdir(exist_ok=True)
    (folder / "north.csv").write_bytes(rows.encode("cp1252"))
    if mapping:
        (folder / "north.mapping.toml").write_text(mapping)
    settings = TaskSettings("clinic", ("north",), data_dir=folder, options={**OPTIONS, **options})
    task = load_task(FACTORY, settings)
    assert isinstance(task, Tabular)
    return task


def refused(folder: Path, mapping: str, rows: str = OTHER) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        at_a_site(folder, rows, mapping).train_data("north")
    return caught.value


def test_names_units_levels_and_format_become_the_tasks(tmp_path: Path) -> None:
    plain, other = at_a_site(tmp_path / "a", PLAIN), at_a_site(tmp_path / "b", OTHER, MAPPING)
    (ours,), (theirs,) = ([task.train_data("north")] for task in (plain, other))
    assert torch.equal(ours.features.sort(dim=0).values, theirs.features.sort(dim=0).values)
    assert torch.equal(other.inputs_from(tmp_path / "b" / "north.csv"), plain.inputs_from(tmp_path / "a" / "north.csv"))
    assert other.source_of("north") == (
        "north.csv (separator ';', decimal mark ',', cp1252), as north.mapping.toml says: age from Alter, months to "
        "years; size from Gr\u00f6\u00dfe cm, cm to m; sex from Geschlecht, 2 levels; ill from krank, 1 level"
    )


def test_the_mapping_decides_over_the_options_key_by_key(tmp_path: Path) -> None:
    for rows, mapping in ((OTHER, MAPPING), (OTHER, MAPPING.replace('decimal = ","', ""))):
        task = at_a_site(tmp_path, rows, mapping, separator="|", decimal=",", encoding="utf-16")
        assert len(task.train_data("north")) == 8
    task = at_a_site(tmp_path, PLAIN.replace("40", "-9"), 'missing-values = ["-9"]')
    assert task.inputs_from(tmp_path / "north.csv")[0, :2].tolist() == [0, 1]
    with pytest.raises(DataError, match="hold no number"):  # what the options list is no missing value here
        at_a_site(tmp_path, PLAIN.replace("40", "NA"), 'missing-values = ["-9"]').inputs_from(tmp_path / "north.csv")


def test_a_mapping_changes_nothing_that_sites_compare(tmp_path: Path) -> None:
    plain, other = at_a_site(tmp_path / "a", PLAIN), at_a_site(tmp_path / "b", OTHER, MAPPING)
    assert plain.options.description() == other.options.description()
    assert plain.settings.options == other.settings.options


@pytest.mark.parametrize(
    ("number", "unit", "to", "expected"),
    [(504, "months", "years", 42), (170, "cm", "m", 1.7), (98.6, "fahrenheit", "celsius", 37), (1, "ft", "in", 12)],
)
def test_units_are_converted(number: float, unit: str, to: str, expected: float) -> None:
    assert converted(number, unit, to) == expected
    assert converted(expected, to, unit) == pytest.approx(number)


def test_every_unit_is_itself_and_of_one_dimension() -> None:
    for unit, (dimension, _, _) in UNITS.items():
        assert converted(3.5, unit, unit) == 3.5
        assert len([one for one in UNITS.values() if one[0] == dimension]) > 1


def test_a_factor_and_an_offset_serve_where_no_unit_is_listed(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x\n18\nNA\n")
    (tmp_path / "a.mapping.toml").write_text("column.x = { factor = 0.5, offset = 1 }")
    assert read_table(tmp_path / "a.csv").cells == {"x": ["10", "NA"]}


def test_a_level_can_be_missing_and_others_stay(tmp_path: Path) -> None:
    task = at_a_site(tmp_path, PLAIN.replace("40", "x"), 'column.age = { levels = { x = "" } }')
    assert task.inputs_from(tmp_path / "north.csv")[:2, :2].tolist() == [[0, 1], [1, 0]]


def test_a_level_that_no_row_has_is_named_to_the_site(tmp_path: Path) -> None:
    columns = {**OPTIONS["columns"], "sex": {"type": "category", "values": ["female", "male"], "unknown": "fill"}}  # type: ignore[dict-item]
    task = at_a_site(tmp_path, OTHER, MAPPING.replace("w = ", "f = "), columns=columns)
    assert task.source_of("north").endswith("no row has f in sex: another spelling?")


BAD = {
    "unknown column": ("column.agee = { from = 'Alter' }", "column.agee: the task has no such column", "mean age?"),
    "unknown level": (MAPPING.replace('"male"', '"mael"'), "sex.levels: mael is no category of it", "mean male?"),
    "unknown class": (MAPPING.replace('"yes"', '"jes"'), "ill.levels: jes is no category of it", "yes"),
    "no such column": (MAPPING.replace('"Alter"', '"Altr"'), "has no column Altr, which its mapping", "it Alter?"),
    "to fill in": (MAPPING.replace('"Alter"', '""'), "column.age.from: is to be filled in", ""),
    "unknown unit": (MAPPING.replace("months", "month"), "column.age.unit: must be one of", "mean months?"),
    "another dimension": (MAPPING.replace('"years"', '"kg"'), "cannot turn months into kg", ""),
    "half a unit": (MAPPING.replace(', to = "years"', ""), "needs both unit and to", ""),
    "two conversions": (MAPPING.replace('"years"', '"years", factor = 2'), "has a unit and a factor", ""),
    "offset alone": ("column.age = { offset = 2 }", "has an offset without a factor", ""),
    "unknown key": (MAPPING.replace("unit", "unti"), "column.age.unti: unknown key", ""),
    "separator": ('separator = ",,"', "separator: must be one character", ""),
    "encoding": ('encoding = "ansi"', "encoding: must be an encoding", ""),
    "one mark for both": ('separator = ","\ndecimal = ","', "separator: , is the decimal mark as well", ""),
    "no toml": ("separator = ", "not valid TOML", ""),
    "no such file": ('file = "gone.csv"', "gone.csv: cannot be read", ""),
    "both": ("file = 'x'\n[sql]\nstatement = 'select 1 order by 1'\nurl-variable = 'X'", "has a file and a query", ""),
}


@pytest.mark.parametrize(("mapping", "why", "hint"), BAD.values(), ids=BAD.keys())
def test_a_wrong_mapping_is_named_with_its_key(tmp_path: Path, mapping: str, why: str, hint: str) -> None:
    error = refused(tmp_path, mapping)
    assert why in str(error)
    assert "north" in str(error)
    assert hint in error.hint


def test_the_label_of_a_mapping_may_be_absent_where_none_is_needed(tmp_path: Path) -> None:
    task = at_a_site(tmp_path, OTHER, MAPPING)
    rows = "\n".join(line.rpartition(";")[0] for line in OTHER.splitlines())
    (tmp_path / "new.csv").write_bytes(rows.encode("cp1252"))
    (tmp_path / "new.mapping.toml").write_text(MAPPING)
    assert torch.equal(task.inputs_from(tmp_path / "new.csv"), task.inputs_from(tmp_path / "north.csv"))


def test_a_mapping_can_name_a_file_elsewhere(tmp_path: Path) -> None:
    task = at_a_site(tmp_path, OTHER, MAPPING)
    (tmp_path / "exports").mkdir()
    (tmp_path / "north.csv").rename(tmp_path / "exports" / "May.csv")
    (tmp_path / "north.mapping.toml").write_text(f'file = "exports/May.csv"\n{MAPPING}')
    assert len(task.train_data("north")) == 8
    assert len(task.inputs_from(tmp_path / "north.mapping.toml")) == 8
    (tmp_path / "north.csv").write_text(PLAIN)  # of which the mapping beside it does not speak
    assert len(task.inputs_from(tmp_path / "north.csv")) == 8


def test_two_files_of_one_site_are_refused_unless_the_mapping_names_one(tmp_path: Path) -> None:
    for suffix in ("csv", "xlsx"):
        (tmp_path / f"north.{suffix}").touch()
    with pytest.raises(DataError, match=r"has north\.csv, north\.xlsx") as caught:
        file_of_site(tmp_path, "north")
    assert "north.mapping.toml" in caught.value.hint
    (tmp_path / "north.mapping.toml").write_text('file = "north.csv"')
    assert read_mapping(file_of_site(tmp_path, "north")).file == tmp_path / "north.csv"


PASSWORD = "hunter2-secret"


@pytest.fixture
def _database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(sqlite3.connect(tmp_path / "hearts.db")) as base:
        base.execute("CREATE TABLE hearts (id INTEGER, age INTEGER, size REAL, sex TEXT, ill TEXT)")
        rows = [(n, 40 + n, 1.5 + n / 100, ("female", "male")[n % 2], "yes") for n in range(8)]
        base.executemany("INSERT INTO hearts VALUES (?, ?, ?, ?, ?)", rows)
        base.commit()
    monkeypatch.setenv("HEARTS", f"sqlite:///{tmp_path / 'hearts.db'}")


def query(statement: str, url: str = 'url-variable = "HEARTS"') -> str:
    return f"[sql]\n{url}\nstatement = '''{statement}'''\n"


@pytest.mark.usefixtures("_database")
def test_a_query_gives_the_rows_of_a_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    task = at_a_site(tmp_path, PLAIN, query("SELECT age, size, sex, ill FROM hearts ORDER BY id;"))
    (tmp_path / "north.csv").rename(tmp_path / "plain.csv")
    assert torch.equal(task.inputs_from(tmp_path / "north.mapping.toml"), task.inputs_from(tmp_path / "plain.csv"))
    assert len(task.train_data("north")) == 8
    assert task.source_of("north") == "a query of sqlite, as north.mapping.toml says"
    assert caplog.text == ""  # which would hold cells


@pytest.mark.usefixtures("_database")
@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("DROP TABLE hearts", "must be one SELECT"),
        ("SELECT 1 ORDER BY 1; DROP TABLE hearts", "must be one SELECT"),
        ("SELECT age FROM hearts", "must have ORDER BY"),
        ("SELECT ';', 'order by' FROM hearts", "must have ORDER BY"),
        ("WITH x AS (SELECT 1) DELETE FROM hearts WHERE id IN (SELECT id FROM hearts ORDER BY id)", "refused: "),
        ("SELECT gone FROM hearts ORDER BY id", "the database refused: OperationalError"),
        ("SELECT age, age FROM hearts ORDER BY id", "1 name above more than one column"),
        ("SELECT age FROM hearts WHERE id > 99 ORDER BY id", "has no rows"),
        ("SELECT x'00' AS age FROM hearts ORDER BY id", "holds values of the kind bytes"),
    ],
)
def test_a_query_can_only_read_and_is_one(tmp_path: Path, statement: str, why: str) -> None:
    assert why in str(refused(tmp_path, query(statement)))
    with closing(sqlite3.connect(tmp_path / "hearts.db")) as base:
        assert base.execute("SELECT COUNT(*) FROM hearts").fetchone() == (8,)


def test_a_database_that_is_missing_is_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEARTS", f"sqlite:///{tmp_path / 'gone.db'}")
    assert "the database refused" in str(refused(tmp_path, query("SELECT 1 ORDER BY 1")))
    assert not (tmp_path / "gone.db").exists()


@pytest.mark.usefixtures("_database")
def test_the_url_comes_from_a_file_that_its_owner_alone_reads(tmp_path: Path) -> None:
    file, text = tmp_path / "url", query("SELECT age, size, sex, ill FROM hearts ORDER BY id", 'url-file = "url"')
    assert "url: is missing" in str(refused(tmp_path, text))
    file.write_text(f"{os.environ['HEARTS']}\n")
    file.chmod(0o644)
    assert "is open to others" in str(refused(tmp_path, text))
    file.chmod(0o600)
    assert len(at_a_site(tmp_path, PLAIN, text).train_data("north")) == 8


@pytest.mark.parametrize(
    ("url", "why"),
    [
        (f"sqlite:////nowhere/{PASSWORD}.db", "the database refused: OperationalError"),
        (f"nosuch://user:{PASSWORD}@host/x", "its URL is none that SQLAlchemy reads"),
        (f"no url {PASSWORD}", "its URL is none that SQLAlchemy reads"),
        (f"postgresql+psycopg://user:{PASSWORD}@127.0.0.1:1/x", "driver psycopg is not installed"),
        ("", "the variable HEARTS is not set"),
    ],
)
def test_the_password_is_in_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEARTS", url)
    error = refused(tmp_path, query("SELECT 1 AS x ORDER BY 1"))
    assert why in str(error)
    causes = (error, error.__cause__, None if error.__suppress_context__ else error.__context__)
    assert PASSWORD not in "".join(f"{one!r} {one} {getattr(one, 'hint', '')}" for one in causes)
    assert PASSWORD not in repr(read_mapping(tmp_path / "north.mapping.toml"))
    assert PASSWORD not in "".join(capsys.readouterr())


def test_without_the_extra_the_command_to_install_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    error = refused(tmp_path, query("SELECT 1 ORDER BY 1"))
    assert (error.why, error.hint) == ("queries need sqlalchemy", "pip install 'securefda[sql]'")
