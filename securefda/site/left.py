"""The certificate of a site that leaves: when its keys stop being accepted, and what it has released by then.

The site signs it with the key that it revokes. Every other site takes the file into ``local/left`` of its kit and
refuses these keys from then on, before the authority has made a roster without them. Keys that the site gets later, if
it is enrolled again, are others and are not concerned.

Someone who has stolen the key can sign one, too. It ends what the thief can do with it, whatever it says: the keys are
refused wherever it is taken, also if it names an hour to come.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from securefda.disk import PUBLIC_MODE, make_folder, read_file, write_file, writing_errors
from securefda.errors import CertificateError, ConfigError
from securefda.formats import LEAVING
from securefda.parse import canonical_json, items, load_object, number, object_with, text
from securefda.protocol.envelope import sign_bytes, signature_is_valid
from securefda.protocol.roster import MAX_NUMBER, Roster, RosterEntry, check_name
from securefda.text import utc_minute

LEAVING_MESSAGE: Final = "Leaving"
"""Message type under which a site signs that it leaves."""
LEFT: Final = "left"
"""Folder in ``local/`` with the certificates that a site has taken."""
MAX_CERTIFICATE_BYTES: Final = 1 << 20
_AGAIN: Final = "ask the site for the file again; it makes it: securefda source leave KIT --certificate FILE"


@dataclass(frozen=True, slots=True)
class Claim:
    """What the site says of one of its runs: its own word, which its log shows.

    Attributes:
        run: its id.
        rounds: in which an update, or what stands in its place, left.
        epsilon: spent on its rows with the run's last round; empty without noise.
        records: of its log that the newest checkpoint signs.
        root: of these records, in hex.
    """

    run: str
    rounds: int
    epsilon: str
    records: int
    root: str


@dataclass(frozen=True, slots=True)
class LeavingCertificate:
    """A certificate of leaving whose signature by the key that it revokes is valid.

    Attributes:
        federation_id: the federation that the site leaves.
        site_id: of the site.
        epoch: of the roster that it had.
        signing_key: raw Ed25519 public key, 32 bytes.
        tls_pin: SHA-256 of the TLS key's SubjectPublicKeyInfo, 32 bytes.
        left_at: Unix time in seconds at which the site revoked these keys, by its own word.
        runs: what it has released.
        signature: 64 bytes.

    Raises:
        ConfigError: ``certificate of leaving``; a field is malformed, or the signature is not by this key.
    """

    federation_id: str
    site_id: str
    epoch: int
    signing_key: bytes
    tls_pin: bytes
    left_at: int
    runs: tuple[Claim, ...]
    signature: bytes

    def __post_init__(self) -> None:
        check_name("certificate of leaving", self.federation_id)
        check_name("certificate of leaving", self.site_id)
        if not 0 <= self.left_at <= MAX_NUMBER:
            raise ConfigError("certificate of leaving", "names no time at which a site can have left", hint=_AGAIN)
        if not signature_is_valid(self.signing_key, LEAVING_MESSAGE, self.body(), self.signature):
            why = f"is not signed by the key of {self.site_id} that it names: it was edited, or another signed it"
            raise ConfigError("certificate of leaving", why, hint=_AGAIN)

    @classmethod
    def make(
        cls, entry: RosterEntry, roster: Roster, key: Ed25519PrivateKey, now: datetime, runs: Sequence[Claim]
    ) -> LeavingCertificate:
        """Sign that a site leaves now; ``key`` is that of its entry in the roster."""
        said: dict[str, Any] = {
            "federation_id": roster.federation_id,
            "site_id": entry.site_id,
            "epoch": roster.epoch,
            "signing_key": entry.signing_key,
            "tls_pin": entry.tls_pin,
            "left_at": int(now.timestamp()),
            "runs": tuple(runs),
        }
        return cls(**said, signature=sign_bytes(key, LEAVING_MESSAGE, _body(**said)))

    @classmethod
    def from_bytes(cls, name: str, data: bytes) -> LeavingCertificate:
        """Parse what :meth:`to_bytes` wrote, and check its signature; ``name`` is the file's, for the error.

        Raises:
            ConfigError: these are no such bytes, or not in their one encoding, or the signature is wrong.
        """
        if why := LEAVING.why_not_of(data):
            raise ConfigError(name, why, hint=_AGAIN)
        try:
            envelope = load_object(data, "leaving", "signature")
            keys = ("version", "federation_id", "site_id", "epoch", "signing_key", "tls_pin", "left_at", "runs")
            said = load_object(text(envelope["leaving"]).encode("ascii"), *keys)
            if number(said["version"]) != LEAVING.number:
                raise ValueError("another version")
            certificate = cls(
                text(said["federation_id"]),
                text(said["site_id"]),
                number(said["epoch"]),
                bytes.fromhex(text(said["signing_key"])),
                bytes.fromhex(text(said["tls_pin"])),
                number(said["left_at"]),
                tuple(map(_claim, items(said["runs"]))),
                bytes.fromhex(text(envelope["signature"])),
            )
        except ValueError as error:
            raise ConfigError(name, "is not a site's certificate of leaving", hint=_AGAIN) from error
        except ConfigError as error:
            raise ConfigError(name, error.why, hint=error.hint or _AGAIN) from error
        if certificate.to_bytes() != data:
            raise ConfigError(name, "is not in canonical form", hint=_AGAIN)
        return certificate

    def to_bytes(self) -> bytes:
        """Return the contents of the file: ASCII JSON that carries the signed bytes verbatim as a string."""
        envelope = {"leaving": self.body().decode("ascii"), "signature": self.signature.hex()}
        return json.dumps(envelope, sort_keys=True, indent=1).encode("ascii") + b"\n"

    def body(self) -> bytes:
        """Return the canonical JSON that is signed."""
        return _body(**{field.name: getattr(self, field.name) for field in fields(self) if field.name != "signature"})

    def revokes(self, entry: RosterEntry) -> bool:
        """Whether a roster's entry has one of these keys of this site."""
        keys = entry.signing_key == self.signing_key or entry.tls_pin == self.tls_pin
        return entry.site_id == self.site_id and keys

    @property
    def day(self) -> str:
        """When the site left, for people."""
        return utc_minute(self.left_at)


