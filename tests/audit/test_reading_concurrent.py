"""Verification and reading of a log beside its writer: what they say is of the log, not of the moment."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest
from log_builder import NAME, PUBLIC, WITNESSES, entry, found, grow, opened, verify

from securefda.audit import verify as verifying
from securefda.audit.log import AuditLog
from securefda.audit.log_files import read_bundle
from securefda.audit.merkle import WIDTH, pack
from securefda.audit.reading import open_log
from securefda.audit.verify import verify_log


class Busy:
    """Appends some records, and now and then has a checkpoint cosigned, whenever a verification reads a file."""

    def __init__(self, log: AuditLog, seed: int, most: int) -> None:
        self.log, self.rng, self.most = log, random.Random(seed), most

    def read_bundle(self, folder: Path, index: int, width: int = WIDTH) -> bytes | None:
        before = self.rng.random() < 0.5
        if before:
            self.write()
        data = read_bundle(folder, index, width)
        if not before:
            self.write()
        return data

    def write(self) -> None:
        if self.log.size >= self.most:
            return
        for _ in range(self.rng.choice([1, 3, 100, 256, 300])):
            self.log.append(entry(self.log.size))
        if self.rng.random() < 0.5:
            grow(self.log, self.log.size)


@pytest.mark.parametrize("seed", range(20))
def test_verification_finds_nothing_in_a_log_that_grows_between_any_two_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    sizes = [3, 250, 256, 500, 511, 600]
    with opened(tmp_path) as log:
        grow(log, sizes[seed % len(sizes)])
        covered = log.size
        monkeypatch.setattr(verifying, "read_bundle", Busy(log, seed, most=1500).read_bundle)

        result = verify(tmp_path / "run-1")

        assert result.finding is None
        assert (result.covered, result.witnesses) == (covered, WITNESSES)
        assert log.size > covered


def test_verification_and_reading_beside_a_thread_that_writes_find_nothing(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        grow(log, 10)

        def write() -> None:
            while log.size < 1500:
                grow(log, log.size + 50)

        writer = threading.Thread(target=write)
        writer.start()
        results, counts = [], []
        while writer.is_alive():
            results.append(verify(tmp_path / "run-1", needed=0))
            counts.append(len(list(open_log(tmp_path / "run-1").records())))
        writer.join()

    assert results
    assert [result.finding for result in results] == [None] * len(results)
    assert counts == sorted(counts)


def test_record_that_its_writer_is_about_to_finish_is_no_finding_and_one_that_nobody_writes_is(tmp_path: Path) -> None:
    folder = tmp_path / "run-1"
    with opened(tmp_path) as log:
        grow(log, 7)
        with (folder / "tail").open("ab") as tail:
            tail.write(pack(b'{"attempt":0}')[:-3])
        beside = verify(folder)
    after = verify(folder)

    assert (beside.size, beside.finding) == (7, None)
    assert found(after) == ("torn", 7, True)


def test_lock_of_a_writer_hides_nothing_that_is_signed(tmp_path: Path) -> None:
    folder = tmp_path / "run-1"
    with opened(tmp_path) as log:
        grow(log, 7)
        (folder / "tail").write_bytes((folder / "tail").read_bytes()[:-3])

        assert found(verify(folder)) == ("truncated", 6, True)


def test_progress_is_reported_after_every_file(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        grow(log, 600)
    reports: list[tuple[int, int]] = []

    verify_log(tmp_path / "run-1", NAME, PUBLIC, progress=lambda read, covered: reports.append((read, covered)))

    assert reports == [(256, 600), (512, 600), (600, 600)]
