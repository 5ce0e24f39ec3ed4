"""T27: an insider at a site who changes its finished log."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from securefda.audit import signed_notes
from securefda.audit.log import AuditLog
from securefda.audit.log_files import CHECKPOINT, CHECKPOINTS, TAIL, checkpoint_path
from securefda.audit.log_records import Record
from securefda.audit.merkle import WIDTH, bundle_path, pack
from securefda.audit.reading import open_log
from securefda.audit.signed_notes import LogName, Note, witness_name
from threat_model.sites import NOON

Change = Callable[[list[bytes]], list[bytes]]
"""Makes other records of those of a log."""


def edits(index: int) -> Change:
    """Change the number of bytes in one record."""

    def change(records: list[bytes]) -> list[bytes]:
        old = records[index]
        new = old.replace(b'"bytes":', b'"bytes":1', 1) if b'"bytes":' in old else old.replace(b"1", b"2", 1)
        return [*records[:index], new, *records[index + 1 :]]

    return change


def deletes(index: int) -> Change:
    """Delete one record."""
    return lambda records: [*records[:index], *records[index + 1 :]]


def swaps(index: int) -> Change:
    """Swap a record with the next one."""
    return lambda records: [*records[:index], records[index + 1], records[index], *records[index + 2 :]]


def inserts(index: int) -> Change:
    """Insert the first record again before another one."""
    return lambda records: [*records[:index], records[0], *records[index:]]


def cuts(size: int) -> Change:
    """Cut everything after the first ``size`` records."""
    return lambda records: records[:size]


class LogInsider:
    """Changes the files of a log on the disk of its own site, when the run is over.

    Powers: reads and writes every file of the log, and knows how they hang together. With ``key`` it has the site's
    signing key as well, and with ``cosigners`` those of sites that side with it.
    Goal: a log that verifies and says something else of what left the site.
    Source: logs without a hash, or chained from record to record, as other systems keep them (Schneier and Kelsey 1999
    on what a chain alone leaves open).

    Args:
        folder: of the log.
        federation: its id.
    """

    threat = "T27"

    def __init__(self, folder: Path, federation: str) -> None:
        self.folder = folder
        log = open_log(folder)
        self.name = LogName(federation, log.party, log.run)
        self.records = [entry for _, entry in log.entries()]

    @property
    def sizes(self) -> list[int]:
        """The sizes of the checkpoints in the log, rising."""
        return sorted(int(file.name) for file in (self.folder / CHECKPOINTS).iterdir())

    def rewrites(self, change: Change, scratch: Path) -> None:
        """Replace the log's records, with matching tiles, under the old checkpoints."""
        made = self._written(change(list(self.records)), scratch, Ed25519PrivateKey.generate())
        for name in (TAIL, "tile"):
            self._take_over(made / name)

    def forges(
        self,
        change: Change,
        scratch: Path,
        key: Ed25519PrivateKey,
        cosigners: Mapping[str, Ed25519PrivateKey] | None = None,
    ) -> None:
        """Replace the log by one whose checkpoints the site's key and all its accomplices have signed."""
        made = self._written(change(list(self.records)), scratch, key)
        for file in (made / CHECKPOINT, *(made / CHECKPOINTS).iterdir()):
            note = Note.parse(file.read_bytes())
            for site, own in (cosigners or {}).items():
                note = note.signed(signed_notes.cosign(note.text, witness_name(self.name.federation, site), own, 1))
            file.unlink()  # the newest has two names
            file.write_bytes(note.to_bytes())
        for name in (TAIL, "tile", CHECKPOINT, CHECKPOINTS):
            self._take_over(made / name)

    def goes_back(self, size: int, scratch: Path) -> None:
        """Put back an earlier state: the records of an older checkpoint, with its signatures."""
        older = (self.folder / checkpoint_path(size)).read_bytes()
        for later in [one for one in self.sizes if one > size]:
            (self.folder / checkpoint_path(later)).unlink()
        (self.folder / CHECKPOINT).write_bytes(older)
        self.rewrites(cuts(size), scratch)

    def _written(self, records: Iterable[bytes], scratch: Path, key: Ed25519PrivateKey) -> Path:
        """Write a log of these records, each with its place, and with checkpoints of the same sizes."""
        sizes = self.sizes
        with AuditLog.open(scratch, self.name, key, lambda: NOON) as log:
            for record in records:
                log.append(Record.parse(record).entry)
                if log.size in sizes:
                    log.checkpoint()
            if log.size < sizes[-1]:
                log.checkpoint()
        return scratch / self.name.run

    def _take_over(self, made: Path) -> None:
        there = self.folder / made.name
        if there.is_dir():
            shutil.rmtree(there)
        shutil.move(made, there)


class RecordsAlone(LogInsider):
    """A :class:`LogInsider` that changes records and leaves every hash as it is."""

    def rewrites(self, change: Change, scratch: Path) -> None:
        """Change the records in all files that hold them; the log is shorter than a bundle."""
        del scratch
        records = change(list(self.records))
        if max(len(records), len(self.records)) >= WIDTH:
            raise ValueError("there is a full bundle")
        (self.folder / TAIL).write_bytes(b"".join(map(pack, records)))
        for part in (self.folder / f"{bundle_path(0)}.p").iterdir():
            part.write_bytes(b"".join(map(pack, records[: int(part.name)])))
