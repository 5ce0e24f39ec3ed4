"""Checks of a site before a run: its kit, files, machine and network.

One TLS handshake tells whether an aggregator is at the address, whether it is ours, and whether it admits this site.
"""

from __future__ import annotations

import errno
import os
import shutil
import socket
import ssl
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import partial
from pathlib import Path

from cryptography import x509

from securefda.errors import (
    AuthenticationError,
    CertificateError,
    ConfigError,
    ConfigErrors,
    ConnectionFailed,
    ExitCode,
    SecureFdaError,
)
from securefda.protocol.header import KEY_AGREEMENTS
from securefda.protocol.hybrid import require_available
from securefda.protocol.messages import Visibility
from securefda.protocol.roster import Role
from securefda.site.asks import summarise_requests
from securefda.site.certificates import RENEW, identify_peer, validity
from securefda.site.config import AggregatorConfig, SourceConfig, load_aggregator, load_source
from securefda.site.config.load import load_settings, model_of
from securefda.site.endpoints import Address
from securefda.site.kit import (
    LOCAL,
    SETTINGS_FILE,
    STARTUP,
    Kit,
    PolicyFile,
    load_kit,
    naming,
)
from securefda.site.left import require_still_member
from securefda.site.policy import check_day, check_task, check_training, load_signed_policy, require_satisfiable
from securefda.site.policy.verdict import plan_levels
from securefda.site.route import HttpProxy, Route, open_tunnel, unused_proxies
from securefda.text import names, quoted

Config = AggregatorConfig | SourceConfig
"""Settings of a site's process."""


# OpenSSL's X509_V_ERR_* codes, as ssl.SSLCertVerificationError.verify_code carries them.
_NOT_YET_VALID, _EXPIRED = 9, 10
_WRONG_PURPOSE = 26
_WRONG_NAME = (62, 64)
_SERVER_ALPN = ["h2"]  # gRPC speaks HTTP/2 and hangs up on anything else


def shake_hands(
    kit: Kit, now: datetime, *, address: Address | None = None, proxy: HttpProxy | None = None, timeout_s: float = 5.0
) -> str:
    """Connect to the aggregator as this site would, and hang up.

    Args:
        kit: this site's verified kit.
        now: current time, with a time zone.
        address: where to look instead of the kit's own address.
        proxy: through which to look; None to connect directly.
        timeout_s: limit in seconds for the connection and for each answer.

    Returns:
        One line that says what was reached.

    Raises:
        ConfigError: the proxy refuses this site.
        ConnectionFailed: nothing answers there, or not in TLS 1.3.
        CertificateError: what answers is of another federation, expired, or has another name.
        AuthenticationError: it is a site of ours but not the target, or it refuses this site's certificate.
    """
    address = address or kit.endpoints.aggregator
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols(_SERVER_ALPN)
    context.load_verify_locations(cadata=kit.ca.pem.decode("ascii"))
    with _chain_file(kit) as file:
        context.load_cert_chain(file)
    try:
        with (
            _connected(address, proxy, timeout_s) as plain,
            context.wrap_socket(plain, server_hostname=kit.endpoints.server_name) as channel,
        ):
            peer = channel.getpeercert(binary_form=True) or b""
            entry = identify_peer(x509.load_der_x509_certificate(peer), kit.roster, now)
            if entry.role != "target":
                raise AuthenticationError(f"{entry.site_id} answers, a source, where the aggregator should be")
            _wait_for_welcome(channel, address)
    except ssl.SSLCertVerificationError as error:
        raise _verification_error(kit, address, error) from error
    except ssl.SSLError as error:
        raise ConnectionFailed(
            f"{address}: answers, but not in TLS 1.3 ({error.reason or 'handshake failed'})",
            hint="check that the aggregator of this federation listens at this address",
        ) from error
    except OSError as error:
        raise ConnectionFailed(
            f"{address}: no aggregator answers ({error.strerror or error})",
            hint="start the aggregator, or check address, name resolution and firewall",
        ) from error
    through = "" if proxy is None else f", through the proxy at {proxy.address}"
    return f"{kit.roster.target.site_id} answers at {address} as {kit.endpoints.server_name}{through}"


def _connected(address: Address, proxy: HttpProxy | None, timeout_s: float) -> socket.socket:
    if proxy is None:
        return socket.create_connection((address.host, address.port), timeout=timeout_s)
    tunnel = open_tunnel(proxy, str(address), timeout_s)
    tunnel.settimeout(timeout_s)
    return tunnel


