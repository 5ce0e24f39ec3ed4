"""Files of one log: read with bounds, written whole or not at all, open to their owner only."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO, Final

from securefda import disk
from securefda.audit import merkle
from securefda.audit.merkle import WIDTH, Subtree
from securefda.errors import SecureFdaError

make_folder = disk.make_folder
FILE_MODE: Final = 0o600
CHECKPOINT: Final = "checkpoint"
CHECKPOINTS: Final = "checkpoints"
TAIL: Final = "tail"
"""File with the entries after the last full bundle, in its encoding. At 256 entries it becomes the next bundle."""
LOCK: Final = "lock"


class AuditError(SecureFdaError):
    """The audit log cannot be written, or is not what was written: nothing leaves that is not logged.

    ``file`` is the file or folder, ``what`` is what was found.
    """

    def __init__(self, file: Path | str, what: str, *, hint: str) -> None:
        super().__init__(f"audit log {file}: {what}", hint=hint)
        self.file = str(file)
        self.what = what


@contextmanager
def disk_errors(path: Path, doing: str) -> Iterator[None]:
    """Turn an OSError of the block into one clear line about ``path``. Raises AuditError."""
    try:
        yield
    except OSError as error:
        raise disk_error(path, doing, error) from error


def disk_error(path: Path, doing: str, error: OSError) -> AuditError:
    """Return the AuditError for a disk error."""
    hint = "check the folder's owner and permissions, and the free disk space; then start again"
    if doing == "read":
        hint = "check the owner and permissions; a file that is damaged comes back only from a copy of the log"
    return AuditError(path, f"cannot be {doing}: {error.strerror or error}", hint=hint)


def checkpoint_path(size: int) -> str:
    """Return the path where the checkpoint of ``size`` records stays after later ones have replaced it."""
    return f"{CHECKPOINTS}/{size:016d}"


def checkpoint_sizes(folder: Path) -> list[int]:
    """Return the sizes of the checkpoints that are kept in a log, rising. Raises AuditError."""
    kept = folder / CHECKPOINTS
    with disk_errors(kept, "read"):
        names = [file.name for file in kept.iterdir()] if kept.is_dir() else []
    return sorted(int(name) for name in names if len(name) == 16 and name.isascii() and name.isdecimal())


def read(path: Path, limit: int) -> bytes | None:
    """Return the contents of a regular file; None if there is none.

    Raises AuditError if it is no regular file, has more than ``limit`` bytes, or cannot be read.
    """
    with disk_errors(path, "read"):
        try:
            file = open_regular(path)
        except FileNotFoundError:
            return None
        with file:
            data = file.read(limit + 1)
    if len(data) > limit:
        raise AuditError(path, f"is longer than {limit} bytes", hint="put the log back as it was written")
    return data


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading. Raises AuditError, without waiting, for anything else, such as a pipe."""
    descriptor = disk.open_patiently(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise AuditError(path, "is no file", hint="put the log back as it was written")
    return os.fdopen(descriptor, "rb")


def write(path: Path, data: bytes) -> None:
    """Write a file, and the folders above it, as `securefda.disk.write_file` does.

    Raises AuditError if it cannot be written; the old file is untouched.
    """
    with disk_errors(path, "written"):
        make_folder(path.parent)
        disk.write_file(path, data, FILE_MODE)


def publish(path: Path, public: Path) -> None:
    """Give a file that is on the disk a second name, where an older one may have been.

    The name itself is not forced: `securefda.audit.log.recover` puts it right. Where a file system knows no second
    names, it is a copy.

    Raises AuditError if it cannot be written; the old file is untouched.
    """
    passing = public.with_name(f".{public.name}.new")
    with disk_errors(public, "written"):
        try:
            passing.unlink(missing_ok=True)
            passing.hardlink_to(path)
        except OSError:
            disk.write_file(public, path.read_bytes(), FILE_MODE)
        else:
            passing.replace(public)


def remove_folder(path: Path) -> None:
    """Remove a folder of files, if there is one. Raises OSError."""
    if path.is_dir():
        for file in path.iterdir():
            file.unlink()
        path.rmdir()


def read_bundle(folder: Path, index: int, width: int = WIDTH) -> bytes | None:
    """Return the contents of an entry bundle; None if there is none. Raises AuditError."""
    return read(folder / merkle.bundle_path(index, width), merkle.MAX_BUNDLE_BYTES)


def read_tile(folder: Path, level: int, index: int, width: int = WIDTH) -> list[bytes]:
    """Return the first ``width`` hashes of a tile, from the partial tile or, if that is gone, from the full one.

    Raises AuditError if there is neither, or it has another length.
    """
    path = folder / merkle.tile_path(level, index, width)
    data = read(path, WIDTH * merkle.HASH_BYTES)
    if data is None and width < WIDTH:
        data = read(folder / merkle.tile_path(level, index), WIDTH * merkle.HASH_BYTES)
    try:
        hashes = merkle.hashes_of(data or b"")
    except ValueError as error:
        raise AuditError(path, "is missing, or no tile", hint="put the log back as it was written") from error
    if len(hashes) not in (width, WIDTH):
        raise AuditError(path, "has another width than its name", hint="put the log back as it was written")
    return hashes[:width]


def subtrees(folder: Path, size: int, unfinished: Mapping[str, bytes] = MappingProxyType({})) -> Subtree:
    """Hashes of complete subtrees of the first ``size`` leaves, which a checkpoint covers; what proofs are made of.

    The function raises AuditError where a tile is missing or has another length. That its hashes are right shows only
    when a proof that is made of them leads to a signed root. ``unfinished`` has tiles by path that are not on the disk.
    """

    @lru_cache(maxsize=32)
    def tile(level: int, index: int) -> list[bytes]:
        width = min(WIDTH, (size >> merkle.HEIGHT * level) - index * WIDTH)
        held = unfinished.get(merkle.tile_path(level, index, width))
        if held is not None:
            return merkle.hashes_of(held)
        return read_tile(folder, level, index, width)

    def subtree(height: int, index: int) -> bytes:
        level, above = divmod(height, merkle.HEIGHT)
        first = index << above
        hashes = tile(level, first // WIDTH)
        return merkle.complete_root(hashes[first % WIDTH : first % WIDTH + (1 << above)])

    return subtree


def root_at(folder: Path, size: int) -> bytes:
    """Root of the first ``size`` leaves, as the tiles have it. Raises AuditError."""
    return merkle.root_of(size, subtrees(folder, size))
