"""A release fuse on the disk: there before anything leaves, there after a kill, and missed where a backup lacks it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from source_stores import store_at

from securefda.disk import file_number
from securefda.errors import ConfigError, SecureFdaError

RUN = bytes(16)
STATE = "state.sqlite"


def releases(folder: Path) -> list[int]:
    """Which rounds the state file of a folder knows as released."""
    store = store_at(folder / STATE)
    found = [number for number in range(1, 10) if store.history(bytes(32), RUN, number).released]
    store.close()
    return found


def burn(folder: Path, *rounds: int) -> None:
    store = store_at(folder / STATE)
    for number in rounds:
        store.burn_fuse(RUN, number)
    store.close()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@dataclass(frozen=True)
class Killed:
    """What a process left that burnt the fuses of rounds 1 and 2 and was killed, with a fork in between."""

    folder: Path
    printed: list[str]
    code: int
    calls: list[str]


@pytest.fixture(scope="module")
def remains(tmp_path_factory: pytest.TempPathFactory) -> Killed:
    folder = tmp_path_factory.mktemp("killed")
    trace, calls = folder / "trace", "trace=pwrite64,fdatasync,fsync,rename,write"
    # With nothing to trace it the process runs all the same; only the test of its system calls is left out.
    tracer = ["strace", "-f", "-y", "-qq", "-e", calls, "-o", str(trace)] if _can_trace() else []
    script = Path(__file__).with_name("burn_and_die.py")
    command = [*tracer, sys.executable, str(script), str(folder / "out" / STATE)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    lines = trace.read_text(errors="replace").splitlines() if trace.exists() else []
    return Killed(folder / "out", ended.stdout.splitlines(), ended.returncode, lines)


def _can_trace() -> bool:
    found = shutil.which("strace")
    if found is None:
        return False
    return subprocess.run([found, "-qq", "true"], capture_output=True, check=False).returncode == 0


@pytest.fixture
def killed(remains: Killed, tmp_path: Path) -> Iterator[Path]:
    """The folder of the killed process, moved within the file system for the one test that uses it."""
    saved = {path.name: path.read_bytes() for path in remains.folder.iterdir()}
    moved = remains.folder.rename(tmp_path / "out")
    yield moved
    moved.rename(remains.folder)
    for path in remains.folder.iterdir():
        if path.name not in saved:
            path.unlink()
    for name, data in saved.items():
        (remains.folder / name).write_bytes(data)


def test_a_kill_right_after_the_fuse_leaves_it_burnt(remains: Killed, killed: Path) -> None:
    assert (remains.printed, remains.code) == (["begins", "burnt 1", "burnt 2"], -signal.SIGKILL)
    assert f"{STATE}-wal" in names(killed), "the process has closed its state: this is no kill"
    assert releases(killed) == [1, 2]


def test_a_fork_whose_copy_ends_takes_no_fuse_along(remains: Killed, killed: Path) -> None:
    """SQLite in the copy would delete the log into which the original has yet to write round 2."""
    assert remains.printed[-1] == "burnt 2"
    assert 2 in releases(killed)


def test_the_disk_has_the_fuse_before_a_byte_can_leave(remains: Killed) -> None:
    if not remains.calls:
        pytest.skip("needs strace, and leave to use it")
    between = _calls_between(remains.calls, "begins", "burnt 1")
    log, marker, folder = f"{STATE}-wal>", "releases-1", f"{remains.folder}>"
    written = [number for number, call in enumerate(between) if call.startswith("pwrite64") and log in call]
    flushed = [number for number, call in enumerate(between) if re.match(r"f(data)?sync", call) and log in call]
    renamed = [number for number, call in enumerate(between) if call.startswith("rename") and marker in call]
    listed = [number for number, call in enumerate(between) if call.startswith("fsync") and folder in call]
    assert written
    assert written[-1] < flushed[0] < renamed[0] < listed[0]
    assert all(call.endswith("= 0") for call in between if "sync(" in call or call.startswith("rename"))


def _calls_between(calls: list[str], first: str, last: str) -> list[str]:
    texts = [call.split(maxsplit=1)[1] for call in calls]
    start, end = (
        next(number for number, text in enumerate(texts) if re.match(rf'write\(1.*"{word}\\n"', text))
        for word in (first, last)
    )
    return texts[start + 1 : end]


def test_a_write_ahead_log_that_is_deleted_is_missed(killed: Path) -> None:
    (killed / f"{STATE}-wal").unlink()
    with pytest.raises(ConfigError, match="was deleted or emptied after updates had left"):
        store_at(killed / STATE)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that has released rounds 1 and 2, and a backup from between them."""
    burn(tmp_path / "out", 1)
    shutil.copytree(tmp_path / "out", tmp_path / "backup")
    burn(tmp_path / "out", 2)
    return tmp_path / "out"


def _copied_elsewhere(folder: Path) -> Path:
    return Path(shutil.copytree(folder, folder.with_name("elsewhere")))