@contextmanager
def _chain_file(kit: Kit) -> Iterator[str]:
    """Yield a file with certificate and key, since OpenSSL reads them from files alone; kept in memory if possible."""
    chain = kit.certificate_pem + kit.tls_key_pem.reveal()
    if hasattr(os, "memfd_create"):
        with os.fdopen(os.memfd_create("tls"), "wb") as file:
            file.write(chain)
            file.flush()
            yield f"/proc/self/fd/{file.fileno()}"
    else:
        with tempfile.NamedTemporaryFile() as file:  # of mode 0600
            file.write(chain)
            file.flush()
            yield file.name


def check_port_free(address: Address) -> str:
    """Check that this machine could listen at ``address``, by doing so for a moment.

    Returns:
        One line that says so.

    Raises:
        ConfigError: the port is taken, needs privileges, or the host is not one of this machine's.
    """
    try:
        family, kind, _, _, place = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as listener:
            # As servers do: connections that linger in TIME_WAIT do not make the port taken.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(place)
            listener.listen()
    except OSError as error:
        why, hint = f"cannot listen there ({error.strerror or error})", "name an address of this machine to listen at"
        if error.errno == errno.EADDRINUSE:
            why, hint = "the port is taken", "stop what listens there, or choose another port"
        elif error.errno == errno.EACCES:
            why, hint = "the port needs privileges", "choose a port above 1023"
        raise ConfigError(f"address {address}", why, hint=hint) from error
    return f"{address} is free"


def _wait_for_welcome(channel: ssl.SSLSocket, address: Address) -> None:
    """Wait for the server's verdict: in TLS 1.3 it judges the client's certificate after the client's handshake."""
    refusal = AuthenticationError(
        f"{address}: the aggregator refuses this site's certificate",
        hint="the site may have been revoked or re-enrolled: fetch the startup kit again",
    )
    try:
        first = channel.recv(1)
    except TimeoutError:
        return  # a server that waits for us to speak has not refused us
    except (ssl.SSLError, ConnectionError) as error:
        raise refusal from error
    if not first:
        raise refusal


def _verification_error(kit: Kit, address: Address, error: ssl.SSLCertVerificationError) -> SecureFdaError:
    if error.verify_code in _WRONG_NAME:
        return CertificateError(
            f"{address}: its certificate does not carry the name {kit.endpoints.server_name}",
            hint="ask for a startup kit with the aggregator's name, or for an aggregator certificate that carries it",
        )
    if error.verify_code in (_NOT_YET_VALID, _EXPIRED):
        return CertificateError(
            f"{address}: its certificate is {'expired' if error.verify_code == _EXPIRED else 'not yet valid'}",
            hint="check this machine's clock; if it is right, the target's is to be renewed, with securefda site renew",
        )
    if error.verify_code == _WRONG_PURPOSE:
        return CertificateError(
            f"{address}: its certificate is not that of the target",
            hint="check the address, and that the aggregator uses the target's startup kit",
        )
    return CertificateError(
        f"{address}: its certificate is not of federation {kit.federation_id} ({error.verify_message})",
        hint="check the address, and that both sides have startup kits of the same federation",
    )


Probe = Callable[[], str | Sequence[str]]
"""A check: returns one line that says what is fine, before notes to be read if there are any; or raises SecureFdaError
with a hint at the fix."""

MIN_FREE_BYTES = 1 << 30


class Level(StrEnum):
    """The result of a check."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one check.

    Attributes:
        check: stable name, for example ``"certificate"``.
        message: one line, what is fine or what is wrong.
        hint: one line, how to put it right; ``""`` where there is nothing to do.
        exit_code: what a run would end with; ``OK`` unless the level is ``FAIL``.
    """

    check: str
    level: Level
    message: str
    hint: str = ""
    exit_code: ExitCode = ExitCode.OK


@dataclass(frozen=True, slots=True)
class Probes:
    """Checks that need more than this package knows; None leaves one out.

    Attributes:
        settings: can ``local/settings.toml`` be used.
        listen: where the target's process would bind; None for any free port, or where settings do not say. It raises
            where they are wrong.
        out: the run folder, likewise.
        route: how a source's process would dial; None: the kit's address, directly.
        unused_proxies: variables of the environment that set a proxy for other programs.
        policy: is ``local/policy.toml`` signed, and can this federation meet it; of a target, what it asks for.
        key_agreement: can this machine do what the policy allows or the target asks for; has it ML-KEM-768.
        device: which device would train.
        data: is the task's data there and sound, and does one batch pass through model, loss and metrics.
    """

    settings: Probe | None = None
    listen: Callable[[], Address | None] = lambda: None
    out: Callable[[], Path | None] = lambda: None
    route: Callable[[], Route | None] = lambda: None
    unused_proxies: Sequence[str] = ()
    policy: Probe | None = None
    key_agreement: Probe | None = None
    device: Probe | None = None
    data: Probe | None = None


