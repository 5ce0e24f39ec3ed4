"""A site's audit log of the run that it is in: what a round and every message write down, and its checkpoints.

A record is in its file before what it tells of happens, and on the disk too where something is released. What cannot be
written down does not happen: the error ends the site's part in the run. `MessageRecorder` writes the records of
messages, each before it leaves; everybody else calls `Journal` for the rest.
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

from securefda.audit.kept import MOST_KEPT_BYTES, NOT_KEPT, KeptMessages
from securefda.audit.log import AuditLog
from securefda.audit.notes import LogName, Note, NoteKey, Signature
from securefda.audit.records import Decision, Disclosure, DpSpent, Entry, RecordError
from securefda.audit.store import AuditError, disk_errors, read, write
from securefda.errors import FaultyAggregatorError
from securefda.privacy.events import Budget, DpEvent
from securefda.privacy.ledger import Reservation
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
from securefda.transport.observer import Direction, MessageObserver, ignore
from securefda.transport.wire import encode_signed

ROSTER_FILE: Final = "roster.json"
_MAX_ROSTER_BYTES: Final = 4 * 1024 * 1024
_ATTEMPTS: Final = 4
"""Of so many attempts the place is known; messages of older ones come late and say nothing."""


def logs_folder(kit: Path) -> Path:
    """Where a site's audit logs lie, one folder for each run."""
    return kit / "local" / "audit"


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What the first records of a log say; ``policy`` is the SHA-256 of the policy file in hex, empty without one."""

    release: str
    task: str
    strategy: str
    policy: str = ""


class Journal:
    """Writes one site's audit logs, one after the other: of the run that it is in.

    Args:
        parent: the site's folder of logs; that of a run is named like the run.
        roster: of the federation.
        site_id: whose logs.
        key: the site's signing key.
        info: what the first records say.
        signed_roster: the roster as its CA and members signed it, to be kept beside the log; without it, the roster
            is kept without signatures.
        clock: says what time it is, with its zone.
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
        """Of the log of this run."""
        return self._parent / self.run

    def origin_of(self, index: int) -> str:
        """Of a site's log of this run, by roster index. Raises AuditError before there is a run."""
        self._require_run()
        return LogName(self._roster.federation_id, self._roster.by_index(index).site_id, self.run).origin

    def begin(self, run: str) -> None:
        """Open the log of a run, 32 hex digits, or go on with it; nothing where it is open already.

        Raises:
            AuditError: it cannot be written, is not what was signed, or another process writes it.
        """
        if run == self.run:  # at every message: without the lock, for it is set when all is done
            return
        with self._begin_lock:
            if run == self.run:
                return
            self.close()
            name = LogName(self._roster.federation_id, self._site_id, run)
            self._log = AuditLog.open(self._parent, name, self._key, self._clock)
            self._kept = KeptMessages(self._parent / run)
            path, data = self._parent / run / ROSTER_FILE, self._roster_file
            if read(path, _MAX_ROSTER_BYTES) != data:  # the keys that this run's messages are checked with
                with disk_errors(path, "written"):
                    write(path, data)
            if self._log.size == 0:
                said = self._info
                digest = self._roster.digest().hex()
                self.event("run-began", release=said.release, task=said.task, strategy=said.strategy, roster=digest)
            else:
                self.event("restarted", lost_bytes=self._log.lost_bytes)
            if self._info.policy:
                self.event("policy-loaded", policy=self._info.policy)
            self.run = run  # last: who sees it may append

    def append(self, entry: Entry, *, durable: bool = False) -> None:
        """Write a record; on the disk when this returns, where ``durable``.

        Raises:
            AuditError: it cannot be written: what it tells of must not happen.
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
        """Write an event of the attempt that ``header`` opens, or of none. Raises AuditError."""
        round_number, attempt, session = place_of(header)
        try:
            entry = Entry("event", kind, round=round_number, attempt=attempt, session=session, dp=dp, facts=facts)
        except RecordError as error:
            raise self._does_not_fit(error) from error
        self.append(entry)

    def enter(self, header: Signed[Header]) -> None:
        """This attempt begins: the site has accepted its header, or made it. Messages of its session belong to it."""
        self._attempts[header.envelope.session_id] = header
        while len(self._attempts) > _ATTEMPTS:
            self._attempts.popitem(last=False)
        self.attempts += 1

    def attempt_of(self, session_id: bytes) -> Signed[Header] | None:
        """The header of one of the last attempts that this site was in; None for another session."""
        return self._attempts.get(session_id)

    def charged(self, budget: Budget, event: DpEvent, reservation: Reservation) -> None:
        """Write what a round costs, before it trains. Raises AuditError."""
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

    def keep(self, message: bytes) -> None:
        """Keep a signed message beside the log, as evidence. Raises AuditError."""
        self._kept.keep(message)

    def not_kept(self, record: Entry, check: str) -> None:
        """Write down that no copy of a message is kept, and which check says so. Raises AuditError."""
        place = {"round": record.round, "attempt": record.attempt, "session": record.session}
        facts = {"check": check}
        self.append(
            Entry("event", "message-not-kept", **place, peer=record.peer, digest=record.digest, facts=facts)  # type: ignore[arg-type]
        )

    def checkpoint(self) -> Note:
        """Sign the log as it is; its records are on the disk then, with the messages that are kept of them.

        The note is on the disk once it is saved. Raises AuditError.
        """
        note = Note.parse(self._open_log.checkpoint(save=False))
        self._kept.sync()
        return note

    def proof(self, old: int) -> tuple[bytes, ...]:
        """That the log of the last checkpoint begins with its first ``old`` records. Raises AuditError."""
        return self._open_log.proof(old)

    def save(self) -> None:
        """Bring the last checkpoint, with the cosignatures that it has, to the disk. Raises AuditError."""
        self._open_log.save()

    def cosigned(self, size: int, signature: Signature, witness: NoteKey) -> Note:
        """Put a cosignature under the checkpoint of ``size`` records.

        Raises:
            SignatureError: it is not of this witness over that checkpoint.
            AuditError: there is no such checkpoint, or it cannot be written.
        """
        return self._open_log.add_cosignature(size, signature, witness, save=False)

    def close(self) -> None:
        """Let others write; what was written stays."""
        self._kept.close()
        if self._log is not None:
            self._log.close()
        self._log, self.run = None, ""

    @property
    def _open_log(self) -> AuditLog:
        self._require_run()
        return self._log  # type: ignore[return-value]  # there is one in a run

    def _does_not_fit(self, error: RecordError) -> AuditError:
        """What no record can hold ends the site's part as a full disk does: it must not be left out."""
        return AuditError(self._parent, f"cannot hold this: {error}", hint="report it as a fault")

    def _require_run(self) -> None:
        if self._log is None:
            raise AuditError(self._parent, "is not open: there is no run yet", hint="join a run first")


