"""Pairing: what one log says was sent is what another says was received. Pure.

Records may come in any order. Memory grows with what is waiting for its other half, so several logs are read side by
side.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from securefda.audit.reconcile.check import Check, RunLogs
from securefda.audit.reconcile.suspicion import Mark, RunFinding, Suspicion
from securefda.audit.records import Record

_MOST_NOTICES: Final = 40


class _Half(NamedTuple):
    sent: bool
    place: int
    numbers: tuple[int, int, int, str]  # bytes, round, attempt, session


class Pairing(Check):
    """Pairs the two records of every message.

    A log that is being written may have more records by now than when the reading began. Those may lack their other
    half, and only serve as the other half of what was in the logs before.
    """

    name = "pairing"
    compares = "what one log says was sent with what another says was received"

    def __init__(self, run: RunLogs) -> None:
        super().__init__(run)
        self._open: dict[tuple[str, str, str, str], list[_Half]] = {}
        self._paired = 0
        self._alone: Counter[str] = Counter()
        """Records of messages with a site whose log is not there, by that site."""

    def counts(self) -> Mapping[str, int]:
        """How many messages both logs have."""
        return {"messages in both logs": self._paired}

    def see(self, record: Record) -> None:
        """Take a record; those of events are passed over."""
        entry = record.entry
        if entry.direction == "event":
            return
        if entry.peer not in self.run.parties:
            self._alone[entry.peer] += 1
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
        self._paired += 1
        if not _agree(other.numbers, half.numbers):
            self.found.append(_differ(key, half, other))

    def suspicions(self) -> Iterator[Suspicion]:
        """What did not pair; only a log that is whole lacks a record for certain."""
        yield from self.found
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

    def notices(self) -> Iterator[str]:
        """Sites whose logs are missing, and messages that were sent and not received: a connection broke, or a site."""
        missing = sorted(set(self.run.members.keys) - self.run.parties)
        for party in missing:
            yield f"{party}: its log is missing; {self._alone[party]} messages with it were not checked against it"
        for party, count in sorted(self._alone.items()):
            if party not in missing:
                yield f"{party} is not in the roster; {count} records are of messages with it"
        lost: Counter[tuple[str, str, str]] = Counter()
        for (sender, receiver, kind, _), waiting in self._open.items():
            if receiver in self.run.whole:
                sent = sum(half.sent and half.place < self.run.sizes[sender] for half in waiting)
                lost[sender, receiver, kind] += sent
        lines = [
            f"{sender} sent {count} of type {kind} that {receiver} did not receive"
            for (sender, receiver, kind), count in sorted((+lost).items())
        ]
        yield from lines[:_MOST_NOTICES]
        if len(lines) > _MOST_NOTICES:
            yield f"and {len(lines) - _MOST_NOTICES} more lines of messages that were sent and not received"


def _agree(one: tuple[int, int, int, str], other: tuple[int, int, int, str]) -> bool:
    """Whether both ends wrote the same; a site that has forgotten an old attempt has no round for it."""
    if 0 in (one[1], other[1]):
        return (one[0], one[3]) == (other[0], other[3])
    return one == other


def _differ(key: tuple[str, str, str, str], one: _Half, other: _Half) -> Suspicion:
    sender, receiver, kind, digest = key
    sent, received = (one, other) if one.sent else (other, one)
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
