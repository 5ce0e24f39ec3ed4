"""Broken connections, restarts and silence: nothing is lost, nothing is repeated, nothing waits for ever."""

from __future__ import annotations

import asyncio
import contextlib
import os
from hashlib import sha256
from types import SimpleNamespace

import pytest
from free_ports import free_port
from transport_kit import (
    FAST,
    TARGET,
    WAIT_S,
    Proxy,
    Sites,
    header,
    joined,
    masked_input,
    meeting_through_proxy,
    next_event,
    note,
    number_of,
    scenario,
    soon,
)

from securefda.errors import ConnectionFailed
from securefda.transport.client import AggregatorRestarted, _Arrival, upload
from securefda.transport.dialer import HungUp
from securefda.transport.event_queue import Joined, Left, Received
from securefda.transport.limits import TransportSettings
from securefda.transport.peer import Traffic
from securefda.v1 import federation_pb2 as pb


@scenario
async def test_messages_are_neither_lost_nor_repeated_when_connections_break() -> None:
    count = 200
    async with meeting_through_proxy() as (server, proxy, channel):

        async def from_source() -> None:
            for number in range(count):
                if number % 50 == 25:
                    proxy.cut()
                await channel.send(note(1, number))
                await server.send([(1, note(TARGET, number))])
                await asyncio.sleep(0)

        async def at_target() -> list[int]:
            return [number_of((await next_event(server, Received)).parcel) for _ in range(count)]

        async def at_source() -> list[int]:
            return [number_of(await soon(channel.receive())) for _ in range(count)]

        _, up, down = await asyncio.gather(from_source(), at_target(), at_source())
        assert up == list(range(count))
        assert down == list(range(count))
        assert proxy.cuts == 4
        assert server.connected() == {1}


@scenario
async def test_a_message_that_waited_at_the_source_when_the_connection_broke_is_handed_up_once() -> None:
    async with meeting_through_proxy() as (server, proxy, channel):
        await server.send([(1, note(TARGET, 1))])
        while not channel._inbox:
            await asyncio.sleep(0)
        connections = proxy.connections
        proxy.cut()
        while proxy.connections == connections:
            await asyncio.sleep(0)
        await server.send([(1, note(TARGET, 2))])
        while len(channel._inbox) < 2:  # the first, not acknowledged, has been sent again before the second
            await asyncio.sleep(0)
        assert [number_of(await soon(channel.receive())) for _ in range(2)] == [1, 2]


@scenario
async def test_an_upload_goes_on_where_the_connection_broke() -> None:
    vector = os.urandom(400_000)
    async with meeting_through_proxy() as (server, proxy, channel):
        server.expect_upload(1, len(vector))
        proxy.cut_once_after(250_000)
        sent = masked_input(1, vector)
        await soon(channel.send(sent))
        event = await next_event(server, Received)
        assert event.parcel.message == sent.message
        assert bytes(event.parcel.vectors[0]) == vector
        assert proxy.cuts == 1
        assert server.traffic()[1].up < 500_000  # from the start it would have been 650 000


@scenario
async def test_a_download_goes_on_where_the_connection_broke() -> None:
    vector = os.urandom(400_000)
    async with meeting_through_proxy() as (server, proxy, channel):
        proxy.cut_once_after(250_000)
        await server.send([(1, header(vector))])
        received = await soon(channel.receive())
        assert bytes(received.vectors[0]) == vector
        assert proxy.cuts == 1
        assert channel.traffic().down < 500_000


@scenario
async def test_a_receive_that_is_cancelled_loses_nothing() -> None:
    vector = os.urandom(400_000)
    async with meeting_through_proxy() as (server, proxy, channel):
        proxy.freeze()
        await server.send([(1, header(vector))])
        receiving = asyncio.create_task(channel.receive())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(receiving, 0.05)
        proxy.thaw()
        assert bytes((await soon(channel.receive())).vectors[0]) == vector


@scenario
async def test_a_restarted_source_joins_anew_and_gets_nothing_meant_for_its_predecessor() -> None:
    sites = Sites()
    async with sites.listening() as (server, upstream):
        proxy = Proxy(upstream)
        async with proxy.running() as address:
            first = sites.channel(1, address)
            await first.open()
            before = await joined(server, 1)
            proxy.freeze()  # as if the process were dead: nothing arrives, nothing is closed
            await server.send([(1, note(TARGET, 1))])
            await server.send([(1, header(os.urandom(10_000)))])
            async with sites.connected(1, upstream) as second:
                after = await joined(server, 1)
                assert not after.resumed
                assert after.instance_id != before.instance_id
                assert server._table.attachments.held_bytes == 0
                await server.send([(1, note(TARGET, 2))])
                assert number_of(await soon(second.receive())) == 2
            first._task.cancel()  # the process is gone; there is no goodbye


