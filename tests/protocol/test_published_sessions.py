"""The library meets the published sessions and refuses their lies, run from outside as any implementation would be."""

from __future__ import annotations

from typing import Any

import ml_kem_oracle
import pytest
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PublicKey
from published import (
    AggregatorUnderTest,
    Entry,
    SourceUnderTest,
    collecting_aggregator,
    every_session,
    from_source,
    history_of,
    kinds_from_sources,
    limits_of,
    load,
    received,
    session,
    to_source,
    waiting_source,
)
from second_implementation import kem_message

from securefda.errors import ConfigError, FaultyAggregatorError, FaultySourceError, ProtocolError, QuorumLost
from securefda.protocol import hybrid
from securefda.protocol.header_checks import check_signed_header, check_vectors
from securefda.protocol.roster import Roster, SignedRoster
from securefda.transport.wire import WireError

SESSIONS = [record["name"] for record in every_session()]
SOURCES = [(record["name"], int(index)) for record in every_session() for index in record["sources"]]
TO_SOURCE, TO_AGGREGATOR = (
    [*load(name)["invalid"], *load(f"ring_{name}")["invalid"]] for name in ("lies_to_source", "lies_to_aggregator")
)
HEADERS = [(file, case) for file in ("headers", "ring_headers") for case in load(file)["invalid"]]


