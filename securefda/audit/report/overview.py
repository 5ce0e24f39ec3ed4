"""The tables of several parties side by side: who disclosed what to whom in which rounds, and what happened when. Pure.

Nothing is compared here: what a party disclosed is taken from its own log. `reconcile` is what compares one log with
another.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from securefda.audit.report.party_tables import Arrival, Flow, PartyTables

Detail = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class RoundGroup:
    """Rounds in which the same was disclosed, in order; 0 is outside rounds. Each of them has these flows."""

    rounds: tuple[int, ...]
    flows: tuple[Flow, ...]


@dataclass(frozen=True, slots=True)
class Alike:
    """Flows that differ in one end only.

    Attributes:
        disclosers, receivers: site ids; at most one of both has several.
        level, what: of all of them.
        messages, rounds: of each, as are ``fewest`` and ``most``.
    """

    disclosers: tuple[str, ...]
    receivers: tuple[str, ...]
    level: str
    what: str
    messages: int
    rounds: int
    fewest: int
    most: int


@dataclass(frozen=True, slots=True)
class Moment:
    """Something that happened, as the logs of one or several parties say.

    Attributes:
        time, until: earliest and latest time; each party has a clock of its own.
        kind: ``"round"``, a kind of `Milestone`, or a kind of `Incident`.
        round: 0 outside rounds; of incidents the first.
        parties: who says so, sorted.
        count: of an incident how many records, of a round how many attempts.
    """

    time: str
    until: str
    kind: str
    round: int
    parties: tuple[str, ...]
    detail: Detail
    count: int = 1


def all_flows(parties: Sequence[PartyTables]) -> tuple[Flow, ...]:
    """Return the total disclosures of all parties, sorted."""
    return tuple(sorted(flow for party in parties for flow in party.flows))


def unreported(parties: Sequence[PartyTables]) -> tuple[Arrival, ...]:
    """Releases that a log here received from a party whose own log is not here, sorted."""
    here = {party.party for party in parties}
    return tuple(sorted(item for party in parties for item in party.arrivals if item.sender not in here))


def round_groups(parties: Sequence[PartyTables]) -> tuple[RoundGroup, ...]:
    """The rounds with a disclosure, those alike together, in the order of the first of each group."""
    groups: dict[tuple[Flow, ...], list[int]] = {}
    for number, flows in sorted(flows_by_round(parties).items()):
        groups.setdefault(tuple(sorted(flows)), []).append(number)
    return tuple(RoundGroup(tuple(numbers), flows) for flows, numbers in groups.items())


def flows_by_round(parties: Sequence[PartyTables]) -> dict[int, list[Flow]]:
    """Return the disclosures of all parties in each round."""
    rounds: dict[int, list[Flow]] = {}
    for party in parties:
        for number, flows in party.by_round.items():
            rounds.setdefault(number, []).extend(flows)
    return rounds


def alike(flows: Iterable[Flow]) -> tuple[Alike, ...]:
    """Put flows together that differ in the discloser only, or else in the receiver only."""
    disclosers: dict[tuple[object, ...], list[Flow]] = {}
    for flow in flows:
        disclosers.setdefault((flow.receiver, *_rest(flow)), []).append(flow)
    merged: list[Alike] = []
    receivers: dict[tuple[object, ...], list[Flow]] = {}
    for group in disclosers.values():
        if len(group) > 1:
            merged.append(_alike(group))
        else:
            receivers.setdefault((group[0].discloser, *_rest(group[0])), []).append(group[0])
    return tuple(sorted([*merged, *map(_alike, receivers.values())], key=_exposure))


def timeline(parties: Sequence[PartyTables]) -> tuple[Moment, ...]:
    """Everything with a time, in order; what several parties say alike is one moment."""
    merged: dict[tuple[str, int, Detail], Moment] = {}
    for moment in _moments(parties):
        key = (moment.kind, moment.round, moment.detail)
        merged[key] = _together(merged[key], moment) if key in merged else moment
    return tuple(sorted(merged.values(), key=lambda moment: (moment.time, moment.round, moment.kind)))


def shortened(moments: Sequence[Moment], most: int) -> tuple[tuple[Moment, ...], int]:
    """At most ``most`` moments, and how many are left out.

    Rounds without anything else to tell go first, those in the middle before those at both ends; what is no round goes
    only where there are more than ``most`` of them.
    """
    if len(moments) <= most:
        return tuple(moments), 0
    places = [place for place, moment in enumerate(moments) if moment.kind != "round"][:most]
    rounds = [place for place, moment in enumerate(moments) if moment.kind == "round"]
    room = most - len(places)
    ends = [*rounds[: room - room // 2], *(rounds[-(room // 2) :] if room // 2 else [])]
    kept = sorted({*places, *ends})
    return tuple(moments[place] for place in kept), len(moments) - len(kept)


_OPENNESS: Mapping[str, int] = {"individual": 0, "cohort": 1, "sum": 2}


def _rest(flow: Flow) -> tuple[str, str, int, int, int, int]:
    return flow.level, flow.what, flow.messages, flow.rounds, flow.fewest, flow.most


def _alike(group: Sequence[Flow]) -> Alike:
    disclosers, receivers = {flow.discloser for flow in group}, {flow.receiver for flow in group}
    level, what, messages, rounds, fewest, most = _rest(group[0])
    return Alike(tuple(sorted(disclosers)), tuple(sorted(receivers)), level, what, messages, rounds, fewest, most)


def _exposure(flows: Alike) -> tuple[object, ...]:
    """Return a sort key for flows: visibility level, kind, sites, number of messages."""
    return _OPENNESS.get(flows.level, 0), flows.what, flows.disclosers, flows.receivers, flows.messages


def _moments(parties: Sequence[PartyTables]) -> Iterator[Moment]:
    for party in parties:
        who = (party.party,)
        for mark in party.milestones:
            yield Moment(mark.time, mark.time, mark.kind, 0, who, mark.detail)
        for span in party.spans:
            yield Moment(span.first, span.last, "round", span.round, who, (), max(span.attempts, 1))
        for incident in party.incidents:
            facts = {"check": incident.check, "accused": ", ".join(incident.accused), "peer": incident.peer}
            if incident.last_round != incident.first_round:
                facts["to-round"] = str(incident.last_round)
            detail = tuple((name, value) for name, value in facts.items() if value)
            number, count = incident.first_round, incident.count
            yield Moment(incident.first, incident.last, incident.kind, number, who, detail, count)


def _together(moment: Moment, other: Moment) -> Moment:
    """One moment for two of one kind, round and detail; of a round ``count`` is the number of attempts."""
    return replace(
        moment,
        time=min(moment.time, other.time),
        until=max(moment.until, other.until),
        parties=tuple(sorted({*moment.parties, *other.parties})),
        count=max(moment.count, other.count) if moment.kind == "round" else moment.count + other.count,
    )