def place_of(header: Signed[Header] | None) -> tuple[int, int, str]:
    """Round, attempt and session of the attempt that a header opens; those of no attempt without one."""
    if header is None:
        return 0, 0, ""
    return header.body.round, header.body.attempt, header.envelope.session_id.hex()


def site_ids(roster: Roster, indices: Iterable[int]) -> list[str]:
    """Site ids of roster indices as a record lists them; indices that the roster does not have are left out."""
    known = range(len(roster.entries))
    return sorted({roster.by_index(index).site_id for index in indices if index in known})


_RELEASES = (MaskedInput, Update, Unmask)
"""On the disk before the first byte leaves, and with them the events that led there; so are headers with g_T."""
_REPEATS = 16
"""The aggregator sends one message to many: of so many different ones it is known that they were kept."""


class MessageRecorder:
    """An observer that writes every message of a site down.

    Args:
        journal: the site's log.
        roster: of the federation.
        own: the site's roster index.
        run: the run whose log is opened with the first message; None where joining opens it.
        then: sees each message after it was written down.
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
        """Whether a release was written down that is not on the disk yet."""

    def __call__(
        self, direction: Direction, peer: int, message: Signed[Body], wire_bytes: int, *, more: bool = False
    ) -> None:
        """Write a message down.

        Raises:
            AuditError: it cannot be written; the message neither leaves nor is handed up.
            FaultyAggregatorError: a message came before this site had joined.
        """
        if self._run is not None:
            self._journal.begin(self._run)
        elif not self._journal.run:
            raise FaultyAggregatorError("ORDER", f"{message.type_name} before this site has joined")
        sent = direction is Direction.SENT
        entry = self._entry(sent, peer, message, wire_bytes)
        body = message.body
        releases = isinstance(body, _RELEASES) or (
            isinstance(body, Header) and shown_by(body, Visibility.SUM) != "model"
        )
        self._unforced = self._unforced or (sent and releases)
        self._journal.append(entry, durable=self._unforced and not more)
        self._unforced = self._unforced and more
        if message.type_name not in NOT_KEPT and entry.digest not in self._kept:
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
        """The header of the message's attempt, as this site took it.

        A header says its own place, whether or not that is true; a refusal has the place of the header that it answers.
        Whatever else comes belongs to an attempt that this site is in, or to none.
        """
        if isinstance(message.body, Header) and message.sender == self._roster.target.index:
            self._last_header = message
            return message
        last = self._last_header
        if isinstance(message.body, Refusal) and last is not None and last.digest() == message.envelope.context:
            return last
        return self._journal.attempt_of(message.envelope.session_id)

    def _keep(self, sent: bool, peer: int, message: Signed[Body], entry: Entry) -> None:
        """Keep a message as evidence, or write down why not.

        What its sender did not sign is no evidence. Of what others send there is a bound for each attempt,
        so that no site can fill this site's disk with evidence.
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
    """What site ``peer`` learns by a message of site ``own``; None where that is nothing of its rows or its model."""
    body = message.body
    if isinstance(body, Goodbye) and body.model_digest:
        return Disclosure("individual", "model", 1)
    if isinstance(body, Header):
        level = body.level_of(peer) if peer in body.participants else Visibility.INDIVIDUAL
        return Disclosure("individual", shown_by(body, level), 1)
    if isinstance(body, Update):
        return Disclosure("individual", "update", 1)
    if isinstance(body, MaskedInput) and header is not None:
        level = header.body.level_of(own)
        fewest = header.body.cohort_quorum if level is Visibility.COHORT else header.body.fewest_at_sum
        return Disclosure(level.label, "update", fewest)
    return None


def shown_by(header: Header, level: Visibility) -> str:
    """What a header shows a source at this level, as disclosures name it: the model, and what goes of the target."""
    beside = ["target-features"] if header.features is not None else []
    if header.published_digest and level is Visibility.SUM:
        beside.append("gap-gradient" if header.gap_gradient_digest else "target-update")
    return "-and-".join(["model", *beside])


def _decision(body: Body) -> Decision | None:
    if isinstance(body, Update | MaskedInput):
        return Decision("allowed", "max-visibility")
    if isinstance(body, Refusal):
        return Decision("refused", body.key if body.key == body.key.lower() else "")
    return None
