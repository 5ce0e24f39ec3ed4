"""One party's log as tables: its disclosures, privacy costs, bytes, refusals and alarms. Pure.

A log is its party's own account. `securefda.audit.verify` checks whether it is what was signed, and
`securefda.audit.reconcile` whether the others agree. Callers pass only the records that the verification vouches for.

`read_party` reads a log once. Memory is bounded: what has a row of its own (a round's disclosures, an incident, a point
of epsilon) is kept up to the limits below, and ``left_out`` counts the records that were not. Totals of disclosures and
bytes count all records, as long as there are no more than ``MOST_FLOWS`` of their kinds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, TypeVar, cast

from securefda.audit.log_records import Disclosure, DpSpent, Entry, Record


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


@dataclass(slots=True)
class RoundSpan:
    """When a round was, by the party's clock, and how many attempts and bytes it took."""

    round: int
    first: str
    last: str
    attempts: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0


@dataclass(slots=True)
class Traffic:
    """Messages and bytes between the party and one peer."""

    peer: str
    sent_messages: int = 0
    sent_bytes: int = 0
    received_messages: int = 0
    received_bytes: int = 0


@dataclass(frozen=True, slots=True)
class EpsilonPoint:
    """A charge with its round and time, for the privacy cost of the party's rows up to then."""

    round: int
    time: str
    spent: DpSpent

    @property
    def epsilon(self) -> float:
        """The epsilon spent so far, including this round."""
        return float(self.spent.epsilon)


@dataclass(frozen=True, slots=True)
class CapsPoint:
    """The effect of the norm cap on the party's update in a round: ``capped`` of its ``layers`` were scaled down, and
    ``zeroed`` of these to zero.
    """

    round: int
    layers: int
    capped: int
    zeroed: int


@dataclass(slots=True)
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

    def add(self, round_number: int, time: str) -> None:
        """Count one more."""
        self.count += 1
        self.first_round, self.last_round = min(self.first_round, round_number), max(self.last_round, round_number)
        self.first, self.last = min(self.first, time), max(self.last, time)


@dataclass(frozen=True, slots=True)
class Milestone:
    """A beginning, a policy, a restart or an end: ``detail`` are the facts of the record, as text."""

    kind: str
    time: str
    detail: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class PartyTables:
    """A log in numbers. Everything is of the party's own records, in the order of the log where nothing else is said.

    Attributes:
        records: how many were read.
        first, last: earliest and latest time in them; empty without a record.
        flows: what the party disclosed, over the whole log.
        by_round: the same for each round, in order; round 0 is outside rounds.
        arrivals: releases that it received.
        spans: its rounds, in order, without round 0.
        traffic: by peer.
        caps: by round; of a round with several attempts the last.
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


MOST_ROUNDS: Final = 20_000
"""Rounds that have a row."""
MOST_ROUND_FLOWS: Final = 250_000
"""Rows of disclosures over all these rounds."""
MOST_FLOWS: Final = 4096
"""Kinds of disclosures, each to one peer; likewise peers with bytes."""
MOST_ROWS: Final = 20_000
"""Most rows each of incidents, milestones, epsilons and caps."""

RELEASES: Final = ("Header", "Update", "MaskedInput")
"""Messages with a model, an update or a term of a sum in them; the receiver's log has them too, without a level."""
_MILESTONES: Final = ("run-began", "restarted", "policy-loaded", "model-kept", "run-ended")

_Key = TypeVar("_Key")
_Row = TypeVar("_Row")


def read_party(party: str, records: Iterable[Record]) -> PartyTables:
    """Read the records of a party's log once, in order, and return its tables."""
    reader = PartyReader(party)
    for record in records:
        reader.take(record)
    return reader.tables()


@dataclass(slots=True)
class _Tally:
    messages: int = 0
    fewest: int = 0
    most: int = 0
    rounds: set[int] = field(default_factory=set)

    def add(self, round_number: int, count: int = 0) -> None:
        self.fewest = min(self.fewest, count) if self.messages else count
        self.most = max(self.most, count)
        self.messages += 1
        if round_number:
            self.rounds.add(round_number)


_FlowKey = tuple[str, str, str]  # peer, level, what
_IncidentKey = tuple[str, str, tuple[str, ...], str]  # kind, check, accused, peer
_TROUBLE: Final = {"Refusal": "refusal", "Abort": "abort"}


