"""``securefda threats``: the register and what the last run found, for people and programs."""

from __future__ import annotations

import json
import os
import pty
import shutil
import struct
import subprocess
import sys
from datetime import UTC, datetime
from fcntl import ioctl
from pathlib import Path
from termios import TIOCSWINSZ
from typing import Any

import pytest

from securefda import threat_register
from securefda.cli import main
from securefda.threat_register import LAST_RUN_FILE, LastRun, RecordedTest
from threat_model.register import register

FULL_RUN = datetime(2026, 5, 1, 10, 0, tzinfo=UTC)
LATER = datetime(2026, 5, 2, 11, 30, tzinfo=UTC)
ROW = """
[[threat]]
id = "{id}"
title = "{title}"
attackers = ["HbC-A", "Mal-A"]
asset = "an update"
levels = ["sum"]
status = "{status}"
mitigation = "a check"
modules = ["securefda/protocol/session_checks.py"]
residual = "none"
control = {control}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A register of two mitigated threats and a planned one."""
    rows = [
        ROW.format(
            id="T01", title="somebody reads what was meant for somebody else", status="mitigated", control="true"
        ),
        ROW.format(id="T02", title="another threat", status="mitigated", control="true"),
        ROW.format(id="T03", title="a third one", status="planned", control="false"),
    ]
    (tmp_path / "threats.toml").write_text("".join(rows))
    return tmp_path


def write_run(folder: Path, *tests: tuple[str, str, str], full: bool = True, again: int = 0) -> None:
    """Record tests as (threat, kind, outcome); the last ``again`` of them ran later than the full run."""
    times = [FULL_RUN] * (len(tests) - again) + [LATER] * again
    records = {
        f"test_{number}": RecordedTest(threats=(threat,), kind=kind, outcome=outcome, seconds=0.5, time=time)  # type: ignore[arg-type]
        for number, ((threat, kind, outcome), time) in enumerate(zip(tests, times, strict=True))
    }
    run = LastRun(full_run=FULL_RUN if full else None, tests=records)
    (folder / LAST_RUN_FILE).write_text(run.model_dump_json(by_alias=True))


SHOWN = [(name, kind, "passed") for name in ("T01", "T02") for kind in ("adversary", "control")]


def printed(folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["threats", "--register", str(folder)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def data(folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["threats", "--register", str(folder), "--format", "json"]) == 0
    envelope = json.loads(capsys.readouterr().out)
    assert (envelope["status"], envelope["exit_code"]) == ("ok", 0)
    found: dict[str, Any] = envelope["data"]
    return found


def cells(text: str, threat: str) -> list[str]:
    line = next(line for line in text.splitlines() if line.startswith(threat))
    return [cell.strip() for cell in line.split("  ") if cell.strip()]


def test_register_of_this_tree_is_found_by_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["threats"]) == 0
    out = capsys.readouterr().out
    assert cells(out, "T05")[2] == "mitigated"
    assert f"{len(register().threat)} threats: " in out


def test_before_any_run_nothing_is_shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(folder, capsys)
    assert cells(text, "T02") == ["T02", "another threat", "mitigated", "not run", "not run", "HbC-A Mal-A"]
    assert cells(text, "T03")[2:5] == ["planned", "-", "-"]
    assert "3 threats: 2 mitigated, 1 planned" in text
    assert "The tests of this have not run here: make test" in text


def test_outcomes_of_a_full_run_stand_beside_their_threats(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(folder, *SHOWN)
    text = printed(folder, capsys)
    assert cells(text, "T01")[3:5] == ["passed", "passed"]
    assert "All tests ran on 2026-05-01 10:00 UTC." in text
    assert "not shown" not in text


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (("T01", "adversary", "failed"), ["failed", "passed"]),
        (("T01", "control", "failed"), ["passed", "failed"]),
        (("T01", "control", "skipped"), ["passed", "passed"]),
    ],
)
def test_one_test_that_fails_spoils_its_threat(
    folder: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, str, str], expected: list[str]
) -> None:
    write_run(folder, *SHOWN, more)
    text = printed(folder, capsys)
    assert cells(text, "T01")[3:5] == expected
    assert ("Mitigated, and not shown to be: T01\n" in text) == ("failed" in expected)


def test_control_that_was_skipped_is_not_shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(folder, *SHOWN[:3], ("T02", "control", "skipped"))
    text = printed(folder, capsys)
    assert cells(text, "T02")[3:5] == ["passed", "skipped"]
    assert "Mitigated, and not shown to be: T02\n" in text


