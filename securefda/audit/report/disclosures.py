"""What one party's log says, as tables: what it disclosed to whom, what noise cost, bytes, refusals and alarms. Pure.

A log says what its party wrote. Whether that is what was signed is for `verify`, and whether the others say the same is
for `reconcile`; a caller passes only the records that the verification vouches for.

`party_tables.read_party` makes them; `overview` puts those of several parties side by side.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from securefda.audit.records import DpSpent


@dataclass(frozen=True, slots=True, order=True)
class Flow:
    """Disclosures of one kind from one site to another, as the discloser's log says.

    Attributes:
        discloser, receiver: site ids.
        level: ``"individual"``, ``"cohort"`` or ``"sum"``.
        what: a word, for example ``"update"``.
        messages: how many.
        rounds: in how many rounds, not counting what was outside rounds.
        fewest, most: over how many sites the sum was, at least; smallest and largest of the messages.
    """

    discloser: str
    receiver: str
    level: str
    what: str
    messages: int
    rounds: int
    fewest: int
    most: int


@dataclass(frozen=True, slots=True, order=True)
class Arrival:
    """Releases of one type that the receiver's log has; their level is for the sender's log to say."""

    sender: str
    receiver: str
    type: str
    messages: int
    rounds: int


@dataclass(frozen=True, slots=True)
class RoundSpan:
    """When a round was, by the party's clock, and how many attempts and bytes it took."""

    round: int
    first: str
    last: str
    attempts: int
    sent_bytes: int
    received_bytes: int


@dataclass(frozen=True, slots=True, order=True)
class Traffic:
    """Messages and bytes between the party and one peer."""

    peer: str
    sent_messages: int
    sent_bytes: int
    received_messages: int
    received_bytes: int


@dataclass(frozen=True, slots=True)
class EpsilonPoint:
    """What the rows of the party had cost after a charge: a round, when, and the charge itself."""

    round: int
    time: str
    spent: DpSpent

    @property
    def epsilon(self) -> float:
        """Spent so far, this round included."""
        return float(self.spent.epsilon)


@dataclass(frozen=True, slots=True)
class CapsPoint:
    """What the norm cap did in a round to the party's part: ``capped`` of its ``layers`` were scaled down, and
    ``zeroed`` of them to nothing.
    """

    round: int
    layers: int
    capped: int
    zeroed: int


@dataclass(frozen=True, slots=True)
class Incident:
    """Refusals, aborts and alarms of one kind.

    Attributes:
        kind: ``"alarm"``, ``"aborted"``, ``"refused"``, or of messages ``"refusal-sent"``, ``"refusal-received"``,
            ``"abort-sent"``, ``"abort-received"``.
        party: whose log says so.
        check: the check or the policy key; empty where the record has none.
        accused: whom the party blames.
        peer: the other side, if the record names one.
        count: how many records.
        first_round, last_round: 0 outside rounds.
        first, last: times of the first and of the last of them.
    """

    kind: str
    party: str
    check: str
    accused: tuple[str, ...]
    peer: str
    count: int
    first_round: int
    last_round: int
    first: str
    last: str


@dataclass(frozen=True, slots=True)
class Milestone:
    """A beginning, a policy, a restart or an end: ``detail`` are the facts of the record, as text."""

    kind: str
    time: str
    detail: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class PartyTables:
    """A log in numbers. Everything is of the party's own records.

    Attributes:
        party: site id.
        records: how many were read.
        first, last: earliest and latest time in them; empty without a record.
        flows: what the party disclosed, over the whole log.
        by_round: the same for each round, in order; round 0 is outside rounds.
        arrivals: releases that it received.
        spans: its rounds, in order, without round 0.
        traffic: by peer.
        epsilons: in the order of the log.
        caps: by round; of a round with several attempts the last.
        incidents: in the order of their first record.
        milestones: in the order of the log.
        left_out: table -> how many records have no row of their own there.
    """

    party: str
    records: int
    first: str
    last: str
    flows: tuple[Flow, ...]
    by_round: Mapping[int, tuple[Flow, ...]]
    arrivals: tuple[Arrival, ...]
    spans: tuple[RoundSpan, ...]
    traffic: tuple[Traffic, ...]
    epsilons: tuple[EpsilonPoint, ...]
    caps: tuple[CapsPoint, ...]
    incidents: tuple[Incident, ...]
    milestones: tuple[Milestone, ...]
    left_out: Mapping[str, int]
