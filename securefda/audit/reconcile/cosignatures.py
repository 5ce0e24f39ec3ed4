"""Who cosigned which checkpoint: what one log says of another's heads, against that log and the notes. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from securefda.audit.names import LogName
from securefda.audit.notes import Checkpoint, Note, NoteError
from securefda.audit.reconcile.check import Check, RunLogs
from securefda.audit.reconcile.suspicion import Mark, RunFinding, Suspicion
from securefda.audit.reconcile.transcript import SignedHeader
from securefda.audit.records import Record

_Head = tuple[str, int]  # origin and size


class CosignatureCheck(Check):
    """Compares the checkpoints that sites cosigned with those that the logs' owners signed."""

    name = "cosignatures"
    compares = "the checkpoints that sites cosigned with those that were signed, and with those in the headers"

    def __init__(self, run: RunLogs) -> None:
        super().__init__(run)
        self._signed: dict[_Head, tuple[str, Mark | None]] = {}
        self._unsigned: dict[tuple[_Head, str], Mark] = {}
        self._last: dict[str, tuple[int, str]] = {}
        self._heads: dict[str, tuple[int, str] | None] = {}
        self._origins = {run.members.log_of(party).origin: party for party in run.members.keys}
        self._cosigned = 0
        for head, roots in run.transcript.notes.items():
            self._signed[head] = (next(iter(roots)), None)
            if len(roots) > 1:
                self.found.append(self._fork(head, LogName.parse(head[0]).party, None))

    def counts(self) -> Mapping[str, int]:
        """How many cosignatures the logs speak of."""
        return {"cosigned checkpoints": self._cosigned}

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
        """Forks, and heads that are in no log; only a log that is whole lacks one for certain."""
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
        self._cosigned += 1
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
        """Size and root of the checkpoint in a header; None where there is none, which another check says."""
        digest = header.statement.digest
        if digest not in self._heads:
            try:
                head = Checkpoint.parse(Note.parse(header.said.previous_checkpoint).text)
                self._heads[digest] = head.size, head.root.hex()
            except NoteError:
                self._heads[digest] = None
        return self._heads[digest]

    def _fork(self, head: _Head, party: str, mark: Mark | None) -> Suspicion:
        size = head[1]
        notes = tuple(self.run.transcript.notes.get(head, {}).values())[:2]
        other = mark.party if mark is not None and mark.party != party else ""
        what = f"there are two checkpoints of {size} records of the log of {party}, with different roots"
        accused, marks = tuple(sorted({party, other} - {""})), () if mark is None else (mark,)
        finding = RunFinding("forked-log", what, accused, (party, other), "Checkpoint", records=marks)
        return Suspicion(finding, party, "forked-log", (), notes) if len(notes) == 2 else Suspicion(finding)