def test_runs_since_the_last_full_one_are_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(folder, *SHOWN, again=1)
    assert "All tests ran on 2026-05-01 10:00 UTC, some again up to 2026-05-02 11:30 UTC." in printed(folder, capsys)
    write_run(folder, *SHOWN, full=False)
    assert "Some tests ran, up to 2026-05-01 10:00 UTC; never all of them: make test" in printed(folder, capsys)


def test_json_holds_the_register_and_the_outcomes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(folder, *SHOWN, ("T01", "adversary", "failed"), ("T03", "adversary", "passed"), again=1)
    found = data(folder, capsys)
    assert found["last_run"] == {"full_run": "2026-05-01T10:00:00+00:00", "latest": "2026-05-02T11:30:00+00:00"}
    first, _, third = found["threats"]
    assert first["attackers"] == ["HbC-A", "Mal-A"]
    assert first["control_required"] is True
    assert first["adversary"] == {
        "outcome": "failed",
        "passed": 1,
        "failed": 1,
        "skipped": 0,
        "seconds": 1.0,
        "time": "2026-05-01T10:00:00+00:00",
    }
    assert third["control_required"] is False
    assert third["adversary"]["time"] == "2026-05-02T11:30:00+00:00"
    assert third["control"]["outcome"] == "not run"


def test_installed_package_without_a_tree_ends_with_4_and_the_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(threat_register.securefda, "__file__", str(tmp_path / "securefda" / "__init__.py"))
    assert main(["threats"]) == 4
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: threats: the threat register is part of the source tree")
    assert "--register" in err.splitlines()[1]


@pytest.mark.parametrize(
    ("file", "text", "error"),
    [
        ("threats.toml", "[[threat]]\nidd = 1\n", "threat.0.idd: unknown key ({folder}/threats.toml)"),
        ("threats.toml", "[[threat", "not valid TOML"),
        (LAST_RUN_FILE, "{", "is no record of a test run"),
        (LAST_RUN_FILE, '{"full-run": null, "tests": {}, "more": 1}', "is no record of a test run"),
        (LAST_RUN_FILE, '{"full-run": "2026-05-01T10:00:00"}', "is no record of a test run"),
    ],
)
def test_malformed_file_ends_with_4_and_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], file: str, text: str, error: str
) -> None:
    (folder / file).write_text(text)
    assert main(["threats", "--register", str(folder)]) == 4
    err = capsys.readouterr().err.splitlines()
    assert error.format(folder=folder) in err[0]
    assert err[1].startswith("hint: ")


@pytest.mark.parametrize("columns", [80, 120])
def test_table_fits_the_terminal_and_cuts_nothing_off(folder: Path, columns: int) -> None:
    write_run(folder, *SHOWN, again=1)
    lines = on_a_terminal(folder, columns)
    assert max(map(len, lines)) <= columns
    words = " ".join(lines).split()
    assert {"somebody", "reads", "meant", "else", "another", "third"} <= set(words)
    assert ("else" in next(line for line in lines if line.startswith("T01"))) == (columns == 120)


def on_a_terminal(folder: Path, columns: int) -> list[str]:
    """What the command prints on a terminal of this width."""
    ours, theirs = pty.openpty()
    ioctl(theirs, TIOCSWINSZ, struct.pack("HHHH", 60, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    command = [sys.executable, "-m", "securefda.cli", "threats", "--register", str(folder)]
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
        os.close(theirs)
        printed_bytes = b""
        try:
            while part := terminal.read(4096):
                printed_bytes += part
        except OSError:  # Linux says so when the last writer has closed its end
            pass
        assert process.wait() == 0
    return printed_bytes.decode().replace("\r\n", "\n").splitlines()


def test_command_needs_nothing_of_the_tree_but_the_two_files(folder: Path, tmp_path: Path) -> None:
    away = tmp_path / "away" / "threat_model"
    shutil.copytree(folder, away, ignore=shutil.ignore_patterns("away"))
    command = [sys.executable, "-c", PROBE, str(away)]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False).returncode == 0


PROBE = """
import sys
from securefda.cli import main
code = main(["threats", "--register", sys.argv[1]])
sys.exit(code or any(name in sys.modules for name in ("threat_model", "torch", "grpc", "pytest")))
"""
