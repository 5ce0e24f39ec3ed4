"""Run folders of somebody else: whatever is in them, a command shows the rest, or ends with one line."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, PngImagePlugin

from securefda.cli import main
from securefda.errors import DataError
from securefda.local import new_folder
from securefda.operations.run_folder import (
    METRICS_FILE,
    MODEL_FILE,
    REPORT_FILE,
    SUMMARY_FILE,
    RunFolder,
    clear_run,
    read_run,
)
from securefda.operations.trained import as_csv
from threat_model.adversaries.run_folders import MakesRunFolder

CONTROLS = "\x1b]0;owned\x07\x9b2J\u202e"
SHIPPED = "securefda.tasks.digits:Digits"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A whole run in a folder of runs, with another one beside it."""
    made = MakesRunFolder(tmp_path, SHIPPED).run
    shutil.copytree(made, tmp_path / "other")
    return made


def with_summary(run: Path, change: Callable[[dict[str, Any]], object]) -> None:
    summary = json.loads((run / SUMMARY_FILE).read_text())
    change(summary)
    (run / SUMMARY_FILE).write_text(json.dumps(summary))


def said(capsys: pytest.CaptureFixture[str], *command: str | Path) -> tuple[int, str]:
    """The exit code and all that was printed."""
    capsys.readouterr()
    code = main([str(part) for part in command])
    printed = capsys.readouterr()
    return code, printed.out + printed.err


def listed(capsys: pytest.CaptureFixture[str], folder: Path) -> dict[str, str]:
    code, text = said(capsys, "runs", "ls", folder, "--format", "json")
    assert code == 0
    return {Path(one["run"]).name: one["status"] for one in json.loads(text)["data"]["runs"]}