@scenario
async def test_a_restarted_aggregator_is_no_broken_connection() -> None:
    sites = Sites()
    async with sites.listening() as (server, address):
        channel = sites.channel(1, address)
        await channel.open()
        await joined(server, 1)
        await server.send([(1, note(TARGET, 1))])
        assert number_of(await soon(channel.receive())) == 1
    async with sites.listening(listen=address) as (server, _):
        with pytest.raises(AggregatorRestarted):
            await soon(channel.receive())
        await joined(server, 1)
        await channel.send(note(1, 2))
        await server.send([(1, note(TARGET, 3))])
        assert number_of((await next_event(server, Received)).parcel) == 2
        assert number_of(await soon(channel.receive())) == 3
        await channel.close()


@scenario
async def test_an_upload_to_a_restarted_aggregator_ends_instead_of_reaching_the_wrong_session() -> None:
    sites, vector = Sites(), os.urandom(400_000)
    async with sites.listening() as (server, upstream):
        proxy = Proxy(upstream)
        async with proxy.running() as address:
            channel = sites.channel(1, address)
            await channel.open()
            await joined(server, 1)
            server.expect_upload(1, len(vector))
            while not channel.traffic().up:
                await asyncio.sleep(0)
            proxy.freeze()
            sending = asyncio.create_task(channel.send(masked_input(1, vector)))
            await asyncio.sleep(0)
            await server.stop(0.0)
            proxy.thaw()
            async with sites.listening(listen=upstream) as (second, _):
                second.expect_upload(1, len(vector))
                with pytest.raises(AggregatorRestarted):
                    await soon(sending)
                await joined(second, 1)
                await channel.send(note(1, 1))
                assert number_of((await next_event(second, Received)).parcel) == 1
                await channel.close()


@scenario
async def test_a_silent_source_is_reported_lost_and_resumes_without_loss() -> None:
    sites = Sites()
    async with sites.listening(FAST) as (server, upstream):
        proxy = Proxy(upstream)
        async with proxy.running() as address, sites.connected(1, address, FAST) as channel:
            before = await joined(server, 1)
            proxy.freeze()
            await channel.send(note(1, 1))
            await server.send([(1, note(TARGET, 2))])
            left = await next_event(server, Left)
            assert left == Left(1, "silent for 0.3 s", may_return=True)
            assert (server.connected(), server.reachable()) == (set(), {1})
            proxy.cut()
            proxy.thaw()
            back = await next_event(server, Joined)
            assert (back.resumed, back.instance_id) == (True, before.instance_id)
            assert number_of((await next_event(server, Received)).parcel) == 1
            assert number_of(await soon(channel.receive())) == 2


@scenario
async def test_a_silent_aggregator_makes_the_source_dial_again() -> None:
    async with meeting_through_proxy(FAST) as (server, proxy, channel):
        connections = proxy.connections
        proxy.freeze()
        while proxy.connections == connections:  # the source notices by itself
            await asyncio.sleep(0.01)
        proxy.cut()
        proxy.thaw()
        await channel.send(note(1, 1))
        while not isinstance(event := await soon(server.receive()), Received):
            pass
        assert number_of(event.parcel) == 1


@scenario
async def test_a_source_that_vanishes_is_lost_after_three_heartbeats() -> None:
    sites = Sites()
    loop = asyncio.get_running_loop()
    async with sites.listening(FAST) as (server, upstream):
        proxy = Proxy(upstream)
        async with proxy.running() as address:
            channel = sites.channel(1, address, FAST)
            await channel.open()
            await joined(server, 1)
            channel._task.cancel()  # killed: nothing is said
            begin = loop.time()
            proxy.cut()
            left = await next_event(server, Left)
            assert left.index == 1
            assert 0.25 <= loop.time() - begin < 5.0


@scenario
async def test_a_source_gives_up_after_its_deadline_and_says_so() -> None:
    sites = Sites()
    settings = TransportSettings(heartbeat_s=0.1, reconnect_deadline_s=0.3)
    async with sites.listening(settings) as (server, address):
        channel = sites.channel(1, address, settings)
        await channel.open()
        await joined(server, 1)
    with pytest.raises(ConnectionFailed, match=r"cannot reach the aggregator.*gave up after"):
        await soon(channel.receive())
    with pytest.raises(ConnectionFailed):
        await channel.send(note(1, 1))
    await channel.close()


