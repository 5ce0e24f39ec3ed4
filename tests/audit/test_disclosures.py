"""The tables of logs: what they count, what they put together, and that they stay small whatever a log says."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest

from securefda.audit.log_records import Decision, Disclosure, DpSpent, Entry, Record, format_time
from securefda.audit.reconcile.history import ranges
from securefda.audit.report import party_tables
from securefda.audit.report.overview import (
    Moment,
    alike,
    all_flows,
    round_groups,
    shortened,
    timeline,
    unreported,
)
from securefda.audit.report.party_tables import Flow, PartyTables, read_party

START = datetime(2026, 11, 21, 12, tzinfo=UTC)
SUM = Disclosure("sum", "update", 3)


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def sent(
    peer: str, kind: str, number: int = 0, shown: Disclosure | None = None, size: int = 10, attempt: int = 0
) -> Entry:
    return Entry("sent", kind, number, attempt, "", peer, size, digest(f"{peer}{kind}{number}"), disclosure=shown)


def received(peer: str, kind: str, number: int = 0, size: int = 7) -> Entry:
    return Entry("received", kind, number, peer=peer, bytes=size, digest=digest(f"{peer}{kind}{number}"))


def event(kind: str, number: int = 0, **facts: object) -> Entry:
    return Entry("event", kind, number, facts=facts)  # type: ignore[arg-type]


def charged(number: int, epsilon: str) -> Entry:
    spent = DpSpent("dp-sgd", "rdp", "1.1", "0.05", "1.0", "1e-05", epsilon, 20, number, digest(str(number)))
    return Entry("event", "ledger-updated", number, dp=spent)


def records(party: str, entries: Sequence[Entry], start: datetime = START) -> list[Record]:
    """A second between two records."""
    return [
        Record(seq, format_time(start + timedelta(seconds=seq)), party, "run-1", each)
        for seq, each in enumerate(entries)
    ]


def tables(party: str, *entries: Entry) -> PartyTables:
    return read_party(party, records(party, entries))


def test_a_disclosure_is_counted_in_total_and_in_its_round() -> None:
    read = tables(
        "source-1",
        sent("target", "MaskedInput", 1, SUM),
        sent("target", "MaskedInput", 2, Disclosure("sum", "update", 5)),
        sent("target", "Update", 3, Disclosure("individual", "update", 1)),
        sent("target", "Unmask", 3),
    )
    assert read.flows == (
        Flow("source-1", "target", "individual", "update", 1, 1, 1, 1),
        Flow("source-1", "target", "sum", "update", 2, 2, 3, 5),
    )
    assert read.by_round[2] == (Flow("source-1", "target", "sum", "update", 1, 1, 5, 5),)
    assert set(read.by_round) == {1, 2, 3}


def test_two_messages_of_one_round_are_two_messages_and_one_round() -> None:
    (flow,) = tables("target", *[sent("source-1", "Header", 4, Disclosure("individual", "model", 1))] * 2).flows
    assert (flow.messages, flow.rounds) == (2, 1)


def test_what_was_received_is_no_disclosure_of_the_receiver() -> None:
    read = tables("target", received("source-1", "MaskedInput", 1), received("source-1", "Join"))
    assert read.flows == ()
    assert [(item.sender, item.type, item.messages) for item in read.arrivals] == [("source-1", "MaskedInput", 1)]


def test_a_release_whose_senders_log_is_missing_is_reported_by_its_receiver_alone() -> None:
    target = tables("target", received("source-1", "Update", 1), received("source-2", "Update", 1))
    source = tables("source-1", sent("target", "Update", 1, Disclosure("individual", "update", 1)))
    assert [item.sender for item in unreported([target, source])] == ["source-2"]


def test_bytes_are_counted_by_peer_and_direction() -> None:
    read = tables(
        "target", sent("source-1", "Header", 1, size=100), received("source-1", "Join"), received("source-2", "Join")
    )
    assert [(item.peer, item.sent_messages, item.sent_bytes) for item in read.traffic] == [
        ("source-1", 1, 100),
        ("source-2", 0, 0),
    ]
    assert [(item.received_messages, item.received_bytes) for item in read.traffic] == [(1, 7), (1, 7)]


def test_a_round_knows_when_it_was_and_its_attempts_and_bytes() -> None:
    read = tables(
        "target",
        event("run-began", release="0.1.0", task="digits", strategy="fedavg", roster=digest("roster")),
        sent("source-1", "Header", 1, size=100, attempt=1),
        sent("source-1", "Header", 1, size=100, attempt=2),
        received("source-1", "Update", 1),
    )
    (span,) = read.spans
    assert (span.round, span.attempts, span.sent_bytes, span.received_bytes) == (1, 2, 200, 7)
    assert (span.first, span.last) == ("2026-11-21T12:00:01.000000Z", "2026-11-21T12:00:03.000000Z")
    assert (read.first, read.last) == ("2026-11-21T12:00:00.000000Z", span.last)


def test_epsilon_and_caps_are_read_from_their_events() -> None:
    read = tables(
        "source-1",
        charged(1, "0.5"),
        event("caps-computed", 1, caps=digest("caps"), layers=4, capped=2, zeroed=1),
        charged(2, "0.75"),
    )
    assert [(point.round, point.epsilon) for point in read.epsilons] == [(1, 0.5), (2, 0.75)]
    assert [(point.round, point.layers, point.capped, point.zeroed) for point in read.caps] == [(1, 4, 2, 1)]


def test_incidents_of_one_kind_are_one_row_with_a_count_and_the_accused() -> None:
    accusing = {"check": "header.previous-checkpoint", "accused": ["target"]}
    refusal = Entry("sent", "Refusal", 3, 0, "", "target", 9, digest("r"), decision=Decision("refused", "min-others"))
    read = tables("source-1", event("alarm", 2, **accusing), event("alarm", 5, **accusing), refusal)
    alarm, refused = read.incidents
    assert (alarm.kind, alarm.check, alarm.accused, alarm.count) == (
        "alarm",
        "header.previous-checkpoint",
        ("target",),
        2,
    )
    assert (alarm.first_round, alarm.last_round) == (2, 5)
    assert (refused.kind, refused.check, refused.peer, refused.count) == ("refusal-sent", "min-others", "target", 1)


def test_rounds_with_the_same_disclosures_are_one_group() -> None:
    sources = [
        tables(name, *[sent("target", "MaskedInput", number, SUM) for number in (1, 2, 4)])
        for name in ("source-1", "source-2")
    ]
    late = tables("source-3", sent("target", "Update", 4, Disclosure("individual", "update", 1)))
    groups = round_groups([*sources, late])
    assert [group.rounds for group in groups] == [(1, 2), (4,)]
    assert [flow.discloser for flow in groups[1].flows] == ["source-1", "source-2", "source-3"]
    assert [flow.messages for flow in all_flows([*sources, late])] == [3, 3, 1]


def test_flows_that_differ_in_one_end_are_put_together_and_the_most_open_comes_first() -> None:
    flows = [
        Flow("target", "source-1", "individual", "model", 1, 1, 1, 1),
        Flow("target", "source-2", "individual", "model", 1, 1, 1, 1),
        Flow("source-1", "target", "sum", "update", 1, 1, 3, 3),
        Flow("source-2", "target", "sum", "update", 1, 1, 3, 3),
        Flow("source-3", "target", "sum", "update", 2, 1, 3, 3),
    ]
    found = alike(flows)
    assert [(item.disclosers, item.receivers, item.messages) for item in found] == [
        (("target",), ("source-1", "source-2"), 1),
        (("source-1", "source-2"), ("target",), 1),
        (("source-3",), ("target",), 2),
    ]


def test_what_several_parties_say_alike_is_one_moment() -> None:
    alarm = event("alarm", 1, check="header", accused=["target"])
    parties = [tables(name, sent("target", "Join", 1), alarm) for name in ("source-2", "source-1")]
    moments = timeline(parties)
    assert [(moment.kind, moment.parties, moment.count) for moment in moments] == [
        ("round", ("source-1", "source-2"), 1),
        ("alarm", ("source-1", "source-2"), 2),
    ]
    assert moments[1].detail == (("check", "header"), ("accused", "target"))


def test_of_a_long_timeline_rounds_in_the_middle_go_first() -> None:
    def moment(kind: str, number: int) -> Moment:
        return Moment(f"{number:04d}", "", kind, number, ("a",), ())

    moments = [moment("round", number) for number in range(1, 101)]
    moments[50] = moment("alarm", 51)
    kept, left_out = shortened(moments, 5)
    assert [item.round for item in kept] == [1, 2, 51, 99, 100]
    assert left_out == 95
    assert shortened(moments, 100) == (tuple(moments), 0)
    only_alarms, left_out = shortened([moment("alarm", number) for number in range(9)], 4)
    assert (len(only_alarms), left_out) == (4, 5)


@pytest.mark.parametrize(("numbers", "expected"), [([], ()), ([3], ((3, 3),)), ([4, 1, 2, 3, 3, 7], ((1, 4), (7, 7)))])
def test_ranges_are_runs_of_whole_numbers(numbers: list[int], expected: tuple[tuple[int, int], ...]) -> None:
    assert ranges(numbers) == expected


def test_a_log_with_countless_kinds_of_everything_makes_small_tables_that_say_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits = {"MOST_ROUNDS": 5, "MOST_ROUND_FLOWS": 6, "MOST_FLOWS": 4, "MOST_ROWS": 3}
    for name, value in limits.items():
        monkeypatch.setattr(party_tables, name, value)
    entries = []
    for number in range(1, 51):
        entries += [
            sent(f"peer-{number}", "Update", number, Disclosure("individual", f"what-{number}", 1)),
            received(f"peer-{number}", "Update", number),
            event("alarm", number, check=f"check-{number}", accused=[]),
            event("policy-loaded", policy=digest(str(number))),
            event("caps-computed", number, caps=digest(str(number)), layers=1, capped=0, zeroed=0),
            charged(number, "0.5"),
        ]
    read = tables("source-1", *entries)
    assert read.records == 300
    assert len(read.flows) == len(read.arrivals) == len(read.traffic) == 4
    assert len(read.spans) == len(read.by_round) == 5
    assert len(read.epsilons) == len(read.caps) == len(read.incidents) == len(read.milestones) == 3
    assert dict(read.left_out) == {
        "rounds": 45 * 5,
        "disclosures": 46,
        "disclosures by round": 45,
        "arrivals": 46,
        "bytes": 92,
        "incidents": 47,
        "milestones": 47,
        "caps": 47,
        "epsilon": 47,
    }


def test_rows_of_rounds_are_bounded_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(party_tables, "MOST_ROUND_FLOWS", 3)
    entries = [sent(f"peer-{peer}", "Header", 1, Disclosure("individual", "model", 1)) for peer in range(5)] * 2
    read = tables("target", *entries)
    assert [flow.messages for flow in read.by_round[1]] == [2, 2, 2]
    assert [flow.messages for flow in read.flows] == [2] * 5
    assert read.left_out == {"disclosures by round": 4}


def test_an_empty_log_has_empty_tables() -> None:
    read = tables("source-1")
    assert (read.records, read.first, read.last) == (0, "", "")
    assert [*timeline([read]), *round_groups([read]), *all_flows([read])] == []
