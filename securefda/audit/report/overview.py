"""The tables of several parties side by side: who disclosed what to whom in which rounds, and what happened when. Pure.

Nothing is compared here: what a party disclosed is taken from its own log. `reconcile` is what compares one log with
another.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from securefda.audit.report.party_tables import Arrival, Flow, Incident, PartyTables

Detail = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class RoundGroup:
    """Rounds in which the same was disclosed.

    Attributes:
        rounds: in order; 0 is outside rounds.
        flows: of each of these rounds.
    """

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
        detail: facts by name.
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
    rounds: dict[int, list[Flow]] = {}
    for party in parties:
        for number, flows in party.by_round.items():
            rounds.setdefault(number, []).extend(flows)
    groups: dict[tuple[Flow, ...], list[int]] = {}
    for number in sorted(rounds):
        groups.setdefault(tuple(sorted(rounds[number])), []).append(number)
    return tuple(RoundGroup(tuple(numbers), flows) for flows, numbers in groups.items())


def alike(flows: Iterable[Flow]) -> tuple[Alike, ...]:
    """Put flows together that differ in the discloser only, or else in the receiver only."""
    ordered = list(flows)
    disclosers: dict[tuple[object, ...], list[Flow]] = {}
    for flow in ordered:
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


def _rest(flow: Flow) -> tuple[object, ...]:
    return flow.level, flow.what, flow.messages, flow.rounds, flow.fewest, flow.most


def _alike(group: Sequence[Flow]) -> Alike:
    one = group[0]
    return Alike(
        disclosers=tuple(sorted({flow.discloser for flow in group})),
        receivers=tuple(sorted({flow.receiver for flow in group})),
        level=one.level,
        what=one.what,
        messages=one.messages,
        rounds=one.rounds,
        fewest=one.fewest,
        most=one.most,
    )


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
            yield Moment(
                incident.first,
                incident.last,
                incident.kind,
                incident.first_round,
                who,
                _incident_detail(incident),
                incident.count,
            )


def _incident_detail(incident: Incident) -> Detail:
    said = {"check": incident.check, "accused": ", ".join(incident.accused), "peer": incident.peer}
    if incident.last_round != incident.first_round:
        said["to-round"] = str(incident.last_round)
    return tuple((name, value) for name, value in said.items() if value)


def _together(one: Moment, other: Moment) -> Moment:
    """One moment for two of one kind, round and detail; of a round ``count`` is the number of attempts."""
    return Moment(
        time=min(one.time, other.time),
        until=max(one.until, other.until),
        kind=one.kind,
        round=one.round,
        parties=tuple(sorted({*one.parties, *other.parties})),
        detail=one.detail,
        count=max(one.count, other.count) if one.kind == "round" else one.count + other.count,
    )
