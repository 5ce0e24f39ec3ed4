"""Reconciliation: the logs of one run, of the target and its sources, read together and held against each other. Pure.

What it shows, where nothing is found: what one site says it sent, the other says it received; all were shown the same;
no source released twice in a round; no sum was opened over fewer than the headers allow; models, epsilons and
checkpoints continue each other. A log says what its party wrote; two that lie alike are not found out by comparison,
but by the signed messages, and by whoever else got these.

One site is accused where its own signatures settle it (`securefda.audit.reconcile.claims`), or its own log. What one
site says of another is a disagreement of the two.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final

from securefda.audit.findings import Verification
from securefda.audit.kept_check import NOT_JUDGED, KeptVerdict
from securefda.audit.reconcile.continuity import Continuity, LogLifecycle
from securefda.audit.reconcile.cosignatures import CosignatureCheck
from securefda.audit.reconcile.disclosures import Disclosures
from securefda.audit.reconcile.equivocation import EquivocationCheck
from securefda.audit.reconcile.pairing import Pairing
from securefda.audit.reconcile.spending import Epsilon, Spending
from securefda.audit.reconcile.steps import HeadersTaken, StepsTaken
from securefda.audit.reconcile.suspicion import Mark, Reconciliation, RunFinding, Suspicion, resolve
from securefda.audit.reconcile.transcript import Members, SignedTranscript
from securefda.audit.records import Record
from securefda.audit.statements import Statements
from securefda.audit.store import AuditError

_MOST_NOTICES: Final = 40


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
        is_unsigned: whether neither the log nor anybody else has a checkpoint of it, as where a site fails at once; the
            log is not used then.
    """

    party: str
    verification: Verification
    records: Callable[[], Iterator[Record]] = field(repr=False)
    size: int
    folder: str = ""
    is_unsigned: bool = False
    kept: KeptVerdict = NOT_JUDGED

    @property
    def bound(self) -> int | None:
        """How many of its records can be used; None for all."""
        finding = self.verification.finding
        if self.is_unsigned:
            return 0
        return None if finding is None or finding.kind == "missing-cosignature" else finding.index

    @property
    def is_whole(self) -> bool:
        """Whether a record that is not in it was not written."""
        return self.bound is None


class _Reading:
    """The records of all logs, side by side, so that little waits for its other half."""

    def __init__(self, logs: Sequence[PartyLog]) -> None:
        self._logs = logs
        self.broken: dict[str, str] = {}
        self.count = 0

    def __iter__(self) -> Iterator[Record]:
        for record in heapq.merge(*(self._of(log) for log in self._logs), key=lambda record: record.time):
            self.count += 1
            yield record

    def _of(self, log: PartyLog) -> Iterator[Record]:
        try:
            yield from islice(log.records(), log.bound)
        except AuditError as error:
            self.broken[log.party] = str(error)


class _Checks:
    """Everything that looks at records."""

    def __init__(
        self, logs: Sequence[PartyLog], members: Members, transcript: SignedTranscript, epsilon: Epsilon
    ) -> None:
        self.pairing = Pairing({log.party for log in logs}, {log.party: log.size for log in logs})
        self.headers = HeadersTaken(members, transcript)
        self.equivocation = EquivocationCheck(members, transcript, self.headers)
        self.steps = StepsTaken(members, transcript, self.headers)
        self.disclosures = Disclosures(members, transcript, self.headers)
        self.cosignatures = CosignatureCheck(members, transcript, self.headers)
        self.lifecycle = LogLifecycle(members)
        self.spending = Spending(epsilon)
        self.continuity = Continuity(members, transcript, self.equivocation.mark_of, self.lifecycle.has_restarted)

    def see(self, record: Record) -> None:
        """Show a record to all that want it."""
        self.headers.see(record)
        if record.entry.direction == "event":
            self.lifecycle.see(record)
            self.spending.see(record)
        else:
            self.pairing.see(record)
            self.equivocation.see(record)
            self.disclosures.see(record)
            if record.entry.type == "Join":
                self.lifecycle.see(record)
        self.steps.see(record)
        self.cosignatures.see(record)

    def suspicions(self, whole: frozenset[str]) -> Iterator[Suspicion]:
        """What all of them say; ``whole`` are the parties whose logs lack nothing."""
        yield from self.lifecycle.suspicions()
        yield from self.pairing.suspicions(whole)
        yield from self.equivocation.suspicions()
        yield from self.steps.suspicions()
        yield from self.disclosures.suspicions()
        yield from self.cosignatures.suspicions(whole)
        yield from self.spending.suspicions()
        yield from self.continuity.suspicions()

    @property
    def counts(self) -> dict[str, int]:
        """What was checked, in words."""
        parts = (self.equivocation, self.steps, self.disclosures, self.cosignatures, self.lifecycle, self.spending)
        counts = {"messages in both logs": self.pairing.paired}
        for part in (self.continuity, *parts):
            counts |= part.counts
        return counts


