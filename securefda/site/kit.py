"""A site's startup kit: what enrolment hands to one site, checked as a whole before anything uses it.

``startup/`` is read-only and comes from the CA; ``local/`` belongs to the site. ``kit.json`` is the CA's signed list of
the public files. The two private keys are not in that list: they are bound through their public halves in the roster
and the certificate, so the CA need not keep them, nor ever have had them.

A roster changes when a site must go, because it left or its key was stolen. Restoring the old ``startup/``, by mistake
or at someone's request, would readmit that site. A site therefore remembers in ``local/`` which roster it has used;
that stays when ``startup/`` is replaced.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509 import Certificate

from securefda.disk import SECRET_MODE, FileContent, make_folder, read_file, write_file, writing_errors
from securefda.errors import CertificateError, ConfigError, ConfigErrors
from securefda.formats import KIT, SEEN_ROSTERS
from securefda.parse import canonical_json, load_object, number, object_with, text, texts
from securefda.protocol.envelope import sign_bytes, signature_is_valid
from securefda.protocol.ml_dsa import ml_dsa_public
from securefda.protocol.roster import Role, Roster, RosterEntry, SignedRoster, is_name
from securefda.protocol.secret import Secret
from securefda.site.authority import CA_FILE, load_signing_key, load_tls_key, private_pem
from securefda.site.certificates import (
    CaCertificate,
    check_entry_dates,
    check_server_name,
    check_site_certificate,
    parse_ca,
    parse_certificate,
    public_key_pin,
    tls_pin,
)
from securefda.site.endpoints import Endpoints
from securefda.site.left import require_still_member, require_without_left, taken, with_left
from securefda.site.policy.schema import SourcePolicy, load_policy
from securefda.site.policy.signed import SignedBy, load_signed_policy, read_signed_policy, read_with_people
from securefda.site.training_secret import read_training_secret
from securefda.text import names, quoted

KIT_MESSAGE, PROPOSAL_MESSAGE = "Kit", "Proposal"
STARTUP, LOCAL = "startup", "local"
KIT_FILE, ROSTER_FILE, ENDPOINTS_FILE = "kit.json", "roster.json", "endpoints.toml"
TLS_CERTIFICATE_FILE, TLS_KEY_FILE, SIGNING_KEY_FILE = "tls.crt", "tls.key", "signing.key"
ROSTERS_FILE, REQUEST_FILE, SIGNED_ROSTER_FILE = "rosters.json", "request.json", "roster.signed.json"
POLICY_FILE, POLICY_SIGNATURE_FILE, SETTINGS_FILE = "policy.toml", "policy.sig", "settings.toml"
PROPOSAL_FILE, PROPOSED_FILES = "proposal.json", (POLICY_FILE, SETTINGS_FILE)
LISTED_FILES = (CA_FILE, ENDPOINTS_FILE, TLS_CERTIFICATE_FILE)
SECRET_FILES = (SIGNING_KEY_FILE, TLS_KEY_FILE)
PUBLIC_FILES = (KIT_FILE, ROSTER_FILE, *LISTED_FILES)
STARTUP_FILES = (*PUBLIC_FILES, *SECRET_FILES)
_FETCH = "fetch the site's startup kit again; startup/ is not for editing"


@dataclass(frozen=True, slots=True)
class Manifest:
    """The contents of ``kit.json``: whose kit it is, for which roster, with which public files.

    Attributes:
        roster_digest: SHA-256 of the roster's canonical bytes, 32 bytes.
        files: (file name in ``startup/``, SHA-256 in hex) of every public file that carries no roster signature.
    """

    federation_id: str
    site_id: str
    role: str
    epoch: int
    roster_digest: bytes
    files: tuple[tuple[str, str], ...]

    def to_signed_bytes(self, roster_key: Ed25519PrivateKey) -> bytes:
        """Return the contents of ``kit.json``."""
        fields = canonical_json(
            {
                "version": KIT.number,
                "federation_id": self.federation_id,
                "site_id": self.site_id,
                "role": self.role,
                "epoch": self.epoch,
                "roster_digest": self.roster_digest.hex(),
                "files": dict(self.files),
            }
        )
        signature = sign_bytes(roster_key, KIT_MESSAGE, fields)
        envelope = {"manifest": fields.decode("ascii"), "ca_signature": signature.hex()}
        return json.dumps(envelope, sort_keys=True, indent=1).encode("ascii") + b"\n"

    @classmethod
    def from_signed_bytes(cls, name: str, data: bytes, ca: CaCertificate) -> Manifest:
        """Parse and verify ``kit.json``; ``name`` is its path, for the errors.

        Raises:
            CertificateError: it is of another federation than ``ca``.
            ConfigError: it is malformed, or not signed by ``ca``.
        """
        if why := KIT.why_not_of(data):
            raise ConfigError(name, why, hint=_FETCH)
        try:
            envelope = load_object(data, "manifest", "ca_signature")
            signed = text(envelope["manifest"]).encode("ascii")
            signature = bytes.fromhex(text(envelope["ca_signature"]))
            manifest = cls._parse(signed)
        except ValueError as error:
            raise ConfigError(name, "is not a kit's manifest", hint=_FETCH) from error
        if manifest.federation_id != ca.federation_id:
            raise CertificateError(
                f"{name}: is of federation {manifest.federation_id}, but {CA_FILE} of {ca.federation_id}", hint=_FETCH
            )
        if not signature_is_valid(ca.roster_key, KIT_MESSAGE, signed, signature):
            raise ConfigError(name, f"is not signed by the CA in {CA_FILE}", hint=_FETCH)
        return manifest

    @classmethod
    def _parse(cls, data: bytes) -> Manifest:
        fields = load_object(data, "version", "federation_id", "site_id", "role", "epoch", "roster_digest", "files")
        if number(fields["version"]) != KIT.number:
            raise ValueError("of another format")
        if not is_name(text(fields["federation_id"])) or not is_name(text(fields["site_id"])):
            raise ValueError("malformed names")
        return cls(
            federation_id=text(fields["federation_id"]),
            site_id=text(fields["site_id"]),
            role=text(fields["role"]),
            epoch=number(fields["epoch"]),
            roster_digest=bytes.fromhex(text(fields["roster_digest"])),
            files=tuple(sorted(texts(fields["files"]).items())),
        )


@dataclass(frozen=True, slots=True, eq=False)
class PublicKit:
    """The part of a kit that the authority signed, checked by :func:`open_public`. It needs none of the site's keys.

    Attributes:
        root: the folder that holds ``startup/`` and ``local/``.
        entry: this site's own roster entry.
        roster: the roster; of a :class:`Kit`, signed by every member.
        signed_roster: the same with its signatures, for handing on.
        ca: the federation's trust anchor.
        certificate: this site's TLS certificate.
        certificate_pem: the same as it stands in ``tls.crt``.
        endpoints: where the aggregator is.
    """

    root: Path
    entry: RosterEntry
    roster: Roster
    signed_roster: SignedRoster
    ca: CaCertificate
    certificate: Certificate
    certificate_pem: bytes
    endpoints: Endpoints

    @property
    def federation_id(self) -> str:
        """The federation's name."""
        return self.roster.federation_id

    @property
    def site_id(self) -> str:
        """This site's id."""
        return self.entry.site_id

    @property
    def role(self) -> Role:
        """``"target"`` or ``"source"``."""
        return self.entry.role

    @property
    def startup(self) -> Path:
        """The signed, read-only half of the kit."""
        return self.root / STARTUP

    @property
    def local(self) -> Path:
        """The half that is the site's own: policy, settings, ledger, logs."""
        return self.root / LOCAL


