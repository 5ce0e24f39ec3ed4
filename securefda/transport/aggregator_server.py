"""The aggregator's end of the transport: the only listener of a federation.

It answers three calls. Each first identifies the calling site.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import grpc
from google.protobuf.message import DecodeError

from securefda.errors import ConfigError, ConnectionFailed, OtherBuild, SecureFdaError
from securefda.protocol.down_link import down_link_of, packed_length
from securefda.protocol.messages import Body, Parcel, Signed
from securefda.transport.connection_guard import ConnectionGuard
from securefda.transport.delivery import INSTANCE_BYTES, Ended, Link, Pace, content_of, pump
from securefda.transport.event_queue import Event, Incompatible, Joined, Misbehaved, Received
from securefda.transport.limits import GRPC_PREFIX_BYTES, ConnectionLimits, TransportSettings, server_options
from securefda.transport.observer import Direction, MessageObserver, ignore, wire_size
from securefda.transport.peer import Site, SiteTable, Traffic
from securefda.transport.tls import Credentials, pin_of_pem, server_credentials, split_address
from securefda.transport.vector_transfer import PartialUpload, Refused, chunks, digests_beside
from securefda.transport.wire import WireError, other_build, refuse_unknown_fields, signed_from_proto
from securefda.v1 import federation_pb2 as pb
from securefda.v1.federation_pb2_grpc import FederationServiceServicer, add_FederationServiceServicer_to_server
from securefda.v1.messages_pb2 import SignedMessage

Context = grpc.aio.ServicerContext[Any, Any]


class _ControlStream:
    """A control stream of the aggregator, for :func:`pump`."""

    def __init__(self, context: Context, site: Site) -> None:
        self._context = context
        self._site = site

    async def read(self) -> pb.Frame | None:
        request = await _read(self._context, self._site)
        return None if request is None else cast(pb.ControlRequest, request).frame

    async def write(self, frame: pb.Frame) -> None:
        await _write(self._context, self._site, pb.ControlResponse(frame=frame))


class FederationServicer(FederationServiceServicer):
    """Answers sources on behalf of :class:`securefda.transport.aggregator_server.AggregatorServer`."""

    def __init__(self, table: SiteTable) -> None:
        self._table = table

    async def Control(self, request_iterator: object, context: Context) -> None:  # type: ignore[override]  # noqa: ARG002, N802
        """Exchange messages and heartbeats both ways."""
        await self._guarded(context, self._control)

    async def Download(self, request: pb.DownloadRequest, context: Context) -> None:  # type: ignore[override]  # noqa: N802
        """Send the rest of a vector that was offered to the caller."""
        await self._guarded(context, lambda site, context: self._download(site, request, context))

    async def Upload(self, request_iterator: object, context: Context) -> None:  # type: ignore[override]  # noqa: ARG002, N802
        """Take a message with its vector."""
        await self._guarded(context, self._upload)

    async def _guarded(self, context: Context, call: Callable[[Site, Context], Awaitable[None]]) -> None:
        """Run a call as the site of the caller's certificate; turn refusals into a status and an event."""
        site: Site | None = None
        try:
            site = self._authenticate(context)
            await call(site, context)
        except WireError as error:
            await self._refuse(context, site, Refused(grpc.StatusCode.INVALID_ARGUMENT, error.detail, check="WIRE"))
        except Refused as refusal:
            await self._refuse(context, site, refusal)
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "no progress for three heartbeats")

    async def _refuse(self, context: Context, site: Site | None, refusal: Refused) -> None:
        if refusal.check is not None:
            index = None if site is None else site.index
            self._table.events.put(Misbehaved(index, refusal.check, refusal.detail))
        await context.abort(refusal.status, refusal.detail)

    def _authenticate(self, context: Context) -> Site:
        """Return the site whose roster entry has the key of the caller's certificate."""
        facts = context.auth_context()
        version = b"".join(facts.get("ssl_tls_version", []))
        # Other code may have loaded gRPC before it was told to offer TLS 1.3 only (decision 0006).
        if version != b"TLSv1.3":
            text = version.decode("ascii", "replace") or "no TLS"
            raise Refused(grpc.StatusCode.UNAUTHENTICATED, f"{text} instead of TLS 1.3", check="TLS_VERSION")
        # The key and not the name: names in a certificate are the authority's, the key is the roster's (decision 0006).
        pin = pin_of_pem(b"".join(facts.get("x509_pem_cert", [])))
        index = self._table.site_of_pin(pin)
        if index is None:
            raise Refused(
                grpc.StatusCode.UNAUTHENTICATED,
                f"the roster has no source with TLS key {pin.hex()[:16]}",
                check="ROSTER_PIN",
            )
        return self._table.site(index)

    async def _control(self, site: Site, context: Context) -> None:
        stream = _ControlStream(context, site)
        async with asyncio.timeout(self._table.settings.silence_s):
            first = await stream.read()
        if first is None:
            return
        if content_of(first) != "hello":
            raise WireError("a control stream that does not begin with a hello")
        pace = self._greet(site, first)
        stop = site.new_stream()
        link = site.link
        ended = Ended("the stream broke")
        try:
            await stream.write(self._table.welcome(site))
            ended = await pump(stream, link, pace, lambda delivery: self._accept(site, link, delivery), stop)
        except grpc.aio.BaseError as error:
            ended = Ended(f"the stream broke: {error}")
        finally:
            if site.stop is stop:
                if ended.deliberate:
                    self._table.lose(site, ended.why)
                else:  # the source notices a broken or silent connection too, and dials again
                    site.lose_in(pace.silence_s, lambda: self._table.lose(site, ended.why, may_return=True))
        if site.instance_id != first.hello.instance_id:
            raise Refused(grpc.StatusCode.ALREADY_EXISTS, "another process of this site has connected")

    def _greet(self, site: Site, first: pb.Frame) -> Pace:
        """Resume the link with a known process, or begin one with a new process."""
        hello = first.hello
        if len(hello.instance_id) != INSTANCE_BYTES or len(hello.aggregator_instance_id) not in (0, INSTANCE_BYTES):
            raise WireError(f"an instance id that is not {INSTANCE_BYTES} bytes")
        pace = Pace.agreed(self._table.settings.heartbeat_ms, hello.heartbeat_ms)
        # No aggregator instance: the source never got the welcome of its first stream, if there was one.
        known = hello.aggregator_instance_id in (b"", self._table.instance_id)
        if known and hello.instance_id == site.instance_id:
            site.link.acknowledge(first.acknowledged)
            site.link.rewind()
            if not site.is_connected:
                self._table.events.put(Joined(site.index, site.instance_id, resumed=True))
        else:
            site.restarted(hello.instance_id)
            self._table.events.put(Joined(site.index, site.instance_id, resumed=False))
        return pace

    async def _accept(self, site: Site, link: Link, delivery: pb.Delivery) -> None:
        if delivery.attachment_bytes:
            raise WireError("a source announces attachments")
        message = self._message_of(site, delivery.message)
        await self._table.events.slot(site.index)
        if site.link is not link:  # a new process has connected meanwhile: nothing of this one comes after that
            self._table.events.give_back_slot(site.index)
            return
        self._hand_up(site, Parcel(message))
        link.take(delivery.sequence)

    def _hand_up(self, site: Site, parcel: Parcel) -> None:
        size = wire_size(parcel.message, sum(len(vector) for vector in parcel.vectors))
        try:
            self._table.note(Direction.RECEIVED, site.index, parcel.message, size)
        except SecureFdaError as error:
            # This ends the run. gRPC would send the message to the source, and it names the target's files.
            raise Refused(grpc.StatusCode.ABORTED, "the aggregator cannot go on") from error
        self._table.events.put(Received(site.index, parcel))

    def _message_of(self, site: Site, proto: SignedMessage) -> Signed[Body]:
        if (builds := other_build(proto)) is not None:
            self._table.events.put(Incompatible(site.index, *builds))
            refusal = OtherBuild.between("this site", builds[0], "the aggregator", builds[1])
            raise Refused(grpc.StatusCode.FAILED_PRECONDITION, str(refusal))
        message = signed_from_proto(proto)
        # Before its signature is verified: TLS has identified the peer, who may speak for itself only.
        if message.sender != site.index:
            raise Refused(
                grpc.StatusCode.PERMISSION_DENIED,
                f"site {site.index} sends a message of site {message.sender}",
                check="SENDER",
            )
        return message

    async def _download(self, site: Site, request: pb.DownloadRequest, context: Context) -> None:
        site.traffic.up += refuse_unknown_fields(request) + GRPC_PREFIX_BYTES
        view = self._table.attachments.find(request.digest, site.index)
        if view is None:
            raise Refused(grpc.StatusCode.NOT_FOUND, "nothing with this digest is offered to this site")
        if request.offset >= len(view):
            raise Refused(grpc.StatusCode.OUT_OF_RANGE, "the vector ends before that", check="WIRE")
        for offset, data in chunks(view, request.offset, self._table.settings.chunk_bytes):
            response = pb.DownloadResponse(total_bytes=len(view), offset=offset, data=data)
            async with asyncio.timeout(self._table.settings.silence_s):
                if not await _wrote(context, site, response):
                    return

    async def _upload(self, site: Site, context: Context) -> None:
        step = await self._next_step(site, context)
        if step is None:
            return
        if step.WhichOneof("step") != "start":
            raise WireError("an upload that does not begin with its start")
        start = step.start
        message = self._message_of(site, start.message)
        # The answer was lost with the connection: give it again, and hand nothing up twice.
        if site.desk.was_completed(message):
            await _wrote(context, site, pb.UploadResponse(received_bytes=start.total_bytes, complete=True))
            return
        # A process that a newer one has replaced must not upload into the session of that one.
        if start.instance_id != site.instance_id or self._table.events.unread_vectors(site.index):
            raise Refused(grpc.StatusCode.ABORTED, "not now: no control stream, or the vector before is still unread")
        upload = site.desk.begin(message, start.total_bytes)
        if await self._receive_chunks(site, upload, context):
            vector = site.desk.verified(upload)
            await self._table.events.slot(site.index)
            if site.desk.complete(upload):
                self._hand_up(site, Parcel(message, (vector,)))
            else:
                self._table.events.give_back_slot(site.index)
            await _wrote(context, site, pb.UploadResponse(received_bytes=len(vector), complete=True))

    async def _receive_chunks(self, site: Site, upload: PartialUpload, context: Context) -> bool:
        """Fill the upload from this stream; returns False if the stream ended first."""
        stream = upload.stream
        response = pb.UploadResponse(received_bytes=upload.assembly.received)
        while await _wrote(context, site, response):
            if upload.assembly.is_whole:
                return True
            step = await self._next_step(site, context)
            if step is None:
                return False
            if not site.desk.holds(upload):
                site.desk.require_expected(upload.assembly.total)
            if upload.stream is not stream or not site.desk.holds(upload):
                raise Refused(grpc.StatusCode.ABORTED, "a newer upload took over")
            if step.WhichOneof("step") != "chunk":
                raise WireError("an upload with a second start")
            upload.assembly.add(step.chunk.offset, step.chunk.data)
            site.link.heard()
            response = pb.UploadResponse(received_bytes=upload.assembly.received)
        return False

    async def _next_step(self, site: Site, context: Context) -> pb.UploadRequest | None:
        async with asyncio.timeout(self._table.settings.silence_s):
            return cast(pb.UploadRequest | None, await _read(context, site))


