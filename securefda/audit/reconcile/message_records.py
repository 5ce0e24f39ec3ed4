"""Compares the records of the same messages in several logs, and compares records with headers. Pure.

- `Pairing`: each message that one log records as sent is recorded as received in another.
- `EquivocationCheck`: all receivers get the same header, list and result, and a source releases once in a round.
- `Disclosures`: a record states the disclosure that follows from the header.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from securefda.audit.log_records import Disclosure, Record
from securefda.audit.reconcile.check import Check, RunLogs
from securefda.audit.reconcile.run_transcript import Members
from securefda.audit.reconcile.suspicion import Mark, Notice, RunFinding, RunKind, Suspicion
from securefda.audit.statements import BROADCAST, ONCE, RELEASES, HeaderSaid
from securefda.text import counted

_MOST_NOTICES: Final = 40


class _Half(NamedTuple):
    sent: bool
    place: int
    numbers: tuple[int, int, int, str]  # bytes, round, attempt, session


class Pairing(Check):
    """Pairs the two records of every message.

    A log that is being written may have more records now than when the reading began. The new ones may lack their
    counterpart, and serve only as counterparts of records that were in the logs before.
    """

    counted = ("messages in both logs",)

    def __init__(self, run: RunLogs) -> None:
        super().__init__(run)
        self._open: dict[tuple[str, str, str, str], list[_Half]] = {}
        self._alone: Counter[str] = Counter()
        """Numbers of records of messages with a site whose log is not here, by that site."""
        self._alone_in_rounds: set[str] = set()

    def see(self, record: Record) -> None:
        """Take a record. Events are ignored."""
        entry = record.entry
        if entry.direction == "event":
            return
        if entry.peer not in self.run.parties:
            self._alone[entry.peer] += 1
            if entry.round:
                self._alone_in_rounds.add(entry.peer)
            return
        sent = entry.direction == "sent"
        ends = (record.party, entry.peer) if sent else (entry.peer, record.party)
        key = (*ends, entry.type, entry.digest)
        half = _Half(sent, record.seq, (entry.bytes, entry.round, entry.attempt, entry.session))
        waiting = self._open.get(key)
        if waiting is None:
            if sent or record.seq < self.run.sizes[record.party]:
                self._open[key] = [half]
            return
        if waiting[0].sent == sent:
            waiting.append(half)
            return
        other = waiting.pop(0)
        if not waiting:
            del self._open[key]
        self.counts["messages in both logs"] += 1
        if not _agree(other.numbers, half.numbers):
            self.found.append(_differ(key, half, other))

    def suspicions(self) -> Iterator[Suspicion]:
        """Yield suspicions of records without a counterpart in a complete log, and of missing required logs."""
        yield from self.found
        for party, required in self._missing():
            if required:
                count = self._alone[party]
                here = f"; the logs that are here have {counted(count, 'message')} with it" if count else ""
                what = f"the log of {party} is missing{here}"
                yield Suspicion(RunFinding("missing-log", what, (), (party, "")))
        for (sender, receiver, kind, digest), waiting in self._open.items():
            for half in waiting:
                if half.sent or sender not in self.run.whole:
                    continue
                _, number, attempt, session = half.numbers
                what = f"the log of {receiver} has received a {kind} from {sender}, whose log has not sent it"
                both, marks = (sender, receiver), (Mark(receiver, half.place),)
                accused = tuple(sorted(both))
                yield Suspicion(
                    RunFinding("never-sent", what, accused, both, kind, number, attempt, session, marks, (digest,))
                )

    def _missing(self) -> Iterator[tuple[str, bool]]:
        """Yield the sites whose log is not here, and whether it is required."""
        took_part = self._alone_in_rounds | {
            site for header in self.run.transcript.all_headers.values() for site in header.said.levels
        }
        for party in sorted(set(self.run.members.keys) - self.run.parties):
            required = self.run.required == "all" or (self.run.required == "participants" and party in took_part)
            yield party, required

    def notices(self) -> Iterator[Notice]:
        """Yield notices of missing logs, and of sent messages that a broken connection or a crash lost."""
        for party, required in self._missing():
            if not required:
                count = self._alone[party]
                unchecked = f"; {counted(count, 'message')} with it could not be checked against it" if count else ""
                yield Notice(f"its log is missing{unchecked}", party)
        for party, count in sorted(self._alone.items()):
            if party not in self.run.members.keys:
                yield Notice(f"{party} is not in the roster; {count} records are of messages with it", care=True)
        lost: Counter[tuple[str, str, str]] = Counter()
        for (sender, receiver, kind, _), waiting in self._open.items():
            if receiver in self.run.whole:
                sent = sum(half.sent and half.place < self.run.sizes[sender] for half in waiting)
                lost[sender, receiver, kind] += sent
        lines = [
            f"{sender} sent {count} of type {kind} that {receiver} did not receive"
            for (sender, receiver, kind), count in sorted((+lost).items())  # those that are not 0
        ]
        yield from map(Notice, lines[:_MOST_NOTICES])
        if len(lines) > _MOST_NOTICES:
            yield Notice(f"and {len(lines) - _MOST_NOTICES} more lines of messages that were sent and not received")


def _agree(numbers: tuple[int, int, int, str], other: tuple[int, int, int, str]) -> bool:
    """Return whether both ends recorded the same. A site that has forgotten an old attempt has no round for it."""
    if 0 in (numbers[1], other[1]):
        return (numbers[0], numbers[3]) == (other[0], other[3])
    return numbers == other


def _differ(key: tuple[str, str, str, str], half: _Half, other: _Half) -> Suspicion:
    sender, receiver, kind, digest = key
    sent, received = (half, other) if half.sent else (other, half)
    names = ("bytes", "round", "attempt", "session")
    what = ", ".join(
        f"{name} {str(mine)[:12]} and {str(theirs)[:12]}"
        for name, mine, theirs in zip(names, sent.numbers, received.numbers, strict=True)
        if mine != theirs
    )
    _, number, attempt, session = min(sent.numbers, received.numbers, key=lambda numbers: numbers[1:])
    what = f"{sender} and {receiver} have the same {kind} with different numbers: {what}"
    accused, marks = tuple(sorted((sender, receiver))), (Mark(sender, sent.place), Mark(receiver, received.place))
    place = number, attempt, session
    return Suspicion(RunFinding("records-differ", what, accused, (sender, receiver), kind, *place, marks, (digest,)))


_Place = tuple[str, int, int, str]  # step, round, attempt and session


@dataclass(slots=True)
class _Slot:
    """A place for one message.

    ``first`` and ``mark`` are the digest and the record of the message, in the signer's own log if it has the message.
    ``others`` are the records of other messages in the same place.
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

    def __init__(self, run: RunLogs) -> None:
        super().__init__(run)
        self._slots: dict[tuple[str, str, str], _Slot] = {}
        self._rounds: dict[tuple[str, int], _Slot] = {}
        self._releases: dict[str, tuple[str, str]] = {}  # digest -> session and type
        once = {source: frozenset(ONCE) for source in run.members.sources}
        self._once: Mapping[str, frozenset[str]] = once | {run.members.target: frozenset(BROADCAST)}

    def see(self, record: Record) -> None:
        """Take a record. Events, and messages of types that may come several times, are ignored."""
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
        """Yield suspicions of equivocations and of second releases."""
        self.counts = {"messages that must be one for all": len(self._slots), "releases": len(self._releases)}
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
        self, kind: RunKind, what: str, sides: tuple[str, str], slot: _Slot, digest: str, *place: *_Place
    ) -> Suspicion:
        """Return the suspicion for a slot with another message."""
        sender, marks, digests = sides[0], slot.others[digest], (slot.first, digest)
        accused = self._blamed(sender, slot, marks)
        finding = RunFinding(kind, what, accused, sides, *place, (slot.mark, *marks), digests)
        return Suspicion(finding, sender, kind, digests)

    def _blamed(self, sender: str, slot: _Slot, marks: list[Mark]) -> tuple[str, ...]:
        """Return the target if its own log has both messages; else the sender and the sites whose logs contradict it.

        An honest source's log can have both if the target showed it one session, or one round, in two run folders.
        """
        target, others = self.run.members.target, {mark.party for mark in marks}
        if sender == slot.mark.party == target and target in others:
            return (target,)
        parties = {sender, slot.mark.party, *others}
        return tuple(sorted(parties if len(parties) > 1 else {sender, target}))


