"""Checks that a run is continuous: one header per attempt, sound numbers, unbroken chain, one history per log. Pure.

`Continuity` judges the target's signed messages by themselves, and `CosignatureCheck` the cosigned checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from securefda.audit.log_records import Record
from securefda.audit.reconcile.check import Check, RunLogs
from securefda.audit.reconcile.claims import checkpoint_fault, header_fault, is_of_run, survivors_fault
from securefda.audit.reconcile.run_transcript import SignedHeader
from securefda.audit.reconcile.suspicion import Mark, Notice, RunFinding, RunKind, Suspicion
from securefda.audit.signed_notes import Checkpoint, LogName, Note, NoteError
from securefda.audit.statements import Statement, SurvivorsSaid


class Continuity(Check):
    """Judges the transcript of a run."""

    def __init__(self, run: RunLogs) -> None:
        super().__init__(run)
        self._members, self._transcript = run.members, run.transcript
        self._headers = sorted(run.transcript.all_headers.values(), key=lambda header: header.said.place)
        self._lost: list[Notice] = []
        lists = sum(kind == "Survivors" for kind, _ in run.transcript.of_type)
        self.counts = {
            "headers": len(self._headers),
            "results": len(run.transcript.results),
            "lists of survivors": lists,
        }

    def notices(self) -> list[Notice]:
        """Return notices of headers that continue a result that no site has."""
        return self._lost

    def suspicions(self) -> Iterator[Suspicion]:
        """Yield a suspicion for each fault that the messages show."""
        yield from self._equivocations()
        for header in self._headers:
            yield from self._header(header)
        yield from self._survivors()
        yield from self._chain()

    def _equivocations(self) -> Iterator[Suspicion]:
        """Yield suspicions of two messages in one place of a session, and of two headers of one attempt."""
        for (kind, session), statements in self._transcript.of_type.items():
            first, *others = statements.values()
            for other in others:
                what = f"{self._members.target} signed two different messages of type {kind} in one session"
                yield self._equivocation(what, kind, session, first, other)
        for before, after in pairwise(self._headers):
            session = after.statement.session
            if before.said.place == after.said.place and before.statement.session != session:
                what = f"{self._members.target} signed two headers of one attempt"
                yield self._equivocation(what, "Header", session, before.statement, after.statement)

    def _equivocation(self, what: str, kind: str, session: str, first: Statement, other: Statement) -> Suspicion:
        finding = self._finding("equivocation", what, kind, session, first.digest, other.digest)
        return Suspicion(finding, self._members.target, "equivocation", (first.digest, other.digest))

    def _header(self, header: SignedHeader) -> Iterator[Suspicion]:
        digest, session = header.statement.digest, header.statement.session
        where = f"round {header.said.round}, attempt {header.said.attempt}"
        if not is_of_run(header.said, self._members):  # its numbers and cosignatures depend on its own roster
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
                lists = statement.said
                fault = survivors_fault(header.said, lists) if isinstance(lists, SurvivorsSaid) else ""
                if fault:
                    what = f"the survivors of round {header.said.round}, attempt {header.said.attempt}: {fault}"
                    evidence = (header.statement.digest, digest)
                    finding = self._finding("threshold", what, kind, session, digest)
                    yield Suspicion(finding, self._members.target, "threshold", evidence)

    def _chain(self) -> Iterator[Suspicion]:
        """Check that every header continues the last result before its round, with the model of that result."""
        past: list[SignedHeader] = []
        for header in self._headers:
            terms = header.said
            if past:
                yield from self._link(past[-1], header, past)
            elif terms.previous_result and not self._is_of_a_crash(header, 0):
                what = f"the header of round {terms.round} continues a result that no site has kept"
                finding = self._finding(
                    "broken-chain", what, "Header", header.statement.session, header.statement.digest
                )
                yield Suspicion(replace(finding, accused=()))
            if header.statement.session in self._transcript.results:
                past.append(header)

    def _link(self, before: SignedHeader, header: SignedHeader, past: list[SignedHeader]) -> Iterator[Suspicion]:
        statement, result = self._transcript.results[before.statement.session]
        digest, session = header.statement.digest, header.statement.session
        if before.said.place == header.said.place:
            return  # two headers of one attempt, already reported as an equivocation
        evidence = [statement.digest, before.statement.digest, digest]
        if before.said.round == header.said.round:
            what = f"round {header.said.round} has another attempt after its result"
            finding = self._finding("broken-chain", what, "Header", session, digest, statement.digest)
        elif (header.said.previous_result, header.said.model) == (statement.digest, result.model_digest.hex()):
            return
        else:
            known = {kept.digest for kept, _ in self._transcript.results.values()}
            if header.said.previous_result not in {"", *known} and self._is_of_a_crash(header, before.said.round):
                return
            what = f"the header of round {header.said.round} does not continue the result of round {before.said.round}"
            for earlier in past:
                older = self._transcript.results[earlier.statement.session][0]
                if older.digest == header.said.previous_result != statement.digest:
                    what += f", but that of round {earlier.said.round}"
                    evidence += [older.digest, earlier.statement.digest]
            finding = self._finding("broken-chain", what, "Header", session, digest)
        # No site, unless the messages prove it: the result that it continues may be one that was not kept.
        yield Suspicion(replace(finding, accused=()), self._members.target, "broken-chain", tuple(evidence))

    def _is_of_a_crash(self, header: SignedHeader, before: int) -> bool:
        """Return whether a crash explains that a header continues a result that no site has.

        A target that is killed between computing a round's result and sending it continues with that result. Sources
        accept it, as they cannot tell it from a round in which they were away.
        """
        lost = header.said.round > before + 1 and self._members.target in self.run.restarted
        if lost:
            what = (
                f"its header of round {header.said.round} continues a result that no site has; its process was started "
                "anew in this run, and may have ended between a result and sending it"
            )
            self._lost.append(Notice(what, self._members.target, care=True))
        return lost

    def _finding(self, kind: RunKind, what: str, step: str, session: str, *digests: str) -> RunFinding:
        header, target = self._transcript.headers.get(session), self._members.target
        place = (0, 0) if header is None else header.said.place
        mark = self.run.marks.get((session, step, target))
        marks = () if mark is None else (mark,)
        return RunFinding(kind, what, (target,), (target, ""), step, *place, session, marks, digests)


_Head = tuple[str, int]  # origin and size


class CosignatureCheck(Check):
    """Compares the checkpoints that sites cosigned with those that the logs' owners signed."""

    counted = ("cosigned checkpoints",)

    def __init__(self, run: RunLogs) -> None:
        super().__init__(run)
        self._signed: dict[_Head, tuple[str, Mark | None]] = {}
        self._unsigned: dict[tuple[_Head, str], Mark] = {}
        self._last: dict[str, tuple[int, str]] = {}
        self._heads: dict[str, tuple[int, str] | None] = {}
        self._origins = {run.members.log_of(party).origin: party for party in run.members.keys}
        for head, roots in run.transcript.notes.items():
            self._signed[head] = (next(iter(roots)), None)
            if len(roots) > 1:
                self.found.append(self._fork(head, LogName.parse(head[0]).party, None))

    def see(self, record: Record) -> None:
        """Take a record."""
        entry, party = record.entry, record.party
        if entry.type == "checkpoint-signed":
            head = self.run.members.log_of(party).origin, int(entry.facts["size"])  # type: ignore[arg-type]
            root, mark = str(entry.facts["root"]), Mark.of(record)
            if self._signed.setdefault(head, (root, mark))[0] != root:
                self.found.append(self._fork(head, party, mark))
        elif entry.type == "checkpoint-cosigned":
            self._see_cosigned(record)
        elif entry.type in ("Advertise", "Update") and entry.direction == "sent":
            header = self.run.header_of(party, entry.session)
            taken = None if header is None else self._head_in(header)
            if taken is not None and self._last.get(party) != taken:
                what = f"{party} took part under a header with another checkpoint than it had cosigned last"
                self.suspect(record, "bad-checkpoint", what)

    def suspicions(self) -> Iterator[Suspicion]:
        """Yield suspicions of forks and of heads that are in no log. Only a complete log certainly lacks a head."""
        yield from self.found
        for (head, root), mark in self._unsigned.items():
            party = LogName.parse(head[0]).party
            known = self._signed.get(head)
            if known is not None and known[0] != root:
                yield self._fork(head, party, mark)
            elif known is None and party in self.run.whole:
                what = f"{mark.party} cosigned a checkpoint of {head[1]} records that the log of {party} does not have"
                accused = tuple(sorted((mark.party, party)))
                finding = RunFinding("forked-log", what, accused, (party, mark.party), "Cosigned", records=(mark,))
                yield Suspicion(finding)

    def _see_cosigned(self, record: Record) -> None:
        facts = record.entry.facts
        origin, size, root = str(facts["origin"]), int(facts["size"]), str(facts["root"])  # type: ignore[arg-type]
        self.counts["cosigned checkpoints"] += 1
        if origin not in self._origins:
            what = f"{record.party} cosigned a checkpoint of a log that is not of this run"
            self.suspect(record, "forked-log", what)
            return
        if self._origins[origin] == self.run.members.target:
            self._last[record.party] = (size, root)
        known = self._signed.get((origin, size))
        if known is None or known[0] != root:
            self._unsigned.setdefault(((origin, size), root), Mark.of(record))

    def _head_in(self, header: SignedHeader) -> tuple[int, str] | None:
        """Return the size and root of the checkpoint in a header; None without one, which another check reports."""
        digest = header.statement.digest
        if digest not in self._heads:
            try:
                head = Checkpoint.parse(Note.parse(header.said.previous_checkpoint).text)
                self._heads[digest] = head.size, head.root.hex()
            except NoteError:
                self._heads[digest] = None
        return self._heads[digest]

    def _fork(self, head: _Head, party: str, mark: Mark | None) -> Suspicion:
        notes = tuple(self.run.transcript.notes.get(head, {}).values())[:2]
        other = mark.party if mark is not None and mark.party != party else ""
        what = f"there are two checkpoints of {head[1]} records of the log of {party}, with different roots"
        accused, marks = tuple(sorted({party, other} - {""})), () if mark is None else (mark,)
        finding = RunFinding("forked-log", what, accused, (party, other), "Checkpoint", records=marks)
        return Suspicion(finding, party, "forked-log", (), notes) if len(notes) == 2 else Suspicion(finding)
