"""Mutual TLS 1.3: credentials from PEM bytes, pins of public keys, and reasons for failed handshakes.

A federation's CA issues one ECDSA certificate per site. Both sides trust only that CA. The pin, the SHA-256 of a
certificate's SubjectPublicKeyInfo, ties the connection to one entry of the roster: the aggregator looks up a source's
pin, and a source accepts only the aggregator whose pin it has.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import socket
import ssl
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache, partial
from hashlib import sha256
from typing import Any

import grpc
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from securefda.errors import AuthenticationError, CertificateError, ConfigError, ConnectionFailed
from securefda.site.route import HttpProxy, open_tunnel
from securefda.transport.event_loop import in_thread

_NOT_YET_VALID, _EXPIRED = 9, 10
_WRONG_NAME = (62, 64)  # host name, IP address


class Unreachable(ConnectionFailed):
    """Nothing answers at the aggregator's address; ``why`` is the reason in plain words."""

    def __init__(self, address: str, why: str) -> None:
        super().__init__(
            f"cannot reach the aggregator at {address}: {why}",
            hint="check that the aggregator runs, its address in the startup kit, and the firewalls between",
        )
        self.why = why


@dataclass(frozen=True, slots=True, repr=False)
class Credentials:
    """A site's side of every TLS connection, as PEM.

    Attributes:
        ca: certificate of the federation's CA.
        certificate: the site's own certificate.
        private_key: the key that belongs to it, unencrypted PKCS #8.

    Raises:
        CertificateError: one of them cannot be read, or key and certificate do not belong together.
    """

    ca: bytes
    certificate: bytes
    private_key: bytes

    def __post_init__(self) -> None:
        try:
            certificate = x509.load_pem_x509_certificate(self.certificate)
            x509.load_pem_x509_certificates(self.ca)
            key = load_pem_private_key(self.private_key, None)
        except (ValueError, TypeError) as error:
            raise CertificateError("the site's certificate, its key or the CA certificate is no valid PEM") from error
        if _spki(key.public_key()) != _spki(certificate.public_key()):
            raise CertificateError(
                "the TLS key does not belong to the site's certificate", hint="unpack the startup kit once more"
            )

    def __repr__(self) -> str:
        return "Credentials(<redacted>)"

    @property
    def pin(self) -> bytes:
        """The SHA-256 of the own certificate's SubjectPublicKeyInfo, 32 bytes."""
        return pin_of_pem(self.certificate)

    def check(self, now: datetime) -> None:
        """Check the own certificate.

        Args:
            now: the time, with its zone.

        Raises:
            CertificateError: it is expired, not yet valid, or not issued by ``ca``.
        """
        certificate = x509.load_pem_x509_certificate(self.certificate)
        if now > certificate.not_valid_after_utc:
            raise _expired("this site", f"on {certificate.not_valid_after_utc:%Y-%m-%d}")
        if now < certificate.not_valid_before_utc:
            raise _not_yet_valid("this site")
        if not any(_issued_by(certificate, issuer) for issuer in x509.load_pem_x509_certificates(self.ca)):
            raise CertificateError(
                "this site's certificate was not issued by the CA of its federation",
                hint="use the startup kit that the federation's CA made for this site",
            )


def _spki(public_key: object) -> bytes:
    return public_key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)  # type: ignore[attr-defined, no-any-return]


