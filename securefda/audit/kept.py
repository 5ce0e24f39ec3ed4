"""The signed messages that a site keeps beside its log, verbatim: a record has their digest, and here is the evidence.

They are opaque here. One file holds them one behind the other, each after its length in 4 bytes. A file that does not
end with a whole message, as after a crash, is put aside before the next one is kept, and read with the others.
"""

from __future__ import annotations

import errno
import math
import os
import re
import stat
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import BinaryIO, Final

from securefda.audit.store import FILE_MODE, AuditError, disk_error, disk_errors, make_folder

FILE: Final = "messages.bin"
MAX_KEPT_BYTES: Final = 64 * 1024 * 1024
"""Of one message; the largest frame that the transport can be set to."""
_LENGTH_BYTES = 4
_NAME = re.compile(r"messages(?:-([0-9]{4,16}))?\.bin")


class KeptMessages:
    """Writes the messages of one log.

    Args:
        folder: the log's.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._file = -1

    def keep(self, message: bytes) -> None:
        """Keep a message. It is not forced to the disk: the record of it may be.

        Raises:
            AuditError: it cannot be written.
        """
        data = len(message).to_bytes(_LENGTH_BYTES, "big") + message
        try:
            if self._file < 0:
                self._open()
            if (written := os.write(self._file, data)) != len(data):
                os.ftruncate(self._file, os.fstat(self._file).st_size - written)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise disk_error(self._path, "written", error) from error

    def close(self) -> None:
        """Close the file; the next message opens it again."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _open(self) -> None:
        make_folder(self._path.parent)
        if not _ends_whole(self._path):  # what a crash left of one would spoil those behind it
            names = (self._path.with_name(f"messages-{number:04d}.bin") for number in count(1))
            self._path.rename(next(name for name in names if not os.path.lexists(name)))
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        self._file = os.open(self._path, flags, FILE_MODE)


def read_kept(folder: Path) -> Iterator[bytes]:
    """The messages beside a log as they came; what a crash left of one that is not whole is left out.

    Raises:
        AuditError: a file cannot be read, or holds something else; not before the others are read.
    """
    fault = None
    for path in _files(folder):
        try:
            yield from _read(path)
        except AuditError as error:
            fault = fault or error
    if fault is not None:
        raise fault


def _files(folder: Path) -> list[Path]:
    """Those that were put aside, in their order, and the last one."""
    with disk_errors(folder, "read"):
        files = list(folder.iterdir()) if folder.is_dir() else []
    numbered = [
        (int(found[1]) if found[1] else math.inf, file) for file in files if (found := _NAME.fullmatch(file.name))
    ]
    return [file for _, file in sorted(numbered)]


def _read(path: Path) -> Iterator[bytes]:
    with disk_errors(path, "read"), _regular(path) as file:
        while len(head := file.read(_LENGTH_BYTES)) == _LENGTH_BYTES:
            length = int.from_bytes(head, "big")
            if length == 0:  # what a file system leaves of what it lost
                break
            if length > MAX_KEPT_BYTES:
                raise AuditError(path, "holds no kept messages", hint="put the log back as it was written")
            message = file.read(length)
            if len(message) == length:
                yield message


def _regular(path: Path) -> BinaryIO:
    """Open a file for reading; what is none, such as a pipe, is refused and not waited for."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise AuditError(path, "is no file", hint="put the log back as it was written")
    return os.fdopen(descriptor, "rb")


def _ends_whole(path: Path) -> bool:
    """Whether a file is whole messages and nothing else; one that is not there is."""
    try:
        file = _regular(path)
    except FileNotFoundError:
        return True
    with file:
        end, at = os.fstat(file.fileno()).st_size, 0
        while len(head := file.read(_LENGTH_BYTES)) == _LENGTH_BYTES and (length := int.from_bytes(head, "big")):
            at = file.seek(at + _LENGTH_BYTES + length)
        return at == end
