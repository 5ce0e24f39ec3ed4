"""X.509 certificates of a federation: one CA, one certificate per site, and every check on them.

TLS keys are ECDSA P-256, because gRPC's TLS stack does not offer Ed25519 by default. The CA's certificate carries
the CA's Ed25519 roster-signing key in an extension, so that one file and one fingerprint anchor both kinds of
trust: TLS and the roster.
"""

from __future__ import annotations

import hashlib
import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.x509 import verification
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from securefda.errors import AuthenticationError, CertificateError, ConfigError
from securefda.protocol.envelope import PUBLIC_KEY_BYTES
from securefda.protocol.roster import Roster, RosterEntry, is_name
from securefda.site.endpoints import SiteSpec, is_ip_address
from securefda.text import counted, utc_minute

SITE_VALIDITY = timedelta(days=825)
CA_VALIDITY = timedelta(days=3650)
# Another site's clock may run a little behind the CA's; without this its first connection would be refused.
BACKDATING = timedelta(minutes=5)
EXPIRY_WARNING = timedelta(days=30)
RENEW = "renew it: securefda site renew KIT at the site, securefda federation renew at the authority"
"""How a site gets a new certificate and keeps its kit; docs/how-to/change-sites.md."""

URI_SCHEME = "securefda"
# Under 2.25 anyone may use a UUID of their own as an arc (ITU-T X.667); this one was drawn for this purpose.
ROSTER_KEY_OID = x509.ObjectIdentifier("2.25.100364940103144824465046984743571343880")
_OCTET_STRING_32 = b"\x04\x20"  # DER: the extension's value is an OCTET STRING of 32 bytes

# What the library raises for a certificate that is malformed or wrongly signed; they share no base of their own.
_MALFORMED = (
    ValueError,
    TypeError,
    KeyError,  # cryptography 48, of a name whose value has a type that it does not know
    InvalidSignature,
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.ExtensionNotFound,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)


@dataclass(frozen=True, slots=True)
class CaCertificate:
    """A federation's trust anchor.

    Attributes:
        certificate: self-signed, P-256.
        federation_id: whose CA it is.
        roster_key: raw Ed25519 public key that signs rosters and kits, 32 bytes.
    """

    certificate: x509.Certificate
    federation_id: str
    roster_key: bytes

    @property
    def pem(self) -> bytes:
        """Return the contents of ``ca.pem``."""
        return to_pem(self.certificate)

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of the certificate (DER), 64 hex digits; sites compare it by phone."""
        return self.certificate.fingerprint(hashes.SHA256()).hex()


def require_aware(now: datetime) -> datetime:
    """Return ``now`` in UTC. Raises ValueError for a time without a time zone."""
    if now.tzinfo is None:
        raise ValueError("now must carry a time zone")
    return now.astimezone(UTC)


def make_ca(
    federation_id: str,
    tls_key: ec.EllipticCurvePrivateKey,
    roster_key: bytes,
    now: datetime,
    validity: timedelta = CA_VALIDITY,
) -> CaCertificate:
    """Make the self-signed certificate of a new federation's CA, valid from a little before ``now``."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{federation_id} CA"[:64])])
    public_key = tls_key.public_key()
    builder = (
        _builder(name, name, public_key, now, require_aware(now) + validity)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(public_key), critical=False)
        .add_extension(x509.SubjectAlternativeName([_uri(federation_id)]), critical=False)
        .add_extension(x509.UnrecognizedExtension(ROSTER_KEY_OID, _OCTET_STRING_32 + roster_key), critical=False)
    )
    return CaCertificate(builder.sign(tls_key, hashes.SHA256()), federation_id, roster_key)


def make_site_certificate(
    ca: CaCertificate,
    ca_key: ec.EllipticCurvePrivateKey,
    public_key: ec.EllipticCurvePublicKey,
    site: SiteSpec,
    *,
    now: datetime,
    validity: timedelta = SITE_VALIDITY,
) -> x509.Certificate:
    """Issue a site's TLS certificate: CN = site id, alternative names = the site's names and its URI.

    Only the target's may be used as a server, so that no source can pose as the aggregator. It never outlives
    the CA's own.

    Raises:
        CertificateError: the CA's certificate is not valid at ``now``.
    """
    check_dates("ca.pem", ca.certificate, now)
    usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
    if site.role == "target":
        usages.append(ExtendedKeyUsageOID.SERVER_AUTH)
    end = min(require_aware(now) + validity, ca.certificate.not_valid_after_utc)
    issuer_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
    builder = (
        _builder(_subject(site), ca.certificate.subject, public_key, now, end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(issuer_key, critical=False)
        .add_extension(_site_names(ca.federation_id, site), critical=False)
    )
    return builder.sign(ca_key, hashes.SHA256())


def make_csr(key: ec.EllipticCurvePrivateKey, federation_id: str, site: SiteSpec) -> bytes:
    """Make a certificate signing request (PKCS #10, DER) with the names of the certificate to be."""
    builder = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(_subject(site))
        .add_extension(_site_names(federation_id, site), critical=False)
    )
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.DER)


