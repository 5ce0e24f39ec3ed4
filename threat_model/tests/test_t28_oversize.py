"""T28: what a peer sends too much of is refused before it takes memory, and who is slow is given up.

The victims run in processes of their own, in which the most memory that they ever held can be read.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from source_stores import store_at

from securefda.aggregator.process import RunDriver
from securefda.aggregator.run import AggregatorRun
from securefda.aggregator.store import AggregatorStore
from securefda.operations.progress import SilentReporter
from securefda.protocol.messages import MaskedInput, Visibility
from securefda.site.policy import default_policy
from securefda.source.source_process import SourceDriver
from securefda.source.source_run import SourceRun
from securefda.transport.client import SourceChannel
from securefda.transport.dialer import Endpoint
from securefda.transport.limits import TransportSettings
from tests.transport.transport_kit import RUN_ID, Sites, header, message, scenario
from threat_model.adversaries.oversize import FloodingAggregator, FloodingSource, TricklingChannel, delivery_of
from threat_model.measured import MeasuredProcess, Within, aggregator_server, in_its_own_process, source_channel
from threat_model.sites import (
    CLIP,
    MAX_SAMPLES,
    N_PARAMS,
    TARGET,
    SiteWatch,
    known_update,
    roster_of,
    source_site,
    target_site,
    witness_at,
)
from threat_model.stage import run_settings
from threat_model.switches import NO_COMPRESSION, switched_off

MIB, GIB = 1 << 20, 1 << 30
MOST_GROWTH = 64 * MIB
BOMB = 200 * MIB
USUAL = TransportSettings(heartbeat_s=20.0, reconnect_deadline_s=1.0)
UNLIMITED = replace(USUAL, max_message_bytes=GIB)
"""The control for sizes needs no switch: the site itself sets ``transport.max-message-bytes`` far too high."""

GZIP = grpc.Compression.Gzip


def allowing_compression() -> Any:
    """The context of the victim in the control for bombs, which runs in the test's process."""
    return switched_off(NO_COMPRESSION, roster=roster_of(1))


class AtAServer:
    """A real server in its own process, and source 1 as the attacker in this one."""

    def __init__(self, process: MeasuredProcess, source: FloodingSource) -> None:
        self.process, self.source = process, source

    @classmethod
    @asynccontextmanager
    async def running(
        cls, settings: TransportSettings, compression: Any = None, within: Within | None = None
    ) -> AsyncIterator[AtAServer]:
        sites = Sites()
        pins = {credentials.pin: index for index, credentials in sites.sources.items()}
        serving = (aggregator_server, sites.target, pins, settings, *([within] if within else []))
        with in_its_own_process(*serving) as process:
            address, own = await process.received(), sites.sources[1]
            joining = FloodingSource.connected(address, own, sites.target.certificate)
            flooding = FloodingSource.connected(address, own, sites.target.certificate, compression)
            async with joining as joined, joined.joined(), flooding as source:
                await process.settle()
                yield cls(process, source)


@pytest.mark.threat("T28")
@scenario
async def test_gigabyte_that_a_source_declares_is_refused_by_the_server_and_takes_no_memory() -> None:
    async with AtAServer.running(USUAL) as at:
        sent = message(1, MaskedInput(digest=bytes(32), length_bytes=GIB)).message
        assert await at.source.declares(sent) is grpc.StatusCode.RESOURCE_EXHAUSTED
        growth, checks = await at.process.growth()
        assert checks == ["UPLOAD_LENGTH"]
        assert growth < MOST_GROWTH


@pytest.mark.threat("T28")
@scenario
async def test_message_of_a_gigabyte_is_refused_by_the_server_and_takes_no_memory() -> None:
    async with AtAServer.running(USUAL) as at:
        assert await at.source.sends(GIB) is grpc.StatusCode.RESOURCE_EXHAUSTED
        growth, _ = await at.process.growth()
        assert growth < MOST_GROWTH


