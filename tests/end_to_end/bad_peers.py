"""Peers that lie, stall or speak another version, and honest ones beside them: over real gRPC, from real kits.

They run on an event loop in a thread of the test, so that only the honest side under test costs a process. What they
send is what the honest code says, unless ``lie`` makes something else of it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from e2e_processes import Kits
from source_stores import store_at

from securefda.aggregator.process import RunDriver
from securefda.aggregator.run import AggregatorRun
from securefda.aggregator.site import run_settings, target_site
from securefda.aggregator.store import AggregatorStore
from securefda.audit.journal import MessageRecorder
from securefda.bootstrap import Member, credentials_of, endpoint_of, source_of_pin, transport_settings
from securefda.errors import PolicyRefusal, SecureFdaError
from securefda.operations.progress import SilentReporter
from securefda.operations.records import SiteLine
from securefda.protocol.envelope import sign_bytes
from securefda.protocol.messages import (
    Body,
    Checkpoint,
    Cosigned,
    Header,
    Join,
    KeyList,
    Parcel,
    ShareBundle,
    Signed,
    Signer,
)
from securefda.site.config import load_aggregator, load_source
from securefda.site.kit import Kit, load_kit
from securefda.site.policy import load_signed_policy
from securefda.source.source_process import SourceDriver
from securefda.source.source_run import SourceRun
from securefda.source.source_site import source_site
from securefda.transport.aggregator_server import AggregatorServer
from securefda.transport.client import SourceChannel
from securefda.transport.observer import TrafficMeter
from securefda.v1 import messages_pb2 as pb

Lie = Callable[[Signer, Parcel], Awaitable[Parcel | None]]
"""What a peer sends in the place of a parcel, with its real key; None for nothing."""


async def honest(_: Signer, parcel: Parcel) -> Parcel | None:
    """Everything as it is."""
    return parcel


def signed_anew(signer: Signer, parcel: Parcel, body: Body) -> Parcel:
    """The parcel with another body and a good signature over it."""
    envelope = parcel.message.envelope
    return Parcel(signer.sign(envelope.session_id, envelope.context, body), parcel.vectors)


async def mute(_: Signer, parcel: Parcel) -> Parcel | None:
    """A peer that says nothing."""
    return None


async def another_nonce(signer: Signer, parcel: Parcel) -> Parcel | None:
    """A source reveals another nonce in R1 than it committed to in R0."""
    body = parcel.message.body
    if not isinstance(body, ShareBundle):
        return parcel
    return signed_anew(signer, parcel, replace(body, nonce=bytes(32)))


async def broken_key_list(signer: Signer, parcel: Parcel) -> Parcel | None:
    """The aggregator relays keys under signatures that do not fit."""
    body = parcel.message.body
    if not isinstance(body, KeyList):
        return parcel
    first, *others = body.advertisements
    return signed_anew(signer, parcel, KeyList((replace(first, signature=bytes(64)), *others)))


def first_header_only() -> Lie:
    """The aggregator opens the first round, lives on, and says nothing any more."""
    opened = asyncio.Event()

    async def tell(_: Signer, parcel: Parcel) -> Parcel | None:
        body = parcel.message.body
        if isinstance(body, Checkpoint | Cosigned):
            return None if opened.is_set() else parcel
        if not isinstance(body, Header) or (body.round, body.attempt) != (1, 1):
            return None
        opened.set()
        return parcel

    return tell


class Held:
    """A source that waits before each message of these kinds until it is let go."""

    def __init__(self, kinds: tuple[type[Body], ...]) -> None:
        self._kinds, self._permits = kinds, asyncio.Semaphore(0)
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __call__(self, _: Signer, parcel: Parcel) -> Parcel | None:
        if isinstance(parcel.message.body, self._kinds):
            self._loop = asyncio.get_running_loop()
            await self._permits.acquire()
        return parcel

    def let_go(self, messages: int = 1) -> None:
        """Let so many messages go; the source waits before the next one."""
        assert self._loop is not None
        for _ in range(messages):
            self._loop.call_soon_threadsafe(self._permits.release)


async def no_witness(_: Signer, parcel: Parcel) -> Parcel | None:
    """A source reports, and then lives on without a word to the aggregator's checkpoint."""
    return parcel if isinstance(parcel.message.body, Join) else None