@dataclass(frozen=True, slots=True, eq=False)
class Kit(PublicKit):
    """A startup kit that passed every check of :func:`load_kit`.

    Attributes:
        signing_key: this site's Ed25519 identity key.
        tls_key_pem: this site's TLS key, PKCS #8 PEM.
    """

    signing_key: Ed25519PrivateKey = field(repr=False)
    tls_key_pem: Secret = field(repr=False)

    @property
    def certificate_ends(self) -> datetime:
        """When the first of the certificates of the site and the CA ends."""
        return min(self.certificate.not_valid_after_utc, self.ca.certificate.not_valid_after_utc)

    def signed_policy(self) -> tuple[Path, bytes]:
        """The path of ``local/policy.toml`` and its contents as the site signed them.

        Raises:
            ConfigError: ``policy``, the file or its signature is missing or wrong.
        """
        file = self.local / POLICY_FILE
        return file, read_signed_policy(file, self.federation_id, self.site_id, self.entry.signing_key)

    def signers(self) -> tuple[SignedBy, ...]:
        """The people who signed ``local/policy.toml`` as it is.

        Raises:
            ConfigError: as :meth:`signed_policy`, but not where too few people signed.
        """
        file = self.local / POLICY_FILE
        return read_with_people(file, self.federation_id, self.site_id, self.entry.signing_key)[1]


