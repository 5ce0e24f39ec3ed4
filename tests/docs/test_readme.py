"""The commands of the README do what it says, in its order."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tutorial_runner import ROOT, TutorialRun, one_page_at_a_time
from typed_commands import forked_line

from securefda.cli import main

SHORTER = 'case "$1 $2" in "run heart"*) set -- "$@" --set strategy.rounds=2 ;; esac'
"""A run of processes that the README shows, with as few rounds as can be."""


@pytest.mark.timeout(300)
def test_the_lines_of_the_readme_run_pasted_in_sequence(tmp_path: Path) -> None:
    tool = tmp_path / "tool"
    tool.write_text(f"{SHORTER}\n{forked_line()}\n")
    (tmp_path / "page").mkdir()
    with one_page_at_a_time():
        skipped = TutorialRun(ROOT / "README.md", tmp_path / "page", command=f'exec sh {tool} "$@"').run()
    release = "needs the files of a release and its signer's key"
    assert skipped == ["sets up an environment of its own", "four terminals", release]
    work = tmp_path / "page" / "work"
    assert json.loads(next(work.glob("runs/*/summary.json")).read_text())["status"] == "finished"


def test_the_budget_commands_of_the_readme_show_what_they_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    plan = ["--epsilon", "4", "--delta", "1e-5", "--rounds", "12", "--samples", "239", "--batch", "32"]
    assert main(["budget", "plan", *plan]) == 0
    assert "[training.dp]\nnoise-multiplier = 1.715" in capsys.readouterr().out