@pytest.mark.threat("T28")
@pytest.mark.control
@scenario
async def test_large_message_is_in_the_memory_of_a_server_that_limits_nothing() -> None:
    async with AtAServer.running(UNLIMITED) as at:
        assert await at.source.sends(BOMB) is grpc.StatusCode.INVALID_ARGUMENT  # read, and no protobuf
        growth, checks = await at.process.growth()
        assert checks == ["WIRE"]
        assert growth > BOMB


@pytest.mark.threat("T28")
@pytest.mark.parametrize("settings", [USUAL, UNLIMITED], ids=["usual limit", "no limit"])
@scenario
async def test_compressed_message_is_refused_by_the_server_unread(settings: TransportSettings) -> None:
    async with AtAServer.running(settings, GZIP) as at:
        assert await at.source.sends(BOMB) in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.INTERNAL)
        growth, _ = await at.process.growth()
        assert growth < MOST_GROWTH


@pytest.mark.threat("T28")
@pytest.mark.control
@scenario
async def test_compressed_message_fills_the_memory_of_a_server_that_takes_compression() -> None:
    """Against the server of the test before, without a limit: with one, gRPC limits what it decompresses, too."""
    async with AtAServer.running(UNLIMITED, GZIP, allowing_compression) as at:
        assert await at.source.sends(BOMB) is grpc.StatusCode.INVALID_ARGUMENT
        growth, checks = await at.process.growth()
        assert checks == ["WIRE"]
        assert growth > BOMB


@asynccontextmanager
async def at_a_source(
    aggregator: FloodingAggregator, settings: TransportSettings, compression: Any = None
) -> AsyncIterator[MeasuredProcess]:
    """A real channel in its own process, which has dialled the attacker in this one."""
    sites = Sites()
    async with aggregator.listening(sites.target, compression) as address:
        endpoint = Endpoint(address, "target", sites.target.pin, TARGET)
        with in_its_own_process(source_channel, endpoint, sites.sources[1], settings, 4 * N_PARAMS) as process:
            yield process


async def outcome(process: MeasuredProcess, aggregator: FloodingAggregator) -> tuple[str, int]:
    """Return how the source's wait for one message ended, and by how much its memory grew meanwhile."""
    assert await process.received() == "connected"
    await process.settle()
    aggregator.go.set()
    return await process.received(), (await process.growth())[0]


HEADER = header(os.urandom(1000)).message
TOO_MUCH = {
    "message": (bytes, b"", "Received message larger than max"),
    "announced vector": (partial(delivery_of, HEADER), b"", "fails check ATTACHMENT"),
    "vector": (lambda _: delivery_of(HEADER, 1000), bytes(BOMB), "Received message larger than max"),
}


@pytest.mark.threat("T28")
@pytest.mark.parametrize(("frame", "vector", "why"), TOO_MUCH.values(), ids=TOO_MUCH)
@scenario
async def test_source_refuses_what_is_too_large_and_takes_no_memory(frame: Any, vector: bytes, why: str) -> None:
    aggregator = FloodingAggregator(frame(GIB), vector=vector)
    async with at_a_source(aggregator, USUAL) as process:
        printed, growth = await outcome(process, aggregator)
    assert why in printed
    assert growth < MOST_GROWTH


@pytest.mark.threat("T28")
@pytest.mark.control
@scenario
async def test_large_message_is_in_the_memory_of_a_source_that_limits_nothing() -> None:
    aggregator = FloodingAggregator(bytes(BOMB))
    async with at_a_source(aggregator, UNLIMITED) as process:
        printed, growth = await outcome(process, aggregator)
    assert "fails check WIRE" in printed  # it was read
    assert growth > BOMB


@pytest.mark.threat("T28")
@scenario
async def test_source_takes_nothing_from_an_aggregator_that_compresses() -> None:
    aggregator = FloodingAggregator(bytes(BOMB))
    async with at_a_source(aggregator, USUAL, GZIP) as process:
        assert "Compression algorithm 'gzip' is disabled" in await process.received()
        assert not aggregator.go.is_set()