def make_manifest(roster: Roster, site_id: str, files: Mapping[str, bytes]) -> Manifest:
    """Return the manifest of a site's kit; ``files`` holds the contents of all :data:`LISTED_FILES`."""
    entry = roster.by_id(site_id)
    hashes = tuple((name, hashlib.sha256(files[name]).hexdigest()) for name in sorted(LISTED_FILES))
    return Manifest(roster.federation_id, site_id, entry.role, roster.epoch, roster.digest(), hashes)


def make_proposal(key: Ed25519PrivateKey, roster: Roster, site_id: str, files: Mapping[str, bytes]) -> bytes:
    """Return the contents of ``proposal.json``: the CA's signature for the policy and settings in a site's package.

    It is for this roster, and lists all of the files: none can be left out, or taken from a package of another epoch.

    Where the CA makes no keys, the package need not be kept secret on its way, and nothing else signs these two.
    """
    hashes = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    fields = canonical_json(
        {
            "federation_id": roster.federation_id,
            "site_id": site_id,
            "roster_digest": roster.digest().hex(),
            "files": hashes,
        }
    )
    signature = sign_bytes(key, PROPOSAL_MESSAGE, fields)
    envelope = {"proposal": fields.decode("ascii"), "ca_signature": signature.hex()}
    return json.dumps(envelope, sort_keys=True, indent=1).encode("ascii") + b"\n"


def check_proposal(public: PublicKit, files: Mapping[str, FileContent]) -> None:
    """Check that the policy and settings among a package's files of ``local/`` are those that the CA signed.

    Raises:
        ConfigError: one was changed on its way, left out or put in, or the proposal is missing, malformed, or not of
            this CA, site and roster.
    """
    proposed = {name: hashlib.sha256(files[name].data).hexdigest() for name in PROPOSED_FILES if name in files}
    name, hint = f"{public.root}: {PROPOSAL_FILE}", "ask the authority for the package again"
    if PROPOSAL_FILE not in files:
        raise ConfigError(name, "is missing: nothing says which policy and settings the CA signed", hint=hint)
    try:
        envelope = load_object(files[PROPOSAL_FILE].data, "proposal", "ca_signature")
        signed = text(envelope["proposal"]).encode("ascii")
        signature = bytes.fromhex(text(envelope["ca_signature"]))
        fields = load_object(signed, "federation_id", "site_id", "roster_digest", "files")
        listed = texts(fields["files"])
    except ValueError as error:
        raise ConfigError(name, "is not the authority's proposal for a site", hint=hint) from error
    if not signature_is_valid(public.ca.roster_key, PROPOSAL_MESSAGE, signed, signature):
        raise ConfigError(name, f"is not signed by the CA in {CA_FILE}", hint=hint)
    if (fields["federation_id"], fields["site_id"]) != (public.federation_id, public.site_id):
        raise ConfigError(name, f"is for {fields['site_id']}, not {public.site_id}", hint=hint)
    if fields["roster_digest"] != public.roster.digest().hex():
        raise ConfigError(name, f"is not of this roster (epoch {public.roster.epoch})", hint=hint)
    for file in sorted(listed.keys() - proposed.keys()):
        raise ConfigError(f"{public.root}: {file}", f"is missing, but the CA signed {PROPOSAL_FILE} with it", hint=hint)
    for file, digest in proposed.items():
        if listed.get(file) != digest:
            raise ConfigError(f"{public.root}: {file}", f"was changed after the CA signed {PROPOSAL_FILE}", hint=hint)


