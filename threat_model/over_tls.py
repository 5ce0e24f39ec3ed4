"""The attacker's aggregator on the transport of the real one: gRPC over mutual TLS.

:class:`OverTls` listens where a federation's sources dial, with the target's kit. The victims are processes, started as
people start them; the attacker runs on an event loop in a thread of the test.

:func:`play_over_tls` plays a stage whose sites, all in the test's process, have the ends of the transport between them.
A mitigation can be switched off there.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from securefda.aggregator.site import run_settings, target_site
from securefda.aggregator.store import AggregatorStore
from securefda.audit.journal import MessageRecorder
from securefda.bootstrap import Member, credentials_of, source_of_pin, transport_settings
from securefda.operations.progress import SilentReporter
from securefda.protocol.header_checks import quantisation
from securefda.protocol.hybrid import RECOVERY_BYTES
from securefda.protocol.messages import (
    NO_CONTEXT,
    NO_SESSION,
    Body,
    Goodbye,
    Parcel,
    Send,
    Signed,
    SourcesKeep,
    Visibility,
)
from securefda.site.config import load_aggregator
from securefda.site.kit import load_kit
from securefda.source.source_process import SourceDriver
from securefda.source.source_run import SourceRun
from securefda.transport.aggregator_server import AggregatorServer
from securefda.transport.client import SourceChannel
from securefda.transport.dialer import Endpoint
from securefda.transport.event_loop import in_thread
from securefda.transport.event_queue import Joined, Received
from securefda.transport.in_memory import Passed
from securefda.transport.limits import TransportSettings
from securefda.transport.observer import TrafficMeter
from securefda.transport.tls import Credentials
from threat_model.adversaries.base import MaliciousAggregator
from threat_model.sites import TARGET, AggregatorSeat
from threat_model.stage import Stage

PATIENCE_S = 60.0
"""A test does not wait longer for a source's process; nothing is timed by it."""

_USUAL = TransportSettings()

AttackerT = TypeVar("AttackerT", bound=MaliciousAggregator)


