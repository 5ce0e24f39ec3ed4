"""Keeps signed messages verbatim beside a site's log. A record has only a message's digest; the copy is the evidence.

This module does not look into the messages. One file holds them in sequence, each after its length in 4 bytes. A file
that does not end with a whole message, as after a crash, is put aside before the next message is kept. Readers read
all these files.

A message is kept right after its record was written, and is on the disk before a checkpoint of that record is shown to
anybody. So a kill can leave one record without its message, and a power cut several: the last ones before the log ends
or continues with ``restarted``, and none that a checkpoint covers. `kept_check` compares messages and records.
"""

from __future__ import annotations

import errno
import math
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import BinaryIO, Final

from securefda.audit.log_files import FILE_MODE, AuditError, disk_error, disk_errors, make_folder, open_regular
from securefda.disk import open_patiently, sync_folder

FILE: Final = "messages.bin"
MAX_KEPT_BYTES: Final = 64 * 1024 * 1024
"""Largest size of one message: the largest frame that the transport can be set to."""
MOST_KEPT_BYTES: Final = 8 * 1024 * 1024
"""Most bytes kept from one other site per attempt. An honest site among 1000 others sends less than a tenth of it."""
MOST_DAMAGED: Final = 1000
"""Pieces of files that are no messages, after which an audit reads no more of them. Each could be of one byte."""
NOT_KEPT: Final = frozenset({"ShareBundle", "ShareDelivery", "Unmask"})
"""Message types that are not kept, though the log has their digests: they hold shares."""
KEPT_BY_READER: Final = frozenset({"Neighbours", "NeighbourConsistency"})
"""Message types that only their reader keeps, for its receipts: they repeat to each neighbour what others have signed.
Logs of earlier releases lack them."""
_LENGTH_BYTES = 4
_NAME = re.compile(r"messages(?:-([0-9]{4,16}))?\.bin")


def is_kept(kind: str, *, sent: bool) -> bool:
    """Whether a site keeps a message of this type that it sent, or received."""
    return kind not in NOT_KEPT and not (sent and kind in KEPT_BY_READER)


class KeptMessages:
    """Writes the messages of one log. After a disk error it keeps no more, so that no gap is followed by messages.

    Args:
        folder: the folder of the log.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._file = -1
        self._error: OSError | None = None
        self._is_on_disk, self._is_new = True, False

    def keep(self, message: bytes) -> None:
        """Keep a message. It is on the disk only after `sync` or `close`.

        Raises AuditError if the message cannot be written.
        """
        data = len(message).to_bytes(_LENGTH_BYTES, "big") + message
        try:
            self._require_no_error()
            if self._file < 0:
                self._open()
            self._is_on_disk = False
            if (written := os.write(self._file, data)) != len(data):
                os.ftruncate(self._file, os.fstat(self._file).st_size - written)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            self._error = error
            raise disk_error(self._path, "written", error) from error

    def sync(self) -> None:
        """Force the kept messages and the name of their file to the disk. Raises AuditError."""
        if self._is_on_disk and self._error is None:
            return
        try:
            self._require_no_error()
            os.fsync(self._file)
            if self._is_new:
                sync_folder(self._path.parent)
        except OSError as error:
            self._error = error
            raise disk_error(self._path, "written", error) from error
        self._is_on_disk, self._is_new = True, False

    def close(self) -> None:
        """Close the file, after forcing it to the disk if possible. The next message opens it again."""
        if self._file >= 0:
            with suppress(AuditError):
                self.sync()
            os.close(self._file)
            self._file, self._is_on_disk = -1, True

    def _require_no_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _open(self) -> None:
        make_folder(self._path.parent)
        if not _ends_whole(self._path):  # the fragment of a message would spoil those after it
            names = (self._path.with_name(f"messages-{number:04d}.bin") for number in count(1))
            self._path.rename(next(name for name in names if not os.path.lexists(name)))
        self._is_new = not self._path.exists()
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        self._file = open_patiently(self._path, flags, FILE_MODE)


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of a file of kept messages.

    Attributes:
        file: the name of the file.
        offset: where the piece begins, in bytes.
        message: the message as it was kept; empty if no whole message begins here.
        rest: if there is no message, the number of bytes up to the end of the file; else 0.
        is_torn: whether these bytes are what a crash leaves: the beginning of a message, or zeros.
    """

    file: str
    offset: int
    message: bytes = field(default=b"", repr=False)
    rest: int = 0
    is_torn: bool = False

    @property
    def place(self) -> str:
        """The position of the piece, in words."""
        return f"byte {self.offset} of {self.file}"


def read_kept(folder: Path) -> Iterator[bytes]:
    """Yield the messages beside a log in the order in which they were kept, without fragments that a crash left.

    Raises AuditError if a file cannot be read, or holds something else. It is raised after all other files are read.
    """
    fault = None
    for path in kept_files(folder):
        try:
            for piece in read_pieces(path):
                if piece.message:
                    yield piece.message
                elif not piece.is_torn:
                    raise AuditError(path, "holds no kept messages", hint="put the log back as it was written")
        except AuditError as error:
            fault = fault or error
    if fault is not None:
        raise fault


def read_pieces(path: Path) -> Iterator[Piece]:
    """Yield the messages in one file, and any bytes after the last whole message. Raises AuditError."""
    with disk_errors(path, "read"), open_regular(path) as file:
        end, at = os.fstat(file.fileno()).st_size, 0
        while at < end:
            head = file.read(_LENGTH_BYTES)
            length = int.from_bytes(head, "big")
            whole = len(head) == _LENGTH_BYTES and 0 < length <= MAX_KEPT_BYTES
            message = file.read(length) if whole and at + _LENGTH_BYTES + length <= end else b""
            if not message:
                rest = end - at
                is_short = length <= MAX_KEPT_BYTES or len(head) < _LENGTH_BYTES
                is_torn = rest <= MAX_KEPT_BYTES and is_short and (length > 0 or _is_zero(file))
                yield Piece(path.name, at, rest=rest, is_torn=is_torn)
                return
            yield Piece(path.name, at, message)
            at += _LENGTH_BYTES + length


def kept_files(folder: Path) -> list[Path]:
    """Return the files of kept messages beside a log: those that were put aside, in order, and then the current one.

    Raises AuditError if the folder cannot be read.
    """
    with disk_errors(folder, "read"):
        files = list(folder.iterdir()) if folder.is_dir() else []
    numbered = [(int(name[1]) if name[1] else math.inf, file) for file in files if (name := _NAME.fullmatch(file.name))]
    return [file for _, file in sorted(numbered)]


def _is_zero(file: BinaryIO) -> bool:
    """Return whether the rest of a file is zeros, as a file system leaves where it lost data."""
    return not any(any(block) for block in iter(lambda: file.read(1 << 20), b""))


def _ends_whole(path: Path) -> bool:
    """Return whether a file contains whole messages and nothing else, or does not exist."""
    try:
        file = open_regular(path)
    except FileNotFoundError:
        return True
    with file:
        end, at = os.fstat(file.fileno()).st_size, 0
        while len(head := file.read(_LENGTH_BYTES)) == _LENGTH_BYTES and (length := int.from_bytes(head, "big")):
            at = file.seek(at + _LENGTH_BYTES + length)
        return at == end
