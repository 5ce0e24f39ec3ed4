"""A source's end of the transport: one connection, dialled by the source, kept alive and restored by itself.

Messages and their vectors go over the present connection; each attempt at a vector is over one connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import grpc

from securefda.errors import AuthenticationError, ConnectionFailed, FaultyAggregatorError, OtherBuild
from securefda.protocol.down_link import down_link_of
from securefda.protocol.messages import Body, Parcel, Signed, vector_digests
from securefda.transport.delivery import INSTANCE_BYTES, Link, pump
from securefda.transport.dialer import (
    Connection,
    Dialer,
    Endpoint,
    HandshakeRefused,
    HungUp,
    Welcomed,
    Withdrawn,
    translated,
)
from securefda.transport.limits import GRPC_PREFIX_BYTES, UNREAD_MESSAGES, TransportSettings, backoff_s
from securefda.transport.observer import Direction, MessageObserver, ignore, wire_size
from securefda.transport.peer import Traffic
from securefda.transport.tls import Credentials, Unreachable
from securefda.transport.vector_transfer import Assembly, Vector, byte_view, chunks, digests_beside
from securefda.transport.wire import WireError, other_build, refuse_unknown_fields, signed_from_proto, signed_to_proto
from securefda.v1 import federation_pb2 as pb


async def download(
    connection: Connection, assembly: Assembly, patience_s: float, heard: Callable[[], None] = lambda: None
) -> bool:
    """Fetch the missing part of a vector; returns False if the aggregator has withdrawn it.

    Args:
        connection: the present one.
        assembly: sized as the aggregator announced; holds what earlier attempts brought.
        patience_s: seconds without a chunk after which the attempt ends.
        heard: called after each chunk.

    Raises:
        HungUp: the stream broke; what came is in the assembly.
        FaultyAggregatorError: the aggregator sends something else than it announced.
        SecureFdaError: it refuses.
    """
    request = pb.DownloadRequest(digest=assembly.digest, offset=assembly.received)
    connection.traffic.up += request.ByteSize() + GRPC_PREFIX_BYTES
    call = connection.stub.Download(request)
    try:
        while not assembly.is_whole:
            with _breaks_translated():
                async with asyncio.timeout(patience_s):
                    response: Any = await call.read()
            if response is grpc.aio.EOF:
                raise HungUp("a download ended early")
            if response is None:
                raise WireError("not a download response")
            connection.traffic.down += refuse_unknown_fields(response) + GRPC_PREFIX_BYTES
            if response.total_bytes != assembly.total:
                raise WireError(f"{response.total_bytes} bytes instead of the {assembly.total} announced")
            assembly.add(response.offset, response.data)
            heard()
    except Withdrawn:
        return False
    except TimeoutError as error:
        raise HungUp(f"a download stood still for {patience_s:g} s") from error
    except WireError as error:
        raise FaultyAggregatorError("ATTACHMENT", error.detail) from error
    finally:
        call.cancel()
    return True


async def upload(
    connection: Connection,
    *,
    instance_id: bytes,
    message: Signed[Any],
    view: memoryview,
    chunk_bytes: int,
    patience_s: float,
    resumes: bool = False,
) -> None:
    """Upload a message and its vector to the aggregator.

    Args:
        connection: the present one.
        instance_id: of this process, as in its hello.
        message: names the vector by its digest.
        view: the vector.
        chunk_bytes: size of a piece.
        patience_s: seconds without an acknowledgement after which the attempt ends.
        resumes: whether an earlier attempt may have brought a part. Then the aggregator says first from where it wants
            the vector, which takes a round trip; else all of it is sent at once.

    Raises:
        HungUp: the stream broke.
        SecureFdaError: the aggregator refuses.
    """
    call = connection.stub.Upload()
    sender: asyncio.Task[None] | None = None
    try:
        with _breaks_translated():
            start = pb.UploadStart(instance_id=instance_id, message=signed_to_proto(message), total_bytes=len(view))
            try:  # gRPC lets a write wait for ever where its connection broke before the call had begun
                async with asyncio.timeout(patience_s):
                    await _write(connection, call, pb.UploadRequest(start=start))
            except TimeoutError as error:
                raise HungUp(f"an upload did not begin for {patience_s:g} s") from error
            # It may have pieces, or all, whose acknowledgement was lost.
            answer = await _read(connection, call, patience_s) if resumes else pb.UploadResponse()
            sender = asyncio.create_task(_send_chunks(connection, call, view, answer.received_bytes, chunk_bytes))
            while not answer.complete:
                answer = await _read(connection, call, patience_s)
    finally:
        if sender is not None:
            sender.cancel()
            await asyncio.gather(sender, return_exceptions=True)  # the reader's error is the telling one
        call.cancel()


@contextlib.contextmanager
def _breaks_translated() -> Iterator[None]:
    """Translate gRPC's errors of a broken call into our own."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise translated(error) from error
    except asyncio.InvalidStateError as error:  # a write after the call has ended
        raise HungUp("the call has ended") from error
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        # No caller cancelled us: the control stream broke, and its channel was closed together with this call.
        raise HungUp("the connection was closed") from error


