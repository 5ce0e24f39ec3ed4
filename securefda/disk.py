"""Atomic file writes, private keys that only their owner can read, and an identity of a file that copies lack.

Functions that write raise OSError; the caller reports what could not be written, or uses :func:`writing_errors`.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from securefda.errors import ConfigError, reading_hint

SECRET_MODE = 0o600
PUBLIC_MODE = 0o444
MAX_FILE_BYTES = 4 * 1024 * 1024
MAX_DATA_BYTES = 1 << 30
"""Largest table of rows; once parsed, it takes about ten times as much memory."""
_PATIENCE_S, _AGAIN_S = 30.0, 0.1
"""How long to wait for a descriptor, and how long between two tries."""
_GET_GENERATION = 0x80087601  # FS_IOC_GETVERSION of Linux on 64-bit x86 and ARM


@dataclass(frozen=True, slots=True)
class FileContent:
    """The bytes of one file and its permission bits, both read through the same descriptor."""

    data: bytes
    mode: int

    def __repr__(self) -> str:
        return f"FileContent({len(self.data)} bytes, mode {self.mode:o})"  # it may be a private key


def open_patiently(path: str | Path, flags: int, mode: int = 0o666) -> int:
    """Open a file as ``os.open`` does, and wait while the process or the system has no descriptor left.

    Somebody who opens many connections must not end a process that only has to write its log.

    Raises:
        OSError: it cannot be opened, or none was left for half a minute.
    """
    until, said = time.monotonic() + _PATIENCE_S, False
    while True:
        try:
            return os.open(path, flags | os.O_CLOEXEC, mode)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE) or time.monotonic() > until:
                raise
            if not said:
                logging.getLogger(__name__).warning("%s: %s; waiting until one is closed", path, error.strerror)
            said = True
        time.sleep(_AGAIN_S)


def await_descriptors() -> None:
    """Wait as :func:`open_patiently` does, for SQLite, which opens up to four files by itself."""
    for descriptor in [open_patiently(os.devnull, os.O_RDONLY) for _ in range(4)]:
        os.close(descriptor)


def read_file(path: Path, *, limit: int = MAX_FILE_BYTES, hint: str = "check the path") -> FileContent:
    """Read a small regular file of at most ``limit`` bytes; ``hint`` is for one that is missing.

    Raises:
        ConfigError: it is missing, unreadable, no regular file, or larger.
    """
    content = read_start(path, limit + 1, hint=hint)
    if len(content.data) > limit:
        raise ConfigError(str(path), f"is larger than {limit} bytes", hint="check the path")
    return content


def read_start(path: Path, length: int, *, hint: str = "check the path") -> FileContent:
    """Read the first ``length`` bytes of a regular file, or all if it has fewer; ``hint`` is for one that is missing.

    Raises:
        ConfigError: it is missing, unreadable or no regular file.
    """
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            status = os.fstat(file.fileno())
            _require_regular(path, status)
            return FileContent(file.read(length), stat.S_IMODE(status.st_mode))
    except FileNotFoundError as error:
        raise ConfigError(str(path), "is missing", hint=hint) from error
    except OSError as error:
        why = f"cannot be read: {error.strerror}"
        raise ConfigError(str(path), why, hint=reading_hint(error, "check the path")) from error


def read_whole(path: Path, limit: int | None = MAX_DATA_BYTES) -> bytes:
    """Read a whole regular file of at most ``limit`` bytes, such as a table of rows.

    Raises:
        OSError: it is missing, unreadable, no regular file (a device may have no end), or larger.
    """
    with open(path, "rb", opener=_open_at_once) as file:
        status = os.fstat(file.fileno())
        _require_regular(path, status)
        if limit is not None and status.st_size > limit:
            raise OSError(errno.EOVERFLOW, f"it has more than {limit >> 20} MiB", str(path))
        return file.read()


def whole_lines(path: Path, start: int = 0) -> Iterator[bytes]:
    """Yield the lines of a regular file from byte ``start`` on, each with its line end.

    What follows the last line end is left out: it is being written, or a crash tore it.

    Raises:
        OSError: the file is missing, unreadable, no regular file, or has a line of more than ``MAX_FILE_BYTES``.
    """
    with open(path, "rb", opener=_open_at_once) as file:
        _require_regular(path, os.fstat(file.fileno()))
        file.seek(start)
        while (line := file.readline(MAX_FILE_BYTES + 1)).endswith(b"\n"):
            yield line
        if len(line) > MAX_FILE_BYTES:
            raise OSError(errno.EOVERFLOW, f"it has a line of more than {MAX_FILE_BYTES >> 20} MiB", str(path))


def _require_regular(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is no regular file", str(path))


def _open_at_once(path: str, flags: int) -> int:
    """Open without waiting: a FIFO without a writer must not block the process; regular files ignore the flag."""
    return open_patiently(path, flags | os.O_NONBLOCK)


def check_secret_mode(name: str, content: FileContent) -> None:
    """Refuse a file with a secret that anyone but its owner could read or change.

    Raises:
        ConfigError: a permission bit of group or others is set.
    """
    if content.mode & 0o077:
        raise ConfigError(
            name, f"is open to others (mode {content.mode:04o}, must be 0600)", hint=f"run: chmod 600 {name}"
        )


@contextmanager
def writing_errors(path: Path) -> Iterator[None]:
    """Turn an OSError of the block into one clear line about ``path``.

    Raises:
        ConfigError: the block raised OSError.
    """
    try:
        yield
    except OSError as error:
        why = f"cannot be written: {error.strerror or error}"
        raise ConfigError(str(path), why, hint="check the folder's permissions and the free disk space") from error


def require_new(option: str, path: Path, *, replaces: Callable[[bytes], bool] = lambda _: False) -> None:
    """Refuse, before any work, a file named by ``option`` that cannot be made without losing data.

    Args:
        option: as the user typed it, such as ``--out``.
        path: the file to make.
        replaces: whether it may take the place of a file with these bytes, such as an earlier page of the same kind.

    Raises:
        ConfigError: there is a file or a folder already, or no folder to make it in.
    """
    if path.is_dir() or not path.parent.is_dir():
        why = f"{path} is {'a folder' if path.is_dir() else 'in a folder that does not exist'}"
        raise ConfigError(option, why, hint="name a file in a folder that exists")
    if path.exists() and not (path.is_file() and replaces(read_whole(path))):
        raise ConfigError(option, f"{path} exists already", hint="name a new file, or remove that one")


def write_file(path: Path, data: bytes, mode: int) -> None:
    """Write a file so that readers, and a machine that loses power, find the old contents or the new.

    The new contents are on the disk, under their name, when this returns. A link is replaced and not followed.

    Args:
        path: in a folder that exists.
        data: all that is in it from then on.
        mode: its permission bits from its first moment on, less the umask: a key is at no time open to others.

    Raises:
        OSError: the disk is full, the folder is missing or not writable, or ``path`` is a device or a pipe, which
            the new file would replace; the old file is untouched.
    """
    if path.exists() and not path.is_symlink() and not path.is_file() and not path.is_dir():
        raise OSError(errno.EEXIST, "a device or a pipe is in its place", str(path))
    # An unpredictable name, and O_EXCL: no link that was put there beforehand is followed.
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = open_patiently(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            # Before it gets its name: after a power cut the name could lead to an empty file.
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def make_folder(path: Path, mode: int = 0o700) -> None:
    """Make a folder, with those above it, each of this mode and on the disk under its name; one that exists stays.

    Raises:
        OSError: it cannot be made, or a file is in its place.
    """
    if path.is_dir():
        return
    # Not mkdir(parents=True): that gives the folders above the default mode.
    for folder in (*reversed(path.parents), path):
        if not folder.is_dir():
            folder.mkdir(mode=mode, exist_ok=True)
            sync_folder(folder.parent)


@contextmanager
def whole_folder(root: Path) -> Iterator[Path]:
    """Yield a folder beside ``root`` that takes its place when the block succeeds, and disappears otherwise.

    After a kill in the block it stays; the next maker of ``root`` removes it.
    """
    root = root.resolve()
    if root.is_symlink():  # to itself; Python 3.13 resolves it without an error
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(root))
    partial = root.with_name(f".{root.name}.partial-{secrets.token_hex(8)}")
    make_folder(root.parent)
    remove_leftovers(root)
    partial.mkdir(mode=0o700)
    try:
        with locked(partial):
            yield partial
            partial.replace(root)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def remove_leftovers(path: Path) -> None:
    """Remove what a killed :func:`write_file` or :func:`whole_folder` left beside ``path``: it may hold a private key.

    A folder that another process makes at this moment stays, as does what this user may not remove. For a file there
    is no check of the first kind: call this where nobody else writes ``path``.

    Raises:
        OSError: the folder cannot be listed, or the disk fails.
    """
    if not path.parent.is_dir():
        return
    partial = re.compile(rf"\.{re.escape(path.name)}\.(partial-)?[0-9a-f]{{16}}")
    for left in [other for other in path.parent.iterdir() if partial.fullmatch(other.name)]:
        with suppress(BlockingIOError, PermissionError, FileNotFoundError):
            if left.is_dir() and not left.is_symlink():
                with locked(left):
                    shutil.rmtree(left)
            else:
                left.unlink()


@contextmanager
def locked(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold the lock of a folder, which the kernel releases when the process ends.

    Raises:
        OSError: the folder cannot be read; or, unless ``wait``, another process or thread has the lock.
    """
    descriptor = open_patiently(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Force to the disk which names the folder holds. Raises OSError."""
    descriptor = open_patiently(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


LINKED = "has a second name (a hard link), under which another process would not see what this one writes"
LINKED_HINT = "find the names with: find / -xdev -samefile FILE, remove all but this one, and copy without links: cp -a"


def is_linked(descriptor: int) -> bool:
    """Whether a file has more than one name: SQLite has a write-ahead log and locks for each name of a file."""
    return os.fstat(descriptor).st_nlink > 1


def file_number(descriptor: int) -> str:
    """Return the file system's identity of a file: stays when it is renamed or written, differs for every copy.

    The number alone would be given to another file once this one is deleted, so the time of birth or the generation
    goes with it where the file system tells one. The device is left out: it changes when a machine restarts.
    """
    status = os.fstat(descriptor)
    born = getattr(status, "st_birthtime", None)
    return f"{status.st_ino}.{_generation(descriptor) if born is None else born}"


def _generation(descriptor: int) -> int:
    answer = bytearray(8)
    try:
        fcntl.ioctl(descriptor, _GET_GENERATION, answer)
    except OSError:  # this file system has none
        return 0
    return int.from_bytes(answer, "little")
