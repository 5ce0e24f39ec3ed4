"""Messages that survive a broken stream: numbered, kept until acknowledged, sent again, taken once.

Both ends of a control stream use this. A :class:`Link` outlives streams; :func:`pump` runs one stream.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from securefda.errors import ConfigError
from securefda.protocol.messages import Signed, vector_digests
from securefda.transport.limits import FRAME_OVERHEAD_BYTES, MAX_HEARTBEAT_S, SILENT_HEARTBEATS
from securefda.transport.wire import WireError, signed_to_proto
from securefda.v1 import federation_pb2 as pb

INSTANCE_BYTES = 16

ACKNOWLEDGE_WITHIN_S = 0.1
"""An acknowledgement waits so long for a message to travel with. In a round nearly every message is answered by then,
and a frame of its own would wake the peer for nothing."""


@dataclass(frozen=True, slots=True)
class Pace:
    """The interval of heartbeats, and the silence after which the peer is lost; both in seconds."""

    heartbeat_s: float
    silence_s: float

    @classmethod
    def agreed(cls, own_ms: int, peer_ms: int) -> Pace:
        """Return the pace of two sites: the faster heartbeat, the patience of the slower one.

        Raises:
            WireError: the peer announced no heartbeat between 1 ms and 60 s.
        """
        if not 1 <= peer_ms <= MAX_HEARTBEAT_S * 1000:
            raise WireError(f"a heartbeat of {peer_ms} ms")
        return cls(min(own_ms, peer_ms) / 1000, SILENT_HEARTBEATS * max(own_ms, peer_ms) / 1000)


@dataclass(frozen=True, slots=True)
class _Pending:
    delivery: pb.Delivery
    digests: tuple[bytes, ...]
    frame_bytes: int


class Link:
    """The messages between two processes, over any number of streams.

    Args:
        max_message_bytes: largest frame.
        on_settled: called with the digests of a message's vectors when it is acknowledged or discarded.
    """

    def __init__(self, max_message_bytes: int, on_settled: Callable[[tuple[bytes, ...]], None] | None = None) -> None:
        self._max_message_bytes = max_message_bytes
        self._on_settled = on_settled
        self._pending: deque[_Pending] = deque()
        self._pending_bytes = 0
        self._assigned = 0
        self._sent = 0
        self._arrived = 0
        self._taken = 0
        self._acknowledged = 0
        self._acknowledge_in: asyncio.TimerHandle | None = None
        self._acknowledge_now = False
        self._leaving = False
        self._wake = asyncio.Event()
        self._settled = asyncio.Event()
        self._settled.set()
        self._wait_on: Callable[[], None] | None = None

    @property
    def taken(self) -> int:
        """The highest sequence number that has been taken from the peer."""
        return self._taken

    @property
    def untaken_bytes(self) -> int:
        """The bytes of the frames that the peer has not acknowledged, without vectors."""
        return self._pending_bytes

    def push(self, message: Signed[Any], attachment_bytes: tuple[int, ...] = ()) -> None:
        """Number a message and queue it. Raises ConfigError as `require_room`."""
        pending = self._next(message, attachment_bytes)
        self._assigned = pending.delivery.sequence
        self._pending.append(pending)
        self._pending_bytes += pending.frame_bytes
        self._settled.clear()
        self._wake.set()

    def require_room(self, message: Signed[Any], attachment_bytes: tuple[int, ...] = ()) -> None:
        """Raise ConfigError for a message that does not fit a frame; nothing is queued."""
        self._next(message, attachment_bytes)

    def _next(self, message: Signed[Any], attachment_bytes: tuple[int, ...]) -> _Pending:
        sequence = self._assigned + 1
        delivery = pb.Delivery(sequence=sequence, message=signed_to_proto(message), attachment_bytes=attachment_bytes)
        size = delivery.ByteSize() + FRAME_OVERHEAD_BYTES
        if size > self._max_message_bytes:
            raise ConfigError(
                "transport.max-message-bytes",
                f"a {message.type_name} message needs {size} bytes, {self._max_message_bytes} are allowed",
                hint="raise it at every site of the federation",
            )
        return _Pending(delivery, vector_digests(message.body)[: len(attachment_bytes)], size)

    def acknowledge(self, sequence: int) -> None:
        """Drop the messages that the peer has taken.

        Raises:
            WireError: the peer acknowledges what was never sent.
        """
        if sequence > self._assigned:
            raise WireError(f"message {sequence} is acknowledged, {self._assigned} were sent")
        while self._pending and self._pending[0].delivery.sequence <= sequence:
            self._settle(self._pending.popleft())
        self._note_settled()

    def discard(self, *, only_with_vectors: bool = False) -> None:
        """Drop queued messages, or only those whose vectors are no longer kept."""
        discarded = [pending for pending in self._pending if pending.digests or not only_with_vectors]
        self._pending = deque(pending for pending in self._pending if only_with_vectors and not pending.digests)
        for pending in discarded:
            self._settle(pending)
        self._note_settled()

    def _settle(self, pending: _Pending) -> None:
        self._pending_bytes -= pending.frame_bytes
        if self._on_settled is not None and pending.digests:
            self._on_settled(pending.digests)

    def _note_settled(self) -> None:
        if not self._pending:
            self._settled.set()

    async def settled(self) -> None:
        """Wait until the peer has taken everything."""
        await self._settled.wait()

    @contextlib.asynccontextmanager
    async def patience(self, silence_s: float) -> AsyncIterator[None]:
        """Raise TimeoutError if nothing in the block is :meth:`heard` for ``silence_s``."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(silence_s) as timeout:
            self._wait_on = lambda: None if timeout.expired() else timeout.reschedule(loop.time() + silence_s)
            try:
                yield
            finally:
                self._wait_on = None

    def heard(self) -> None:
        """Note that a piece of a vector came, so the peer is alive although its frames may wait behind the vector."""
        if self._wait_on is not None:
            self._wait_on()

    def rewind(self) -> None:
        """Start over on a new stream: send everything again that is not acknowledged."""
        # The numbers go on, so that the peer knows what it has had when it comes again.
        self._sent = self._acknowledged = 0
        self._acknowledgement_is_due()

    def is_new(self, delivery: pb.Delivery) -> bool:
        """Return whether a delivery of the peer has not been accepted yet.

        Raises:
            WireError: it has no number.
        """
        if delivery.sequence == 0:
            raise WireError("a delivery without a sequence number")
        return delivery.sequence > self._arrived

    def accepted(self, delivery: pb.Delivery) -> None:
        """Accept this delivery, so that neither it nor an older one is accepted again."""
        self._arrived = delivery.sequence

    def take(self, sequence: int) -> None:
        """Acknowledge everything up to ``sequence`` with the next frame, at the latest in ``ACKNOWLEDGE_WITHIN_S``."""
        self._taken = sequence
        if self._acknowledge_in is None:
            loop = asyncio.get_running_loop()
            self._acknowledge_in = loop.call_later(ACKNOWLEDGE_WITHIN_S, self._acknowledgement_is_due)

    def _acknowledgement_is_due(self) -> None:
        self._acknowledge_now = True
        self._wake.set()

    def next_frame(self) -> pb.Frame | None:
        """Return the next frame that is due: a message not yet sent on this stream, or an acknowledgement; else
        None.
        """
        for pending in self._pending:
            if pending.delivery.sequence > self._sent:
                self._sent = pending.delivery.sequence
                return self._frame(pb.Frame(delivery=pending.delivery))
        if self._leaving:
            self._leaving = False
            return self._frame(pb.Frame(leave=pb.Leave()))
        if self._acknowledge_now and self._acknowledged < self._taken:
            return self.heartbeat()
        self._wake.clear()
        return None

    def leave(self) -> None:
        """Announce the end of the stream once everything queued has been sent."""
        self._leaving = True
        self._wake.set()

    def heartbeat(self) -> pb.Frame:
        """Return a frame without news."""
        return self._frame(pb.Frame(heartbeat=pb.Heartbeat()))

    def _frame(self, frame: pb.Frame) -> pb.Frame:
        frame.acknowledged = self._acknowledged = self._taken
        self._acknowledge_now = False
        if self._acknowledge_in is not None:
            self._acknowledge_in.cancel()
            self._acknowledge_in = None
        return frame

    async def something_to_say(self, timeout_s: float) -> None:
        """Wait until :meth:`next_frame` may have one, for ``timeout_s`` at most."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._wake.wait()
        except TimeoutError:
            return


class FrameStream(Protocol):
    """One control stream, as seen from either end."""

    async def read(self) -> pb.Frame | None:
        """Return the peer's next frame, which has no unknown fields; None after its last one."""

    async def write(self, frame: pb.Frame) -> None:
        """Send a frame; waits for the peer's flow control."""


