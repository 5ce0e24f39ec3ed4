"""What the transport's tests share: certificates, messages, and a TCP proxy that can cut and freeze connections."""

from __future__ import annotations

import asyncio
import functools
import ipaddress
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from hashlib import sha256

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from securefda.protocol.messages import (
    NO_CONTEXT,
    NO_SESSION,
    Body,
    DownLink,
    Goodbye,
    Granularity,
    Header,
    Layer,
    MaskedInput,
    NormCapTerms,
    Parcel,
    Refusal,
    RuleTerms,
    Signer,
    TargetTerms,
    Visibility,
)
from securefda.transport.aggregator_server import AggregatorServer
from securefda.transport.client import LostConnection, SourceChannel
from securefda.transport.dialer import Endpoint
from securefda.transport.event_queue import Event, Joined
from securefda.transport.limits import ConnectionLimits, TransportSettings
from securefda.transport.observer import MessageObserver, ignore
from securefda.transport.tls import Credentials, channel_credentials
from securefda.transport.wire import encode
from securefda.v1 import federation_pb2 as pb
from securefda.v1.federation_pb2_grpc import FederationServiceStub

TARGET = 0
RUN_ID = bytes(range(16))
INSTANCE = bytes(range(16))
HELLO = pb.Frame(hello=pb.Hello(instance_id=INSTANCE, heartbeat_ms=2000))
WAIT_S = 60.0
FAST = TransportSettings(chunk_bytes=4096, max_message_bytes=65536, heartbeat_s=0.1, reconnect_deadline_s=10.0)
CALM = TransportSettings(chunk_bytes=4096, max_message_bytes=65536, heartbeat_s=20.0, reconnect_deadline_s=60.0)


def scenario(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run an async test on a loop of its own; nothing in it may wait for longer than ``WAIT_S`` twice."""

    @functools.wraps(test)
    def run(*args: object, **kwargs: object) -> None:
        async def limited() -> None:
            async with asyncio.timeout(2 * WAIT_S):
                await test(*args, **kwargs)

        asyncio.run(limited())

    return run


async def soon(awaitable: Awaitable[object]) -> object:
    """The result of something that must happen within ``WAIT_S``."""
    async with asyncio.timeout(WAIT_S):
        return await awaitable


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


class Authority:
    """A federation's CA."""

    def __init__(self, name: str = "test federation") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        self.certificate = self._build(self._key, self._name, [], timedelta(days=-1), timedelta(days=2), is_ca=True)

    def issue(
        self,
        site: str,
        *,
        starts: timedelta = timedelta(days=-1),
        lasts: timedelta = timedelta(days=2),
        addresses: tuple[str, ...] = ("127.0.0.1",),
    ) -> Credentials:
        """Certificate and key of a site; ``starts`` counts from now."""
        key = ec.generate_private_key(ec.SECP256R1())
        names: list[x509.GeneralName] = [x509.DNSName(site)]
        names += [x509.IPAddress(ipaddress.ip_address(address)) for address in addresses]
        certificate = self._build(key, _name(site), names, starts, lasts)
        return Credentials(self.certificate, certificate, _pem(key))

    def _build(self, key, subject, names, starts, lasts, *, is_ca: bool = False) -> bytes:
        start = datetime.now(UTC) + starts
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(start)
            .not_valid_after(start + lasts)
            .add_extension(x509.BasicConstraints(ca=is_ca, path_length=0 if is_ca else None), critical=True)
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM)


