"""One party's log of one run. A record is appended before its message leaves, and checkpoints sign the records.

A record is in its file when `AuditLog.append` returns. It is on the disk then if the caller asked for that, otherwise
with the next checkpoint. A process that dies leaves at most one incomplete record. `recover` cuts it off when the log
is opened again, unless a checkpoint covers it: no crash can have cut that record.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from securefda.audit import log_files, merkle
from securefda.audit.log_files import AuditError
from securefda.audit.log_records import Entry, Record, RecordError, encode_record, format_time
from securefda.audit.merkle import WIDTH, Levels, Tile
from securefda.audit.signed_notes import (
    MAX_NOTE_BYTES,
    Checkpoint,
    LogName,
    Note,
    NoteError,
    NoteKey,
    Signature,
    SignatureError,
    check_signature,
    sign,
)
from securefda.disk import open_patiently, sync_folder


class AuditLog:
    """The only writer of a log. Make one with `open`.

    Several threads may append. After a disk error or a fork of the process the object is dead; a log that is opened
    again continues after the last whole record.
    """

    def __init__(self, folder: Path, name: LogName, key: Ed25519PrivateKey, clock: Callable[[], datetime]) -> None:
        self._folder, self._name, self._key, self._clock = folder, name, key, clock
        self._mutex = threading.Lock()
        self._process = os.getpid()
        self._usable, self._tail, self._saved = True, -1, True
        self._died_of: AuditError | None = None
        self._unfinished: dict[str, bytes] = {}
        self._proofs: dict[int, tuple[bytes, ...]] = {}
        with log_files.disk_errors(folder, "made"):
            log_files.make_folder(folder)
        path = self._folder / log_files.LOCK
        with log_files.disk_errors(path, "opened"):
            lock = open_patiently(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, log_files.FILE_MODE)
            # Two writers would each sign a tree of their own, which is a fork by the site's own key.
            if not _locked(lock):
                os.close(lock)
                hint = "end the other process, or let this one take part in another run"
                raise AuditError(self._folder, "is being written by another process", hint=hint)
        self._lock = lock
        try:
            # Before the tail is opened for writing: the first write would hide what was wrong with it.
            self._state: State = recover(folder, name, key.public_key())
            self._tail = self._open_tail()
            if self._state.full:  # the process died between the last record of a bundle and its name
                self._finish_bundle(self._state.full)
        except BaseException:
            self._die()
            raise

    @classmethod
    def open(cls, parent: Path, name: LogName, key: Ed25519PrivateKey, clock: Callable[[], datetime]) -> AuditLog:
        """Begin or continue the log of a run.

        Args:
            parent: the folder with the party's logs; the log of this run has a subfolder named like it, of mode 0700.
            name: the federation, party and run of the log.
            key: the party's signing key.
            clock: returns the current time with its time zone.

        Raises:
            AuditError: another process writes the log; others could read it; the folder holds another log; the log is
                shorter than its checkpoint, or is not what the checkpoint signed; a file cannot be read or written.
        """
        return cls(parent / name.run, name, key, clock)

    @property
    def size(self) -> int:
        """The number of records."""
        return self._state.levels.size

    @property
    def lost_bytes(self) -> int:
        """The number of bytes of an incomplete record that were cut off when the log was opened."""
        return self._state.lost_bytes

    def append(self, entry: Entry, *, durable: bool = False) -> int:
        """Write a record of something that happened or is about to happen.

        Args:
            entry: the entry to record.
            durable: whether the record must be on the disk when this returns, as for releases.

        Returns:
            The 0-based place of the record in the log.

        Raises:
            AuditError: the record, or a file that depends on it, could not be written; its event must not happen.
            RecordError: the entry is too long for a record.
        """
        self._require_no_fork()
        with self._mutex:  # without `_alone` and `_dead_on_error`: our own context managers cost as much as the write
            self._require_usable()
            seq = self._state.levels.size
            record = encode_record(seq, format_time(self._clock()), self._name.party, self._name.run, entry)
            try:
                self._write_tail(merkle.pack(record), durable=durable)
                if full := self._state.levels.append(merkle.leaf_hash(record)):
                    self._finish_bundle(full)
            except BaseException as error:
                self._die_of(error)
                raise
            return seq

    def checkpoint(self, *, save: bool = True) -> bytes:
        """Sign the log as it is, and return the note. All records are on the disk then.

        If no record was added since the last checkpoint, that one is returned, with the cosignatures that it has.

        Args:
            save: whether to write the note to the disk now. Otherwise `save`, the next checkpoint or `close` writes it.
                Others may have it before that, since the records that it signs can no longer be lost.

        Raises AuditError if the records or the note could not be written.
        """
        with self._alone(), self._dead_on_error():
            if self._signed_size != self.size:
                self._save()
                self._sign_head()
            if save:
                self._save()
            note, _ = self._last
            return note.to_bytes()

    def proof(self, old: int) -> tuple[bytes, ...]:
        """Prove that the tree of the last checkpoint begins with its first ``old`` leaves (RFC 9162, 2.1.4.1).

        Raises:
            AuditError: a tile cannot be read, or there is no checkpoint.
            ValueError: the checkpoint has fewer leaves.
        """
        with self._alone():
            if old not in self._proofs:  # most witnesses have seen the same checkpoint last
                size = self._last[1].size
                self._proofs[old] = merkle.consistency_proof(
                    old, size, log_files.subtrees(self._folder, size, self._unfinished)
                )
            return self._proofs[old]

    def save(self) -> None:
        """Save the last checkpoint, with its cosignatures and its tiles, to the disk. Raises AuditError."""
        with self._alone(), self._dead_on_error():
            self._save()

    def add_cosignature(self, size: int, signature: Signature, witness: NoteKey, *, save: bool = True) -> Note:
        """Add the signature of a witness to the checkpoint of ``size`` records, and return the note with it.

        If this witness has signed that checkpoint before, the earlier signature stays and this one is dropped. ``save``
        is as for `checkpoint` and applies to the last checkpoint; an older one is written at once.

        Raises:
            SignatureError: the signature is not of this key over that checkpoint.
            AuditError: there is no such checkpoint, or it could not be written.
        """
        with self._alone():
            is_last = size == self._signed_size
            note = self._last[0] if is_last else read_checkpoint(self._folder / log_files.checkpoint_path(size))
            if note is None:
                raise AuditError(self._folder, f"has no checkpoint of {size} records", hint="send a checkpoint first")
            if not signature.is_of(witness):
                raise SignatureError(f"the line does not name the key of {witness.name}")
            check_signature(note.text, signature, witness)
            if any(line.fits(witness) for line in note.signatures):
                return note
            note = note.signed(signature)
            with self._dead_on_error():
                if is_last:
                    self._state.last, self._saved = (note, self._last[1]), False
                else:
                    log_files.write(self._folder / log_files.checkpoint_path(size), note.to_bytes())
                if save:
                    self._save()
            return note

    def close(self) -> None:
        """Close the log, so that another process can write it. Records stay, and no checkpoint is made.

        An unsaved checkpoint is saved if the disk allows it; otherwise the next checkpoint covers its records.
        """
        with self._mutex:
            if self._usable and os.getpid() == self._process:
                with suppress(AuditError):
                    self._save()
                    self._tidy()
            self._die()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _open_tail(self) -> int:
        path = self._folder / log_files.TAIL
        with log_files.disk_errors(path, "opened"):
            tail = open_patiently(
                path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, log_files.FILE_MODE
            )
            os.ftruncate(tail, self._state.tail_bytes)
            sync_folder(self._folder)
        return tail

    def _write_tail(self, data: bytes, *, durable: bool) -> None:
        before = self._state.tail_bytes
        try:
            written = os.write(self._tail, data)
            while written < len(data):
                written += os.write(self._tail, data[written:])
            if durable:
                os.fsync(self._tail)
        except OSError as error:
            with suppress(OSError):  # an incomplete record may stay; `open` cuts it off
                os.ftruncate(self._tail, before)
            raise log_files.disk_error(self._folder / log_files.TAIL, "written", error) from error
        self._state.tail_bytes = before + len(data)

    def _finish_bundle(self, full: list[Tile]) -> None:
        """Rename the tail to a bundle. The tiles are written first, since a bundle implies that its tiles exist."""
        target = self._folder / merkle.bundle_path(full[0].index)
        with self._dead_on_error(), log_files.disk_errors(target, "written"):
            os.fsync(self._tail)
            for tile in full:
                log_files.write(self._folder / tile.path, tile.hashes)
            log_files.make_folder(target.parent)
            (self._folder / log_files.TAIL).rename(target)
            sync_folder(target.parent)
            os.close(self._tail)
            self._tail = -1
            self._state.tail_bytes, self._state.full = 0, []
            self._tail = self._open_tail()

    @property
    def _last(self) -> tuple[Note, Checkpoint]:
        if self._state.last is None:
            raise AuditError(self._folder, "has no checkpoint yet", hint="make one first")
        return self._state.last

    @property
    def _signed_size(self) -> int:
        return -1 if self._state.last is None else self._state.last[1].size

    def _sign_head(self) -> None:
        # Records on the disk before the signature exists. Others remember a checkpoint as soon as they see it, and a
        # power cut must not take from this site what they remember (decision 0019).
        with log_files.disk_errors(self._folder / log_files.TAIL, "written"):
            os.fsync(self._tail)
        # Proofs to others need the hashes that no file has yet.
        self._unfinished = {tile.path: tile.hashes for tile in self._state.levels.partials()}
        self._proofs = {}
        head = Checkpoint(self._name.origin, self.size, self._state.levels.root())
        text = head.to_text()
        self._state.last = Note(text, (sign(text, self._name.origin, self._key),)), head
        self._saved = False

    def _save(self) -> None:
        """Save the last checkpoint. The hashes are written first, since a checkpoint implies that they exist."""
        if self._saved:
            return
        note, head = self._last
        kept = self._folder / log_files.checkpoint_path(head.size)
        for path, hashes in self._unfinished.items():
            self._write_partial(path, hashes)
        log_files.write(kept, note.to_bytes())
        log_files.publish(kept, self._folder / log_files.CHECKPOINT)
        self._saved = True

    def _write_partial(self, path: str, data: bytes) -> None:
        """Write a partial tile or bundle, unless it exists or is full by now."""
        file = self._folder / path
        if not (file.exists() or file.parent.with_suffix("").exists()):
            log_files.write(file, data)

    def _tidy(self) -> None:
        """Keep the files that C2SP requires for the last checkpoint, and delete those that a full one has replaced.

        This is not done during the run: deleting a file that is on the disk costs as much as ten forced writes.
        """
        if self._state.last is not None:
            self._write_partial_bundle(self._signed_size)
        with log_files.disk_errors(self._folder, "tidied"):
            for folder in sorted((self._folder / "tile").glob("**/*.p")):
                if folder.with_suffix("").exists():
                    log_files.remove_folder(folder)

    def _write_partial_bundle(self, size: int) -> None:
        """Write the entries of the last tile up to a checkpoint. The tail has these entries too, and more."""
        width = size % WIDTH
        if not width or size // WIDTH != self.size // WIDTH:
            return
        with log_files.disk_errors(self._folder / log_files.TAIL, "read"):
            entries, _ = merkle.unpack(os.pread(self._tail, merkle.MAX_BUNDLE_BYTES, 0), width)
        self._write_partial(merkle.bundle_path(size >> merkle.HEIGHT, width), b"".join(map(merkle.pack, entries)))

    @contextmanager
    def _alone(self) -> Iterator[None]:
        self._require_no_fork()
        with self._mutex:
            self._require_usable()
            yield

    def _require_no_fork(self) -> None:
        if os.getpid() != self._process:  # the lock is shared with the parent, but the memory is not
            raise AuditError(self._folder, "was opened before this process was forked", hint="open it after the fork")

    def _require_usable(self) -> None:
        if (cause := self._died_of) is not None:  # each later caller gets the cause too
            raise AuditError(cause.file, cause.what, hint=cause.hint) from cause
        if not self._usable:
            raise AuditError(self._folder, "was closed", hint="open it again")

    @contextmanager
    def _dead_on_error(self) -> Iterator[None]:
        """Mark the object as dead on an error, since disk and memory may differ then."""
        try:
            yield
        except BaseException as error:
            self._die_of(error)
            raise

    def _die_of(self, error: BaseException) -> None:
        self._died_of = error if isinstance(error, AuditError) else None
        self._die()

    def _die(self) -> None:
        if self._usable:
            self._usable = False
            if self._tail >= 0:
                os.close(self._tail)
            os.close(self._lock)


def _locked(descriptor: int) -> bool:
    """Take the lock; return False if another process keeps it. A reader takes it for a moment to test whether it is."""
    for patience_s in (0.01, 0.05, 0.2, None):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if patience_s is None:
                return False
            time.sleep(patience_s)
        else:
            return True
    return False


HINT: Final = "keep it as evidence, put the newest copy back, or take part in a new run; verify it before"


@dataclass(slots=True)
class State:
    """The state of a log.

    Attributes:
        levels: the tree, without the incomplete record.
        tail_bytes: the length of the whole records in the tail.
        lost_bytes: the length of the incomplete record after them.
        full: the tiles that the last record filled, if the tail has not become a bundle yet.
        last: the newest checkpoint, as a note and as what its text says; None before the first.
    """

    levels: Levels
    tail_bytes: int
    lost_bytes: int
    full: list[Tile]
    last: tuple[Note, Checkpoint] | None


def recover(folder: Path, name: LogName, key: Ed25519PublicKey) -> State:
    """Read the state of a log from O(log n) of its files, so that it can be continued.

    Raises AuditError if others could read or change the log, or it is not what its newest checkpoint signed.
    """
    _check_mode(folder, folder)
    # The copy of the newest checkpoint under its public name may be older: a crash can come between the two
    sizes = log_files.checkpoint_sizes(folder)
    public = read_checkpoint(folder / log_files.CHECKPOINT)
    note = read_checkpoint(folder / log_files.checkpoint_path(sizes[-1])) if sizes else None
    if _size_of(public) > _size_of(note):  # the kept copy is written first
        raise AuditError(folder / log_files.CHECKPOINTS, "lacks the newest checkpoint", hint=HINT)
    head = None if note is None else _checked_head(folder, note, name, key)
    levels = _levels_of_bundles(folder, 0 if head is None else head.size // WIDTH)
    # Records behind the checkpoint are complete and unsigned, as after a kill.
    # Those before it must have the signed root.
    if head is not None and head.size < levels.size and log_files.root_at(folder, head.size) != head.root:
        raise _not_signed(folder)
    state = _replay_tail(folder, name, levels, head)
    if note is not None and head is not None:
        state.last = note, head
        if public != note:
            log_files.write(folder / log_files.CHECKPOINT, note.to_bytes())
    return state


def _levels_of_bundles(folder: Path, signed: int) -> Levels:
    """Return the tree over the full bundles, the first ``signed`` of which a checkpoint covers."""
    bundles = signed
    with log_files.disk_errors(folder, "read"):
        if signed and not (folder / merkle.bundle_path(signed - 1)).is_file():
            raise AuditError(folder / merkle.bundle_path(signed - 1), "is missing, though it was signed", hint=HINT)
        while (folder / merkle.bundle_path(bundles)).is_file():
            bundles += 1
    # The unfinished tiles have the roots of the full tiles that belong to no full tile above
    rows: list[list[bytes]] = [[]]
    count = bundles
    while count:
        level = len(rows) - 1
        first = count - count % WIDTH
        rows.append([merkle.complete_root(log_files.read_tile(folder, level, index)) for index in range(first, count)])
        count >>= merkle.HEIGHT
    return Levels(rows, bundles * WIDTH)


def read_checkpoint(path: Path) -> Note | None:
    """Read a note; None if there is none. Raises AuditError."""
    data = log_files.read(path, MAX_NOTE_BYTES)
    try:
        return None if data is None else Note.parse(data)
    except NoteError as error:
        raise AuditError(path, f"is no checkpoint: {error}", hint=HINT) from error


def _size_of(note: Note | None) -> int:
    """Return the size that a checkpoint states; -1 without a checkpoint or a size."""
    try:
        return -1 if note is None else Checkpoint.parse(note.text).size
    except NoteError:
        return -1


def _checked_head(folder: Path, note: Note, name: LogName, key: Ed25519PublicKey) -> Checkpoint:
    path = folder / log_files.CHECKPOINT
    try:
        head = Checkpoint.parse(note.text)
        if head.origin != name.origin:
            raise AuditError(path, f"is of {head.origin}, not of {name.origin}", hint=HINT)
        note.check([name.key(key.public_bytes_raw())])
    except NoteError as error:
        raise AuditError(path, f"is not by this party: {error}", hint=HINT) from error
    return head


def _replay_tail(folder: Path, name: LogName, levels: Levels, head: Checkpoint | None) -> State:
    """Add the records of the tail to the tree, and compare it with the newest checkpoint on the way."""
    path = folder / log_files.TAIL
    data = log_files.read(path, merkle.MAX_BUNDLE_BYTES) or b""
    if data:
        _check_mode(path, folder)
    entries, _ = merkle.unpack(data)
    full: list[Tile] = []
    whole = 0
    _check_head(folder, levels, head)
    for entry in entries:
        # After a power cut, a file can have the length of a record and zeros in its place
        if not any(data[whole:]):
            break
        seq = levels.size
        try:
            record = Record.parse(entry)
        except RecordError as error:
            raise AuditError(path, f"record {seq} is not as it was written: {error}", hint=HINT) from error
        if (record.seq, record.party, record.run) != (seq, name.party, name.run):
            raise AuditError(path, f"record {seq} is of another place or another log", hint=HINT)
        full = levels.append(merkle.leaf_hash(entry))
        whole += 2 + len(entry)
        _check_head(folder, levels, head)
    if head is not None and head.size > levels.size:
        what = f"has {levels.size} records, but {head.size} were signed: it was cut, or is an old copy"
        raise AuditError(folder, what, hint=HINT)
    if full and len(data) > whole:
        raise AuditError(path, "has more records than a bundle", hint=HINT)
    return State(levels, whole, len(data) - whole, full, None)


def _check_head(folder: Path, levels: Levels, head: Checkpoint | None) -> None:
    if head is not None and head.size == levels.size and head.root != levels.root():
        raise _not_signed(folder)


def _not_signed(folder: Path) -> AuditError:
    return AuditError(folder, "is not what its newest checkpoint signed", hint=HINT)


def _check_mode(path: Path, folder: Path) -> None:
    with log_files.disk_errors(path, "read"):
        mode = path.stat().st_mode & 0o7777
    if mode & 0o077:
        hint = f"run: chmod -R go= {folder}; it may have been changed, so verify it"
        raise AuditError(path, f"is open to others (mode {mode:04o})", hint=hint)
