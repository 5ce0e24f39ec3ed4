"""Preflight and the handshake behind it, against real gRPC servers on this machine."""

from __future__ import annotations

import select
import shutil
import socket
import ssl
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest
from federation_builder import NOW as BUILT
from federation_builder import make, reissue
from free_ports import free_port

from securefda.errors import AuthenticationError, CertificateError, ConfigError, ConnectionFailed, DataError, ExitCode
from securefda.site.certificates import identify_peer, parse_certificate
from securefda.site.config import TransportSection
from securefda.site.endpoints import Address
from securefda.site.enrolment import renew_site, revoke_site
from securefda.site.kit import Kit, load_kit
from securefda.site.preflight import Finding, Level, Probes, check_port_free, preflight, shake_hands
from securefda.site.route import Route, unused_proxies

# TLS libraries read the machine's clock, so these federations are valid in real time.
NOW = datetime.now(UTC)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("live") / "fed", now=NOW).root


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("live") / "foreign", now=NOW).root


def who_are_you(kit: Kit) -> grpc.GenericRpcHandler:
    """A method that answers with the site id behind the caller's certificate."""

    def answer(_: bytes, context: grpc.ServicerContext) -> bytes:
        certificate = parse_certificate("peer", context.auth_context()["x509_pem_cert"][0])
        return identify_peer(certificate, kit.roster, NOW).site_id.encode()

    return grpc.method_handlers_generic_handler("test.Who", {"AreYou": grpc.unary_unary_rpc_method_handler(answer)})


@contextmanager
def grpc_server(
    site: Path, *, trusts: Path | None = None, handlers: Callable[[Kit], grpc.GenericRpcHandler] | None = None
) -> Iterator[Address]:
    """A gRPC server with the TLS files of a site; it demands certificates of the CA of ``trusts``."""
    startup = site / "startup"
    pair = ((startup / "tls.key").read_bytes(), (startup / "tls.crt").read_bytes())
    root = ((trusts or site) / "startup/ca.pem").read_bytes()
    server = grpc.server(ThreadPoolExecutor(1))
    if handlers is not None:
        server.add_generic_rpc_handlers((handlers(load_kit(site, NOW)),))
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair], root, require_client_auth=True))
    server.start()
    try:
        yield Address("127.0.0.1", port)
    finally:
        server.stop(None).wait()


@contextmanager
def silent_listener() -> Iterator[Address]:
    """A port that is taken by something that never says a word."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield Address("127.0.0.1", listener.getsockname()[1])


def free_address() -> Address:
    return Address("127.0.0.1", free_port())


def exit_code(findings: tuple[Finding, ...]) -> ExitCode:
    return next((finding.exit_code for finding in findings if finding.level is Level.FAIL), ExitCode.OK)


def check(findings: tuple[Finding, ...], name: str) -> Finding:
    return next(finding for finding in findings if finding.check == name)


def test_grpc_speaks_mutual_tls_with_the_kits_and_the_roster_names_the_caller(live: Path) -> None:
    kit = load_kit(live / "lyon", NOW)
    with grpc_server(live / "geneva", handlers=who_are_you) as address:
        credentials = grpc.ssl_channel_credentials(kit.ca.pem, kit.tls_key_pem.reveal(), kit.certificate_pem)
        with grpc.secure_channel(str(address), credentials) as channel:
            assert channel.unary_unary("/test.Who/AreYou")(b"", timeout=10) == b"lyon"


def test_source_reaches_the_target(live: Path) -> None:
    with grpc_server(live / "geneva") as address:
        line = shake_hands(load_kit(live / "lyon", NOW), NOW, address=address)
    assert line == f"geneva answers at {address} as 127.0.0.1"


def test_aggregator_of_another_federation_is_recognised(live: Path, foreign: Path) -> None:
    with (
        grpc_server(foreign / "geneva") as address,
        pytest.raises(CertificateError, match="not of federation heart-study"),
    ):
        shake_hands(load_kit(live / "lyon", NOW), NOW, address=address)


def test_refusal_of_this_sites_certificate_is_noticed(live: Path, foreign: Path) -> None:
    """In TLS 1.3 the client's handshake ends before the server has judged its certificate."""
    with (
        grpc_server(live / "geneva", trusts=foreign / "geneva") as address,
        pytest.raises(AuthenticationError, match="refuses this site's certificate"),
    ):
        shake_hands(load_kit(live / "lyon", NOW), NOW, address=address)