class Sites:
    """A federation of one target (index 0) and sources 1..n."""

    def __init__(self, sources: int = 2) -> None:
        self.authority = Authority()
        self.target = self.authority.issue("target")
        self.sources = {index: self.authority.issue(f"source-{index}") for index in range(1, sources + 1)}
        self._pins = {credentials.pin: index for index, credentials in self.sources.items()}

    def site_of_pin(self, pin: bytes) -> int | None:
        return self._pins.get(pin)

    def server(
        self, settings: TransportSettings = CALM, listen: str = "127.0.0.1:0", observer: MessageObserver = ignore
    ) -> AggregatorServer:
        return AggregatorServer(
            listen,
            self.target,
            self.site_of_pin,
            run_id=RUN_ID,
            settings=settings,
            connections=ConnectionLimits.of(len(self.sources), descriptors=2048),
            observer=observer,
        )

    @asynccontextmanager
    async def listening(
        self, settings: TransportSettings = CALM, listen: str = "127.0.0.1:0", observer: MessageObserver = ignore
    ) -> AsyncIterator[tuple[AggregatorServer, str]]:
        server = self.server(settings, listen, observer)
        address = await server.start()
        try:
            yield server, address
        finally:
            await server.stop(0.0)

    def channel(
        self,
        index: int,
        address: str,
        settings: TransportSettings = CALM,
        *,
        credentials: Credentials | None = None,
        server_name: str = "target",
        pin: bytes | None = None,
        max_vector_bytes: int = 1 << 22,
        observer: MessageObserver = ignore,
        on_lost: Callable[[LostConnection | None], None] = lambda _: None,
    ) -> SourceChannel:
        endpoint = Endpoint(address, server_name, pin or self.target.pin, TARGET)
        return SourceChannel(
            endpoint,
            credentials or self.sources[index],
            max_vector_bytes=max_vector_bytes,
            settings=settings,
            observer=observer,
            on_lost=on_lost,
        )

    @asynccontextmanager
    async def connected(
        self, index: int, address: str, settings: TransportSettings = CALM, **options: object
    ) -> AsyncIterator[SourceChannel]:
        channel = self.channel(index, address, settings, **options)
        await channel.open()
        try:
            yield channel
        finally:
            await channel.close()


@asynccontextmanager
async def meeting(
    settings: TransportSettings = CALM, *, at_target: MessageObserver = ignore, **options: object
) -> AsyncIterator[tuple[AggregatorServer, SourceChannel]]:
    """An aggregator, and source 1 that has joined it."""
    sites = Sites()
    async with (
        sites.listening(settings, observer=at_target) as (server, address),
        sites.connected(1, address, settings, **options) as channel,
    ):
        await joined(server, 1)
        yield server, channel


@asynccontextmanager
async def meeting_of_two(
    settings: TransportSettings = CALM, at_target: MessageObserver = ignore
) -> AsyncIterator[tuple[AggregatorServer, SourceChannel, SourceChannel]]:
    """An aggregator, and sources 1 and 2 that have joined it."""
    sites = Sites()
    async with (
        sites.listening(settings, observer=at_target) as (server, address),
        sites.connected(1, address, settings) as first,
        sites.connected(2, address, settings) as second,
    ):
        assert {(await next_event(server, Joined)).index for _ in range(2)} == {1, 2}
        yield server, first, second


@asynccontextmanager
async def meeting_through_proxy(
    settings: TransportSettings = CALM,
) -> AsyncIterator[tuple[AggregatorServer, Proxy, SourceChannel]]:
    """As :func:`meeting`, over a proxy."""
    sites = Sites()
    async with sites.listening(settings) as (server, upstream):
        proxy = Proxy(upstream)
        async with proxy.running() as address, sites.connected(1, address, settings) as channel:
            await joined(server, 1)
            yield server, proxy, channel


@asynccontextmanager
async def raw_meeting(
    settings: TransportSettings = CALM,
) -> AsyncIterator[tuple[AggregatorServer, FederationServiceStub]]:
    """An aggregator, and the stub of source 1 as :func:`raw_source` gives it."""
    sites = Sites()
    async with sites.listening(settings) as (server, address), raw_source(sites, address, server) as stub:
        yield server, stub


def message(sender: int, body: Body) -> Parcel:
    """A signed message without vectors."""
    return Parcel(Signer(sender, Ed25519PrivateKey.generate(), encode).sign(NO_SESSION, NO_CONTEXT, body))


def note(sender: int, number: int) -> Parcel:
    """A small message that carries a number."""
    return message(sender, Refusal(f"n{number}") if sender else Goodbye(completed=True, rounds=number, reason=""))


def number_of(parcel: Parcel) -> int:
    """The number in a :func:`note`."""
    body = parcel.message.body
    return int(body.key[1:]) if isinstance(body, Refusal) else body.rounds


