"""UCI's original heart disease files become the CSV files that Fed-Heart reads, to the byte, or nothing is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from securefda.cli import main
from securefda.tasks.fed_heart import BUNDLED, HOSPITALS
from securefda.tasks.uci_heart import convert


@pytest.fixture
def originals(tmp_path: Path) -> Path:
    """The originals, as UCI has them: no header, a question mark for each missing value."""
    folder = tmp_path / "uci"
    folder.mkdir()
    for hospital in HOSPITALS:
        lines = (BUNDLED / f"{hospital}.csv").read_text().splitlines()[1:]
        text = "".join(",".join(value or "?" for value in line.split(",")) + "\n" for line in lines)
        (folder / f"processed.{hospital}.data").write_text(text)
    return folder


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_the_files_are_those_that_the_task_reads(originals: Path, tmp_path: Path, ends: str) -> None:
    for path in originals.iterdir():
        path.write_bytes(path.read_bytes().replace(b"\n", ends.encode()))
    converted = convert(originals, tmp_path / "new" / "heart")
    assert {hospital.hospital: hospital.patients for hospital in converted} == dict(
        zip(HOSPITALS, (303, 294, 123, 200), strict=True)
    )
    for hospital in converted:
        assert hospital.file.read_bytes() == (BUNDLED / f"{hospital.hospital}.csv").read_bytes()


def test_the_command_says_what_comes_next(originals: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "heart"
    assert main(["task", "convert-uci-heart", str(originals), "--out", str(out)]) == 0
    assert f"next: securefda run fed_heart --set task.data-dir={out}" in capsys.readouterr().out
    assert main(["task", "convert-uci-heart", str(originals), "--out", str(out), "--format", "json"]) == 4
    assert "is there already" in json.loads(capsys.readouterr().out)["message"]


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (b"?", b"0", "does not hold the va rows as UCI published them"),
        (b",", b" ", "200 of 200 lines do not hold 14 values"),
        (b"?", b"\xff", "is no text"),
    ],
    ids=["question marks replaced", "blanks between", "bytes"],
)
def test_another_file_is_refused_and_nothing_is_written(
    originals: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], old: bytes, new: bytes, why: str
) -> None:
    file = originals / "processed.va.data"
    lines = file.read_bytes().splitlines()
    changed = [line.replace(old, new) for line in lines] if old == b"," else [lines[0].replace(old, new), *lines[1:]]
    file.write_bytes(b"\n".join([*changed, b""]))
    assert main(["task", "convert-uci-heart", str(originals), "--out", str(tmp_path / "heart")]) == 4
    assert why in capsys.readouterr().err
    assert not (tmp_path / "heart").exists()


def test_missing_files_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["task", "convert-uci-heart", str(tmp_path), "--out", str(tmp_path / "heart")]) == 4
    assert "processed.cleveland.data: cannot be read: No such file" in capsys.readouterr().err
