"""Slow, silent and breaking networks: what is slow is not lost, and what breaks is taken up where it was."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from bad_network import BadNetwork, Conditions, Fault, Way
from transport_kit import Sites, header, joined, masked_input, next_event, note, number_of, scenario, soon

from securefda.transport import dialer, limits
from securefda.transport.aggregator_server import AggregatorServer
from securefda.transport.client import REFUSED_HANDSHAKES, LostConnection
from securefda.transport.delivery import Link
from securefda.transport.dialer import Dialer, Endpoint, HungUp, UploadRefusedError
from securefda.transport.event_queue import Joined, Left, Received
from securefda.transport.limits import TransportSettings
from securefda.transport.tls import Unreachable

SETTINGS = TransportSettings(chunk_bytes=4096, max_message_bytes=65536, heartbeat_s=0.3, reconnect_deadline_s=20.0)
CHECKS_A_CERTIFICATE = None
"""The first connection of a dial, and each other one after it, is short: it fetches the aggregator's certificate."""
SLOW = Conditions(bytes_per_s=100_000)


def network(upstream: str, conditions: Conditions) -> BadNetwork:
    host, _, port = upstream.rpartition(":")
    return BadNetwork(("127.0.0.1", 0), (host, int(port)), conditions)


@scenario
async def test_two_sites_behind_one_address_are_told_apart() -> None:
    sites = Sites()
    async with sites.listening(SETTINGS) as (server, upstream):
        with network(upstream, Conditions()) as router:
            address = f"127.0.0.1:{router.port}"
            async with (
                sites.connected(1, address, SETTINGS) as first,
                sites.connected(2, address, SETTINGS) as second,
            ):
                assert {(await next_event(server, Joined)).index for _ in range(2)} == {1, 2}
                await first.send(note(1, 7))
                assert (await next_event(server, Received)).index == 1
                await server.send([(2, note(0, 8))])
                assert number_of(await soon(second.receive())) == 8


@scenario
async def test_an_aggregator_at_an_ipv6_address_is_reached() -> None:
    sites = Sites()
    async with sites.listening(SETTINGS, "[::1]:0") as (server, address):
        assert address.startswith("[::1]:")
        async with sites.connected(1, address, SETTINGS):
            await joined(server, 1)


@scenario
async def test_a_vector_far_beyond_the_largest_message_arrives() -> None:
    sites, vector = Sites(), os.urandom(40 * SETTINGS.max_message_bytes)
    async with (
        sites.listening(SETTINGS) as (server, address),
        sites.connected(1, address, SETTINGS) as channel,
    ):
        await joined(server, 1)
        await server.send([(1, header(vector))])
        assert bytes((await soon(channel.receive())).vectors[0]) == vector
        server.expect_upload(1, len(vector))
        await soon(channel.send(masked_input(1, vector)))
        assert bytes((await next_event(server, Received)).parcel.vectors[0]) == vector


@scenario
async def test_a_source_whose_line_falls_silent_comes_back_before_it_counts_as_lost() -> None:
    sites, vector = Sites(), os.urandom(100_000)
    silence = Conditions(first=(CHECKS_A_CERTIFICATE, Fault("silence", "up", 50_000)))
    async with sites.listening(SETTINGS) as (server, upstream):
        with network(upstream, silence) as bad:
            async with sites.connected(1, f"127.0.0.1:{bad.port}", SETTINGS) as channel:
                await joined(server, 1)
                server.expect_upload(1, len(vector))
                await soon(channel.send(masked_input(1, vector)))
                event = await next_event(server, Received)  # and no Left before
                assert bytes(event.parcel.vectors[0]) == vector
                assert bad.struck == {"silence": 1}


