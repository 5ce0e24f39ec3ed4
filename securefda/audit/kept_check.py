"""Compares the messages kept beside a log with its records: is the evidence still complete and unchanged?

A log can be sound while its evidence is lost, so this check has its own verdict. Every record of a message whose type
is kept has the digest of a copy, unless a later record says that none was kept. The copies are in the order of their
records. The traces of a kill or a power cut are no finding: before a restart, or at the end of a log that does not
say that the run ended, the last records after the newest checkpoint may lack their copies, and a copy may be torn or
lack its record. See `kept` for how copies are written.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import accumulate, islice
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, Literal

from securefda.audit.kept import KEPT_BY_READER, MOST_DAMAGED, MOST_KEPT_BYTES, Piece, is_kept, kept_files, read_pieces
from securefda.audit.log_files import AuditError
from securefda.audit.log_records import Entry, Record
from securefda.audit.reading import DamagedLog, LogFolder
from securefda.audit.statements import HeaderSaid, Statement, StatementReader
from securefda.audit.verify import UNVOUCHED, Verification
from securefda.errors import ExitCode, ProtocolError, SecureFdaError

EvidenceKind = Literal[
    "evidence-damaged",  # what is kept in place of a message is no message, or not signed as it says.
    "evidence-missing",  # a record says that a message passed, and no copy of it is kept.
    "evidence-differs",  # the record of a kept message names another type, sender, session or number of bytes.
    "evidence-unrecorded",  # a message, or something else, is kept that no record names.
    "evidence-moved",  # kept messages do not stand in the order of their records, or one stands there too often.
]
"""Kinds of findings."""
_SIGNATURE_BYTES: Final = 64


@dataclass(frozen=True, slots=True)
class KeptFinding:
    """A fault in the evidence, in one line that names the record, the file, the place in it and what is lost.

    ``index`` and ``entry`` are those of the record; None if the finding is about no record.
    """

    kind: EvidenceKind
    what: str
    index: int | None = None
    entry: Entry | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return f"{self.kind}: {self.what}"


@dataclass(frozen=True, slots=True)
class KeptVerdict:
    """The result of the comparison: the number of whole messages, and findings in the order of the records.

    ``notes`` are the traces of crashes and the messages that were not kept, one line each. It is not ``judged`` if no
    part of the log can be trusted.
    """

    messages: int = 0
    findings: tuple[KeptFinding, ...] = ()
    notes: tuple[str, ...] = ()
    judged: bool = True

    def to_json(self) -> dict[str, Any]:
        """The verdict for programs."""
        findings = [{"kind": lost.kind, "index": lost.index, "what": lost.what} for lost in self.findings]
        return {"judged": self.judged, "messages": self.messages, "findings": findings}


NOT_JUDGED: Final = KeptVerdict(judged=False)


@dataclass(slots=True)
class _Copy:
    """A kept message: its place, its statement, the run that its header names, and its record once that is known."""

    piece: Piece
    statement: Statement
    run: str
    recorded: bool = False
    seq: int = -1


@dataclass(frozen=True, slots=True)
class _Damaged:
    """Bytes of a file that are no signed message: their place, their number, and whether they end the file."""

    place: str
    size: int
    is_end: bool
    is_torn: bool


class _Kept:
    """The files beside the log, piece by piece."""

    def __init__(self, folder: Path, read: Callable[[bytes], Statement]) -> None:
        self.pieces: list[_Copy | _Damaged] = []
        self.by_digest: dict[str, list[_Copy]] = {}
        self.unreadable: list[str] = []
        self.files = self._damaged = 0
        try:
            files = kept_files(folder)
        except AuditError as error:
            files, self.unreadable = [], [str(error)]
        for path in files:
            self.files += 1
            try:
                for piece in read_pieces(path):
                    self._take(piece, read)
                    if self._damaged == MOST_DAMAGED:
                        self.unreadable.append(f"audit log {path}: {MOST_DAMAGED} pieces up to here are no messages")
                        return
            except AuditError as error:
                self.unreadable.append(str(error))

    @property
    def copies(self) -> list[_Copy]:
        """The pieces that are messages, in the order of the files."""
        return [piece for piece in self.pieces if isinstance(piece, _Copy)]

    def _take(self, piece: Piece, read: Callable[[bytes], Statement]) -> None:
        statement = None
        if piece.message:
            with suppress(ProtocolError):
                statement = read(piece.message)
        if statement is None or not statement.valid:
            # A power cut can leave zeros in place of the end of a message
            is_torn = piece.is_torn or (piece.rest == 0 and not any(piece.message[-_SIGNATURE_BYTES:]))
            size = piece.rest or len(piece.message)
            self._damaged += 1
            self.pieces.append(_Damaged(piece.place, size, piece.rest > 0, is_torn))
            return
        # The message itself is not held in memory: there may be gigabytes of them
        run = statement.said.run if isinstance(statement.said, HeaderSaid) else ""
        copy = _Copy(replace(piece, message=b""), replace(statement, said=None, data=b""), run)
        self.pieces.append(copy)
        self.by_digest.setdefault(statement.digest, []).append(copy)


class _Log:
    """The records' statements about messages, and the places where a process may have died."""

    def __init__(self, party: str, records: Iterable[Record], kept: _Kept, judged: float) -> None:
        self.missing: dict[str, Record] = {}
        self.differing: list[KeptFinding] = []
        self.not_kept: set[str] = set()
        self.sessions: set[str] = set()
        self.restarts: list[int] = []
        self.checkpoints: list[tuple[int, int]] = []
        """For each ``checkpoint-signed`` its place and the number of records that it covers."""
        self.ended = False
        self.size = 0
        self._party, self._kept, self._judged = party, kept, judged
        self._numbers = {digest: number for number, digest in enumerate(kept.by_digest)}
        self._places: list[array[int]] = [array("q") for _ in self._numbers]
        self._received: Counter[str] = Counter()
        for record in records:
            self.size = record.seq + 1
            self._see(record)

    def places(self, digest: str) -> array[int]:
        """Return the places of the records with this digest whose copy is kept, in ascending order."""
        return self._places[self._numbers[digest]]

    def _see(self, record: Record) -> None:
        entry = record.entry
        if entry.direction == "event":
            self._event(record)
            return
        if entry.session:
            self.sessions.add(entry.session)
        if entry.direction == "received":
            self._received[entry.peer] += entry.bytes
        if not is_kept(entry.type, sent=entry.direction == "sent"):
            return
        copies = self._kept.by_digest.get(entry.digest)
        if copies is None:
            if entry.type not in KEPT_BY_READER and record.seq < self._judged:
                self.missing.setdefault(entry.digest, record)
            return
        self.places(entry.digest).append(record.seq)
        if not copies[0].recorded:
            for copy in copies:
                copy.recorded = True
        if differing := _difference(self._party, entry, copies[0].statement):
            what = f"{_record(record.seq, entry)} says {differing}; the message that is kept says otherwise"
            self.differing.append(KeptFinding("evidence-differs", what, record.seq, entry))

    def _event(self, record: Record) -> None:
        entry = record.entry
        match entry.type:
            case "restarted":
                self.restarts.append(record.seq)
                self.ended = False
            case "run-ended":
                self.ended = True
            case "checkpoint-signed" if record.seq < self._judged:
                self.checkpoints.append((record.seq, int(str(entry.facts["size"]))))
            case "message-not-kept":  # true of a message that its sender did not sign, or beyond the bound
                missing = self.missing.get(entry.digest)
                if missing is None or (missing.entry.direction, missing.entry.peer) != ("received", entry.peer):
                    return
                if entry.facts["check"] == "SIGNATURE" or self._received[entry.peer] > MOST_KEPT_BYTES:
                    self.not_kept.add(entry.digest)