SLOW, OTHERS = 4, (1, 2, 3)
PATIENCE_S = 3.0
PACED = TransportSettings(chunk_bytes=4096, max_message_bytes=65536, heartbeat_s=1.0)
TRICKLING = replace(PACED, heartbeat_s=0.05)
LONG_AFTER = 80
"""Bytes that have trickled in when 4 s are over, a second after the deadline of the phase."""


class KeepsLines(SilentReporter):
    def __init__(self) -> None:
        self.lines: list[Any] = []

    def round_finished(self, line: Any) -> None:
        self.lines.append(line)


class SlowRound:
    """A run of one round over real connections, with four sources of which one trickles."""

    def __init__(self, folder: Path, phase_deadline_s: float, stack: ExitStack) -> None:
        self._folder, self._stack, self._sites = folder, stack, Sites(4)
        self.roster, self.reporter = roster_of(4), KeepsLines()
        settings = run_settings(Visibility.SUM, {"phase_deadline_s": phase_deadline_s})
        store = stack.enter_context(closing(AggregatorStore(folder / "target.sqlite")))
        witness = witness_at(folder / "logs" / "target", TARGET, self.roster, store)
        stack.callback(witness.journal.close)
        target = target_site(self.roster, known_update, time.monotonic, witness)
        self.run = AggregatorRun(target, settings, store, self.reporter, RUN_ID)
        self.slow: TricklingChannel | None = None

    def _rounds(self, index: int) -> SourceRun:
        policy = default_policy("sum", 2, 0, 2, clip=CLIP, max_samples=MAX_SAMPLES, kappa=0.0)
        store = self._stack.enter_context(closing(store_at(self._folder / f"{index}.sqlite")))
        logs = self._folder / "logs" / str(index)
        site = source_site(index, self.roster, policy, known_update, store, logs=logs)
        self._stack.callback(site.witness.journal.close)
        return SourceRun(site, SiteWatch())

    async def _take_part(self, index: int, address: str) -> None:
        endpoint, own = Endpoint(address, "target", self._sites.target.pin, TARGET), self._sites.sources[index]
        kind, settings = (TricklingChannel, TRICKLING) if index == SLOW else (SourceChannel, PACED)
        channel = kind(endpoint, own, max_vector_bytes=4 * N_PARAMS, settings=settings)
        if isinstance(channel, TricklingChannel):
            self.slow = channel
        await channel.open()
        try:
            await SourceDriver(self._rounds(index), channel, SilentReporter()).drive()
        finally:
            await channel.close(0.0)

    @asynccontextmanager
    async def driven(self) -> AsyncIterator[asyncio.Task[None]]:
        """The aggregator's side of it, while all four take part."""
        async with self._sites.listening(PACED) as (server, address):
            driving = asyncio.create_task(RunDriver(self.run, server, self.roster, self.reporter).drive())
            parts = [asyncio.create_task(self._take_part(index, address)) for index in (*OTHERS, SLOW)]
            try:
                yield driving
            finally:
                for task in (driving, *parts):
                    task.cancel()
                await asyncio.gather(driving, *parts, return_exceptions=True)


@pytest.mark.threat("T28")
@scenario
async def test_round_goes_on_at_the_deadline_without_a_source_that_trickles(tmp_path: Path) -> None:
    with ExitStack() as stack:
        slow = SlowRound(tmp_path, PATIENCE_S, stack)
        async with slow.driven() as driving:
            await driving
        (line,) = slow.reporter.lines
        assert (line["status"], line["survivors"], line["dropped"]) == (
            "finished",
            [f"source-{index}" for index in OTHERS],
            [f"source-{SLOW}"],
        )
        assert slow.slow is not None
        assert 0 < slow.slow.trickled < 4 * N_PARAMS


@pytest.mark.threat("T28")
@pytest.mark.control
@scenario
async def test_round_waits_for_a_source_that_trickles_where_there_is_no_deadline(tmp_path: Path) -> None:
    with ExitStack() as stack:
        slow = SlowRound(tmp_path, 3600.0, stack)
        async with slow.driven() as driving:
            while slow.slow is None or slow.slow.trickled < LONG_AFTER:
                await asyncio.wait([driving], timeout=0.1)
                assert not driving.done()
            assert slow.reporter.lines == []
