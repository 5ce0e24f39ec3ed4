"""One attempt of a source to reach the aggregator: check its certificate, open a channel, say hello."""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import grpc

from securefda.errors import (
    AuthenticationError,
    ConfigError,
    ConnectionFailed,
    OtherBuild,
    ProtocolError,
    SecureFdaError,
)
from securefda.protocol.messages import RUN_ID_BYTES
from securefda.site.route import HttpProxy
from securefda.transport.delivery import INSTANCE_BYTES, Link, Pace, content_of
from securefda.transport.limits import GRPC_PREFIX_BYTES, HANDSHAKE_S, TransportSettings, channel_options
from securefda.transport.peer import Traffic
from securefda.transport.tls import Credentials, channel_credentials, fetch_server_certificate
from securefda.transport.vector_transfer import UNEXPECTED_LENGTH
from securefda.transport.wire import WireError, refuse_unknown_fields
from securefda.v1 import federation_pb2 as pb
from securefda.v1.federation_pb2_grpc import FederationServiceStub

if TYPE_CHECKING:
    from securefda.v1.federation_pb2_grpc import FederationServiceAsyncStub


class UploadRefusedError(ProtocolError):
    """The aggregator does not want this vector: it expects another length, or none. The check is ``UPLOAD_LENGTH``."""

    def __init__(self, detail: str) -> None:
        super().__init__("UPLOAD_LENGTH", f"the aggregator refuses the upload: {detail}")


class HungUp(ConnectionFailed):
    """The aggregator answers, but the connection for calls does not come about or broke. Trying again may help."""


class Withdrawn(ConnectionFailed):
    """The aggregator no longer offers this vector to this site, or never did."""


class HandshakeRefused(HungUp):
    """The aggregator closed the connection as soon as it had this site's certificate, and sent nothing before."""


_CLOSED_AFTER_HANDSHAKE = re.compile(r"failed to connect to .* ipv\S+ (Socket closed|Delayed close|(recv|send)msg)")
"""gRPC's words for a connection that is closed after the client's last handshake message and before HTTP/2 begins.

This is all that a source sees of a refused certificate, since gRPC's server sends no alert. A connection that is closed
earlier is "Handshake read failed", as where the server has too many; one that is closed later is "Stream removed".
"""


def _broken_off(detail: str, *, soon: bool) -> HungUp:
    """Return the error of a connection that the aggregator closed before its welcome."""
    what = "the aggregator broke off the connection before its welcome"
    if not _CLOSED_AFTER_HANDSHAKE.match(detail):
        return HungUp(what)
    hint = (
        "either it is too busy, or something between breaks off TLS connections, or it does not accept this site's "
        "certificate: check both clocks, and that both sites use startup kits of the same federation"
    )
    return (HandshakeRefused if soon else HungUp)(what, hint=hint)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address of the aggregator, and how to recognise it.

    Attributes:
        address: ``host:port``.
        server_name: name that its certificate must carry.
        pin: SHA-256 of the SubjectPublicKeyInfo of its certificate, 32 bytes, from the roster.
        index: its roster index.
        proxy: the one that opens a tunnel to it; None to dial it directly.
    """

    address: str
    server_name: str
    pin: bytes
    index: int
    proxy: HttpProxy | None = None


def _tunnel_options(endpoint: Endpoint) -> list[tuple[str, str]]:
    """Return gRPC's options with which a channel to a proxy asks it for a tunnel."""
    if endpoint.proxy is None:
        return []
    # Not grpc.http_proxy, over which no_proxy in the environment would win.
    options = [("grpc.http_connect_server", endpoint.address)]
    if (own := endpoint.proxy.authorization) is not None:
        options.append(("grpc.http_connect_headers", f"Proxy-Authorization:{own.reveal().decode('ascii')}"))
    return options


def translated(error: grpc.aio.AioRpcError) -> SecureFdaError:
    """Return the error that a failed call means to a source. Only :class:`HungUp` is worth another attempt."""
    detail = error.details() or "no reason given"
    meaning: SecureFdaError
    match error.code():
        case grpc.StatusCode.UNAUTHENTICATED | grpc.StatusCode.PERMISSION_DENIED:
            hint = "check that the roster at the aggregator has this site with its present certificate"
            meaning = AuthenticationError(f"the aggregator refuses this site: {detail}", hint=hint)
        case grpc.StatusCode.ALREADY_EXISTS:
            hint = "run one source process per startup kit"
            meaning = AuthenticationError(f"the aggregator hung up: {detail}", hint=hint)
        case grpc.StatusCode.NOT_FOUND:
            meaning = Withdrawn(detail)
        # gRPC has the same code for its own limits of size: only the text tells which of the two it is.
        case grpc.StatusCode.RESOURCE_EXHAUSTED if UNEXPECTED_LENGTH in detail:
            meaning = UploadRefusedError(detail)
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            hint = "use the same value at every site"
            meaning = ConfigError("transport.max-message-bytes", detail, hint=hint)
        case grpc.StatusCode.FAILED_PRECONDITION:
            meaning = OtherBuild(detail)
        case grpc.StatusCode.UNIMPLEMENTED:  # a release that changes the frames renames the service
            meaning = OtherBuild(f"the aggregator runs a securefda without the service of {pb.DESCRIPTOR.package}")
        case grpc.StatusCode.INVALID_ARGUMENT | grpc.StatusCode.OUT_OF_RANGE:
            meaning = ProtocolError("WIRE", f"the aggregator refuses a message of this site: {detail}")
        # Any other code can be the network's doing.
        case _:
            meaning = HungUp(f"the connection broke: {detail}")
    return meaning