async def of_suite_2(signer: Signer, parcel: Parcel) -> Parcel | None:
    """A peer of a later version, which knows another cryptographic suite."""
    message = parcel.message
    proto = pb.Envelope.FromString(message.signed_bytes)
    proto.suite = 2
    data = proto.SerializeToString()
    return replace(
        parcel, message=Signed(message.envelope, data, sign_bytes(signer.private_key, message.type_name, data))
    )


class _Channel(SourceChannel):
    """A source's end of the transport that may lie."""

    def tell(self, signer: Signer, lie: Lie) -> None:
        self._signer, self._lie = signer, lie

    async def send(self, parcel: Parcel) -> None:
        false = await self._lie(self._signer, parcel)
        if false is not None:
            await super().send(false)


class _Server(AggregatorServer):
    """The aggregator's end of the transport that may lie."""

    def tell(self, signer: Signer, lie: Lie) -> None:
        self._signer, self._lie = signer, lie

    async def send(self, sends: Sequence[tuple[int, Parcel]]) -> None:
        sent = [(site, await self._lie(self._signer, parcel)) for site, parcel in sends]
        await super().send([(site, parcel) for site, parcel in sent if parcel is not None])


class _Unheard:
    """A source's reporter that shows nothing."""

    def round_started(self, round_number: int, visibility: str, rule: str) -> None: ...

    def round_finished(self, record: SiteLine) -> None: ...

    def refused(self, refusal: PolicyRefusal, header: Signed[Header]) -> None: ...

    def alarm(self, error: SecureFdaError) -> None: ...


class Peers:
    """Peers of one federation; they are gone when the block ends."""

    def __init__(self, federation: Kits) -> None:
        self._federation = federation
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._running: list[Future[None]] = []

    def __enter__(self) -> Peers:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for future in self._running:
            future.cancel()
        asyncio.run_coroutine_threadsafe(self._all_ended(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)

    async def _all_ended(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def source(self, site: str, lie: Lie = honest) -> None:
        """Start a source."""
        self._start(self._source(site, lie))

    def aggregator(self, lie: Lie = honest) -> None:
        """Start the aggregator; returns when it listens."""
        listens = threading.Event()
        self._start(self._aggregator(lie, listens))
        assert listens.wait(60)

    def _start(self, peer: Coroutine[Any, Any, None]) -> None:
        self._running.append(asyncio.run_coroutine_threadsafe(peer, self._loop))

    def _kit(self, site: str) -> tuple[Kit, Member]:
        kit = load_kit(self._federation.kit(site), datetime.now(UTC))
        return kit, Member(kit.roster, kit.site_id, kit.signing_key)

    async def _source(self, site: str, lie: Lie) -> None:
        kit, member = self._kit(site)
        config = load_source(kit.local / "settings.toml")
        with closing(store_at(self._federation.root / f"{site}.sqlite")) as store:
            source = source_site(config, load_signed_policy(kit), member, store, secret=None)
            rounds = SourceRun(source, _Unheard())
            channel = _Channel(
                endpoint_of(kit),
                credentials_of(kit),
                max_vector_bytes=rounds.vector_bytes(),
                settings=transport_settings(config.transport),
                observer=MessageRecorder(source.witness.journal, kit.roster, member.index),
            )
            channel.tell(member.signer, lie)
            await channel.open()
            try:
                await SourceDriver(rounds, channel, SilentReporter()).drive()
            finally:
                await channel.close(1.0)
                source.witness.journal.close()

    async def _aggregator(self, lie: Lie, listens: threading.Event) -> None:
        kit, member = self._kit(self._federation.target)
        config = load_aggregator(kit.local / "settings.toml")
        with closing(AggregatorStore(self._federation.root / "target.sqlite")) as store:
            site = target_site(config, member, TrafficMeter().counts, store, secret=None)
            run = AggregatorRun(site, run_settings(config, kit.roster), store, SilentReporter())
            journal = site.witness.journal
            server = _Server(
                config.transport.listen,
                credentials_of(kit),
                partial(source_of_pin, kit),
                run_id=bytes.fromhex(run.run_id),
                settings=transport_settings(config.transport),
                observer=MessageRecorder(journal, kit.roster, member.index, run=run.run_id),
            )
            server.tell(member.signer, lie)
            await server.start()
            listens.set()
            try:
                await RunDriver(run, server, kit.roster, SilentReporter()).drive()
            finally:
                await server.stop(1.0)
                journal.close()
