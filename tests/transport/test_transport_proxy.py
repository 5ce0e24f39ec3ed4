"""A source behind an HTTP proxy: both of its connections go through a tunnel, and what the proxy answers is named."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from transport_kit import CALM, TARGET, Sites, header, joined, scenario, soon

from securefda.errors import AuthenticationError, ConfigError, ConnectionFailed, ExitCode, SecureFdaError
from securefda.protocol.secret import Secret
from securefda.site.config import TransportSection
from securefda.site.endpoints import Address
from securefda.site.route import HttpProxy, Route
from securefda.transport.client import SourceChannel
from securefda.transport.dialer import Endpoint
from securefda.transport.limits import TransportSettings

IMPATIENT = TransportSettings(heartbeat_s=0.1, reconnect_deadline_s=0.0)
ELSEWHERE = "aggregator.example.org:8443"
"""The proxy alone knows where that is."""


class ConnectProxy:
    """Opens tunnels to ``upstream`` whatever it is asked for, or answers as told; ``asked`` holds the requests."""

    def __init__(self, upstream: str, answer: bytes = b"HTTP/1.1 200 Connection established\r\n\r\n") -> None:
        self._upstream, self._answer = upstream, answer
        self.asked: list[str] = []

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Address]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        async with server:
            yield Address("127.0.0.1", server.sockets[0].getsockname()[1])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.CancelledError):
            self.asked.append((await reader.readuntil(b"\r\n\r\n")).decode())
            writer.write(self._answer)
            if b" 200 " not in self._answer:
                await (reader.read() if not self._answer else writer.drain())
                writer.close()
                return
            host, _, port = self._upstream.rpartition(":")
            far_reader, far_writer = await asyncio.open_connection(host, int(port))
            await asyncio.gather(self._pass_on(reader, far_writer), self._pass_on(far_reader, writer))

    async def _pass_on(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65536):
                sink.write(data)
        sink.close()


def channel(sites: Sites, proxy: HttpProxy, settings: TransportSettings = CALM, pin: bytes = b"") -> SourceChannel:
    endpoint = Endpoint(ELSEWHERE, "target", pin or sites.target.pin, TARGET, proxy)
    return SourceChannel(endpoint, sites.sources[1], max_vector_bytes=1 << 22, settings=settings)


async def failure(answer: bytes, authorization: Secret | None = None) -> SecureFdaError:
    """What a source says where its proxy answers so."""
    proxy = ConnectProxy("127.0.0.1:1", answer)
    async with proxy.running() as address:
        with pytest.raises(SecureFdaError) as caught:
            await soon(channel(Sites(), HttpProxy(address, authorization), IMPATIENT).open())
    assert len(proxy.asked) == 1
    assert str(address) in str(caught.value)
    return caught.value


@scenario
async def test_a_source_takes_part_through_a_proxy_that_knows_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")  # gRPC would then dial by itself
    sites, vector = Sites(), os.urandom(100_000)
    async with sites.listening() as (server, upstream):
        proxy = ConnectProxy(upstream)
        async with proxy.running() as address:
            source = channel(sites, HttpProxy(address, Secret(b"Basic c2l0ZTp3b3Jk")))
            await soon(source.open())
            await joined(server, 1)
            await server.send([(1, header(vector))])
            assert bytes((await soon(source.receive())).vectors[0]) == vector
            await source.close()
    assert len(proxy.asked) == 2
    for request in proxy.asked:  # the first look, and gRPC's connection
        assert request.startswith(f"CONNECT {ELSEWHERE} HTTP/1.1\r\n")
        assert request.count("Basic c2l0ZTp3b3Jk") == 1


@scenario
async def test_a_proxy_that_leads_elsewhere_is_noticed_by_the_pin() -> None:
    sites = Sites()
    async with sites.listening() as (_, upstream), ConnectProxy(upstream).running() as address:
        with pytest.raises(AuthenticationError, match="not the aggregator of the roster"):
            await soon(channel(sites, HttpProxy(address), pin=sites.sources[2].pin).open())


@scenario
@pytest.mark.parametrize(
    ("authorization", "verdict"), [(None, "asks for credentials"), (Secret(b"Basic eDp5"), "refuses these credentials")]
)
async def test_a_proxy_that_asks_for_other_credentials_ends_the_attempt(
    authorization: Secret | None, verdict: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    error = await failure(b"HTTP/1.1 407 Proxy Authentication Required\r\nX: \x1b[31m\r\n\r\n", authorization)
    assert isinstance(error, ConfigError)
    assert (error.key, error.exit_code) == ("transport.proxy-credentials", ExitCode.CONFIG)
    assert error.why.endswith(f"{verdict} (407)")
    assert "eDp5" not in f"{error} {error.hint} {caplog.text}"


@scenario
async def test_a_proxy_that_allows_no_tunnel_ends_the_attempt() -> None:
    error = await failure(b"HTTP/1.1 403 Forbidden\r\n\r\n")
    assert isinstance(error, ConfigError)
    assert error.why.endswith(f"allows no tunnel to {ELSEWHERE} (403)")
    assert "allow CONNECT" in error.hint


@scenario
@pytest.mark.parametrize(
    ("answer", "what"),
    [
        (b"", "does not answer within 0.3 s"),
        (b"HTTP/1.1 502 Bad Gateway\r\n\r\n", f"cannot reach the aggregator at {ELSEWHERE} (502)"),
        (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", "is no HTTP proxy"),
        (b"HTTP/1.1 abc\r\n\r\n", "is no HTTP proxy"),
        (b"x" * 10_000, "is no HTTP proxy"),
        (b"HTTP/1.1 500", "broke off the connection"),
    ],
    ids=["silent", "502", "ssh", "no status", "endless", "cut"],
)
async def test_what_else_a_proxy_does_is_tried_again_until_the_deadline(answer: bytes, what: str) -> None:
    error = await failure(answer)
    assert type(error) is ConnectionFailed
    assert f"{what}; gave up after 0 s" in str(error)


@scenario
async def test_a_proxy_that_is_not_there_is_a_connection_error() -> None:
    async with ConnectProxy("127.0.0.1:1").running() as address:
        pass
    with pytest.raises(ConnectionFailed, match=f"cannot reach the proxy at {address}: Connection refused"):
        await soon(channel(Sites(), HttpProxy(address), IMPATIENT).open())


def test_credentials_come_from_a_file_and_show_nowhere(tmp_path: Path) -> None:
    file = tmp_path / "proxy.txt"
    section = TransportSection(address="10.0.0.5:9443", proxy="http://proxy.example.org:3128/", proxy_credentials=file)
    kit: object = None  # neither address nor proxy is of the kit
    file.write_text("clinic:open sesame\n")
    file.chmod(0o640)
    with pytest.raises(ConfigError, match="is open to others"):
        Route.of(kit, section)  # type: ignore[arg-type]
    file.chmod(0o600)
    route = Route.of(kit, section)  # type: ignore[arg-type]
    assert (str(route.address), str(route.proxy and route.proxy.address)) == ("10.0.0.5:9443", "proxy.example.org:3128")
    assert route.proxy is not None
    assert route.proxy.authorization is not None
    assert route.proxy.authorization.reveal() == b"Basic Y2xpbmljOm9wZW4gc2VzYW1l"
    assert "sesame" not in repr(route)
    assert "Y2xpb" not in f"{route!r} {section!r}"
    for text in ("clinic", "clinic:open\nsesame", "clinic:\x00"):
        file.write_text(text)
        with pytest.raises(ConfigError, match="proxy-credentials: is not one line user:password") as caught:
            Route.of(kit, section)  # type: ignore[arg-type]
        assert "sesame" not in f"{caught.value} {caught.value.hint}"