_NO_PROBES = Probes()


def preflight(
    path: Path,
    now: datetime,
    *,
    expected_site: str | None = None,
    expected_role: Role | None = None,
    address: Address | None = None,
    offline: bool = False,
    probes: Probes = _NO_PROBES,
    min_free_bytes: int = MIN_FREE_BYTES,
    timeout_s: float = 5.0,
) -> tuple[Finding, ...]:
    """Check a site's kit, network, disk, policy, key agreement, device and data; change nothing.

    One check's failure does not keep the others from running, except those that need a sound kit.

    Args:
        path: the kit's folder.
        now: this machine's clock, with a time zone.
        expected_site: the site that this kit should be of.
        expected_role: the role that this kit should have.
        address: where the target will listen, or where a source should look; default: as settings and kit say.
        offline: leave the network alone: a source does not look for the aggregator.
        probes: checks of settings, policy, key agreement, device and data.
        min_free_bytes: free disk space below which the check fails.
        timeout_s: for reaching the aggregator, in seconds.

    Returns:
        At least one finding per check, in the order in which they matter; one for each of several errors.
    """
    findings: list[Finding] = []

    def run(check: str, probe: Probe) -> None:
        known = {finding.message for finding in findings if finding.level is Level.FAIL}
        findings.extend(finding for finding in _run(check, probe) if finding.message not in known)  # said once

    try:
        kit = load_kit(path, now, expected_site=expected_site, expected_role=expected_role)
        require_still_member(kit.roster.by_id(kit.site_id))
    except SecureFdaError as error:
        findings += _failed("kit", error)
        if not (path / STARTUP).is_dir():
            return tuple(findings)  # it is no kit, and there is nothing else to look at
        if probes.settings is not None:
            run("settings", probes.settings)
    else:
        roster = kit.roster
        gone = roster.gone
        line = f"{kit.role} {kit.site_id} of {roster.federation_id}, epoch {roster.epoch}, {len(roster.entries)} sites"
        line += f", of which {names(gone)} left" if gone else ""
        findings += [Finding("kit", Level.OK, f"{line}; signatures, keys and file modes are right")]
        if not kit.entry.ml_dsa_key:
            line = f"the roster has no ML-DSA key of {kit.site_id}: its logs prove nothing once Ed25519 can be forged"
            findings.append(Finding("kit", Level.WARN, line, RENEW))
        line, is_soon = validity(kit.certificate_ends, now)
        findings += [Finding("certificate", *((Level.WARN, line, RENEW) if is_soon else (Level.OK, line)))]
        if probes.settings is not None:
            run("settings", probes.settings)
        if kit.role == "target":
            findings += _port(kit, address, probes)
        elif offline:
            line = f"not looked for at {address or kit.endpoints.aggregator}: --offline"
            findings.append(Finding("aggregator", Level.WARN, line, "leave --offline out before the run"))
        else:
            run("aggregator", lambda: _reach(kit, now, address, probes, timeout_s))
        findings += _unused(kit, probes)
    disks = [("disk", partial(_check_disk, folder, min_free_bytes)) for folder in _folders(path, probes)]
    own = [("policy", probes.policy), ("key-agreement", probes.key_agreement)]
    for check, probe in (*disks, *own, ("device", probes.device), ("data", probes.data)):
        if probe is not None:
            run(check, probe)
    return tuple(findings)


def _unused(kit: Kit, probes: Probes) -> list[Finding]:
    """Return a warning where a source's environment names a proxy for other programs, and its settings name none."""
    if kit.role == "target" or not probes.unused_proxies:
        return []
    with suppress(SecureFdaError):  # the check of the aggregator says why
        if (route := probes.route()) is None or route.proxy is None:
            line = f"{', '.join(probes.unused_proxies)} in the environment: not used"
            hint = 'where the aggregator is behind a proxy, name it in the settings: transport.proxy = "host:port"'
            return [Finding("proxy", Level.WARN, line, hint)]
    return []


