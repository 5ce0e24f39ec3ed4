"""The commands of the README do what it says, in its order."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from test_manual import ROOT, typed_commands
from tutorial_runner import read_blocks

from securefda.cli import main

IN_THE_TUTORIAL = ("aggregator", "source", "preflight")
"""Commands that listen at the port of the walk-through, or wait for who does: the first tutorial runs the same ones."""


def test_the_commands_of_the_readme_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    ran = []
    for block in read_blocks(ROOT / "README.md"):
        monkeypatch.chdir(tmp_path)
        for arguments in typed_commands(block.text) if block.language == "sh" else ():
            if arguments[0] in IN_THE_TUTORIAL:
                continue
            if arguments[0] == "run":  # processes: with as few rounds as can be
                arguments += ["--set", "strategy.rounds=2"]
            if arguments[:2] == ["budget", "advise"]:
                arguments += ["--epsilon", "4", "--rounds", "1", "--batch", "32", "--seeds", "1"]
            assert main(arguments) == 0, (arguments, capsys.readouterr().err)
            ran.append(arguments[0])
            if arguments[0] == "new":
                monkeypatch.chdir(tmp_path / arguments[1])  # as the command line goes on
    assert {"new", "task", "run", "federation", "policy", "budget"} <= set(ran)


def test_the_budget_commands_of_the_readme_show_what_they_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    plan = ["--epsilon", "4", "--delta", "1e-5", "--rounds", "12", "--samples", "239", "--batch", "32"]
    assert main(["budget", "plan", *plan]) == 0
    assert "[training.dp]\nnoise-multiplier = 1.715" in capsys.readouterr().out