@scenario
async def test_sites_with_different_heartbeats_do_not_lose_each_other() -> None:
    sites = Sites()
    slow = TransportSettings(heartbeat_s=5.0)
    loop = asyncio.get_running_loop()
    async with sites.listening(FAST) as (server, address), sites.connected(1, address, slow) as channel:
        await joined(server, 1)
        end = loop.time() + 5 * FAST.silence_s
        with pytest.raises(TimeoutError):
            async with asyncio.timeout_at(end):
                await server.receive()  # no Left
        assert server.connected() == {1}
        await channel.send(note(1, 1))
        await next_event(server, Received)


@scenario
async def test_a_restart_of_the_machine_between_two_dials_is_survived_without_a_port() -> None:
    sites = Sites()
    address = f"127.0.0.1:{free_port()}"
    settings = TransportSettings(heartbeat_s=0.2, reconnect_deadline_s=10.0)
    for round_number in range(3):
        async with sites.listening(settings, listen=address) as (server, _):
            if round_number == 0:
                channel = sites.channel(1, address, settings)
                await channel.open()
            else:
                with pytest.raises(AggregatorRestarted):
                    await soon(channel.receive())
            await joined(server, 1)
            await channel.send(note(1, round_number))
            assert number_of((await next_event(server, Received)).parcel) == round_number
    await channel.close()


class NeverBegins:
    """A call of gRPC whose connection broke before it began: it lets a write wait for ever."""

    async def write(self, request: object) -> None:
        await asyncio.Event().wait()

    def cancel(self) -> None: ...


@scenario
async def test_an_upload_that_never_begins_is_tried_again() -> None:
    parcel = masked_input(1, bytes(8))
    broken = SimpleNamespace(stub=SimpleNamespace(Upload=NeverBegins), traffic=Traffic())
    with pytest.raises(HungUp, match="did not begin"):
        await upload(
            broken,
            instance_id=bytes(16),
            message=parcel.message,
            view=memoryview(parcel.vectors[0]),
            chunk_bytes=8,
            patience_s=0.01,
        )


class AnswersAtTheEnd:
    """A call of gRPC on a long line: no answer is there before the last piece has left."""

    def __init__(self) -> None:
        self.requests: list[pb.UploadRequest] = []
        self._all_left = asyncio.Event()

    async def write(self, request: pb.UploadRequest) -> None:
        self.requests.append(request)

    async def done_writing(self) -> None:
        self._all_left.set()

    async def read(self) -> pb.UploadResponse:
        await self._all_left.wait()
        return pb.UploadResponse(received_bytes=20, complete=True)

    def cancel(self) -> None: ...


@scenario
async def test_a_first_upload_waits_for_no_answer_before_it_sends() -> None:
    parcel, call = masked_input(1, bytes(20)), AnswersAtTheEnd()
    connection = SimpleNamespace(stub=SimpleNamespace(Upload=lambda: call), traffic=Traffic())
    view = memoryview(parcel.vectors[0])
    await upload(connection, instance_id=bytes(16), message=parcel.message, view=view, chunk_bytes=8, patience_s=WAIT_S)
    assert [request.chunk.offset for request in call.requests[1:]] == [0, 8, 16]


@scenario
async def test_an_upload_of_which_only_the_acknowledgement_was_lost_is_done_at_once() -> None:
    vector = os.urandom(10_000)
    async with meeting_through_proxy() as (server, _, channel):
        server.expect_upload(1, len(vector))
        sent = masked_input(1, vector)
        await soon(channel.send(sent))
        await next_event(server, Received)
        again = upload(
            channel._connection,
            instance_id=channel._instance_id,
            message=sent.message,
            view=memoryview(vector),
            chunk_bytes=1000,
            patience_s=WAIT_S,
            resumes=True,
        )
        await soon(again)
        await channel.send(note(1, 2))
        assert number_of((await next_event(server, Received)).parcel) == 2


@pytest.mark.parametrize("ticks", range(6))
@scenario
async def test_a_restart_is_heard_of_although_a_deadline_passes_in_that_moment(ticks: int) -> None:
    """A caller's deadline cancels the wait for a message whose vectors were being fetched."""
    channel = Sites().channel(1, "127.0.0.1:1")
    channel._task = asyncio.get_running_loop().create_future()  # stands for the task that dials
    vectors = [bytes([number]) * 48 for number in (1, 2)]
    digests = tuple(sha256(vector).digest() for vector in vectors)
    channel._inbox.append(_Arrival(1, header(*vectors).message, (48, 48), digests))
    receiving = asyncio.create_task(channel.receive())
    for _ in range(5):
        await asyncio.sleep(0)
    channel._inbox.clear()
    channel._restarted = True
    channel._news.set()
    for _ in range(ticks):
        await asyncio.sleep(0)
    receiving.cancel()
    with contextlib.suppress(asyncio.CancelledError, AggregatorRestarted):
        await receiving
    heard = not receiving.cancelled() and isinstance(receiving.exception(), AggregatorRestarted)
    assert heard != channel._restarted
