"""The reader of logs: whose log it is, its records in order, also while they are written, and proofs of single ones."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from log_builder import KEYS, LARGE, NAME, SMALL, Clock, entry, files, grow, opened

from securefda.audit import reading
from securefda.audit.log_files import AuditError, read_bundle
from securefda.audit.merkle import WIDTH, ProofError, bundle_path, pack, unpack
from securefda.audit.reading import DamagedLog, NoLog, being_written, find_logs, looks_like_log, open_log
from securefda.audit.signed_notes import Checkpoint, LogName, Note, sign
from securefda.errors import ExitCode

Folders = dict[tuple[int, ...], Path]


@pytest.fixture
def large(folders: Folders, tmp_path: Path) -> Path:
    return shutil.copytree(folders[LARGE], tmp_path / "copy")


@pytest.mark.parametrize("sizes", [SMALL, LARGE])
def test_records_are_read_in_order_from_any_place(folders: Folders, sizes: tuple[int, ...]) -> None:
    log = open_log(folders[sizes])

    assert (log.party, log.run, log.federation) == (NAME.party, NAME.run, NAME.federation)
    for start in {0, 1, sizes[-1] // 2, min(256, sizes[-1]), sizes[-1] - 1, sizes[-1], 5000}:
        found = list(log.records(start))
        assert [record.seq for record in found] == list(range(start, sizes[-1]))
        assert all(record.entry == entry(record.seq) for record in found)


def test_reading_changes_nothing(small: Path) -> None:
    before = files(small)
    log = open_log(small)
    list(log.records())
    log.prove(3).check()
    assert not being_written(small)
    assert files(small) == before


def test_copy_of_the_public_files_alone_is_read_up_to_its_checkpoint(large: Path) -> None:
    (large / "tail").unlink()
    (large / "lock").unlink()

    assert [record.seq for record in open_log(large).records(250)] == list(range(250, 300))
    assert not being_written(large)


def test_log_without_a_checkpoint_is_known_by_its_first_record(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        log.append(entry(0))
        found = open_log(tmp_path / "run-1")

    assert (found.party, found.run, found.federation) == (NAME.party, NAME.run, "")
    assert (found.head(), found.heads()) == (None, ())
    assert [record.seq for record in found.records()] == [0]


def test_log_with_a_broken_checkpoint_is_known_by_its_first_record(small: Path) -> None:
    (small / "checkpoint").write_bytes(b"\0" * 100)

    assert open_log(small).party == NAME.party


def test_reader_goes_on_where_it_stopped_while_the_log_is_written(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        log.append(entry(0))
        reader, seen = open_log(tmp_path / "run-1"), 0
        for size in (1, 200, 255, 256, 257, 511, 512, 800):
            while log.size < size:
                log.append(entry(log.size))
            found = list(reader.records(seen))
            assert [record.seq for record in found] == list(range(seen, size))
            seen = size
        assert being_written(tmp_path / "run-1")
    assert not being_written(tmp_path / "run-1")


def test_tail_that_becomes_a_bundle_between_two_looks_loses_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as log:
        grow(log, 255)
        reader = open_log(tmp_path / "run-1")

        def look_before_the_writer(folder: Path, index: int, width: int = WIDTH) -> bytes | None:
            data = read_bundle(folder, index, width)
            if index == 0 and log.size < 300:
                while log.size < 300:
                    log.append(entry(log.size))
            return data

        monkeypatch.setattr(reading, "read_bundle", look_before_the_writer)

        assert [record.seq for record in reader.records()] == list(range(300))


def test_record_that_is_not_whole_is_left_out(small: Path) -> None:
    with (small / "tail").open("ab") as tail:
        tail.write(pack(b'{"attempt":0}')[:-3])

    assert len(list(open_log(small).records())) == 20


@pytest.mark.parametrize("index", [0, 1, 99, 255, 256, 299])
def test_inclusion_of_a_record_is_proved_against_the_newest_checkpoint_and_earlier_ones(
    folders: Folders, index: int
) -> None:
    log = open_log(folders[LARGE])

    assert log.heads() == LARGE
    for size in (None, *(size for size in LARGE if size > index)):
        found = log.prove(index, size)
        found.check()
        assert found.size == (size or 300)
        head = log.head(size)
        assert head is not None
        assert head.checkpoint.root == found.root


def test_proof_of_another_record_fails(folders: Folders) -> None:
    log = open_log(folders[LARGE])
    one, other = log.prove(17), log.prove(18)

    with pytest.raises(ProofError):
        replace(one, entry=other.entry).check()
    with pytest.raises(ProofError):
        replace(one, index=18).check()


def test_proof_from_changed_tiles_fails(large: Path) -> None:
    tile = large / "tile/0/000"
    data = bytearray(tile.read_bytes())
    data[32 * 200] ^= 1
    tile.write_bytes(data)

    with pytest.raises(ProofError):
        open_log(large).prove(17).check()


@pytest.mark.parametrize(("index", "size"), [(300, None), (100, 100), (-1, None), (5, 101)])
def test_checkpoint_that_does_not_cover_a_record_proves_nothing_of_it(
    folders: Folders, index: int, size: int | None
) -> None:
    with pytest.raises(AuditError, match=r"does not cover record|has no such checkpoint"):
        open_log(folders[LARGE]).prove(index, size)


def rewrite_tail(folder: Path, change: dict[int, bytes]) -> None:
    entries = unpack((folder / "tail").read_bytes())[0]
    (folder / "tail").write_bytes(b"".join(pack(change.get(at, item)) for at, item in enumerate(entries)))


@pytest.mark.parametrize("new", [b"", b"\0\xff", b"{}", b"[" * 60_000])
def test_record_of_another_form_is_named_behind_those_that_are_good(small: Path, new: bytes) -> None:
    rewrite_tail(small, {7: new})
    records = open_log(small).records()

    assert [next(records).seq for _ in range(7)] == list(range(7))
    with pytest.raises(DamagedLog, match="record 7 is not of the form") as error:
        next(records)
    assert (error.value.index, error.value.exit_code) == (7, ExitCode.AUDIT)


def test_record_of_another_place_party_or_run_is_named(small: Path) -> None:
    old = unpack((small / "tail").read_bytes())[0][7]
    for new in (
        old.replace(b'"seq":7', b'"seq":8'),
        old.replace(b'"site-a"', b'"site-c"'),
        old.replace(b'"run-1"', b'"run-2"'),
    ):
        assert new != old
        rewrite_tail(small, {7: new})
        with pytest.raises(DamagedLog, match="record 7 says that it is number"):
            list(open_log(small).records())


@pytest.mark.parametrize("name", ["tail", bundle_path(0)])
def test_file_of_ten_gigabytes_is_not_read_whole(large: Path, name: str) -> None:
    (large / name).chmod(0o600)
    os.truncate(large / name, 10 * 2**30)

    with pytest.raises(DamagedLog, match="is longer than 16777472 bytes"):
        list(open_log(large).records())


def test_bundle_with_too_few_records_is_damaged(large: Path) -> None:
    data = (large / bundle_path(0)).read_bytes()
    (large / bundle_path(0)).write_bytes(data[:-1])

    with pytest.raises(DamagedLog, match="record 255") as error:
        list(open_log(large).records())
    assert error.value.index == 255


def test_bundle_that_is_gone_is_damage_and_no_end(large: Path) -> None:
    (large / bundle_path(0)).unlink()

    with pytest.raises(DamagedLog, match="record 0"):
        list(open_log(large).records())


def checkpoint_of(origin: str) -> bytes:
    text = Checkpoint(origin, 1, bytes(32)).to_text()
    return Note(text, (sign(text, origin.replace(" ", "-"), KEYS["site-a"]),)).to_bytes()


@pytest.mark.parametrize(
    ("origin", "words"),
    [
        ("go.sum database tree", "a log of something else: its origin is 'go.sum database tree'"),
        ("securefda", "a log of something else"),
        ("securefda/x/hearts/site-a/run-1", "a log of something else"),
        ("securefda/2/hearts/site-a/run-1", "has format 2, and this release"),
        ("securefda/2/of/another/form/than/ours", "has format 2, and this release"),
    ],
)
def test_log_of_another_program_or_a_later_release_is_refused(small: Path, origin: str, words: str) -> None:
    (small / "checkpoint").write_bytes(checkpoint_of(origin))

    with pytest.raises(NoLog, match=words) as error:
        open_log(small)
    assert error.value.exit_code == ExitCode.CONFIG


def test_record_of_a_later_release_is_refused(small: Path) -> None:
    old = unpack((small / "tail").read_bytes())[0]
    rewrite_tail(small, {3: old[3].replace(b'"v":1', b'"v":2')})

    with pytest.raises(NoLog, match="record 3 of a later release"):
        list(open_log(small).records())


def test_folders_that_hold_no_log_are_refused_with_what_to_name(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_bytes(b"x")
    with opened(tmp_path / "audit", LogName("hearts", "site-a", "run-9")):
        pass

    for name, words, hint in (
        ("nowhere", "is not there", "KIT/local/audit/RUN"),
        ("file", "is a file", "KIT/local/audit/RUN"),
        ("empty", "is not the log of a run", "KIT/local/audit/RUN"),
        ("audit", "is not the log of a run", "audit/run-9"),
        ("audit/run-9", "has no record yet", "when the run has begun"),
    ):
        with pytest.raises(NoLog, match=words) as error:
            open_log(tmp_path / name)
        assert hint in error.value.hint


def test_binary_file_in_place_of_all_is_no_log(tmp_path: Path) -> None:
    (tmp_path / "tail").write_bytes(bytes(range(256)) * 400)

    with pytest.raises(AuditError, match="has no record of an audit log"):
        open_log(tmp_path)


def test_logs_below_a_folder_are_found_and_links_are_not_followed(tmp_path: Path) -> None:
    for party in ("site-b", "site-a"):
        with opened(tmp_path / party / "local/audit", LogName("hearts", party, "run-1"), Clock()) as log:
            grow(log, 3, witnesses=())
    (tmp_path / "link").symlink_to(tmp_path / "site-a")

    assert find_logs(tmp_path) == [tmp_path / site / "local/audit/run-1" for site in ("site-a", "site-b")]
    assert looks_like_log(tmp_path / "site-a/local/audit/run-1")
    with pytest.raises(NoLog, match="is no folder"):
        find_logs(tmp_path / "nowhere")


def test_folders_in_folders_without_end_are_not_followed(small: Path, tmp_path: Path) -> None:
    near, far = tmp_path / "logs/local/audit/run-1", tmp_path.joinpath("logs", *["d"] * 64, "run-1")
    for place in (near, far):
        shutil.copytree(small, place)

    assert find_logs(tmp_path / "logs") == [near]
    assert find_logs(far.parent.parent) == [far]
