"""What lies around a ledger's file, and tells a copy, an old backup or a deleted one from the ledger itself.

The file system's own number of the file is written into the ledger: a copy is another file. The number of rows, and
the digest of the last, stand in the *name* of an empty file beside it: copying an old folder over a newer one brings
back old rows, and cannot take away a newer name. Whoever can delete names in the folder can undo this; the head that
an audit log recorded finds that too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from securefda.disk import file_number, sync_folder
from securefda.dp.ledger_rows import Doubt, Head, Row

_MODE = 0o600
_MARKER = re.compile(r"(.+\.sqlite)\.rows-0*[1-9][0-9]*-[0-9a-f]{16}")
"""Of a ledger that has rows, whether its file is there or not."""


def make_file(path: Path) -> None:
    """Make the file where there is none, on the disk under its name; only its owner can read it. Raises OSError."""
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, _MODE))
    sync_folder(path.parent)


def number_of(path: Path) -> str:
    """What the file system calls this file: stays when it is renamed or written, differs for every copy.

    No SQLite connection of this process may have the file open: closing a descriptor would drop its locks.

    Raises:
        OSError: the file is missing or cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return file_number(descriptor)
    finally:
        os.close(descriptor)


def ledgers_of(folder: Path) -> list[Path]:
    """Ledgers that are in a folder, or were: a deleted one leaves the marker of its rows. Raises OSError."""
    if not folder.is_dir():
        return []
    names = {path.name for path in folder.glob("*.sqlite")}
    names |= {match.group(1) for path in folder.iterdir() if (match := _MARKER.fullmatch(path.name))}
    return [folder / name for name in sorted(names)]


class RowMarkers:
    """Empty files ``LEDGER.rows-COUNT-DIGEST`` beside a ledger; the highest counts.

    A process makes its own before it removes lower ones and never touches a higher, so several can do so at once.
    """

    def __init__(self, ledger: Path) -> None:
        self._ledger = ledger
        self._name = re.compile(re.escape(ledger.name) + r"\.rows-([0-9]{1,12})-([0-9a-f]{16})")

    def highest(self) -> tuple[int, str] | None:
        """Count and start of the digest of the highest; None where there is none. Raises OSError."""
        return max(self._all(), default=None)

    def doubt(self, highest: tuple[int, str] | None, rows: Sequence[Row]) -> Doubt:
        """Say what is wrong with rows that were read after ``highest`` was."""
        if highest is None:
            return Doubt("lies here without its marker, so it may be an old copy")
        count, digest = highest
        if count > len(rows):
            missing = f"it has {len(rows)} rows of {count}, {count - len(rows)} are missing"
            return Doubt(f"is older than its folder: {missing}", lacks_rows=True)
        if count and rows[count - 1].digest.hex()[:16] != digest:
            return Doubt(f"was written anew: its row {count} is not the one that was there", lacks_rows=True)
        return Doubt()

    def advance(self, head: Head) -> None:
        """Say that the ledger has these rows; on the disk when this returns. Raises OSError."""
        self._make(head)
        self._remove([marker for marker in self._all() if marker[0] < head.count])

    def replace(self, head: Head) -> None:
        """Say so against all others: only where the site has signed that it goes on with this. Raises OSError."""
        self._make(head)
        self._remove([marker for marker in self._all() if marker != _short(head)])

    def _make(self, head: Head) -> None:
        os.close(os.open(self._path(_short(head)), os.O_CREAT | os.O_WRONLY, _MODE))
        sync_folder(self._ledger.parent)

    def _remove(self, markers: Sequence[tuple[int, str]]) -> None:
        for marker in markers:
            self._path(marker).unlink(missing_ok=True)  # another process may have done so
        sync_folder(self._ledger.parent)

    def _all(self) -> list[tuple[int, str]]:
        matches = (self._name.fullmatch(entry) for entry in os.listdir(self._ledger.parent))  # noqa: PTH208 - names
        return [(int(match.group(1)), match.group(2)) for match in matches if match]

    def _path(self, marker: tuple[int, str]) -> Path:
        return self._ledger.with_name(f"{self._ledger.name}.rows-{marker[0]}-{marker[1]}")


def _short(head: Head) -> tuple[int, str]:
    return head.count, head.digest.hex()[:16]
