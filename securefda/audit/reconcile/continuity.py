"""What follows from the signed messages alone: one header an attempt, sound numbers, an unbroken chain. Pure.

How logs begin and end: one roster, a policy before each part, and an end. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise

from securefda.audit.reconcile.claims import checkpoint_fault, header_fault, is_of_run, survivors_fault
from securefda.audit.reconcile.suspicion import Mark, RunFinding, RunKind, Suspicion
from securefda.audit.reconcile.transcript import Members, SignedHeader, SignedTranscript
from securefda.audit.records import Record
from securefda.audit.statements import Statement, SurvivorsSaid


@dataclass(slots=True)
class _Opened:
    began: bool = False
    outcome: str = ""
    restarted: bool = False
    policy_due: bool = False
    policies: list[tuple[int, str]] = field(default_factory=list)


class LogLifecycle:
    """Follows how each log begins, goes on and ends; the records of one log come in their order."""

    def __init__(self, members: Members) -> None:
        self._members = members
        self._logs: dict[str, _Opened] = {}
        self._suspicions: list[Suspicion] = []

    @property
    def counts(self) -> dict[str, int]:
        """How many policies were loaded."""
        return {"policies loaded": sum(len(log.policies) for log in self._logs.values())}

    @property
    def completed(self) -> frozenset[str]:
        """Parties whose logs say that the run was completed, so that others were there to the end."""
        return frozenset(party for party, log in self._logs.items() if log.outcome == "completed")

    def has_restarted(self, party: str) -> bool:
        """Whether a log was taken up again by a new process."""
        return party in self._logs and self._logs[party].restarted

    def suspicions(self) -> Iterator[Suspicion]:
        """Logs of another roster, and sources that took part without saying under which policy."""
        return iter(self._suspicions)

    def notices(self, whole: Collection[str]) -> Iterator[str]:
        """Changes of policies, and logs without an end."""
        for party, log in sorted(self._logs.items()):
            yield from _changes(party, log.policies)
            if party in whole and not log.outcome:
                yield f"{party}: its log has no end: the run goes on, or was broken off"

    def see(self, record: Record) -> None:
        """Take a record."""
        entry = record.entry
        if entry.direction != "event" and not (entry.type == "Join" and entry.direction == "sent"):
            return
        log = self._logs.get(record.party)
        if log is None:
            log = self._logs[record.party] = _Opened()
        if entry.type == "policy-loaded":
            log.policies.append((record.seq, str(entry.facts["policy"])))
            log.policy_due = False
        elif entry.type in ("run-began", "restarted"):
            self._begins(record, log)
        elif entry.type == "run-ended":
            log.outcome = str(entry.facts["outcome"])
        elif entry.type == "Join" and log.policy_due:
            log.policy_due = False
            what = f"{record.party} joined without a record of the policy that it started with"
            self._add("policy-not-logged", what, record)

    def _begins(self, record: Record, log: _Opened) -> None:
        log.outcome = ""
        log.policy_due = record.party != self._members.target
        log.restarted |= record.entry.type == "restarted"
        if record.entry.type != "run-began":
            return
        if log.began or record.seq != 0:
            self._add("roster-differs", f"the log of {record.party} begins twice", record)
        log.began = True
        if record.entry.facts["roster"] != self._members.roster:
            what = f"the log of {record.party} is of another roster than the one that it is read under"
            self._add("roster-differs", what, record, accused=())

    def _add(self, kind: RunKind, what: str, record: Record, accused: tuple[str, ...] | None = None) -> None:
        finding = RunFinding(
            kind=kind,
            what=what,
            accused=(record.party,) if accused is None else accused,
            sides=(record.party, ""),
            step=record.entry.type,
            records=(Mark.of(record),),
        )
        self._suspicions.append(Suspicion(finding))


def _changes(party: str, policies: list[tuple[int, str]]) -> Iterator[str]:
    seen: list[str] = []
    for index, digest in policies:
        if seen and digest != seen[-1]:
            back = "an earlier policy is back" if digest in seen else "another policy"
            yield f"{party}: {back} from record {index} on: {digest[:12]} instead of {seen[-1][:12]}"
        seen.append(digest)


MarkOf = Callable[[str, str, str], tuple[Mark, ...]]
"""Where a message stands in a log, by session, type and sender."""


class Continuity:
    """Judges the transcript of a run.

    Args:
        members: of the federation.
        transcript: the messages that were kept.
        mark_of: finds the records of a message.
        has_restarted: tells, when the suspicions are asked for, whether a party's process was started anew in the run.
    """

    def __init__(
        self, members: Members, transcript: SignedTranscript, mark_of: MarkOf, has_restarted: Callable[[str], bool]
    ) -> None:
        self._members, self._transcript, self._mark_of = members, transcript, mark_of
        self._has_restarted = has_restarted
        self.notices: list[str] = []
        self._headers = sorted(transcript.all_headers.values(), key=lambda header: header.said.place)

    @property
    def counts(self) -> dict[str, int]:
        """What there is of it."""
        lists = sum(kind == "Survivors" for kind, _ in self._transcript.of_type)
        return {"headers": len(self._headers), "results": len(self._transcript.results), "lists of survivors": lists}

    def suspicions(self) -> Iterator[Suspicion]:
        """All that the messages show."""
        yield from self._one_per_slot()
        yield from self._one_header_per_attempt()
        for header in self._headers:
            yield from self._header(header)
        yield from self._survivors()
        yield from self._chain()

    def _one_per_slot(self) -> Iterator[Suspicion]:
        for (kind, session), statements in self._transcript.of_type.items():
            one, *others = statements.values()
            for other in others:
                what = f"{self._members.target} signed two different messages of type {kind} in one session"
                yield self._equivocation(what, kind, session, one, other)

    def _one_header_per_attempt(self) -> Iterator[Suspicion]:
        for one, other in pairwise(self._headers):
            if one.said.place == other.said.place and one.statement.session != other.statement.session:
                what = f"{self._members.target} signed two headers of one attempt"
                yield self._equivocation(what, "Header", other.statement.session, one.statement, other.statement)

    def _equivocation(self, what: str, kind: str, session: str, one: Statement, other: Statement) -> Suspicion:
        finding = self._finding("equivocation", what, kind, session, one.digest, other.digest)
        return Suspicion(finding, self._members.target, "equivocation", (one.digest, other.digest))

    def _header(self, header: SignedHeader) -> Iterator[Suspicion]:
        digest, session = header.statement.digest, header.statement.session
        where = f"round {header.said.round}, attempt {header.said.attempt}"
        if not is_of_run(header.said, self._members):  # whose numbers and cosignatures are for that roster to judge
            what = f"the header of {where} is of another roster than the one that it is read under"
            finding = self._finding("roster-differs", what, "Header", session, digest)
            yield Suspicion(replace(finding, accused=()))
            return
        faults: tuple[tuple[RunKind, str], ...] = (
            ("threshold", header_fault(header.said)),
            ("bad-checkpoint", checkpoint_fault(header.said, self._members)),
        )
        for kind, fault in faults:
            if fault:
                finding = self._finding(kind, f"the header of {where} has {fault}", "Header", session, digest)
                yield Suspicion(finding, self._members.target, kind, (digest,))

    def _survivors(self) -> Iterator[Suspicion]:
        for (kind, session), statements in self._transcript.of_type.items():
            header = self._transcript.headers.get(session)
            if kind != "Survivors" or header is None or not is_of_run(header.said, self._members):
                continue
            for digest, statement in statements.items():
                said = statement.said
                fault = survivors_fault(header.said, said) if isinstance(said, SurvivorsSaid) else ""
                if fault:
                    what = f"the survivors of round {header.said.round}, attempt {header.said.attempt}: {fault}"
                    evidence = (header.statement.digest, digest)
                    finding = self._finding("threshold", what, kind, session, digest)
                    yield Suspicion(finding, self._members.target, "threshold", evidence)

    def _chain(self) -> Iterator[Suspicion]:
        """Every header continues the last result before its round, with its model."""
        past: list[SignedHeader] = []
        for header in self._headers:
            said = header.said
            earlier = [one for one in past[-1:] if one.said.round < said.round]
            if not earlier and past:  # the result is of the same round: it was over, and begins again
                earlier = past[-1:]
            if earlier:
                yield from self._link(earlier[0], header, past)
            elif said.previous_result and not self._is_of_a_crash(header, 0):
                what = f"the header of round {said.round} continues a result that is not there"
                finding = self._finding(
                    "broken-chain", what, "Header", header.statement.session, header.statement.digest
                )
                yield Suspicion(replace(finding, accused=()))
            if header.statement.session in self._transcript.results:
                past.append(header)

    def _link(self, before: SignedHeader, header: SignedHeader, past: list[SignedHeader]) -> Iterator[Suspicion]:
        result, said = self._transcript.results[before.statement.session]
        digest = header.statement.digest
        if before.said.place == header.said.place:
            return  # two headers of one attempt, which is said of them already
        if before.said.round == header.said.round:
            what = f"round {header.said.round} has another attempt after its result"
            finding = self._finding("broken-chain", what, "Header", header.statement.session, digest, result.digest)
            evidence = [result.digest, before.statement.digest, digest]
            yield Suspicion(replace(finding, accused=()), self._members.target, "broken-chain", tuple(evidence))
            return
        if (header.said.previous_result, header.said.model) == (result.digest, said.model):
            return
        known = {one.digest for one, _ in self._transcript.results.values()}
        if header.said.previous_result not in {"", *known} and self._is_of_a_crash(header, before.said.round):
            return
        what = f"the header of round {header.said.round} does not continue the result of round {before.said.round}"
        evidence = [result.digest, before.statement.digest, digest]
        for one in past:
            older = self._transcript.results[one.statement.session][0]
            if older.digest == header.said.previous_result != result.digest:
                what += f", but that of round {one.said.round}"
                evidence += [older.digest, one.statement.digest]
        finding = self._finding("broken-chain", what, "Header", header.statement.session, digest)
        # Nobody, unless the messages prove it: the result that it continues may be one that was not kept.
        yield Suspicion(replace(finding, accused=()), self._members.target, "broken-chain", tuple(evidence))

    def _is_of_a_crash(self, header: SignedHeader, before: int) -> bool:
        """A target that was killed between a round's result and sending it goes on with a result that nobody has.

        Sources let that pass, as they cannot tell it from a round in which they were away.
        """
        lost = header.said.round > before + 1 and self._has_restarted(self._members.target)
        if lost:
            self.notices.append(
                f"{self._members.target}: its header of round {header.said.round} continues a result that nobody has; "
                "its process was started anew in this run, and may have ended between a result and sending it"
            )
        return lost

    def _finding(self, kind: RunKind, what: str, step: str, session: str, *digests: str) -> RunFinding:
        header, target = self._transcript.headers.get(session), self._members.target
        marks = self._mark_of(session, step, target)
        place = (0, 0) if header is None else header.said.place
        return RunFinding(
            kind=kind,
            what=what,
            accused=(target,),
            sides=(target, ""),
            step=step,
            round=place[0],
            attempt=place[1],
            session=session,
            records=marks,
            digests=digests,
        )
