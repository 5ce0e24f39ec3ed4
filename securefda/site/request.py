"""A site's request to be enrolled: its public keys, proof that it has the private ones, and what it asks to be.

A site makes its keys at home and sends this request; the authority answers with a certificate and a roster. No private
key travels. Both keys sign the same bytes, which name both keys, the site and its federation: somebody else's key, a
key inserted later, or a request of another federation has no valid proof. The third key in it, of ML-DSA, follows from
the signing key, which vouches for it; what it signs names the site. A session's exchange keys are made for that
session, and the signing key signs them. A site that already has keys also signs the request for
new ones with its present signing key, so that a substituted request is detected without a phone call.

Two people compare the fingerprint by telephone. It depends only on the keys and the site's id, so it can be computed
from the request and from every roster with these keys.

Pure. A request is a value that was checked when it was built or parsed. Parsing accepts its one encoding only.
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass, field

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from securefda.errors import ConfigError
from securefda.formats import REQUEST
from securefda.parse import canonical_json, items, load_object, text
from securefda.protocol.envelope import sign_bytes, signature_is_valid
from securefda.protocol.ml_dsa import ml_dsa_public
from securefda.protocol.roster import RosterEntry, check_name, ml_dsa_field
from securefda.site.certificates import csr_key, make_csr, public_key_pin
from securefda.site.endpoints import Address, SiteSpec

REQUEST_MESSAGE, RENEWAL_MESSAGE = "EnrolmentRequest", "RenewalRequest"
MAX_REQUEST_BYTES = 64 * 1024
_TLS_STATEMENT = b"securefda/1/EnrolmentRequest.tls\0"
_FINGERPRINT = b"securefda/1/SiteKeys\0"
_AGAIN = "ask the site for its request again: securefda site init"


@dataclass(frozen=True, slots=True, eq=False)
class SiteKeys:
    """The two private keys of a site."""

    signing_key: Ed25519PrivateKey = field(repr=False)
    tls_key: ec.EllipticCurvePrivateKey = field(repr=False)

    @classmethod
    def generate(cls) -> SiteKeys:
        """Make new keys: Ed25519, and ECDSA P-256."""
        return cls(Ed25519PrivateKey.generate(), ec.generate_private_key(ec.SECP256R1()))

    @property
    def signing_public(self) -> bytes:
        """The raw Ed25519 public key, 32 bytes."""
        return self.signing_key.public_key().public_bytes_raw()

    @property
    def tls_pin(self) -> bytes:
        """SHA-256 of the TLS key's SubjectPublicKeyInfo, 32 bytes."""
        return public_key_pin(self.tls_key.public_key())


def key_fingerprint(site_id: str, signing_key: bytes, tls_pin: bytes, ml_dsa_key: bytes) -> str:
    """Return the SHA-256 over a site's id and its public keys, 64 hex digits; ``ml_dsa_key`` may be empty."""
    keys = signing_key + tls_pin + ml_dsa_key
    return hashlib.sha256(_FINGERPRINT + site_id.encode("ascii") + b"\0" + keys).hexdigest()


def entry_fingerprint(entry: RosterEntry) -> str:
    """Return the fingerprint of a member's keys as the roster has them."""
    return key_fingerprint(entry.site_id, entry.signing_key, entry.tls_pin, entry.ml_dsa_key)


