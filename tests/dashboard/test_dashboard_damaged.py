"""Files that are half written, damaged, of another release, hostile, or gone: one line, and the rest is shown."""

from __future__ import annotations

import os
import shutil
import sys
from html import escape
from pathlib import Path
from typing import Any

import pytest
from watched_sites import RUN, Pages, Site


def test_a_torn_last_line_is_not_there_yet(target: Site) -> None:
    target.target_round(1)
    metrics = target.run / "metrics.jsonl"
    whole = metrics.read_bytes()
    metrics.write_bytes(whole + b'{"round": 2, "rule"')
    pages = Pages(target.kit)
    assert pages.look().tiles()["round of 12"] == "1"
    assert not pages.look().has("problems")
    target.target_round(2)
    assert pages.look().tiles()["round of 12"] == "2"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"not json\n", "line 2 is not JSON"),
        (b"[]\n", "line 2 is not a JSON object"),
        (b'{"round": "two"}\n', "line 2: round is not as a run writes it"),
        (b"[" * 100 + b"\n", "line 2 is nested"),
        (b'{"round": 99999999999999999999999}\n', "line 2 holds an integer"),
    ],
)
def test_a_damaged_line_is_named_and_the_lines_before_it_are_shown(target: Site, line: bytes, why: str) -> None:
    target.target_round(1)
    with (target.run / "metrics.jsonl").open("ab") as file:
        file.write(line)
    shown = Pages(target.kit).look()
    assert any(why in problem and "metrics.jsonl" in problem for problem in shown.lines("problems"))
    assert shown.tiles()["round of 12"] == "1"


@pytest.mark.parametrize("kind", ["a pipe", "without an end"])
@pytest.mark.parametrize("named", ["kit", "run"])
def test_rounds_in_no_file_of_a_run_are_a_problem(target: Site, kind: str, named: str) -> None:
    target.target_round(1)
    metrics = target.run / "metrics.jsonl"
    metrics.unlink()
    if kind == "a pipe":
        os.mkfifo(metrics)
    else:
        with metrics.open("wb") as file:
            file.truncate(1 << 40)
    (target.run / "model.safetensors").write_bytes(b"")  # which says that it is a target's, without a state
    problems = Pages(getattr(target, named)).look().lines("problems")
    assert any("metrics.jsonl" in problem and "cannot be read" in problem for problem in problems)


def test_a_metrics_file_that_was_replaced_is_read_anew(target: Site) -> None:
    pages = Pages(target.kit)
    for number in (1, 2, 3):
        target.target_round(number)
    assert pages.look().tiles()["round of 12"] == "3"
    shutil.rmtree(target.run)
    assert not pages.look().has("figures")
    target.target_round(1)
    assert pages.look().tiles()["round of 12"] == "1"


@pytest.mark.parametrize("name", ["summary.json", "status.json"])
@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema_version": 99}', '{"schema_version": 1}'])
def test_a_summary_or_a_process_that_cannot_be_read_is_a_problem(target: Site, name: str, text: str) -> None:
    target.target_round(1)
    (target.run / name).write_text(text)
    shown = Pages(target.kit).look()
    assert any(name in problem for problem in shown.lines("problems"))
    assert "1" in shown.tiles().values()
    assert shown.state.word == "No end yet"


def _log_folder(site: Site) -> Path:
    return site.kit / "local" / "audit" / RUN


def test_a_log_without_a_record_yet_is_a_problem_and_no_error(source: Site) -> None:
    folder = _log_folder(source)
    folder.mkdir(parents=True, mode=0o700)
    (folder / "tail").write_bytes(b"")
    shown = Pages(source.kit).look()
    assert any("has no record yet" in problem for problem in shown.lines("problems"))


def test_records_before_a_damaged_one_are_shown(source: Site) -> None:
    with source.log() as append:
        source.update_left(append, 1)
    tail = _log_folder(source) / "tail"
    whole = tail.read_bytes()
    for there, other, why in ((b'"v":1}', b'"v":2}', "later release"), (b'"Result"', b'"resulT"', "record 3")):
        tail.write_bytes(whole.replace(there, other))
        shown = Pages(source.kit).look()
        assert any(why in problem for problem in shown.lines("problems"))
    assert shown.tiles()["updates left this site"] == "1"


def test_a_log_that_was_replaced_is_read_anew(source: Site) -> None:
    pages = Pages(source.kit)
    with source.log() as append:
        source.update_left(append, 1)
    assert pages.look().tiles()["updates left this site"] == "1"
    shutil.rmtree(_log_folder(source))
    with source.log() as append:
        append("sent", "Join")
    assert pages.look().tiles()["updates left this site"] == "0"


def test_a_folder_that_goes_away_while_it_is_watched_is_no_error(target: Site) -> None:
    pages = Pages(target.run)
    with target.log():
        target.target_round(1)
    assert pages.look().tiles()["round of 12"] == "1"
    shutil.rmtree(target.kits)
    assert pages.look().state.word == "Not begun"


def test_a_kit_that_is_damaged_while_it_is_watched_is_a_problem(source: Site) -> None:
    pages = Pages(source.kit)
    pages.look()
    roster = source.kit / "startup" / "roster.json"
    roster.chmod(0o644)
    roster.write_text("{}")
    assert any("roster" in problem for problem in pages.look().lines("problems"))


def test_a_folder_that_begins_later_becomes_a_page(target: Site, tmp_path: Path) -> None:
    pages = Pages(tmp_path / "later")
    assert pages.look().page.title == "No run yet"
    target.target_round(1)
    shutil.copytree(target.run, tmp_path / "later")
    assert pages.look().tiles()["last round"] == "1"


@pytest.mark.parametrize("text", ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "'-->&amp;\u202e"])
def test_every_text_of_a_file_is_escaped(target: Site, text: str) -> None:
    target.target_round(1, rule=text, survivors=[text], dropped=[text], levels={text: text}, refused={text: text})
    target.summary(1, status="failed", task=text, strategy={text: text}, visibility={})
    shown = Pages(target.kit).look()
    assert text not in shown.html
    shown_as = escape(text.replace("\u202e", "?"), quote=True).replace("&#x27;", "&#39;").replace("&quot;", "&#34;")
    assert shown_as in shown.html


def test_nothing_secret_is_opened(source: Site, target: Site) -> None:
    """Keys, state, ledgers and models stay closed; so do files of other sites."""
    with source.log() as append, source.process():
        source.update_left(append, 1, epsilon=1.0)
        source.source_round(1)
    (source.kit / "local" / "ledgers").mkdir()
    for name in ("state.sqlite", "model.safetensors"):
        (source.run / name).write_bytes(b"x")
    (source.kit / "local" / "ledgers" / "training-rows.sqlite").write_bytes(b"x")
    (source.kit / "local" / "training.key").write_bytes(b"x")
    opened: list[str] = []
    on = True

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if on and event == "open" and isinstance(arguments[0], str | bytes | Path):
            opened.append(str(arguments[0]))

    sys.addaudithook(hook)  # it stays for as long as the process lives, and does nothing after this test
    try:
        assert Pages(source.kit).look().has("policy")
    finally:
        on = False
    of_kits = {Path(name) for name in opened if str(source.kits) in name}
    assert source.kit / "startup" / "roster.json" in of_kits
    assert {file.name for file in of_kits} <= {
        *("kit.json", "roster.json", "ca.pem", "policy.toml", "policy.sig", "settings.toml"),
        *("metrics.jsonl", "status.json", "tail", "checkpoint", "000"),
    }
    assert all(source.kit in file.parents for file in of_kits)
