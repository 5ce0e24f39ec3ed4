"""The loops of the two kinds of process: between a run and its server, and between a source's rounds and its channel.

No protocol and no maths; what takes long runs beside the event loop, so that heartbeats go on meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial

from securefda.aggregator.attempt import Send
from securefda.aggregator.run import AggregatorRun
from securefda.errors import FaultyAggregatorError, SecureFdaError
from securefda.heap import give_free_memory_back
from securefda.operations.progress import Reporter
from securefda.protocol.messages import Join, Parcel
from securefda.protocol.roster import Roster
from securefda.source.patience import HINT
from securefda.source.run import SourceRounds
from securefda.transport.client import AggregatorRestarted, SourceChannel
from securefda.transport.dialer import UploadRefusedError
from securefda.transport.event_loop import in_thread
from securefda.transport.events import Event, Joined, Left, Misbehaved, Received
from securefda.transport.server import AggregatorServer


class RunDriver:
    """Connects a run with a server that listens, one event at a time.

    Args:
        run: not yet opened; its clock is ``time.monotonic``.
        server: started; whoever started it stops it.
        roster: of the federation.
        reporter: hears who comes, goes and misbehaves.
    """

    def __init__(self, run: AggregatorRun, server: AggregatorServer, roster: Roster, reporter: Reporter) -> None:
        self._run = run
        self._server = server
        self._roster = roster
        self._reporter = reporter
        self._reported: set[int] = set()
        """Sources of which the run has heard a :class:`Join` of the process that is there now."""

    async def drive(self) -> None:
        """Open the run and serve until it is done.

        Raises:
            SecureFdaError: why the run ended early.
        """
        await self._step(self._run.open)
        while not self._run.done:
            await self._step(await self._next())
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
            case Received(site=site, parcel=parcel):
                if isinstance(parcel.message.body, Join):
                    self._reported.add(site)
                return partial(self._run.receive, parcel)
            case Left(site=site, why=why):
                return self._gone(site, why, self._run.left)
            case Joined(site=site, resumed=resumed) if site in self._reported:
                if resumed:
                    return partial(self._run.returned, site)
                # The run speaks with a process that is no more; the new one reports before it is told anything.
                self._reported.discard(site)
                return self._gone(site, "a new process of it has connected", self._run.replaced)
            case Misbehaved(site=site, check=check, detail=detail):
                name = "an unknown peer" if site is None else self._roster.by_index(site).site_id
                self._reporter.note(f"alarm: {name} fails check {check}: {detail}")
                if site is not None:
                    return partial(self._run.misbehaved, site, check, detail)
        return list

    def _gone(self, site: int, why: str, tell: Callable[[int, str], list[Send]]) -> Callable[[], list[Send]]:
        self._reporter.note(f"{self._roster.by_index(site).site_id}: {why}")
        return partial(tell, site, why)

    async def _step(self, work: Callable[[], list[Send]]) -> None:
        """Let the run react, then allow the uploads that it expects, then send what it says."""
        try:
            await self._send(await in_thread(work))
        except SecureFdaError as error:
            await self._send(self._run.fail(error))

    async def _send(self, sends: list[Send]) -> None:
        if any(send.parcel.vectors for send in sends):
            self._server.drop_attachments()  # a new header: whoever has not taken the one before need not any more
        for entry in self._roster.sources:
            self._server.expect_upload(entry.index, self._run.expected_upload(entry.index))
        connected = self._server.connected()
        await self._server.send([(send.to, send.parcel) for send in sends if send.to in connected])


class SourceDriver:
    """Connects a source's rounds with an open channel; whoever opened the channel closes it.

    Between rounds the aggregator may be silent for ``idle_deadline_s`` seconds; None means for ever.
    """

    def __init__(
        self, rounds: SourceRounds, channel: SourceChannel, reporter: Reporter, idle_deadline_s: float | None = None
    ) -> None:
        self._rounds = rounds
        self._channel = channel
        self._reporter = reporter
        self._idle_deadline_s = idle_deadline_s
        self._joined = False

    @property
    def is_over(self) -> bool:
        """Whether the aggregator said goodbye, or this site cannot go on."""
        return self._rounds.goodbye is not None or self._rounds.failure is not None

    async def drive(self) -> None:
        """Join, and take part until it is over.

        Raises:
            SecureFdaError: the aggregator did not come back, it refuses this site, or it broke the protocol.
        """
        try:
            while not self.is_over:
                await self.step()
        except FaultyAggregatorError as error:
            error.place, error.hint = error.place or self._rounds.place(), error.hint or HINT
            raise

    async def step(self) -> None:
        """Wait for one message, or for the end of its deadline, and answer it; the first step joins before."""
        try:
            if not self._joined:
                await self._channel.send(await in_thread(partial(self._rounds.join, self._channel.run_id.hex())))
                self._joined = True
            await self._send(await self._answers())
        except AggregatorRestarted:
            self._reporter.note("the aggregator has restarted; joining again")
            self._rounds.forget()
            self._joined = False

    async def _answers(self) -> list[Parcel]:
        deadline_s = self._rounds.deadline_s()
        try:
            async with asyncio.timeout(self._idle_deadline_s if deadline_s is None else deadline_s):
                parcel = await self._channel.receive()
        except TimeoutError:
            if deadline_s is None:
                detail = f"no word for {self._idle_deadline_s:g} s"
                raise FaultyAggregatorError("DEADLINE", detail) from None
            return self._rounds.expire()
        if parcel.vectors:
            give_free_memory_back()  # before training, which needs most
        return await in_thread(partial(self._rounds.handle, parcel))

    async def _send(self, parcels: list[Parcel]) -> None:
        for parcel in parcels:
            try:
                await self._channel.send(parcel)
            except UploadRefusedError as error:
                # The aggregator has closed the phase: this source is dropped, and what it sent stays masked.
                self._reporter.note(f"too late for this round: {error}")
                self._rounds.forget()