def _reach(kit: Kit, now: datetime, address: Address | None, probes: Probes, timeout_s: float) -> str:
    route = probes.route() or Route(kit.endpoints.aggregator)
    try:
        return shake_hands(kit, now, address=address or route.address, proxy=route.proxy, timeout_s=timeout_s)
    except ConnectionFailed as error:  # as before the aggregator was started
        error.hint = f"{error.hint}; to leave this check out: --offline"
        raise


def _port(kit: Kit, address: Address | None, probes: Probes) -> list[Finding]:
    try:
        listen = address or probes.listen() or kit.endpoints.aggregator
    except SecureFdaError:  # the settings' own check says why
        return [Finding("port", Level.WARN, "not checked: the settings, which say where to listen, are wrong")]
    return _run("port", lambda: check_port_free(listen))


def _folders(kit: Path, probes: Probes) -> list[Path]:
    """Return the folders that a run writes to: the kit's, and a run folder elsewhere or its nearest existing parent."""
    local = kit / LOCAL
    with suppress(SecureFdaError):  # the settings' own check says why
        out = probes.out()
        if out is not None and not out.absolute().is_relative_to(local.absolute()):
            way = (out.absolute(), *out.absolute().parents)
            return [local, next(folder for folder in way if os.path.exists(folder))]  # noqa: PTH110 - never raises
    return [local]


def _run(check: str, probe: Probe) -> list[Finding]:
    try:
        found = probe()
    except SecureFdaError as error:
        return _failed(check, error)
    line, *notes = (found,) if isinstance(found, str) else found
    return [Finding(check, Level.OK, line), *(Finding(check, Level.WARN, note) for note in notes)]


def _failed(check: str, error: SecureFdaError) -> list[Finding]:
    each = error.errors if isinstance(error, ConfigErrors) else (error,)
    return [Finding(check, Level.FAIL, str(one), one.hint, one.exit_code) for one in each]


def _check_disk(folder: Path, min_free_bytes: int) -> str:
    try:
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"\0")
            probe.flush()
            os.fsync(probe.fileno())
        free = shutil.disk_usage(folder).free
    except OSError as error:
        why = f"cannot be written: {error.strerror or error}"
        is_missing = error.errno == errno.ENOENT
        hint = f"make it: mkdir -m 700 {folder}" if is_missing else "check the folder's owner and the disk"
        raise ConfigError(str(folder), why, hint=hint) from error
    if free < min_free_bytes:
        raise ConfigError(str(folder), f"{_size(free)} free, {_size(min_free_bytes)} needed", hint="free some space")
    return f"{_size(free)} free in {folder}"


def _size(count: int) -> str:
    return f"{count / (1 << 30):.1f} GiB"


