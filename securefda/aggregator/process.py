"""The aggregator's process: it builds the run, listens for sources, and drives the run event by event.

What takes long runs beside the event loop, so that heartbeats go on meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import cast

from securefda.aggregator.finish import finish
from securefda.aggregator.run import AggregatorRun
from securefda.aggregator.site import is_fixed, run_settings, summary_of, target_site
from securefda.aggregator.store import AggregatorStore
from securefda.audit.journal import MessageRecorder
from securefda.bootstrap import Member, credentials_of, notes_of_left, source_of_pin, transport_settings
from securefda.disk import read_file
from securefda.errors import ConfigError, SecureFdaError
from securefda.machine import map_large_blocks, raise_descriptor_limit
from securefda.operations import TargetWatch, watch_target
from securefda.operations.notes import Note
from securefda.operations.progress import Reporter
from securefda.operations.recording import ModelOrigin, RecordingReporter
from securefda.operations.records import RoundLine, Summary
from securefda.operations.run_folder import RunFolder, replace_file
from securefda.privacy.dp_events import TERMS
from securefda.protocol.messages import Header, Join, Send
from securefda.protocol.roster import Roster
from securefda.site.config import AggregatorConfig
from securefda.site.config.effective import changes_since, kept_settings
from securefda.site.kit import Kit, load_kit, use_kit
from securefda.site.training_secret import secret_of_site
from securefda.transport.aggregator_server import AggregatorServer
from securefda.transport.event_loop import in_thread, run_interruptibly
from securefda.transport.event_queue import Event, Incompatible, Joined, Left, Misbehaved, Received
from securefda.transport.limits import UNREAD_MESSAGES, ConnectionLimits
from securefda.transport.observer import TrafficMeter

Reaction = Callable[[], list[Send]]
"""Handles one event in the run; returns the messages to send."""

STATE_FILE, SETTINGS_FILE = "state.sqlite", "settings.json"
FINISHED_GRACE_S, INTERRUPTED_GRACE_S = 5.0, 1.0


def main(config: AggregatorConfig, reporter: Reporter) -> Summary:
    """Run the aggregator until every round is done, or resume a run that was killed.

    Raises:
        SecureFdaError: whatever ended the run early; the run folder holds every finished round.
    """
    map_large_blocks()
    kit = load_kit(config.aggregator.kit, datetime.now(UTC), expected_role="target")
    use_kit(kit)
    member = Member.of(kit)
    meter = TrafficMeter()
    settings = run_settings(config, kit.roster)
    folder = RunFolder(config.aggregator.out)
    watching = watch_target(
        reporter,
        config.logging,
        config.metrics,
        out=folder.path,
        roster=kit.roster,
        certificate_ends=kit.certificate_ends,
    )
    with ExitStack() as stack:
        # Before the state file: a process that is refused here must leave that of the running process as it is.
        store = stack.enter_context(closing(AggregatorStore(folder.path / STATE_FILE)))
        _keep_settings(config, store, settings.config_digest, folder.path / SETTINGS_FILE)
        watch = stack.enter_context(watching)
        recording = RecordingReporter(folder, watch)
        secret, about_secret = secret_of_site(config.aggregator, config.training, kit.local)
        site = target_site(config, member, meter.counts, store, secret=secret)
        site.trainer.on_progress = partial(watch.steps, kit.site_id)
        watch.note(f"{kit.site_id} trains on {site.trains_on}")
        for note in (
            *about_secret,
            *notes_of_left(kit.roster),
            *site.notes,
            *([TERMS] if config.training.with_noise else []),
        ):
            watch.note(note)
        run = AggregatorRun(site, settings, store, recording)
        origin = ModelOrigin(config.task.factory, run.run_id, site.trainer.architecture_digest)

        def catch_up() -> None:  # what is in the store, and neither in the folder nor, for now, in the run
            recording.model_bytes = lambda line: site.model_file(store.model(), origin.after(line))
            recording.catch_up(cast(list[RoundLine], store.records()))

        if store.position(settings.config_digest) is not None:  # refuse a folder of another run before it changes
            catch_up()
        recording.model_bytes = lambda line: site.model_file(run.model, origin.after(line))
        folder.write_head(site.head_file(run.run_id))
        try:
            with closing(site.witness.journal) as journal:
                recorder = MessageRecorder(journal, kit.roster, member.index, run=run.run_id, then=meter)
                run_interruptibly(_serve(config, kit, run, recorder, watch))
        except BaseException as error:
            if run.opened or not store.records():  # a process that could not listen leaves the folder of a run as it is
                if store.records():  # the last of them may have ended just before the error, without a line
                    catch_up()
                folder.write_summary(summary_of(config, run.run_id, store, kit.roster, error))
            raise
        summary = summary_of(config, run.run_id, store, kit.roster, None)
        records, model = store.records(), run.model
        return finish(site, folder, summary, records=records, model=model, origin=origin.after, reporter=watch)


def _keep_settings(config: AggregatorConfig, store: AggregatorStore, digest: bytes, file: Path) -> None:
    """Write with which settings a run goes, so that one that is resumed with others can be told which differ.

    Raises:
        ConfigError: the folder holds a run with other settings.
    """
    try:
        known = store.position(digest) is not None
    except ConfigError as error:
        try:
            differ = [line for line in changes_since(read_file(file).data, config) if is_fixed(line.partition(": ")[0])]
        except (ValueError, ConfigError):  # the file is gone or damaged
            raise error from None
        why = f"{error.why}: {'; '.join(differ) or 'the roster is another one'}"
        raise ConfigError(error.key, why, hint=error.hint) from error
    if not known:
        replace_file(file, kept_settings(config))


async def _serve(
    config: AggregatorConfig, kit: Kit, run: AggregatorRun, recorder: MessageRecorder, watch: TargetWatch
) -> None:
    """Listen and serve until the run is done.

    Raises:
        SecureFdaError: why the run ended early.
    """
    server = AggregatorServer(
        config.transport.listen,
        credentials_of(kit),
        partial(source_of_pin, kit),
        run_id=bytes.fromhex(run.run_id),
        settings=transport_settings(config.transport),
        connections=ConnectionLimits.of(len(kit.roster.sources), raise_descriptor_limit()),
        observer=recorder,
    )
    watch.follow(lambda: run.run_id, server.connected)
    address = await server.start()
    watch.ready.set()
    watch.note(f"aggregator {kit.site_id} listens on {address}")
    grace = FINISHED_GRACE_S
    try:
        await RunDriver(run, server, kit.roster, watch).drive()
        if config.model.sources_keep == "final":  # as long as a model of that size may take when a round begins
            grace = max(grace, config.transport.training_deadline_s)
    except asyncio.CancelledError:
        grace = INTERRUPTED_GRACE_S
        raise
    finally:
        watch.ready.clear()
        await server.stop(grace)


class RunDriver:
    """Connects a run with a server that listens, one event at a time.

    Args:
        run: not yet opened; its clock is ``time.monotonic``.
        server: started; the caller stops it.
        roster: of the federation.
        reporter: hears who comes, goes and misbehaves.
    """

    def __init__(self, run: AggregatorRun, server: AggregatorServer, roster: Roster, reporter: Reporter) -> None:
        self._run = run
        self._server = server
        self._roster = roster
        self._reporter = reporter
        self._events_late = 0
        """Events in a row that came first although the deadline had passed."""
        self._joined: set[int] = set()
        """Sources of which the run has received a :class:`Join` from the process that is connected now."""

    async def drive(self) -> None:
        """Open the run and serve until it is done.

        Raises:
            SecureFdaError: why the run ended early.
        """
        await self._react_by([self._run.open])
        while not self._run.done:
            await self._react_by(await self._next())
        if self._run.error is not None:
            raise self._run.error

    async def _next(self) -> list[Reaction]:
        """What to do next: whatever event comes first, with the messages that wait behind it, or the deadline.

        Past the deadline, events that wait still come first, as many as honest sources may have waiting. More of them
        do not put the deadline off: a single source could do so for ever.
        """
        patience = None if self._run.deadline is None else max(0.0, self._run.deadline - time.monotonic())
        if patience != 0:
            self._events_late = 0
        if self._events_late > UNREAD_MESSAGES * len(self._roster.sources):
            self._events_late = 0
            return [partial(self._run.expire, self._server.arrived())]
        try:
            async with asyncio.timeout(patience):
                events: list[Event] = [await self._server.receive()]
        except TimeoutError:
            return [partial(self._run.expire, self._server.arrived())]
        events += self._server.more_messages()  # one thread and one round of sending for all of them
        if patience == 0:
            self._events_late += len(events)
        return [self._reaction(event) for event in events]

    def _reaction(self, event: Event) -> Reaction:
        match event:
            case Received(index=index, parcel=parcel):
                if isinstance(parcel.message.body, Join):
                    self._joined.add(index)
                return partial(self._run.receive, parcel)
            case Left(index=index, why=why, may_return=may_return):
                return self._gone(index, why, partial(self._run.left, may_return=may_return))
            case Joined(index=index, resumed=resumed) if index in self._joined:
                if resumed:
                    return partial(self._run.returned, index)
                # The process that the run spoke with is gone; the new one joins before anything is sent to it.
                self._joined.discard(index)
                return self._gone(index, "a new process of it has connected", self._run.replaced)
            case Misbehaved() | Incompatible():
                return self._refused(event)
        return list

    def _refused(self, event: Misbehaved | Incompatible) -> Reaction:
        """What the transport refused: a misbehaviour is an alarm, another build accuses nobody."""
        if isinstance(event, Incompatible):
            return partial(self._run.incompatible, event.index, event.theirs, event.ours)
        index, check, detail = event.index, event.check, event.detail
        name = "an unknown peer" if index is None else self._roster.by_index(index).site_id
        alarm = f"alarm: {name} fails check {check}: {detail}"
        self._reporter.note(Note(alarm, "error", peer="" if index is None else name, alarm=check))
        return list if index is None else partial(self._run.misbehaved, index, check, detail)

    def _gone(self, index: int, why: str, report: Callable[[int, str], list[Send]]) -> Reaction:
        name = self._roster.by_index(index).site_id
        self._reporter.note(Note(f"{name}: {why}", "warning", name))
        return partial(report, index, why)

    async def _react_by(self, reactions: list[Reaction]) -> None:
        """Let the run react, then allow the uploads that it expects, then send what it says."""
        try:
            sends, failure = await in_thread(partial(self._react, reactions))
            await self._send(sends)
            if failure is not None:
                raise failure
        except SecureFdaError as error:
            await self._send(self._run.fail(error))

    def _react(self, reactions: list[Reaction]) -> tuple[list[Send], SecureFdaError | None]:
        """What the run says to one event after the other; and the error that kept it from the rest."""
        sends: list[Send] = []
        for reaction in reactions:
            if self._run.done:
                break
            try:
                sends += reaction()
            except SecureFdaError as error:
                return sends, error
        return sends, None

    async def _send(self, sends: list[Send]) -> None:
        if any(isinstance(send.parcel.message.body, Header) for send in sends):
            self._server.drop_attachments()  # a new header: the vectors of the last one are not needed any more
        for entry in self._roster.sources:
            self._server.expect_upload(entry.index, self._run.expected_upload(entry.index))
        reachable = self._server.reachable()
        await self._server.send([(send.to, send.parcel) for send in sends if send.to in reachable])