def require_startup(path: Path) -> None:
    """Check that a folder is a startup kit.

    Raises:
        ConfigError: it has not; the hint names the kits in it, or how the site joins.
    """
    if (path / STARTUP).is_dir():
        return
    hint = _FETCH if path.is_dir() else "check the path"
    if (path / "requested").is_dir():
        hint = f"join with the authority's package: securefda site join {quoted(path)} PACKAGE --ca FINGERPRINT"
    elif kits := sorted(str(found.parent) for found in path.glob(f"*/{STARTUP}")):
        hint = f"name one of the kits in it: {names(kits)}"
    elif (file := path / "federation.toml").is_file():
        init = f"securefda federation init {quoted(file)}"
        hint = f"it holds a federation's file: make kits with {init}, or name the file itself"
    raise ConfigError(str(path), f"is not a startup kit: it has no folder {STARTUP}/", hint=hint)


def load_kit(
    path: Path,
    now: datetime,
    *,
    expected_site: str | None = None,
    expected_role: Role | None = None,
    expected_ca: str | None = None,
) -> Kit:
    """Read a startup kit and check all of it. Nothing is written; a process that goes on with it calls :func:`use_kit`.

    Guarantees: one CA signed manifest, certificate and roster; every member signed the roster; both private keys
    are readable by their owner alone and are this site's, and so is the secret for training, once the site has made
    one; nothing is expired at ``now``; the roster is not older than one that the site has used, and says which sites
    have left since. That the CA is the right one follows only if the kit came over a trusted way or
    ``expected_ca`` is given.

    Args:
        path: folder with ``startup/`` in it.
        now: current time, with a time zone.
        expected_site: the site that the caller means to be.
        expected_role: the role that the caller means to play.
        expected_ca: SHA-256 fingerprint of the CA certificate in hex, learnt by another way than the kit.

    Raises:
        CertificateError: a certificate is expired, not yet valid, of another federation, or carries the wrong name.
        ConfigError: a file is missing, unreadable, edited, open to others, of another site, or of an earlier epoch.
    """
    folder = path / STARTUP
    require_startup(path)
    files = {name: read_file(folder / name, hint=_FETCH) for name in STARTUP_FILES}
    kit = open_kit(path, files, now, expected_ca=expected_ca)
    kit = replace(kit, roster=with_left(kit.roster, taken(kit.local, kit.federation_id)))
    check_not_older(kit.local, kit.ca.fingerprint, kit.roster)
    read_training_secret(kit.local)
    if expected_site not in (None, kit.site_id):
        raise ConfigError(
            str(path), f"is the kit of {kit.site_id}, not of {expected_site}", hint="use the site's own kit"
        )
    if expected_role not in (None, kit.role):
        why = f"is the kit of a {kit.role} ({kit.site_id}), but a {expected_role}'s is needed"
        raise ConfigError(str(path), why, hint="a target starts `securefda aggregator`, a source `securefda source`")
    return kit