class OverTls(Generic[AttackerT]):
    """Connects an attacker with the sources of a federation, for the length of a ``with`` block.

    A run of another name needs another connection: then the attacker hangs up, and listens again.

    Args:
        kit: of the target.
        state: a file for what a target remembers.
        makes: makes the attacker.

    Attributes:
        adversary: once the block has begun.
        came: what sources have sent, in order.
    """

    adversary: AttackerT

    def __init__(self, kit: Path, state: Path, makes: Callable[[AggregatorSeat], AttackerT]) -> None:
        self._kit = load_kit(kit, datetime.now(UTC), expected_role="target")
        self._config = load_aggregator(self._kit.local / "settings.toml")
        self._state, self._makes = state, makes
        self.came: list[Signed[Body]] = []
        self._loop, self._news, self._listens = asyncio.new_event_loop(), threading.Condition(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._task: asyncio.Task[None] | None = None
        self._end: _AttackersEnd
        self._is_done = False
        self._failure: BaseException | None = None

    def __enter__(self) -> OverTls[AttackerT]:
        """Listen, then return."""
        self._thread.start()
        self._listens.wait(PATIENCE_S)
        self._require_alive()
        return self

    def __exit__(self, *_: object) -> None:
        if self._task is not None:
            self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(PATIENCE_S)
        self._loop.close()
        self._require_alive()

    def said(self, index: int, kind: type) -> list[Signed[Any]]:
        """Return the messages of one type that a source has sent."""
        return [message for message in self.came if message.sender == index and isinstance(message.body, kind)]

    def until_done(self) -> None:
        """Wait until the attacker has no more questions, and has sent everything."""
        with self._news:
            self._news.wait_for(lambda: self._is_done or self._failure is not None, PATIENCE_S)
        self._require_alive()
        assert self._is_done, "the sources do not answer the attacker"

    def dismiss(self) -> None:
        """Say goodbye to the sources, as after a run that was completed."""
        asyncio.run_coroutine_threadsafe(self._end.send(self._end.farewell()), self._loop).result(PATIENCE_S)

    def _require_alive(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._task = self._loop.create_task(self._serve())
        with contextlib.suppress(asyncio.CancelledError):
            try:
                self._loop.run_until_complete(self._task)
            except Exception as error:  # noqa: BLE001 - it is raised again in the test
                self._failure = error
        self._listens.set()
        with self._news:
            self._news.notify_all()

    async def _serve(self) -> None:
        kit, config = self._kit, self._config
        member = Member(kit.roster, kit.site_id, kit.signing_key)
        with closing(AggregatorStore(self._state)) as store:
            site = target_site(config, member, TrafficMeter().counts, store, secret=None)
            # Its goodbye has no model with it.
            settings = replace(run_settings(config, kit.roster), sources_keep=SourcesKeep.NONE, bits=32)
            seat = AggregatorSeat(site, settings, store, SilentReporter(), {})
            self.adversary = self._makes(seat)
            with closing(site.witness.journal):
                await self._play()

    async def _play(self) -> None:
        await in_thread(self.adversary.open)
        self._end = await self._listen()
        self._listens.set()
        try:
            while True:
                instance = self.adversary.instance
                sends = await self._end.hear()
                if self.adversary.instance == instance:
                    await self._end.send(sends)
                else:
                    await self._end.server.stop(1.0)
                    self._end = await self._listen()
                with self._news:
                    self._is_done = self.adversary.done
                    self._news.notify_all()
        finally:
            await self._end.server.stop(1.0)

    async def _listen(self) -> _AttackersEnd:
        """Listen on a new connection, in the run that the attacker names."""
        kit, adversary = self._kit, self.adversary
        journal = adversary.seat.site.witness.journal
        server = AggregatorServer(
            self._config.transport.listen,
            credentials_of(kit),
            partial(source_of_pin, kit),
            run_id=adversary.run,
            settings=transport_settings(self._config.transport),
            observer=MessageRecorder(journal, kit.roster, kit.roster.target.index, run=adversary.run_id),
        )
        await server.start()
        return _AttackersEnd(server, adversary, lambda parcel: self.came.append(parcel.message))


class _AttackersEnd:
    """The attacker at its end of the transport; ``came`` hears what sources send before the attacker does."""

    def __init__(
        self, server: AggregatorServer, adversary: MaliciousAggregator, came: Callable[[Parcel], None]
    ) -> None:
        self.server = server
        self._adversary, self._came = adversary, came
        self._joined: set[int] = set()

    async def hear(self) -> list[Send]:
        """Wait for one event; return what the attacker says to it."""
        event = await self.server.receive()
        if isinstance(event, Joined):
            self._joined.add(event.index)
        if not isinstance(event, Received):
            return []
        self._came(event.parcel)
        return await in_thread(partial(self._adversary.receive, event.parcel))

    async def send(self, sends: Sequence[Send]) -> None:
        """Allow the uploads of the session, then announce it to those connected; others get it later."""
        server, adversary = self.server, self._adversary
        if any(send.parcel.vectors for send in sends):
            server.drop_attachments()
        for entry in adversary.roster.sources:
            server.expect_upload(entry.index, self._upload_of(entry.index))
        await server.send([(send.to, send.parcel) for send in sends if send.to in self._joined])

    def _upload_of(self, index: int) -> int:
        """Return the length of a source's contribution to the session, in bytes."""
        adversary = self._adversary
        if not adversary.sessions:
            return 0
        header = adversary.heard.header
        in_clear = index in header.at(Visibility.INDIVIDUAL)
        if in_clear:
            return 4 * adversary.seat.site.trainer.n_params
        view, bundle = adversary.heard.views.get(index), adversary.heard.bundles.get(index)
        peers = view.partners(bundle.body.nonce) if header.is_hybrid and view and bundle else ()
        return quantisation(header).nbytes + RECOVERY_BYTES * len(peers)

    def farewell(self) -> list[Send]:
        """Return the goodbyes to all sources, as after a run that was completed."""
        adversary = self._adversary
        body = Goodbye(completed=True, rounds=len(adversary.sessions), reason="")
        shown = Parcel(adversary.signer.sign(NO_SESSION, NO_CONTEXT, body))
        return [Send(entry.index, shown) for entry in adversary.roster.sources]


def play_over_tls(stage: Stage, target: Credentials, sources: Mapping[int, Credentials]) -> Stage:
    """Play a stage to the attacker's last question and its goodbye. Every message goes over gRPC with mutual TLS.

    Args:
        stage: an attacker as its aggregator, and recorded, so that both ends write each message into their logs.
        target: certificate and key of the aggregator.
        sources: those of the sources, by roster index.
    """

    async def play() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await _play_over_tls(stage, target, sources)

    asyncio.run(play())
    return stage


async def _play_over_tls(stage: Stage, target: Credentials, sources: Mapping[int, Credentials]) -> None:
    adversary: MaliciousAggregator = stage.adversary
    pins = {credentials.pin: index for index, credentials in sources.items()}
    server = AggregatorServer(
        "127.0.0.1:0", target, pins.get, run_id=adversary.run, settings=_USUAL, observer=stage.observers[TARGET]
    )
    address = await server.start()
    end = _AttackersEnd(server, adversary, partial(_note_arrival, stage))
    try:
        adversary.open()
        async with asyncio.TaskGroup() as parts:
            for index, own in sources.items():
                endpoint = Endpoint(address, "target", target.pin, TARGET)
                parts.create_task(_take_part(stage, index, endpoint, own))
            while not adversary.done:
                await end.send(await end.hear())
            await end.send(end.farewell())
    finally:
        await server.stop(1.0)


def _note_arrival(stage: Stage, parcel: Parcel) -> None:
    stage.passed.append(Passed(parcel.message.sender, TARGET, parcel.message, parcel.vectors))


async def _take_part(stage: Stage, index: int, endpoint: Endpoint, own: Credentials) -> None:
    """Be a source of the stage, driven as the process of a source is."""
    rounds = stage.sources[index]
    assert isinstance(rounds, SourceRun)
    channel = SourceChannel(
        endpoint, own, max_vector_bytes=rounds.vector_bytes(), settings=_USUAL, observer=stage.observers[index]
    )
    await channel.open()
    try:
        await SourceDriver(rounds, channel, SilentReporter()).drive()
    finally:
        await channel.close(1.0)
