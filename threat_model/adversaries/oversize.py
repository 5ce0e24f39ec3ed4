"""T28: peers that send too much, and peers that send too slowly."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

from securefda.protocol.messages import MaskedInput, Parcel, Signed
from securefda.transport.client import SourceChannel
from securefda.transport.dialer import Connection
from securefda.transport.tls import Credentials, channel_credentials, server_credentials
from securefda.transport.wire import signed_to_proto
from securefda.v1 import federation_pb2 as pb

_SERVICE = "securefda.v1.FederationService"
_INSTANCE = bytes(range(16))
_NO_LIMIT = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
_HELLO = pb.ControlRequest(frame=pb.Frame(hello=pb.Hello(instance_id=_INSTANCE, heartbeat_ms=60_000)))
_RUN = bytes(range(16))
_WELCOME = pb.ControlResponse(
    frame=pb.Frame(welcome=pb.Welcome(instance_id=_INSTANCE, heartbeat_ms=60_000, run_id=_RUN))
)


class FloodingSource:
    """Sends arbitrary data to the aggregator's port, with gRPC and none of the federation's limits.

    Powers: the TLS key of an enrolled source.
    Goal: the memory of the aggregator's process.
    Source: decompression bombs and unbounded frames, as any public server meets them.
    """

    threat = "T28"

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel

    @classmethod
    @asynccontextmanager
    async def connected(
        cls, address: str, own: Credentials, target_certificate: bytes, compression: Any = None
    ) -> AsyncIterator[FloodingSource]:
        """Hold a connection, with compression on or off."""
        options = [("grpc.ssl_target_name_override", "target"), *_NO_LIMIT]
        credentials = channel_credentials(own, target_certificate)
        async with grpc.aio.secure_channel(address, credentials, options, compression) as channel:
            yield cls(channel)

    @asynccontextmanager
    async def joined(self) -> AsyncIterator[None]:
        """Take part as a source."""
        control: Any = self._stream("Control")
        await control.write(_HELLO.SerializeToString())
        await control.read()
        yield
        control.cancel()

    async def declares(self, message: Signed[MaskedInput]) -> grpc.StatusCode:
        """Announce the vector of a message, and send none of it; returns how the aggregator ends the call."""
        total = message.body.length_bytes
        start = pb.UploadStart(instance_id=_INSTANCE, message=signed_to_proto(message), total_bytes=total)
        return await self._sent(pb.UploadRequest(start=start).SerializeToString())

    async def sends(self, total: int) -> grpc.StatusCode:
        """Send one gRPC message of ``total`` zeros; returns how the aggregator ends the call."""
        return await self._sent(bytes(total))

    async def _sent(self, data: bytes) -> grpc.StatusCode:
        call: Any = self._stream("Upload")
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # refused while it is written
            await call.write(data)
            while await call.read() is not grpc.aio.EOF:
                pass
        return await call.code()  # type: ignore[no-any-return]

    def _stream(self, method: str) -> object:
        return self._channel.stream_stream(f"/{_SERVICE}/{method}")()


class FloodingAggregator:
    """Answers a source with more than it asked for, with gRPC and none of the federation's limits.

    Powers: the target's TLS key.
    Goal: the memory of a source's process.
    Source: as :class:`FloodingSource`.

    Args:
        frame: what it says on the control stream after its welcome.
        vector: what it answers a download with.

    Attributes:
        go: set when it shall say it.
    """

    threat = "T28"

    def __init__(self, frame: bytes, *, vector: bytes = b"") -> None:
        self._frame, self._vector = frame, vector
        self.go = asyncio.Event()

    @asynccontextmanager
    async def listening(self, own: Credentials, compression: Any = None) -> AsyncIterator[str]:
        """Listen, with compression on or off."""
        handlers: dict[str, Any] = {
            "Control": grpc.stream_stream_rpc_method_handler(self._control),
            "Download": grpc.unary_stream_rpc_method_handler(self._download),
        }
        server = grpc.aio.server(options=_NO_LIMIT, compression=compression)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))
        port = server.add_secure_port("127.0.0.1:0", server_credentials(own))
        await server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            await server.stop(0.0)

    async def _control(self, _: object, context: Any) -> None:
        await context.read()
        await context.write(_WELCOME.SerializeToString())
        await self.go.wait()
        await context.write(self._frame)
        await context.read()

    async def _download(self, _: object, context: Any) -> None:
        await context.write(self._vector)


def delivery_of(message: Signed[Any], *announced: int) -> bytes:
    """Return a frame with a message that announces vectors of these lengths."""
    delivery = pb.Delivery(sequence=1, message=signed_to_proto(message), attachment_bytes=announced)
    return pb.ControlResponse(frame=pb.Frame(delivery=delivery)).SerializeToString()


class TricklingChannel(SourceChannel):
    """The channel of a source that sends its input byte by byte, each just in time not to count as silent.

    Powers: an enrolled source.
    Goal: that the aggregator waits for it, and with it everybody else.
    Source: slow requests (Slowloris, 2009).

    Attributes:
        trickled: bytes that the aggregator has acknowledged.
    """

    threat = "T28"
    trickled = 0

    async def send(self, parcel: Parcel) -> None:
        """Send as the real channel does, except for vectors."""
        if not parcel.vectors:
            await super().send(parcel)
            return
        await self._trickle(await self._connected(), parcel)

    async def _trickle(self, connection: Connection, parcel: Parcel) -> None:
        view, call = memoryview(parcel.vectors[0]).cast("B"), connection.stub.Upload()
        message = signed_to_proto(parcel.message)
        start = pb.UploadStart(instance_id=self._instance_id, message=message, total_bytes=len(view))
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # the aggregator is gone
            await call.write(pb.UploadRequest(start=start))
            await call.read()
            for place in range(len(view)):
                chunk = pb.UploadChunk(offset=place, data=bytes(view[place : place + 1]))
                await call.write(pb.UploadRequest(chunk=chunk))
                await call.read()
                self.trickled += 1
                await asyncio.sleep(self._settings.heartbeat_s)
