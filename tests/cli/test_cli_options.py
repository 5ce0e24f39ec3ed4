"""What every command takes: ``-h``, ``-q`` and ``-v``; colours on terminals alone; completion in shells."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from stand_ins import Terminal

from securefda.cli import main
from securefda.cli.app import app
from securefda.cli.output import painted
from securefda.settings import known_keys
from securefda.site.config import AggregatorConfig, FederationConfig, SourceConfig

COMMAND = [sys.executable, "-m", "securefda.cli"]
ROOT = Path(__file__).parents[2]


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command and group."""
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*path, name))


EVERY = dict(commands(typer.main.get_command(app)))


@pytest.mark.parametrize("path", EVERY, ids=" ".join)
def test_every_command_takes_h_q_and_v(path: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*path, "-q", "-v", "-h"]) == 0
    help_text = capsys.readouterr().out
    assert all(option in help_text for option in ("-q, --quiet", "-v, --verbose", "-h, --help"))
    assert main([*path, "--help"]) == 0
    assert capsys.readouterr().out == help_text


def test_every_command_is_one_line_below_one_heading(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    listed = [line.split()[0] for line in lines[lines.index("Try, on this machine:") :] if line.startswith("  ")]
    assert sorted(listed) == sorted(path[0] for path in EVERY if len(path) == 1)
    headings = [line.split()[0].rstrip(",") for line in lines if re.fullmatch(r"[A-Z].*:", line)]
    assert headings == ["Options:", "Try", "Operate", "Decide", "Audit"]


def test_a_command_that_processes_give_each_other_is_not_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["source", "--help"]) == 0
    assert "follow" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("typed", "near"),
    [
        ("rn", "run, runs"),
        ("polcy", "policy"),
        ("explain", "config explain, policy explain"),
        ("audit verfy", "verify"),
        ("follow", ""),
        ("xyz", ""),
    ],
)
def test_a_command_that_is_none_gets_near_names(typed: str, near: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(typed.split()) == 4
    err = capsys.readouterr().err.splitlines()
    assert err[0] == f"error: arguments: no such command '{typed.rsplit(maxsplit=1)[-1]}'"
    assert err[1] == (f"hint: did you mean {near}?" if near else "hint: securefda --help lists what there is")


def examples() -> Iterator[str]:
    """Every ``KEY=VALUE`` of a help text that names a key of a settings file."""
    for command in EVERY.values():
        texts = [command.help or "", *(getattr(item, "help", None) or "" for item in command.params)]
        for text in texts:
            yield from re.findall(r"\b[a-z-]+\.[a-z.-]+=[^\s,.)]+", text)


def test_the_settings_that_help_texts_show_work_on_the_samples() -> None:
    found = sorted(set(examples()))
    assert "strategy.rounds=3" in found
    known = {key for model in (FederationConfig, AggregatorConfig, SourceConfig) for key in known_keys(model)}
    for example in found:
        assert example.partition("=")[0] in known
        for sample in ("digits", "three_hospitals", "fed_heart"):
            assert main(["config", "show", sample, "--set", example, "-q"]) == 0


def test_quiet_prints_the_result_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["--set", "strategy.rounds=2", "--out", str(tmp_path / "run")]
    assert main(["simulate", "three_hospitals", "--quiet", *settings]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "target accuracy" in out


def test_verbose_says_what_caused_an_error_and_later_commands_do_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "nowhere.toml", "-v"]) == 4
    assert "caused by FileNotFoundError" in capsys.readouterr().err
    assert main(["simulate", "nowhere.toml"]) == 4
    assert "caused by" not in capsys.readouterr().err


def on_a_terminal(arguments: list[str], **environment: str) -> str:
    """What a command shows on a terminal."""
    ours, theirs = pty.openpty()
    env = {name: value for name, value in os.environ.items() if name != "NO_COLOR"} | {"TERM": "xterm"} | environment
    with subprocess.Popen([*COMMAND, *arguments], stdout=theirs, stderr=theirs, env=env) as process:
        os.close(theirs)
        shown = b""
        try:
            while part := os.read(ours, 1 << 16):
                shown += part
        except OSError:  # the other side is closed
            pass
        process.wait(timeout=120)
    os.close(ours)
    return shown.decode()


def test_errors_have_colours_on_a_terminal_alone() -> None:
    wrong = ["config", "explain", "strategy.ruonds"]
    shown = on_a_terminal(wrong)
    assert "\x1b[31merror:\x1b[0m strategy.ruonds: there is no such key" in shown
    assert "\x1b[36mhint:\x1b[0m did you mean strategy.rounds?" in shown
    plain = on_a_terminal(wrong, NO_COLOR="1")
    assert "\x1b" not in plain
    assert "error: strategy.ruonds" in plain
    assert "\x1b" not in on_a_terminal(wrong, TERM="dumb")
    piped = subprocess.run([*COMMAND, *wrong], capture_output=True, text=True, check=False)
    assert "\x1b" not in piped.stderr


def test_only_the_word_that_judges_is_painted() -> None:
    text = "ok    kit   right\nfail  disk  ok or not\n      -> ok\n"
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("NO_COLOR", raising=False)
        patch.setenv("TERM", "xterm")
        shown = painted(text, Terminal())
    assert shown == "\x1b[32mok\x1b[0m    kit   right\n\x1b[31mfail\x1b[0m  disk  ok or not\n      -> ok\n"


@pytest.mark.parametrize(
    ("words", "place", "expected"), [("securefda conf", "1", ["config"]), ("securefda config e", "2", ["explain"])]
)
def test_a_shell_completes_commands(words: str, place: str, expected: list[str]) -> None:
    env = os.environ | {"_SECUREFDA_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": place}
    done = subprocess.run(COMMAND, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == expected


def test_completion_is_installed_for_a_shell(tmp_path: Path) -> None:
    # Else typer asks which shell its parent is, and under a job of no terminal that is none.
    env = os.environ | {"HOME": str(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    subprocess.run([*COMMAND, "--install-completion", "bash"], env=env, capture_output=True, check=True)
    script = (tmp_path / ".bash_completions" / "securefda.sh").read_text()
    assert "_SECUREFDA_COMPLETE=complete_bash" in script
    assert "securefda.sh" in (tmp_path / ".bashrc").read_text()
