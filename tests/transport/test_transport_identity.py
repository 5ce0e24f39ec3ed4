"""Who may talk to whom: certificates, pins, TLS versions, and what a user reads when it does not work."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import os
import socket
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import grpc
import pytest
from transport_kit import (
    CALM,
    FAST,
    RUN_ID,
    TARGET,
    Authority,
    Proxy,
    Sites,
    joined,
    meeting,
    message,
    next_event,
    note,
    number_of,
    scenario,
    soon,
)

from securefda.errors import (
    AuthenticationError,
    CertificateError,
    ConfigError,
    ConnectionFailed,
    ExitCode,
    FaultyAggregatorError,
)
from securefda.protocol.messages import Refusal
from securefda.transport.client import LostConnection, SourceChannel
from securefda.transport.dialer import Endpoint
from securefda.transport.event_queue import Misbehaved, Received
from securefda.transport.limits import TransportSettings
from securefda.transport.tls import Credentials, channel_credentials, plain_reason

IMPATIENT = TransportSettings(heartbeat_s=1.0, reconnect_deadline_s=0.0)


def _offer_tls_1_2(imported_first: str) -> dict[str, str | None]:
    """What comes of a caller with a good certificate and TLS 1.2; see ``tls12_peer.py``."""
    program = Path(__file__).with_name("tls12_peer.py")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("GRPC_SSL_CIPHER_SUITES", None)
    done = subprocess.run(
        [sys.executable, str(program), imported_first],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return json.loads(done.stdout)


def test_a_tls_1_2_handshake_is_refused() -> None:
    assert _offer_tls_1_2("securefda") == {"handshake": "refused", "misbehaviour": None}


def test_a_tls_1_2_call_is_refused_even_where_grpc_was_configured_by_somebody_else() -> None:
    assert _offer_tls_1_2("grpc") == {"handshake": "TLSv1.2", "misbehaviour": "TLS_VERSION"}


@scenario
async def test_a_peer_without_a_certificate_gets_no_call() -> None:
    sites = Sites()
    async with sites.listening() as (server, address):
        options = [("grpc.ssl_target_name_override", "target")]
        credentials = grpc.ssl_channel_credentials(sites.target.ca)
        async with grpc.aio.secure_channel(address, credentials, options) as channel:
            call = channel.unary_stream("/securefda.v1.FederationService/Download")(b"")
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await soon(call.read())
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert server.connected() == set()


@scenario
async def test_a_certificate_of_the_federation_that_is_not_in_the_roster_is_refused_and_reported() -> None:
    sites = Sites()
    stranger = sites.authority.issue("source-1")  # right CA, right name, another key
    async with sites.listening() as (server, address):
        channel = sites.channel(1, address, credentials=stranger)
        with pytest.raises(AuthenticationError, match=stranger.pin.hex()[:16]) as caught:
            await soon(channel.open())
        assert caught.value.exit_code == ExitCode.PEER
        event = await next_event(server, Misbehaved)
        assert (event.index, event.check) == (None, "ROSTER_PIN")
        assert server.connected() == set()


@scenario
async def test_a_source_that_signs_as_another_is_refused_and_reported() -> None:
    sites = Sites()
    async with (
        sites.listening(FAST) as (server, address),
        sites.connected(1, address, FAST) as spoofer,
        sites.connected(2, address, FAST) as honest,
    ):
        for _ in range(2):
            await soon(server.receive())
        await spoofer.send(note(2, 666))
        event = await next_event(server, Misbehaved)
        assert (event.index, event.check) == (1, "SENDER")
        with pytest.raises(AuthenticationError, match="site 1 sends a message of site 2"):
            await soon(spoofer.receive())
        await honest.send(note(2, 1))
        while not isinstance(event := await soon(server.receive()), Received):
            pass  # site 1 has left meanwhile
        assert (event.index, number_of(event.parcel)) == (2, 1)


@scenario
async def test_a_source_refuses_a_message_that_the_aggregator_did_not_send() -> None:
    async with meeting() as (server, channel):
        await server.send([(1, message(2, Refusal("relayed-without-its-envelope")))])
        with pytest.raises(FaultyAggregatorError) as caught:
            await soon(channel.receive())
        assert caught.value.check == "SENDER"


@scenario
async def test_an_aggregator_of_another_federation_is_refused_with_a_hint() -> None:
    sites, others = Sites(), Sites()
    async with others.listening() as (server, address):
        with pytest.raises(CertificateError, match="was not issued by this federation's CA") as caught:
            await soon(sites.channel(1, address).open())
        assert caught.value.exit_code == ExitCode.CERTIFICATE
        assert "startup kits of the same federation" in caught.value.hint
        assert server.connected() == set()


@scenario
async def test_a_source_of_another_federation_is_refused_by_the_aggregator() -> None:
    sites = Sites()
    foreign = Authority("another federation").issue("source-1")
    mixed = Credentials(sites.authority.certificate, foreign.certificate, foreign.private_key)
    async with sites.listening() as (server, address):
        with pytest.raises(CertificateError, match="not issued by the CA of its federation"):
            await soon(sites.channel(1, address, credentials=mixed).open())
        assert server.connected() == set()


def trusting_another_ca(sites: Sites) -> Sites:
    """An aggregator that shows the right certificate and accepts no caller's."""
    others = Authority("another federation")
    listener = Sites()
    listener.target = Credentials(others.certificate, sites.target.certificate, sites.target.private_key)
    return listener


