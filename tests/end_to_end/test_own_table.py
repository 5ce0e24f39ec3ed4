"""From the wheel to a run on a table of one's own: at most eight commands, and no Python."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from typed_commands import forked_line

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("own_table.sh")
INSTALL = 1
"""pip install, which .ci/run does."""


def commands() -> list[str]:
    return [line for line in SCRIPT.read_text().splitlines() if not line.startswith("#")]


def test_there_are_at_most_eight_commands_and_none_is_python() -> None:
    assert INSTALL + len(commands()) <= 8
    assert all(command.split()[0] in ("securefda", "cd") for command in commands())
    assert "own_table.sh" in (ROOT / ".ci" / "run").read_text()


@pytest.mark.timeout(600)
def test_they_end_in_a_model_of_the_table(tmp_path: Path) -> None:
    tools, work = tmp_path / "bin", tmp_path / "work"
    tools.mkdir()
    work.mkdir()
    tool = tools / "securefda"
    tool.write_text(f"#!/bin/sh\nPYTHONPATH={ROOT} {forked_line()}\n")  # .ci/run executes the installed command
    tool.chmod(0o755)
    shutil.copy(ROOT / "examples" / "heart_tables" / "west.csv", work / "export.csv")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SECUREFDA_")}
    done = subprocess.run(
        ["sh", "-eu", SCRIPT],
        cwd=work,
        env=kept | {"PATH": f"{tools}:{kept['PATH']}", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    run = work / "heart" / "runs" / "first"
    summary = json.loads((run / "summary.json").read_text())
    assert summary["final_accuracy"] > 0.6  # the frequent class has about half of the rows
    assert (run / "model.safetensors").stat().st_size > 0
    table = (work / "export.csv").read_text(encoding="utf-8-sig").splitlines()
    predictions = (work / "heart" / "predictions.csv").read_text().splitlines()
    assert predictions[0] == "row,ill,probability no,probability yes"
    assert len(predictions) == len(table)
    assert {path.name for path in (run / "sites").iterdir()} == {"clinic", "hospital-a", "hospital-b", "hospital-c"}
    assert len({path.read_bytes() for path in (work / "heart" / "data").iterdir()}) == 4
