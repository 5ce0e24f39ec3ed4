"""What must be one: a header, a list, a result for all who get it, and a release in a round. Pure.

Of every slot the first message is remembered, and whatever differs from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from securefda.audit.reconcile.steps import HeadersTaken
from securefda.audit.reconcile.suspicion import Mark, RunFinding, Suspicion
from securefda.audit.reconcile.transcript import Members, SignedTranscript
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


@dataclass(frozen=True, slots=True)
class _Release:
    session: str
    type: str


class EquivocationCheck:
    """Finds two messages where there must be one.

    Args:
        members: of the federation.
        transcript: the messages that were kept.
        headers: that the parties took.
    """

    def __init__(self, members: Members, transcript: SignedTranscript, headers: HeadersTaken) -> None:
        self._members, self._transcript, self._headers = members, transcript, headers
        self._slots: dict[tuple[str, str, str], _Slot] = {}
        self._rounds: dict[tuple[str, int], _Slot] = {}
        self._releases: dict[str, _Release] = {}
        self._allowed = {source: frozenset(ONCE) for source in members.sources} | {members.target: frozenset(BROADCAST)}

    def see(self, record: Record) -> None:
        """Take a record; those of events, and of messages that there may be several of, are passed over."""
        entry = record.entry
        if entry.direction == "event" or not entry.session:
            return
        sender = record.party if entry.direction == "sent" else entry.peer
        if entry.type not in self._allowed.get(sender, ()):
            return
        mark = Mark.of(record)
        if entry.type in RELEASES:
            self._see_release(record, sender, mark)
            return
        slot = self._slots.get((entry.session, entry.type, sender))
        if slot is None:
            self._slots[entry.session, entry.type, sender] = _Slot(entry.digest, mark)
        elif slot.first != entry.digest or sender == record.party:
            slot.take(entry.digest, mark, sender)

    def mark_of(self, session: str, kind: str, sender: str) -> tuple[Mark, ...]:
        """Where a message stands that was sent once in a session."""
        slot = self._slots.get((session, kind, sender))
        return () if slot is None else (slot.mark,)

    @property
    def counts(self) -> dict[str, int]:
        """How many slots there were."""
        return {"messages that must be one for all": len(self._slots), "releases": len(self._releases)}

    def suspicions(self) -> Iterator[Suspicion]:
        """Equivocations, and second releases."""
        for key, slot in self._slots.items():
            for digest, marks in slot.others.items():
                yield self._equivocation(key, slot, digest, marks)
        for (source, number), of_round in self._rounds.items():
            for digest, marks in of_round.others.items():
                yield self._double_release(source, number, of_round, digest, marks)

    def _see_release(self, record: Record, source: str, mark: Mark) -> None:
        entry = record.entry
        header = self._headers.of(record.party, entry.session)
        number = entry.round if header is None else header.said.round
        self._releases.setdefault(entry.digest, _Release(entry.session, entry.type))
        slot = self._rounds.get((source, number))
        if slot is None:
            self._rounds[source, number] = _Slot(entry.digest, mark)
        else:
            slot.take(entry.digest, mark, source)

    def _equivocation(self, key: tuple[str, str, str], slot: _Slot, digest: str, marks: list[Mark]) -> Suspicion:
        session, kind, sender = key
        header = self._transcript.headers.get(session)
        place = (0, 0) if header is None else header.said.place
        other = next((mark.party for mark in (slot.mark, *marks) if mark.party != sender), "")
        finding = RunFinding(
            kind="equivocation",
            what=f"there are two different messages of type {kind} of {sender} in one session",
            accused=self._blamed(sender, slot, marks),
            sides=(sender, other),
            step=kind,
            round=place[0],
            attempt=place[1],
            session=session,
            records=(slot.mark, *marks),
            digests=(slot.first, digest),
        )
        return Suspicion(finding, sender, "equivocation", (slot.first, digest))

    def _double_release(self, source: str, number: int, slot: _Slot, digest: str, marks: list[Mark]) -> Suspicion:
        releases = [self._releases[one] for one in (slot.first, digest)]
        header = self._headers.of(source, releases[1].session)
        finding = RunFinding(
            kind="double-release",
            what=f"there are two releases of {source} in round {number}: {releases[0].type} and {releases[1].type}",
            accused=self._blamed(source, slot, marks),
            sides=(source, self._members.target),
            step=releases[1].type,
            round=number,
            attempt=0 if header is None else header.said.attempt,
            session=releases[1].session,
            records=(slot.mark, *marks),
            digests=(slot.first, digest),
        )
        return Suspicion(finding, source, "double-release", (slot.first, digest))

    def _blamed(self, sender: str, slot: _Slot, marks: list[Mark]) -> tuple[str, ...]:
        """The target, if its own log has both messages; else the sender and those whose logs say so, who disagree.

        A source's own log can have two where the target has shown it one session, or one round, in two run folders.
        """
        target, others = self._members.target, {mark.party for mark in marks}
        if sender == slot.mark.party == target and target in others:
            return (target,)
        parties = {sender, slot.mark.party, *others}
        return tuple(sorted(parties if len(parties) > 1 else {sender, target}))