def csr_key(data: bytes, federation_id: str, site: SiteSpec) -> ec.EllipticCurvePublicKey:
    """Return the public key of a certificate signing request that :func:`make_csr` could have made for this site.

    Raises:
        ConfigError: ``request``; it is no CSR, of a key of another kind, not signed by this key, or of another site,
            federation or names.
    """
    try:
        csr = x509.load_der_x509_csr(data)
        key, is_signed = csr.public_key(), csr.is_signature_valid
        subject, extensions = csr.subject, list(csr.extensions)
    except _MALFORMED as error:
        raise ConfigError("request", "holds no certificate signing request that can be read") from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise ConfigError("request", "the CSR is of a key that is not ECDSA P-256")
    if not is_signed:
        raise ConfigError("request", "the CSR is not signed by its own key")
    if subject != _subject(site) or [each.value for each in extensions] != [_site_names(federation_id, site)]:
        raise ConfigError(
            "request", f"the CSR is not of {site.site_id} of {federation_id} with the names of the request"
        )
    return key


def parse_certificate(name: str, data: bytes) -> x509.Certificate:
    """Read one PEM certificate; ``name`` is the file's, for the error. Raises ConfigError."""
    try:
        certificate = x509.load_pem_x509_certificate(data)
        # The library parses these on first use. Malformed ones are to be found here, not in the middle of a check.
        certificate.public_key()
        tuple(certificate.extensions)
        tuple(certificate.subject)
    except _MALFORMED as error:
        raise ConfigError(name, "is not a PEM certificate", hint="it is damaged: fetch the kit again") from error
    return certificate


def parse_ca(name: str, data: bytes) -> CaCertificate:
    """Read a federation's CA certificate.

    Raises:
        ConfigError: it is no certificate, or not the self-signed certificate of a federation's CA.
    """
    certificate = parse_certificate(name, data)
    wrong = ConfigError(name, "is not the certificate of a federation's CA")
    try:
        certificate.verify_directly_issued_by(certificate)
        roster_key = certificate.extensions.get_extension_for_oid(ROSTER_KEY_OID).value.public_bytes()
        is_ca = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except _MALFORMED as error:
        raise wrong from error
    federation_id, site_id = uri_names(certificate)
    if not is_ca or not federation_id or site_id:
        raise wrong
    if not roster_key.startswith(_OCTET_STRING_32) or len(roster_key) != len(_OCTET_STRING_32) + PUBLIC_KEY_BYTES:
        raise wrong
    return CaCertificate(certificate, federation_id, roster_key.removeprefix(_OCTET_STRING_32))


def check_site_certificate(
    name: str, certificate: x509.Certificate, ca: CaCertificate, site_id: str, now: datetime
) -> None:
    """Check that this certificate is that of ``site_id`` in the CA's federation and valid at ``now``.

    Raises:
        CertificateError: it is of another federation, not issued by this CA, of another site, expired or not yet
            valid; the message begins with ``name``.
    """
    federation_id, certified_site = uri_names(certificate)
    if federation_id != ca.federation_id:
        raise CertificateError(
            f"{name}: belongs to federation {federation_id or 'unknown'}, not {ca.federation_id}",
            hint=f"fetch the startup kit of federation {ca.federation_id}",
        )
    check_dates(name, certificate, now)
    verifier = _policy(ca, now).build_client_verifier()
    try:
        verifier.verify(certificate, [])
    except verification.VerificationError as error:
        raise CertificateError(
            f"{name}: was not issued by the CA of federation {ca.federation_id}",
            hint="another federation uses the same name, or the file was replaced: fetch the startup kit again",
        ) from error
    if certified_site != site_id or common_name(certificate) != site_id:
        raise CertificateError(
            f"{name}: is the certificate of {certified_site or 'no site'}, not of {site_id}",
            hint=f"use the startup kit of {site_id}",
        )


def check_server_name(
    name: str, certificate: x509.Certificate, ca: CaCertificate, server_name: str, now: datetime
) -> None:
    """Check that the target's certificate lets it serve as ``server_name`` (host name or IP address).

    Raises:
        CertificateError: it does not carry that name, or may not be used as a server.
    """
    subject = (
        x509.IPAddress(ipaddress.ip_address(server_name)) if is_ip_address(server_name) else x509.DNSName(server_name)
    )
    try:
        _policy(ca, now).build_server_verifier(subject).verify(certificate, [])
    except verification.VerificationError as error:
        raise CertificateError(
            f"{name}: does not carry the aggregator's name {server_name}",
            hint="name every host name and address of the aggregator when its site is enrolled",
        ) from error


def check_dates(name: str, certificate: x509.Certificate, now: datetime) -> None:
    """Check that ``now`` is within the certificate's validity. Raises CertificateError."""
    now = require_aware(now)
    if now < certificate.not_valid_before_utc:
        raise CertificateError(
            f"{name}: not valid before {utc_minute(certificate.not_valid_before_utc)}, "
            f"this clock says {utc_minute(now)}",
            hint=f"set this machine's clock; if it is right, the CA's was wrong: {RENEW}",
        )
    if now > certificate.not_valid_after_utc:
        raise CertificateError(
            f"{name}: expired at {utc_minute(certificate.not_valid_after_utc)}, this clock says {utc_minute(now)}",
            hint=f"{RENEW}; or set this machine's clock if it is wrong",
        )