@scenario
async def test_on_a_slow_line_heartbeats_wait_behind_vectors_and_no_connection_is_given_up() -> None:
    sites, vector = Sites(), os.urandom(400_000)
    async with sites.listening(SETTINGS) as (server, upstream):
        with network(upstream, SLOW) as bad:
            async with sites.connected(1, f"127.0.0.1:{bad.port}", SETTINGS) as channel:
                await joined(server, 1)
                await server.send([(1, header(vector))])
                assert bytes((await soon(channel.receive())).vectors[0]) == vector
                server.expect_upload(1, len(vector))
                await soon(channel.send(masked_input(1, vector)))
                assert bytes((await next_event(server, Received)).parcel.vectors[0]) == vector
                assert bad.connections == 2


@scenario
async def test_a_transfer_that_breaks_after_longer_than_the_deadline_to_reconnect_is_taken_up_again() -> None:
    """The deadline is for the time without a connection; how long a vector takes is another matter."""
    settings = replace(SETTINGS, reconnect_deadline_s=1.0)
    sites, vector = Sites(), os.urandom(140_000)
    cut = Conditions(bytes_per_s=50_000, first=(CHECKS_A_CERTIFICATE, Fault("cut", "down", 120_000)))
    async with sites.listening(settings) as (server, upstream):
        with network(upstream, cut) as bad:
            async with sites.connected(1, f"127.0.0.1:{bad.port}", settings) as channel:
                await joined(server, 1)
                await server.send([(1, header(vector))])
                assert bytes((await soon(channel.receive())).vectors[0]) == vector
                assert bad.struck == {"cut": 1}


@scenario
async def test_handshakes_that_a_network_breaks_off_are_no_refusal_of_a_certificate() -> None:
    sites = Sites()
    broken = (CHECKS_A_CERTIFICATE, Fault("cut", "down", 1500)) * 4
    cut = Conditions(first=(CHECKS_A_CERTIFICATE, Fault("cut", "up", 6000), *broken))
    async with sites.listening(SETTINGS) as (server, upstream):
        with network(upstream, cut) as bad:
            async with sites.connected(1, f"127.0.0.1:{bad.port}", SETTINGS) as channel:
                await joined(server, 1)
                for number in range(60):
                    await channel.send(note(1, number))
                events = []
                while len(events) < 60:
                    event = await soon(server.receive())
                    if isinstance(event, Received):
                        events.append(number_of(event.parcel))
                assert events == list(range(60))
                assert bad.struck == {"cut": 5}


@asynccontextmanager
async def missed_handshakes(sites: Sites, monkeypatch) -> AsyncIterator[tuple[AggregatorServer, str, asyncio.Event]]:
    """A server that sees no source's last word of the handshake before its deadline, until the event is set."""
    for module in (limits, dialer):
        monkeypatch.setattr(module, "HANDSHAKE_S", 0.2)
    in_time = asyncio.Event()
    async with sites.listening(SETTINGS) as (server, upstream):
        host, _, port = upstream.rpartition(":")

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            far_reader, far_writer = await asyncio.open_connection(host, int(port))

            async def up() -> None:
                while data := await reader.read(65536):
                    far_writer.write(data)
                    await in_time.wait()

            sending = asyncio.create_task(up())
            with contextlib.suppress(OSError):
                while data := await far_reader.read(65536):
                    writer.write(data)
            sending.cancel()
            writer.close()

        front = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with front:
            yield server, f"127.0.0.1:{front.sockets[0].getsockname()[1]}", in_time


async def failed_dial(sites: Sites, address: str) -> HungUp:
    endpoint = Endpoint(address, "target", sites.target.pin, 0)
    dialling = Dialer(endpoint, sites.sources[1], SETTINGS, bytes(16))
    while True:
        try:
            await soon(dialling.dial(Link(SETTINGS.max_message_bytes), b""))
        except Unreachable:  # on a busy machine, a first look that came too late
            continue
        except HungUp as error:
            return error
        pytest.fail("connected")