@scenario
async def test_a_valid_certificate_that_only_the_aggregator_refuses_ends_as_an_authentication_error() -> None:
    sites = Sites()
    async with trusting_another_ca(sites).listening() as (_, address):
        with pytest.raises(AuthenticationError, match="does not accept this site's certificate"):
            await soon(sites.channel(1, address).open())


@scenario
async def test_a_single_handshake_that_is_broken_off_may_be_a_refusal_or_not() -> None:
    sites = Sites()
    async with trusting_another_ca(sites).listening() as (_, address):
        with pytest.raises(ConnectionFailed, match="before its welcome; gave up after 0 s") as caught:
            await soon(sites.channel(1, address, IMPATIENT).open())
    assert type(caught.value) is ConnectionFailed
    assert "either it is too busy" in caught.value.hint
    assert "does not accept this site's certificate" in caught.value.hint


@scenario
@pytest.mark.parametrize(
    ("starts", "lasts", "text"),
    [
        (timedelta(days=-9), timedelta(days=8), "has expired"),
        (timedelta(days=1), timedelta(days=8), "is not valid yet"),
    ],
)
async def test_a_certificate_out_of_its_time_is_named_at_either_end(starts, lasts, text: str) -> None:
    sites = Sites()
    late = sites.authority.issue("source-1", starts=starts, lasts=lasts)
    async with sites.listening() as (_, address):
        with pytest.raises(CertificateError, match=f"this site {text}"):
            await soon(sites.channel(1, address, credentials=late).open())
    sites.target = sites.authority.issue("target", starts=starts, lasts=lasts)
    async with sites.listening() as (_, address):
        with pytest.raises(CertificateError, match=f"the aggregator at {address} {text}"):
            await soon(sites.channel(1, address).open())


@scenario
async def test_a_wrong_name_is_named() -> None:
    sites = Sites()
    async with sites.listening() as (_, address):
        with pytest.raises(CertificateError, match=r"does not carry the name hospital\.example"):
            await soon(sites.channel(1, address, server_name="hospital.example").open())


@scenario
async def test_another_site_of_the_federation_cannot_play_the_aggregator() -> None:
    sites = Sites()
    genuine = sites.target.pin
    sites.target = sites.authority.issue("target")  # a second certificate with the same name, from the same CA
    async with sites.listening() as (_, address):
        with pytest.raises(AuthenticationError, match="is not the aggregator of the roster"):
            await soon(sites.channel(1, address, pin=genuine).open())


