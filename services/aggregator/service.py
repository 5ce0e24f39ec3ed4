"""Composition, event loop and signals of the aggregator. No protocol and no maths."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from typing import cast

from securefda.config import AggregatorConfig
from securefda.errors import SecureFdaError
from securefda.federation.kit import Kit, load_kit
from securefda.rounds.attempts import Send
from securefda.rounds.composition import Member, run_settings, summary_of, target_site
from securefda.rounds.progress import Reporter
from securefda.rounds.recording import RecordingReporter, model_file
from securefda.rounds.records import RoundLine, Summary
from securefda.rounds.run import AggregatorRun
from securefda.rounds.run_folder import RunFolder
from securefda.rounds.store import AggregatorStore
from securefda.transport.events import Event, Joined, Left, Misbehaved, Received
from securefda.transport.meter import TrafficMeter
from securefda.transport.offload import in_thread
from securefda.transport.server import AggregatorServer
from securefda.transport.startup import credentials_of, source_of_pin, transport_settings
from securefda.transport.wire import encode

STATE_FILE = "state.sqlite"


def main(config: AggregatorConfig, reporter: Reporter) -> Summary:
    """Run the aggregator until every round is done, or resume a run that was killed.

    Raises:
        SecureFdaError: whatever ended the run early; the run folder holds every finished round.
    """
    kit = load_kit(config.aggregator.kit, datetime.now(UTC), expected_role="target")
    member = Member(kit.roster, kit.site_id, kit.signing_key, encode)
    meter = TrafficMeter()
    site, settings = target_site(config, member, meter.counts), run_settings(config, kit.roster)
    folder = RunFolder(config.aggregator.out)
    with closing(AggregatorStore(folder.path / STATE_FILE)) as store:
        recording = RecordingReporter(folder, reporter)
        run = AggregatorRun(site, settings, store, recording)
        _catch_up(recording, run, store, settings.config_digest)
        recording.model_bytes = lambda: model_file(run.layers, run.model)
        try:
            asyncio.run(_Service(config, kit, run, meter, reporter).serve())
        except BaseException as error:
            if run.run_id or not store.records():  # one that could not even listen leaves a run's folder as it is
                folder.write_summary(summary_of(config, run, store, kit.roster, error))
            raise
        summary = summary_of(config, run, store, kit.roster, None)
        folder.write_summary(summary)
        return summary


def _catch_up(recording: RecordingReporter, run: AggregatorRun, store: AggregatorStore, config_digest: bytes) -> None:
    """Refuse a folder of another run before anything in it changes; complete what a killed process left of this one."""
    if store.position(config_digest) is not None:
        recording.model_bytes = lambda: model_file(run.layers, store.model())
        recording.catch_up(cast(list[RoundLine], store.records()))


class _Service:
    """Connects the run with the server, one event at a time."""

    def __init__(
        self, config: AggregatorConfig, kit: Kit, run: AggregatorRun, meter: TrafficMeter, reporter: Reporter
    ) -> None:
        self._run = run
        self._kit = kit
        self._reporter = reporter
        self._server = AggregatorServer(
            config.transport.listen,
            credentials_of(kit),
            partial(source_of_pin, kit),
            settings=transport_settings(config.transport),
            observer=meter,
        )

    async def serve(self) -> None:
        """Serve until the run is done.

        Raises:
            SecureFdaError: why the run ended early.
        """
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, signal.raise_signal, signal.SIGINT)
        address = await self._server.start()
        self._reporter.note(f"aggregator {self._kit.site_id} listens on {address}")
        try:
            await self._step(self._run.open)
            while not self._run.done:
                await self._step(await self._next())
        finally:
            await self._server.stop()
        if self._run.error is not None:
            raise self._run.error

    async def _next(self) -> Callable[[], list[Send]]:
        """What to do next: whatever event comes first, or the deadline."""
        patience = None if self._run.deadline is None else max(0.0, self._run.deadline - time.monotonic())
        try:
            async with asyncio.timeout(patience):
                return self._reaction(await self._server.receive())
        except TimeoutError:
            return self._run.expire

    def _reaction(self, event: Event) -> Callable[[], list[Send]]:
        match event:
            case Received(parcel=parcel):
                return partial(self._run.receive, parcel)
            case Left(site=site, why=why):
                self._reporter.note(f"{self._kit.roster.by_index(site).site_id}: {why}")
                return partial(self._run.left, site)
            case Joined(site=site, resumed=True):
                return partial(self._run.returned, site)
            case Misbehaved(site=site, check=check, detail=detail):
                name = "an unknown peer" if site is None else self._kit.roster.by_index(site).site_id
                self._reporter.note(f"alarm: {name} fails check {check}: {detail}")
        return list

    async def _step(self, work: Callable[[], list[Send]]) -> None:
        """Let the run react, then allow the uploads that it expects, then send what it says."""
        try:
            await self._send(await in_thread(work))
        except SecureFdaError as error:
            await self._send(self._run.fail(error))

    async def _send(self, sends: list[Send]) -> None:
        if any(send.parcel.vectors for send in sends):
            self._server.drop_attachments()  # a new header: whoever has not taken the one before need not any more
        for entry in self._kit.roster.sources:
            self._server.expect_upload(entry.index, self._run.expected_upload(entry.index))
        connected = self._server.connected()
        for send in sends:
            if send.to in connected:
                await self._server.send(send.to, send.parcel)
