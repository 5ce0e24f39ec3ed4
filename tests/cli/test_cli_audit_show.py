"""``securefda audit show``: the records that are asked for, in bounded memory, and nothing that steers a terminal."""

from __future__ import annotations

import json
import os
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from audit_party import RUN, Party, audit, audit_json, began, message

from securefda.audit.log_records import DpSpent, Entry, Record
from securefda.audit.merkle import pack, unpack
from securefda.audit.record_filter import Filter, row_of, what_of
from securefda.cli.audit_show import show_log
from securefda.cli.output import Format

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """26 records: run-began, 24 messages in rounds 1 to 3, run-ended; one a minute from 12:01."""
    return Party(tmp_path / "logs").write()


def shown(capsys: Capture, *arguments: str | Path) -> list[dict[str, Any]]:
    code, envelope = audit_json(capsys, "show", *arguments)
    assert (code, envelope["status"]) == (0, "ok")
    records: list[dict[str, Any]] = envelope["data"]["records"]
    assert envelope["data"]["shown"] == len(records)
    return records


def test_all_records_are_shown_as_they_stand_in_the_log(log: Path, capsys: Capture) -> None:
    raw = unpack((log / "tail").read_bytes())[0]

    code, envelope = audit_json(capsys, "show", log)

    assert code == 0
    assert (envelope["data"]["party"], envelope["data"]["run"]) == ("source-1", RUN)
    assert envelope["data"]["records"] == [json.loads(entry) for entry in raw]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--peer", "target"], range(1, 25)),
        (["--peer", "source-3"], []),
        (["--round", "2"], range(11, 21)),
        (["--round", "0"], [0, 25]),
        (["--round", "1", "--round", "3"], [*range(1, 11), *range(21, 25)]),
        (["--type", "MaskedInput"], range(1, 25, 4)),
        (["--type", "run-began", "--type", "run-ended"], [0, 25]),
        (["--direction", "received"], range(2, 25, 2)),
        (["--direction", "event"], [0, 25]),
        (["--disclosure", "individual"], range(3, 25, 4)),
        (["--disclosure", "cohort"], []),
        (["--from", "2026-11-21T12:20"], range(19, 26)),
        (["--to", "2026-11-21T12:03"], range(2)),
        (["--from", "2026-11-21T13:20:00+01:00", "--to", "2026-11-21T12:21"], [19]),
        (["--from", "2026-11-22"], []),
        (["--last", "3"], range(23, 26)),
        (["--last", "0"], []),
        (["--last", "99"], range(26)),
        (["--last", "2", "--type", "MaskedInput"], [17, 21]),
        (["--round", "2", "--direction", "sent", "--disclosure", "sum"], [13, 17]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) and value and isinstance(value[0], str) else "",
)
def test_filter_shows_exactly_the_records_that_fit(
    log: Path, capsys: Capture, options: list[str], expected: list[int]
) -> None:
    assert [record["seq"] for record in shown(capsys, log, *options)] == list(expected)


def test_table_has_a_row_for_each_record_and_says_whose_word_it_is(log: Path, capsys: Capture) -> None:
    code, out, err = audit(capsys, "show", log, "--last", "4")

    assert (code, err) == (0, "")
    head, *rows, said = out.splitlines()
    assert head.split() == ["number", "time", "(UTC)", "round", "type", "peer", "bytes", "what"]
    assert [row.split()[0] for row in rows] == ["22", "23", "24", "25"]
    assert "sent      Update     target  2022   discloses update at individual" in rows[1]
    assert "run-ended  -       -      outcome finished, rounds 3" in rows[3]
    assert said == f"4 records of source-1 in run {RUN}, as the site wrote the log; securefda audit verify checks them"


def test_last_records_of_a_log_with_several_bundles_are_found(tmp_path: Path, capsys: Capture) -> None:
    log = Party(tmp_path).write(messages=598)

    for last in (1, 88, 89, 300, 600):
        assert [record["seq"] for record in shown(capsys, log, "--last", str(last))] == list(range(600 - last, 600))


@pytest.mark.parametrize(
    ("options", "error", "hint"),
    [
        (["--direction", "send"], "--direction send: is not one of sent, received, event", "did you mean sent?"),
        (["--disclosure", "all"], "--disclosure all: is not one of individual, cohort, sum", ""),
        (["--type", "run-end"], "--type run-end: is neither a type of message", "did you mean run-ended? there are "),
        (["--type", "MaskedInputs"], "--type MaskedInputs: is neither", "did you mean MaskedInput? there are Abort, "),
        (["--type", "maskedinput"], "--type maskedinput: is neither", "did you mean MaskedInput?"),
        (
            ["--peer", "Target"],
            "--peer Target: is no site",
            "did you mean target? there are source-2, source-3, target",
        ),
        (["--peer", "clinic"], "--peer clinic: is no site", "hint: there are source-2, source-3, target"),
        (["--from", "yesterday"], "--from yesterday: is no time", "write it like"),
        (["--to", "9999-12-31T23:59:59-23:00"], "--to 9999-12-31T23:59:59-23:00: is no time", "write it like"),
        (["--last", "-1"], "--last", "show --help"),
    ],
)
def test_option_that_cannot_mean_anything_is_refused(
    log: Path, capsys: Capture, options: list[str], error: str, hint: str
) -> None:
    code, out, err = audit(capsys, "show", log, *options)

    assert (code, out) == (4, "")
    assert error in err
    assert hint in err


