"""Writing a log: what is on the disk when, who may write, and what a crash, a full disk or another hand leaves."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from log_builder import KEYS, NAME, Clock, entry, files, grow, opened, witness_key
from tree_builder import mth

from securefda.audit.log_files import AuditError, read_bundle, subtrees
from securefda.audit.log_records import Record
from securefda.audit.merkle import (
    check_consistency,
    check_inclusion,
    consistency_proof,
    inclusion_proof,
    leaf_hash,
    pack,
    unpack,
)
from securefda.audit.signed_notes import Checkpoint, Note, SignatureError, check_signature, cosign


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "audit"


def entries(folder: Path) -> list[bytes]:
    """All entries as they lie on the disk."""
    found, index = [], 0
    while (bundle := read_bundle(folder / "run-1", index)) is not None:
        found += unpack(bundle)[0]
        index += 1
    return found + unpack((folder / "run-1" / "tail").read_bytes())[0]


def head(note: bytes) -> Checkpoint:
    return Checkpoint.parse(Note.parse(note).text)


def test_record_is_in_its_file_before_append_returns_and_says_who_when_and_where(folder: Path) -> None:
    with opened(folder) as log:
        for number in range(3):
            assert log.append(entry(number)) == number
            record = Record.parse(entries(folder)[number])
            assert record == Record(number, f"2026-11-21T12:00:0{number + 1}.000000Z", "site-a", "run-1", entry(number))


def test_durable_record_is_on_the_disk_before_append_returns(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[tuple[int, int]] = []

    def noting(descriptor: int) -> None:
        found = os.fstat(descriptor)
        synced.append((found.st_ino, found.st_size))

    with opened(folder) as log, monkeypatch.context() as patch:
        patch.setattr(os, "fsync", noting)
        log.append(entry(0))
        assert synced == []
        log.append(entry(1), durable=True)
        tail = (folder / "run-1" / "tail").stat()
        assert synced == [(tail.st_ino, tail.st_size)]


@pytest.mark.parametrize("size", [1, 255, 256, 257, 600])
def test_checkpoint_signs_all_records_and_its_tiles_prove_each_of_them(folder: Path, size: int) -> None:
    with opened(folder) as log:
        grow(log, size // 2 + 1, size)
        note = log.checkpoint()
    found, now = entries(folder), head(note)
    before = head((folder / "run-1" / "checkpoints" / f"{size // 2 + 1:016d}").read_bytes())
    subtree = subtrees(folder / "run-1", size)

    assert (now.origin, now.size, now.root) == (NAME.origin, size, mth(found))
    assert (folder / "run-1" / "checkpoint").read_bytes() == note
    for index in {0, size // 2, size - 1}:
        check_inclusion(leaf_hash(found[index]), index, size, inclusion_proof(index, size, subtree), now.root)
    check_consistency(before.size, before.root, size, now.root, consistency_proof(before.size, size, subtree))


def test_files_of_a_log_are_those_of_the_layout_and_open_to_the_owner_only(folder: Path) -> None:
    with opened(folder) as log:
        grow(log, 3, 258)
    here = folder / "run-1"

    assert sorted(files(here)) == [
        "checkpoint",
        "checkpoints/0000000000000003",
        "checkpoints/0000000000000258",
        "lock",
        "tail",
        "tile/0/000",
        "tile/0/001.p/2",
        "tile/1/000.p/1",
        "tile/entries/000",
        "tile/entries/001.p/2",
    ]
    for path in (here, *here.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)


def test_every_run_has_a_log_of_its_own(folder: Path) -> None:
    with opened(folder) as one, opened(folder, replace(NAME, run="run-2")) as two:
        one.append(entry(0))
        assert two.size == 0
    assert sorted(path.name for path in folder.iterdir()) == ["run-1", "run-2"]


@pytest.mark.parametrize("size", [0, 1, 255, 256, 257, 512])
def test_log_goes_on_where_it_was(folder: Path, size: int) -> None:
    with opened(folder) as log:
        grow(log, size // 2, size)
    with opened(folder) as log:
        assert (log.size, log.lost_bytes) == (size, 0)
        grow(log, size + 2)
        assert head(log.checkpoint()).root == mth(entries(folder))
    assert [Record.parse(item).seq for item in entries(folder)] == list(range(size + 2))


def test_checkpoint_without_new_records_is_the_last_one_with_its_cosignatures(folder: Path) -> None:
    with opened(folder) as log:
        grow(log, 3)
        assert len(Note.parse(log.checkpoint()).signatures) == 3
    with opened(folder) as log:
        assert len(Note.parse(log.checkpoint()).signatures) == 3


def test_cosignature_of_an_earlier_checkpoint_is_kept_with_that_one(folder: Path) -> None:
    with opened(folder) as log:
        grow(log, 3, 5, witnesses=())
        text = Note.parse((folder / "run-1/checkpoints/0000000000000003").read_bytes()).text
        key = witness_key("site-b")
        newest = (folder / "run-1/checkpoint").read_bytes()
        note = log.add_cosignature(3, cosign(text, key.name, KEYS["site-b"], 9), key).to_bytes()
        again = log.add_cosignature(3, cosign(text, key.name, KEYS["site-b"], 10), key).to_bytes()

    assert note == again == (folder / "run-1/checkpoints/0000000000000003").read_bytes()
    assert check_signature(text, Note.parse(note).signatures[-1], key) == 9
    assert (folder / "run-1/checkpoint").read_bytes() == newest


def test_cosignature_by_another_key_or_of_another_text_is_refused(folder: Path) -> None:
    with opened(folder) as log:
        grow(log, 3, witnesses=())
        key, before = witness_key("site-b"), files(folder)
        text = Note.parse(log.checkpoint()).text
        for bad in (cosign(text, key.name, KEYS["site-c"], 9), cosign(text + "more\n", key.name, KEYS["site-b"], 9)):
            with pytest.raises(SignatureError):
                log.add_cosignature(3, bad, key)
        with pytest.raises(SignatureError, match="does not name"):
            log.add_cosignature(3, replace(cosign(text, key.name, KEYS["site-b"], 9), name="somebody"), key)
        with pytest.raises(AuditError, match="no checkpoint of 2"):
            log.add_cosignature(2, cosign(text, key.name, KEYS["site-b"], 9), key)
        assert files(folder) == before


def test_second_writer_is_refused_while_the_first_lives(folder: Path) -> None:
    with opened(folder), pytest.raises(AuditError, match="another process"):
        opened(folder)
    opened(folder).close()


def test_threads_append_without_a_gap(folder: Path) -> None:
    with opened(folder) as log:
        places: list[int] = []
        work = [
            threading.Thread(target=lambda: places.extend(log.append(entry(1)) for _ in range(70))) for _ in range(4)
        ]
        for thread in work:
            thread.start()
        for thread in work:
            thread.join()

    assert sorted(places) == list(range(280))
    assert [Record.parse(item).seq for item in entries(folder)] == list(range(280))


def test_child_of_a_fork_cannot_write(folder: Path) -> None:
    with opened(folder) as log:
        child = os.fork()
        if child == 0:
            code = 0
            try:
                log.append(entry(0))
            except AuditError:
                code = 7
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert log.append(entry(0)) == 0


def test_closed_log_takes_nothing(folder: Path) -> None:
    log = opened(folder)
    log.close()
    log.close()

    for call in (lambda: log.append(entry(0)), log.checkpoint):
        with pytest.raises(AuditError, match="closed"):
            call()


def test_writer_that_is_interrupted_writes_no_more_and_the_log_goes_on(folder: Path) -> None:
    class Interrupted(Clock):
        def __call__(self):
            if self.now.second == 3:
                raise KeyboardInterrupt
            return super().__call__()

    with opened(folder, clock=Interrupted()) as log:
        grow(log, 3)
        with pytest.raises(KeyboardInterrupt):
            log.append(entry(3))
        assert (log.size, len(entries(folder))) == (3, 3)
    with opened(folder) as log:
        assert log.append(entry(3)) == 3


@pytest.mark.parametrize("torn", [b"\0", pack(b"{")[:2], b"\x01\x00{", bytes(700)])
def test_record_that_is_not_whole_is_cut_off_where_no_checkpoint_covers_it(folder: Path, torn: bytes) -> None:
    with opened(folder) as log:
        grow(log, 3)
        log.append(entry(3))
    with (folder / "run-1" / "tail").open("ab") as tail:
        tail.write(torn)

    with opened(folder) as log:
        assert (log.size, log.lost_bytes) == (4, len(torn))
        grow(log, 6)
        assert head(log.checkpoint()).root == mth(entries(folder))
    with opened(folder) as log:
        assert log.lost_bytes == 0


@pytest.mark.parametrize("size", [3, 257])
@pytest.mark.parametrize("cut", [1, 300, 10_000])
def test_log_that_is_shorter_than_its_checkpoint_is_refused_and_left_as_it_is(
    folder: Path, size: int, cut: int
) -> None:
    with opened(folder) as log:
        grow(log, size)
    tail = folder / "run-1" / "tail"
    data = tail.read_bytes()
    tail.write_bytes(data[: max(len(data) - cut, 0)])
    before = files(folder)

    with pytest.raises(AuditError, match=f"but {size} were signed"):
        opened(folder)
    assert files(folder) == before


@pytest.mark.parametrize("place", ["tail", "lock"])
def test_links_in_the_place_of_files_are_not_followed(folder: Path, tmp_path: Path, place: str) -> None:
    (folder / "run-1").mkdir(parents=True, mode=0o700)
    (tmp_path / "elsewhere").write_bytes(b"")
    (folder / "run-1" / place).symlink_to(tmp_path / "elsewhere")

    with pytest.raises(AuditError):
        opened(folder)
    assert (tmp_path / "elsewhere").read_bytes() == b""


def test_log_goes_on_after_a_crash_between_a_full_bundle_and_its_name(folder: Path) -> None:
    with opened(folder) as log:
        grow(log, 255)
        log.append(entry(255))
    here = folder / "run-1"
    (here / "tile/entries/000").rename(here / "tail")

    with opened(folder) as log:
        assert log.size == 256
        grow(log, 258)
        assert head(log.checkpoint()).root == mth(entries(folder))
    assert (here / "tile/entries/000").exists()


def test_public_checkpoint_that_a_crash_left_behind_is_brought_up(folder: Path) -> None:
    with opened(folder) as log:
        grow(log, 3)
        old = (folder / "run-1/checkpoint").read_bytes()
        grow(log, 5)
    new = (folder / "run-1/checkpoint").read_bytes()
    (folder / "run-1/checkpoint").unlink()  # it may be one file with its kept copy
    (folder / "run-1/checkpoint").write_bytes(old)

    opened(folder).close()
    assert (folder / "run-1/checkpoint").read_bytes() == new


FULL_DISK = """
import resource, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from log_builder import entry, opened
from securefda.audit.log_files import AuditError

