"""Files of a federation: private keys that only their owner can read, and writes that are whole or not at all."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from securefda import disk
from securefda.errors import ConfigError

write_file, make_folder = disk.write_file, disk.make_folder
SECRET_MODE = 0o600
PUBLIC_MODE = 0o444
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