def test_source_that_poses_as_the_aggregator_is_refused(live: Path) -> None:
    with grpc_server(live / "basel") as address, pytest.raises(CertificateError, match="not that of the target"):
        shake_hands(load_kit(live / "lyon", NOW), NOW, address=address)


def test_server_that_the_roster_calls_a_source_is_refused(live: Path) -> None:
    kit = load_kit(live / "lyon", NOW)
    other_role = {"geneva": "source", "lyon": "target", "basel": "source"}
    entries = tuple(replace(e, role=other_role[e.site_id]) for e in kit.roster.entries)  # type: ignore[arg-type]
    with grpc_server(live / "geneva") as address, pytest.raises(AuthenticationError, match="geneva answers, a source"):
        shake_hands(replace(kit, roster=replace(kit.roster, entries=entries)), NOW, address=address)


def test_target_with_a_key_from_before_its_renewal_is_refused(live: Path, tmp_path: Path) -> None:
    renewed = Path(shutil.copytree(live, tmp_path / "fed"))
    renew_site(renewed, "geneva", now=NOW, names=("127.0.0.1",))
    with grpc_server(live / "geneva") as address, pytest.raises(AuthenticationError, match="not in epoch 2"):
        shake_hands(load_kit(renewed / "lyon", NOW), NOW, address=address)


def test_wrong_server_name_is_recognised(live: Path) -> None:
    kit = load_kit(live / "lyon", NOW)
    for name in ("aggregator.example.org", "127.0.0.2"):
        moved = replace(kit, endpoints=replace(kit.endpoints, server_name=name))
        with grpc_server(live / "geneva") as address, pytest.raises(CertificateError, match=f"carry the name {name}"):
            shake_hands(moved, NOW, address=address)


@pytest.mark.parametrize(("made", "why"), [(timedelta(days=-400), "expired"), (timedelta(days=400), "not yet valid")])
def test_aggregator_outside_its_validity_is_recognised(tmp_path: Path, made: timedelta, why: str) -> None:
    root = make(tmp_path / "fed", now=NOW - timedelta(days=500)).root
    renew_site(root, "geneva", now=NOW + made, names=("127.0.0.1",), validity=timedelta(days=1))
    with grpc_server(root / "geneva") as address, pytest.raises(CertificateError, match=f"its certificate is {why}"):
        shake_hands(load_kit(root / "lyon", NOW), NOW, address=address)


def test_aggregator_that_is_not_there_is_a_connection_error(live: Path) -> None:
    with pytest.raises(ConnectionFailed, match="no aggregator answers") as caught:
        shake_hands(load_kit(live / "lyon", NOW), NOW, address=free_address())
    assert caught.value.exit_code == ExitCode.CONNECTION
    with pytest.raises(ConnectionFailed, match="no aggregator answers"):
        shake_hands(load_kit(live / "lyon", NOW), NOW, address=Address("does-not-exist.invalid", 1))


def test_something_else_at_the_address_is_a_connection_error(live: Path) -> None:
    kit = load_kit(live / "lyon", NOW)
    with silent_listener() as address, pytest.raises(ConnectionFailed, match="timed out"):
        shake_hands(kit, NOW, address=address, timeout_s=0.2)
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with pytest.raises(ConnectionFailed, match=r"not in TLS 1\.3"):
            shake_hands(kit, NOW, address=Address("127.0.0.1", port))
    finally:
        server.stop(None).wait()