async def _send_chunks(connection: Connection, call: Any, view: memoryview, offset: int, chunk_bytes: int) -> None:
    for position, data in chunks(view, offset, chunk_bytes):
        await _write(connection, call, pb.UploadRequest(chunk=pb.UploadChunk(offset=position, data=data)))
    await call.done_writing()


async def _write(connection: Connection, call: Any, request: pb.UploadRequest) -> None:
    await call.write(request)
    connection.traffic.up += request.ByteSize() + GRPC_PREFIX_BYTES


async def _read(connection: Connection, call: Any, patience_s: float) -> pb.UploadResponse:
    try:
        async with asyncio.timeout(patience_s):
            response: Any = await call.read()
    except TimeoutError as error:
        raise HungUp(f"no acknowledgement of an upload for {patience_s:g} s") from error
    if response is grpc.aio.EOF:
        raise HungUp("an upload ended early")
    if response is None:
        raise FaultyAggregatorError("UPLOAD_RESPONSE", "not an upload response")
    try:
        connection.traffic.down += refuse_unknown_fields(response) + GRPC_PREFIX_BYTES
    except WireError as error:
        raise FaultyAggregatorError("UPLOAD_RESPONSE", error.detail) from error
    answer: pb.UploadResponse = response
    return answer


REFUSED_HANDSHAKES = 3
"""After this many connections in a row that end as soon as the aggregator has our certificate, it does not accept it.

If it has accepted it before, the network is bad: a source sees no difference.
"""

ResultT = TypeVar("ResultT")


class AggregatorRestarted(ConnectionFailed):
    """The aggregator is back as a new process that knows nothing of this one; the channel is connected to it.

    Messages that were under way are gone. A source joins again.
    """


@dataclass(frozen=True, slots=True)
class LostConnection:
    """A lost connection: ``what`` describes it in plain words, and after ``left_s`` seconds the channel gives up."""

    what: str
    left_s: float


@dataclass(slots=True)
class _Arrival:
    """A message whose vectors are still at the aggregator, wholly or in part."""

    sequence: int
    message: Signed[Body]
    lengths: tuple[int, ...]
    digests: tuple[bytes, ...]
    assemblies: list[Assembly] = field(default_factory=list)


