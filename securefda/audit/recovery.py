"""What a log is when its writer opens it again: how much of it is whole, and whether that is what was signed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from securefda.audit.merkle import complete_root, leaf_hash
from securefda.audit.names import LogName
from securefda.audit.notes import ED25519, MAX_NOTE_BYTES, Checkpoint, Note, NoteError, NoteKey
from securefda.audit.records import Record, RecordError
from securefda.audit.store import (
    CHECKPOINT,
    CHECKPOINTS,
    TAIL,
    AuditError,
    disk_errors,
    read,
    read_tile,
    root_at,
    write,
)
from securefda.audit.tiles import HEIGHT, MAX_BUNDLE_BYTES, WIDTH, Levels, Tile, bundle_path, unpack

HINT: Final = "keep it as evidence, put the newest copy back, or take part in a new run; verify it before"


@dataclass(slots=True)
class State:
    """Where a log stands.

    Attributes:
        levels: the tree, without what was cut off.
        tail_bytes: length of the whole records in the tail.
        lost_bytes: how much of a record that is not whole stands behind them.
        note: the newest checkpoint, None before the first.
        full: the tiles that the last record filled, where the tail has not become a bundle yet.
    """

    levels: Levels
    tail_bytes: int
    lost_bytes: int
    note: Note | None
    full: list[Tile]


def recover(folder: Path, name: LogName, key: Ed25519PublicKey) -> State:
    """Read what is needed in order to go on with a log; O(log n) of its files, not all of it.

    Raises:
        AuditError: others could read or change it, or it is not what its newest checkpoint signed.
    """
    _check_mode(folder, folder)
    # The newest checkpoint. The copy under its public name may be older: a crash can come between the two
    kept = folder / CHECKPOINTS
    with disk_errors(kept, "read"):
        names = [file.name for file in kept.iterdir() if file.name.isdecimal()] if kept.is_dir() else []
    public = read_checkpoint(folder / CHECKPOINT)
    newest = read_checkpoint(kept / max(names)) if names else None
    if _size_of(public) > _size_of(newest):  # the kept one is written first
        raise AuditError(kept, "lacks the newest checkpoint", hint=HINT)
    note = newest
    head = None if note is None else _checked_head(folder, note, name, key)
    # Number of full bundles, of which a checkpoint covers ``least``
    least = 0 if head is None else head.size // WIDTH
    bundles = least
    with disk_errors(folder, "read"):
        if least and not (folder / bundle_path(least - 1)).is_file():
            raise AuditError(folder / bundle_path(least - 1), "is missing, though it was signed", hint=HINT)
        while (folder / bundle_path(bundles)).is_file():
            bundles += 1
    # The tree over full bundles: the roots of the full tiles that belong to no full tile above
    rows: list[list[bytes]] = [[]]
    count = bundles
    while count:
        level = len(rows) - 1
        first = count - count % WIDTH
        rows.append([complete_root(read_tile(folder, level, index)) for index in range(first, count)])
        count >>= HEIGHT
    levels = Levels(rows, bundles * WIDTH)
    if head is not None and head.size < levels.size and root_at(folder, head.size) != head.root:
        raise _not_signed(folder)
    state = _replay_tail(folder, name, levels, note, head)
    if note is not None and read_checkpoint(folder / CHECKPOINT) != note:
        write(folder / CHECKPOINT, note.to_bytes())
    return state


def read_checkpoint(path: Path) -> Note | None:
    """Read a note, None where there is none. Raises AuditError."""
    data = read(path, MAX_NOTE_BYTES)
    try:
        return None if data is None else Note.parse(data)
    except NoteError as error:
        raise AuditError(path, f"is no checkpoint: {error}", hint=HINT) from error


def _size_of(note: Note | None) -> int:
    """Size that a checkpoint says, -1 where there is none or it says none."""
    try:
        return -1 if note is None else Checkpoint.parse(note.text).size
    except NoteError:
        return -1


def _checked_head(folder: Path, note: Note, name: LogName, key: Ed25519PublicKey) -> Checkpoint:
    path = folder / CHECKPOINT
    try:
        head = Checkpoint.parse(note.text)
        if head.origin != name.origin:
            raise AuditError(path, f"is of {head.origin}, not of {name.origin}", hint=HINT)
        note.check([NoteKey(name.origin, ED25519, key.public_bytes_raw())])
    except NoteError as error:
        raise AuditError(path, f"is not by this party: {error}", hint=HINT) from error
    return head


def _replay_tail(folder: Path, name: LogName, levels: Levels, note: Note | None, head: Checkpoint | None) -> State:
    path = folder / TAIL
    data = read(path, MAX_BUNDLE_BYTES) or b""
    if data:
        _check_mode(path, folder)
    entries, _ = unpack(data)
    full: list[Tile] = []
    whole = 0
    _check_head(folder, levels, head)
    for entry in entries:
        if not any(data[whole:]):  # what a file system leaves of a record that had a length, but no contents yet
            break
        seq = levels.size
        try:
            record = Record.parse(entry)
        except RecordError as error:
            raise AuditError(path, f"record {seq} is not as it was written: {error}", hint=HINT) from error
        if (record.seq, record.party, record.run) != (seq, name.party, name.run):
            raise AuditError(path, f"record {seq} is of another place or another log", hint=HINT)
        full = levels.append(leaf_hash(entry))
        whole += 2 + len(entry)
        _check_head(folder, levels, head)
    if head is not None and head.size > levels.size:
        what = f"has {levels.size} records, but {head.size} were signed: it was cut, or is an old copy"
        raise AuditError(folder, what, hint=HINT)
    if full and len(data) > whole:
        raise AuditError(path, "has more records than a bundle", hint=HINT)
    return State(levels, whole, len(data) - whole, note, full)


def _check_head(folder: Path, levels: Levels, head: Checkpoint | None) -> None:
    if head is not None and head.size == levels.size and head.root != levels.root():
        raise _not_signed(folder)


def _not_signed(folder: Path) -> AuditError:
    return AuditError(folder, "is not what its newest checkpoint signed", hint=HINT)


def _check_mode(path: Path, folder: Path) -> None:
    with disk_errors(path, "read"):
        mode = path.stat().st_mode & 0o7777
    if mode & 0o077:
        hint = f"run: chmod -R go= {folder}; it may have been changed, so verify it"
        raise AuditError(path, f"is open to others (mode {mode:04o})", hint=hint)
