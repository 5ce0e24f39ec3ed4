"""Is there an aggregator at that address, is it ours, and does it let us in? One TLS handshake tells."""

from __future__ import annotations

import errno
import socket
import ssl
from datetime import datetime

from cryptography import x509

from securefda.errors import AuthenticationError, CertificateError, ConfigError, ConnectionFailed, SecureFdaError
from securefda.federation.certificates import identify_peer
from securefda.federation.endpoints import Address
from securefda.federation.kit import TLS_CERTIFICATE_FILE, TLS_KEY_FILE, Kit

# OpenSSL's X509_V_ERR_* codes, as ssl.SSLCertVerificationError.verify_code carries them.
_NOT_YET_VALID, _EXPIRED = 9, 10
_WRONG_PURPOSE = 26
_WRONG_NAME = (62, 64)
_SERVER_ALPN = ["h2"]  # gRPC speaks HTTP/2 and hangs up on anything else


def shake_hands(kit: Kit, now: datetime, *, address: Address | None = None, timeout_s: float = 5.0) -> str:
    """Connect to the aggregator as this site would, and hang up.

    Args:
        kit: this site's verified kit.
        now: current time, with a time zone.
        address: where to look instead of the kit's own address.
        timeout_s: limit in seconds for the connection and for each answer.

    Returns:
        One line that says what was reached.

    Raises:
        ConnectionFailed: nothing answers there, or not in TLS 1.3.
        CertificateError: what answers is of another federation, expired, or has another name.
        AuthenticationError: it is a site of ours but not the target, or it refuses this site's certificate.
    """
    address = address or kit.endpoints.aggregator
    context = _client_context(kit)
    try:
        with (
            socket.create_connection((address.host, address.port), timeout=timeout_s) as plain,
            context.wrap_socket(plain, server_hostname=kit.endpoints.server_name) as channel,
        ):
            peer = channel.getpeercert(binary_form=True) or b""
            _check_peer(kit, peer, now)
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
    return f"{kit.roster.target.site_id} answers at {address} as {kit.endpoints.server_name}"


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
        raise _port_error(address, error) from error
    return f"{address} is free"


def _client_context(kit: Kit) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols(_SERVER_ALPN)
    context.load_verify_locations(cadata=kit.ca.pem.decode("ascii"))
    context.load_cert_chain(kit.startup / TLS_CERTIFICATE_FILE, kit.startup / TLS_KEY_FILE)
    return context


def _check_peer(kit: Kit, peer: bytes, now: datetime) -> None:
    entry = identify_peer(x509.load_der_x509_certificate(peer), kit.roster, now)
    if entry.role != "target":
        raise AuthenticationError(f"{entry.site_id} answers, a source, where the aggregator should be")


def _wait_for_welcome(channel: ssl.SSLSocket, address: Address) -> None:
    """In TLS 1.3 a server judges the client's certificate after the client's handshake is done: listen for it."""
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
            hint="check this machine's clock; if it is right, the target needs a new startup kit",
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


def _port_error(address: Address, error: OSError) -> ConfigError:
    key = f"address {address}"
    if error.errno == errno.EADDRINUSE:
        return ConfigError(key, "the port is taken", hint="stop what listens there, or choose another port")
    if error.errno == errno.EACCES:
        return ConfigError(key, "the port needs privileges", hint="choose a port above 1023")
    return ConfigError(
        key, f"cannot listen there ({error.strerror or error})", hint="name an address of this machine to listen at"
    )
