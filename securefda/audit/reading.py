"""Reads a log on disk: its owner, its records in sequence, and proofs that a record is in it.

It verifies no signature: `verify.verify_log` does that. It yields canonical records, each at the place that it claims,
all of one party and one run. Memory does not grow with the log. The log may be written meanwhile: a pass then yields
the beginning of the later log. Nothing here writes, or needs more than read permission.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from securefda.audit.log_files import (
    CHECKPOINT,
    LOCK,
    TAIL,
    AuditError,
    checkpoint_path,
    checkpoint_sizes,
    read,
    read_bundle,
    subtrees,
)
from securefda.audit.log_records import Entry, NewerVersion, Record, RecordError
from securefda.audit.merkle import (
    MAX_BUNDLE_BYTES,
    WIDTH,
    bundle_path,
    check_inclusion,
    inclusion_proof,
    leaf_hash,
    unpack,
)
from securefda.audit.signed_notes import FORMAT, MAX_NOTE_BYTES, Checkpoint, LogName, Note, NoteError
from securefda.errors import ExitCode
from securefda.formats import LOG

_VERIFY: Final = "securefda audit verify names what is wrong with the log"
_NAME_ONE: Final = "name the log of one run: KIT/local/audit/RUN"
_DEEPEST: Final = 64
"""Folders between a log and the place that is searched; one of a run folder has five."""


class NoLog(AuditError):
    """There is no log of this format that this process can read."""

    exit_code = ExitCode.CONFIG


class DamagedLog(AuditError):
    """A record cannot be read, or does not belong at its place; ``index`` is that place, 0-based."""

    exit_code = ExitCode.AUDIT

    def __init__(self, file: Path | str, index: int, what: str) -> None:
        super().__init__(file, f"record {index} {what}", hint=_VERIFY)
        self.index = index


@dataclass(frozen=True, slots=True)
class HeadNote:
    """A checkpoint as it lies in the log: the whole of it, and what its text says. Its signatures were not checked."""

    note: Note
    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True)
class Inclusion:
    """A proof that a record is in the tree of a checkpoint.

    Attributes:
        index: place of the record, 0-based.
        entry: its bytes.
        size: number of records that the checkpoint signs.
        root: root that it signs, 32 bytes.
        proof: the hashes from leaf to root (RFC 9162, 2.1.3.1), 32 bytes each.
    """

    index: int
    entry: bytes
    size: int
    root: bytes
    proof: tuple[bytes, ...]

    @property
    def leaf(self) -> bytes:
        """Hash of the record as a leaf, 32 bytes."""
        return leaf_hash(self.entry)

    def check(self) -> None:
        """Verify the proof in O(log size). Raises ProofError if it does not lead to the root."""
        check_inclusion(self.leaf, self.index, self.size, self.proof, self.root)


@dataclass(slots=True)
class RunEnd:
    """The end of a run according to the records seen so far: outcome and rounds of ``run-ended``; empty without one.

    A process that restarts after the end does not continue the run; only a round that continues does.
    """

    outcome: str = ""
    rounds: int = 0
    _started_again: bool = False

    def see(self, entry: Entry) -> None:
        """Take the next record."""
        if entry.type == "run-ended":
            self.outcome, self.rounds = str(entry.facts["outcome"]), int(str(entry.facts["rounds"]))
            self._started_again = False
        elif entry.type == "restarted":
            self._started_again = True
        elif self._started_again and entry.round:
            self.outcome = ""


@dataclass(frozen=True, slots=True)
class LogFolder:
    """The log in a folder, with the ids of its party, run and federation; `open_log` makes one.

    The federation is empty before the first checkpoint, where only the roster has it.
    """

    folder: Path
    party: str
    run: str
    federation: str

    def records(self, start: int = 0, end: int | None = None, *, holding: str = "") -> Iterator[Record]:
        """The records from place ``start`` to before ``end``, by default all that there are when the pass comes there.

        With ``holding``, only those whose bytes contain it: the others are not parsed, which is ten times as fast.
        What stands behind the last whole record is left out: the writer is about to finish it, or died.

        Raises:
            DamagedLog: a record is of another form, place, party or run, or its file cannot be read.
            NoLog: a later release wrote the record.
        """
        for index, entry in self.entries(start, end):
            if holding.encode() not in entry:
                continue
            try:
                record = Record.parse(entry)
            except NewerVersion as error:
                raise _newer(self.folder, f"has a record {index} of a later release: {error}") from error
            except RecordError as error:
                raise DamagedLog(self.folder, index, f"is not of the form that a record has: {error}") from error
            if (record.seq, record.party, record.run) != (index, self.party, self.run):
                what = f"says that it is number {record.seq} of {record.party} in run {record.run}"
                raise DamagedLog(self.folder, index, what)
            yield record

    def entries(self, start: int = 0, end: int | None = None) -> Iterator[tuple[int, bytes]]:
        """Places and bytes of the records, as `records`, without reading what they say. Raises DamagedLog."""
        index = start
        while end is None or index < end:
            try:
                data, full = _file_with(self.folder, index // WIDTH)
            except AuditError as error:
                raise DamagedLog(error.file, index, f"cannot be read: the file {error.what}") from error
            entries, taken = unpack(data)
            if full and (len(entries) != WIDTH or taken != len(data)):
                place = index // WIDTH * WIDTH + min(len(entries), WIDTH - 1)
                raise DamagedLog(self.folder / bundle_path(index // WIDTH), place, "is not whole, or not the last")
            for entry in entries[index % WIDTH : None if end is None else end - index // WIDTH * WIDTH]:
                yield index, entry
                index += 1
            if not full:
                return

    def entry(self, index: int) -> bytes | None:
        """Return the bytes of one record; None after the end. Raises DamagedLog."""
        return next((entry for _, entry in self.entries(index)), None)

    def record(self, index: int) -> Record | None:
        """Return one record as it says of itself; None after the end, or if it cannot be read."""
        try:
            entry = self.entry(index)
            return None if entry is None else Record.parse(entry)
        except (AuditError, RecordError):
            return None

    def size(self) -> int:
        """Number of whole records now. Only the last file is read. Raises DamagedLog if it cannot be."""
        bundles = 0
        while (self.folder / bundle_path(bundles)).is_file():
            bundles += 1
        return bundles * WIDTH + sum(1 for _ in self.entries(bundles * WIDTH))

    def head(self, size: int | None = None) -> HeadNote | None:
        """Return the newest checkpoint now, or that of ``size`` records; None if there is none. Raises AuditError."""
        kept = None if size is None else _read_head(self.folder / checkpoint_path(size))
        if kept is not None:
            return kept
        newest = _read_head(self.folder / CHECKPOINT)
        return newest if newest is None or size in (None, newest.checkpoint.size) else None

    def heads(self) -> tuple[int, ...]:
        """Sizes of all checkpoints that are kept in the log, rising. Raises AuditError."""
        return tuple(checkpoint_sizes(self.folder))

    def prove(self, index: int, size: int | None = None) -> Inclusion:
        """Prove that a record is in a checkpoint, from the tiles: O(log size) of them, and one file of records.

        Where tiles or the record were changed, `Inclusion.check` of the result fails.

        Args:
            index: place of the record.
            size: of the checkpoint, one of `heads`; the newest where not given.

        Raises AuditError if there is no such checkpoint, it does not cover the record, or a file cannot be read.
        """
        head = self.head(size)
        if head is None:
            raise AuditError(self.folder, "has no such checkpoint", hint="the party signs one in every round")
        signed = head.checkpoint
        if not 0 <= index < signed.size:
            hint = "a later checkpoint may cover it" if index >= 0 else "records are counted from 0"
            raise AuditError(
                self.folder, f"its checkpoint of {signed.size} records does not cover record {index}", hint=hint
            )
        entry = self.entry(index)
        if entry is None:
            raise DamagedLog(self.folder, index, "was signed and is not there")
        proof = inclusion_proof(index, signed.size, subtrees(self.folder, signed.size))
        return Inclusion(index, entry, signed.size, signed.root, proof)


def open_log(folder: Path) -> LogFolder:
    """Find out whose log lies in a folder: its checkpoint says, or before the first one its first record.

    Raises:
        NoLog: there is none, nothing was written yet, it is another program's or a later release's, or the folder
            cannot be read.
        DamagedLog: neither checkpoint nor first record can be read.
    """
    _check_folder(folder)
    try:
        return _by_checkpoint(folder) or _by_record(folder)
    except NoLog:
        raise
    except AuditError as error:  # what is wrong with the checkpoint is for verify to say: who is it, all the same?
        try:
            return _by_record(folder)
        except AuditError:
            raise DamagedLog(error.file, 0, f"cannot be read: the file {error.what}") from error


def events_in(folder: Path, kind: str) -> Iterator[Record]:
    """The events of one kind in a log; none if there is no log, or nothing in it yet. Raises AuditError."""
    try:
        log = open_log(folder)
    except NoLog:
        return
    yield from (record for record in log.records(holding=kind) if record.entry.type == kind)


def looks_like_log(folder: Path) -> bool:
    """Tell whether a folder has the files of a log; whether they are good is another question. Raises OSError."""
    return (folder / CHECKPOINT).is_file() or (folder / TAIL).is_file() or (folder / "tile" / "entries").is_dir()


def find_logs(root: Path) -> list[Path]:
    """The folders at or below ``root`` that look like logs, sorted; links and deeply nested folders are not followed.

    Raises NoLog if ``root`` is no folder, or one below cannot be read.
    """
    if not root.is_dir():
        raise NoLog(root, "is no folder", hint="name a folder with logs in it")
    logs, left = [], [(root, 0)]
    while left:
        folder, depth = left.pop()
        try:
            if looks_like_log(folder):
                logs.append(folder)
            elif depth < _DEEPEST:
                with os.scandir(folder) as files:
                    left += [(folder / file.name, depth + 1) for file in files if file.is_dir(follow_symlinks=False)]
        except OSError as error:
            raise NoLog(folder, f"cannot be read: {error.strerror}", hint="check the permissions") from error
    return sorted(logs)


def logs_at(place: Path, run: str = "") -> list[Path]:
    """The logs that a user means by a log, a kit, any folder with logs in it, or a log with a shortened run id.

    Args:
        place: what the user named. Its last part may be the beginning of a run id.
        run: only logs of the run whose id begins like this.

    Raises NoLog if there is none, or the beginning is of several runs; the hint lists what there is.
    """
    try:
        if not place.exists() and place.parent.is_dir():
            place = _with_whole_name(place)
        logs = [place] if not place.is_dir() or looks_like_log(place) else find_logs(place)
    except OSError as error:
        raise NoLog(place, f"cannot be read: {error.strerror}", hint="check the folder's permissions") from error
    if not logs:
        _check_folder(place)
    runs = {log: _run_of(log) for log in logs} if run else {}
    wanted = sorted({name for name in runs.values() if name.startswith(run)})
    if run and len(wanted) != 1:
        there = f"there are {', '.join(wanted or sorted(set(runs.values())))}"
        what = f"has logs of {len(wanted)} runs that begin with {run}" if wanted else f"has no log of run {run}"
        raise NoLog(place, what, hint=there)
    return [log for log in logs if not run or runs[log] == wanted[0]]


def _with_whole_name(place: Path) -> Path:
    """Return the log whose folder name begins with the last part of a path; the path if no log is beside it."""
    logs = [file for file in sorted(place.parent.iterdir()) if looks_like_log(file)]
    meant = [file for file in logs if file.name.startswith(place.name)]
    if len(meant) == 1 or not logs:
        return meant[0] if meant else place
    what = f"is the beginning of {len(meant)} runs" if meant else "is not there"
    raise NoLog(place, what, hint=f"there are {', '.join(file.name for file in meant or logs)}")


def log_at(place: Path, run: str = "") -> Path:
    """Return the one log that a user means. Arguments and errors as of `logs_at`; several logs raise NoLog too."""
    logs = logs_at(place, run)
    if len(logs) > 1:
        runs = sorted({_run_of(log) for log in logs})
        hint = f"name one: --run {runs[-1][:12]}" if len(runs) == len(logs) else f"name one, such as {logs[0]}"
        listed = f"of the runs {', '.join(runs)}" if len(runs) > 1 else f"of run {runs[0]}"
        raise NoLog(place, f"has {len(logs)} logs in it, {listed}", hint=hint)
    return logs[0]


def _run_of(folder: Path) -> str:
    """Return the run id of a log, or the name of its folder if the log does not state one."""
    try:
        return open_log(folder).run
    except AuditError:
        return folder.name


def being_written(folder: Path) -> bool:
    """Tell whether a process on this machine has the log open for writing now.

    A writer that opens the log in the very moment of the question is refused as by another writer: ask rarely. A lock
    that cannot be opened, such as a link in a copy, is none that a writer holds as far as this process can know.
    """
    try:
        lock = os.open(folder / LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # the file system knows no locks
        return False
    finally:
        os.close(lock)
    return False


_PART_OF_A_RUN_ID = re.compile("[0-9a-f]{4,32}")


def _check_folder(folder: Path) -> None:
    try:
        if not folder.exists():
            hint = "a run makes its log when it begins, in KIT/local/audit/RUN"
            if _PART_OF_A_RUN_ID.fullmatch(str(folder)):
                hint = f"name a kit or a folder of logs, and the run behind it: --run {folder}"
            raise NoLog(folder, "is not there", hint=hint)
        if not folder.is_dir():
            raise NoLog(folder, "is a file, not the folder of a log", hint=_NAME_ONE)
        list(folder.iterdir())
        if not looks_like_log(folder):
            below = sorted(file.name for file in folder.iterdir() if file.is_dir() and looks_like_log(file))
            hint = f"it has logs in it: name {folder / below[-1]}" if below else _NAME_ONE
            raise NoLog(folder, "is not the log of a run", hint=hint)
    except OSError as error:
        raise NoLog(folder, f"cannot be read: {error.strerror}", hint="check the folder's permissions") from error


def _by_checkpoint(folder: Path) -> LogFolder | None:
    head = _read_head(folder / CHECKPOINT)
    if head is None:
        return None
    words = head.checkpoint.origin.split("/")
    try:
        ours = words[0] == "securefda" and int(words[1]) > 0
        if ours and int(words[1]) > FORMAT:
            raise _newer(folder, LOG.why_not(int(words[1])))
        name = LogName.parse(head.checkpoint.origin)
    except (ValueError, IndexError) as error:
        what = f"is a log of something else: its origin is {head.checkpoint.origin[:80]!r}"
        raise NoLog(folder, what, hint=_NAME_ONE) from error
    return LogFolder(folder, name.party, name.run, name.federation)


def _by_record(folder: Path) -> LogFolder:
    entry = LogFolder(folder, "", "", "").entry(0)
    if entry is None:
        raise NoLog(folder, "has no record yet", hint="look again when the run has begun")
    try:
        record = Record.parse(entry)
    except NewerVersion as error:
        raise _newer(folder, f"has a record 0 of a later release: {error}") from error
    except RecordError as error:
        raise NoLog(folder, f"has no record of an audit log: {error}", hint=_NAME_ONE) from error
    return LogFolder(folder, record.party, record.run, "")


def _file_with(folder: Path, number: int) -> tuple[bytes, bool]:
    """Return the file with the records of tile ``number``, and whether it is a full bundle. Raises AuditError."""
    data = read_bundle(folder, number)
    if data is not None:
        return data, True
    if number and not (folder / bundle_path(number - 1)).exists():
        return b"", False  # behind the end: the tail is of another tile
    tail = read(folder / TAIL, MAX_BUNDLE_BYTES)
    if tail is None:  # a copy for others has no tail: it ends with what the checkpoint covers
        head = _read_head(folder / CHECKPOINT)
        full, width = divmod(head.checkpoint.size, WIDTH) if head is not None else (0, 0)
        tail = read_bundle(folder, number, width) if width and full == number else None
    # The tail may have become this bundle, and another tail begun, before it was read.
    data = read_bundle(folder, number)
    return (tail or b"", False) if data is None else (data, True)


def _read_head(path: Path) -> HeadNote | None:
    data = read(path, MAX_NOTE_BYTES)
    if data is None:
        return None
    try:
        note = Note.parse(data)
        return HeadNote(note, Checkpoint.parse(note.text))
    except NoteError as error:
        raise AuditError(path, f"is no checkpoint: {error}", hint=_VERIFY) from error


def _newer(folder: Path, what: str) -> NoLog:
    return NoLog(folder, what, hint="read it with that release of securefda")
