"""A run and its sources over real connections, each with its driver; a source can be killed and started again."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

from known_sites import known_key, known_roster
from random_sites import random_run, random_source
from run_settings import run_settings
from transport_kit import CALM, RUN_ID, TARGET, Sites

from securefda.aggregator.process import RunDriver
from securefda.aggregator.run import AggregatorRun
from securefda.audit.journal import MessageRecorder
from securefda.bench.secagg.job import SAMPLES
from securefda.bootstrap import Member
from securefda.errors import SecureFdaError
from securefda.operations.notes import Note
from securefda.operations.progress import SilentReporter
from securefda.operations.records import RoundLine, SiteLine
from securefda.protocol.messages import Body, Parcel, Signed
from securefda.rules import Rule, Strategy
from securefda.site.policy import default_policy
from securefda.source.source_process import SourceDriver
from securefda.source.source_run import SourceRun
from securefda.transport.aggregator_server import AggregatorServer
from securefda.transport.client import SourceChannel
from securefda.transport.dialer import Endpoint
from securefda.transport.observer import Direction

PARAMS, PATIENCE_S = 8, 60.0


class Watch(SilentReporter):
    """Keeps what is reported of a run, or of a source."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.lines: list[RoundLine | SiteLine] = []
        self.alarms: list[str] = []
        self.phases: list[str] = []
        self._holds: dict[tuple[str, int], threading.Event] = {}

    @contextmanager
    def hold(self, phase: str, number: int) -> Iterator[None]:
        """Keep the run in the thread that reports this phase for the ``number``-th time, until the block ends."""
        event = self._holds[phase, number] = threading.Event()
        try:
            yield
        finally:
            event.set()

    def phase(self, name: str, waiting_for: Iterable[str] = (), asked: int = 0) -> None:
        del waiting_for, asked
        self.phases.append(name)
        if (event := self._holds.get((name, self.phases.count(name)))) is not None:
            event.wait()

    def note(self, note: Note | str) -> None:
        self.notes.append(str(note))

    def round_started(self, *_: object) -> None: ...

    def round_finished(self, line: RoundLine | SiteLine) -> None:
        self.lines.append(line)

    def alarm(self, error: SecureFdaError) -> None:
        self.alarms.append(str(error))


class GatedChannel(SourceChannel):
    """A source's end of the transport that sends messages of some kinds only when it is let."""

    def hold(self, *kinds: type[Body]) -> None:
        self._kinds, self._let = kinds, asyncio.Semaphore(0)
        self.held = asyncio.Semaphore(0)

    def let_go(self) -> None:
        self._let.release()

    async def send(self, parcel: Parcel) -> None:
        if isinstance(parcel.message.body, self._kinds):
            self.held.release()
            await self._let.acquire()
        await super().send(parcel)


class Process:
    """One process of a source: connected, and on its own from :meth:`start` on."""

    def __init__(self, channel: GatedChannel, rounds: SourceRun, watch: Watch, stack: ExitStack) -> None:
        self.channel, self.watch = channel, watch
        self._rounds, self._stack = rounds, stack
        self._task: asyncio.Task[None] | None = None

    def start(self) -> asyncio.Task[None]:
        """Let it take part."""
        self._task = asyncio.create_task(SourceDriver(self._rounds, self.channel, self.watch).drive())
        return self._task

    async def kill(self) -> None:
        """It is gone without a word."""
        tasks = [task for task in (self._task, self.channel._task) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._stack.close()


class Driven:
    """A run of ``rounds`` rounds with four sources; a session needs three of them."""

    def __init__(
        self,
        folder: Path,
        rounds: int,
        phase_deadline_s: float = PATIENCE_S,
        join_deadline_s: float = PATIENCE_S,
    ) -> None:
        self._folder, self._sites, self._stack = folder, Sites(4), ExitStack()
        self.roster = known_roster("study", ["target", *(f"source-{index}" for index in range(1, 5))])
        self.watch = Watch()
        self.sent: list[tuple[int, str]] = []
        self.received: list[tuple[int, str]] = []
        """Roster index and type of every message that the aggregator says it has sent, or received."""
        self._processes: list[Process] = []
        self.run = self._run(rounds, phase_deadline_s, join_deadline_s)
        self.address = ""

    def _member(self, index: int) -> Member:
        site_id = self.roster.by_index(index).site_id
        return Member(self.roster, site_id, known_key(site_id))

    def _run(self, rounds: int, phase_deadline_s: float, join_deadline_s: float) -> AggregatorRun:
        settings = run_settings(
            Strategy(rule=Rule.SOURCE_ONLY, rounds=rounds),
            max_samples=SAMPLES,
            attempts=1,
            join_deadline_s=join_deadline_s,
            training_deadline_s=PATIENCE_S,
            phase_deadline_s=phase_deadline_s,
        )
        return random_run(self._member(TARGET), self._folder, PARAMS, settings, self.watch, self._stack, RUN_ID)

    async def process(self, index: int, *held: type[Body]) -> Process:
        """A new process of a source, connected; messages of the kinds ``held`` wait until they are let go."""
        watch, stack = Watch(), ExitStack()
        policy = default_policy("sum", 2, 0, 1, max_samples=SAMPLES)
        rounds = random_source(self._member(index), self._folder, PARAMS, policy, watch, stack)
        recorder = MessageRecorder(rounds._site.witness.journal, self.roster, index)
        endpoint = Endpoint(self.address, "target", self._sites.target.pin, TARGET)
        own, most = self._sites.sources[index], 4 * PARAMS
        channel = GatedChannel(endpoint, own, max_vector_bytes=most, settings=CALM, observer=recorder)
        channel.hold(*held)
        process = Process(channel, rounds, watch, stack)
        self._processes.append(process)
        await channel.open()
        return process

    def _observe(
        self, direction: Direction, peer: int, message: Signed[Body], wire_bytes: int, *, more: bool = False
    ) -> None:
        del wire_bytes, more
        (self.sent if direction is Direction.SENT else self.received).append((peer, message.type_name))

    async def note(self, text: str) -> None:
        """Wait until the run has noted this."""
        while text not in self.watch.notes:
            await asyncio.sleep(0.01)

    async def rounds_over(self, count: int) -> None:
        """Wait until so many rounds are over."""
        while len(self.watch.lines) < count:
            await asyncio.sleep(0.01)

    @asynccontextmanager
    async def driven(self) -> AsyncIterator[tuple[AggregatorServer, asyncio.Task[None]]]:
        """The aggregator at work; whatever still runs at the end is killed."""
        with self._stack:
            async with self._sites.listening(CALM, observer=self._observe) as (server, self.address):
                driving = asyncio.create_task(RunDriver(self.run, server, self.roster, self.watch).drive())
                try:
                    yield server, driving
                finally:
                    driving.cancel()
                    await asyncio.gather(driving, return_exceptions=True)
                    for process in self._processes:
                        await process.kill()
