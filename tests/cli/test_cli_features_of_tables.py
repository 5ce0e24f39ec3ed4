"""``securefda features`` of tables: a text encoder sees rows as dicts, and sites with other columns are told apart."""

from __future__ import annotations

import json
from pathlib import Path

import openpyxl
import pyarrow
import pyarrow.parquet
import pytest
import torch

from securefda.cli import main
from securefda.errors import ExitCode
from securefda.tasks.features_file import NO_LABEL, FeatureFile, read_features

TEXTS = "features_encoders:texts"
TABLE = """note,age,ill
"pain, since\nMonday",40,yes
well,NA,no
"much ""pain\"\"",31.5,
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def encode(table: str, *options: str, out: str = "a.safetensors", encoder: str = TEXTS) -> int:
    return main(["features", table, "--encoder", encoder, "--out", out, *options])


def encoded(table: str, *options: str, encoder: str = TEXTS) -> FeatureFile:
    assert encode(table, *options, encoder=encoder) == 0
    found = read_features(Path("a.safetensors"))
    Path("a.safetensors").unlink()
    return found


def rows(count: int = 24, first: int = 0) -> list[tuple[str, str, str]]:
    """Notes that say pain where the label is yes, no two rows alike."""
    return [
        (f"{'pain' if number % 2 else 'well'} {'x' * (number % 7)}", str(20 + number), "yes" if number % 2 else "no")
        for number in range(first, first + count)
    ]


def save(path: str, lines: list[tuple[str, str, str]], header: str = "note,age,ill") -> str:
    Path(path).parent.mkdir(exist_ok=True)
    Path(path).write_text("\n".join([header, *(",".join(line) for line in lines)]) + "\n")
    return path


def test_each_row_has_features_a_label_and_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.csv").write_text(TABLE.replace("NA", "50"))
    assert encode("a.csv", "--label", "ill", "--format", "json", "--batch", "2") == 0
    data = json.loads(capsys.readouterr().out)["data"]
    found = read_features(Path("a.safetensors"))
    assert (data["rows"], data["width"], data["unlabelled"], data["classes"]) == (3, 4, 1, ["no", "yes"])
    assert (found.classes, found.encoder) == (("no", "yes"), data["encoder"])
    assert found.labels is not None
    assert found.labels.tolist() == [1, 0, NO_LABEL]
    assert found.rows == ("line 3", "line 4", "line 5")
    expected = [[1.8, 1, 4, 1], [0.4, 0, 5, 1], [1.1, 1, 3.15, 1]]
    torch.testing.assert_close(found.features, torch.tensor(expected))


def test_all_kinds_of_tables_give_the_same_features() -> None:
    lines = [("pain", 41.5, "1"), ("well", 40, "0")]
    Path("a.csv").write_text("ill,age,note\n1,41.5,pain\n0,40,well\n")
    Path("b.csv").write_text("note;age;ill\npain;41,5;1\nwell;40,0;0\n")
    book = openpyxl.Workbook()
    for line in [("note", "age", "ill"), *lines]:
        book.active.append(line)
    book.save("c.xlsx")
    columns = dict(zip(("note", "age", "ill"), map(list, zip(*lines, strict=True)), strict=True))
    pyarrow.parquet.write_table(pyarrow.table(columns), "d.parquet")
    found = [encoded(name, "--label", "ill") for name in ("a.csv", "b.csv", "c.xlsx", "d.parquet")]
    assert len({each.encoder for each in found}) == 1
    for each in found:
        assert torch.equal(each.features, found[0].features)
        assert each.labels is not None
        assert (each.labels.tolist(), each.classes) == ([1, 0], ("0", "1"))


def test_the_digest_tells_encoders_and_columns_apart() -> None:
    save("a.csv", rows())
    ways = [
        (["--label", "ill"], TEXTS),
        (["--label", "ill"], "features_encoders:other_texts"),
        ([], TEXTS),
        (["--column", "note", "--column", "age"], TEXTS),
    ]
    assert len({encoded("a.csv", *options, encoder=encoder).encoder for options, encoder in ways}) == len(ways)
    own = encoded("a.csv", "--column", "age", "--column", "note")
    assert own.encoder == encoded("a.csv", "--label", "ill").encoder
    assert own.labels is None


def test_a_second_call_encodes_only_what_the_first_did_not(capsys: pytest.CaptureFixture[str]) -> None:
    save("a.csv", [*rows(20), ("well", "no number", "no")])
    assert encode("a.csv", "--label", "ill", "--batch", "5") == ExitCode.CONFIG
    assert "fails on a batch of rows: ValueError" in capsys.readouterr().err
    save("a.csv", [*rows(20), ("well", "20", "no")])
    assert encode("a.csv", "--label", "ill", "--batch", "5", "--format", "json") == 0
    assert json.loads(capsys.readouterr().out)["data"]["encoded_before"] == 20


def test_one_round_on_texts_makes_a_head_that_predicts(capsys: pytest.CaptureFixture[str]) -> None:
    for place, site in enumerate(("clinic", "north", "east", "west")):
        save(f"tables/{site}.csv", rows(60, 100 * place))
        assert encode(f"tables/{site}.csv", "--label", "ill", out=f"features/{site}.safetensors") == 0
    assert main(["new", "study", "--features", "features", "--target", "clinic"]) == 0
    assert main(["simulate", "study/federation.toml", "--out", "run"]) == 0
    assert json.loads(Path("run/summary.json").read_text())["final_accuracy"] == 1
    save("new.csv", [("pain", "33", "no")])
    assert encode("new.csv", "--label", "ill", out="new.safetensors") == 0
    capsys.readouterr()
    assert main(["predict", "run", "--data", "new.safetensors", "--format", "json"]) == 0
    assert [(row["name"], row["class"]) for row in json.loads(capsys.readouterr().out)["data"]["rows"]] == [
        ("line 2", "yes")
    ]
    assert encode("new.csv", out="other.safetensors") == 0
    assert main(["predict", "run", "--data", "other.safetensors"]) == ExitCode.CONFIG
    assert "make it with the encoder, and the scaling or columns, of the other sites" in capsys.readouterr().err
    Path("features/west.safetensors").unlink()
    assert encode("tables/west.csv", out="features/west.safetensors") == 0
    assert main(["new", "again", "--features", "features", "--target", "clinic"]) == ExitCode.CONFIG
    assert "the files differ in their encoder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content", "options", "why", "hint"),
    [
        ("a.csv", TABLE, ["--label", "il"], "--label il: a.csv has no such column", "did you mean ill?"),
        ("a.csv", TABLE, ["--column", "sex"], "--column sex: a.csv has no such column", "columns: note, age, ill"),
        ("a.csv", TABLE, ["--label", "ill", "--column", "ill"], "--label ill: is what is to be predicted", "--column"),
        ("a.csv", "ill\nyes\nno\n", ["--label", "ill"], "--label ill: leaves no other column", "--column"),
        ("a.csv", TABLE, ["--label", "ill"], "NaN or infinity of 1 of 3 rows", "line 4 is the first"),
        ("a.csv", TABLE, ["--size", "64"], "--size: is of images, and a.csv is named as a table", "leave it out"),
        ("folder", "", ["--label", "ill"], "--label: is of a table, and folder is named as images", "leave it out"),
        ("a.csv", "note,age,ill\n", [], "a.csv: has no rows", "the first line names the columns"),
        ("a.csv", "note,note\na,b\n", [], "a.csv: 1 name above more than one column", "its own name"),
        ("a.xlsx", TABLE, [], "a.xlsx: is no Excel file", "save it again"),
        ("a.parquet", TABLE, [], "a.parquet: is no Parquet file", "write it again"),
        ("a.ods", TABLE, [], ".ods files are not read", "save the sheet as .xlsx"),
        ("b.csv", None, [], "b.csv: cannot be read: No such file", "check the path"),
    ],
)
def test_what_does_not_fit_is_one_line_and_a_hint(
    name: str, content: str | None, options: list[str], why: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        Path(name).write_text(content)
    assert encode(name, *options) == ExitCode.CONFIG
    said = capsys.readouterr()
    error, *told = said.err.splitlines()
    assert said.out == ""
    assert error.startswith("error: ")
    assert why in error
    assert hint in "".join(told)
    assert len(told) == 1
    assert not Path("a.safetensors").exists()


def test_a_label_of_too_many_values_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    save("a.csv", rows())
    assert encode("a.csv", "--label", "age", "--column", "note") == ExitCode.CONFIG
    assert "column age has 24 different values in 24 rows" in capsys.readouterr().err
