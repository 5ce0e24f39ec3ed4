"""``securefda audit tail``: the last records, those that come, and how it ends."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from audit_party import RUN, Party, audit, began, ended, message

from securefda.audit.log import AuditLog
from securefda.audit.log_records import Entry
from securefda.audit.record_filter import Filter
from securefda.cli.audit_show import tail_log
from securefda.cli.output import Format

Capture = pytest.CaptureFixture[str]


def numbers(out: str) -> list[int]:
    return [int(line.split()[0]) for line in out.splitlines() if line.split()[:1] and line.split()[0].isdigit()]


def follow(path: Path, steps: Iterator[object], *, wanted: Filter | None = None, output: Format = Format.TXT) -> int:
    """Follow a log; whenever nothing new has come, take the next step."""
    return tail_log(path, wanted or Filter(), 10, output, follow=True, pause=lambda _: (next(steps), None)[1])


def test_last_records_are_shown_and_a_run_that_has_ended_ends_it(tmp_path: Path, capsys: Capture) -> None:
    log = Party(tmp_path).write()

    for options in ([], ["--no-follow"]):
        code, out, err = audit(capsys, "tail", log, "--last", "3", *options)
        assert (code, err) == (0, "")
        assert numbers(out) == [23, 24, 25]
        assert out.splitlines()[-1] == "the run ended: finished, rounds: 3"


def test_log_that_goes_on_is_not_followed_where_that_is_not_asked_for(tmp_path: Path, capsys: Capture) -> None:
    log = Party(tmp_path).write(end=False)

    code, out, _ = audit(capsys, "tail", log, "--no-follow")

    assert (code, numbers(out)) == (0, list(range(15, 25)))


def steps_of(party: Party, log: AuditLog, sizes: list[int]) -> Iterator[int]:
    for size in sizes:
        while log.size < size:
            log.append(message(log.size))
        yield size
    log.append(ended())
    log.append(Entry("sent", "Goodbye", peer="target", digest="ab" * 32))
    yield log.size
    party.sign(log)
    log.close()
    yield log.size


@pytest.mark.parametrize("sizes", [[2, 3, 3, 8], [255, 256, 257, 600], [256, 512], [300, 1100]])
def test_new_records_are_shown_once_each_also_when_the_tail_becomes_a_bundle_until_the_run_ends(
    tmp_path: Path, capsys: Capture, sizes: list[int]
) -> None:
    party = Party(tmp_path)
    log = party.open()
    log.append(began())

    assert follow(party.path, steps_of(party, log, sizes)) == 0

    out = capsys.readouterr().out
    assert numbers(out) == list(range(sizes[-1] + 2))
    assert out.splitlines()[-1] == "the run ended: finished, rounds: 3"


def test_only_records_that_fit_are_shown_and_the_end_is_seen_all_the_same(tmp_path: Path, capsys: Capture) -> None:
    party = Party(tmp_path)
    log = party.open()
    log.append(began())

    follow(party.path, steps_of(party, log, [20]), wanted=Filter(types=frozenset({"MaskedInput"})), output=Format.JSON)

    envelope = json.loads(capsys.readouterr().out)
    assert {record["type"] for record in envelope["data"]["records"]} == {"MaskedInput"}
    assert (envelope["status"], envelope["data"]["shown"]) == ("ok", len(envelope["data"]["records"]))


def test_run_that_was_restarted_has_not_ended(tmp_path: Path, capsys: Capture) -> None:
    party = Party(tmp_path)
    party.write()

    def steps() -> Iterator[None]:
        yield
        with party.open() as log:
            log.append(message(0))
        raise KeyboardInterrupt

    with party.open() as log:
        log.append(Entry("event", "restarted", facts={"lost_bytes": 0}))
    assert follow(party.path, steps()) == 0
    out = capsys.readouterr().out
    assert "the run ended" not in out
    assert "no process is writing this log now" in out


def test_process_that_keeps_the_log_open_after_the_run_does_not_hold_it_up(tmp_path: Path, capsys: Capture) -> None:
    party = Party(tmp_path)
    pauses = 0

    def steps() -> Iterator[None]:
        nonlocal pauses
        while True:
            pauses += 1
            yield

    with party.open() as log:
        log.append(began())
        log.append(ended())
        assert follow(party.path, steps()) == 0

    assert 0 < pauses < 100
    assert capsys.readouterr().out.endswith("the run ended: finished, rounds: 3\n")


def test_ctrl_c_closes_the_envelope(tmp_path: Path, capsys: Capture) -> None:
    def steps() -> Iterator[None]:
        raise KeyboardInterrupt
        yield

    log = Party(tmp_path).write(end=False)
    assert follow(log, steps(), output=Format.JSON) == 0
    assert json.loads(capsys.readouterr().out)["exit_code"] == 0


@pytest.mark.parametrize(("harm", "code", "words"), [("gone", 4, "was removed"), ("junk", 13, "record 25")])
def test_log_that_is_taken_away_or_damaged_meanwhile_ends_it_with_one_line(
    tmp_path: Path, capsys: Capture, harm: str, code: int, words: str
) -> None:
    log = Party(tmp_path).write(end=False)

    def steps() -> Iterator[None]:
        if harm == "gone":
            shutil.rmtree(log)
        else:
            with (log / "tail").open("ab") as tail:
                tail.write(b"\0\2{}")
        yield

    assert follow(log, steps()) == code
    out, err = capsys.readouterr()
    assert numbers(out) == list(range(15, 25))
    assert err.startswith("error: ")
    assert words in err


def test_log_that_does_not_exist_yet_is_one_clear_line(tmp_path: Path, capsys: Capture) -> None:
    code, out, err = audit(capsys, "tail", tmp_path / RUN)

    assert (code, out) == (4, "")
    assert err.splitlines()[0].endswith("is not there")
    assert "when it begins" in err.splitlines()[1]


def test_process_that_follows_a_log_shows_what_is_written_and_ends_cleanly_on_ctrl_c(tmp_path: Path) -> None:
    party = Party(tmp_path)
    with party.open() as log:
        log.append(began())
        process = _start(party.path)
        lines = [_read(process), _read(process)]
        for number in range(3):
            log.append(message(number))
            lines.append(_read(process))
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)

    assert [line.split()[0] for line in lines] == ["number", "0", "1", "2", "3"]
    assert (process.returncode, out, err) == (0, "", "")


def _start(log: Path) -> subprocess.Popen[str]:
    command: list[Any] = [sys.executable, "-m", "securefda.cli", "audit", "tail", log]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _read(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()