def reconcile(
    logs: Sequence[PartyLog], members: Members, transcript: SignedTranscript, statements: Statements, epsilon: Epsilon
) -> Reconciliation:
    """Hold the logs of one run against each other, in one pass over their records.

    Memory grows with the number of sessions, not of records, as long as the logs' clocks are not far apart.

    Args:
        logs: of different parties of one run; what of these is missing is listed as not checked.
        members: the federation that they are of.
        transcript: what `read_transcript` made of the messages that the parties kept.
        statements: these messages, to look up evidence.
        epsilon: the accountant.

    Raises:
        ValueError: two logs are of one party, or one is of no member.
    """
    parties = [log.party for log in logs]
    if len(set(parties)) != len(parties) or not set(parties) <= set(members.keys):
        raise ValueError("the logs are not of different members")
    checks, reading = _Checks(logs, members, transcript, epsilon), _Reading(logs)
    for record in reading:
        checks.see(record)
    whole = frozenset(log.party for log in logs if log.is_whole and log.party not in reading.broken)
    suspicions = [
        *_alone(logs, reading.broken, checks.lifecycle.completed),
        *checks.suspicions(whole),
        *_evidence(logs),
    ]
    wanted = {digest for suspicion in suspicions for digest in suspicion.evidence}
    findings = resolve(suspicions, statements.find(wanted) if wanted else {}, members)
    counts = {"logs": len(logs), "records": reading.count} | checks.counts
    counts |= {"kept messages": sum(log.kept.messages for log in logs), "findings": len(findings)}
    notices = [*_notices(logs, members, checks, whole), *_unkept(transcript, checks)]
    return Reconciliation(tuple(findings), tuple(notices), counts)


def _alone(logs: Sequence[PartyLog], broken: dict[str, str], completed: Collection[str]) -> Iterator[Suspicion]:
    """Logs that fail by themselves. What an honest crash leaves is for `_notices`.

    Cosignatures are for others to give: where they lack, nobody is accused.
    """
    for log in logs:
        found = log.verification.finding
        if log.is_unsigned:
            continue
        if found is not None and (found.kind != "missing-cosignature" or log.party in completed):
            what = f"the log of {log.party}: {found.kind}, {found.what}"
            finding = _of_log(log, "forked-log" if found.kind == "forked" else "unverified-log", what, found.index)
            yield Suspicion(finding if found.kind != "missing-cosignature" else replace(finding, accused=()))
        elif log.party in broken:
            yield Suspicion(_of_log(log, "unverified-log", broken[log.party], 0))


def _evidence(logs: Sequence[PartyLog]) -> Iterator[Suspicion]:
    """Kept messages that are not what their records say. No finding of the log, and no accusation."""
    for log in logs:
        for found in log.kept.findings:
            entry = found.entry
            yield Suspicion(
                RunFinding(
                    kind=found.kind,
                    what=f"beside the log of {log.party}: {found.what}",
                    accused=(),
                    sides=(log.party, ""),
                    step="" if entry is None else entry.type,
                    round=0 if entry is None else entry.round,
                    attempt=0 if entry is None else entry.attempt,
                    session="" if entry is None else entry.session,
                    records=() if found.index is None else (Mark(log.party, found.index),),
                    digests=() if entry is None else (entry.digest,),
                )
            )


def _of_log(log: PartyLog, kind: str, what: str, index: int) -> RunFinding:
    return RunFinding(
        kind="forked-log" if kind == "forked-log" else "unverified-log",
        what=what,
        accused=(log.party,),
        sides=(log.party, ""),
        records=(Mark(log.party, index),),
    )


def _notices(logs: Sequence[PartyLog], members: Members, checks: _Checks, whole: frozenset[str]) -> Iterator[str]:
    missing = sorted(set(members.keys) - {log.party for log in logs})
    for party in missing:
        count = checks.pairing.alone.pop(party, 0)
        yield f"{party}: its log is not there; {count} messages with it were not checked against it"
    for party, count in sorted(checks.pairing.alone.items()):
        yield f"{party} is not in the roster; {count} records are of messages with it"
    for log in logs:
        found = log.verification.finding
        if log.is_unsigned:
            yield f"{log.party}: nobody has a checkpoint of its log, so nothing is proved of it and it was not read"
            continue
        if found is not None and found.kind == "missing-cosignature" and log.party not in checks.lifecycle.completed:
            yield f"{log.party}: {found.what}; whoever has its key could have made what follows record {found.index}"
        yield from (f"{log.party}: {note}" for note in (*log.verification.notes, *log.kept.notes))
        if log.party not in whole:
            yield f"{log.party}: what its log lacks was not judged, since it fails by itself"
    yield from checks.lifecycle.notices(whole)
    yield from checks.continuity.notices
    yield from checks.spending.notices
    lost = [
        f"{sender} sent {count} of type {kind} that {receiver} did not receive"
        for (sender, receiver, kind), count in sorted(checks.pairing.undelivered(whole).items())
    ]
    yield from lost[:_MOST_NOTICES]
    if len(lost) > _MOST_NOTICES:
        yield f"and {len(lost) - _MOST_NOTICES} more lines of messages that were sent and not received"


def _unkept(transcript: SignedTranscript, checks: _Checks) -> Iterator[str]:
    if checks.disclosures.unknown:
        yield f"{checks.disclosures.unknown} records of releases are of sessions without one header that was kept"
    if transcript.ignored:
        why = "are of another run, or not their sender's to send"
        yield f"{transcript.ignored} kept messages {why}; they were left out"
