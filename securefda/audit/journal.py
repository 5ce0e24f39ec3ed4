"""A site's audit log of its current run: the records of rounds and messages, and the checkpoints.

A record is written to its file before its event happens, and forced to the disk if the event releases something. An
event that cannot be recorded does not happen: the error ends the site's part in the run. `MessageRecorder` records each
message before it leaves; all other code calls `Journal`.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from securefda.audit.kept import MOST_KEPT_BYTES, KeptMessages, is_kept
from securefda.audit.log import AuditLog
from securefda.audit.log_files import AuditError, read, write
from securefda.audit.log_records import Decision, Disclosure, DpSpent, Entry, RecordError
from securefda.audit.signed_notes import LogName, Note, NoteKey, Signature
from securefda.errors import FaultyAggregatorError
from securefda.privacy.dp_events import Budget, DpEvent
from securefda.privacy.ledger import Reservation
from securefda.privacy.reservations import RunReservation
from securefda.protocol.messages import (
    NO_SESSION,
    Body,
    Goodbye,
    Header,
    MaskedInput,
    Refusal,
    Signed,
    Unmask,
    Update,
    Visibility,
)
from securefda.protocol.roster import Roster
from securefda.rules import Rule
from securefda.transport.observer import Direction, MessageObserver, ignore
from securefda.transport.wire import encode_signed

ROSTER_FILE: Final = "roster.json"
_MAX_ROSTER_BYTES: Final = 4 * 1024 * 1024
_ATTEMPTS: Final = 4
"""Number of attempts whose round and session are remembered; messages of older attempts are late and mean nothing."""


def logs_folder(kit: Path) -> Path:
    """Return the folder of a site's audit logs, which has one subfolder for each run."""
    return kit / "local" / "audit"


@dataclass(frozen=True, slots=True)
class RunInfo:
    """The facts in a log's first records. ``policy`` is the SHA-256 of the policy file in hex, empty without one."""

    release: str
    task: str
    strategy: str
    policy: str = ""