def falsify(log: Path, index: int, new: bytes) -> None:
    entries = unpack((log / "tail").read_bytes())[0]
    entries[index] = new
    (log / "tail").write_bytes(b"".join(map(pack, entries)))


def test_records_before_a_bad_one_are_shown_then_the_error(log: Path, capsys: Capture) -> None:
    falsify(log, 5, b'{"v":1}')

    code, envelope = audit_json(capsys, "show", log)
    assert (code, envelope["status"], envelope["error_code"]) == (13, "error", "DamagedLog")
    assert [record["seq"] for record in envelope["data"]["records"]] == list(range(5))
    assert "record 5 is not of the form" in envelope["message"]
    assert "securefda audit verify" in envelope["hint"]

    code, out, err = audit(capsys, "show", log, "--type", "Update", "--last", "3")
    assert code == 13
    assert [row.split()[0] for row in out.splitlines()[1:]] == ["3"]
    assert len(err.splitlines()) == 2


HOSTILE = ["\x1b[2J", "\x07", "\r", "\n", "\x9b31m", "\u202e", "\x00", "\x7f", "<script>", "\U0001f4a9", "a b"]


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_no_text_of_a_hostile_log_reaches_the_terminal(log: Path, capsys: Capture, text: str) -> None:
    """A log whose party writes what it likes: each field that is text, in turn, with what a terminal obeys."""
    good = json.loads(unpack((log / "tail").read_bytes())[0][3])
    keys = [key for key, value in good.items() if isinstance(value, str)]
    assert len(keys) == 8
    for place, key in enumerate([*keys, "facts", "decision", "disclosure"]):
        said = {"level": text, "what": text, "count": 1} if key == "disclosure" else {"verdict": "allowed", "key": text}
        value = said if isinstance(good[key], dict) else text
        data = json.dumps(good | {key: value}, sort_keys=True, separators=(",", ":"), ensure_ascii=bool(place % 2))
        falsify(log, 3, data.encode())
        command = (["show"], ["show", "--format", "json"], ["tail", "--no-follow"], ["verify"])[place % 4]
        code, out, err = audit(capsys, *command, log)
        assert code == 13
        assert not {letter for letter in out + err if not letter.isprintable()} - {"\n"}
        if not text.isspace():
            assert text not in out + err


def test_run_or_folder_whose_name_would_steer_a_terminal_is_shown_without_that(log: Path, capsys: Capture) -> None:
    strange = log.rename(log.with_name("log\x1b[2J\nof\u202e"))

    for arguments in (["verify", strange], ["show", strange / "nowhere"], ["tail", strange, "--no-follow"]):
        _, out, err = audit(capsys, *arguments)
        assert not {letter for letter in out + err if not letter.isprintable()} - {"\n"}


def test_memory_does_not_grow_with_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def peak(log: Path, output: Format, wanted: Filter) -> int:
        tracemalloc.start()
        assert show_log(log, wanted, None, output) == 0
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    logs = [Party(tmp_path / str(count)).write(messages=count) for count in (600, 2400)]
    with Path(os.devnull).open("w") as nothing:
        monkeypatch.setattr(sys, "stdout", nothing)
        for output in Format:
            small, large = (peak(log, output, Filter(types=frozenset({"Update", "Header"}))) for log in logs)
            assert large < 1.3 * small


def test_words_of_what_an_event_says() -> None:
    dp = DpSpent("dp-sgd", "rdp", "1.1", "0.2", "1.0", "1e-05", "0.75", 10, 3, "cd" * 32)
    assert "10 steps of noise 1.1 at rate 0.2" in what_of(Entry("event", "ledger-updated", round=1, dp=dp))
    once = replace(dp, sampling_rate="1.0", steps=1)
    assert "one sum over all rows with noise 1.1" in what_of(Entry("event", "ledger-updated", round=1, dp=once))
    many = [f"site-{number:02d}" for number in range(9)]
    assert what_of(Entry("event", "survivors-signed", facts={"survivors": many})) == (
        "survivors site-00 site-01 site-02 site-03 and 5 more"
    )
    head = {"origin": f"securefda/1/hearts/source-2/{RUN}", "root": "ef" * 32, "size": 17}
    assert what_of(Entry("event", "checkpoint-cosigned", facts=head)) == "log of source-2, root efefefefefef.., size 17"
    assert what_of(Entry("event", "checkpoint-cosigned", facts=head | {"origin": "x"})).startswith("origin x, ")


def test_row_of_an_event_leaves_empty_what_it_lacks() -> None:
    record = Record(0, "2026-11-21T12:01:00.000000Z", "source-1", RUN, began())

    assert row_of(record)[:7] == ("0", "2026-11-21 12:01:00", "-", "event", "run-began", "-", "-")
    assert row_of(Record(1, record.time, "source-1", RUN, message(0)))[2] == "1/1"