@scenario
async def test_the_channel_itself_accepts_no_certificate_but_the_pinned_one() -> None:
    sites = Sites()
    other = sites.authority.issue("target")
    async with sites.listening() as (_, address):
        for pinned, succeeds in ((sites.target, True), (other, False)):
            credentials = channel_credentials(sites.sources[1], pinned.certificate)
            options = [("grpc.ssl_target_name_override", "target"), ("grpc.use_local_subchannel_pool", 1)]
            async with grpc.aio.secure_channel(address, credentials, options) as channel:
                outcome = contextlib.nullcontext() if succeeds else pytest.raises(TimeoutError)
                with outcome:
                    async with asyncio.timeout(20 if succeeds else 1):
                        await channel.channel_ready()


@scenario
async def test_an_aggregator_that_is_not_there_is_a_connection_error_after_the_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    with pytest.raises(ConnectionFailed, match=f"cannot reach the aggregator at {address}") as caught:
        await soon(Sites().channel(1, address, IMPATIENT).open())
    assert caught.value.exit_code == ExitCode.CONNECTION


@scenario
async def test_something_that_does_not_speak_tls_is_a_connection_error() -> None:
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(plain, "127.0.0.1", 0)
    async with server:
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(ConnectionFailed, match=r"does not speak TLS 1\.3"):
            await soon(Sites().channel(1, address, IMPATIENT).open())


@scenario
async def test_a_source_may_start_before_its_aggregator() -> None:
    sites = Sites()
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    channel = sites.channel(1, address)
    opening = asyncio.create_task(channel.open())
    await asyncio.sleep(0)
    async with sites.listening(listen=address) as (server, _):
        await soon(opening)
        await joined(server, 1)
        await channel.close()


@scenario
async def test_a_source_hears_why_there_is_no_connection_and_that_it_is_back() -> None:
    heard: list[LostConnection | None] = []
    sites = Sites()
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    news = asyncio.Event()

    def hear(trouble: LostConnection | None) -> None:
        heard.append(trouble)
        news.set()

    async def until_trouble_is(there: bool) -> None:
        while not heard or (heard[-1] is not None) is not there:
            news.clear()
            await news.wait()

    channel = sites.channel(1, address, FAST, on_lost=hear)
    opening = asyncio.create_task(channel.open())
    await soon(until_trouble_is(True))
    async with sites.listening(FAST, address):
        await soon(opening)
        assert heard[0] is not None
        assert heard[0].what == f"cannot reach {address}: connection refused"
        assert 0 < heard[0].left_s <= FAST.reconnect_deadline_s
        assert heard[-1] is None
    await soon(until_trouble_is(True))
    assert heard[-1] is not None
    assert address in heard[-1].what
    await channel.close(0.0)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed ('10.0.0.1', 8443)"), "connection refused"),
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "name not found"),
        (OSError(errno.EHOSTUNREACH, "Connect call failed"), "no route to it"),
        (OSError(errno.ENETUNREACH, "Network is unreachable"), "no route to it"),
        (TimeoutError(), "timed out: no answer within 15 s"),
        (ConnectionResetError(), "the connection was broken off"),
        (TimeoutError(errno.ETIMEDOUT, "Connect call failed"), "timed out"),
        (
            OSError(f"Multiple exceptions: [Errno {errno.ECONNREFUSED}] Connect, [Errno {errno.EHOSTUNREACH}] Connect"),
            "connection refused and no route to it",
        ),
        (PermissionError(errno.EPERM, "Operation not permitted"), "operation not permitted"),
    ],
    ids=["refused", "name", "host", "network", "no answer", "hung up", "timed out", "several", "other"],
)
def test_why_there_is_no_connection_is_said_in_plain_words(error: OSError, reason: str) -> None:
    assert plain_reason(error, 15.0) == reason


