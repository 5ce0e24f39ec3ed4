"""Composition, event loop and signals of the aggregator. No protocol and no maths."""

from __future__ import annotations

import asyncio
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from typing import cast

from securefda.aggregator.run import AggregatorRun
from securefda.audit.recorder import MessageRecorder
from securefda.heap import map_large_blocks
from securefda.operations import TargetWatch, watch_target
from securefda.operations.progress import Reporter
from securefda.operations.recording import RecordingReporter, model_file
from securefda.operations.records import RoundLine, Summary
from securefda.operations.run_folder import RunFolder
from securefda.rounds.composition import Member, run_settings, summary_of, target_site
from securefda.rounds.store import AggregatorStore
from securefda.site.config import AggregatorConfig
from securefda.site.drawing import secret_of_site
from securefda.site.kit import Kit, load_kit, use_kit
from securefda.site.privacy_account import TERMS
from securefda.transport.driver import RunDriver
from securefda.transport.event_loop import run_until_told
from securefda.transport.observer import TrafficMeter
from securefda.transport.server import AggregatorServer
from securefda.transport.startup import credentials_of, source_of_pin, transport_settings
from securefda.transport.wire import encode

STATE_FILE = "state.sqlite"
FINISHED_GRACE_S, INTERRUPTED_GRACE_S = 5.0, 1.0


def main(config: AggregatorConfig, reporter: Reporter) -> Summary:
    """Run the aggregator until every round is done, or resume a run that was killed.

    Raises:
        SecureFdaError: whatever ended the run early; the run folder holds every finished round.
    """
    map_large_blocks()
    kit = load_kit(config.aggregator.kit, datetime.now(UTC), expected_role="target")
    use_kit(kit)
    member = Member(kit.roster, kit.site_id, kit.signing_key, encode)
    meter = TrafficMeter()
    settings = run_settings(config, kit.roster)
    folder = RunFolder(config.aggregator.out)
    watching = watch_target(reporter, config.logging, config.metrics, out=folder.path, roster=kit.roster)
    with watching as watch, closing(AggregatorStore(folder.path / STATE_FILE)) as store:
        recording = RecordingReporter(folder, watch)
        secret, about_secret = secret_of_site(config.aggregator, config.training, kit.local)
        site = target_site(config, member, meter.counts, store, secret=secret)
        watch.note(f"{kit.site_id} trains on {site.trains_on}")
        for note in (*about_secret, *site.notes, *([TERMS] if site.notes else [])):
            watch.note(note)
        run = AggregatorRun(site, settings, store, recording)
        _catch_up(recording, run, store, settings.config_digest)
        recording.model_bytes = lambda: model_file(run.layers, run.model)
        try:
            with closing(site.witness.journal) as journal:
                recorder = MessageRecorder(journal, kit.roster, member.index, run=run.run_id, then=meter)
                run_until_told(_Service(config, kit, run, recorder, watch).serve())
        except BaseException as error:
            if run.opened or not store.records():  # one that could not even listen leaves a run's folder as it is
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
    """The run, the server and their loop."""

    def __init__(
        self, config: AggregatorConfig, kit: Kit, run: AggregatorRun, recorder: MessageRecorder, reporter: TargetWatch
    ) -> None:
        self._run = run
        self._kit = kit
        self._reporter = reporter
        self._server = AggregatorServer(
            config.transport.listen,
            credentials_of(kit),
            partial(source_of_pin, kit),
            run_id=bytes.fromhex(run.run_id),
            settings=transport_settings(config.transport),
            observer=recorder,
        )
        reporter.follow(lambda: run.run_id, self._server.connected)

    async def serve(self) -> None:
        """Serve until the run is done.

        Raises:
            SecureFdaError: why the run ended early.
        """
        address = await self._server.start()
        self._reporter.note(f"aggregator {self._kit.site_id} listens on {address}")
        grace = FINISHED_GRACE_S
        try:
            await RunDriver(self._run, self._server, self._kit.roster, self._reporter).drive()
        except asyncio.CancelledError:
            grace = INTERRUPTED_GRACE_S
            raise
        finally:
            await self._server.stop(grace)