def take(local: Path, roster: Roster, certificate: LeavingCertificate) -> Path:
    """Keep a certificate in a kit's ``local/``: a process that starts from now on refuses the site's keys.

    Returns:
        The file; taking the same certificate again changes nothing.

    Raises:
        ConfigError: ``certificate of leaving``: it is of another federation, of the target, of keys that the roster
            does not list, or of a later roster; or the file cannot be written.
    """
    name, site = "certificate of leaving", certificate.site_id
    if certificate.federation_id != roster.federation_id:
        why = f"is of federation {certificate.federation_id}, not {roster.federation_id}"
        raise ConfigError(name, why, hint="take it into the kit of that federation")
    if certificate.epoch > roster.epoch:
        why = f"was signed with the roster of epoch {certificate.epoch}, and this kit has epoch {roster.epoch}"
        raise ConfigError(name, why, hint="take the authority's newest package first")
    try:
        entry = roster.by_id(site)
    except KeyError:
        why = f"is of {site}, which the roster of epoch {roster.epoch} does not list"
        raise ConfigError(name, why, hint="there is nothing to refuse: its keys open nothing here") from None
    if entry.role == "target":
        why = f"is of {site}, the target, without which there is no federation"
        raise ConfigError(name, why, hint="stop your processes; the authority founds another federation")
    if (entry.signing_key, entry.tls_pin) != (certificate.signing_key, certificate.tls_pin):
        why = f"is not of the keys that {site} has in the roster of epoch {roster.epoch}"
        raise ConfigError(name, why, hint="keys from before open nothing here; if it is of others, ask the site")
    file = local / LEFT / f"{site}-{certificate.signing_key.hex()[:16]}.json"
    if not file.exists():
        with writing_errors(local):
            make_folder(file.parent)
            write_file(file, certificate.to_bytes(), PUBLIC_MODE)
    return file


def taken(local: Path, federation_id: str) -> tuple[LeavingCertificate, ...]:
    """Return the certificates in a kit's ``local/``.

    Raises:
        ConfigError: one cannot be read, was edited or is of another federation.
    """
    certificates = []
    for file in sorted((local / LEFT).glob("*.json")):
        certificate = LeavingCertificate.from_bytes(str(file), read_file(file, limit=MAX_CERTIFICATE_BYTES).data)
        if certificate.federation_id != federation_id:
            why = f"is of federation {certificate.federation_id}, not {federation_id}"
            raise ConfigError(str(file), why, hint="move it away: it does not belong here")
        certificates.append(certificate)
    return tuple(certificates)


def with_left(roster: Roster, certificates: Sequence[LeavingCertificate]) -> Roster:
    """Return the roster whose entries say which keys are revoked; its bytes and digest are the same."""

    def revoked(entry: RosterEntry) -> RosterEntry:
        times = [one.left_at for one in certificates if one.revokes(entry)]
        return replace(entry, left_at=min(times)) if times else entry

    return replace(roster, entries=tuple(map(revoked, roster.entries)))


def require_still_member(entry: RosterEntry) -> None:
    """Refuse to take part as a site that has left. Raises CertificateError."""
    if entry.left_at is not None:
        why = f"{entry.site_id} left the federation on {utc_minute(entry.left_at)} and revoked the keys of this kit"
        raise CertificateError(why, hint="to take part again, ask the authority to enrol the site with new keys")


def require_without_left(local: Path, roster: Roster) -> None:
    """Refuse a new roster that lists keys which a site has revoked. Raises ConfigError naming the site."""
    for certificate in taken(local, roster.federation_id):
        if any(certificate.revokes(entry) for entry in roster.entries):
            listed = f"the keys of {certificate.site_id}, which left on {certificate.day}"
            why = f"of epoch {roster.epoch} still lists {listed}"
            hint = f"ask the authority for one without it: securefda federation revoke FOLDER {certificate.site_id}"
            raise ConfigError("roster", why, hint=hint)


def _claim(item: object) -> Claim:
    claim = object_with(item, "run", "rounds", "epsilon", "records", "root")
    run, epsilon, root = (text(claim[key]) for key in ("run", "epsilon", "root"))
    if not (run + root + epsilon).isprintable():
        raise ValueError("characters that control a terminal")
    return Claim(run, number(claim["rounds"]), epsilon, number(claim["records"]), root)


def _body(**said: Any) -> bytes:
    keys = {key: said[key].hex() for key in ("signing_key", "tls_pin")}
    runs = [asdict(claim) for claim in said["runs"]]
    return canonical_json({"version": LEAVING.number, **said, **keys, "runs": runs})
