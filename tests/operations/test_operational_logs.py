"""Operational logs: their fields, their files, what peers can put in them, and a disk that is full."""

from __future__ import annotations

import json
import os
import re
import resource
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from securefda.errors import ConfigError, ExitCode
from securefda.operations.logs import MOST_CHARACTERS, OperationalLog, Place, escaped
from securefda.site.config import LoggingSection

BOTH = LoggingSection(file="site.log", json_file="site.jsonl")
PLACE = Place("ab" * 16, 3, "masked input", "hospital-a")
FIELDS = ["time", "level", "site", "run", "round", "phase", "peer", "message"]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Callable[..., OperationalLog]]:
    """Logs in a folder that does not exist yet; ``warnings`` gets what the operator sees."""
    made: list[OperationalLog] = []

    def new(settings: LoggingSection = BOTH, warnings: list[str] | None = None) -> OperationalLog:
        heard = [] if warnings is None else warnings
        made.append(OperationalLog(settings, tmp_path / "out" / "run", "clinic", heard.append))
        return made[-1]

    yield new
    for one in made:
        one.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "out" / "run"


def json_lines(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "site.jsonl").read_text().splitlines()]


def test_a_json_line_always_has_the_same_eight_fields(log: Callable[..., OperationalLog], folder: Path) -> None:
    one = log()
    one.write("warning", "hospital-a left", PLACE)
    one.write("info", "the process starts", Place())
    full, empty = json_lines(folder)
    assert list(full) == list(empty) == FIELDS
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", str(full.pop("time")))
    assert full == {
        "level": "warning",
        "site": "clinic",
        "run": "ab" * 16,
        "round": 3,
        "phase": "masked input",
        "peer": "hospital-a",
        "message": "hospital-a left",
    }
    assert [empty[name] for name in ("run", "round", "phase", "peer")] == ["", 0, "", ""]


def test_a_text_line_names_what_is_known_and_nothing_else(log: Callable[..., OperationalLog], folder: Path) -> None:
    one = log()
    one.write("warning", "hospital-a left", PLACE)
    one.write("info", "the process starts", Place())
    full, empty = (folder / "site.log").read_text().splitlines()
    place = f"site=clinic run={'ab' * 16} round=3 phase=masked-input peer=hospital-a"
    assert full.split(" ", 1)[1] == f"WARNING {place} | hospital-a left"
    assert empty.split(" ", 1)[1] == "INFO    site=clinic | the process starts"


@pytest.mark.parametrize(("settings", "files"), [("file", {"site.log"}), ("json_file", {"site.jsonl"})])
def test_each_log_can_be_kept_alone(
    log: Callable[..., OperationalLog], folder: Path, settings: str, files: set[str]
) -> None:
    log(LoggingSection(**{settings: getattr(BOTH, settings)})).write("info", "a line", PLACE)
    assert {path.name for path in folder.iterdir()} == files


@pytest.mark.parametrize(("level", "kept"), [("debug", 4), ("info", 3), ("warning", 2), ("error", 1)])
def test_lines_below_the_level_are_left_out(
    log: Callable[..., OperationalLog], folder: Path, level: str, kept: int
) -> None:
    one = log(BOTH.model_copy(update={"level": level}))
    for each in ("debug", "info", "warning", "error"):
        one.write(each, "a line", PLACE)  # type: ignore[arg-type]
    assert len(json_lines(folder)) == kept


def test_what_a_peer_says_stays_on_its_line_and_steers_no_terminal(
    log: Callable[..., OperationalLog], folder: Path
) -> None:
    hostile = 'gone\x1b[2J\r\n{"level": "info"}\x00\x7f\x9b1m\u202e\u2028 \\n \ud800 ünïcode'
    log().write("info", hostile, PLACE)
    (line,), text = json_lines(folder), (folder / "site.log").read_text()
    said = r"gone\x1b[2J\r\n{" + '"level": "info"' + r"}\x00\x7f\x9b1m\u202e\u2028 \\n \ud800 ünïcode"
    assert line["message"] == said
    assert text.endswith(f"| {said}\n")
    assert text.count("\n") == 1
    assert text.rstrip("\n").isprintable()


def test_a_line_is_bounded_however_long_the_message() -> None:
    assert len(escaped("x" * 10_000_000)) == MOST_CHARACTERS + len("...")
    assert len(escaped("\x00" * 10_000_000)) == MOST_CHARACTERS + len("...")
    assert escaped("x" * MOST_CHARACTERS) == "x" * MOST_CHARACTERS


def test_files_are_put_aside_when_they_are_full_and_the_oldest_goes(
    log: Callable[..., OperationalLog], folder: Path
) -> None:
    one = log(BOTH.model_copy(update={"max_bytes": 65_536, "backups": 2}))
    for number in range(1000):
        one.write("info", f"line {number} {'x' * 500}", PLACE)
    names = {path.name for path in folder.iterdir()}
    assert names == {f"site.{kind}{suffix}" for kind in ("log", "jsonl") for suffix in ("", ".1", ".2")}
    assert all(path.stat().st_size <= 65_536 for path in folder.iterdir())
    assert json_lines(folder)[-1]["message"] == f"line 999 {'x' * 500}"