class Connection:
    """A channel to the aggregator with its control stream, greetings exchanged."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        call: grpc.aio.StreamStreamCall[pb.ControlRequest, pb.ControlResponse],
        stub: FederationServiceAsyncStub,
        traffic: Traffic,
    ) -> None:
        self.stub = stub
        self.traffic = traffic
        self._channel = channel
        self._call = call

    async def read(self) -> pb.Frame | None:
        """Return the next frame; None after the last one.

        Raises:
            WireError: what came is no frame, or holds something unknown.
            AioRpcError: the call failed.
        """
        response: Any = await self._call.read()
        if response is grpc.aio.EOF:
            return None
        if response is None:  # gRPC's word for bytes that protobuf could not read
            raise WireError("not a frame")
        self.traffic.down += refuse_unknown_fields(response) + GRPC_PREFIX_BYTES
        frame: pb.Frame = response.frame
        return frame

    async def write(self, frame: pb.Frame) -> None:
        """Send a frame.

        Raises:
            AioRpcError: the call failed.
        """
        request = pb.ControlRequest(frame=frame)
        await self._call.write(request)
        self.traffic.up += request.ByteSize() + GRPC_PREFIX_BYTES

    async def close(self) -> None:
        """Hang up."""
        self._call.cancel()
        await self._channel.close()


@dataclass(frozen=True, slots=True)
class Welcomed:
    """An open connection: the aggregator's process and run, what it has taken, and the agreed pace."""

    connection: Connection
    instance_id: bytes
    run_id: bytes
    acknowledged: int
    pace: Pace


class Dialer:
    """Makes connections for one source process.

    Args:
        endpoint: the aggregator.
        credentials: the source's own.
        settings: sizes and times.
        instance_id: random name of this process, 16 bytes.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        credentials: Credentials,
        settings: TransportSettings,
        instance_id: bytes,
    ) -> None:
        self.traffic = Traffic()
        self._endpoint = endpoint
        self._credentials = credentials
        self._settings = settings
        self._instance_id = instance_id

    async def dial(self, link: Link, aggregator_instance_id: bytes) -> Welcomed:
        """Connect and exchange greetings.

        Raises:
            CertificateError: the aggregator's certificate, or this site's, does not hold.
            AuthenticationError: the aggregator is not the roster's, or it does not accept this site.
            ConfigError: the proxy refuses this site.
            ConnectionFailed: there is no answer; :class:`HungUp` where it answered and the call still failed.
            ProtocolError: its welcome is malformed.
        """
        endpoint = self._endpoint
        # gRPC says neither whose certificate it saw nor why it refused one; this looks first, for the message.
        certificate = await fetch_server_certificate(
            endpoint.address,
            server_name=endpoint.server_name,
            ca=self._credentials.ca,
            pin=endpoint.pin,
            proxy=endpoint.proxy,
            timeout_s=self._settings.silence_s,
        )
        # This site's own, too: of an expired one the server says nothing, and closes the connection.
        self._credentials.check(datetime.now(UTC))
        channel = grpc.aio.secure_channel(
            endpoint.address if endpoint.proxy is None else str(endpoint.proxy.address),
            channel_credentials(self._credentials, certificate),
            options=[*channel_options(self._settings, endpoint.server_name), *_tunnel_options(endpoint)],
            # The length of compressed messages would depend on what is in them (T18).
            compression=grpc.Compression.NoCompression,
        )
        stub = FederationServiceStub(channel)
        began = time.monotonic()
        connection = Connection(channel, stub.Control(), stub, self.traffic)
        try:
            async with asyncio.timeout(self._settings.silence_s):
                return await self._greet(connection, link, aggregator_instance_id)
        # Cancellation as well: nothing else knows of this channel, so nothing else would close it.
        except BaseException as error:
            await connection.close()
            if isinstance(error, TimeoutError):
                raise HungUp(f"no welcome from the aggregator within {self._settings.silence_s:g} s") from error
            if isinstance(error, grpc.aio.AioRpcError) and error.code() is grpc.StatusCode.UNAVAILABLE:
                # A server that misses its own deadline for handshakes closes no connection before that deadline.
                raise _broken_off(error.details() or "", soon=time.monotonic() - began < HANDSHAKE_S) from error
            if isinstance(error, grpc.aio.AioRpcError):
                raise translated(error) from error
            raise

    async def _greet(self, connection: Connection, link: Link, aggregator_instance_id: bytes) -> Welcomed:
        hello = pb.Hello(
            instance_id=self._instance_id,
            aggregator_instance_id=aggregator_instance_id,
            heartbeat_ms=self._settings.heartbeat_ms,
        )
        await connection.write(pb.Frame(acknowledged=link.taken, hello=hello))
        frame = await connection.read()
        if frame is None:
            raise HungUp("the aggregator hung up before its welcome")
        if content_of(frame) != "welcome" or len(frame.welcome.instance_id) != INSTANCE_BYTES:
            raise WireError("the aggregator does not begin with a welcome")
        welcome = frame.welcome
        # Before any message: the run decides which log the first one is recorded in.
        if len(welcome.run_id) != RUN_ID_BYTES:
            raise WireError(f"the aggregator's welcome does not name a run of {RUN_ID_BYTES} bytes")
        pace = Pace.agreed(self._settings.heartbeat_ms, welcome.heartbeat_ms)
        return Welcomed(connection, welcome.instance_id, welcome.run_id, frame.acknowledged, pace)
