"""What commands print at every width: no word is broken, and nothing is cut off."""

from __future__ import annotations

import io
import re
import shutil
import sys
from pathlib import Path

import pytest
from audit_party import Party
from stand_ins import Terminal
from test_cli_options import EVERY

from securefda.cli import main
from securefda.cli.console import console_reporter
from securefda.text import fitted, wrapped

WIDTHS = (40, 60, 80)
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Kits, an audit log, and the folder of a run that trained."""
    folder = tmp_path_factory.mktemp("margins")
    kits, run = str(folder / "kits"), str(folder / "runs" / "digits-of-one-afternoon")
    assert main(["federation", "init", "digits", "--out", kits, "-q"]) == 0
    assert main(["simulate", "three_hospitals", "--set", "strategy.rounds=2", "--out", run, "-q"]) == 0
    Party(folder / "logs").write()
    return folder


def printed(arguments: list[str], width: int, monkeypatch: pytest.MonkeyPatch) -> str:
    """What a command shows on a terminal of this width; of width 0, what it gives to a pipe."""
    monkeypatch.setenv("COLUMNS", str(width or 80))
    monkeypatch.setenv("NO_COLOR", "1")
    stream = Terminal() if width else io.StringIO()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stream)
        patch.setattr(sys, "stderr", stream)
        main(arguments)
    return CONTROL.sub("", stream.getvalue())


def require_whole(text: str, width: int, words: list[str]) -> None:
    """Every line fits, but for one of a single word or of a command; and all the words are there in their order."""
    for line in text.splitlines():
        alone = len(line.split()) == 1 or line.lstrip().startswith("securefda ")
        assert alone or len(line) <= width, line
    assert re.sub(r"(?m)^# |\s", "", text) == re.sub(r"(?m)^# |\s", "", " ".join(words))
    missing = set(words) - set(text.split())
    assert not missing


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("path", EVERY, ids=" ".join)
def test_help_is_whole(path: tuple[str, ...], width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("securefda.cli.help._WIDEST", 10_000)
    words = printed([*path, "--help"], 10_000, monkeypatch).split()
    monkeypatch.undo()
    text = printed([*path, "--help"], width, monkeypatch)
    require_whole(text, width, words)
    assert not re.search(r"x[<>]=|<=x|<(int|float|str|path|list)\b", text)


RESULTS = {
    "a key": "config explain privacy.min-others",
    "a table of keys": "config explain strategy",
    "settings": "config show kits/source-1",
    "a policy": "policy explain kits/source-1",
    "a target": "policy explain kits/target",
    "a check": "policy check kits/source-1 digits",
    "runs": "runs ls",
    "a run": "runs show runs/digits-of-one-afternoon",
    "a log": "audit verify logs",
    "records": "audit show logs --last 4",
    "a kit": "kit inspect kits/source-1",
    "a plan": "budget plan --rounds 9 --samples 100 --batch 10 --noise 1.1",
    "checks": "preflight kits/source-1 --offline",
    "an error": "runs show a-folder-that-is-not-there-yet",
    "a refused setting": "simulate three_hospitals --set strategy.learning-rte=3 --out x",
    "no status": "status kits/source-1",
}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", RESULTS)
def test_results_and_errors_are_whole(name: str, width: int, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    usage = shutil.disk_usage(place)  # once: others write to the disk, too
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    arguments = RESULTS[name].split()
    words = printed(arguments, 10_000, monkeypatch).split()
    assert len(words) > 3
    require_whole(printed(arguments, width, monkeypatch), width, words)
    assert printed(arguments, 0, monkeypatch).split() == words


@pytest.mark.parametrize("width", WIDTHS)
def test_the_status_of_a_run_names_every_site_that_is_awaited(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    sites, stream = [f"hospital-{name}" for name in ("berlin", "hamburg", "cologne", "munich")], Terminal()
    with console_reporter(stream) as reporter:
        reporter.round_started(12, 500)
        reporter.phase("training", sites)
        reporter.note(f"the target waits for {', '.join(sites)}")
    drawn = CONTROL.sub("\n", stream.getvalue())
    lines = [line.rstrip() for line in re.split(r"[\r\n]+", drawn)]
    assert "…" not in drawn
    assert all(len(line) <= width for line in lines)
    said = " ".join(" ".join(lines).split())
    assert "12/500" in said
    assert f"waiting for {', '.join(sites)})" in said
    assert f"the target waits for {', '.join(sites)}" in said


@pytest.mark.parametrize(
    ("line", "width", "expected"),
    [
        ("ok    certificate  valid until March", 38, "ok    certificate  valid until March"),
        (
            "ok    certificate  valid until the end of March",
            38,
            "ok    certificate  valid until the end\n                   of March",
        ),
        ("  securefda preflight kits/target --offline", 25, "  securefda preflight kits/target --offline"),
        ("next     securefda predict runs/first --data FILE", 25, "next\n  securefda predict runs/first --data FILE"),
        ("# how many others a part hides among", 25, "# how many others a part\n# hides among"),
        ("/srv/federations/digits/kits/source-1", 25, "/srv/federations/digits/kits/source-1"),
        ("short", 25, "short"),
    ],
)
def test_a_long_line_goes_on_where_it_should(line: str, width: int, expected: str) -> None:
    assert fitted(line, width) == expected


def test_a_word_longer_than_the_line_stays_one() -> None:
    assert wrapped("see https://example.org/a-page-with-a-name now", 12) == (
        "see\nhttps://example.org/a-page-with-a-name\nnow"
    )