def header_body(model_digest: bytes, update_digest: bytes = b"", down_link: DownLink = DownLink.FLOAT32) -> Header:
    """A header whose model, and target's update if given, travel beside it."""
    rule = RuleTerms("fedgp_auto", 0.5, "orthogonal", True, True, "mean-field", 1.0)
    target = TargetTerms(5, 0.01, update_digest, 1.5, 0.25) if update_digest else None
    return Header(
        run_id=RUN_ID,
        round=1,
        attempt=1,
        levels=(Visibility.SUM,) * 3,
        rule=rule,
        target=target,
        layers=(Layer("weight", (3, 4), 1.0, 1.0),),
        architecture_digest=b"a" * 32,
        model_digest=model_digest,
        roster_digest=b"r" * 32,
        participants=(1, 2, 3),
        threshold=3,
        modulus_bits=32,
        n_max=3,
        max_samples=1000,
        training_deadline_ms=600_000,
        phase_deadline_ms=30_000,
        previous_result_digest=b"",
        previous_checkpoint=b"",
        sum_quorum=3,
        norm_cap=NormCapTerms(1.0, 2, Granularity.LAYER),
        down_link=down_link,
    )


def header(*vectors: bytes, down_link: DownLink = DownLink.FLOAT32) -> Parcel:
    """A header with one or two vectors beside it."""
    digests = [sha256(vector).digest() for vector in vectors]
    return Parcel(message(TARGET, header_body(*digests, down_link=down_link)).message, vectors)


def masked_input(sender: int, vector: bytes) -> Parcel:
    """A masked input with its vector."""
    body = MaskedInput(digest=sha256(vector).digest(), length_bytes=len(vector))
    return Parcel(message(sender, body).message, (vector,))


async def next_event(server: AggregatorServer, kind: type[Event]) -> Event:
    """The next event, which must be of this kind."""
    event = await soon(server.receive())
    assert isinstance(event, kind), event
    return event


async def joined(server: AggregatorServer, index: int) -> Joined:
    """Wait for the join of a site, which must be the next event."""
    event = await next_event(server, Joined)
    assert event.index == index
    return event


@asynccontextmanager
async def raw_channel(sites: Sites, address: str, **options: object) -> AsyncIterator[grpc.aio.Channel]:
    """A gRPC channel with source 1's certificate and none of our own client code."""
    credentials = channel_credentials(sites.sources[1], sites.target.certificate)
    settings = [("grpc.ssl_target_name_override", "target"), ("grpc.max_send_message_length", -1)]
    async with grpc.aio.secure_channel(address, credentials, settings, **options) as channel:
        yield channel


@asynccontextmanager
async def raw_source(sites: Sites, address: str, server: AggregatorServer) -> AsyncIterator[FederationServiceStub]:
    """The stub of a source that has said hello, and says no more on its control stream."""
    async with raw_channel(sites, address) as channel:
        stub = FederationServiceStub(channel)
        control = stub.Control()
        await control.write(pb.ControlRequest(frame=HELLO))
        assert (await soon(control.read())).frame.WhichOneof("content") == "welcome"
        await joined(server, 1)
        yield stub
        control.cancel()


async def status_of(call: grpc.aio.Call) -> grpc.StatusCode:
    """Read a call to its end; its status."""
    async with asyncio.timeout(20):
        try:
            while await call.read() is not grpc.aio.EOF:
                pass
        except grpc.aio.AioRpcError as error:
            return error.code()
        return await call.code()


class Proxy:
    """Forwards TCP to ``upstream``; can cut every connection, cut at a byte count, and freeze."""

    def __init__(self, upstream: str) -> None:
        host, _, port = upstream.rpartition(":")
        self._upstream = (host, int(port))
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self.connections = 0
        self.cut_after: int | None = None
        self.cuts = 0
        self.forwarded = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        try:
            yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()
            self.cut()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Reset every connection."""
        self.cuts += 1
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    def freeze(self) -> None:
        """Forward nothing any more, and close nothing."""
        self._flowing.clear()

    def thaw(self) -> None:
        """Forward again."""
        self._flowing.set()

    def cut_once_after(self, byte_count: int) -> None:
        """Cut everything when so many more bytes, both ways together, have been forwarded."""
        self.cut_after = self.forwarded + byte_count

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._upstream)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, far_writer}
        for source, sink in ((reader, far_writer), (far_reader, writer)):
            task = asyncio.create_task(self._forward(source, sink))
            self._tasks.add(task)

    async def _forward(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(4096):
                await self._flowing.wait()
                self.forwarded += len(data)
                if self.cut_after is not None and self.forwarded > self.cut_after:
                    self.cut_after = None
                    self.cut()
                    return
                sink.write(data)
                await sink.drain()
        except OSError:
            pass
        finally:
            sink.transport.abort() if sink.is_closing() else sink.close()