log = opened(Path({folder!r}))
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
try:
    for number in range(10_000):
        log.append(entry(number))
        assert log.size == number + 1
except AuditError as error:
    print(error, error.hint, sep="|")
    try:
        log.append(entry(number))
    except AuditError:
        print(number)
"""


@pytest.mark.parametrize("limit", [5_000, 8_000])
def test_full_disk_stops_the_log_with_one_error_and_loses_no_record(folder: Path, limit: int) -> None:
    code = FULL_DISK.format(tests=str(Path(__file__).parent), folder=str(folder), limit=limit)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    said, written = done.stdout.splitlines()

    assert f"{folder}/run-1/tail: cannot be written: File too large" in said
    assert "free disk space" in said
    with opened(folder) as log:
        assert (log.size, log.lost_bytes) == (int(written), 0)
        grow(log, log.size + 2)
        assert head(log.checkpoint()).root == mth(entries(folder))


def test_killed_writer_loses_no_record_that_append_returned(folder: Path) -> None:
    code = f"""
import os, sys
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parent)!r})
from log_builder import entry, opened
log = opened(Path({str(folder)!r}))
for number in range(300):
    log.append(entry(number))
os.kill(os.getpid(), 9)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9

    with opened(folder) as log:
        assert (log.size, log.lost_bytes) == (300, 0)


def test_no_key_is_in_any_file_or_in_what_is_printed(folder: Path) -> None:
    with opened(folder) as log:
        grow(log, 5)
        shown = repr(log).encode() + b"".join(files(folder).values())

    for key in KEYS.values():
        secret = key.private_bytes_raw()
        assert secret not in shown
        assert secret.hex().encode() not in shown