def use_kit(kit: Kit) -> None:
    """Remember that the site uses this kit's roster: from now on none that is older, nor another of its epoch.

    Raises:
        ConfigError: ``local/`` cannot be written, or an older memory in it forbids this roster.
        CertificateError: this site has left the federation.
    """
    require_still_member(kit.roster.by_id(kit.site_id))
    remember(kit.local, kit.ca.fingerprint, kit.roster)


def open_kit(root: Path, files: Mapping[str, FileContent], now: datetime, *, expected_ca: str | None = None) -> Kit:
    """Check a kit whose ``startup/`` files have been read. Raises as :func:`load_kit` does."""
    public = open_public(root, files, now, expected_ca=expected_ca)
    missing = public.signed_roster.missing_signatures(public.roster)
    if missing:
        hint = f"wait for the authority's package with all signatures, then: securefda site join {quoted(root)} PACKAGE"
        raise ConfigError(str(root / STARTUP / ROSTER_FILE), f"is not signed by {', '.join(missing)}", hint=hint)
    signing_key, tls_key = load_keys(root / STARTUP, files)
    entry = public.entry
    if public_key_pin(tls_key.public_key()) != entry.tls_pin:
        name = str(root / STARTUP / TLS_KEY_FILE)
        raise ConfigError(name, f"is not the TLS key of {entry.site_id}", hint=_FETCH)
    if signing_key.public_key().public_bytes_raw() != entry.signing_key:
        name = str(root / STARTUP / SIGNING_KEY_FILE)
        raise ConfigError(name, f"is not the signing key of {entry.site_id}", hint=_FETCH)
    if entry.ml_dsa_key and ml_dsa_public(signing_key) != entry.ml_dsa_key:
        hint = "its ML-DSA key follows from the signing key: have the authority renew the site"
        raise ConfigError(str(root / STARTUP / ROSTER_FILE), f"has another ML-DSA key of {entry.site_id}", hint=hint)
    return Kit(
        root=root,
        entry=entry,
        roster=public.roster,
        signed_roster=public.signed_roster,
        ca=public.ca,
        certificate=public.certificate,
        certificate_pem=public.certificate_pem,
        endpoints=public.endpoints,
        signing_key=signing_key,
        tls_key_pem=Secret(private_pem(tls_key)),
    )


def load_keys(folder: Path, files: Mapping[str, FileContent]) -> tuple[Ed25519PrivateKey, ec.EllipticCurvePrivateKey]:
    """Load the signing key and the TLS key from a folder's files. Raises ConfigError naming the file."""
    tls_key = load_tls_key(str(folder / TLS_KEY_FILE), files[TLS_KEY_FILE])
    return load_signing_key(str(folder / SIGNING_KEY_FILE), files[SIGNING_KEY_FILE]), tls_key


