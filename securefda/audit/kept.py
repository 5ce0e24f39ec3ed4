"""The signed messages that a site keeps beside its log, verbatim: a record has their digest, and here is the evidence.

They are opaque here. A file of each round holds them one behind the other, each after its length in 4 bytes.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from securefda.audit.store import FILE_MODE, AuditError, disk_error, disk_errors, make_folder

FOLDER: Final = "messages"
MAX_KEPT_BYTES: Final = 64 * 1024 * 1024
"""Of one message; the largest frame that the transport can be set to."""
_LENGTH_BYTES = 4
_NAME = re.compile(r"round-([0-9]{4,16})\.bin")


class KeptMessages:
    """Writes the messages of one log.

    Args:
        folder: the log's.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder / FOLDER
        self._open: dict[int, int] = {}
        """Round -> file: the last round, and 0, to which messages come in between."""

    def keep(self, round_number: int, message: bytes) -> None:
        """Keep a message of a round, 0 for one outside rounds. It is not forced to the disk: the record of it may be.

        Raises:
            AuditError: it cannot be written.
        """
        data = len(message).to_bytes(_LENGTH_BYTES, "big") + message
        try:
            file = self._open.get(round_number, -1)
            if file < 0:
                file = self._open_file(round_number)
            if (written := os.write(file, data)) != len(data):
                os.ftruncate(file, os.fstat(file).st_size - written)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise disk_error(self._path(round_number), "written", error) from error

    def close(self) -> None:
        """Close the files."""
        for file in self._open.values():
            os.close(file)
        self._open.clear()

    def _path(self, round_number: int) -> Path:
        return self._folder / f"round-{round_number:04d}.bin"

    def _open_file(self, round_number: int) -> int:
        for other in [other for other in self._open if other and round_number]:
            os.close(self._open.pop(other))
        make_folder(self._folder)
        path = self._path(round_number)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        file = self._open[round_number] = os.open(path, flags, FILE_MODE)
        os.ftruncate(file, _whole_length(path))  # what a crash left of a message would spoil those behind it
        return file


def read_kept(folder: Path) -> Iterator[tuple[int, bytes]]:
    """The messages beside a log with their rounds, in the order of rounds; what a crash left of one that is not whole
    is left out.

    Raises:
        AuditError: a file cannot be read.
    """
    kept = folder / FOLDER
    if not kept.is_dir():
        return
    names = [(int(match[1]), file) for file in kept.iterdir() if (match := _NAME.fullmatch(file.name))]
    for round_number, path in sorted(names):
        with disk_errors(path, "read"), _regular(path) as file:
            while len(head := file.read(_LENGTH_BYTES)) == _LENGTH_BYTES:
                length = int.from_bytes(head, "big")
                if length == 0:  # what a file system leaves of what it lost
                    break
                if length > MAX_KEPT_BYTES:
                    raise AuditError(path, "holds no kept messages", hint="put the log back as it was written")
                message = file.read(length)
                if len(message) == length:
                    yield round_number, message


def _regular(path: Path) -> BinaryIO:
    """Open a file for reading; what is none, such as a pipe, is refused and not waited for."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise AuditError(path, "is no file", hint="put the log back as it was written")
    return os.fdopen(descriptor, "rb")


def _whole_length(path: Path) -> int:
    """Bytes of a file up to the end of its last whole message."""
    whole = 0
    with _regular(path) as file:
        end = os.fstat(file.fileno()).st_size
        while len(head := file.read(_LENGTH_BYTES)) == _LENGTH_BYTES:
            following = whole + _LENGTH_BYTES + int.from_bytes(head, "big")
            if following > end or following == whole + _LENGTH_BYTES:
                break
            whole = file.seek(following)
    return whole