def _state_put_back_in_place(folder: Path) -> Path:
    (folder / STATE).write_bytes((folder.with_name("backup") / STATE).read_bytes())
    return folder


def _state_replaced(folder: Path) -> Path:
    shutil.copy2(folder.with_name("backup") / STATE, folder / "new")
    (folder / "new").rename(folder / STATE)
    return folder


def _folder_put_back_over_it(folder: Path) -> Path:
    shutil.copytree(folder.with_name("backup"), folder, dirs_exist_ok=True)
    return folder


def _folder_replaced(folder: Path) -> Path:
    shutil.rmtree(folder)
    return Path(shutil.copytree(folder.with_name("backup"), folder))


def _backup_used(folder: Path) -> Path:
    return folder.with_name("backup")


def _marker_deleted(folder: Path) -> Path:
    (folder / f"{STATE}.releases-2").unlink()
    return folder


def _state_deleted(folder: Path) -> Path:
    (folder / STATE).unlink()
    return folder


RESTORED: dict[Callable[[Path], Path], str] = {
    _copied_elsewhere: "is a copy, or was put back",
    _state_put_back_in_place: "knows of 1 releases of 2",
    _state_replaced: "is a copy, or was put back",
    _folder_put_back_over_it: "knows of 1 releases of 2",
    _folder_replaced: "is a copy, or was put back",
    _backup_used: "is a copy, or was put back",
    _marker_deleted: "without its marker",
    _state_deleted: "was deleted or emptied after updates had left",
}


@pytest.mark.parametrize("restore", RESTORED, ids=lambda restore: restore.__name__.strip("_"))
def test_state_that_may_have_forgotten_a_release_is_refused(folder: Path, restore: Callable[[Path], Path]) -> None:
    restored = restore(folder)
    before = names(restored)
    for _ in range(2):  # a second start finds what the first has found
        with pytest.raises(ConfigError, match=RESTORED[restore]) as caught:
            store_at(restored / STATE)
        assert "new --out folder" in caught.value.hint
        assert "new run" in caught.value.hint
        assert "\n" not in str(caught.value)
    assert [name for name in names(restored) if "releases" in name] == [name for name in before if "releases" in name]


def test_state_with_a_second_name_is_refused_under_both(folder: Path) -> None:
    linked = Path(shutil.copytree(folder, folder.with_name("linked"), copy_function=os.link))  # as cp -al does
    before = names(folder), names(linked)

    for one in (folder, linked):
        with pytest.raises(ConfigError, match=r"has a second name \(a hard link\)") as refusal:
            store_at(one / STATE)
        assert "find / -xdev -samefile" in (refusal.value.hint or "")

    assert (names(folder), names(linked)) == before


def test_the_original_goes_on_beside_its_copies(folder: Path) -> None:
    _copied_elsewhere(folder)
    assert releases(folder) == [1, 2]


def test_restarts_moves_and_new_permissions_raise_no_alarm(folder: Path) -> None:
    assert releases(folder) == [1, 2]
    moved = folder.rename(folder.with_name("moved"))
    assert releases(moved) == [1, 2]
    (moved / STATE).rename(moved / "aside")
    (moved / "aside").rename(moved / STATE)
    (moved / STATE).chmod(0o640)
    (moved / STATE).chmod(0o600)
    burn(moved, 3)
    assert releases(moved) == [1, 2, 3]
    assert f"{STATE}.releases-3" in names(moved)


def test_state_that_was_never_used_can_be_deleted(tmp_path: Path) -> None:
    burn(tmp_path)
    (tmp_path / STATE).unlink()
    assert releases(tmp_path) == []


def test_a_kill_between_the_fuse_and_its_marker_raises_no_alarm(folder: Path) -> None:
    (folder / f"{STATE}.releases-2").rename(folder / f"{STATE}.releases-1")
    assert releases(folder) == [1, 2]
    assert [name for name in names(folder) if "releases" in name] == [f"{STATE}.releases-2"]


def test_a_marker_that_cannot_be_moved_on_is_one_clear_line(folder: Path) -> None:
    store = store_at(folder / STATE)
    (folder / f"{STATE}.releases-2").unlink()
    with pytest.raises(SecureFdaError, match="No such file") as caught:
        store.burn_fuse(RUN, 3)
    assert caught.value.hint
    store.close()


def test_a_files_number_is_its_own_and_stays(tmp_path: Path) -> None:
    path, copy = tmp_path / "a", tmp_path / "b"
    path.write_bytes(b"one")
    shutil.copy2(path, copy)
    numbers = {}
    for step in ("made", "written", "renamed"):
        if step == "written":
            path.write_bytes(b"another")
        elif step == "renamed":
            path = path.rename(tmp_path / "c")
        with path.open("rb") as file:
            numbers[step] = file_number(file.fileno())
    with copy.open("rb") as file:
        numbers["copy"] = file_number(file.fileno())
    assert len({numbers["made"], numbers["written"], numbers["renamed"]}) == 1
    assert numbers["copy"] != numbers["made"]