def open_public(
    root: Path, files: Mapping[str, FileContent], now: datetime, *, expected_ca: str | None = None
) -> PublicKit:
    """Check the :data:`PUBLIC_FILES` of a kit. Signatures of members may still be missing; none is wrong.

    Raises:
        ConfigError, CertificateError: as :func:`load_kit` does.
    """
    folder = root / STARTUP
    ca = parse_ca(str(folder / CA_FILE), files[CA_FILE].data)
    if expected_ca is not None and ca.fingerprint != expected_ca.replace(":", "").lower():
        raise CertificateError(f"{folder / CA_FILE}: is not the CA with the expected fingerprint", hint=_FETCH)
    manifest = Manifest.from_signed_bytes(str(folder / KIT_FILE), files[KIT_FILE].data, ca)
    certificate_name = str(folder / TLS_CERTIFICATE_FILE)
    certificate = parse_certificate(certificate_name, files[TLS_CERTIFICATE_FILE].data)
    check_site_certificate(certificate_name, certificate, ca, manifest.site_id, now)
    name = str(folder / ROSTER_FILE)
    with naming_roster(name):
        signed_roster = SignedRoster.from_bytes(files[ROSTER_FILE].data)
        roster = signed_roster.verify_ca(ca.roster_key)
    if roster.federation_id != manifest.federation_id:
        raise CertificateError(f"{name}: is of federation {roster.federation_id}, not {manifest.federation_id}")
    if roster.digest() != manifest.roster_digest:
        raise ConfigError(name, f"is not the roster of this kit (epoch {roster.epoch} / {manifest.epoch})", hint=_FETCH)
    try:
        entry = roster.by_id(manifest.site_id)
    except KeyError:
        raise ConfigError(name, f"does not list {manifest.site_id}", hint=_FETCH) from None
    check_entry_dates(entry, now)
    if tls_pin(certificate) != entry.tls_pin:
        raise ConfigError(
            str(folder / TLS_CERTIFICATE_FILE), f"the roster pins another TLS key of {entry.site_id}", hint=_FETCH
        )
    listed = dict(manifest.files)
    for file in LISTED_FILES:
        if listed.get(file) != hashlib.sha256(files[file].data).hexdigest():
            raise ConfigError(str(folder / file), f"was changed after the CA signed {KIT_FILE}", hint=_FETCH)
    endpoints = Endpoints.from_toml(files[ENDPOINTS_FILE].data)
    if entry.role == "target":
        check_server_name(certificate_name, certificate, ca, endpoints.server_name, now)
    return PublicKit(root, entry, roster, signed_roster, ca, certificate, files[TLS_CERTIFICATE_FILE].data, endpoints)


@dataclass(frozen=True, slots=True)
class PolicyFile:
    """A policy file and, where it is in a startup kit, the kit of the site that owns it."""

    path: Path
    kit: Kit | None

    @classmethod
    def at(cls, path: Path, now: datetime) -> PolicyFile:
        """Find the policy at ``path``: a kit's folder, the policy inside one, or a file by itself.

        Raises:
            ConfigError, CertificateError: the kit is unsound, or there is nothing at ``path``.
        """
        root = path if path.is_dir() else path.resolve().parent.parent
        if not path.is_dir() and not (path.resolve().parent.name == LOCAL and (root / STARTUP).is_dir()):
            return cls(path, None)
        return cls(root / LOCAL / POLICY_FILE, load_kit(root, now))

    def load(self) -> SourcePolicy:
        """Read the policy; a kit's only as its site signed it.

        Raises:
            ConfigError: it is wrong, or not signed; the site is named where it is known.
        """
        if self.kit is None:
            return load_policy(self.path)
        with naming(self.kit.site_id):
            return load_signed_policy(self.kit)


@contextmanager
def naming(site: str) -> Iterator[None]:
    """Make an error raised in the block name the site whose policy it concerns."""
    try:
        yield
    except ConfigError as error:
        each = error.errors if isinstance(error, ConfigErrors) else (error,)
        if all(site in str(one) for one in each):
            raise
        where = f", in the policy of {site}"
        raise ConfigErrors.of(ConfigError(one.key, one.why + where, hint=one.hint) for one in each) from error


@contextmanager
def naming_roster(file: Path | str, hint: str = "") -> Iterator[None]:
    """Make an error about a roster raised in the block name the roster's file; ``hint`` replaces the error's own."""
    try:
        yield
    except ConfigError as error:
        part = error.key.removeprefix("roster").removeprefix(".")
        why = f"{part}: {error.why}" if part else error.why
        raise ConfigError(str(file), why, hint=hint or error.hint or _FETCH) from error


def signed_roster_at(file: Path) -> SignedRoster:
    """Read a roster with its signatures, which nothing here checks. Raises ConfigError: it is none."""
    data = read_file(file).data
    with naming_roster(file):
        return SignedRoster.from_bytes(data)