@dataclass(frozen=True, slots=True)
class SiteRequest:
    """A request whose proofs are valid.

    Attributes:
        federation_id: the federation that the site asks to belong to.
        site: id, role, legal entity, and the names for its certificate.
        address: where the sources reach it; of the target only.
        signing_key: raw Ed25519 public key, 32 bytes.
        tls_pin: SHA-256 of the TLS key's SubjectPublicKeyInfo, 32 bytes.
        csr: PKCS #10 certificate signing request of the TLS key, DER.
        signing_proof: Ed25519 signature of the body by the signing key, 64 bytes.
        tls_proof: ECDSA signature of the body by the TLS key, DER.
        renewal_proof: Ed25519 signature of the body by the signing key that the site had before, 64 bytes; empty in a
            first request, and where that key is lost. The roster says by which key: see :meth:`is_signed_by`.
        ml_dsa_key: raw ML-DSA-65 public key, 1952 bytes; empty in a request of format 1.

    Raises:
        ConfigError: ``request``; a field is malformed, the CSR is of another key, site or names, or a proof is wrong.
    """

    federation_id: str
    site: SiteSpec
    address: Address | None
    signing_key: bytes
    tls_pin: bytes
    csr: bytes = field(repr=False)
    signing_proof: bytes = field(repr=False)
    tls_proof: bytes = field(repr=False)
    renewal_proof: bytes = field(default=b"", repr=False)
    ml_dsa_key: bytes = field(default=b"", repr=False)

    def __post_init__(self) -> None:
        check_name("federation-id", self.federation_id)
        self.entry(0, 0, 1)  # its fields have the form that the roster needs
        if (self.site.role == "target") != (self.address is not None):
            raise ConfigError("request", "must name an address if it is the target's, and only then", hint=_AGAIN)
        if len(set(self.site.names)) != len(self.site.names):
            raise ConfigError("request", f"names a host of {self.site.site_id} twice", hint=_AGAIN)
        key = self.tls_key
        if public_key_pin(key) != self.tls_pin:
            why = f"the CSR is of another TLS key than the request of {self.site.site_id} names"
            raise ConfigError("request", why, hint=_AGAIN)
        body = self.body()
        if not signature_is_valid(self.signing_key, REQUEST_MESSAGE, body, self.signing_proof):
            why = f"does not prove that {self.site.site_id} has the private signing key"
            raise ConfigError("request", why, hint=_AGAIN)
        try:
            key.verify(self.tls_proof, _tls_statement(body), ec.ECDSA(hashes.SHA256()))
        except InvalidSignature:
            why = f"does not prove that {self.site.site_id} has the private TLS key"
            raise ConfigError("request", why, hint=_AGAIN) from None

    @classmethod
    def make(
        cls,
        federation_id: str,
        site: SiteSpec,
        address: Address | None,
        keys: SiteKeys,
        present_key: Ed25519PrivateKey | None = None,
    ) -> SiteRequest:
        """Make the request of a site for these new keys; ``present_key`` is the key that it signs with until then.

        Raises:
            ConfigError: a name is malformed, or this machine has no ML-DSA-65.
        """
        check_name("federation-id", federation_id)
        csr = make_csr(keys.tls_key, federation_id, site)
        signing_key, tls_pin, ml_dsa_key = keys.signing_public, keys.tls_pin, ml_dsa_public(keys.signing_key)
        body = _body(
            federation_id, site, address, signing_key=signing_key, tls_pin=tls_pin, csr=csr, ml_dsa_key=ml_dsa_key
        )
        return cls(
            federation_id,
            site,
            address,
            signing_key,
            tls_pin,
            csr,
            sign_bytes(keys.signing_key, REQUEST_MESSAGE, body),
            keys.tls_key.sign(_tls_statement(body), ec.ECDSA(hashes.SHA256())),
            b"" if present_key is None else sign_bytes(present_key, RENEWAL_MESSAGE, body),
            ml_dsa_key,
        )

    @classmethod
    def from_bytes(cls, name: str, data: bytes) -> SiteRequest:
        """Parse what :meth:`to_bytes` wrote, and check all of it; ``name`` is the file's, for the error.

        Raises:
            ConfigError: these are no such bytes, or not in their one encoding, or the request is not sound.
        """
        if why := REQUEST.why_not_of(data):
            raise ConfigError(name, why, hint=_AGAIN)
        try:
            envelope = load_object(data, "request", "signing_proof", "tls_proof", "renewal_proof")
            has_ml_dsa = REQUEST.find(data) > 1
            fields = load_object(
                text(envelope["request"]).encode("ascii"),
                *(("ml_dsa_key",) if has_ml_dsa else ()),
                "version",
                "federation_id",
                "site_id",
                "role",
                "legal_entity",
                "names",
                "address",
                "signing_key",
                "tls_pin",
                "csr",
            )
            role, address = text(fields["role"]), text(fields["address"])
            if role not in ("target", "source"):
                raise ValueError("no role")
            site = SiteSpec(
                text(fields["site_id"]),
                "target" if role == "target" else "source",
                text(fields["legal_entity"]),
                tuple(text(name) for name in items(fields["names"])),
            )
            request = cls(
                text(fields["federation_id"]),
                site,
                Address.parse(address) if address else None,
                bytes.fromhex(text(fields["signing_key"])),
                bytes.fromhex(text(fields["tls_pin"])),
                bytes.fromhex(text(fields["csr"])),
                bytes.fromhex(text(envelope["signing_proof"])),
                bytes.fromhex(text(envelope["tls_proof"])),
                bytes.fromhex(text(envelope["renewal_proof"])),
                base64.b64decode(text(fields["ml_dsa_key"]), validate=True) if has_ml_dsa else b"",
            )
        except ValueError as error:
            raise ConfigError(name, "is not a request of a site", hint=_AGAIN) from error
        except ConfigError as error:
            where = "" if error.key == "request" else f"{error.key}: "
            raise ConfigError(name, where + error.why, hint=error.hint or _AGAIN) from None
        if request.to_bytes() != data:
            raise ConfigError(name, "is not in canonical form", hint=_AGAIN)
        return request

    def to_bytes(self) -> bytes:
        """Return the contents of the request's file: ASCII JSON that carries the signed bytes verbatim as a string."""
        fields = {
            "request": self.body().decode("ascii"),
            "signing_proof": self.signing_proof.hex(),
            "tls_proof": self.tls_proof.hex(),
            "renewal_proof": self.renewal_proof.hex(),
        }
        return json.dumps(fields, sort_keys=True, indent=1).encode("ascii") + b"\n"

    def body(self) -> bytes:
        """Return the canonical JSON that both keys sign."""
        return _body(
            self.federation_id,
            self.site,
            self.address,
            signing_key=self.signing_key,
            tls_pin=self.tls_pin,
            csr=self.csr,
            ml_dsa_key=self.ml_dsa_key,
        )

    @property
    def tls_key(self) -> ec.EllipticCurvePublicKey:
        """Return the public TLS key from the CSR. Raises ConfigError for a CSR that is not this site's."""
        return csr_key(self.csr, self.federation_id, self.site)

    def is_signed_by(self, present_key: bytes) -> bool:
        """Return whether the site with this raw Ed25519 key signed this request for new ones."""
        return signature_is_valid(present_key, RENEWAL_MESSAGE, self.body(), self.renewal_proof)

    @property
    def fingerprint(self) -> str:
        """The fingerprint that site and authority compare by telephone, 64 hex digits."""
        return key_fingerprint(self.site.site_id, self.signing_key, self.tls_pin, self.ml_dsa_key)

    def entry(self, index: int, not_before: int, not_after: int) -> RosterEntry:
        """Return the roster entry that this request asks for, valid between these seconds of Unix time."""
        return RosterEntry(
            index=index,
            site_id=self.site.site_id,
            role=self.site.role,
            legal_entity=self.site.legal_entity,
            signing_key=self.signing_key,
            tls_pin=self.tls_pin,
            not_before=not_before,
            not_after=not_after,
            ml_dsa_key=self.ml_dsa_key,
        )


def _body(
    federation_id: str,
    site: SiteSpec,
    address: Address | None,
    *,
    signing_key: bytes,
    tls_pin: bytes,
    csr: bytes,
    ml_dsa_key: bytes,
) -> bytes:
    return canonical_json(
        {
            "version": REQUEST.number if ml_dsa_key else 1,
            "federation_id": federation_id,
            "site_id": site.site_id,
            "role": site.role,
            "legal_entity": site.legal_entity,
            "names": list(site.names),
            "address": str(address) if address else "",
            "signing_key": signing_key.hex(),
            "tls_pin": tls_pin.hex(),
            "csr": csr.hex(),
            **ml_dsa_field(ml_dsa_key),
        }
    )


def _tls_statement(body: bytes) -> bytes:
    return _TLS_STATEMENT + hashlib.sha256(body).digest()
