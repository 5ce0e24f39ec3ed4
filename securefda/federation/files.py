"""Files of a federation: private keys that only their owner can read, and writes that are whole or not at all."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from securefda.disk import sync_folder
from securefda.errors import ConfigError

SECRET_MODE = 0o600
PUBLIC_MODE = 0o444
FOLDER_MODE = 0o700
MAX_FILE_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class FileContent:
    """The bytes of one file and its permission bits, both read through the same descriptor."""

    data: bytes
    mode: int

    def __repr__(self) -> str:
        return f"FileContent({len(self.data)} bytes, mode {self.mode:o})"  # it may be a private key


def read_file(path: Path, *, limit: int = MAX_FILE_BYTES) -> FileContent:
    """Read a small regular file of at most ``limit`` bytes.

    Raises:
        ConfigError: it is missing, unreadable, no regular file, or larger.
    """
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ConfigError(str(path), "is not a file")
            data = file.read(limit + 1)
    except FileNotFoundError:
        raise ConfigError(str(path), "is missing", hint="check the path, or fetch the startup kit again") from None
    except OSError as error:
        raise ConfigError(str(path), f"cannot be read: {error.strerror}") from error
    if len(data) > limit:
        raise ConfigError(str(path), f"is larger than {limit} bytes")
    return FileContent(data, stat.S_IMODE(status.st_mode))


def check_secret_mode(name: str, content: FileContent) -> None:
    """Refuse a private key that anyone but its owner could read or change.

    Raises:
        ConfigError: a permission bit of group or others is set.
    """
    if content.mode & 0o077:
        raise ConfigError(
            name, f"is open to others (mode {content.mode:04o}, must be 0600)", hint=f"run: chmod 600 {name}"
        )


def write_file(path: Path, data: bytes, mode: int) -> None:
    """Write a file with this mode so that readers, and a machine that loses power, find the old contents or the new.

    The new contents are on the disk, under their name, when this returns.

    Raises:
        OSError: the disk is full, or the folder is missing or not writable; the old file is untouched.
    """
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    # The mode is set at creation: a key is at no moment open to others.
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def make_folder(path: Path) -> None:
    """Make a folder, with those above it, that only its owner can enter; one that exists keeps its mode.

    Raises:
        OSError: it cannot be made.
    """
    # Not mkdir(parents=True): that gives the folders above the default mode.
    for folder in (*reversed(path.parents), path):
        folder.mkdir(mode=FOLDER_MODE, exist_ok=True)


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
