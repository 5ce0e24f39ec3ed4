"""The checkpoints of a log: all of them read and their signatures checked before any record is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from securefda.audit.findings import Finding, Kind
from securefda.audit.names import FORMAT, LogName, witness_name
from securefda.audit.notes import COSIGNATURE_V1, ED25519, MAX_NOTE_BYTES, Checkpoint, Note, NoteError, NoteKey
from securefda.audit.store import CHECKPOINT, CHECKPOINTS, AuditError, read

_NONE: Final = "has no checkpoint, so nothing is proved of it"


@dataclass(frozen=True, slots=True)
class Head:
    """A checkpoint whose signatures are right.

    Attributes:
        size: number of records that it signs.
        root: their root.
        witnesses: who cosigned it, sorted.
        kept: whether it lies in the log; else another site holds it.
    """

    size: int
    root: bytes
    witnesses: tuple[str, ...]
    kept: bool = True


class Unfit(Exception):
    """A checkpoint ends the verification: ``finding`` says why."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.what)
        self.finding = finding


class HeadReader:
    """Reads the checkpoints of one log.

    Args:
        name: whose log of which run it should be.
        keys: public key of every party, 32 bytes each, by site id; of ``name.party`` too.
    """

    def __init__(self, name: LogName, keys: Mapping[str, bytes]) -> None:
        self._name = name
        self._log_key = NoteKey(name.origin, ED25519, keys[name.party])
        self._witnesses = {
            NoteKey(witness_name(name.federation, party), COSIGNATURE_V1, key): party
            for party, key in keys.items()
            if party != name.party  # no site is a witness of itself
        }

    def read(self, folder: Path) -> list[Head]:
        """All checkpoints of a log, the smallest first; of the public one and its copy, that with more witnesses.

        Raises:
            Unfit: one cannot be read, is of another log, or is not signed as it says.
        """
        heads: list[Head] = []
        kept = folder / CHECKPOINTS
        try:
            names = [file.name for file in kept.iterdir()] if kept.is_dir() else []
        except OSError as error:
            raise _unfit("unreadable", 0, f"{CHECKPOINTS} cannot be read: {error.strerror}") from error
        for size in sorted(int(name) for name in names if len(name) == 16 and name.isascii() and name.isdecimal()):
            before = heads[-1].size if heads else 0
            head = self._read_one(folder / CHECKPOINTS / f"{size:016d}", before)
            if head.size != size:
                raise _unfit("replayed", before, f"the checkpoint of {size} records is one of {head.size}")
            heads.append(head)
        public = self._read_one(folder / CHECKPOINT, heads[-1].size if heads else 0)
        said = [(head.size, head.root) for head in heads]
        if (public.size, public.root) not in said:
            return sorted([*heads, public], key=lambda head: head.size)
        same = said.index((public.size, public.root))
        heads[same] = max(heads[same], public, key=lambda head: len(head.witnesses))
        return heads

    def known(self, notes: Sequence[bytes]) -> list[Head]:
        """Checkpoints of this log that others hold, the smallest first.

        Raises:
            ValueError: one is no checkpoint of this log that the party signed, so it proves nothing.
        """
        try:
            heads = [self._check(note, 0) for note in notes]
        except Unfit as error:
            raise ValueError(f"a checkpoint from outside proves nothing: {error}") from error
        return sorted((Head(head.size, head.root, head.witnesses, False) for head in heads), key=lambda head: head.size)

    def _read_one(self, path: Path, before: int) -> Head:
        try:
            data = read(path, MAX_NOTE_BYTES)
        except AuditError as error:
            raise _unfit("unreadable", before, error.what) from error
        if data is None:
            raise _unfit("unreadable", before, _NONE)
        return self._check(data, before)

    def _check(self, data: bytes, before: int) -> Head:
        try:
            note = Note.parse(data)
            head = Checkpoint.parse(note.text)
        except NoteError as error:
            raise _unfit("unreadable", before, f"a checkpoint is none: {error}") from error
        self._check_origin(head.origin, before)
        try:
            said = note.check([self._log_key, *self._witnesses])
        except NoteError as error:
            raise _unfit("bad-signature", before, f"the checkpoint of {head.size} records: {error}") from error
        if all(item.key != self._log_key for item in said):
            raise _unfit("bad-signature", before, f"the party did not sign the checkpoint of {head.size} records")
        witnesses = sorted(self._witnesses[item.key] for item in said if item.key != self._log_key)
        return Head(head.size, head.root, tuple(witnesses))

    def _check_origin(self, origin: str, before: int) -> None:
        if origin == self._name.origin:
            return
        try:
            other = LogName.parse(origin)
        except ValueError as error:
            words = origin.split("/")
            newer = len(words) > 1 and words[0] == "securefda" and words[1].isdecimal() and int(words[1][:9]) > FORMAT
            raise _unfit(
                "newer-version" if newer else "unreadable", before, "its origin is of no known form"
            ) from error
        if (other.federation, other.party) != (self._name.federation, self._name.party):
            raise _unfit("wrong-party", before, f"it is of {other.party} in federation {other.federation}")
        raise _unfit("replayed", before, f"it is of run {other.run}")


def _unfit(kind: Kind, before: int, what: str) -> Unfit:
    return Unfit(Finding(kind, before, exact=False, what=what))