def _issued_by(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


@lru_cache(maxsize=1024)
def pin_of_pem(certificate: bytes) -> bytes:
    """Return the SHA-256 of the SubjectPublicKeyInfo (DER) of a PEM certificate, 32 bytes.

    Raises:
        ValueError: no certificate can be read.
    """
    return sha256(_spki(x509.load_pem_x509_certificate(certificate).public_key())).digest()


def server_credentials(own: Credentials) -> grpc.ServerCredentials:
    """Return the aggregator's credentials; a peer without a certificate of the federation gets no connection."""
    pair = [(own.private_key, own.certificate)]
    return grpc.ssl_server_credentials(pair, root_certificates=own.ca, require_client_auth=True)


def channel_credentials(own: Credentials, server_certificate: bytes) -> grpc.ChannelCredentials:
    """Return a source's credentials, which accept no certificate but ``server_certificate`` (PEM)."""
    return grpc.ssl_channel_credentials(server_certificate, own.private_key, own.certificate)


def split_address(key: str, address: str) -> tuple[str, int]:
    """Split ``host:port`` or ``[v6-address]:port``.

    Raises:
        ConfigError: it has no such form; ``key`` names the setting.
    """
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ConfigError(key, f"{address!r} is not host:port", hint='for example "0.0.0.0:8470"')
    return host, int(port)


async def fetch_server_certificate(
    address: str, *, server_name: str, ca: bytes, pin: bytes, proxy: HttpProxy | None, timeout_s: float
) -> bytes:
    """Connect, check the aggregator's certificate, hang up; return that certificate as PEM.

    gRPC neither tells a client whose certificate it saw nor why it refused one. This handshake does both; the channel
    opened next accepts the returned certificate and no other.

    Args:
        address: ``host:port`` of the aggregator.
        server_name: name that its certificate must carry.
        ca: the federation's CA, PEM.
        pin: SHA-256 of the public key that the roster gives the aggregator, 32 bytes.
        proxy: the one that opens a tunnel to it; None to dial it directly.
        timeout_s: seconds for the tunnel, and for the handshake.

    Raises:
        ConfigError: the proxy refuses this site.
        ConnectionFailed: there is no listener, or it does not speak TLS 1.3.
        CertificateError: the certificate is expired, not yet valid, of another federation or has the wrong name.
        AuthenticationError: it is a valid certificate of the federation, but not the one in the roster.
    """
    host, port = split_address("aggregator.address", address)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(cadata=ca.decode("ascii"))
    context.set_alpn_protocols(["h2"])
    over: dict[str, Any] = {"host": host, "port": port}
    if proxy is not None:
        over = {"sock": await in_thread(partial(open_tunnel, proxy, address, timeout_s))}
    try:
        async with asyncio.timeout(timeout_s):
            der = await _handshake(context, server_name, **over)
    except ssl.SSLCertVerificationError as error:
        raise _verification_error(address, server_name, error) from error
    except ssl.SSLError as error:
        raise ConnectionFailed(
            f"aggregator at {address} does not speak TLS 1.3: {error.reason or 'handshake broken off'}",
            hint="another program may listen there: check that address and port are the aggregator's",
        ) from error
    except OSError as error:
        raise Unreachable(address, plain_reason(error, timeout_s)) from error
    certificate = x509.load_der_x509_certificate(der).public_bytes(Encoding.PEM)
    # The authority could sign a certificate for anyone; the roster, which every member signed, names one key.
    if pin_of_pem(certificate) != pin:
        raise AuthenticationError(
            f"the site at {address} is not the aggregator of the roster: its TLS key differs",
            hint="check the address, and whether the roster is the newest",
        )
    return certificate


_PLAIN_REASONS = {
    errno.ECONNREFUSED: "connection refused",
    errno.ECONNRESET: "the connection was broken off",
    errno.ENETUNREACH: "no route to it",
    errno.EHOSTUNREACH: "no route to it",
    errno.ETIMEDOUT: "timed out",
}


def plain_reason(error: OSError, timeout_s: float) -> str:
    """Return the reason why there was no connection."""
    if isinstance(error, socket.gaierror):
        return "name not found"
    if isinstance(error, TimeoutError) and error.errno is None:
        return f"timed out: no answer within {timeout_s:g} s"
    # A name may have several addresses, each of which failed differently: asyncio joins their messages.
    numbers = [error.errno] if error.errno else [int(number) for number in re.findall(r"\[Errno (\d+)\]", str(error))]
    reasons = dict.fromkeys(_PLAIN_REASONS.get(number) or os.strerror(number).lower() for number in numbers)
    # Where the peer hangs up within the TLS handshake, asyncio raises an error without a number and without a text.
    return " and ".join(reasons) or str(error) or _PLAIN_REASONS[errno.ECONNRESET]


async def _handshake(context: ssl.SSLContext, server_name: str, **over: Any) -> bytes:
    _, writer = await asyncio.open_connection(**over, ssl=context, server_hostname=server_name)
    try:
        der: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        return der
    finally:
        writer.close()
        # The aggregator waits for our certificate, which this handshake never shows, and may hang up first.
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def _verification_error(address: str, server_name: str, error: ssl.SSLCertVerificationError) -> CertificateError:
    who = f"the aggregator at {address}"
    if error.verify_code == _EXPIRED:
        return _expired(who, "")
    if error.verify_code == _NOT_YET_VALID:
        return _not_yet_valid(who)
    if error.verify_code in _WRONG_NAME:
        return CertificateError(
            f"the certificate of {who} does not carry the name {server_name}",
            hint="use a name or address that the certificate was made for, or have a new one made",
        )
    return CertificateError(
        f"the certificate of {who} was not issued by this federation's CA",
        hint="check the address, and that both sites use startup kits of the same federation",
    )


def _expired(who: str, when: str) -> CertificateError:
    return CertificateError(
        f"the certificate of {who} has expired {when}".rstrip(),
        hint="check its clock, else renew it: securefda site renew",
    )


def _not_yet_valid(who: str) -> CertificateError:
    return CertificateError(f"the certificate of {who} is not valid yet", hint="check this machine's clock")
