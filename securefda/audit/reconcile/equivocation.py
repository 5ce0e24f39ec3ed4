"""What must be one: a header, a list, a result for all who get it, and a release in a round. Pure.

Of every slot the first message is remembered, and whatever differs from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from securefda.audit.reconcile.check import Check, RunLogs
from securefda.audit.reconcile.suspicion import Mark, RunFinding, RunKind, Suspicion
from securefda.audit.records import Record
from securefda.audit.statements import BROADCAST, ONCE, RELEASES


@dataclass(slots=True)
class _Slot:
    """A place for one message.

    ``first`` and ``mark`` are its digest and where it stands, in the signer's own log if that has it; ``others`` are
    the records of other messages in the same place.
    """

    first: str
    mark: Mark
    others: dict[str, list[Mark]] = field(default_factory=dict)

    def take(self, digest: str, mark: Mark, signer: str) -> None:
        if digest != self.first:
            self.others.setdefault(digest, []).append(mark)
        elif mark.party == signer != self.mark.party:
            self.mark = mark


class EquivocationCheck(Check):
    """Finds two messages where there must be one."""

    name = "equivocation"
    compares = "all records of a message that must be one: for all who get it, or in a round"

    def __init__(self, run: RunLogs) -> None:
        super().__init__(run)
        self._slots: dict[tuple[str, str, str], _Slot] = {}
        self._rounds: dict[tuple[str, int], _Slot] = {}
        self._releases: dict[str, tuple[str, str]] = {}  # digest -> session and type
        once = {source: frozenset(ONCE) for source in run.members.sources}
        self._once: Mapping[str, frozenset[str]] = once | {run.members.target: frozenset(BROADCAST)}

    def counts(self) -> Mapping[str, int]:
        """How many slots there were."""
        return {"messages that must be one for all": len(self._slots), "releases": len(self._releases)}

    def see(self, record: Record) -> None:
        """Take a record; those of events, and of messages that there may be several of, are passed over."""
        entry = record.entry
        if entry.direction == "event" or not entry.session:
            return
        sender = record.party if entry.direction == "sent" else entry.peer
        if entry.type not in self._once.get(sender, ()):
            return
        mark = Mark.of(record)
        if entry.type in RELEASES:
            header = self.run.header_of(record.party, entry.session)
            number = entry.round if header is None else header.said.round
            self._releases.setdefault(entry.digest, (entry.session, entry.type))
            self._rounds.setdefault((sender, number), _Slot(entry.digest, mark)).take(entry.digest, mark, sender)
            return
        key = (entry.session, entry.type, sender)
        slot = self._slots.get(key)
        if slot is None:
            slot = self._slots[key] = _Slot(entry.digest, mark)
            self.run.marks[key] = mark
        elif slot.first != entry.digest or sender == record.party:
            slot.take(entry.digest, mark, sender)
            self.run.marks[key] = slot.mark

    def suspicions(self) -> Iterator[Suspicion]:
        """Equivocations, and second releases."""
        for (session, kind, sender), slot in self._slots.items():
            for digest, marks in slot.others.items():
                header = self.run.transcript.headers.get(session)
                place = (0, 0) if header is None else header.said.place
                what = f"there are two different messages of type {kind} of {sender} in one session"
                other = next((mark.party for mark in (slot.mark, *marks) if mark.party != sender), "")
                yield self._suspicion("equivocation", what, (sender, other), slot, digest, kind, *place, session)
        for (source, number), slot in self._rounds.items():
            for digest in slot.others:
                first, (session, kind) = self._releases[slot.first][1], self._releases[digest]
                taken = self.run.header_of(source, session)
                attempt = 0 if taken is None else taken.said.attempt
                what = f"there are two releases of {source} in round {number}: {first} and {kind}"
                sides = (source, self.run.members.target)
                yield self._suspicion("double-release", what, sides, slot, digest, kind, number, attempt, session)

    def _suspicion(
        self, kind: RunKind, what: str, sides: tuple[str, str], slot: _Slot, digest: str, *place: str | int
    ) -> Suspicion:
        """Of a slot and another message in it; ``place`` is the step, round, attempt and session."""
        sender, marks, digests = sides[0], slot.others[digest], (slot.first, digest)
        step, number, attempt, session = place
        finding = RunFinding(
            kind=kind,
            what=what,
            accused=self._blamed(sender, slot, marks),
            sides=sides,
            step=str(step),
            round=int(number),
            attempt=int(attempt),
            session=str(session),
            records=(slot.mark, *marks),
            digests=digests,
        )
        return Suspicion(finding, sender, kind, digests)

    def _blamed(self, sender: str, slot: _Slot, marks: list[Mark]) -> tuple[str, ...]:
        """The target, if its own log has both messages; else the sender and those whose logs say so, who disagree.

        A source's own log can have two where the target has shown it one session, or one round, in two run folders.
        """
        target, others = self.run.members.target, {mark.party for mark in marks}
        if sender == slot.mark.party == target and target in others:
            return (target,)
        parties = {sender, slot.mark.party, *others}
        return tuple(sorted(parties if len(parties) > 1 else {sender, target}))