async def _read(context: Context, site: Site) -> pb.ControlRequest | pb.UploadRequest | None:
    """Return the next message of a stream, without unknown fields; None after the last one or if the stream broke."""
    try:
        request = await context.read()
    except DecodeError as error:
        raise WireError("not a frame") from error
    except grpc.aio.BaseError:
        return None
    if request is grpc.aio.EOF:
        return None
    site.traffic.up += refuse_unknown_fields(request) + GRPC_PREFIX_BYTES
    return cast(pb.ControlRequest | pb.UploadRequest, request)


async def _write(
    context: Context, site: Site, response: pb.ControlResponse | pb.UploadResponse | pb.DownloadResponse
) -> None:
    await context.write(response)
    site.traffic.down += response.ByteSize() + GRPC_PREFIX_BYTES


async def _wrote(context: Context, site: Site, response: pb.UploadResponse | pb.DownloadResponse) -> bool:
    """Write; returns False if the stream broke, in which case its source will open a new one."""
    with contextlib.suppress(grpc.aio.BaseError):
        await _write(context, site, response)
        return True
    return False


class AggregatorServer:
    """Listens for the sources of a roster; everything that happens comes out of :meth:`receive`, in order.

    A source is known by the public key of its TLS certificate, and may send messages of its own roster index only.
    A connection that breaks and comes back within the same process of the source loses and repeats no message; a new
    process of the source begins anew (``Joined`` with ``resumed`` false). Messages for the old one are discarded, and
    whatever is sent before :meth:`receive` has announced the new one is for the old one.

    Args:
        listen: ``host:port``; port 0 picks a free one.
        credentials: the aggregator's certificate and key, and the federation's CA.
        site_of_pin: roster index of the source with this TLS pin (32 bytes), None where there is none.
        run_id: the run that it is in, 16 bytes; sources hear it first.
        settings: sizes and times.
        connections: how many the port holds; None: enough for eight sources.
        observer: sees every message once, before it leaves or is handed up.
    """

    def __init__(
        self,
        listen: str,
        credentials: Credentials,
        site_of_pin: Callable[[bytes], int | None],
        *,
        run_id: bytes,
        settings: TransportSettings | None = None,
        connections: ConnectionLimits | None = None,
        observer: MessageObserver = ignore,
    ) -> None:
        self._listen = listen
        self._credentials = credentials
        self._connections = connections or ConnectionLimits.of(sources=8, descriptors=1024)
        self._settings = settings or TransportSettings()
        self._table = SiteTable(self._settings, site_of_pin, observer, run_id)
        self._server: grpc.aio.Server | None = None
        self._guard: asyncio.Task[None] | None = None

    async def start(self) -> str:
        """Begin to listen; return ``host:port`` with the port that was bound.

        Raises:
            ConfigError: the address is malformed, not of this machine, or taken.
        """
        host, _ = split_address("transport.listen", self._listen)
        options = server_options(self._settings, self._connections.total)
        server = grpc.aio.server(options=options, compression=grpc.Compression.NoCompression)
        add_FederationServiceServicer_to_server(FederationServicer(self._table), server)
        try:
            port = server.add_secure_port(self._listen, server_credentials(self._credentials))
        except RuntimeError as error:  # all that gRPC says of an address it cannot bind
            raise ConfigError(
                "transport.listen",
                f"cannot listen on {self._listen}: the port is taken or the address is not of this machine",
                hint="stop what listens there, or choose another port",
            ) from error
        await server.start()
        self._server = server
        self._guard = asyncio.create_task(ConnectionGuard(port, self._connections.per_address).watch())
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    async def receive(self) -> Event:
        """Wait for the next event. One caller at a time; safe to cancel.

        Raises:
            ConnectionFailed: the server was stopped.
            BaseException: what the observer raised, if it did.
        """
        return await self._table.events.get()

    def more_messages(self) -> list[Received]:
        """Return the messages that wait already, up to the first event of another kind, which :meth:`receive` returns.

        Until then nothing reaches a new process of a source that is meant for the one before.
        """
        return self._table.events.more_messages()

    async def send(self, sends: Sequence[tuple[int, Parcel]]) -> None:
        """Queue messages for sources and offer their vectors for download.

        All of them are shown to the observer before the first leaves, and none where one of them cannot leave. A
        message leaves at once where its source is connected, else when it is back. A vector is held once, however many
        messages name it, until every source it was sent to has taken its message; it must not be changed meanwhile.

        Messages for a process that a new one has replaced are left out, and not shown. So are those for a source
        that takes nothing: when more than ``settings.max_untaken_bytes`` wait for it, it is hung up on and has left.

        Args:
            sends: roster index of the source, and the message with the vectors that its body names; a header may go
                with the first one alone.

        Raises:
            ConnectionFailed: a source has not joined.
            ConfigError: a message is larger than ``transport.max-message-bytes``.
            ValueError: the vectors are not the ones that the body names.
        """
        sends = self._deliverable(sends)
        digests = [digests_beside(parcel.message.body, len(parcel.vectors)) for _, parcel in sends]
        formats = [down_link_of(parcel.message.body) for _, parcel in sends]
        lengths = [
            tuple(packed_length(memoryview(vector).nbytes, formats[at]) for vector in parcel.vectors)
            for at, (_, parcel) in enumerate(sends)
        ]
        for at, (site, parcel) in enumerate(sends):
            self._table.sites[site].link.require_room(parcel.message, lengths[at])
        offered: list[tuple[bytes, int]] = []
        try:
            for at, (site, parcel) in enumerate(sends):
                for digest, vector in zip(digests[at], parcel.vectors, strict=True):
                    self._table.attachments.publish(digest, vector, site, formats[at])
                    offered.append((digest, site))
            for at, (site, parcel) in enumerate(sends):
                size = wire_size(parcel.message, sum(lengths[at]))
                self._table.note(Direction.SENT, site, parcel.message, size, more=at + 1 < len(sends))
        except BaseException:
            for digest, site in offered:
                self._table.attachments.release((digest,), site)
            raise
        for at, (site, parcel) in enumerate(sends):
            self._table.sites[site].link.push(parcel.message, lengths[at])

    def _deliverable(self, sends: Sequence[tuple[int, Parcel]]) -> list[tuple[int, Parcel]]:
        """Return the messages whose receiver is the present process of a source that still takes messages."""
        unreachable: set[int] = set()
        for index in {index for index, _ in sends}:
            site, limit = self._table.sites.get(index), self._settings.max_untaken_bytes
            if site is None or not site.instance_id:
                raise ConnectionFailed(f"source {index} has not joined")
            if self._table.events.new_process_waits(index):
                unreachable.add(index)
            elif site.link.untaken_bytes > limit:
                site.hang_up()
                self._table.lose(site, f"it takes no messages: more than {limit} bytes wait for it")
                unreachable.add(index)
        return [(index, parcel) for index, parcel in sends if index not in unreachable]

    def drop_attachments(self) -> None:
        """Withdraw every vector, and the messages with vectors that a source has not taken yet."""
        for entry in self._table.sites.values():
            entry.link.discard(only_with_vectors=True)
        self._table.attachments.clear()

    def expect_upload(self, site: int, length: int) -> None:
        """Let a source upload vectors of exactly ``length`` bytes from now on; 0 allows none (as at the start).

        With 0, an upload that is under way is refused at its next piece: on a slow line the rest would be in the way.
        """
        if length < 0:
            raise ValueError("length must not be negative")
        self._table.site(site).desk.expect(length)

    def arrived(self) -> Mapping[int, float]:
        """Roster index -> the share from 0 to 1 that has come of the vector that the source is uploading."""
        parts = {site.index: site.desk.arrived for site in self._table.sites.values()}
        return {index: part for index, part in parts.items() if part}

    def connected(self) -> set[int]:
        """Roster indices of the sources that have joined and not left."""
        return {site.index for site in self._table.sites.values() if site.is_connected}

    def reachable(self) -> set[int]:
        """Roster indices of the sources that are connected, or may return as the same process."""
        return {site.index for site in self._table.sites.values() if site.is_connected or site.may_return}

    def traffic(self) -> Mapping[int, Traffic]:
        """Return the bytes of every source so far, both ways; a snapshot."""
        return {site.index: replace(site.traffic) for site in self._table.sites.values()}

    async def stop(self, grace: float = 5.0) -> None:
        """Wait at most ``grace`` seconds until all sources have taken their messages or are gone, then hang up."""
        waiting = [self._taken(site) for site in self._table.sites.values()]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await asyncio.gather(*waiting)
        self._table.events.fail(ConnectionFailed("the aggregator's server was stopped"))
        for site in self._table.sites.values():
            site.cancel_timer()
            site.stop.set()
        if self._server is not None and self._guard is not None:
            self._guard.cancel()
            await self._server.stop(1.0)
            self._server = None
        for site in self._table.sites.values():
            site.cancel_timer()

    async def _taken(self, site: Site) -> None:
        """Wait until a source has taken everything, or is gone."""
        settled = asyncio.create_task(site.link.settled())
        try:
            while site.is_connected and not settled.done():
                await asyncio.wait({settled}, timeout=self._settings.heartbeat_s)
        finally:
            settled.cancel()
