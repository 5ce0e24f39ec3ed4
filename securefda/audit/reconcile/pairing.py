"""Pairing: what one log says was sent is what another says was received. Pure.

Records may come in any order. Memory grows with what is waiting for its other half, so whoever feeds several logs takes
them side by side.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from securefda.audit.reconcile.suspicion import Mark, RunFinding, Suspicion
from securefda.audit.records import Record


class _Half(NamedTuple):
    sent: bool
    place: int
    numbers: tuple[int, int, int, str]  # bytes, round, attempt, session


class Pairing:
    """Pairs the two records of every message.

    Args:
        parties: whose logs are there.
        sizes: how many records each log had when the reading began, by party. A log that is being written may have
            more by now; those may lack their other half and only serve as the other half of what was there before.
    """

    def __init__(self, parties: Collection[str], sizes: Mapping[str, int]) -> None:
        self._parties, self._sizes = parties, sizes
        self._open: dict[tuple[str, str, str, str], list[_Half]] = {}
        self._differing: list[Suspicion] = []
        self.paired = 0
        self.alone: Counter[str] = Counter()
        """Records of messages with a site whose log is not there, by that site."""

    def see(self, record: Record) -> None:
        """Take a record; those of events are passed over."""
        entry = record.entry
        if entry.direction == "event":
            return
        if entry.peer not in self._parties:
            self.alone[entry.peer] += 1
            return
        sent = entry.direction == "sent"
        ends = (record.party, entry.peer) if sent else (entry.peer, record.party)
        key = (*ends, entry.type, entry.digest)
        half = _Half(sent, record.seq, (entry.bytes, entry.round, entry.attempt, entry.session))
        waiting = self._open.get(key)
        if waiting is None:
            if sent or record.seq < self._sizes[record.party]:
                self._open[key] = [half]
            return
        if waiting[0].sent == sent:
            waiting.append(half)
            return
        other = waiting.pop(0)
        if not waiting:
            del self._open[key]
        self.paired += 1
        if not _agree(other.numbers, half.numbers):
            self._differing.append(_differ(key, half, other))

    def suspicions(self, whole: Collection[str]) -> Iterator[Suspicion]:
        """What did not pair; only a log that is ``whole`` lacks a record for certain."""
        yield from self._differing
        for (sender, receiver, kind, digest), waiting in self._open.items():
            for half in waiting:
                if not half.sent and sender in whole:
                    yield _never_sent(sender, receiver, kind, digest, half)

    def undelivered(self, whole: Collection[str]) -> Counter[tuple[str, str, str]]:
        """Messages that were sent and not received, by sender, receiver and type: a connection broke, or a site did."""
        lost: Counter[tuple[str, str, str]] = Counter()
        for (sender, receiver, kind, _), waiting in self._open.items():
            if receiver in whole:
                lost[sender, receiver, kind] += sum(half.sent and half.place < self._sizes[sender] for half in waiting)
        return +lost


def _agree(one: tuple[int, int, int, str], other: tuple[int, int, int, str]) -> bool:
    """Whether both ends wrote the same; a site that has forgotten an old attempt has no round for it."""
    if 0 in (one[1], other[1]):
        return (one[0], one[3]) == (other[0], other[3])
    return one == other


def _never_sent(sender: str, receiver: str, kind: str, digest: str, half: _Half) -> Suspicion:
    _, number, attempt, session = half.numbers
    finding = RunFinding(
        kind="never-sent",
        what=f"the log of {receiver} has received a {kind} from {sender}, whose log has not sent it",
        accused=tuple(sorted((sender, receiver))),
        sides=(sender, receiver),
        step=kind,
        round=number,
        attempt=attempt,
        session=session,
        records=(Mark(receiver, half.place),),
        digests=(digest,),
    )
    return Suspicion(finding)


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
    finding = RunFinding(
        kind="records-differ",
        what=f"{sender} and {receiver} have the same {kind} with different numbers: {what}",
        accused=tuple(sorted((sender, receiver))),
        sides=(sender, receiver),
        step=kind,
        round=number,
        attempt=attempt,
        session=session,
        records=(Mark(sender, sent.place), Mark(receiver, received.place)),
        digests=(digest,),
    )
    return Suspicion(finding)