def test_files_are_their_owners_alone_whatever_the_umask_and_after_a_rotation(
    log: Callable[..., OperationalLog], folder: Path
) -> None:
    folder.mkdir(parents=True)
    (folder / "site.log").write_text("from before\n")
    (folder / "site.log").chmod(0o644)
    before = os.umask(0)
    try:
        one = log(BOTH.model_copy(update={"max_bytes": 65_536}))
        for _ in range(200):
            one.write("info", "x" * 500, PLACE)
    finally:
        os.umask(before)
    assert (folder / "site.log.1").read_text().startswith("from before\n")
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}


def test_a_second_process_goes_on_in_the_file_after_the_line_that_a_kill_tore(
    log: Callable[..., OperationalLog], folder: Path
) -> None:
    log().write("info", "first", PLACE)
    with (folder / "site.jsonl").open("a") as file:
        file.write('{"time": "20')
    log().write("info", "second", PLACE)
    first, torn, second = (folder / "site.jsonl").read_text().splitlines()
    assert [json.loads(first)["message"], torn, json.loads(second)["message"]] == ["first", '{"time": "20', "second"]


def test_a_full_disk_costs_lines_and_one_warning_and_no_more(log: Callable[..., OperationalLog], folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "site.log").symlink_to("/dev/full")
    warnings: list[str] = []
    one = log(warnings=warnings)
    for number in range(50):
        one.write("info", f"line {number}", PLACE)
    assert len(warnings) == 1
    assert "site.log cannot be written (No space left on device)" in warnings[0]
    assert "goes on" in warnings[0]
    assert len(json_lines(folder)) == 50
    (folder / "site.log").unlink()
    one.write("info", "the disk has space again", PLACE)
    assert (folder / "site.log").read_text().endswith("| the disk has space again\n")


def test_a_file_that_may_not_grow_ends_with_whole_lines_once_there_is_room(
    log: Callable[..., OperationalLog], folder: Path
) -> None:
    warnings: list[str] = []
    one = log(LoggingSection(json_file="site.jsonl"), warnings)
    one.write("info", "first", PLACE)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((folder / "site.jsonl").stat().st_size + 20, hard))
    try:
        one.write("info", "torn", PLACE)
        one.write("info", "lost", PLACE)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    one.write("info", "last", PLACE)
    first, *torn, last = (folder / "site.jsonl").read_text().splitlines()
    assert [json.loads(first)["message"], json.loads(last)["message"]] == ["first", "last"]
    assert len("".join(torn)) <= 20
    assert len(warnings) == 1


def test_a_folder_that_goes_away_costs_lines_and_one_warning(log: Callable[..., OperationalLog], folder: Path) -> None:
    warnings: list[str] = []
    one = log(LoggingSection(file="site.log", max_bytes=65_536), warnings)
    one.write("info", "x" * 500, PLACE)
    (folder / "site.log").unlink()
    folder.rmdir()
    for _ in range(500):
        one.write("info", "x" * 500, PLACE)
    assert len(warnings) == 1


def occupied(path: Path) -> None:
    path.mkdir()


def a_fifo(path: Path) -> None:
    os.mkfifo(path)


def a_broken_link(path: Path) -> None:
    path.symlink_to(path.parent / "nowhere" / "site.log")


@pytest.mark.parametrize("obstacle", [occupied, a_fifo, a_broken_link], ids=lambda make: make.__name__)
@pytest.mark.parametrize(("key", "name"), [("logging.file", "site.log"), ("logging.json-file", "site.jsonl")])
def test_a_log_that_cannot_be_opened_is_one_clear_line_at_the_start(
    log: Callable[..., OperationalLog], folder: Path, obstacle: Callable[[Path], None], key: str, name: str
) -> None:
    folder.mkdir(parents=True)
    obstacle(folder / name)
    with pytest.raises(ConfigError, match=f"{key}: .*{name} cannot be written: ") as caught:
        log()
    assert caught.value.exit_code is ExitCode.CONFIG
    assert caught.value.hint


def test_a_file_where_the_folder_should_be_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(ConfigError, match=r"logging\.file: .*cannot be written"):
        OperationalLog(BOTH, tmp_path / "out", "clinic", print)


def test_a_log_that_is_named_absolutely_lies_there(log: Callable[..., OperationalLog], tmp_path: Path) -> None:
    log(LoggingSection(file=str(tmp_path / "elsewhere" / "site.log"))).write("info", "a line", PLACE)
    assert (tmp_path / "elsewhere" / "site.log").read_text().endswith("a line\n")


def test_the_logs_are_out_of_reach_of_other_loggers(tmp_path: Path) -> None:
    """Whatever else logs in the process, or turns logging off in it, is none of their business."""
    code = (
        "import logging; from pathlib import Path; from securefda.site.config import LoggingSection\n"
        "from securefda.operations.logs import OperationalLog, Place\n"
        "log = OperationalLog(LoggingSection(file='a.log'), Path(), 'clinic', print)\n"
        "log.write('info', 'ours', Place()); logging.getLogger().error('theirs'); log.close()\n"
        "assert not logging.getLogger().handlers\n"
        "assert 'securefda.operations' not in logging.Logger.manager.loggerDict\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, check=True)
    assert [line.split("| ")[1] for line in (tmp_path / "a.log").read_text().splitlines()] == ["ours"]


def test_a_log_can_be_closed_twice(tmp_path: Path) -> None:
    with closing(OperationalLog(BOTH, tmp_path, "clinic", print)) as one:
        one.close()
