"""Who cosigned which checkpoint: what one log says of another's heads, against that log and the notes. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from securefda.audit.names import LogName
from securefda.audit.notes import Checkpoint, Note, NoteError
from securefda.audit.reconcile.steps import HeadersTaken
from securefda.audit.reconcile.suspicion import Mark, RunFinding, RunKind, Suspicion
from securefda.audit.reconcile.transcript import Members, SignedHeader, SignedTranscript
from securefda.audit.records import Record

_Head = tuple[str, int]  # origin and size


class CosignatureCheck:
    """Holds the heads that sites cosigned against those that the logs' owners signed.

    Args:
        members: of the federation.
        transcript: the messages that were kept, with their notes.
        headers: that the parties took.
    """

    def __init__(self, members: Members, transcript: SignedTranscript, headers: HeadersTaken) -> None:
        self._members, self._transcript, self._headers = members, transcript, headers
        self._signed: dict[_Head, tuple[str, Mark | None]] = {}
        self._unsigned: dict[tuple[_Head, str], Mark] = {}
        self._last: dict[str, tuple[int, str]] = {}
        self._heads: dict[str, tuple[int, str] | None] = {}
        self._suspicions: list[Suspicion] = []
        self._target_origin = members.log_of(members.target).origin
        self.cosigned = 0
        for head, roots in transcript.notes.items():
            self._take_notes(head, roots)

    @property
    def counts(self) -> dict[str, int]:
        """How many cosignatures the logs speak of."""
        return {"cosigned checkpoints": self.cosigned}

    def see(self, record: Record) -> None:
        """Take a record."""
        entry = record.entry
        if entry.type == "checkpoint-signed":
            head = self._members.log_of(record.party).origin, int(entry.facts["size"])  # type: ignore[arg-type]
            self._own_head(head, str(entry.facts["root"]), record)
        elif entry.type == "checkpoint-cosigned":
            self._cosigned(record)
        elif entry.type in ("Advertise", "Update") and entry.direction == "sent":
            self._takes_part(record)

    def suspicions(self, whole: Collection[str]) -> Iterator[Suspicion]:
        """Forks, and heads that are in no log; only a log that is ``whole`` lacks one for certain."""
        yield from self._suspicions
        for (head, root), mark in self._unsigned.items():
            party = LogName.parse(head[0]).party
            known = self._signed.get(head)
            if known is not None and known[0] != root:
                yield self._fork(head, party, mark)
            elif known is None and party in whole:
                what = f"{mark.party} cosigned a checkpoint of {head[1]} records that the log of {party} does not have"
                accused = tuple(sorted((mark.party, party)))
                finding = RunFinding("forked-log", what, accused, (party, mark.party), "Cosigned", records=(mark,))
                yield Suspicion(finding)

    def _take_notes(self, head: _Head, roots: dict[str, bytes]) -> None:
        self._signed[head] = (next(iter(roots)), None)
        if len(roots) > 1:
            self._suspicions.append(self._fork(head, LogName.parse(head[0]).party, None))

    def _own_head(self, head: _Head, root: str, record: Record) -> None:
        known = self._signed.setdefault(head, (root, Mark.of(record)))
        if known[0] != root:
            self._suspicions.append(self._fork(head, record.party, Mark.of(record)))

    def _cosigned(self, record: Record) -> None:
        facts = record.entry.facts
        origin, size, root = str(facts["origin"]), int(facts["size"]), str(facts["root"])  # type: ignore[arg-type]
        self.cosigned += 1
        if origin == self._target_origin:
            self._last[record.party] = (size, root)
        if origin not in {self._members.log_of(party).origin for party in self._members.keys}:
            what = f"{record.party} cosigned a checkpoint of a log that is not of this run"
            self._suspicions.append(Suspicion(self._finding("forked-log", what, (record.party,), record)))
            return
        known = self._signed.get((origin, size))
        if known is None or known[0] != root:
            self._unsigned.setdefault(((origin, size), root), Mark.of(record))

    def _takes_part(self, record: Record) -> None:
        """A source goes on only from the checkpoint that it cosigned last."""
        header = self._headers.of(record.party, record.entry.session)
        head = None if header is None else self._head_in(header)
        if head is not None and self._last.get(record.party) != head:
            what = f"{record.party} took part under a header with another checkpoint than it had cosigned last"
            self._suspicions.append(Suspicion(self._finding("bad-checkpoint", what, (record.party,), record)))

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
        notes = tuple(self._transcript.notes.get(head, {}).values())[:2]
        other = mark.party if mark is not None and mark.party != party else ""
        finding = RunFinding(
            kind="forked-log",
            what=f"there are two checkpoints of {size} records of the log of {party}, with different roots",
            accused=tuple(sorted({party, other} - {""})),
            sides=(party, other),
            step="Checkpoint",
            records=() if mark is None else (mark,),
        )
        return Suspicion(finding, party, "forked-log", (), notes) if len(notes) == 2 else Suspicion(finding)

    def _finding(self, kind: RunKind, what: str, accused: tuple[str, ...], record: Record) -> RunFinding:
        entry = record.entry
        return RunFinding(
            kind=kind,
            what=what,
            accused=accused,
            sides=(record.party, entry.peer),
            step=entry.type,
            round=entry.round,
            attempt=entry.attempt,
            session=entry.session,
            records=(Mark.of(record),),
        )
