"""Connections that nobody may open without end: bounds on all of them, on those of an address, and on the handshake."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager

import pytest
from transport_kit import CALM, Sites, scenario, soon

from securefda.transport import limits
from securefda.transport.aggregator_server import AggregatorServer
from securefda.transport.connection_guard import ConnectionGuard, _network
from securefda.transport.event_queue import Joined
from securefda.transport.limits import ConnectionLimits

ELSEWHERE, HERE = "127.0.0.9", "127.0.0.1"


@contextmanager
def idle_connections(address: str, count: int, come_from: str = ELSEWHERE) -> Iterator[list[socket.socket]]:
    host, _, port = address.rpartition(":")
    with ExitStack() as opened:
        yield [
            opened.enter_context(socket.create_connection((host, int(port)), source_address=(come_from, 0)))
            for _ in range(count)
        ]


def is_open(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


async def until_open(connections: list[socket.socket], count: int) -> None:
    async with asyncio.timeout(10):
        while sum(map(is_open, connections)) != count:
            await asyncio.sleep(0.05)


@asynccontextmanager
async def server(sites: Sites, connections: ConnectionLimits) -> AsyncIterator[tuple[AggregatorServer, str]]:
    listening = AggregatorServer(
        "127.0.0.1:0", sites.target, sites.site_of_pin, run_id=bytes(16), settings=CALM, connections=connections
    )
    address = await listening.start()
    try:
        yield listening, address
    finally:
        await listening.stop(0.0)


async def joins(sites: Sites, listening: AggregatorServer, address: str) -> None:
    channel = sites.channel(1, address, CALM)
    try:
        await soon(channel.open())
        assert isinstance(await soon(listening.receive()), Joined)
    finally:
        await channel.close()


@scenario
async def test_the_newest_connections_of_an_address_are_hung_up_on_and_a_source_elsewhere_joins() -> None:
    sites = Sites()
    async with server(sites, ConnectionLimits(total=60, per_address=10)) as (listening, address):
        with idle_connections(address, 50) as connections:
            await until_open(connections, 10)
            await joins(sites, listening, address)


@scenario
async def test_without_the_bound_on_an_address_its_connections_leave_no_place_for_a_source() -> None:
    sites = Sites()
    async with server(sites, ConnectionLimits(total=20, per_address=10_000)) as (_, address):
        with idle_connections(address, 50) as connections:
            await until_open(connections, 20)
            channel = sites.channel(1, address, CALM)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(2):
                    await channel.open()
            await channel.close()


@scenario
async def test_a_connection_without_a_handshake_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HANDSHAKE_S", 0.5)
    async with server(Sites(), ConnectionLimits(total=60, per_address=60)) as (_, address):
        with idle_connections(address, 5) as connections:
            await until_open(connections, 0)


def test_connections_that_were_there_before_stay() -> None:
    with socket.create_server((HERE, 0)) as listener, ExitStack() as accepted:
        port = listener.getsockname()[1]
        guard = ConnectionGuard(port, 2)
        with idle_connections(f"{HERE}:{port}", 2) as first:
            for _ in first:
                accepted.enter_context(listener.accept()[0])
            guard.look()
            with idle_connections(f"{HERE}:{port}", 3) as later, idle_connections(f"{HERE}:{port}", 2, HERE) as others:
                for _ in (*later, *others):
                    accepted.enter_context(listener.accept()[0])
                guard.look()
                time.sleep(0.05)
                assert [list(map(is_open, group)) for group in (first, later, others)] == [
                    [True] * 2,
                    [False] * 3,
                    [True] * 2,
                ]


def test_a_host_with_a_network_of_ipv6_addresses_counts_once() -> None:
    assert _network("2001:db8::1") == _network("2001:db8::ffff:1") != _network("2001:db8:0:1::1")
    assert _network("::ffff:10.0.0.1") != _network("::ffff:10.0.0.2")
    assert _network("fe80::1%eth0") == _network("fe80::2")
    assert _network("10.0.0.1") != _network("10.0.0.2")


def test_half_of_the_descriptors_stay_for_files_and_every_source_has_a_place() -> None:
    assert ConnectionLimits.of(3, 65536) == ConnectionLimits(536, 44)
    assert ConnectionLimits.of(1000, 1024) == ConnectionLimits(512, 512)
    for sources in (1, 10, 1000):
        roomy = ConnectionLimits.of(sources, 65536)
        assert sources < roomy.per_address < roomy.total
