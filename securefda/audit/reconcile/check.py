"""What a check of a run is, and what all checks share: the logs, read side by side, and the kept messages. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import ClassVar, Literal

from securefda.audit.kept_check import NOT_JUDGED, UNREAD, KeptVerdict
from securefda.audit.reading import RunEnd
from securefda.audit.reconcile.claims import is_of_run
from securefda.audit.reconcile.suspicion import Mark, Notice, RunFinding, RunKind, Suspicion
from securefda.audit.reconcile.transcript import Members, SignedHeader, SignedTranscript
from securefda.audit.records import Record
from securefda.audit.store import AuditError
from securefda.audit.verify import Verification

Required = Literal["all", "participants", "none"]


@dataclass(frozen=True, slots=True)
class PartyLog:
    """One log of the run.

    Attributes:
        party: site id.
        verification: what it is worth by itself, see ``verify_log``; with the checkpoints that others hold.
        records: begins to read its records, in order.
        size: how many it had when the first of all logs was looked at.
        folder: where it lies, for the words of findings.
        kept: what comparing its records with the messages beside it said.
        limits: SHA-256 of a policy file beside the log -> the epsilon that it allows.
        is_unsigned: whether no site, the log's own included, has a checkpoint of it, as where a site fails at once; the
            log is not used then.
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
        """How many of its records can be used; None for all."""
        finding = self.verification.finding
        if self.is_unsigned:
            return 0
        return None if finding is None or finding.kind == "missing-cosignature" else finding.index


class RunLogs:
    """The logs of one run, in one pass, and what every check may ask about them.

    The target chooses session ids and can sign several headers with the same one, and others can keep any of them. So a
    party is judged by a header only where its log has that one for the session, and no other.

    Args:
        logs: of different parties.
        members: of the federation.
        transcript: the messages that were kept.
        required: whose logs have to be here: those of ``"all"`` sites, of the ``"participants"`` of its rounds as
            the other logs tell, or of ``"none"``.

    Attributes:
        parties: whose logs there are.
        sizes: how many records each log had when the reading began, by party.
        other_forms: parties that kept messages of another form than this version reads; their records may lack what
            records have today.
        broken: party -> why its log could not be read to the end.
        restarted: parties whose logs were taken up again by a new process.
        count: number of records that were read.
        marks: session, type and sender -> the record of a message that is sent once in a session; the
            equivocation check fills it.
    """

    def __init__(
        self, logs: Sequence[PartyLog], members: Members, transcript: SignedTranscript, required: Required = "none"
    ) -> None:
        self.logs, self.members, self.transcript, self.required = logs, members, transcript, required
        self.sizes = {log.party: log.size for log in logs}
        self.parties = frozenset(self.sizes)
        self.other_forms = frozenset(log.party for log in logs if any(one.kind == UNREAD for one in log.kept.findings))
        self.broken: dict[str, str] = {}
        self._ends = {log.party: RunEnd() for log in logs}
        self.restarted: set[str] = set()
        self.count = 0
        self.marks: dict[tuple[str, str, str], Mark] = {}
        self._headers: dict[tuple[str, str], str] = {}

    def records(self) -> Iterator[Record]:
        """The records of all logs, side by side, so that little waits for its other half; those of a log in order."""
        for record in heapq.merge(*map(self._records_of, self.logs), key=lambda record: record.time):
            self.count += 1
            entry = record.entry
            match entry.type:
                case "Header" if entry.direction == ("sent" if record.party == self.members.target else "received"):
                    key = record.party, entry.session
                    if self._headers.setdefault(key, entry.digest) != entry.digest:
                        self._headers[key] = ""  # more than one: which it went by, its log does not say
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
        """The parties whose logs lack nothing: a record that is not in them was not written."""
        return frozenset(log.party for log in self.logs if log.bound is None and log.party not in self.broken)

    def has_completed(self, party: str) -> bool:
        """Whether a log says that the run was completed, so that others were there to the end."""
        return self.outcome_of(party) == "completed"

    def outcome_of(self, party: str) -> str:
        """How a log says that the run ended, by now; empty while it has not."""
        return self._ends[party].outcome

    def header_of(self, party: str, session: str) -> SignedHeader | None:
        """The header that a party took in a session.

        None where its log has none or several, where no site kept it, or where it is of another run or roster.
        """
        header = self.transcript.all_headers.get(self._headers.get((party, session), ""))
        return header if header is not None and is_of_run(header.said, self.members) else None


class Check:
    """One comparison: it sees every record of every log once, and then says what it suspects.

    Args:
        run: the logs that the check is about.

    Attributes:
        name: what findings of it have in common, in a word or two.
        compares: what it compares with what, for users.
        found: suspicions that the records have shown so far.
    """

    name: ClassVar[str]
    compares: ClassVar[str]

    def __init__(self, run: RunLogs) -> None:
        self.run = run
        self.found: list[Suspicion] = []

    def see(self, record: Record) -> None:
        """Take a record. The records of one log come in their order, and those of all logs by their times."""

    def suspicions(self) -> Iterable[Suspicion]:
        """What it suspects, once it has seen all records."""
        return self.found

    def counts(self) -> Mapping[str, int]:
        """What was compared, in words -> how often; once the suspicions were asked for."""
        return {}

    def notices(self) -> Iterable[Notice]:
        """What is odd, or could not be judged, but proves nothing; once the suspicions were asked for."""
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
        """Add a suspicion that a record shows; by default of the party that wrote it.

        Args:
            record: shows it.
            kind, what: of the finding.
            accused: other than the record's party.
            sides: other than the record's party and its peer.
            step: the message or event that it is about, if it is not the record's.
            digests: of the signed messages that show it.
            before: records that show it as well.
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