def content_of(frame: pb.Frame) -> str:
    """Return the name of a frame's content.

    Raises:
        WireError: it carries nothing.
    """
    content = frame.WhichOneof("content")
    if content is None:
        raise WireError("an empty frame")
    return content


@dataclass(frozen=True, slots=True)
class Ended:
    """The reason why a stream ended. ``deliberate``: the peer announced it, or ``stop`` was set."""

    why: str
    deliberate: bool = False


async def pump(
    stream: FrameStream,
    link: Link,
    pace: Pace,
    accept: Callable[[pb.Delivery], Awaitable[None]],
    stop: asyncio.Event | None = None,
) -> Ended:
    """Run one stream until it ends: send messages and heartbeats, read, and give new deliveries to ``accept``.

    Args:
        stream: opened, greetings exchanged.
        link: rewound to what the peer acknowledged.
        pace: the one agreed with the peer.
        accept: gets each delivery in order, again only if it was cancelled; waiting in it holds the peer back.
        stop: ends the stream from this side, at once.

    Raises:
        WireError: the peer sent a malformed frame.
        Exception: whatever ``stream`` and ``accept`` raise.
    """
    reader = asyncio.create_task(_read(stream, link, pace, accept))
    writer = asyncio.create_task(_write(stream, link, pace))
    stopper = asyncio.create_task((stop or asyncio.Event()).wait())
    tasks: tuple[asyncio.Task[Any], ...] = (reader, writer, stopper)
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if reader.done():  # it knows more than a writer that failed at the same time
            return reader.result()
        if writer.done():
            writer.result()
        return Ended("stopped", deliberate=True)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _read(stream: FrameStream, link: Link, pace: Pace, accept: Callable[[pb.Delivery], Awaitable[None]]) -> Ended:
    while True:
        try:
            async with link.patience(pace.silence_s):
                frame = await stream.read()
        except TimeoutError:
            return Ended(f"silent for {pace.silence_s:g} s")
        if frame is None:
            return Ended("the stream broke")
        content = content_of(frame)
        link.acknowledge(frame.acknowledged)
        if content == "leave":
            return Ended("hung up", deliberate=True)
        if content == "delivery":
            # Until it is acknowledged, a message comes again on every new stream.
            if link.is_new(frame.delivery):
                await accept(frame.delivery)
                link.accepted(frame.delivery)
        elif content != "heartbeat":
            raise WireError(f"a second {content} on one stream")


async def _write(stream: FrameStream, link: Link, pace: Pace) -> None:
    while True:
        frame = link.next_frame()
        if frame is None:
            await link.something_to_say(pace.heartbeat_s)
            frame = link.next_frame() or link.heartbeat()
        await stream.write(frame)