class PartyReader:
    """Gathers one log, record by record: for a log that is still being written."""

    def __init__(self, party: str) -> None:
        self._party = party
        self._records, self._first, self._last = 0, "", ""
        self._flows: dict[_FlowKey, _Tally] = {}
        self._rounds: dict[int, dict[_FlowKey, _Tally]] = {}
        self._round_flows = 0
        self._arrivals: dict[tuple[str, str], _Tally] = {}
        self._spans: dict[int, RoundSpan] = {}
        self._traffic: dict[str, Traffic] = {}
        self._epsilons: list[EpsilonPoint] = []
        self._caps: dict[int, CapsPoint] = {}
        self._incidents: dict[_IncidentKey, Incident] = {}
        self._milestones: list[Milestone] = []
        self._left_out: Counter[str] = Counter()

    def take(self, record: Record) -> None:
        """Add a record."""
        entry, time = record.entry, record.time
        self._records += 1
        self._first = min(self._first or time, time)
        self._last = max(self._last, time)
        if entry.round:
            self._span(entry, time)
        if entry.direction == "event":
            self._event(entry, time)
        else:
            self._message(entry, time)

    def tables(self) -> PartyTables:
        """Return the tables of the records so far."""
        return PartyTables(
            party=self._party,
            records=self._records,
            first=self._first,
            last=self._last,
            flows=self._as_flows(self._flows),
            by_round={number: self._as_flows(flows) for number, flows in sorted(self._rounds.items())},
            arrivals=tuple(
                Arrival(peer, self._party, kind, tally.messages, len(tally.rounds))
                for (peer, kind), tally in sorted(self._arrivals.items())
            ),
            # Copies: the rows of a log that is still being written go on
            spans=tuple(replace(self._spans[number]) for number in sorted(self._spans)),
            traffic=tuple(replace(self._traffic[peer]) for peer in sorted(self._traffic)),
            epsilons=tuple(self._epsilons),
            caps=tuple(self._caps[number] for number in sorted(self._caps)),
            incidents=tuple(map(replace, self._incidents.values())),
            milestones=tuple(self._milestones),
            left_out=dict(self._left_out),
        )

    def _as_flows(self, flows: dict[_FlowKey, _Tally]) -> tuple[Flow, ...]:
        return tuple(
            Flow(self._party, peer, level, what, tally.messages, len(tally.rounds), tally.fewest, tally.most)
            for (peer, level, what), tally in sorted(flows.items())
        )

    def _span(self, entry: Entry, time: str) -> None:
        span = self._row(self._spans, entry.round, MOST_ROUNDS, "rounds", partial(RoundSpan, entry.round, time, time))
        if span is None:
            return
        span.first, span.last = min(span.first, time), max(span.last, time)
        span.attempts = max(span.attempts, entry.attempt)
        span.sent_bytes += entry.bytes if entry.direction == "sent" else 0
        span.received_bytes += entry.bytes if entry.direction == "received" else 0

    def _message(self, entry: Entry, time: str) -> None:
        traffic = self._row(self._traffic, entry.peer, MOST_FLOWS, "bytes", partial(Traffic, entry.peer))
        sent = entry.direction == "sent"
        if traffic is not None and sent:
            traffic.sent_messages += 1
            traffic.sent_bytes += entry.bytes
        elif traffic is not None:
            traffic.received_messages += 1
            traffic.received_bytes += entry.bytes
        if sent and entry.disclosure is not None:
            self._disclosed(entry, entry.disclosure)
        elif not sent and entry.type in RELEASES:
            arrival = self._row(self._arrivals, (entry.peer, entry.type), MOST_FLOWS, "arrivals", _Tally)
            if arrival is not None:
                arrival.add(entry.round)
        if trouble := _TROUBLE.get(entry.type):
            key = entry.decision.key if entry.decision is not None else ""
            self._trouble((f"{trouble}-{entry.direction}", key, (), entry.peer), entry.round, time)

    def _disclosed(self, entry: Entry, disclosure: Disclosure) -> None:
        key = (entry.peer, disclosure.level, disclosure.what)
        total = self._row(self._flows, key, MOST_FLOWS, "disclosures", _Tally)
        if total is not None:
            total.add(entry.round, disclosure.count)
        flows = self._rounds.get(entry.round, {})
        known = key in flows
        full = self._round_flows >= MOST_ROUND_FLOWS or (not flows and len(self._rounds) >= MOST_ROUNDS)
        if full and not known:
            self._left_out["disclosures by round"] += 1
            return
        self._round_flows += not known
        self._rounds.setdefault(entry.round, flows).setdefault(key, _Tally()).add(entry.round, disclosure.count)

    def _event(self, entry: Entry, time: str) -> None:
        facts = entry.facts
        if entry.type == "ledger-updated" and entry.dp is not None:
            self._append(self._epsilons, EpsilonPoint(entry.round, time, entry.dp), "epsilon")
        elif entry.type == "caps-computed":
            if entry.round in self._caps or len(self._caps) < MOST_ROWS:
                layers, capped, zeroed = (cast(int, facts[key]) for key in ("layers", "capped", "zeroed"))
                self._caps[entry.round] = CapsPoint(entry.round, layers, capped, zeroed)
            else:
                self._left_out["caps"] += 1
        elif entry.type in _MILESTONES:
            detail = tuple((key, str(value)) for key, value in sorted(facts.items()))
            self._append(self._milestones, Milestone(entry.type, time, detail), "milestones")
        elif entry.type in ("refused", "aborted", "alarm"):
            accused = tuple(cast("list[str]", facts.get("accused", [])))
            self._trouble((entry.type, str(facts["check"]), accused, entry.peer), entry.round, time)

    def _trouble(self, key: _IncidentKey, number: int, time: str) -> None:
        kind, check, accused, peer = key
        new = partial(Incident, kind, self._party, check, accused, peer, 0, number, number, time, time)
        incident = self._row(self._incidents, key, MOST_ROWS, "incidents", new)
        if incident is not None:
            incident.add(number, time)

    def _row(self, kept: dict[_Key, _Row], key: _Key, most: int, table: str, make: Callable[[], _Row]) -> _Row | None:
        """Return the row of a key, made if there is room for it; otherwise count the record as left out."""
        if key not in kept:
            if len(kept) >= most:
                self._left_out[table] += 1
                return None
            kept[key] = make()
        return kept[key]

    def _append(self, rows: list[_Row], row: _Row, table: str) -> None:
        if len(rows) < MOST_ROWS:
            rows.append(row)
        else:
            self._left_out[table] += 1
