"""Records: one encoding each, every other refused, and nothing in them that could be a value of a row."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from types import MappingProxyType
from typing import Any

import pytest
from depth import at_depth
from hypothesis import given, settings
from hypothesis import strategies as st

from securefda.audit.log_records import (
    EVENTS,
    MAX_RECORD_BYTES,
    Decision,
    Disclosure,
    DpSpent,
    Entry,
    NewerVersion,
    Record,
    RecordError,
    fields_of,
    format_time,
)
from securefda.audit.signed_notes import LogName, witness_name

TIME = "2026-11-21T23:22:23.000123Z"
SPENT = DpSpent("dp-sgd", "rdp", "1.1", "0.01", "1.0", "1e-05", "3.25", 100, 7, "ef" * 32)
MASKED = Entry(
    "sent",
    "MaskedInput",
    round=3,
    attempt=1,
    session="ab" * 32,
    peer="site-b",
    bytes=123_456,
    digest="cd" * 32,
    decision=Decision("allowed", "max-visibility"),
    disclosure=Disclosure("sum", "update", 5),
    dp=SPENT,
)
RECORD = Record(5, TIME, "site-a", "run-1", MASKED)
FACTS: dict[str, dict[str, Any]] = {
    "run-began": {"release": "0.1.0", "task": "digits", "strategy": "fedgp", "roster": "12" * 32},
    "run-ended": {"outcome": "finished", "rounds": 50},
    "restarted": {"lost_bytes": 17},
    "policy-loaded": {"policy": "34" * 32},
    "message-not-kept": {"check": "SIGNATURE"},
    "refused": {"check": "HEADER_ARCHITECTURE"},
    "release-fuse-burnt": {},
    "survivors-signed": {"survivors": ["site-a", "site-b"]},
    "unmask-shares-released": {"survivors": ["site-a"], "dropped": ["site-b"]},
    "caps-computed": {"caps": "56" * 32, "layers": 4, "capped": 2, "zeroed": 1},
    "features-released": {"rows": 128, "width": 512, "features": "9a" * 32, "clip": "1.0", "noise": "0.5"},
    "model-kept": {"model": "78" * 32},
    "ledger-updated": {},
    "budget-reserved": {"rounds": 6, "expires": 1_800_000_000},
    "budget-released": {"rounds": 2, "expires": 1_800_000_000},
    "aborted": {"check": "SURVIVORS", "accused": ["site-b"]},
    "alarm": {"check": "CHECKPOINT_FORK", "accused": []},
    "checkpoint-signed": {"size": 9, "root": "56" * 32},
    "checkpoint-cosigned": {"origin": "securefda/1/hearts/site-b/run-1", "size": 9, "root": "56" * 32},
}


LISTS = [["B"], ["b", "a"], ["a", "a"], [1.5], [["a"]], [{}]]
OF_NO_FACT: list[Any] = [None, 1.5, "two words", "x" * 256, {}, -1, True, 2**53, *LISTS]


def event(kind: str) -> Entry:
    return Entry("event", kind, facts=FACTS[kind], dp=SPENT if kind == "ledger-updated" else None)


def changed(**fields: Any) -> bytes:
    """The record with other values, canonical but for them."""
    return text({**json.loads(RECORD.to_bytes()), **fields})


def text(fields: object) -> bytes:
    return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode("ascii")


def test_record_has_the_fields_of_the_design_in_one_encoding() -> None:
    assert RECORD.to_bytes().decode() == (
        '{"attempt":1,"bytes":123456,"decision":{"key":"max-visibility","verdict":"allowed"},'
        f'"digest":"{"cd" * 32}","direction":"sent","disclosure":{{"count":5,"level":"sum","what":"update"}},'
        f'"dp":{{"accountant":"rdp","delta":"1e-05","epsilon":"3.25","ledger_digest":"{"ef" * 32}","ledger_rows":7,'
        '"max_grad_norm":"1.0","mechanism":"dp-sgd","noise_multiplier":"1.1","sampling_rate":"0.01","steps":100},'
        '"facts":{},"party":"site-a","peer":"site-b","round":3,"run":"run-1","seq":5,'
        f'"session":"{"ab" * 32}","time":"{TIME}","type":"MaskedInput","v":1}}'
    )


def test_records_with_and_without_each_part_come_back_the_same() -> None:
    for entry in (MASKED, replace(MASKED, decision=None, disclosure=None, dp=None), *map(event, EVENTS)):
        record = replace(RECORD, entry=entry)
        assert Record.parse(record.to_bytes()) == record
        assert record.to_bytes() == text(json.loads(record.to_bytes()))  # what any writer of JSON makes of it


def test_origin_of_another_log_is_escaped_as_json_does() -> None:
    said = Entry(
        "event", "checkpoint-cosigned", facts={**FACTS["checkpoint-cosigned"], "origin": '"},\\u0041</script>'}
    )

    data = replace(RECORD, entry=said).to_bytes()

    assert data == text(json.loads(data))
    assert Record.parse(data).entry == said


def test_every_kind_of_event_is_tested_here() -> None:
    assert FACTS.keys() == EVENTS.keys()


@pytest.mark.parametrize("kind", sorted(set(EVENTS) - {"release-fuse-burnt", "ledger-updated"}))
def test_event_says_exactly_what_its_kind_says(kind: str) -> None:
    facts = FACTS[kind]

    for key in facts:
        for value in OF_NO_FACT:
            with pytest.raises(RecordError):
                Entry("event", kind, facts={**facts, key: value})
        with pytest.raises(RecordError):
            Entry("event", kind, facts={other: facts[other] for other in facts if other != key})
    with pytest.raises(RecordError):
        Entry("event", kind, facts={**facts, "more": 1})


@pytest.mark.parametrize(
    "fields",
    [
        {"v": 0},
        {"v": "1"},
        {"v": True},
        {"v": 1.0},
        {"seq": -1},
        {"seq": 1.0},
        {"seq": True},
        {"seq": 2**53},
        {"seq": "5"},
        {"time": "2026-11-21T23:22:23Z"},
        {"time": "2026-11-21T23:22:23.000123+00:00"},
        {"time": "2026-02-30T23:22:23.000123Z"},
        {"time": "2026-11-21T23:22:60.000123Z"},
        {"time": 5},
        {"party": ""},
        {"party": "Site-A"},
        {"party": "a" * 64},
        {"party": None},
        {"run": "run 1"},
        {"round": None},
        {"session": "AB" * 32},
        {"direction": "out"},
        {"peer": ""},
        {"type": "masked-input"},
        {"bytes": 1.5},
        {"digest": "cd" * 31},
        {"decision": {"verdict": "allowed"}},
        {"decision": {"verdict": "maybe", "key": ""}},
        {"decision": {"verdict": "allowed", "key": "Key"}},
        {"decision": {"verdict": "allowed", "key": "", "why": "x"}},
        {"decision": None},
        {"decision": []},
        {"decision": 0},
        {"disclosure": {"level": "all", "what": "update", "count": 1}},
        {"disclosure": {"level": "sum", "what": "54 years old", "count": 1}},
        {"disclosure": {"level": "sum", "what": "update", "count": 1.0}},
        {"disclosure": False},
        {"dp": {}, "facts": {"x": 1}},
        {"dp": ""},
        {"facts": []},
        {"facts": 0},
        {"type": "alarm", "direction": "event"},
        {"type": "made-up", "direction": "event"},
        {"extra": 1},
    ],
)
def test_records_with_a_wrong_value_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(RecordError):
        Record.parse(changed(**fields))


MESSAGE = {
    "direction": "sent",
    "type": "MaskedInput",
    "round": 3,
    "attempt": 1,
    "bytes": 123,
    "session": "ab" * 32,
    "peer": "site-b",
    "digest": "cd" * 32,
    "facts": {},
}
HASHES = ["CD" * 32, "cd" * 31, "cd" * 32 + "\n", "cd" * 32 + " ", " " + "cd" * 32, 10**63, None, []]
COUNTS = [2**53, -1, True, 1.0, "1", None, []]
WRONG: dict[str, list[object]] = {
    "direction": ["event", "out", "sent MaskedInput", "", 5, []],
    "type": ["Join site-b", "masked", "", "M" * 65, "Join\n", "release-fuse-burnt", None, []],
    "round": [*COUNTS, 0],
    "attempt": COUNTS,
    "bytes": COUNTS,
    "session": HASHES,
    "peer": ["", "Site", "a b", "-a", "a" * 64, "a\n", 5, []],
    "digest": [*HASHES, ""],
    "facts": [{"x": 1}, None, [], MappingProxyType({})],
    "decision": ["", {}, DpSpent],
}
RIGHT: dict[str, list[object]] = {
    "direction": ["received"],
    "type": ["Join", "M" * 64],
    "round": [1, 2**53 - 1],
    "attempt": [0, 2**53 - 1],
    "bytes": [0, 2**53 - 1],
    "session": ["ef" * 32, ""],
    "peer": ["a", "a" * 63],
    "digest": ["ef" * 32],
    "decision": [None, Decision("allowed")],
}


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in WRONG.items() for value in values])
def test_message_with_a_value_of_another_form_is_refused(key: str, value: Any) -> None:
    with pytest.raises(RecordError):
        Entry(**{**MESSAGE, key: value})


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in RIGHT.items() for value in values])
def test_message_with_a_value_of_the_form_is_taken(key: str, value: Any) -> None:
    assert getattr(Entry(**{**MESSAGE, key: value}), key) == value


def test_schema_describes_every_field_of_a_record() -> None:
    declared = [*fields_of(Record), *fields_of(Entry)]

    assert sorted([*(one.name for one in declared), "v"]) == sorted(json.loads(RECORD.to_bytes()))
    described = [*declared, *(fact for kind in EVENTS.values() for fact in kind.facts)]
    described += [one for part in (Decision, Disclosure, DpSpent) for one in fields_of(part)]
    assert all(one.means and one.form.means for one in described)


@pytest.mark.parametrize(
    "decimal", ["1", "1.10", "01.1", "+1.1", "-1.1", "1.1 ", "nan", "inf", "1e400", "1E-05", ".5", "", 1.1, [], ["1.1"]]
)
def test_decimal_has_one_text(decimal: object) -> None:
    spent = json.loads(RECORD.to_bytes())["dp"]

    with pytest.raises(RecordError):
        Record.parse(changed(dp={**spent, "epsilon": decimal}))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b"\xff",
        b'"' + b"x" * MAX_RECORD_BYTES + b'"',
        b"[" * 60_000,
        RECORD.to_bytes() + b"\n",
        b" " + RECORD.to_bytes(),
        RECORD.to_bytes().replace(b":", b": "),
        RECORD.to_bytes().replace(b"site-a", b"site-\\u0061"),
        RECORD.to_bytes().replace(b'"seq":5', b'"seq":5,"seq":5'),
        RECORD.to_bytes().replace(b'"seq":5', b'"seq":05'),
        RECORD.to_bytes().replace(b'"seq":5', b'"seq":NaN'),
        RECORD.to_bytes().replace(b'"seq":5', b'"seq":' + b"9" * 5000),
        RECORD.to_bytes().replace(b'"seq":5,', b""),
        RECORD.to_bytes().replace(b'{"attempt":1,"bytes":123456', b'{"bytes":123456,"attempt":1'),
        RECORD.to_bytes()[:-1],
    ],
)
def test_other_encodings_are_refused(data: bytes) -> None:
    with pytest.raises(RecordError):
        Record.parse(data)


@settings(deadline=None, max_examples=at_depth(300, 3000))
@given(st.data())
def test_changed_bytes_are_refused_or_are_another_record_in_its_one_encoding(data: st.DataObject) -> None:
    good = RECORD.to_bytes()
    at = data.draw(st.integers(0, len(good) - 1))
    bad = good[:at] + data.draw(st.binary(max_size=3)) + good[at + 1 :]
    try:
        record = Record.parse(bad)
    except RecordError:
        return
    assert record.to_bytes() == bad


def test_record_of_a_later_release_is_not_called_malformed() -> None:
    with pytest.raises(NewerVersion, match="format 2"):
        Record.parse(changed(v=2, more="fields"))


def test_record_that_no_bundle_can_hold_is_refused() -> None:
    sites = sorted(f"{number:04d}-{'x' * 58}" for number in range(1024))
    entry = Entry("event", "unmask-shares-released", facts={"survivors": sites, "dropped": sites})

    with pytest.raises(RecordError, match="length"):
        replace(RECORD, entry=entry).to_bytes()


def test_what_is_refused_is_not_repeated_in_the_error() -> None:
    secret = "canary-7391"
    for fields in (
        {"peer": secret.upper()},
        {"digest": secret},
        {"time": secret},
        {"decision": {secret: 1}},
        {secret: 1},
    ):
        with pytest.raises(RecordError) as error:
            Record.parse(changed(**fields))
        assert secret not in str(error.value).lower()


def test_nothing_that_looks_like_a_row_can_be_said() -> None:
    for value in ("63.0,1.0,145.0", "63 years", "[0.1, 0.2]", "x" * 65, ""):
        with pytest.raises(RecordError):
            Disclosure("sum", value, 1)
        with pytest.raises(RecordError):
            Entry("event", "refused", facts={"check": value})


def test_attempt_needs_a_round_and_ledger_updates_what_was_spent() -> None:
    with pytest.raises(RecordError, match="attempt"):
        Entry("event", "release-fuse-burnt", attempt=1)
    with pytest.raises(RecordError, match="dp"):
        Entry("event", "ledger-updated")


def test_time_is_written_in_utc_whatever_the_zone() -> None:
    moment = datetime(2026, 11, 21, 23, 22, 23, 123, tzinfo=UTC)

    assert format_time(moment) == TIME
    assert format_time(moment.astimezone(timezone(timedelta(hours=5, minutes=30)))) == TIME
    assert RECORD.moment == moment
    with pytest.raises(ValueError, match="zone"):
        format_time(datetime(2026, 11, 21))


def test_origin_says_whose_log_it_is_and_of_which_run() -> None:
    name = LogName("hearts", "site-a", "run-1")

    assert name.origin == "securefda/1/hearts/site-a/run-1"
    assert name.origin.startswith(witness_name("hearts", "site-a"))
    assert LogName.parse(name.origin) == name


def test_origins_of_other_logs_are_refused() -> None:
    ours = "securefda/1/hearts/site-a/run-1"
    for origin in ("", ours.replace("1", "2", 1), ours.removesuffix("/run-1"), f"{ours}/x", "a/b/c/d/e"):
        with pytest.raises(ValueError, match="no origin"):
            LogName.parse(origin)


@pytest.mark.parametrize("name", ["", "A", "a b", "a/b", "-a", "a" * 64, "ä", "a\n"])
def test_names_that_no_origin_can_hold_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="party"):
        LogName("hearts", name, "run-1")
