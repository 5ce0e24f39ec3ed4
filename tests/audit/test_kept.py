"""Signed messages that lie beside a log: whole, bounded, and read from files alone."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from securefda.audit.kept import FILE, KeptMessages, read_kept
from securefda.audit.log_files import AuditError


def keep(folder: Path, *messages: bytes) -> None:
    """What a process keeps that starts, and ends."""
    kept = KeptMessages(folder)
    for message in messages:
        kept.keep(message)
    kept.close()


def cut(folder: Path, count: int) -> None:
    os.truncate(folder / FILE, (folder / FILE).stat().st_size - count)


def test_messages_come_back_as_they_came(tmp_path: Path) -> None:
    keep(tmp_path, b"second", b"outside", b"second", b"tenth")

    assert list(read_kept(tmp_path)) == [b"second", b"outside", b"second", b"tenth"]
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600


def test_a_log_without_kept_messages_has_none(tmp_path: Path) -> None:
    assert list(read_kept(tmp_path)) == []


@pytest.mark.parametrize("count", [1, 3, 6, 8, 12])
def test_a_message_that_a_crash_tore_is_left_out_and_those_behind_it_are_kept_whole(tmp_path: Path, count: int) -> None:
    keep(tmp_path, b"whole", b"not whole")
    cut(tmp_path, count)
    assert list(read_kept(tmp_path)) == [b"whole"]
    keep(tmp_path, b"behind")

    assert list(read_kept(tmp_path)) == [b"whole", b"behind"]


def test_what_each_of_many_crashes_left_is_read_in_its_order(tmp_path: Path) -> None:
    for number in range(4):
        keep(tmp_path, b"whole %d" % number, b"not whole")
        cut(tmp_path, 1)

    names = {file.name for file in tmp_path.iterdir()}
    assert names == {FILE, "messages-0001.bin", "messages-0002.bin", "messages-0003.bin"}
    (tmp_path / "messages-0003.bin").rename(tmp_path / "messages-10000.bin")
    assert list(read_kept(tmp_path)) == [b"whole %d" % number for number in range(4)]


def test_half_of_a_message_that_a_full_disk_took_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = KeptMessages(tmp_path)
    kept.keep(b"whole")
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[: len(data) // 2]))
    with pytest.raises(AuditError, match="No space left"):
        kept.keep(b"not whole")
    monkeypatch.undo()
    kept.close()
    keep(tmp_path, b"behind")

    assert list(read_kept(tmp_path)) == [b"whole", b"behind"]


def test_no_start_takes_away_what_a_file_holds_behind_a_length_that_was_changed(tmp_path: Path) -> None:
    keep(tmp_path, *(b"message %d" % number for number in range(5)))
    changed = bytearray((tmp_path / FILE).read_bytes())
    changed[2 * (4 + 9)] = 0x7F
    (tmp_path / FILE).write_bytes(changed)
    keep(tmp_path, b"later")
    keep(tmp_path, b"and later")

    assert changed in [file.read_bytes() for file in tmp_path.iterdir()]
    found = read_kept(tmp_path)
    assert [next(found) for _ in range(4)] == [b"message 0", b"message 1", b"later", b"and later"]
    with pytest.raises(AuditError, match="holds no kept messages"):
        next(found)


def test_zeros_that_a_power_cut_left_end_a_file(tmp_path: Path) -> None:
    keep(tmp_path, b"whole")
    with (tmp_path / FILE).open("ab") as file:
        file.write(bytes(64))

    assert list(read_kept(tmp_path)) == [b"whole"]


def test_a_length_that_no_message_has_is_refused_before_it_is_read(tmp_path: Path) -> None:
    KeptMessages(tmp_path).keep(b"message")
    (tmp_path / FILE).write_bytes(b"\xff\xff\xff\xff" + bytes(10))

    with pytest.raises(AuditError, match="holds no kept messages"):
        list(read_kept(tmp_path))


@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_a_pipe_or_a_link_in_place_of_a_file_is_refused_and_not_waited_for(tmp_path: Path, kind: str) -> None:
    path = tmp_path / FILE
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")

    with pytest.raises(AuditError):
        list(read_kept(tmp_path))


def test_after_a_message_that_did_not_fit_none_is_kept_until_reopened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A smaller one might fit: then the first would be missing before it, as if somebody had taken it out."""
    kept = KeptMessages(tmp_path)
    kept.keep(b"first")
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda descriptor, data: 0)
        with pytest.raises(AuditError):
            kept.keep(b"too much")
    for act in (lambda: kept.keep(b"x"), kept.sync):
        with pytest.raises(AuditError, match="No space left"):
            act()
    kept.close()

    keep(tmp_path, b"next")
    assert list(read_kept(tmp_path)) == [b"first", b"next"]
