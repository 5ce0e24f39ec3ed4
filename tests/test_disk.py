"""Files that are whole and folders that are there: modes, links, and what a full disk leaves."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Timer

import pytest

from securefda import disk
from securefda.disk import (
    await_descriptors,
    make_folder,
    open_patiently,
    read_file,
    remove_leftovers,
    require_new,
    whole_folder,
    write_file,
)
from securefda.errors import ConfigError


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.fixture
def forced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of what is forced to the disk, in order."""
    names: list[str] = []
    fsync = os.fsync

    def noting(descriptor: int) -> None:
        names.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noting)
    return names


def test_written_file_has_its_mode_and_nothing_lies_beside_it(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"older and longer")
    (tmp_path / "key").chmod(0o644)

    write_file(tmp_path / "key", b"new", 0o600)

    assert {path.name: (path.read_bytes(), mode(path)) for path in tmp_path.iterdir()} == {"key": (b"new", 0o600)}


def test_written_file_and_then_its_name_are_forced_to_the_disk(tmp_path: Path, forced: list[str]) -> None:
    write_file(tmp_path / "key", b"new", 0o600)

    assert [name.startswith(".key.") for name in forced] == [True, False]
    assert forced[1] == tmp_path.name


def test_link_in_the_place_of_a_file_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"other")
    (tmp_path / "key").symlink_to("other")

    write_file(tmp_path / "key", b"new", 0o600)

    assert not (tmp_path / "key").is_symlink()
    assert (tmp_path / "other").read_bytes() == b"other"


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt()])
def test_file_that_cannot_be_forced_to_the_disk_leaves_the_old_one_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def failing(_descriptor: int) -> None:
        raise error

    write_file(tmp_path / "key", b"old", 0o600)
    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(type(error)):
        write_file(tmp_path / "key", b"new", 0o600)

    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"key": b"old"}


def test_folders_are_made_with_their_mode_and_are_on_the_disk_under_their_names(
    tmp_path: Path, forced: list[str]
) -> None:
    tmp_path.chmod(0o755)

    make_folder(tmp_path / "a" / "b")

    assert [mode(path) for path in (tmp_path, tmp_path / "a", tmp_path / "a/b")] == [0o755, 0o700, 0o700]
    assert forced == [tmp_path.name, "a"]


def test_folder_that_exists_keeps_its_mode_and_costs_nothing(tmp_path: Path, forced: list[str]) -> None:
    tmp_path.chmod(0o755)

    make_folder(tmp_path)

    assert (mode(tmp_path), forced) == (0o755, [])


@pytest.mark.parametrize("place", ["a", "a/b"])
def test_file_or_link_to_nowhere_in_the_place_of_a_folder_is_refused(tmp_path: Path, place: str) -> None:
    for make in (Path.touch, lambda path: path.symlink_to("nowhere")):
        make(tmp_path / "a")
        with pytest.raises(OSError, match="a"):
            make_folder(tmp_path / place)
        (tmp_path / "a").unlink()


def test_pipe_and_folder_are_refused_and_hold_nobody_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="pipe: cannot be read: it is no regular file"):
        read_file(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        read_file(tmp_path)


KILLED = """
import os, sys
from pathlib import Path
from securefda.disk import whole_folder, write_file
with whole_folder(Path(sys.argv[1])) as partial:
    write_file(partial / "key", b"secret", 0o600)
    os._exit(9)
"""


def test_folder_that_a_killed_process_left_is_removed_by_the_next_maker(tmp_path: Path) -> None:
    assert subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "kit")], check=False).returncode == 9
    (left,) = tmp_path.iterdir()
    assert (left / "key").read_bytes() == b"secret"

    with whole_folder(tmp_path / "kit") as partial:
        write_file(partial / "key", b"new", 0o600)

    assert [path.name for path in tmp_path.iterdir()] == ["kit"]
    assert (tmp_path / "kit" / "key").read_bytes() == b"new"


def test_folder_is_not_made_in_the_place_of_a_link_to_itself(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises((OSError, RuntimeError), match=r"Too many levels|Symlink loop"), whole_folder(tmp_path / "loop"):
        pytest.fail("it was made")
    assert [path.name for path in tmp_path.iterdir()] == ["loop"]


def test_folder_that_another_one_makes_at_this_moment_is_left_alone(tmp_path: Path) -> None:
    with whole_folder(tmp_path / "kit") as first:
        write_file(first / "key", b"first", 0o600)
        with pytest.raises(RuntimeError), whole_folder(tmp_path / "kit"):
            raise RuntimeError
        remove_leftovers(tmp_path / "kit")

    assert (tmp_path / "kit" / "key").read_bytes() == b"first"


def test_only_what_a_killed_writer_left_is_removed(tmp_path: Path) -> None:
    stays = {".keys.0123456789abcdef", ".key.bak", ".key.partial-", "key", "xkey.0123456789abcdef"}
    for name in (*stays, ".key.0123456789abcdef"):
        (tmp_path / name).touch()
    (tmp_path / ".key.partial-0123456789abcdef").symlink_to(tmp_path, target_is_directory=True)

    remove_leftovers(tmp_path / "key")

    assert {path.name for path in tmp_path.iterdir()} == stays
    remove_leftovers(tmp_path / "absent" / "key")


def test_a_name_that_is_taken_is_refused_unless_it_is_an_older_one(tmp_path: Path) -> None:
    mine, older = tmp_path / "mine", tmp_path / "older"
    mine.write_bytes(b"rows")
    older.write_bytes(b"page 1")

    for path, why in ((mine, "exists already"), (tmp_path, "is a folder"), (tmp_path / "no" / "x", "does not exist")):
        with pytest.raises(ConfigError, match=f"--out: .*{why}"):
            require_new("--out", path, replaces=lambda data: data.startswith(b"page"))
    require_new("--out", older, replaces=lambda data: data.startswith(b"page"))
    require_new("--out", tmp_path / "new")


@pytest.fixture
def none_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """A process that has every descriptor in use; the list is emptied to free them."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, limits[1]))
    monkeypatch.setattr(disk, "_AGAIN_S", 0.01)
    held = []
    with suppress(OSError):
        while True:
            held.append(os.open(os.devnull, os.O_RDONLY))
    yield held
    for descriptor in held:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_file_is_written_once_a_descriptor_is_free(
    tmp_path: Path, none_left: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    freed = [none_left.pop() for _ in range(4)]
    later = Timer(0.2, lambda: [os.close(descriptor) for descriptor in freed])
    later.start()
    write_file(tmp_path / "log", b"line", 0o600)
    await_descriptors()
    later.join()
    assert read_file(tmp_path / "log").data == b"line"
    (said,) = {record.message.partition(": ")[2] for record in caplog.records}
    assert said == "Too many open files; waiting until one is closed"


def test_no_descriptor_for_too_long_is_the_systems_own_error(
    tmp_path: Path, none_left: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert none_left
    monkeypatch.setattr(disk, "_PATIENCE_S", 0.05)
    with pytest.raises(OSError, match="Too many open files"):
        open_patiently(tmp_path / "log", os.O_WRONLY | os.O_CREAT)