@pytest.fixture(autouse=True)
def _published_ciphertexts(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the library draws for a ciphertext is fixed in the published sessions, like all other draws."""

    def encapsulated(public: MLKEM768PublicKey) -> tuple[bytes, bytes]:
        key = public.public_bytes_raw()
        return ml_kem_oracle.encapsulated(key, kem_message(key))

    monkeypatch.setattr(hybrid, "encapsulated", encapsulated)


def as_sent(entry: Entry) -> dict[str, Any]:
    return {name: entry[name] for name in ("signed_bytes", "signature")}


def name_of(entry: Any) -> str:
    """Of a published case, beside the name of its file."""
    return f"{entry['check']} {entry['claim']}" if isinstance(entry, dict) else str(entry)


@pytest.mark.parametrize(("name", "index"), SOURCES)
def test_source_sends_the_published_bytes(name: str, index: int) -> None:
    record = session(name)
    source = SourceUnderTest(record, index)
    answers = [source.start(), *(source.receive(entry) for entry in to_source(record, index))]
    assert [answer for answer in answers if answer] == [as_sent(entry) for entry in from_source(record, index)]
    assert source.draws_left == 0
    masked = [entry["vector"] for entry in from_source(record, index) if entry["type"] == "MaskedInput"]
    assert masked == ([source.vector.hex()] if source.vector else [])


@pytest.mark.parametrize("name", SESSIONS)
def test_aggregator_sends_the_published_bytes_and_opens_the_published_sums(name: str) -> None:
    record = session(name)
    aggregator, answers = AggregatorUnderTest(record), []
    for kind in kinds_from_sources(record):
        for entry in record["messages"]:
            if entry["type"] == kind and entry["arrives"]:
                aggregator.receive(entry)
        answers += aggregator.close()
    assert answers == [as_sent(entry) for entry in record["messages"] if entry["from"] == record["target"]]
    opened = aggregator.phase
    assert opened.faults == ()
    assert opened.sum_digest.hex() == record["sum_digest"]
    assert (sorted(opened.survivors), sorted(opened.dropped)) == (record["survivors"], record["dropped"])
    sums = [
        {
            "survivors": sorted(part.survivors),
            "vector": [x.hex() for x in part.decoded.vector.tolist()],
            "statistics": [x.hex() for x in part.decoded.statistics.tolist()],
        }
        for part in opened.sums
    ]
    assert sums == [{field: part[field] for field in ("survivors", "vector", "statistics")} for part in record["sums"]]


@pytest.mark.parametrize("case", TO_SOURCE, ids=name_of)
def test_source_refuses_published_lie(case: Entry) -> None:
    source = waiting_source(session(case["session"]), case["source"], case["waits_for"], case.get("limits"))
    *accepted, lie = case["deliver"]
    for entry in accepted:
        source.receive(entry)
    before = source.phase
    with pytest.raises(ProtocolError) as refused:
        source.receive(lie)
    assert refused.value.check == case["check"]
    assert isinstance(refused.value, WireError if case["check"] == "WIRE" else FaultyAggregatorError)
    assert getattr(refused.value, "suspect", None) == case["suspect"]
    assert source.phase is before


@pytest.mark.parametrize("case", TO_AGGREGATOR, ids=name_of)
def test_aggregator_finds_published_lie(case: Entry) -> None:
    aggregator = collecting_aggregator(session(case["session"]), case["collects"], case["answered"])
    *accepted, last = case["deliver"]
    for entry in accepted:
        take(aggregator, entry)
    before, totals = aggregator.phase, aggregator.totals
    if case["opens"]:
        take(aggregator, last)
        assert [(fault.check, fault.source_id) for fault in aggregator.phase.faults] == [
            (case["check"], site) for site in case["blames"]
        ]
        assert aggregator.phase.sum_digest.hex() == session(case["session"])["sum_digest"]
        return
    with pytest.raises((ProtocolError, QuorumLost)) as refused:
        take(aggregator, last)
    assert verdict(refused.value) == (case["check"], case["blames"])
    assert aggregator.phase is before
    if case["check"] != "RANGE":  # there the sum is open, in place, before it is seen to be wrong
        assert aggregator.totals == totals


def take(aggregator: AggregatorUnderTest, event: Entry) -> None:
    if event.get("close"):
        aggregator.close()
    else:
        aggregator.receive(event)


def verdict(error: Exception) -> tuple[str, list[str]]:
    if isinstance(error, QuorumLost):
        return "QUORUM", []
    assert isinstance(error, ProtocolError)
    return error.check, error.source_id.split(" or ") if isinstance(error, FaultySourceError) else []


def read_header(case: Entry, name: str = "headers") -> None:
    """What a source does with a header and the vectors beside it, where the case has any."""
    file = load(name)
    case = {**file["usual"], **case}
    header = received(case)
    check_signed_header(
        header,
        own_index=case["source"],
        roster=Roster.from_canonical_bytes(file["rosters"][case["roster"]].encode()),
        limits=limits_of(case["limits"]),
        history=history_of(case["history"]),
        own_layers=[(layer["name"], tuple(layer["shape"])) for layer in case["own_layers"]],
        unix_s=case["unix_s"],
    )
    if "model" in case:
        update = case["target_update"]
        level = header.body.level_of(case["source"])
        given, features = (None if data is None else bytes.fromhex(data) for data in (update, case.get("features")))
        check_vectors(header.body, level, bytes.fromhex(case["model"]), given, features)


@pytest.mark.parametrize("case", load("headers")["valid"], ids=lambda case: case["claim"])
def test_source_accepts_published_header(case: Entry) -> None:
    read_header(case)


def test_source_accepts_published_header_with_a_graph() -> None:
    (case,) = load("ring_headers")["valid"]
    read_header(case, "ring_headers")


@pytest.mark.parametrize(("file", "case"), HEADERS, ids=name_of)
def test_source_refuses_published_header(file: str, case: Entry) -> None:
    with pytest.raises(ProtocolError) as refused:
        read_header(case, file)
    assert refused.value.check == case["check"]


def read_roster(case: Entry) -> Roster:
    return SignedRoster.from_bytes(case["file"].encode()).verify(bytes.fromhex(case["ca_public_key"]))


def test_published_roster_is_accepted() -> None:
    (case,) = load("rosters")["valid"]
    assert read_roster(case).digest().hex() == case["digest"]


@pytest.mark.parametrize("case", load("rosters")["invalid"], ids=lambda case: case["claim"])
def test_published_roster_of_another_form_is_refused(case: Entry) -> None:
    with pytest.raises(ConfigError):
        read_roster(case)