@scenario
async def test_a_taken_port_names_the_setting() -> None:
    sites = Sites()
    async with sites.listening() as (_, address):
        with pytest.raises(ConfigError, match=rf"transport\.listen: cannot listen on {address}") as caught:
            await sites.server(listen=address).start()
        assert caught.value.exit_code == ExitCode.CONFIG


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.1:", ":80", "host:http", "host:70000"])
def test_a_malformed_address_names_the_setting(address: str) -> None:
    with pytest.raises(ConfigError, match=r"transport\.listen"):
        asyncio.run(Sites().server(listen=address).start())


def test_a_key_that_does_not_belong_to_the_certificate_is_refused() -> None:
    sites = Sites()
    with pytest.raises(CertificateError, match="does not belong"):
        Credentials(sites.target.ca, sites.target.certificate, sites.sources[1].private_key)
    with pytest.raises(CertificateError, match="no valid PEM"):
        Credentials(sites.target.ca, b"-----", sites.target.private_key)


@scenario
async def test_no_key_shows_in_a_repr_a_log_or_an_error(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    sites = Sites()
    secret = sites.sources[1].private_key.decode().splitlines()[1]
    async with sites.listening() as (server, address):
        channel: SourceChannel = sites.channel(1, address, pin=b"\1" * 32)
        with pytest.raises(AuthenticationError) as caught:
            await soon(channel.open())
        shown = f"{sites.sources[1]!r} {channel!r} {channel._dialer!r} {server!r} {caught.value!r} {caplog.text}"
    assert "<redacted>" in shown
    assert secret not in shown


@scenario
async def test_a_second_process_with_the_same_kit_ends_the_first_with_a_hint() -> None:
    sites = Sites()
    async with sites.listening(CALM) as (server, address):
        first = sites.channel(1, address)
        await first.open()
        join = await joined(server, 1)
        async with sites.connected(1, address) as second:
            second_join = await joined(server, 1)
            assert join.instance_id != second_join.instance_id
            assert not second_join.resumed
            with pytest.raises(AuthenticationError, match="another process of this site") as caught:
                await soon(first.receive())
            assert "one source process" in caught.value.hint
            await server.send([(1, note(TARGET, 1))])
            assert number_of(await soon(second.receive())) == 1
        await first.close()


@scenario
async def test_an_endpoint_by_name_is_checked_against_the_server_name_not_the_address() -> None:
    sites = Sites()
    async with sites.listening() as (server, address):
        endpoint = Endpoint(address.replace("127.0.0.1", "localhost"), "target", sites.target.pin, TARGET)
        channel = SourceChannel(endpoint, sites.sources[1], max_vector_bytes=1)
        await soon(channel.open())
        await joined(server, 1)
        await channel.close()


@scenario
async def test_a_source_hears_of_the_run_before_anything_else() -> None:
    sites = Sites()
    async with sites.listening() as (_, address), sites.connected(1, address) as channel:
        assert channel.run_id == RUN_ID


@scenario
@pytest.mark.parametrize("run_id", [b"", bytes(15), bytes(17)])
async def test_a_source_takes_no_welcome_that_names_no_run(run_id: bytes) -> None:
    sites = Sites()
    async with sites.listening() as (server, address):
        server._table.run_id = run_id
        channel = sites.channel(1, address)
        with pytest.raises(FaultyAggregatorError, match="does not name a run") as caught:
            await soon(channel.open())
        assert caught.value.check == "WIRE"
        await channel.close(0.0)


@scenario
async def test_a_process_of_the_aggregator_stays_with_one_run() -> None:
    sites = Sites()
    async with sites.listening(FAST) as (server, address):
        proxy = Proxy(address)
        async with proxy.running() as through:
            channel = sites.channel(1, through, FAST)
            await channel.open()
            server._table.run_id = bytes(16)
            proxy.cut()
            with pytest.raises(FaultyAggregatorError, match="names another run"):
                await soon(channel.receive())
            await channel.close(0.0)
