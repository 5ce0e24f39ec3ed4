"""The base class of the checks of a run, and what they share: the logs, read side by side, and the messages. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import ClassVar, Literal

from securefda.audit.kept_check import NOT_JUDGED, KeptVerdict
from securefda.audit.log_files import AuditError
from securefda.audit.log_records import Record
from securefda.audit.reading import RunEnd
from securefda.audit.reconcile.claims import is_of_run
from securefda.audit.reconcile.run_transcript import Members, SignedHeader, SignedTranscript
from securefda.audit.reconcile.suspicion import Mark, Notice, RunFinding, RunKind, Suspicion
from securefda.audit.verify import UNVOUCHED, Verification

Required = Literal["all", "participants", "none"]


@dataclass(frozen=True, slots=True)
class PartyLog:
    """One log of the run.

    Attributes:
        verification: the result of ``verify_log``, with the checkpoints that other sites hold.
        records: starts reading the records, in order.
        size: the number of records when the reading of all logs began.
        folder: the folder of the log, for the text of findings.
        is_unsigned: whether no site, including the log's own, has a checkpoint of it, as when a site fails at once;
            such a log is not used.
        limits: SHA-256 of a policy file beside the log -> the epsilon that the policy allows.
    """

    party: str
    verification: Verification
    records: Callable[[], Iterator[Record]] = field(repr=False)
    size: int
    folder: str = ""
    is_unsigned: bool = False
    kept: KeptVerdict = NOT_JUDGED
    limits: Mapping[str, float] = field(default_factory=dict)

    @property
    def bound(self) -> int | None:
        """The number of records that can be used; None for all."""
        finding = self.verification.finding
        if self.is_unsigned:
            return 0
        return None if finding is None or finding.kind in UNVOUCHED else finding.index


class RunLogs:
    """The logs of one run, read in one pass, with the facts that the checks need.

    The target chooses session ids and can sign several headers with the same id, and other sites can keep any of them.
    So a header counts against a party only if the party's log has this header for the session and no other.

    Attributes:
        logs: the logs, each of a different party.
        transcript: the messages that were kept.
        required: the sites whose logs are required: ``"all"`` sites, the ``"participants"`` of the run's rounds
            according to the other logs, or ``"none"``.
        parties: the parties whose logs are here.
        sizes: the number of records of each log when the reading began, by party.
        broken: party -> why its log could not be read to the end.
        restarted: the parties whose logs a new process continued.
        count: the number of records that were read.
        marks: session, type and sender -> the record of a message that is sent once in a session; the
            equivocation check fills it.
    """

    def __init__(
        self, logs: Sequence[PartyLog], members: Members, transcript: SignedTranscript, required: Required = "none"
    ) -> None:
        self.logs, self.members, self.transcript, self.required = logs, members, transcript, required
        self.sizes = {log.party: log.size for log in logs}
        self.parties = frozenset(self.sizes)
        self.broken: dict[str, str] = {}
        self._ends = {log.party: RunEnd() for log in logs}
        self.restarted: set[str] = set()
        self.count = 0
        self.marks: dict[tuple[str, str, str], Mark] = {}
        self._headers: dict[tuple[str, str], str] = {}

    def records(self) -> Iterator[Record]:
        """Yield the records of all logs, each in order, interleaved by time so that few wait for a counterpart."""
        for record in heapq.merge(*map(self._records_of, self.logs), key=lambda record: record.time):
            self.count += 1
            entry = record.entry
            match entry.type:
                case "Header" if entry.direction == ("sent" if record.party == self.members.target else "received"):
                    key = record.party, entry.session
                    if self._headers.setdefault(key, entry.digest) != entry.digest:
                        self._headers[key] = ""  # several: the log does not say which one the party followed
                case "restarted":
                    self.restarted.add(record.party)
            self._ends[record.party].see(entry)
            yield record

    def _records_of(self, log: PartyLog) -> Iterator[Record]:
        try:
            yield from islice(log.records(), log.bound)
        except AuditError as error:
            self.broken[log.party] = str(error)

    @property
    def whole(self) -> frozenset[str]:
        """The parties whose logs are complete: a record that is missing there was never written."""
        return frozenset(log.party for log in self.logs if log.bound is None and log.party not in self.broken)

    def has_completed(self, party: str) -> bool:
        """Return whether a party's log says that the run was completed, with the other sites there to the end."""
        return self.outcome_of(party) == "completed"

    def outcome_of(self, party: str) -> str:
        """Return the outcome of the run according to a party's log; empty while the run goes on."""
        return self._ends[party].outcome

    def header_of(self, party: str, session: str) -> SignedHeader | None:
        """Return the header that a party accepted or sent in a session.

        None if the party's log has no header or several, if no site kept it, or if it names another run or roster.
        """
        header = self.transcript.all_headers.get(self._headers.get((party, session), ""))
        return header if header is not None and is_of_run(header.said, self.members) else None


class Check:
    """A comparison that sees every record of every log once and then returns its suspicions.

    Attributes:
        run: the logs to check.
        found: the suspicions from the records seen so far.
        counts: what was compared, in the words of ``counted`` -> how often; complete after `suspicions`.
    """

    counted: ClassVar[tuple[str, ...]] = ()

    def __init__(self, run: RunLogs) -> None:
        self.run = run
        self.found: list[Suspicion] = []
        self.counts = dict.fromkeys(self.counted, 0)

    def see(self, record: Record) -> None:
        """Take a record. The records of one log come in order, and those of different logs by time."""

    def suspicions(self) -> Iterable[Suspicion]:
        """Return the suspicions, once all records have been seen."""
        return self.found

    def notices(self) -> Iterable[Notice]:
        """Return what is odd or could not be judged, but proves nothing. Call it after `suspicions`."""
        return ()

    def suspect(
        self,
        record: Record,
        kind: RunKind,
        what: str,
        *,
        accused: tuple[str, ...] | None = None,
        sides: tuple[str, str] | None = None,
        step: str = "",
        digests: tuple[str, ...] = (),
        before: tuple[Mark, ...] = (),
    ) -> None:
        """Add a suspicion that a record shows, as of `RunFinding`; ``before`` are other records that show it too.

        By default it accuses the party that wrote the record, is between that party and the record's peer, and is about
        the record's message or event.
        """
        entry = record.entry
        finding = RunFinding(
            kind=kind,
            what=what,
            accused=(record.party,) if accused is None else accused,
            sides=(record.party, entry.peer) if sides is None else sides,
            step=step or entry.type,
            round=entry.round,
            attempt=entry.attempt,
            session=entry.session,
            records=(*before, Mark.of(record)),
            digests=digests,
        )
        self.found.append(Suspicion(finding))