@scenario
@pytest.mark.parametrize(
    ("way", "at"), [("down", 100), ("up", 2200)], ids=["before its certificate", "after HTTP/2 has begun"]
)
async def test_a_connection_that_ends_elsewhere_in_the_handshake_is_no_refusal(way: Way, at: int) -> None:
    sites = Sites()
    async with sites.listening(SETTINGS) as (_, upstream):
        with network(upstream, Conditions(first=(CHECKS_A_CERTIFICATE, Fault("cut", way, at)))) as bad:
            error = await failed_dial(sites, f"127.0.0.1:{bad.port}")
            assert bad.struck == {"cut": 1}
    assert (type(error), error.hint) == (HungUp, "")


@scenario
async def test_a_server_that_misses_its_deadline_for_handshakes_may_be_slow_or_refuse(monkeypatch) -> None:
    sites = Sites()
    async with missed_handshakes(sites, monkeypatch) as (_, address, _):
        error = await failed_dial(sites, address)
    assert type(error) is HungUp
    assert "too busy" in error.hint
    assert "does not accept this site's certificate" in error.hint


@scenario
async def test_a_source_joins_a_server_that_was_too_slow_for_three_handshakes(monkeypatch) -> None:
    sites = Sites()
    missed: list[str] = []
    async with missed_handshakes(sites, monkeypatch) as (server, address, in_time):

        def hear(lost: LostConnection | None) -> None:
            if lost and "before its welcome" in lost.what:
                missed.append(lost.what)
                if len(missed) == REFUSED_HANDSHAKES:
                    in_time.set()

        async with sites.connected(1, address, SETTINGS, on_lost=hear):
            await joined(server, 1)
    assert len(missed) >= REFUSED_HANDSHAKES


@scenario
async def test_an_upload_that_is_late_is_cut_short_and_its_part_is_known() -> None:
    sites, vector = Sites(), os.urandom(1_000_000)
    async with sites.listening(SETTINGS) as (server, upstream):
        with network(upstream, SLOW) as bad:
            async with sites.connected(1, f"127.0.0.1:{bad.port}", SETTINGS) as channel:
                await joined(server, 1)
                server.expect_upload(1, len(vector))
                assert server.arrived() == {}
                sending = asyncio.create_task(channel.send(masked_input(1, vector)))
                while server.arrived().get(1, 0.0) < 0.1:
                    await asyncio.sleep(0.01)
                server.expect_upload(1, 0)
                assert server.arrived() == {}
                with pytest.raises(UploadRefusedError, match="0 expected"):
                    await soon(sending)
                assert server.traffic()[1].up < 500_000


@scenario
async def test_the_end_waits_for_what_a_slow_line_still_carries_and_not_for_a_source_that_is_gone() -> None:
    sites, vector = Sites(), os.urandom(300_000)
    async with sites.listening(SETTINGS) as (server, upstream):
        with network(upstream, SLOW) as bad:
            async with (
                sites.connected(1, f"127.0.0.1:{bad.port}", SETTINGS) as channel,
                sites.connected(2, upstream, SETTINGS) as other,
            ):
                assert {(await soon(server.receive())).index for _ in range(2)} == {1, 2}
                await server.send([(1, header(vector)), (2, note(0, 1))])
                assert other._task is not None
                other._task.cancel()  # killed, with a message that it never takes
                receiving = asyncio.create_task(channel.receive())
                await soon(server.stop(grace=600.0))
                assert bytes((await soon(receiving)).vectors[0]) == vector


@scenario
async def test_a_source_on_a_slow_line_that_is_gone_is_still_lost() -> None:
    """Companion of the tests above: pieces that came once do not keep a source alive."""
    sites, vector = Sites(), os.urandom(300_000)
    async with sites.listening(SETTINGS) as (server, upstream):
        with network(upstream, SLOW) as bad:
            channel = sites.channel(1, f"127.0.0.1:{bad.port}", SETTINGS)
            await channel.open()
            await joined(server, 1)
            server.expect_upload(1, len(vector))
            sending = asyncio.create_task(channel.send(masked_input(1, vector)))
            while server.arrived().get(1, 0.0) < 0.05:
                await asyncio.sleep(0.01)
            sending.cancel()
            assert channel._task is not None
            channel._task.cancel()
            assert (await next_event(server, Left)).index == 1