def check_not_older(local: Path, ca_fingerprint: str, roster: Roster) -> None:
    """Refuse a roster that is older than one that this site has used, or another one of the same epoch.

    Args:
        local: the kit's folder ``local/``; without a memory in it every roster passes.
        ca_fingerprint: SHA-256 of the CA's certificate in hex: epochs of two CAs have nothing to do with each other.
        roster: verified.

    Raises:
        ConfigError: it is older or another one, or the memory cannot be read.
    """
    latest = _read(local).get(ca_fingerprint)
    if latest is None:
        return
    epoch, digest = latest
    hint = f"put the startup/ folder of epoch {epoch} or later back"
    if roster.epoch < epoch:
        raise ConfigError("roster", f"is of epoch {roster.epoch}, but this site has used epoch {epoch}", hint=hint)
    if roster.epoch == epoch and roster.digest().hex() != digest:
        why = f"is not the roster of epoch {epoch} that this site has used: its CA signed two"
        raise ConfigError("roster", why, hint="ask the CA; other sites may have been given another roster, too")


def check_follows(local: Path, ca: CaCertificate, new: Roster, current: Roster | None) -> None:
    """Refuse a roster older than one that the site has or has signed, and a second roster of the same epoch.

    Args:
        local: the kit's folder ``local/``, with the roster that the site signed last.
        ca: of this federation.
        new: verified as far as the CA's signature.
        current: the roster of the kit, if it has one.

    Raises:
        ConfigError: it does or is, it lists keys that a site has revoked by a certificate that this one has taken, or
            the roster that the site signed last cannot be read.
    """
    require_without_left(local, new)
    file, seen = local / SIGNED_ROSTER_FILE, [current] if current else []
    if file.exists():
        data = read_file(file).data
        with naming_roster(file, "restore it from a backup: it is the roster that this site signed last"):
            seen.append(SignedRoster.from_bytes(data).verify_ca(ca.roster_key))
    for roster in seen:
        if new.epoch < roster.epoch:
            why = f"is of epoch {new.epoch}, but this site has or has signed epoch {roster.epoch}"
            raise ConfigError("roster", why, hint="ask the authority for the package of the newest epoch")
        if new.epoch == roster.epoch and new != roster:
            why = f"is not the roster of epoch {roster.epoch} that this site has or has signed: its CA signed two"
            raise ConfigError("roster", why, hint="ask the authority; other sites may have another roster, too")


def remember(local: Path, ca_fingerprint: str, roster: Roster) -> None:
    """Record that this site uses this roster from now on; it is on the disk when this returns.

    Raises:
        ConfigError: as :func:`check_not_older`, or the memory cannot be written.
    """
    check_not_older(local, ca_fingerprint, roster)
    entry = (roster.epoch, roster.digest().hex())
    known = _read(local)
    if known.get(ca_fingerprint) == entry:
        return
    latest = {**known, ca_fingerprint: entry}
    rosters = {ca: {"epoch": epoch, "digest": digest} for ca, (epoch, digest) in latest.items()}
    with writing_errors(local):
        make_folder(local)
        data = canonical_json({"version": SEEN_ROSTERS.number, "rosters": rosters}) + b"\n"
        write_file(local / ROSTERS_FILE, data, SECRET_MODE)


def _read(local: Path) -> dict[str, tuple[int, str]]:
    """Return CA fingerprint -> (epoch, digest in hex) of the latest roster used."""
    path = local / ROSTERS_FILE
    if not path.exists():
        return {}
    data = read_file(path).data
    if why := SEEN_ROSTERS.why_not_of(data):
        raise ConfigError(str(path), why, hint="use that release; never delete this file")
    try:
        fields = load_object(data, "version", "rosters")
        if number(fields["version"]) != SEEN_ROSTERS.number or not isinstance(fields["rosters"], dict):
            raise ValueError("another format")
        rosters = {ca: object_with(item, "epoch", "digest") for ca, item in fields["rosters"].items()}
        return {ca: (number(item["epoch"]), text(item["digest"])) for ca, item in rosters.items()}
    except ValueError as error:
        hint = "put it back from a backup; delete it only if you are certain that this kit is the newest"
        raise ConfigError(str(path), "is damaged: it says which roster this site has used last", hint=hint) from error