class Journal:
    """Writes one site's audit logs, one run at a time, each into a subfolder of ``parent`` with the name of the run.

    ``signed_roster`` is the roster as its CA and members signed it, to be kept beside the log; if it is empty, the
    roster is kept without signatures. ``clock`` returns the current time with its time zone.
    """

    def __init__(
        self,
        parent: Path,
        roster: Roster,
        site_id: str,
        key: Ed25519PrivateKey,
        *,
        info: RunInfo,
        signed_roster: bytes = b"",
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._parent, self._roster, self._site_id, self._key = parent, roster, site_id, key
        self._info, self._clock = info, clock
        self._roster_file = signed_roster or roster.canonical_bytes()
        self._log: AuditLog | None = None
        self._begin_lock = threading.RLock()
        self._kept = KeptMessages(parent)
        self._attempts: OrderedDict[bytes, Signed[Header]] = OrderedDict()
        self.attempts = 0
        self.run = ""

    @property
    def folder(self) -> Path:
        """The folder of this run's log."""
        return self.folder_of(self.run)

    def folder_of(self, run: str) -> Path:
        """The folder of this site's log of a run, 32 hex digits; there may be none."""
        return self._parent / run

    def name_of(self, index: int) -> LogName:
        """Return the name of a site's log of this run, by roster index. Raises AuditError before a run has begun."""
        self._require_run()
        return LogName(self._roster.federation_id, self._roster.by_index(index).site_id, self.run)

    def begin(self, run: str) -> None:
        """Open or continue the log of a run, 32 hex digits. Does nothing if that log is open already.

        Raises:
            AuditError: the log cannot be written, differs from what was signed, or is being written by another process.
        """
        if run == self.run:  # at every message, so without the lock: `run` is set after everything else
            return
        with self._begin_lock:
            if run == self.run:
                return
            self.close()
            name = LogName(self._roster.federation_id, self._site_id, run)
            self._log = AuditLog.open(self._parent, name, self._key, self._clock)
            self._kept = KeptMessages(self._parent / run)
            roster_file = self._parent / run / ROSTER_FILE
            if (
                read(roster_file, _MAX_ROSTER_BYTES) != self._roster_file
            ):  # it has the keys that verify this run's messages
                write(roster_file, self._roster_file)
            if self._log.size == 0:
                info, digest = self._info, self._roster.digest().hex()
                self.event("run-began", release=info.release, task=info.task, strategy=info.strategy, roster=digest)
            else:
                self.event("restarted", lost_bytes=self._log.lost_bytes)
            if self._info.policy:
                self.event("policy-loaded", policy=self._info.policy)
            self.run = run  # set last: a thread that sees it may append

    @property
    def policy(self) -> str:
        """SHA-256 of the policy with which the process started, in hex; empty at the target."""
        return self._info.policy

    def append(self, entry: Entry, *, durable: bool = False) -> None:
        """Write a record. If ``durable``, the record is on the disk when this returns.

        Raises AuditError if the record cannot be written, so its event must not happen.
        """
        try:
            self._open_log.append(entry, durable=durable)
        except RecordError as error:
            raise self._does_not_fit(error) from error

    def event(
        self,
        kind: str,
        header: Signed[Header] | None = None,
        *,
        dp: DpSpent | None = None,
        **facts: int | str | list[int] | list[str],
    ) -> None:
        """Write an event of the attempt that ``header`` opens; without a header, of no attempt. Raises AuditError."""
        round_number, attempt, session = place_of(header)
        try:
            entry = Entry("event", kind, round=round_number, attempt=attempt, session=session, dp=dp, facts=facts)
        except RecordError as error:
            raise self._does_not_fit(error) from error
        self.append(entry)

    def enter(self, header: Signed[Header]) -> None:
        """Begin an attempt whose header the site has accepted or made. Messages of its session belong to it."""
        self._attempts[header.envelope.session_id] = header
        while len(self._attempts) > _ATTEMPTS:
            self._attempts.popitem(last=False)
        self.attempts += 1

    def attempt_of(self, session_id: bytes) -> Signed[Header] | None:
        """Return the header of one of this site's last attempts, by session; None for any other session."""
        return self._attempts.get(session_id)

    def charged(self, budget: Budget, event: DpEvent, reservation: Reservation) -> None:
        """Write the privacy cost of a round before the round trains. Raises AuditError."""
        dp = DpSpent(
            mechanism=event.mechanism,
            accountant=budget.accountant,
            noise_multiplier=repr(float(event.noise_multiplier)),
            sampling_rate=repr(float(event.sampling_rate)),
            max_grad_norm=repr(float(event.max_grad_norm)),
            delta=repr(float(budget.delta)),
            epsilon=repr(float(reservation.spent)),
            steps=event.steps,
            ledger_rows=reservation.head.count,
            ledger_digest=reservation.head.digest.hex(),
        )
        self.append(Entry("event", "ledger-updated", round=event.round, attempt=event.attempt, dp=dp), durable=True)

    def reserved(self, kind: str, reservation: RunReservation) -> None:
        """Write that the run has reserved rounds of the privacy budget, or freed what is left. Raises AuditError."""
        facts = {"rounds": reservation.left, "expires": reservation.expires}
        self.append(Entry("event", "budget-reserved" if kind == "run-reserved" else "budget-released", facts=facts))

    def keep(self, message: bytes) -> None:
        """Keep a signed message beside the log, as evidence. Raises AuditError."""
        self._kept.keep(message)

    def not_kept(self, record: Entry, check: str) -> None:
        """Record that no copy of a message is kept, and which check decided so. Raises AuditError."""
        place, facts = (record.round, record.attempt, record.session), {"check": check}
        self.append(Entry("event", "message-not-kept", *place, record.peer, digest=record.digest, facts=facts))

    def checkpoint(self) -> Note:
        """Sign the log as it is, with its records and their kept messages on the disk.

        The checkpoint itself is on the disk only after `save`. Raises AuditError.
        """
        note = Note.parse(self._open_log.checkpoint(save=False))
        self._kept.sync()
        return note

    def proof(self, old: int) -> tuple[bytes, ...]:
        """Prove that the log at the last checkpoint begins with its first ``old`` records. Raises AuditError."""
        return self._open_log.proof(old)

    def save(self) -> None:
        """Save the last checkpoint, with the cosignatures that it has so far, to the disk. Raises AuditError."""
        self._open_log.save()

    def cosigned(self, size: int, signature: Signature, witness: NoteKey) -> Note:
        """Add a cosignature to the checkpoint of ``size`` records, as `AuditLog.add_cosignature` does."""
        return self._open_log.add_cosignature(size, signature, witness, save=False)

    def close(self) -> None:
        """Close the log, so that another process can write it. Its records stay."""
        self._kept.close()
        if self._log is not None:
            self._log.close()
        self._log, self.run = None, ""

    @property
    def _open_log(self) -> AuditLog:
        self._require_run()
        return self._log  # type: ignore[return-value]  # set while there is a run

    def _does_not_fit(self, error: RecordError) -> AuditError:
        """Return the error for an event that no record can hold; it ends the site's part, as a full disk does."""
        return AuditError(self._parent, f"cannot hold this: {error}", hint="report it as a fault")

    def _require_run(self) -> None:
        if self._log is None:
            raise AuditError(self._parent, "is not open: there is no run yet", hint="join a run first")


def place_of(header: Signed[Header] | None) -> tuple[int, int, str]:
    """Return the round, attempt and session that a header opens; without a header, ``0``, ``0`` and ``""``."""
    if header is None:
        return 0, 0, ""
    return header.body.round, header.body.attempt, header.envelope.session_id.hex()


def site_ids(roster: Roster, indices: Iterable[int]) -> list[str]:
    """Return the sorted site ids of roster indices, as a record lists them. Indices outside the roster are left out."""
    known = range(len(roster.entries))
    return sorted({roster.by_index(index).site_id for index in indices if index in known})


_RELEASES = (MaskedInput, Update, Unmask)
"""Messages whose records are on the disk, with all records before them, before the first byte leaves.

Headers that show more than the model, such as g_T, are treated alike.
"""
_REPEATS = 16
"""Number of different kept messages that are remembered, since the aggregator sends one message to many sources."""


class MessageRecorder:
    """An observer that records every message of the site with roster index ``own``.

    ``run`` is the run whose log the first message opens; None if joining opens it. ``then`` sees each message after it
    was recorded.
    """

    def __init__(
        self, journal: Journal, roster: Roster, own: int, *, run: str | None = None, then: MessageObserver = ignore
    ) -> None:
        self._journal, self._roster, self._own, self._run, self._then = journal, roster, own, run, then
        self._last_header: Signed[Header] | None = None
        self._kept: deque[str] = deque(maxlen=_REPEATS)
        self._kept_bytes: Counter[int] = Counter()
        self._attempts = 0
        self._unforced = False
        """Whether the record of a release is written but not yet on the disk."""

    def __call__(
        self, direction: Direction, peer: int, message: Signed[Body], wire_bytes: int, *, more: bool = False
    ) -> None:
        """Record a message.

        Raises:
            AuditError: the record cannot be written; the message is neither sent nor handed up.
            FaultyAggregatorError: a message came before this site had joined.
        """
        if self._run is not None:
            self._journal.begin(self._run)
        elif not self._journal.run:
            raise FaultyAggregatorError("ORDER", f"{message.type_name} before this site has joined")
        sent = direction is Direction.SENT
        entry = self._entry(sent, peer, message, wire_bytes)
        body = message.body
        shows_more = isinstance(body, Header) and shown_by(body, Visibility.SUM) != "model"
        # One forced write for all messages of a batch: nothing of it leaves before its last record is on the disk.
        self._unforced = self._unforced or (sent and (shows_more or isinstance(body, _RELEASES)))
        self._journal.append(entry, durable=self._unforced and not more)
        self._unforced = self._unforced and more
        if is_kept(message.type_name, sent=sent) and entry.digest not in self._kept:
            self._keep(sent, peer, message, entry)
        self._then(direction, peer, message, wire_bytes, more=more)

    def _entry(self, sent: bool, peer: int, message: Signed[Body], wire_bytes: int) -> Entry:
        header = self._header_of(message)
        round_number, attempt, session = place_of(header)
        if header is None and message.envelope.session_id != NO_SESSION:
            session = message.envelope.session_id.hex()
        return Entry(
            "sent" if sent else "received",
            message.type_name,
            round=round_number,
            attempt=attempt,
            session=session,
            peer=self._roster.by_index(peer).site_id,
            bytes=wire_bytes,
            digest=message.digest().hex(),
            decision=_decision(message.body) if sent else None,
            disclosure=disclosure_of(message, header, self._own, peer) if sent else None,
        )

    def _header_of(self, message: Signed[Any]) -> Signed[Header] | None:
        """Return the header of the message's attempt as this site knows it, or None.

        A header states its own round and attempt, true or not. A refusal belongs to the header that it answers. Any
        other message belongs to an attempt that this site is in, or to none.
        """
        if isinstance(message.body, Header) and message.sender == self._roster.target.index:
            self._last_header = message
            return message
        last = self._last_header
        if isinstance(message.body, Refusal) and last is not None and last.digest() == message.envelope.context:
            return last
        return self._journal.attempt_of(message.envelope.session_id)

    def _keep(self, sent: bool, peer: int, message: Signed[Body], entry: Entry) -> None:
        """Keep a message as evidence, or record why it is not kept.

        A message that its sender did not sign is no evidence. The bytes kept from each other site are bounded per
        attempt, so that no site can fill this site's disk.
        """
        if self._attempts != self._journal.attempts:
            self._attempts = self._journal.attempts
            self._kept_bytes.clear()
        if not sent:
            if message.sender != peer or not message.verify(self._roster.by_index(peer).signing_key):
                self._journal.not_kept(entry, "SIGNATURE")
                return
            self._kept_bytes[peer] += len(message.signed_bytes)
            if self._kept_bytes[peer] > MOST_KEPT_BYTES:
                self._journal.not_kept(entry, "BOUND")
                return
        self._kept.append(entry.digest)
        self._journal.keep(encode_signed(message))


def disclosure_of(message: Signed[Any], header: Signed[Header] | None, own: int, peer: int) -> Disclosure | None:
    """Return what site ``peer`` learns from a message of site ``own``; None if nothing about its rows or model."""
    body = message.body
    if isinstance(body, Goodbye) and body.model_digest:
        return Disclosure("individual", "model", 1)
    if isinstance(body, Header):
        level = body.level_of(peer) if peer in body.participants else Visibility.INDIVIDUAL
        return Disclosure("individual", shown_by(body, level), 1)
    if isinstance(body, Update):
        return Disclosure("individual", "update" if header is None else added_under(header.body), 1)
    if isinstance(body, MaskedInput) and header is not None:
        level = header.body.level_of(own)
        fewest = header.body.cohort_quorum if level is Visibility.COHORT else header.body.fewest_at_sum
        return Disclosure(level.label, added_under(header.body), fewest)
    return None


def added_under(header: Header) -> str:
    """Return what a source adds to a sum under this header, in the words of disclosures."""
    return "moments" if header.rule.rule == Rule.ANALYTIC else "update"


def shown_by(header: Header, level: Visibility) -> str:
    """Return what a header shows a source at this level, in the words of disclosures: the model and target data."""
    shown = ["target-features"] if header.features is not None else []
    if header.published_digest and level is Visibility.SUM:
        shown.append("gap-gradient" if header.gap_gradient_digest else "target-update")
    return "-and-".join(["model", *shown])


def _decision(body: Body) -> Decision | None:
    if isinstance(body, Update | MaskedInput):
        return Decision("allowed", "max-visibility")
    if isinstance(body, Refusal):
        return Decision("refused", body.key if body.key == body.key.lower() else "")
    return None
