"""The command from outside: exit codes, envelopes, quick start, Ctrl-C. Wrong arguments are in test_wrong_inputs.py."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from securefda import __version__
from securefda.cli import main

MINIMAL = """
[federation]
name = "digits"
sources = ["source-1", "source-2", "source-3"]
[task]
factory = "securefda.tasks.digits:Digits"
"""
COMMAND = [sys.executable, "-m", "securefda.cli"]
INTERRUPTED_WHILE_IT_IMPORTS = """
import os, signal, sys
class Finder:
    def find_spec(name, *_):
        if name == {name!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder)
from {module} import {function}
sys.exit({function}())
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "federation.toml"
    path.write_text(MINIMAL)
    return path


@pytest.mark.parametrize("module", ["securefda", "securefda.cli"])
def test_the_package_can_be_run_as_a_module(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", module, "config", "explain", "no.such.key"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr.splitlines()[0]) == (4, "error: no.such.key: there is no such key")


def test_an_error_in_json_is_one_envelope_on_stdout(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", str(file), "--set", "strategy.roundz=3", "--format", "json"]) == 4
    out, err = capsys.readouterr()
    assert err == ""
    assert json.loads(out) == {
        "schema_version": 1,
        "status": "error",
        "exit_code": 4,
        "error_code": "ConfigError",
        "message": "strategy.roundz: unknown key (--set)",
        "hint": "did you mean strategy.rounds?",
    }


def test_arguments_too_wrong_to_parse_still_answer_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--format=json", "--bogus"]) == 4
    assert json.loads(capsys.readouterr().out)["error_code"] == "UsageError"


def test_a_file_named_json_does_not_ask_for_json(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "json"]) == 4
    assert capsys.readouterr().out == ""


def test_the_environment_sets_what_the_flags_leave_open(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECUREFDA_STRATEGY_BETA", "7")
    assert main(["simulate", str(file)]) == 4
    assert "strategy.beta: must be finite and lie in [0, 1], is 7" in capsys.readouterr().err


def test_a_second_run_does_not_mix_with_the_first(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (file.parent / "run").mkdir()
    (file.parent / "run" / "metrics.jsonl").write_text("")
    assert main(["simulate", str(file), "--out", "run"]) == 4
    assert "run holds a run already" in capsys.readouterr().err


def test_version_and_help_end_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"securefda {__version__}\n"
    assert main([]) == 0
    assert "federation" in capsys.readouterr().out


def test_the_process_ends_with_the_exit_code_and_no_traceback(tmp_path: Path) -> None:
    command = [*COMMAND, "run", "x.toml"]
    result = subprocess.run(command, cwd=tmp_path, env=_environment(), capture_output=True, text=True, check=False)
    assert result.returncode == 4
    assert result.stderr == "error: x.toml: is missing\nhint: check the path\n"


def test_a_reader_that_hangs_up_causes_no_traceback() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end) as nobody_reads:
        result = subprocess.run(
            [*COMMAND, "--version"], env=_environment(), stdout=nobody_reads, stderr=subprocess.PIPE, check=False
        )
    assert result.returncode == 1
    assert result.stderr == b""


def test_ctrl_c_ends_a_run_in_one_line_and_leaves_its_rounds_and_a_report(file: Path) -> None:
    command = [*COMMAND, "simulate", str(file), "--out", "run", "--set", "strategy.rounds=5000"]
    with subprocess.Popen(command, cwd=file.parent, env=_environment(), stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        before = _lines_until(process, "round 2 of 5000: ")
        process.send_signal(signal.SIGINT)
        after = process.stderr.read()
        assert process.wait(60) == 130
    assert any(line.startswith("round 1 of 5000: accuracy ") for line in before)
    assert "Traceback" not in after
    assert "error: interrupted\nhint: every finished round is in run\n" in after
    rounds = [json.loads(line)["round"] for line in (file.parent / "run" / "metrics.jsonl").read_text().splitlines()]
    assert rounds == list(range(1, len(rounds) + 1))
    assert len(rounds) >= 2
    assert "Target accuracy" in (file.parent / "run" / "report.html").read_text()


@pytest.mark.parametrize("name", ["securefda.cli", "typer", "securefda.cli.app"])
def test_ctrl_c_ends_the_installed_command_in_one_line_also_while_it_imports(name: str) -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    module, _, function = project["scripts"]["securefda"].partition(":")
    script = INTERRUPTED_WHILE_IT_IMPORTS.format(name=name, module=module, function=function)
    done = subprocess.run(
        [sys.executable, "-c", script], env=_environment(), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "error: interrupted\n")


def _lines_until(process: subprocess.Popen[str], start: str) -> list[str]:
    lines: list[str] = []
    assert process.stderr is not None
    for line in process.stderr:
        lines.append(line)
        if line.startswith(start):
            return lines
    raise AssertionError(f"ended before {start}: {lines}")


def _environment() -> dict[str, str]:
    root = str(Path(__file__).parents[2])
    return os.environ | {"PYTHONPATH": root, "OMP_NUM_THREADS": "1"}