def test_aggregator_that_offers_only_tls_1_2_is_refused(live: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(live / "geneva/startup/tls.crt", live / "geneva/startup/tls.key")

    def serve_one(listener: socket.socket) -> None:
        with listener.accept()[0] as plain, suppress(OSError), context.wrap_socket(plain, server_side=True) as channel:
            channel.sendall(b"welcome")

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        served = pool.submit(serve_one, listener)
        address = Address("127.0.0.1", listener.getsockname()[1])
        with pytest.raises(ConnectionFailed, match=r"not in TLS 1\.3"):
            shake_hands(load_kit(live / "lyon", NOW), NOW, address=address)
        served.result(timeout=10)


def test_port_with_a_lingering_old_connection_is_free() -> None:
    """The side that closes first leaves TIME_WAIT behind: here the server's."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = Address("127.0.0.1", listener.getsockname()[1])
        with socket.create_connection((address.host, address.port)) as client:
            listener.accept()[0].close()
            assert client.recv(1) == b""
    with socket.socket() as strict, pytest.raises(OSError, match="in use"):
        strict.bind((address.host, address.port))  # the companion: without care it looks taken
    assert check_port_free(address) == f"{address} is free"


def test_taken_port_is_recognised_and_a_free_one_stays_free() -> None:
    with silent_listener() as address, pytest.raises(ConfigError, match="the port is taken"):
        check_port_free(address)
    address = free_address()
    assert check_port_free(address) == check_port_free(address) == f"{address} is free"


def test_address_of_another_machine_cannot_be_listened_at() -> None:
    with pytest.raises(ConfigError, match="cannot listen there"):
        check_port_free(Address("192.0.2.1", 8443))


def test_sound_source_passes_every_check(live: Path) -> None:
    probes = Probes(policy=lambda: "policy reads", device=lambda: "cpu", data=lambda: "500 rows")
    with grpc_server(live / "geneva") as address:
        findings = preflight(live / "lyon", NOW, expected_site="lyon", address=address, probes=probes, min_free_bytes=1)
    names = ["kit", "certificate", "aggregator", "disk", "policy", "device", "data"]
    assert [(f.check, f.level) for f in findings] == [(name, Level.OK) for name in names]
    assert exit_code(findings) == ExitCode.OK


def test_a_note_of_a_check_that_passes_is_a_warning_of_its_own(live: Path) -> None:
    probes = Probes(data=lambda: ["500 rows", "3 features are far from 0", "2 rows of a class"])
    findings = preflight(live / "geneva", NOW, address=free_address(), probes=probes, min_free_bytes=1)
    said = [(one.level, one.message) for one in findings if one.check == "data"]
    assert said == [
        (Level.OK, "500 rows"),
        (Level.WARN, "3 features are far from 0"),
        (Level.WARN, "2 rows of a class"),
    ]
    assert exit_code(findings) == ExitCode.OK


def test_sound_target_passes_with_its_port_free(live: Path) -> None:
    findings = preflight(live / "geneva", NOW, address=free_address(), min_free_bytes=1)
    assert [(f.check, f.level) for f in findings] == [
        (name, Level.OK) for name in ("kit", "certificate", "port", "disk")
    ]


def test_unsound_kit_fails_alone_and_the_other_checks_still_run(live: Path) -> None:
    findings = preflight(
        live / "basel", NOW, expected_site="lyon", probes=Probes(device=lambda: "cpu"), min_free_bytes=1
    )
    assert [(f.check, f.level) for f in findings] == [
        ("kit", Level.FAIL),
        ("disk", Level.OK),
        ("device", Level.OK),
    ]
    assert exit_code(findings) == ExitCode.CONFIG
    assert check(findings, "kit").hint


@pytest.mark.parametrize("shift", [timedelta(days=-1), timedelta(days=1000)])
def test_wrong_clock_fails_with_the_certificate_exit_code(live: Path, shift: timedelta) -> None:
    findings = preflight(live / "lyon", NOW + shift)
    assert exit_code(findings) == ExitCode.CERTIFICATE
    assert "clock" in check(findings, "kit").hint


def test_what_the_kit_keeps_from_being_checked_is_said_once(live: Path) -> None:
    late = NOW + timedelta(days=1000)

    def needs_the_kit() -> str:
        return load_kit(live / "lyon", late).site_id

    def own_fault() -> str:
        raise ConfigError("training.device", "no cuda here")

    findings = preflight(live / "lyon", late, probes=Probes(policy=needs_the_kit, device=own_fault), min_free_bytes=1)
    assert [(finding.check, finding.level) for finding in findings] == [
        ("kit", Level.FAIL),
        ("disk", Level.OK),
        ("device", Level.FAIL),
    ]


@contextmanager
def tunnel_to(address: Address) -> Iterator[Address]:
    """An HTTP proxy that opens one tunnel, to this address whatever it is asked for."""

    def serve() -> None:
        with listener.accept()[0] as near, socket.create_connection((address.host, address.port)) as far:
            while b"\r\n\r\n" not in near.recv(4096):
                pass
            near.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            ways = {near: far, far: near}
            while ready := select.select(list(ways), [], [], 10)[0]:
                for one in ready:
                    if not (data := one.recv(65536)):
                        return
                    ways[one].sendall(data)

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        served = pool.submit(serve)
        yield Address("127.0.0.1", listener.getsockname()[1])
        served.result(20)


def test_source_behind_a_proxy_and_another_route_is_checked_as_it_will_dial(live: Path, tmp_path: Path) -> None:
    kit = Path(shutil.copytree(live / "lyon", tmp_path / "lyon"))
    with grpc_server(live / "geneva") as address, tunnel_to(address) as proxy:
        transport = TransportSection(address="clinic.internal:9", proxy=f"http://{proxy}")
        route = Route.of(load_kit(kit, NOW), transport)
        probes = Probes(route=lambda: route, unused_proxies=("HTTPS_PROXY",))
        findings = preflight(kit, NOW, probes=probes, min_free_bytes=1)
    line = f"geneva answers at clinic.internal:9 as 127.0.0.1, through the proxy at {proxy}"
    assert check(findings, "aggregator") == Finding("aggregator", Level.OK, line)
    assert not [one for one in findings if one.check == "proxy"]


def test_proxy_of_the_environment_that_is_not_used_is_named_without_its_value(live: Path) -> None:
    environment = {
        "HTTPS_PROXY": "http://me:secret@proxy:3128",
        "grpc_proxy": "proxy:1",
        "no_proxy": "x",
        "http_proxy": "",
    }
    probes = Probes(unused_proxies=unused_proxies(environment))
    (warning,) = (one for one in preflight(live / "lyon", NOW, offline=True, probes=probes) if one.check == "proxy")
    assert (warning.level, warning.message) == (Level.WARN, "HTTPS_PROXY, grpc_proxy in the environment: not used")
    assert "transport.proxy" in warning.hint
    assert "secret" not in str(warning)
    at_target = preflight(live / "geneva", NOW, address=free_address(), probes=probes, min_free_bytes=1)
    assert not [one for one in at_target if one.check == "proxy"]


@pytest.mark.parametrize(("days", "level"), [(794, Level.OK), (796, Level.WARN)])
def test_certificate_that_ends_within_thirty_days_is_a_warning(live: Path, days: int, level: Level) -> None:
    findings = preflight(live / "geneva", NOW + timedelta(days=days), address=free_address(), min_free_bytes=1)
    assert check(findings, "certificate").level is level
    assert exit_code(findings) == ExitCode.OK


def test_roster_without_the_sites_ml_dsa_key_is_a_warning(tmp_path: Path) -> None:
    root = make(tmp_path / "fed").root
    kit = load_kit(root / "lyon", BUILT)
    assert [one.level for one in preflight(root / "lyon", BUILT, offline=True) if one.check == "kit"] == [Level.OK]
    entries = tuple(replace(one, ml_dsa_key=b"") if one == kit.entry else one for one in kit.roster.entries)
    reissue(root, "lyon", replace(kit.roster, entries=entries), kit.endpoints)

    sound, warning = (one for one in preflight(root / "lyon", BUILT, offline=True) if one.check == "kit")

    assert (sound.level, warning.level) == (Level.OK, Level.WARN)
    assert warning.message.startswith("the roster has no ML-DSA key of lyon")
    assert "securefda federation renew" in warning.hint


def test_failed_probe_carries_its_own_hint_and_exit_code(live: Path) -> None:
    def no_data() -> str:
        raise DataError("train.csv", "is missing", hint="put it into data/")

    findings = preflight(live / "geneva", NOW, address=free_address(), probes=Probes(data=no_data), min_free_bytes=1)
    assert check(findings, "data") == Finding(
        "data", Level.FAIL, "train.csv: is missing", "put it into data/", ExitCode.CONFIG
    )


def test_full_disk_and_missing_local_folder_fail(live: Path, tmp_path: Path) -> None:
    findings = preflight(live / "geneva", NOW, address=free_address(), min_free_bytes=1 << 60)
    assert "needed" in check(findings, "disk").message
    assert check(findings, "disk").level is Level.FAIL
    site = Path(shutil.copytree(live / "geneva", tmp_path / "geneva"))
    shutil.rmtree(site / "local")
    assert "cannot be written" in check(preflight(site, NOW, address=free_address()), "disk").message


def test_revoked_site_hears_it_from_its_new_kits_peers(live: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(live, tmp_path / "fed"))
    revoked = load_kit(root / "lyon", NOW)
    revoke_site(root, "lyon")
    with grpc_server(root / "geneva", handlers=who_are_you) as address:
        credentials = grpc.ssl_channel_credentials(
            revoked.ca.pem, revoked.tls_key_pem.reveal(), revoked.certificate_pem
        )
        with (
            grpc.secure_channel(str(address), credentials) as channel,
            pytest.raises(grpc.RpcError, match="not in epoch 2"),
        ):
            channel.unary_unary("/test.Who/AreYou")(b"", timeout=10)