def check_kept(
    folder: Path,
    party: str,
    run: str,
    records: Iterable[Record],
    read: Callable[[bytes], Statement],
    *,
    is_whole: bool = True,
    live_size: int | None = None,
) -> KeptVerdict:
    """Compare the messages kept beside a party's log of a run with its records. The messages are read first.

    Memory grows with the number of kept messages, by some hundred bytes each.

    Args:
        folder: the folder of the log.
        party, run: whose log of which run it is.
        records: the records that the log's verification vouches for, in order.
        read: turns a message into a statement, or raises ProtocolError if the bytes are no message.
        is_whole: whether these are all records; if not, copies of later records cannot be judged.
        live_size: if a process is writing the log, the number of records that it had before this call, since later
            ones may not have their copies yet; else None.
    """
    kept = _Kept(folder, read)
    log = _Log(party, records, kept, math.inf if live_size is None else live_size)
    return _Comparison(kept, log, run, is_whole=is_whole, is_live=live_size is not None).verdict()


class _Comparison:
    """Matches copies with records, and judges the copies and records that remain."""

    def __init__(self, kept: _Kept, log: _Log, run: str, *, is_whole: bool, is_live: bool) -> None:
        self._kept, self._log, self._is_whole = kept, log, is_whole
        open_end = [log.size] if is_live or (is_whole and not log.ended) else []
        self._breaks = [*log.restarts, *open_end]
        """Places in the log where the records of a process that died end, in ascending order."""
        self._signed_at = [at for at, _ in log.checkpoints]
        self._signed = list(accumulate((size for _, size in log.checkpoints), max))
        """For each place of a checkpoint, the most records that one has covered by then."""
        self._sessions = log.sessions | {copy.statement.session for copy in kept.copies if copy.run == run}
        self._run = run
        self._missing = [record for record in log.missing.values() if record.entry.digest not in log.not_kept]
        """Records without a copy, in ascending order."""
        self._blamed: set[int] = set()
        """The records whose copy is there but damaged; `_next` is the first of `_missing` after them."""
        self._next = 0
        self._crash: Counter[str] = Counter()

    def verdict(self) -> KeptVerdict:
        # In this order: a copy must have its record before what stands between copies can be judged
        findings = [*self._log.differing, *self._put_in_order(), *self._pieces(), *self._lost()]
        findings.sort(key=lambda finding: (math.inf if finding.index is None else finding.index, finding.kind))
        return KeptVerdict(len(self._kept.copies), tuple(findings), tuple(self._notes()))

    def _put_in_order(self) -> Iterator[KeptFinding]:
        """Match each copy with the first record of its digest after the record of the previous copy."""
        last, misplaced = -1, []
        for copy in self._kept.copies:
            if not copy.recorded:
                continue
            places = self._log.places(copy.statement.digest)
            at = bisect_right(places, last)
            if at == len(places):
                misplaced.append(copy)
            else:
                last = copy.seq = places[at]
        if misplaced:
            first = misplaced[0]
            index = self._log.places(first.statement.digest)[0]
            what = (
                f"{first.piece.place} holds a {first.statement.type} of {first.statement.sender} out of the order of "
                f"the records, or once too often; its record is {index}. No message is lost by it"
            )
            more = f", and so do {len(misplaced) - 1} more" if len(misplaced) > 1 else ""
            yield KeptFinding("evidence-moved", what + more, index)

    def _pieces(self) -> Iterator[KeptFinding]:
        """Yield a finding for each kept piece that is no copy of a record."""
        # Records of the copies before and behind each piece
        seqs = [piece.seq if isinstance(piece, _Copy) else -1 for piece in self._kept.pieces]
        before_each = list(accumulate([-1, *seqs], max))[:-1]
        behind = list(accumulate([math.inf, *(seq if seq >= 0 else math.inf for seq in reversed(seqs))], min))[:-1]
        for piece, before, after in zip(self._kept.pieces, before_each, reversed(behind), strict=True):
            if isinstance(piece, _Copy):
                if not piece.recorded and self._is_whole:
                    yield from self._unrecorded(piece, before, after)
            elif piece.is_torn and self._has_break(before, after):
                self._crash["torn"] += 1
            elif finding := self._damaged(piece, before, after):
                yield finding
        for what in self._kept.unreadable:
            yield KeptFinding("evidence-damaged", f"{what}; what was kept in it is lost as evidence")

    def _damaged(self, piece: _Damaged, before: int, after: float) -> KeptFinding | None:
        """Blame the first record without a copy between the neighbours of a damaged piece: it was its copy."""
        first = max(bisect_right(self._missing, before, key=attrgetter("seq")), self._next)
        held = "the end of the file is no message" if piece.is_end else "what is kept there is not what was signed"
        if first < len(self._missing) and self._missing[first].seq < after:
            lost, self._next = self._missing[first], first + 1
            self._blamed.add(lost.seq)
            what = f"{_record(lost.seq, lost.entry)} has lost its evidence: at {piece.place}, {held}"
            return KeptFinding("evidence-damaged", what, lost.seq, lost.entry)
        if not self._is_whole:
            return None
        what = f"{piece.place}, {piece.size} bytes: {held}, and no record lacks its message"
        return KeptFinding("evidence-unrecorded", what)

    def _unrecorded(self, copy: _Copy, before: int, after: float) -> Iterator[KeptFinding]:
        """Yield a finding for a copy without a record, unless a power cut may have taken only the record."""
        message = copy.statement
        of_run = copy.run in ("", self._run) and message.session in ("", *self._sessions)
        if of_run and self._has_break(before, after):
            self._crash["unrecorded"] += 1
            return
        what = f"{copy.piece.place} holds a {message.type} of {message.sender} that no record names; it is no evidence"
        yield KeptFinding("evidence-unrecorded", what)

    def _lost(self) -> Iterator[KeptFinding]:
        """Yield a finding for each record whose copy is gone."""
        matched = sorted(copy.seq for copy in self._kept.copies if copy.seq >= 0)
        gone = [record for record in self._missing if record.seq not in self._blamed]
        lost = [record for record in gone if not self._may_lack(record.seq, matched)]
        if lost and not self._kept.files:
            first, begin = lost[0], _record(lost[0].seq, lost[0].entry)
            what = f"no messages are kept beside the log: {len(lost)} records have lost their evidence, from {begin} on"
            yield KeptFinding("evidence-missing", what, first.seq, first.entry)
            return
        for record in lost:
            what = f"{_record(record.seq, record.entry)} has lost its evidence: no copy of the message is kept"
            yield KeptFinding("evidence-missing", what, record.seq, record.entry)

    def _may_lack(self, seq: int, matched: list[int]) -> bool:
        """Return whether a process may have died before the copy of this record was on the disk."""
        place = bisect_right(self._breaks, seq)
        if place == len(self._breaks):
            return False
        end = self._breaks[place]
        signed = bisect_left(self._signed_at, end)
        if signed and self._signed[signed - 1] > seq:
            return False
        behind = bisect_left(matched, seq)
        if behind < len(matched) and matched[behind] < end:
            return False  # a later copy is there, and copies are written in order
        self._crash["missing"] += 1
        return True

    def _has_break(self, before: int, after: float) -> bool:
        place = bisect_right(self._breaks, before)
        return place < len(self._breaks) and self._breaks[place] <= after

    def _notes(self) -> Iterator[str]:
        words = {
            "missing": "records behind the newest checkpoint of a process that died have no copy of their message",
            "torn": "kept messages are not whole, where a process died",
            "unrecorded": "kept messages have no record, where a process died",
        }
        for kind, number in sorted(self._crash.items()):
            yield f"{number} {words[kind]}; a crash leaves that"
        if self._log.not_kept:
            yield f"{len(self._log.not_kept)} messages that others sent were not kept, as the log says of each"


