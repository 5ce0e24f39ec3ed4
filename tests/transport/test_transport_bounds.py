"""What a source can make the aggregator hold, by coming and going or by taking nothing, has an end."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import grpc
import pytest
from driver_kit import Driven
from transport_kit import (
    CALM,
    HELLO,
    TARGET,
    Sites,
    header,
    joined,
    meeting,
    next_event,
    note,
    number_of,
    raw_channel,
    raw_source,
    scenario,
    soon,
    status_of,
)

from securefda.errors import QuorumLost
from securefda.protocol.messages import NO_CONTEXT, SESSION_ID_BYTES, Abort, Advertise, Parcel, Step
from securefda.source.source_process import SourceDriver
from securefda.transport.event_queue import Joined, Left, Misbehaved
from securefda.v1 import federation_pb2 as pb
from securefda.v1.federation_pb2_grpc import FederationServiceStub


@scenario
async def test_a_source_that_comes_and_goes_without_end_fills_no_memory_of_an_aggregator_that_is_busy() -> None:
    sites, times = Sites(), 50
    leave = pb.Frame(leave=pb.Leave())
    async with sites.listening() as (server, address), raw_channel(sites, address) as channel:
        stub = FederationServiceStub(channel)
        for number in range(times):
            instance = number.to_bytes(16, "big")
            hello = pb.Frame(hello=pb.Hello(instance_id=instance, heartbeat_ms=2000))
            for _ in range(2):  # a new process, which leaves, is back and leaves
                control = stub.Control()
                await control.write(pb.ControlRequest(frame=hello))
                await control.write(pb.ControlRequest(frame=leave))
                assert await status_of(control) is grpc.StatusCode.OK
            assert len(server._table.events._events) <= 3
        assert list(server._table.events._events) == [Joined(1, instance, resumed=False), Left(1, "hung up")]


@scenario
async def test_a_source_that_takes_no_messages_is_gone_before_they_fill_the_memory() -> None:
    sites, shown = Sites(), []

    observer = lambda direction, peer, signed, size, more=False: shown.append(peer)  # noqa: E731
    async with sites.listening(observer=observer) as (server, address), raw_source(sites, address, server):
        link = server._table.site(1).link
        most = CALM.max_untaken_bytes + 2048  # a note and its frame
        while server.connected() == {1}:
            await server.send([(1, note(TARGET, len(shown)))])
            assert link.untaken_bytes < most
        left = await next_event(server, Left)
        assert left == Left(1, "it takes no messages: more than 524288 bytes wait for it")
        assert link.untaken_bytes == 0
        delivered = len(shown)
        assert delivered > CALM.max_untaken_bytes // 2048  # and not too early
        async with raw_channel(sites, address) as channel:
            control = FederationServiceStub(channel).Control()
            await control.write(pb.ControlRequest(frame=HELLO))
            assert (await next_event(server, Joined)).resumed
            await server.send([(1, note(TARGET, delivered))])
            while (frame := (await soon(control.read())).frame).WhichOneof("content") != "delivery":
                pass
            assert frame.delivery.sequence == delivered + 1
            control.cancel()


@scenario
async def test_what_goes_to_a_source_that_is_given_up_is_shown_to_nobody_and_the_others_get_theirs() -> None:
    sites, shown = Sites(), []

    observer = lambda direction, peer, signed, size, more=False: shown.append((peer, more))  # noqa: E731
    async with (
        sites.listening(observer=observer) as (server, address),
        raw_source(sites, address, server),
        sites.connected(2, address) as other,
    ):
        await joined(server, 2)
        vector, link = os.urandom(1000), server._table.site(1).link
        while link.untaken_bytes <= CALM.max_untaken_bytes:
            link.push(note(TARGET, 1).message)
        await server.send([(1, header(vector)), (2, note(TARGET, 2)), (1, note(TARGET, 3))])
        assert shown == [(2, False)]
        assert server._table.attachments.held_bytes == 0
        assert number_of(await soon(other.receive())) == 2
        assert (await next_event(server, Left)).index == 1
        assert server.connected() == {2}


@scenario
async def test_a_source_that_takes_its_messages_is_never_given_up() -> None:
    count = 2 * CALM.max_untaken_bytes // 1024
    async with meeting() as (server, channel):
        for number in range(count):
            await server.send([(1, note(TARGET, number))])
            assert number_of(await soon(channel.receive())) == number
        assert server.connected() == {1}
        assert not server._table.events._events


@scenario
async def test_a_source_whose_messages_never_stop_puts_no_deadline_off(tmp_path: Path) -> None:
    federation = Driven(tmp_path, rounds=1, join_deadline_s=0.2)
    async with federation.driven() as (server, driving):

        async def never_stop() -> None:
            while True:
                for number in range(8):
                    server._table.events.put(Misbehaved(1, f"CHECK_{number}", "on and on"))
                await asyncio.sleep(0)

        flood = asyncio.create_task(never_stop())
        with pytest.raises(QuorumLost):
            await soon(driving)
        flood.cancel()


@scenario
async def test_an_aggregator_whose_messages_never_stop_puts_no_deadline_of_a_source_off(tmp_path: Path) -> None:
    """Each is one that a source ignores: it ends another session than the one that the source is in."""
    federation, times = Driven(tmp_path, rounds=1), [0.0]
    async with federation.driven() as (server, _):
        source = await federation.process(1)
        for other in (2, 3, 4):
            (await federation.process(other, Advertise)).start()
        rounds = source._rounds
        driver = SourceDriver(rounds, source.channel, source.watch, clock=lambda: times[-1])
        while rounds.current is None:
            await soon(driver.answer_one())
        deadline_s = rounds.current.deadline_s
        ignored = federation.run.site.signer.sign(
            bytes(SESSION_ID_BYTES - 1) + b"q", NO_CONTEXT, Abort(Step.UNMASK, "LATE", None)
        )
        step = rounds.current
        for now in (0.0, deadline_s - 1, deadline_s):
            times.append(now)
            assert rounds.current is step
            await server.send([(1, Parcel(ignored))])
            await soon(driver.answer_one())
        assert rounds.current is None
        assert ["DEADLINE" in alarm for alarm in source.watch.alarms] == [True]
