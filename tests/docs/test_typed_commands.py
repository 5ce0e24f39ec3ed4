"""The command that scripts of tests find: what it prints, how it ends, and that nothing of it outlives its caller."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typed_commands import exec_line, forked_line

LINES = {"by exec": exec_line, "by fork": forked_line}


def run(folder: Path, arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a line of a script."""
    done = subprocess.run(
        ["sh", "-c", f"securefda {arguments}"],
        cwd=folder,
        env=os.environ | {"PATH": f"{folder}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def tool(folder: Path, line: str) -> Path:
    made = folder / "securefda"
    made.write_text(f"#!/bin/sh\nPYTHONPATH={Path(__file__).parents[2]} {line}\n")
    made.chmod(0o755)
    return made


def test_a_copy_prints_and_ends_as_a_process_that_was_executed(tmp_path: Path) -> None:
    shown = {}
    for name, line in LINES.items():
        folder = tmp_path / name.replace(" ", "-")
        folder.mkdir()
        tool(folder, line())
        (folder / "securefda.py").write_text("raise SystemExit('imported')")
        shown[name] = [
            run(folder, "--version"),
            run(folder, "policy template none"),
            run(folder, "policy template cohort > policy.toml && cat policy.toml"),
        ]
    assert shown["by fork"] == shown["by exec"]
    assert [code for code, _, _ in shown["by fork"]][:2] == [0, 4]
    assert all(out or err for _, out, err in shown["by fork"])


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere every command is executed")
def test_a_tool_that_is_killed_takes_its_copy_with_it(tmp_path: Path) -> None:
    command = ["simulate", "digits", "--out", "run", "--set", "strategy.rounds=100000"]
    process = subprocess.Popen(
        [tool(tmp_path, forked_line()), *command],
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    with process.stderr as lines:
        assert any("source-1 joined" in line for line in lines)
        process.kill()
        assert lines.read() is not None  # to its end: nobody holds the other end of the pipe any more
    assert process.wait() < 0
