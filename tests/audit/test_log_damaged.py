"""A log that somebody else changed: its writer refuses to go on with it, and leaves it as it found it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from log_builder import KEYS, NAME, Clock, entry, files, grow, opened, swap

from securefda.audit.log import AuditLog
from securefda.audit.log_files import AuditError
from securefda.errors import SecureFdaError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "audit"


def damaged(change: Callable[[Path], object], folder: Path) -> AuditError:
    with opened(folder) as log:
        grow(log, 2, 300)
        log.append(entry(300))
    change(folder / "run-1")
    before = files(folder)
    with pytest.raises(AuditError) as error:
        opened(folder)
    assert files(folder) == before
    assert error.value.hint
    assert "\n" not in str(error.value)
    assert isinstance(error.value, SecureFdaError)
    return error.value


def test_writer_signs_nothing_on_top_of_a_changed_record(folder: Path) -> None:
    error = damaged(lambda here: swap(here / "tail", b'"bytes":290', b'"bytes":291'), folder)

    assert "not what its newest checkpoint signed" in str(error)


def test_writer_signs_nothing_on_top_of_a_changed_tile(folder: Path) -> None:
    def change(here: Path) -> None:
        tile = here / "tile/0/000"
        tile.write_bytes(bytes(32) + tile.read_bytes()[32:])

    assert "not what its newest checkpoint signed" in str(damaged(change, folder))


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda here: swap(here / "tail", b'"seq":300', b'"seq":301'), "another place"),
        (lambda here: swap(here / "tail", b'"seq":300', b'"seq":XXX'), "not as it was written"),
        (lambda here: (here / "checkpoint").write_bytes(b"\xff"), "no checkpoint"),
        (lambda here: swap(here / "checkpoints/0000000000000300", b"/run-1\n3", b"/run-2\n3"), "run-2"),
        (lambda here: swap(here / "checkpoints/0000000000000300", b"\n300\n", b"\n301\n"), "not by this party"),
        (lambda here: shutil.rmtree(here / "checkpoints"), "lacks the newest"),
        (lambda here: (here / "checkpoints/0000000000000300").unlink(), "lacks the newest"),
        (lambda here: (here / "tile/entries/000").unlink(), "is missing"),
        (lambda here: (here / "tile/0/000").unlink(), "missing"),
        (lambda here: (here / "tail").unlink(), "were signed"),
        (lambda here: here.chmod(0o755), "open to others"),
        (lambda here: (here / "tail").chmod(0o644), "open to others"),
    ],
)
def test_damaged_log_is_refused_with_the_file_and_what_to_do(
    folder: Path, change: Callable[[Path], object], what: str
) -> None:
    assert what in str(damaged(change, folder))


def test_log_of_another_party_is_refused(folder: Path) -> None:
    with opened(folder) as log:
        grow(log, 3)

    with pytest.raises(AuditError, match="not of securefda/1/hearts/site-b/run-1"):
        opened(folder, replace(NAME, party="site-b"))


def test_log_under_a_new_key_is_refused(folder: Path) -> None:
    with opened(folder) as log:
        grow(log, 3)

    with pytest.raises(AuditError, match="not by this party"):
        AuditLog.open(folder, NAME, KEYS["site-d"], Clock())
