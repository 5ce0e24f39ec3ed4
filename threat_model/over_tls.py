"""The attacker's aggregator, with arbitrary messages to real source processes.

It listens where a federation's sources dial, with the target's kit and the transport of the real aggregator. The
victims are processes, started as people start them; the attacker runs on an event loop in a thread of the test.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence
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
from securefda.protocol.messages import NO_CONTEXT, NO_SESSION, Body, Goodbye, Parcel, Send, Signed, SourcesKeep
from securefda.site.config import load_aggregator
from securefda.site.kit import load_kit
from securefda.transport.event_loop import in_thread
from securefda.transport.events import Event, Joined, Received
from securefda.transport.observer import TrafficMeter
from securefda.transport.server import AggregatorServer
from threat_model.adversaries.base import MaliciousAggregator
from threat_model.sites import AggregatorSeat

PATIENCE_S = 60.0
"""A test does not wait longer for a source's process; nothing is timed by it."""

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
        self._server: AggregatorServer | None = None
        self._joined: set[int] = set()
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
        farewell = Goodbye(completed=True, rounds=len(self.adversary.sessions), reason="")
        shown = Parcel(self.adversary.signer.sign(NO_SESSION, NO_CONTEXT, farewell))
        sends = [Send(entry.index, shown) for entry in self._kit.roster.sources]
        asyncio.run_coroutine_threadsafe(self._send(sends), self._loop).result(PATIENCE_S)

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
        server = self._server = await self._listen()
        self._listens.set()
        try:
            while True:
                event = await server.receive()
                if isinstance(event, Joined):
                    self._joined.add(event.index)
                instance = self.adversary.instance
                sends = await in_thread(partial(self._hear, event))
                if self.adversary.instance == instance:
                    await self._send(sends)
                else:
                    await server.stop(1.0)
                    server = self._server = await self._listen()
                with self._news:
                    self._is_done = self.adversary.done
                    self._news.notify_all()
        finally:
            await server.stop(1.0)

    async def _listen(self) -> AggregatorServer:
        """Listen on a new connection, in the run that the attacker names."""
        kit, adversary = self._kit, self.adversary
        self._joined.clear()
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
        return server

    def _hear(self, event: Event) -> list[Send]:
        if not isinstance(event, Received):
            return []
        self.came.append(event.parcel.message)
        return self.adversary.receive(event.parcel)

    async def _send(self, sends: Sequence[Send]) -> None:
        """Allow the uploads of the session, then announce it to those connected; others get it later."""
        server = self._server
        if server is None:
            return
        if any(send.parcel.vectors for send in sends):
            server.drop_attachments()
        length = quantisation(self.adversary.heard.header).nbytes if self.adversary.sessions else 0
        for entry in self._kit.roster.sources:
            server.expect_upload(entry.index, length)
        await server.send([(send.to, send.parcel) for send in sends if send.to in self._joined])
