"""The federation's certificate authority: its keys, its folder, and the three things it signs.

It signs TLS certificates (ECDSA P-256), rosters and startup kits (Ed25519). It decides who is in the roster, so it
belongs with a party that all sites trust, offline between enrolments, and never with the target's aggregator.

A site makes its own keys and sends a request, or has the authority make them. An operator of an authority that made
a site's keys could pose as that site.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.x509 import Certificate

from securefda.disk import (
    PUBLIC_MODE,
    SECRET_MODE,
    FileContent,
    check_secret_mode,
    read_file,
    remove_leftovers,
    write_file,
    writing_errors,
)
from securefda.errors import ConfigError
from securefda.protocol.ml_dsa import ml_dsa_public
from securefda.protocol.roster import RosterEntry
from securefda.protocol.secret import Secret
from securefda.site.certificates import (
    CA_VALIDITY,
    SITE_VALIDITY,
    CaCertificate,
    make_ca,
    make_site_certificate,
    parse_ca,
    tls_pin,
)
from securefda.site.endpoints import SiteSpec
from securefda.site.request import SiteKeys, SiteRequest
from securefda.site.sealed import is_sealed, seal, unseal

CA_FILE = "ca.pem"
CA_KEY_FILE = "ca.key"
_ROSTER_KEY_FILE = "roster.key"


@dataclass(frozen=True, slots=True, eq=False)
class Identity:
    """A site that was just enrolled: its certificate, its public signing keys, and its keys if they were made here."""

    site: SiteSpec
    certificate: Certificate
    signing_key: bytes
    ml_dsa_key: bytes
    keys: SiteKeys | None = field(repr=False)

    def entry(self, index: int) -> RosterEntry:
        """Return the site's roster entry at this index; it is valid as long as the certificate."""
        return RosterEntry(
            index=index,
            site_id=self.site.site_id,
            role=self.site.role,
            legal_entity=self.site.legal_entity,
            signing_key=self.signing_key,
            tls_pin=tls_pin(self.certificate),
            not_before=int(self.certificate.not_valid_before_utc.timestamp()),
            not_after=int(self.certificate.not_valid_after_utc.timestamp()),
            ml_dsa_key=self.ml_dsa_key,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Authority:
    """A federation's CA with its private keys in memory."""

    ca: CaCertificate
    tls_key: ec.EllipticCurvePrivateKey = field(repr=False)
    roster_key: Ed25519PrivateKey = field(repr=False)

    @classmethod
    def create(cls, federation_id: str, now: datetime, validity: timedelta = CA_VALIDITY) -> Authority:
        """Make a new CA with fresh keys."""
        tls_key = ec.generate_private_key(ec.SECP256R1())
        roster_key = Ed25519PrivateKey.generate()
        ca = make_ca(federation_id, tls_key, roster_key.public_key().public_bytes_raw(), now, validity)
        return cls(ca, tls_key, roster_key)

    @classmethod
    def load(cls, folder: Path) -> Authority:
        """Read the CA from its folder.

        Raises:
            ConfigError: a file is missing or malformed, a key is open to others, or keys and certificate differ.
        """
        ca = parse_ca(str(folder / CA_FILE), read_file(folder / CA_FILE).data)
        tls_key = load_tls_key(str(folder / CA_KEY_FILE), read_file(folder / CA_KEY_FILE))
        roster_key = load_signing_key(str(folder / _ROSTER_KEY_FILE), read_file(folder / _ROSTER_KEY_FILE))
        if tls_key.public_key() != ca.certificate.public_key():
            raise ConfigError(str(folder / CA_KEY_FILE), f"does not belong to {CA_FILE}")
        if roster_key.public_key().public_bytes_raw() != ca.roster_key:
            raise ConfigError(str(folder / _ROSTER_KEY_FILE), f"does not belong to {CA_FILE}")
        return cls(ca, tls_key, roster_key)

    def save(self, folder: Path) -> None:
        """Write certificate and keys (mode 0600) into an existing folder. Raises OSError."""
        write_file(folder / CA_FILE, self.ca.pem, PUBLIC_MODE)
        write_file(folder / CA_KEY_FILE, private_pem(self.tls_key), SECRET_MODE)
        write_file(folder / _ROSTER_KEY_FILE, private_pem(self.roster_key), SECRET_MODE)

    def issue(self, site: SiteSpec | SiteRequest, now: datetime, validity: timedelta = SITE_VALIDITY) -> Identity:
        """Certify a site that made its keys and asks with a request, or make keys and certificate of a site.

        Raises:
            ConfigError: the request is for another federation.
            CertificateError: the CA itself is not valid at ``now``.
        """
        if isinstance(site, SiteRequest):
            spec, keys, signing_key, tls_key = site.site, None, site.signing_key, site.tls_key
            ml_dsa_key = site.ml_dsa_key
            if site.federation_id != self.ca.federation_id:
                why = f"is for federation {site.federation_id}, not {self.ca.federation_id}"
                hint = f"the site asks again: securefda site init {spec.site_id} --federation {self.ca.federation_id}"
                raise ConfigError(f"request of {spec.site_id}", why, hint=hint)
        else:
            spec, keys = site, SiteKeys.generate()
            signing_key, tls_key = keys.signing_public, keys.tls_key.public_key()
            ml_dsa_key = ml_dsa_public(keys.signing_key)
        certificate = make_site_certificate(self.ca, self.tls_key, tls_key, spec, now=now, validity=validity)
        return Identity(spec, certificate, signing_key, ml_dsa_key, keys)


def private_pem(key: Ed25519PrivateKey | ec.EllipticCurvePrivateKey) -> bytes:
    """Return a private key as unencrypted PKCS #8 PEM; only the file's mode protects it."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def private_key_files(folder: Path) -> list[Path]:
    """Find the files with private keys in a kit or in the authority's folder, with any that a crash left behind.

    Raises:
        ConfigError: there are none.
    """
    names = ("tls.key", "signing.key", CA_KEY_FILE, _ROSTER_KEY_FILE)
    folders = (folder / "startup", folder / "requested", folder / "joining", folder)
    files = [file for below in folders for name in names if (file := below / name).exists()]
    if not files:
        hint = "name a startup kit, or the authority's folder ca/"
        raise ConfigError(str(folder), "holds no private keys", hint=hint)
    return files


def protect_keys(folder: Path, passphrase: Secret | None) -> tuple[Path, ...]:
    """Seal the private keys of a kit or of the authority's folder with a passphrase, or unseal them if it is None.

    A crash in between leaves each key sealed or plain, and all of them usable with this passphrase. Keys that an
    earlier crash left beside the kit's files are removed.

    Returns:
        The files that hold them.

    Raises:
        ConfigError: there are no keys in ``folder``, one cannot be read or written, or the passphrase is too short.
    """
    files = private_key_files(folder)
    plain = {}
    for file in files:
        key = _load_private_key(str(file), read_file(file))
        if not isinstance(key, Ed25519PrivateKey | ec.EllipticCurvePrivateKey):
            raise ConfigError(str(file), "is of a kind that no kit holds")
        plain[file] = private_pem(key)
    for file, data in plain.items():
        with writing_errors(file):
            write_file(file, data if passphrase is None else seal(data, passphrase), SECRET_MODE)
    with writing_errors(folder):
        for written in (folder / "joining", folder / "requested", *files):
            remove_leftovers(written)
    return tuple(files)


def load_signing_key(name: str, content: FileContent) -> Ed25519PrivateKey:
    """Read an Ed25519 private key from a PEM file of mode 0600, sealed or not. Raises ConfigError naming the file."""
    key = _load_private_key(name, content)
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(name, "is not an Ed25519 key")
    return key


def load_tls_key(name: str, content: FileContent) -> ec.EllipticCurvePrivateKey:
    """Read an elliptic-curve private key from a PEM file of mode 0600, sealed or not. Raises ConfigError naming the
    file.
    """
    key = _load_private_key(name, content)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(name, "is not an elliptic-curve key")
    return key


def _load_private_key(name: str, content: FileContent) -> PrivateKeyTypes:
    check_secret_mode(name, content)
    data = unseal(name, content.data) if is_sealed(content.data) else content.data
    try:
        return serialization.load_pem_private_key(data, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        # Not chained: the parser's message could quote what it read.
        why = "is neither a PEM private key nor one that `securefda kit protect` sealed"
        hint = "it is damaged: fetch the kit again; keys that the site made: securefda site renew KIT --lost-key"
        raise ConfigError(name, why, hint=hint) from None