class SourceChannel:
    """Messages between this source and the aggregator.

    The channel dials, keeps the connection alive with heartbeats, and dials again with growing, random pauses where
    it breaks; messages and the bytes of vectors that have arrived are not sent again. After
    ``settings.reconnect_deadline_s`` without a connection it gives up.

    ``run_id`` is the run that the aggregator says it is in, 16 bytes; empty before there is a connection.

    Args:
        endpoint: the aggregator, with the pin of its TLS key.
        credentials: this site's certificate and key, and the federation's CA.
        max_vector_bytes: longest vector that this site takes from the aggregator.
        settings: sizes and times.
        observer: sees every message once, before it leaves or is handed up.
        on_lost: hears of each attempt that failed and of each connection that broke, and None once there is one.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        credentials: Credentials,
        *,
        max_vector_bytes: int,
        settings: TransportSettings | None = None,
        observer: MessageObserver = ignore,
        on_lost: Callable[[LostConnection | None], None] = lambda _: None,
    ) -> None:
        self._endpoint = endpoint
        self._on_lost = on_lost
        self._max_vector_bytes = max_vector_bytes
        self._settings = settings or TransportSettings()
        self._observer = observer
        self._instance_id = os.urandom(INSTANCE_BYTES)
        self._dialer = Dialer(endpoint, credentials, self._settings, self._instance_id)
        self._aggregator_id = b""
        self.run_id = b""
        self._link = Link(self._settings.max_message_bytes)
        self._inbox: deque[_Arrival] = deque()
        self._connection: Connection | None = None
        self._restarted = False
        self._closing = False
        self._failure: BaseException | None = None
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Connect; keep trying for ``reconnect_deadline_s`` where there is no answer.

        Raises:
            ConnectionFailed: the aggregator is not there.
            CertificateError: a certificate is expired, not yet valid, of another federation, or has the wrong name.
            AuthenticationError: the aggregator is not the roster's, or it does not accept this site.
            ConfigError: the address is malformed.
        """
        self._task = asyncio.create_task(self._keep_connected())
        self._task.add_done_callback(self._task_ended)
        try:
            await self._connected()
        except BaseException:
            await self.close()
            raise

    async def receive(self) -> Parcel:
        """Wait for the next message, with its vectors. One caller at a time; safe to cancel.

        The message is acknowledged when it is handed up. One whose vectors the aggregator has withdrawn meanwhile
        is left out. Its signature has not been checked; its sender is the aggregator.

        Raises:
            AggregatorRestarted: once after each restart; then go on with the new one.
            ConnectionFailed: the aggregator did not come back in time.
            FaultyAggregatorError: it sent something malformed, or a vector that is too long or not the one named.
            SecureFdaError: it refuses this site.
        """
        with self._restart_handed_up():
            return await self._next()

    async def _next(self) -> Parcel:
        while True:
            self._raise_restart()
            if not self._inbox:
                self._raise_failure()
                await self._wait()
                continue
            arrival = self._inbox[0]
            vectors = await self._fetch(arrival)
            if not self._inbox or self._inbox[0] is not arrival:
                continue  # the aggregator restarted meanwhile
            self._inbox.popleft()
            self._link.take(arrival.sequence)
            self._news.set()
            if vectors is not None:
                return Parcel(arrival.message, vectors)

    async def send(self, parcel: Parcel) -> None:
        """Send a message. One caller at a time.

        Without a vector it is queued and leaves as soon as there is a connection. With a vector this returns when
        the aggregator has all of it.

        Args:
            parcel: the message, with exactly the vectors that its body names, one at most.

        Raises:
            AggregatorRestarted: the message is not sent, or not wholly.
            UploadRefusedError: the aggregator expects a vector of another length, or none.
            ConfigError: the message is larger than ``transport.max-message-bytes``.
            ConnectionFailed: the aggregator did not come back in time.
            SecureFdaError: it refuses this site.
            ValueError: the vectors are not the ones that the body names.
        """
        with self._restart_handed_up():
            await self._send(parcel)

    async def _send(self, parcel: Parcel) -> None:
        self._raise_restart()
        self._raise_failure()
        message, vectors = parcel.message, [byte_view(vector) for vector in parcel.vectors]
        if len(vectors) != len(vector_digests(message.body)) or len(vectors) > 1:
            raise ValueError(f"a {message.type_name} does not go with {len(vectors)} vectors")
        self._observer(Direction.SENT, self._endpoint.index, message, wire_size(message, sum(map(len, vectors))))
        if not vectors:
            self._link.push(message)
            return
        resumes = False

        async def transfer(connection: Connection) -> None:
            nonlocal resumes
            this_one_resumes, resumes = resumes, True
            await upload(
                connection,
                instance_id=self._instance_id,
                message=message,
                view=vectors[0],
                chunk_bytes=self._settings.chunk_bytes,
                patience_s=self._settings.silence_s,
                resumes=this_one_resumes,
            )

        await self._on_some_connection(transfer)

    async def close(self, grace: float | None = None) -> None:
        """Hang up, after the aggregator has taken what was queued or ``grace`` seconds (default: three heartbeats)."""
        grace = self._settings.silence_s if grace is None else grace
        self._closing = True
        if self._task is None:
            return
        if self._connection is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace):
                    await self._link.settled()
            self._link.leave()
            await asyncio.wait({self._task}, timeout=grace)
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def traffic(self) -> Traffic:
        """Return the bytes so far, ``up`` to the aggregator and ``down`` from it; a snapshot."""
        return replace(self._dialer.traffic)

    async def _keep_connected(self) -> None:
        """Connect and run the control stream, repeatedly, until the channel is closed or there is no hope."""
        loop = asyncio.get_running_loop()
        last_contact, pauses, refused = loop.time(), backoff_s(), 0
        while True:
            try:
                welcomed = await self._dialer.dial(self._link, self._aggregator_id)
                why, hint = await self._converse(welcomed), ""
                last_contact, pauses, refused = loop.time(), backoff_s(), 0
                what = f"lost the connection to {self._endpoint.address}: {why}"
            except ConnectionFailed as error:
                why, hint = str(error), error.hint
                what = f"cannot reach {self._endpoint.address}: {error.why if isinstance(error, Unreachable) else why}"
                refused = refused + 1 if isinstance(error, HandshakeRefused) else 0
            except WireError as error:
                raise FaultyAggregatorError("WIRE", error.detail) from error
            if self._closing:
                return
            if refused >= REFUSED_HANDSHAKES and not self._aggregator_id:
                raise AuthenticationError(
                    f"the aggregator at {self._endpoint.address} does not accept this site's certificate",
                    hint="check that both sites use startup kits of the same federation, both clocks, and whether "
                    "something between them breaks off TLS connections",
                )
            left_s = last_contact + self._settings.reconnect_deadline_s - loop.time()
            if left_s <= 0:
                deadline = f"gave up after {self._settings.reconnect_deadline_s:g} s"
                raise ConnectionFailed(
                    f"{why}; {deadline}",
                    hint=hint or "check that the aggregator runs, and no other program at its address, and the network",
                )
            self._on_lost(LostConnection(what, left_s))
            await asyncio.sleep(next(pauses))

    async def _converse(self, welcomed: Welcomed) -> str:
        """Run one control stream to its end; return why it ended."""
        if self._aggregator_id not in (b"", welcomed.instance_id):
            self._link = Link(self._settings.max_message_bytes)
            self._inbox.clear()
            self._restarted = True
        else:
            # Acknowledgements may have been lost with the stream before; the welcome repeats the last.
            self._link.acknowledge(welcomed.acknowledged)
            self._link.rewind()
        # One process stays with one run (SFDA-SA/1, section 3). Another run would put
        # its messages into the log of this one.
        if self._aggregator_id == welcomed.instance_id and self.run_id != welcomed.run_id:
            await welcomed.connection.close()
            raise FaultyAggregatorError("WIRE", "the same process of the aggregator names another run")
        self._aggregator_id, self.run_id = welcomed.instance_id, welcomed.run_id
        self._connection = welcomed.connection
        self._on_lost(None)
        self._news.set()
        try:
            ended = await pump(welcomed.connection, self._link, welcomed.pace, self._accept)
        except grpc.aio.AioRpcError as error:
            failure = translated(error)
            if not isinstance(failure, HungUp):
                raise failure from error
            return str(failure)
        except asyncio.InvalidStateError:  # gRPC's word for a write after the call has ended
            return "the connection broke"
        finally:
            self._connection = None
            await welcomed.connection.close()
        return f"the aggregator's control stream ended: {ended.why}"

    async def _accept(self, delivery: pb.Delivery) -> None:
        if (builds := other_build(delivery.message)) is not None:
            raise OtherBuild.between("the aggregator", builds[0], "this site", builds[1])
        message = signed_from_proto(delivery.message)
        if message.sender != self._endpoint.index:
            raise FaultyAggregatorError("SENDER", f"a message of site {message.sender} without its envelope")
        lengths = tuple(delivery.attachment_bytes)
        try:
            digests = digests_beside(message.body, len(lengths))
        except ValueError as error:
            raise FaultyAggregatorError("ATTACHMENT", str(error)) from None
        # Judged here, since the buffer is made whole as soon as the vector is fetched (T28).
        if any(not 0 < length <= self._max_vector_bytes for length in lengths):
            raise FaultyAggregatorError(
                "ATTACHMENT", f"a vector of {max(lengths)} bytes announced, this site takes {self._max_vector_bytes}"
            )
        # Not read, so flow control holds the sender back; nothing is dropped (T28).
        while len(self._inbox) >= UNREAD_MESSAGES:
            await self._wait()
        self._observer(Direction.RECEIVED, self._endpoint.index, message, wire_size(message, sum(lengths)))
        self._inbox.append(_Arrival(delivery.sequence, message, lengths, digests))
        self._news.set()

    async def _fetch(self, arrival: _Arrival) -> tuple[Vector, ...] | None:
        """Download the missing parts of a message's vectors; None if they have been withdrawn."""
        if not arrival.assemblies:
            named = zip(arrival.lengths, arrival.digests, strict=True)
            down_link = down_link_of(arrival.message.body)
            arrival.assemblies = [Assembly(length, digest, down_link) for length, digest in named]
        # On a long line each takes a round trip. Beside each other only what is one piece together: a slow line has to
        # bring a piece before the connection counts as silent.
        at_once = sum(arrival.lengths) <= self._settings.chunk_bytes
        for group in [arrival.assemblies] if at_once else ([assembly] for assembly in arrival.assemblies):
            if not await self._download_all(group):
                return None
        try:
            return tuple(assembly.finish() for assembly in arrival.assemblies)
        except WireError as error:
            raise FaultyAggregatorError("ATTACHMENT_DIGEST", error.detail) from error

    async def _download_all(self, assemblies: Iterable[Assembly]) -> bool:
        """Download some vectors beside each other; returns False if one of them has been withdrawn."""
        patience_s, transfers = self._settings.silence_s, []
        for assembly in assemblies:
            transfer = partial(download, assembly=assembly, patience_s=patience_s, heard=self._heard)
            transfers.append(asyncio.ensure_future(self._on_some_connection(transfer)))
        try:
            return all(await asyncio.gather(*transfers))
        finally:
            for started in transfers:
                started.cancel()
            await asyncio.gather(*transfers, return_exceptions=True)

    def _heard(self) -> None:
        self._link.heard()  # looked up each time: after a restart of the aggregator it is another link

    async def _on_some_connection(self, transfer: Callable[[Connection], Awaitable[ResultT]]) -> ResultT:
        """Run a transfer and repeat it if it breaks: on the next connection, or for a while on the same."""
        loop = asyncio.get_running_loop()
        patience_s = max(self._settings.reconnect_deadline_s, self._settings.silence_s)
        pauses, before, failing_since = backoff_s(), None, 0.0
        while True:
            connection = await self._connected()
            try:
                return await transfer(connection)
            except HungUp:
                if connection is not before:
                    before, failing_since = connection, loop.time()
                elif loop.time() - failing_since >= patience_s:
                    raise
            await asyncio.sleep(next(pauses))

    async def _connected(self) -> Connection:
        while True:
            self._raise_restart()
            self._raise_failure()
            if self._connection is not None:
                return self._connection
            await self._wait()

    async def _wait(self) -> None:
        self._news.clear()
        await self._news.wait()

    @contextlib.contextmanager
    def _restart_handed_up(self) -> Iterator[None]:
        """Forget a restart once its error leaves the channel, not before: a caller that is cancelled hears it later."""
        try:
            yield
        except AggregatorRestarted:
            self._restarted = False
            raise

    def _raise_restart(self) -> None:
        if self._restarted:
            raise AggregatorRestarted("the aggregator has restarted", hint="join it again")

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._closing or self._task is None:
            raise ConnectionFailed("the channel to the aggregator is not open")

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            self._failure = task.exception()
        self._news.set()