def validity(ends: datetime, now: datetime) -> tuple[str, bool]:
    """Return until when something is valid, in words, and whether it ends within :data:`EXPIRY_WARNING`."""
    left = ends - require_aware(now)
    return f"valid until {ends:%Y-%m-%d}, {counted(left.days, 'day')} from now", left < EXPIRY_WARNING


def identify_peer(certificate: x509.Certificate, roster: Roster, now: datetime) -> RosterEntry:
    """Tell which site is behind a TLS connection whose chain the TLS library has verified already.

    Args:
        certificate: the peer's certificate.
        roster: this site's verified roster; a site that was revoked is not in it.
        now: with a time zone.

    Raises:
        AuthenticationError: the roster knows no site with this TLS key under this name.
        CertificateError: the certificate or the roster entry is expired or not yet valid.
    """
    try:
        entry = roster.by_tls_pin(tls_pin(certificate))
    except KeyError:
        raise AuthenticationError(
            f"the peer presents a TLS key that is not in epoch {roster.epoch} of the roster",
            hint="the site was revoked or re-enrolled, or one side has an old startup kit",
        ) from None
    if uri_names(certificate) != (roster.federation_id, entry.site_id) or common_name(certificate) != entry.site_id:
        raise AuthenticationError(f"the peer presents the TLS key of {entry.site_id} under another name")
    check_dates(f"certificate of {entry.site_id}", certificate, now)
    check_entry_dates(entry, now)
    return entry


def check_entry_dates(entry: RosterEntry, now: datetime) -> None:
    """Check that the roster lets this site take part at ``now``. Raises CertificateError."""
    if not entry.is_valid_at(int(require_aware(now).timestamp())):
        valid = f"from {utc_minute(entry.not_before)} to {utc_minute(entry.not_after)}"
        raise CertificateError(
            f"roster: {entry.site_id} is valid {valid}, this clock says {utc_minute(now)}",
            hint=f"{RENEW}; or set this machine's clock if it is wrong",
        )


def tls_pin(certificate: x509.Certificate) -> bytes:
    """SHA-256 of the certificate's SubjectPublicKeyInfo (DER), 32 bytes: the pin of the roster."""
    return public_key_pin(certificate.public_key())


def public_key_pin(public_key: CertificatePublicKeyTypes) -> bytes:
    """SHA-256 of a public key's SubjectPublicKeyInfo (DER), 32 bytes."""
    spki = public_key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(spki).digest()


def common_name(certificate: x509.Certificate) -> str:
    """Return the subject's common name, or ``""`` unless there is exactly one."""
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if len(names) == 1 else ""


def uri_names(certificate: x509.Certificate) -> tuple[str, str]:
    """Return (federation id, site id) of the URI in the certificate; ``""`` for what it does not name.

    A CA's names no site. A certificate without exactly one well-formed URI of this kind names nothing, so that
    what is returned can stand in an error message even before the certificate is verified.
    """
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return "", ""
    uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    scheme, _, rest = uris[0].partition("://") if len(uris) == 1 else ("", "", "")
    federation_id, slash, site_id = rest.partition("/")
    well_formed = scheme == URI_SCHEME and is_name(federation_id) and (is_name(site_id) or not slash)
    return (federation_id, site_id) if well_formed else ("", "")


def host_names(certificate: x509.Certificate) -> tuple[str, ...]:
    """Return the host names, then the IP addresses, of a site's certificate."""
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    addresses = (str(address) for address in names.get_values_for_type(x509.IPAddress))
    return (*names.get_values_for_type(x509.DNSName), *addresses)


def has_names(certificate: x509.Certificate, federation_id: str, site: SiteSpec) -> bool:
    """Tell whether a certificate has exactly the names that this site asked for."""
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return bool(names == _site_names(federation_id, site))


def to_pem(certificate: x509.Certificate) -> bytes:
    """Return the certificate as PEM."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def _policy(ca: CaCertificate, now: datetime) -> verification.PolicyBuilder:
    return verification.PolicyBuilder().store(verification.Store([ca.certificate])).time(require_aware(now))


def _builder(
    subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey, now: datetime, end: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(require_aware(now) - BACKDATING)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _subject(site: SiteSpec) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, site.site_id)])


def _site_names(federation_id: str, site: SiteSpec) -> x509.SubjectAlternativeName:
    return x509.SubjectAlternativeName(
        [*(_general_name(name) for name in site.names), _uri(federation_id, site.site_id)]
    )


def _general_name(name: str) -> x509.GeneralName:
    return x509.IPAddress(ipaddress.ip_address(name)) if is_ip_address(name) else x509.DNSName(name)


def _uri(federation_id: str, site_id: str = "") -> x509.UniformResourceIdentifier:
    path = f"/{site_id}" if site_id else ""
    return x509.UniformResourceIdentifier(f"{URI_SCHEME}://{federation_id}{path}")
