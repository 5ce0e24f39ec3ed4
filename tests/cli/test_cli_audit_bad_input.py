"""What is no log, or none that can be read: one clear line and its exit code from every command, never a traceback."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from audit_party import LOG_KEYS, RUN, Party, audit, began
from plain_user import plain_user

from securefda.audit.merkle import pack, unpack
from securefda.audit.signed_notes import Checkpoint, Note, sign

Capture = pytest.CaptureFixture[str]
COMMANDS = (["verify"], ["show"], ["tail", "--no-follow"])
HUGE = 10 * 2**30


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return Party(tmp_path / "logs").write(messages=298)


def refused(capsys: Capture, log: Path, *, verify: int, reading: int) -> list[str]:
    """Every command ends with its code and one line and a hint at most; returns the lines."""
    lines = []
    for command in COMMANDS:
        code, _, err = audit(capsys, *command, log)
        said = err.splitlines()
        assert code == (verify if command == ["verify"] else reading), (command, err)
        assert said
        assert said[0].startswith("error: ")
        assert len(said) == 1 or (len(said) == 2 and said[1].startswith("hint: "))
        lines.append(said[0])
    return lines


def nothing(log: Path) -> None:
    shutil.rmtree(log)


def file_instead(log: Path) -> None:
    shutil.rmtree(log)
    log.write_bytes(b"{}")


def other_folder(log: Path) -> None:
    shutil.rmtree(log)
    log.mkdir()
    (log / "notes.txt").write_bytes(b"x")


def empty(log: Path) -> None:
    shutil.rmtree(log)
    with Party(log.parent).open():
        pass


def foreign(log: Path) -> None:
    origin = "go.sum database tree"
    text = Checkpoint(origin, 26, bytes(32)).to_text()
    (log / "checkpoint").write_bytes(Note(text, (sign(text, "sum.golang.org", LOG_KEYS["target"]),)).to_bytes())
    shutil.rmtree(log / "checkpoints")
    (log / "tile/entries/000").write_bytes(b"".join(pack(b"golang.org/x/text v0.3.0 h1:") for _ in range(256)))


def newer_format(log: Path) -> None:
    origin = f"securefda/2/hearts/source-1/{RUN}"
    text = Checkpoint(origin, 26, bytes(32)).to_text()
    (log / "checkpoint").write_bytes(Note(text, (sign(text, origin, LOG_KEYS["source-1"]),)).to_bytes())


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (nothing, "is not there"),
        (file_instead, "is a file, not the folder of a log"),
        (other_folder, "is not the log of a run"),
        (empty, "has no record yet"),
        (foreign, "is a log of something else: its origin is 'go.sum database tree'"),
        (newer_format, "reads format 1; a later release reads it"),
    ],
)
def test_what_is_no_log_of_this_release_ends_every_command_with_4(
    log: Path, capsys: Capture, harm: Callable[[Path], None], words: str
) -> None:
    harm(log)

    for line in refused(capsys, log, verify=4, reading=4):
        assert words in line


def test_one_log_of_several_is_read_by_name_and_all_are_verified(log: Path, capsys: Capture) -> None:
    other = Party(log.parent, run="feed" * 8).write()

    assert audit(capsys, "verify", log.parent)[1].count("finding      none") == 2
    for command in (["show"], ["tail", "--no-follow"]):
        code, _, err = audit(capsys, *command, log.parent)
        assert (code, err.splitlines()[1]) == (4, f"hint: name one: --run {other.name[:12]}")
        assert f"has 2 logs in it, of the runs {RUN}, {other.name}" in err
        assert audit(capsys, *command, log.parent, "--run", other.name[:12])[0] == 0  # what the hint says


@pytest.mark.parametrize("command", COMMANDS)
def test_the_beginning_of_a_run_id_will_do(command: list[str], log: Path, capsys: Capture) -> None:
    Party(log.parent, run="0123" + "f" * 28).write()

    for short in ("01234", "0123f"):
        assert audit(capsys, *command, log.parent / short)[0] == 0
        assert audit(capsys, *command, log.parent, "--run", short)[0] == 0
    several = audit(capsys, *command, log.parent / "0123")
    assert (several[0], several[2].splitlines()[1]) == (4, f"hint: there are {RUN}, 0123{'f' * 28}")
    for none in (audit(capsys, *command, log.parent / "9"), audit(capsys, *command, log.parent, "--run", "9")):
        assert (none[0], none[2].splitlines()[1]) == (4, f"hint: there are {RUN}, 0123{'f' * 28}")


def rewritten(log: Path, index: int, old: bytes, new: bytes) -> None:
    entries = unpack((log / "tile/entries/000").read_bytes())[0]
    entries[index] = entries[index].replace(old, new)
    (log / "tile/entries/000").write_bytes(b"".join(map(pack, entries)))


def test_record_of_a_later_release_cannot_be_read_and_is_not_what_was_signed(log: Path, capsys: Capture) -> None:
    rewritten(log, 7, b'"v":1', b'"v":2')

    verify, *reading = refused(capsys, log, verify=13, reading=4)

    assert "edited at record 7" in verify
    assert "record 7 of a later release: the record has format 2" in reading[0]


def test_log_that_a_later_release_went_on_with_says_so(tmp_path: Path, capsys: Capture) -> None:
    party = Party(tmp_path)
    log = party.write()
    entry = unpack((log / "tail").read_bytes())[0][-1].replace(b'"v":1', b'"v":2').replace(b'"seq":25', b'"seq":26')
    with (log / "tail").open("ab") as tail:
        tail.write(pack(entry))

    assert "newer-version at record 26" in refused(capsys, log, verify=13, reading=4)[0]


def cut(log: Path) -> None:
    data = (log / "tail").read_bytes()
    (log / "tail").write_bytes(data[: len(data) // 2])


def cut_bundle(log: Path) -> None:
    data = (log / "tile/entries/000").read_bytes()
    (log / "tile/entries/000").write_bytes(data[: len(data) // 2])


def binary(log: Path) -> None:
    for file in [file for file in log.rglob("*") if file.is_file() and file.name != "roster.json"]:
        file.write_bytes(bytes(range(256)) * 64)


def no_checkpoint(log: Path) -> None:
    (log / "checkpoint").unlink()
    shutil.rmtree(log / "checkpoints")


def empty_checkpoint(log: Path) -> None:
    (log / "checkpoint").write_bytes(b"")


def huge(name: str) -> Callable[[Path], None]:
    return lambda log: os.truncate(log / name, HUGE)


def folder_instead(name: str) -> Callable[[Path], None]:
    def harm(log: Path) -> None:
        (log / name).unlink()
        (log / name).mkdir()

    return harm


def link_instead(name: str) -> Callable[[Path], None]:
    def harm(log: Path) -> None:
        (log / name).rename(log / "elsewhere")
        (log / name).symlink_to(log / "elsewhere")

    return harm


def fifo_instead(name: str) -> Callable[[Path], None]:
    def harm(log: Path) -> None:
        (log / name).unlink()
        os.mkfifo(log / name)

    return harm


BUNDLE = "tile/entries/000"
DAMAGE = {
    "cut": (cut, 0, "truncated at record"),
    "cut-bundle": (cut_bundle, 13, "at record"),
    "no-checkpoint": (no_checkpoint, 0, "unreadable"),
    "empty-checkpoint": (empty_checkpoint, 0, "unreadable"),
    "huge-tail": (huge("tail"), 13, "is longer than"),
    "huge-bundle": (huge(BUNDLE), 13, "is longer than"),
    "huge-tile": (huge("tile/0/000"), 0, "unreadable at record 0"),
    "huge-checkpoint": (huge("checkpoint"), 0, "is longer than"),
    "huge-kept-checkpoint": (huge(f"checkpoints/{300:016d}"), 0, "is longer than"),
    "tail-folder": (folder_instead("tail"), 13, "is no file"),
    "bundle-folder": (folder_instead(BUNDLE), 13, "is no file"),
    "checkpoint-folder": (folder_instead("checkpoint"), 0, "is no file"),
    "tail-link": (link_instead("tail"), 13, "cannot be read"),
    "bundle-link": (link_instead(BUNDLE), 13, "cannot be read"),
    "tail-fifo": (fifo_instead("tail"), 13, "is no file"),
    "checkpoint-fifo": (fifo_instead("checkpoint"), 0, "is no file"),
    "lock-fifo": (fifo_instead("lock"), 0, ""),
    "lock-link": (link_instead("lock"), 0, ""),
}
"""How a log is harmed, with what code reading it ends, and words of the finding; the last two are no harm."""


@pytest.mark.parametrize("case", DAMAGE)
def test_damage_is_a_finding_of_verify_and_shows_as_far_as_it_can_be_read(
    log: Path, capsys: Capture, case: str
) -> None:
    harm, reading, words = DAMAGE[case]
    harm(log)

    for command in COMMANDS:
        code, _, err = audit(capsys, *command, log)
        expected = reading if command != ["verify"] else 13 if words else 0
        assert code == expected, (command, err)
        assert len(err.splitlines()) <= 2
        if command == ["verify"]:
            assert words in err


def test_binary_junk_in_all_files_is_a_finding_of_every_command(log: Path, capsys: Capture) -> None:
    binary(log)

    for line in refused(capsys, log, verify=13, reading=13):
        assert "cannot be read" in line


@pytest.mark.parametrize("name", ["", "tail", BUNDLE, "tile/0/000", "checkpoint", "checkpoints", "roster.json"])
def test_log_without_the_right_to_read_it_is_one_clear_line(log: Path, capsys: Capture, name: str) -> None:
    (log / name).chmod(0)
    codes = set()
    with plain_user():
        for command in COMMANDS:
            code, _, err = audit(capsys, *command, log)
            codes.add(code)
            assert code in (0, 4, 13)
            assert len(err.splitlines()) <= 2
            if command == ["verify"]:
                assert "Permission denied" in err or "is not readable" in err
    (log / name).chmod(0o700)
    assert codes & {4, 13}


def test_log_in_use_is_read_by_every_command(tmp_path: Path, capsys: Capture) -> None:
    party = Party(tmp_path)
    with party.open() as log:
        log.append(began())
        party.sign(log)
        party.keep_roster()
        for command in COMMANDS:
            assert audit(capsys, *command, party.path)[0] == 0