class Disclosures(Check):
    """Compares the records of sent messages with the header of their session."""

    counted = ("disclosures compared with headers",)

    def __init__(self, run: RunLogs) -> None:
        super().__init__(run)
        self._unknown = 0

    def notices(self) -> Iterator[Notice]:
        """Yield a notice of the records that could not be checked."""
        if self._unknown:
            what = f"{self._unknown} records of releases are of sessions without one header that was kept"
            yield Notice(what, care=True)

    def see(self, record: Record) -> None:
        """Take a record. Received messages, events and records outside sessions are ignored."""
        entry, party = record.entry, record.party
        if not entry.session or entry.direction == "event":
            return
        header = self.run.header_of(party, entry.session)
        if header is None:
            self._unknown += entry.type in RELEASES
            return
        if entry.round and (entry.round, entry.attempt) != header.said.place:  # 0: a site had forgotten the attempt
            what = f"{party} has a {entry.type} in round {entry.round}, attempt {entry.attempt}; its header says "
            where = f"round {header.said.round}, attempt {header.said.attempt}"
            self.suspect(record, "records-differ", what + where)
        if entry.direction != "sent":
            return
        expected = _expected(record, header.said, self.run.members)
        if expected is not None or entry.disclosure is not None:
            self.counts["disclosures compared with headers"] += 1
        if entry.disclosure != expected:
            stated, is_so = _words(entry.disclosure), _words(expected)
            what = f"the log of {party} says that its {entry.type} discloses {stated}; under its header it is {is_so}"
            self.suspect(record, "disclosure-differs", what)
        is_allowed = entry.decision is not None and entry.decision.verdict == "allowed"
        if party != self.run.members.target and expected is not None and not is_allowed:
            self.suspect(record, "not-allowed", f"{party} sent a {entry.type} without a decision that allows it")


def _expected(record: Record, header: HeaderSaid, members: Members) -> Disclosure | None:
    """Return what this message discloses to its receiver; None for nothing."""
    kind, party = record.entry.type, record.party
    if party == members.target:
        if kind != "Header":
            return None
        level = header.levels.get(record.entry.peer, "individual")
        return Disclosure("individual", header.shows[level], 1)
    level = header.levels.get(party, "individual")
    if kind == "MaskedInput" and level != "individual":
        return Disclosure(level, header.adds, header.cohort_quorum if level == "cohort" else header.fewest_at_sum)
    if kind in RELEASES:  # a vector that no other site masks is in the clear, whatever its type
        return Disclosure("individual", header.adds, 1)
    return None


def _words(disclosure: Disclosure | None) -> str:
    if disclosure is None:
        return "nothing"
    return f"{disclosure.what} at {disclosure.level} over {disclosure.count}"