def probes_of(
    path: Path,
    settings: Path | None,
    now: datetime,
    env: Mapping[str, str],
    check_rows: Callable[[Kit, Config], Sequence[str]],
    *,
    overrides: Sequence[str] = (),
    out: Path | None = None,
) -> Probes:
    """Return the checks of a site's own files and machine.

    Args:
        path: the kit's folder.
        settings: of the site's process; None leaves out settings, device and data.
        now: current time, with a time zone.
        env: the environment, for settings.
        check_rows: whether the site could train on its rows: a line, and notes to be read.
        overrides: ``KEY=VALUE``, as the process would get them.
        out: the run folder, likewise; None for that of the settings.
    """

    def given(process: str) -> list[str]:
        return [*overrides, *([] if out is None else [f"{process}.out={out}"])]

    def load() -> tuple[Kit, Config | None]:
        kit = load_kit(path, now)
        if settings is None:
            return kit, None
        if kit.role == "target":
            return kit, load_aggregator(settings, given("aggregator"), env)
        return kit, load_source(settings, given("source"), env)

    def settings_probe() -> str:
        if settings is not None:  # what is wrong in the file is said even where the kit cannot be used
            model = model_of(settings)
            load_settings(model, settings, given("aggregator" if model is AggregatorConfig else "source"), env)
        kit, config = load()
        start = "aggregator" if kit.role == "target" else "source"
        factory = "" if config is None else config.task.factory
        flags = [*(f"--set {quoted(one)}" for one in overrides), *([] if out is None else [f"--out {quoted(out)}"])]
        return f"{factory}; start with: {' '.join([f'securefda {start} start --config {quoted(settings)}', *flags])}"

    def listen() -> Address | None:
        _, config = load()
        fixed = config is not None and not config.transport.listen.endswith(":0")
        return Address.parse(config.transport.listen, "transport.listen") if config is not None and fixed else None

    def out_of_settings() -> Path | None:
        _, config = load()
        if config is None:
            return None
        return config.aggregator.out if isinstance(config, AggregatorConfig) else config.source.out

    def route() -> Route | None:
        kit, config = load()
        return None if config is None else Route.of(kit, config.transport)

    def policy_probe() -> str:
        kit = load_kit(path, now)
        if kit.role == "target":
            _, config = load()
            asks = f"; {summarise_requests(config)}" if isinstance(config, AggregatorConfig) else ""
            return f"a target has none: the policies of the sources bound what it sees{asks}"
        with naming(kit.site_id):
            policy = load_signed_policy(kit)
            policy.session_limits(kit.roster)
            sources = tuple(entry.site_id for entry in kit.roster.sources)
            require_satisfiable(policy, kit.site_id, sources, kit.roster.gone)
        _, config = load()
        if config is not None:
            check_day(policy, now.timestamp(), with_noise=config.training.with_noise)
            check_task(policy, config.task.factory, config.task.options)
            check_training(policy, config.training.dp.noise_multiplier, config.training.dp.max_grad_norm)
        sums = f"min-others {policy.min_others}, max-colluders {policy.max_colluders}"
        caps = f"kappa {policy.norm_cap.kappa:g} per {policy.norm_cap.granularity}"
        return f"at most {policy.max_visibility}, {sums}, {caps}; signed by {kit.site_id}"

    def key_agreement_probe() -> str:
        kit, config = load()
        if isinstance(config, AggregatorConfig):
            return require_available([config.session.key_agreement])
        return require_available(KEY_AGREEMENTS if kit.role == "target" else load_signed_policy(kit).key_agreements)

    if settings is None:
        return Probes(unused_proxies=unused_proxies(env), policy=policy_probe, key_agreement=key_agreement_probe)

    def device_probe() -> str:
        from securefda.training import choose_device, describe_device  # noqa: PLC0415 - with torch

        _, config = load()
        return "" if config is None else describe_device(choose_device(config.training.device))

    def data_probe() -> str | Sequence[str]:
        kit, config = load()
        return "" if config is None else check_rows(kit, config)

    return Probes(
        settings_probe,
        listen,
        out_of_settings,
        route,
        unused_proxies(env),
        policy_probe,
        key_agreement_probe,
        device_probe,
        data_probe,
    )


def check_levels(paths: Sequence[Path], now: datetime, env: Mapping[str, str]) -> Finding:
    """Check whether there is a level for each source that all policies agree with.

    Levels are planned only where the kits of all sources are among ``paths``, with the target's own settings if its
    kit is among them, else for an aggregator that asks for all that is permitted.

    Args:
        paths: startup kits of one federation.
        now: current time, with a time zone.
        env: the environment, for the target's settings.
    """
    try:
        files = [PolicyFile.at(path, now) for path in paths]
        kits = [file.kit for file in files if file.kit is not None]
        for path, kit in zip(paths, kits, strict=True):
            if kit.roster.digest() != kits[0].roster.digest():
                why = f"has another roster than {paths[0]}"
                raise ConfigError(str(path), why, hint="name kits of one federation, all with its newest roster")
        policies = {kit.site_id: file.load() for file, kit in zip(files, kits, strict=True) if kit.role == "source"}
        sources = [entry.site_id for entry in kits[0].roster.sources if not entry.has_left]
        absent = [site for site in sources if site not in policies]
        if absent:
            line = f"not checked: the policies of {', '.join(absent)} are not here"
            return Finding("levels", Level.WARN, line, "name the kits of all sources")
        asked, smallest = Visibility.INDIVIDUAL, 0
        settings = [kit.local / SETTINGS_FILE for kit in kits if kit.role == "target"]
        if settings and settings[0].exists():
            privacy = load_aggregator(settings[0], (), env).privacy
            asked, smallest = Visibility[privacy.visibility.upper()], privacy.smallest_sum
        permitted = {site: max(asked, policies[site].visibility) for site in sources}
        hidden = [policies[site].smallest_sum for site in sources if permitted[site] is not Visibility.INDIVIDUAL]
        levels = plan_levels(permitted, max([smallest, *hidden]))
    except SecureFdaError as error:
        return _failed("levels", error)[0]
    return Finding("levels", Level.OK, ", ".join(f"{site} at {level.label}" for site, level in levels.items()))
