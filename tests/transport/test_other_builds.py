"""Builds that do not speak with each other part at the first message: both are named, and no site is accused."""

from __future__ import annotations

import json
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
from transport_kit import FAST, TARGET, Sites, header_body, joined, meeting, message, next_event, scenario, soon

from securefda.errors import ExitCode, OtherBuild
from securefda.protocol.build import CAPABILITIES, WIRE_VERSION, Build
from securefda.protocol.messages import Join, Parcel, Refusal, Visibility
from securefda.transport.event_queue import Incompatible
from securefda.transport.wire import other_build, signed_to_proto
from securefda.v1 import federation_pb2 as frames
from securefda.v1 import messages_pb2 as pb

WIRES = Path(__file__).parents[1] / "fixtures" / "wires.json"
"""By wire version, digests of the schema that it stands for."""

OWN = f"securefda {Build.own().software_version} (wire version {WIRE_VERSION})"
MODEL = bytes(48)
MORE = (*CAPABILITIES, "zero-knowledge")
APART = {
    "a later wire": (Build(WIRE_VERSION + 1, "9.8.7", MORE), "securefda 9.8.7 (wire version 2)", OWN),
    "less than here": (
        Build(WIRE_VERSION, "9.8.7", CAPABILITIES[:-1]),
        f"securefda 9.8.7 (wire version 1, without {CAPABILITIES[-1]})",
        OWN,
    ),
    "more than here": (
        Build(WIRE_VERSION, "9.8.7", MORE),
        "securefda 9.8.7 (wire version 1)",
        f"{OWN[:-1]}, without zero-knowledge)",
    ),
}


def join_of(build: Build) -> Parcel:
    return message(1, Join(bytes(32), Visibility.SUM, metrics=True, build=build))


def header_of(build: Build) -> Parcel:
    return Parcel(message(TARGET, replace(header_body(sha256(MODEL).digest()), build=build)).message, (MODEL,))


@pytest.mark.parametrize("case", APART)
@pytest.mark.parametrize("of", [join_of, header_of])
def test_a_build_that_differs_in_wire_or_capabilities_is_told_by_both_names(case: str, of) -> None:
    build, theirs, ours = APART[case]
    assert other_build(signed_to_proto(of(build).message)) == (theirs, ours)


@pytest.mark.parametrize("of", [join_of, header_of])
def test_another_version_number_alone_keeps_nobody_apart(of) -> None:
    assert other_build(signed_to_proto(of(replace(Build.own(), software_version="9.8.7")).message)) is None
    assert other_build(signed_to_proto(message(1, Refusal("a-key")).message)) is None


def _edited(name: str, edit) -> pb.SignedMessage:
    envelope = pb.Envelope.FromString(join_of(Build(WIRE_VERSION + 1, "9.8.7", ())).message.signed_bytes)
    edit(getattr(envelope, name))
    return pb.SignedMessage(signed_bytes=envelope.SerializeToString(), signature=bytes(64))


def test_whatever_else_another_build_writes_is_skipped() -> None:
    theirs = APART["a later wire"][1]
    unknown = b"\x92\x03\x02\x08\x01" + b"\xf8\x3f\x01"  # fields 50 and 1023, of no release
    later = _edited("join", lambda join: join.MergeFromString(unknown))
    assert other_build(later) == (theirs, OWN)
    assert other_build(_edited("join", lambda join: join.ClearField("architecture_digest"))) == (theirs, OWN)


def test_a_build_from_before_builds_is_named_as_such_and_one_that_is_malformed_is_left_to_the_reader() -> None:
    before = _edited("join", lambda join: join.ClearField("build"))
    assert other_build(before) == ("a securefda without a wire version", OWN)
    assert other_build(_edited("join", lambda join: join.build.ClearField("wire_version"))) is None
    assert other_build(pb.SignedMessage(signed_bytes=b"\xff")) is None


@scenario
async def test_a_join_of_another_build_is_refused_unread_and_both_sides_say_so() -> None:
    build, theirs, ours = APART["a later wire"]
    recorded: list[object] = []
    sites = Sites()
    async with (
        sites.listening(FAST, observer=lambda *what, **_: recorded.append(what)) as (server, address),
        sites.connected(1, address, FAST) as channel,
    ):
        await joined(server, 1)
        await channel.send(join_of(build))
        assert await next_event(server, Incompatible) == Incompatible(1, theirs, ours)
        with pytest.raises(OtherBuild) as caught:
            await soon(channel.receive())
    assert str(caught.value) == f"this site runs {theirs}, the aggregator {ours}"
    assert (caught.value.exit_code, caught.value.code) == (ExitCode.VERSION, "OtherBuild")
    assert recorded == []


@scenario
async def test_a_header_of_an_aggregator_that_claims_less_ends_the_source_before_it_is_read() -> None:
    build, theirs, ours = APART["less than here"]
    recorded: list[object] = []
    async with meeting(observer=lambda *what, **_: recorded.append(what)) as (server, channel):
        await server.send([(1, header_of(build))])
        with pytest.raises(OtherBuild) as caught:
            await soon(channel.receive())
    assert str(caught.value) == f"the aggregator runs {theirs}, this site {ours}"
    assert recorded == []


def test_a_wire_version_stands_for_one_schema() -> None:
    schema = {
        "capabilities": list(CAPABILITIES),
        "frames": sha256(frames.DESCRIPTOR.serialized_pb).hexdigest(),
        "messages": sha256(pb.DESCRIPTOR.serialized_pb).hexdigest(),
    }
    rule = "raise WIRE_VERSION and add its schema; only one that no release has yet may be written anew"
    assert json.loads(WIRES.read_text())[str(WIRE_VERSION)] == schema, rule