def _difference(party: str, entry: Entry, message: Statement) -> str:
    """Return in words how a record differs from its message; empty if they agree."""
    sender = party if entry.direction == "sent" else entry.peer
    if (entry.type, sender) != (message.type, message.sender):
        return f"that it is a {entry.type} of {sender}"
    if message.session and entry.session != message.session and entry.type != "Refusal":  # matched by its context
        return f"that it is of session {entry.session[:12] or 'none'}"
    if entry.bytes < message.size or (entry.bytes > message.size and not message.has_vectors):
        return f"that it has {entry.bytes} bytes"
    return ""


def _record(index: int, entry: Entry) -> str:
    whom = f"{'to' if entry.direction == 'sent' else 'from'} {entry.peer}"
    where = f" in round {entry.round}" if entry.round else ""
    return f"record {index} ({entry.type} {entry.direction} {whom}{where})"


class EvidenceLost(SecureFdaError):
    """A log is sound, but the messages that are kept beside it as evidence are not."""

    exit_code = ExitCode.AUDIT


def kept_verdict(log: LogFolder, verification: Verification, reader: StatementReader, *, live: bool) -> KeptVerdict:
    """Compare the messages beside a log with the records that its verification vouches for.

    ``reader`` reads messages under the roster of the run. ``live`` is whether a process was writing the log before it
    was verified.
    """
    finding = verification.finding
    bound = None if finding is None or finding.kind in ("torn", *UNVOUCHED) else finding.index
    if bound == 0:
        return NOT_JUDGED
    records, size = islice(log.records(), bound), verification.size if live else None
    try:
        return check_kept(log.folder, log.party, log.run, records, reader.read, is_whole=bound is None, live_size=size)
    except DamagedLog:  # the verification reports the damage, or the log was changed since
        return NOT_JUDGED
