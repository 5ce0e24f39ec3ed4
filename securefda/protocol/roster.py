"""The roster: which sites form a federation, with which keys, signed by its CA and by every one of them.

A roster is a value: it is checked once, when it is built or parsed, and cannot be invalid afterwards. Its
canonical bytes are JSON in ASCII with sorted keys, no blanks and no floats; parsing accepts only bytes that are
canonical already, so that one roster has exactly one digest.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from securefda.errors import ConfigError
from securefda.formats import ROSTER
from securefda.parse import canonical_json, items, load_object, number, object_with, text, texts
from securefda.protocol import ml_dsa
from securefda.protocol.envelope import PUBLIC_KEY_BYTES, SIGNATURE_BYTES, sign_bytes, signature_is_valid

Role = Literal["target", "source"]

ROSTER_MESSAGE = "Roster"
PIN_BYTES = 32
MAX_SITES = 1024
MAX_NUMBER = 253_402_300_799  # the last second of the year 9999
_MAX_LEGAL_ENTITY = 200
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")


def is_name(name: str) -> bool:
    """Tell whether ``name`` has the form of a site id or federation id."""
    return _NAME.fullmatch(name) is not None


def check_name(key: str, name: str) -> str:
    """Return a site id or federation id unchanged, or refuse it.

    Raises:
        ConfigError: it is not 1 to 63 characters of ``a-z 0-9 -``, starting with a letter or a digit.
    """
    if not isinstance(name, str) or not is_name(name):
        raise ConfigError(
            key,
            f"{name!r} is no valid name",
            hint="use 1 to 63 lower-case letters, digits and hyphens, not starting with a hyphen",
        )
    return name


def check_legal_entity(key: str, name: str) -> str:
    """Return the name of an organisation unchanged, or refuse it.

    Raises:
        ConfigError: it is not 1 to 200 printable characters, or begins or ends with a blank.
    """
    if not isinstance(name, str) or not 1 <= len(name) <= _MAX_LEGAL_ENTITY:
        raise ConfigError(key, f"must have 1 to {_MAX_LEGAL_ENTITY} characters")
    if not name.isprintable() or name != name.strip():
        raise ConfigError(key, "must be printable and must not begin or end with a blank")
    return name


@dataclass(frozen=True, slots=True)
class RosterEntry:
    """One site of the federation.

    Attributes:
        index: place in the roster, 0-based; its Shamir coordinate is ``index + 1``.
        site_id: 1 to 63 characters of ``a-z 0-9 -``.
        role: ``"target"`` (runs the aggregator) or ``"source"``.
        legal_entity: the organisation behind the site, 1 to 200 printable characters. One site each.
        signing_key: raw Ed25519 public key, 32 bytes.
        tls_pin: SHA-256 of the SubjectPublicKeyInfo (DER) of the site's TLS certificate, 32 bytes.
        not_before: first second of validity, Unix time.
        not_after: last second of validity, Unix time.
        ml_dsa_key: raw ML-DSA-65 public key, 1952 bytes, which signs checkpoints beside ``signing_key``; empty in
            rosters of format 1.
        left_at: when the site revoked these keys, in Unix time, by the word of a certificate that the reader of the
            roster holds; None without one. It is no part of the roster.

    Raises:
        ConfigError: a field is out of its range; the key names site and field.
    """

    index: int
    site_id: str
    role: Role
    legal_entity: str
    signing_key: bytes
    tls_pin: bytes
    not_before: int
    not_after: int
    ml_dsa_key: bytes = b""
    left_at: int | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        check_name("roster.site_id", self.site_id)
        _require_number(self._key("index"), self.index)
        if self.role not in ("target", "source"):
            raise ConfigError(self._key("role"), f"{self.role!r} is neither target nor source")
        check_legal_entity(self._key("legal_entity"), self.legal_entity)
        _require_bytes(self._key("signing_key"), self.signing_key, PUBLIC_KEY_BYTES)
        _require_bytes(self._key("tls_pin"), self.tls_pin, PIN_BYTES)
        if self.ml_dsa_key != b"":
            _require_bytes(self._key("ml_dsa_key"), self.ml_dsa_key, ml_dsa.PUBLIC_BYTES)
        _require_number(self._key("not_before"), self.not_before)
        _require_number(self._key("not_after"), self.not_after)
        if self.not_before >= self.not_after:
            raise ConfigError(self._key("not_after"), "ends before it begins")

    def is_valid_at(self, unix_s: int) -> bool:
        """Tell whether the site may take part at this second of Unix time; both ends count."""
        return self.not_before <= unix_s <= self.not_after and not self.has_left

    @property
    def has_left(self) -> bool:
        """Whether the site has revoked these keys. The hour that it names does not count: a thief can sign any."""
        return self.left_at is not None

    def _key(self, field: str) -> str:
        return f"roster.{self.site_id}.{field}"


@dataclass(frozen=True, slots=True)
class Roster:
    """All sites of a federation at one epoch.

    Attributes:
        federation_id: same alphabet as a site id.
        epoch: 1 for the first roster, one more for each change; never reused.
        entries: in index order, exactly one of them the target.

    Raises:
        ConfigError: indices are not 0 to n-1 in order, there is not exactly one target, or two sites share an id,
            a key, a TLS pin or a legal entity (compared without regard to case, form and blanks).
    """

    federation_id: str
    epoch: int
    entries: tuple[RosterEntry, ...]

    def __post_init__(self) -> None:
        check_name("roster.federation_id", self.federation_id)
        _require_number("roster.epoch", self.epoch)
        if self.epoch < 1:
            raise ConfigError("roster.epoch", "starts at 1")
        if not 1 <= len(self.entries) <= MAX_SITES:
            raise ConfigError("roster.sites", f"needs 1 to {MAX_SITES} sites, has {len(self.entries)}")
        if [entry.index for entry in self.entries] != list(range(len(self.entries))):
            raise ConfigError("roster.sites", "indices are not 0 to n-1 in order")
        targets = [entry.site_id for entry in self.entries if entry.role == "target"]
        if len(targets) != 1:
            raise ConfigError("roster.sites", f"needs exactly one target, has {len(targets)}")
        _require_distinct("site id", ((e.site_id, e.site_id) for e in self.entries))
        _require_distinct("signing key", ((e.signing_key, e.site_id) for e in self.entries))
        _require_distinct("ML-DSA key", ((e.ml_dsa_key, e.site_id) for e in self.entries if e.ml_dsa_key))
        _require_distinct("TLS key", ((e.tls_pin, e.site_id) for e in self.entries))
        # A second site of one legal entity would be a Sybil: it would count twice towards min-others.
        _require_distinct(
            "legal entity",
            (
                (" ".join(unicodedata.normalize("NFKC", e.legal_entity).casefold().split()), e.site_id)
                for e in self.entries
            ),
        )

    @classmethod
    def from_canonical_bytes(cls, data: bytes) -> Roster:
        """Parse what :meth:`canonical_bytes` wrote.

        Raises:
            ConfigError: the bytes are no roster, not canonical, or break an invariant of the class.
        """
        try:
            fields = load_object(data, "version", "federation_id", "epoch", "sites")
            if why := ROSTER.why_not(number(fields["version"])):
                raise ConfigError("roster.version", why)
            entries = tuple(_entry(item) for item in items(fields["sites"]))
            roster = cls(text(fields["federation_id"]), number(fields["epoch"]), entries)
        except ValueError as error:
            raise ConfigError("roster", "is not a roster: unreadable or a field has the wrong type") from error
        # One encoding, hence one digest: every header commits to it, and all sites must find the same.
        if roster.canonical_bytes() != data:
            raise ConfigError("roster", "is not in canonical form")
        return roster

    def canonical_bytes(self) -> bytes:
        """The one encoding of this roster: ASCII JSON, sorted keys, keys and pins in lower-case hex.

        ML-DSA keys are in base64, since a file with 1024 of them in hex could not be read. A roster has format 2 if a
        site has such a key, else format 1.
        """
        return canonical_json(
            {
                "version": ROSTER.number if self.ml_dsa_keys else 1,
                "federation_id": self.federation_id,
                "epoch": self.epoch,
                "sites": [
                    {
                        "index": entry.index,
                        "site_id": entry.site_id,
                        "role": entry.role,
                        "legal_entity": entry.legal_entity,
                        "signing_key": entry.signing_key.hex(),
                        "tls_pin": entry.tls_pin.hex(),
                        "not_before": entry.not_before,
                        "not_after": entry.not_after,
                        **ml_dsa_field(entry.ml_dsa_key),
                    }
                    for entry in self.entries
                ],
            }
        )

    def digest(self) -> bytes:
        """SHA-256 of the canonical bytes, 32 bytes: what every round header commits to."""
        return hashlib.sha256(self.canonical_bytes()).digest()

    @property
    def ml_dsa_keys(self) -> dict[str, bytes]:
        """The raw ML-DSA-65 public key, 1952 bytes, of each site that has one, by site id in roster order."""
        return {entry.site_id: entry.ml_dsa_key for entry in self.entries if entry.ml_dsa_key}

    @property
    def target(self) -> RosterEntry:
        """The one target."""
        return next(entry for entry in self.entries if entry.role == "target")

    @property
    def sources(self) -> tuple[RosterEntry, ...]:
        """All sources, in index order."""
        return tuple(entry for entry in self.entries if entry.role == "source")

    @property
    def gone(self) -> tuple[str, ...]:
        """Ids of the sites that have revoked their keys, in index order."""
        return self.left(range(len(self.entries)))

    def by_id(self, site_id: str) -> RosterEntry:
        """The entry of a site. Raises KeyError for a site that is not in the roster."""
        for entry in self.entries:
            if entry.site_id == site_id:
                return entry
        raise KeyError(site_id)

    def by_index(self, index: int) -> RosterEntry:
        """The entry at a roster index. Raises KeyError outside 0 to n-1."""
        # Python would take a negative index for one from the end.
        if not 0 <= index < len(self.entries):
            raise KeyError(index)
        return self.entries[index]

    def out_of_date(self, indices: Iterable[int], unix_s: int) -> tuple[str, ...]:
        """Ids of those sites, by roster index, that may not take part at this second of Unix time, in index order.

        Raises KeyError for an index that the roster does not have.
        """
        entries = (self.by_index(index) for index in sorted(set(indices)))
        return tuple(entry.site_id for entry in entries if not entry.is_valid_at(unix_s))

    def left(self, indices: Iterable[int]) -> tuple[str, ...]:
        """Ids of those sites, by roster index, that have revoked their keys, likewise."""
        entries = (self.by_index(index) for index in sorted(set(indices)))
        return tuple(entry.site_id for entry in entries if entry.has_left)

    def by_tls_pin(self, tls_pin: bytes) -> RosterEntry:
        """The site whose TLS key has this SHA-256 pin. Raises KeyError where none has."""
        for entry in self.entries:
            if entry.tls_pin == tls_pin:
                return entry
        raise KeyError(tls_pin.hex())


@dataclass(frozen=True, slots=True)
class SignedRoster:
    """A roster as it travels: its bytes verbatim, the CA's signature and one of every member.

    It may be incomplete while signatures are being collected, so trust nothing in it before :meth:`verify`.

    Attributes:
        roster_bytes: canonical bytes of the roster.
        ca_signature: 64 bytes by the CA's roster-signing key, message type ``"Roster"``.
        member_signatures: (site id, 64 bytes by the site's signing key, same type), sorted by site id, one each.
    """

    roster_bytes: bytes
    ca_signature: bytes
    member_signatures: tuple[tuple[str, bytes], ...] = ()

    def __post_init__(self) -> None:
        _require_bytes("roster.ca_signature", self.ca_signature, SIGNATURE_BYTES)
        for site_id, signature in self.member_signatures:
            check_name("roster.member_signatures", site_id)
            _require_bytes(f"roster.member_signatures.{site_id}", signature, SIGNATURE_BYTES)
        ids = [site_id for site_id, _ in self.member_signatures]
        if ids != sorted(set(ids)):
            raise ConfigError("roster.member_signatures", "are not one per site in order of site id")

    def verify(self, ca_public_key: bytes) -> Roster:
        """Return the roster, having checked every signature on it.

        Args:
            ca_public_key: the CA's raw Ed25519 roster-signing key, 32 bytes, from a source that is trusted already.

        Raises:
            ConfigError: the CA did not sign these bytes, a member's signature is missing or wrong, somebody outside
                the roster signed, or the roster itself is invalid.
        """
        roster = self.verify_ca(ca_public_key)
        missing = self.missing_signatures(roster)
        if missing:
            raise ConfigError(
                "roster",
                f"is not signed by {', '.join(missing)}",
                hint="every site must countersign a new roster before anyone may use it",
            )
        return roster

    def verify_ca(self, ca_public_key: bytes) -> Roster:
        """Return the roster if the CA signed it and no member signature is wrong; some may still be missing.

        Raises:
            ConfigError: as for :meth:`verify`, except for missing signatures.
        """
        if not signature_is_valid(ca_public_key, ROSTER_MESSAGE, self.roster_bytes, self.ca_signature):
            raise ConfigError(
                "roster",
                "is not signed by this federation's CA",
                hint="it was edited or belongs to another federation: fetch the kit again",
            )
        roster = Roster.from_canonical_bytes(self.roster_bytes)
        # That site could sign rosters for everyone.
        if any(entry.signing_key == ca_public_key for entry in roster.entries):
            raise ConfigError("roster", "a site's signing key is the CA's own")
        for site_id, signature in self.member_signatures:
            try:
                signing_key = roster.by_id(site_id).signing_key
            except KeyError:
                raise ConfigError("roster", f"carries a signature of {site_id}, which is no member") from None
            if not signature_is_valid(signing_key, ROSTER_MESSAGE, self.roster_bytes, signature):
                raise ConfigError("roster", f"the signature of {site_id} is wrong")
        return roster

    def missing_signatures(self, roster: Roster) -> tuple[str, ...]:
        """Ids of the members of ``roster`` that have not signed yet, in index order."""
        signed = {site_id for site_id, _ in self.member_signatures}
        return tuple(entry.site_id for entry in roster.entries if entry.site_id not in signed)

    def countersigned(self, site_id: str, key: Ed25519PrivateKey) -> SignedRoster:
        """A copy that also carries the signature of ``site_id``, in place of an older one."""
        return self.with_signatures({site_id: sign_bytes(key, ROSTER_MESSAGE, self.roster_bytes)})

    def with_signatures(self, signatures: Mapping[str, bytes]) -> SignedRoster:
        """A copy with these member signatures (site id -> 64 bytes) added, unverified."""
        merged = dict(self.member_signatures) | dict(signatures)
        return replace(self, member_signatures=tuple(sorted(merged.items())))

    def to_bytes(self) -> bytes:
        """The contents of ``roster.json``: ASCII JSON that carries the roster's bytes verbatim as a string."""
        fields = {
            "roster": self.roster_bytes.decode("ascii"),
            "ca_signature": self.ca_signature.hex(),
            "member_signatures": {site_id: signature.hex() for site_id, signature in self.member_signatures},
        }
        return json.dumps(fields, sort_keys=True, indent=1).encode("ascii") + b"\n"

    @classmethod
    def from_bytes(cls, data: bytes) -> SignedRoster:
        """Parse what :meth:`to_bytes` wrote; nothing is verified yet.

        Raises:
            ConfigError: the bytes are no signed roster.
        """
        try:
            fields = load_object(data, "roster", "ca_signature", "member_signatures")
            members = texts(fields["member_signatures"])
            return cls(
                roster_bytes=text(fields["roster"]).encode("ascii"),
                ca_signature=bytes.fromhex(text(fields["ca_signature"])),
                member_signatures=tuple((site, bytes.fromhex(members[site])) for site in sorted(members)),
            )
        except ValueError as error:
            why = "is not a signed roster: unreadable or a field is missing"
            raise ConfigError("roster", why, hint="it is damaged or another file: fetch roster.json again") from error


def sign_roster(
    roster: Roster, ca_key: Ed25519PrivateKey, member_keys: Mapping[str, Ed25519PrivateKey] | None = None
) -> SignedRoster:
    """Sign a roster as the CA and as those members whose keys are at hand (site id -> key)."""
    data = roster.canonical_bytes()
    signed = SignedRoster(data, sign_bytes(ca_key, ROSTER_MESSAGE, data))
    for site_id, key in (member_keys or {}).items():
        signed = signed.countersigned(site_id, key)
    return signed


def ml_dsa_field(key: bytes) -> dict[str, str]:
    """The field of an ML-DSA key in rosters and requests; none of an empty key, as before there were any."""
    return {"ml_dsa_key": base64.b64encode(key).decode("ascii")} if key else {}


def _entry(item: object) -> RosterEntry:
    names = ("index", "site_id", "role", "legal_entity", "signing_key", "tls_pin", "not_before", "not_after")
    has_key = isinstance(item, dict) and "ml_dsa_key" in item
    fields = object_with(item, *names, *(("ml_dsa_key",) if has_key else ()))
    role = text(fields["role"])
    if role not in ("target", "source"):
        raise ValueError("role")
    return RosterEntry(
        index=number(fields["index"]),
        site_id=text(fields["site_id"]),
        role="target" if role == "target" else "source",
        legal_entity=text(fields["legal_entity"]),
        signing_key=bytes.fromhex(text(fields["signing_key"])),
        tls_pin=bytes.fromhex(text(fields["tls_pin"])),
        not_before=number(fields["not_before"]),
        not_after=number(fields["not_after"]),
        ml_dsa_key=base64.b64decode(text(fields["ml_dsa_key"]), validate=True) if has_key else b"",
    )


def _require_number(key: str, value: int) -> None:
    # A bool is an int to Python, and another value in canonical JSON.
    if type(value) is not int or not 0 <= value <= MAX_NUMBER:
        raise ConfigError(key, f"must be an integer from 0 to {MAX_NUMBER}")


def _require_bytes(key: str, value: bytes, length: int) -> None:
    if not isinstance(value, bytes) or len(value) != length:
        raise ConfigError(key, f"must be {length} bytes")


def _require_distinct(what: str, pairs: Iterable[tuple[str | bytes, str]]) -> None:
    seen: dict[str | bytes, str] = {}
    for value, site_id in pairs:
        if value in seen:
            raise ConfigError("roster.sites", f"{seen[value]} and {site_id} have the same {what}")
        seen[value] = site_id