LIES: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "a key of a later version": (lambda s: s.update(added=1), "finished"),
    "a figure that was not finite": (lambda s: s.update(seconds_by_phase={"rule": None}), "finished"),
    "no number for a rate": (lambda s: s["setting"]["training"].update({"learning-rate": None}), "finished"),
    "a list for the rule": (lambda s: s["strategy"].update(rule=["fedgp"]), "damaged"),
    "a table for the rule": (lambda s: s["strategy"].update(rule={"x": 1}), "damaged"),
    "no learning rate": (lambda s: s["setting"]["training"].pop("learning-rate"), "damaged"),
    "an unknown kind of labels": (lambda s: s["setting"]["training"].update(labels="x"), "damaged"),
    "a vast number": (lambda s: s.update(target_accuracy=1.7e308), "damaged"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_summary_breaks_no_list_and_no_view(run: Path, capsys: pytest.CaptureFixture[str], lie: str) -> None:
    change, status = LIES[lie]
    with_summary(run, change)
    assert listed(capsys, run.parent) == {"study": status, "other": "finished"}
    wanted = 0 if status == "finished" else 4
    for command in (("runs", "show", run), ("runs", "compare", run, run), ("runs", "show", run, "--format", "json")):
        assert said(capsys, *command)[0] == wanted


ROUNDS = {
    "accuracies whose sum is infinite": '{"round": 1, "accuracy": 1.7e308}\n' * 2,
    "an accuracy above 1": '{"round": 1, "accuracy": 1.5}\n',
    "a number that is none": '{"round": 1, "loss": NaN}\n',
}


@pytest.mark.parametrize("lines", ROUNDS)
def test_rounds_break_no_list(run: Path, capsys: pytest.CaptureFixture[str], lines: str) -> None:
    (run / METRICS_FILE).write_text(ROUNDS[lines])
    assert listed(capsys, run.parent) == {"study": "damaged", "other": "finished"}
    assert said(capsys, "runs", "show", run)[0] == 4


@pytest.mark.parametrize("key", ["changed", "since", "retrying_until", "process"])
def test_a_state_breaks_no_list(run: Path, capsys: pytest.CaptureFixture[str], key: str) -> None:
    state = {"site": "a", "role": "source", "process": 1, "started": "", "host": "h", "doing": "ended", "since": 1.0}
    state |= {"changed": 1.0, "schema_version": 1}
    (run / "status.json").write_text(json.dumps(state))
    assert listed(capsys, run.parent)["study"] == "finished"
    (run / "status.json").write_text(json.dumps(state | {key: 1 << 60}))
    assert listed(capsys, run.parent) == {"study": "damaged", "other": "finished"}
    assert f"{key} is not as a process writes it" in said(capsys, "status", run)[1]


def test_words_of_a_folder_control_no_terminal(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def change(summary: dict[str, Any]) -> None:
        summary["strategy"] |= {"rule": CONTROLS, CONTROLS: CONTROLS}
        summary["setting"] |= {"federation": CONTROLS, "sources": [CONTROLS]}
        summary |= {"ended": CONTROLS, "refusals": {CONTROLS: {CONTROLS: 1}}, "versions": {CONTROLS: CONTROLS}}

    with_summary(run, change)
    commands = (("runs", "ls", run), ("runs", "show", run), ("runs", "compare", run, run.parent / "other"))
    for command in commands:
        for form in ("txt", "json"):
            code, text = said(capsys, *command, "--format", form)
            assert code == 0
            assert "owned" in text
            assert all(character.isprintable() for character in text.replace("\n", ""))


# Files that are none, or have no end


def fifo(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def sparse(file: Path) -> None:
    file.unlink()
    with file.open("wb") as made:
        made.truncate(1 << 40)


def endless(file: Path) -> None:
    file.unlink()
    file.symlink_to("/dev/zero")


@pytest.mark.parametrize("name", [METRICS_FILE, SUMMARY_FILE, MODEL_FILE])
@pytest.mark.parametrize("make", [fifo, sparse, endless])
def test_files_without_an_end_are_refused(
    run: Path, capsys: pytest.CaptureFixture[str], make: Callable[[Path], None], name: str
) -> None:
    make(run / name)
    code, text = said(capsys, "export", run, "--format", "torchscript")
    assert code == 4
    assert name in text
    assert len(text.splitlines()) == 2
    assert listed(capsys, run.parent)["other"] == "finished"


# Links


def test_links_are_read_as_files_and_removed_as_links(run: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "rows.csv").write_text("secret\n")
    (run / "sites").symlink_to(kept)
    (run / REPORT_FILE).symlink_to(kept / "rows.csv")
    assert read_run(run).sites == {}
    clear_run(run)
    assert (kept / "rows.csv").read_text() == "secret\n"
    assert list(run.iterdir()) == []


def test_what_a_link_leads_to_is_neither_quoted_nor_written(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    private = run.parent / "private"
    private.write_text("secret\n")
    (run / REPORT_FILE).symlink_to(private)
    RunFolder(run).write(REPORT_FILE, b"page")
    assert not (run / REPORT_FILE).is_symlink()
    assert private.read_text() == "secret\n"
    (run / SUMMARY_FILE).unlink()
    (run / SUMMARY_FILE).symlink_to(private)
    code, text = said(capsys, "runs", "show", run)
    assert code == 4
    assert "secret" not in text


def test_a_list_does_not_follow_links_to_folders(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run.parent / "again").symlink_to(run)
    assert set(listed(capsys, run.parent)) == {"study", "other"}


# What is written for spreadsheets, and images


@pytest.mark.parametrize("text", ["=A1", "+A1", "-A1", "@SUM(A1)", "\t=A1", "\r=A1"])
def test_no_cell_of_predictions_is_a_formula(text: str) -> None:
    header, row = as_csv([{text: text, "p": -0.5}]).replace('"', "").split("\n", 1)
    assert header.split(",")[1] == f"'{text}"
    assert row.split(",")[1] == f"'{text}"
    assert row.strip().endswith(",-0.5")


@pytest.mark.parametrize("text", ["-1", "+2.5", "yes", "a=b", "'x"])
def test_plain_cells_stay_as_they_are(text: str) -> None:
    assert as_csv([{"class": text}]) == f"row,class\n1,{text}\n"


def test_images_that_unpack_to_much_more_are_refused_before_they_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide, wordy = tmp_path / "wide.png", tmp_path / "wordy.png"
    Image.new("L", (64, 64)).save(wide)
    words = PngImagePlugin.PngInfo()
    words.add_text("comment", "x" * (2 * PngImagePlugin.MAX_TEXT_CHUNK), zip=True)
    Image.new("L", (8, 8)).save(wordy, pnginfo=words)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    for path in (wide, wordy):
        with pytest.raises(DataError, match=rf"{path.name}: cannot be read as PNG or JPEG"):
            new_folder._size_and_colour([path])
