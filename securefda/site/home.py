"""Enrolment of a site that makes its own keys: it sends a request, and joins with what the authority signed.

New keys and the request are in ``requested/`` of the kit. A package of the authority for these keys moves them to
``startup/``, and the request to ``local/``; a package for the keys already in ``startup/`` brings a new epoch of the
roster. Every other package is refused: its authority enrolled a key that this site did not make.

A roster can be used once every member has signed it. If this site has not signed a package's roster, it signs it, and
the signature is sent back. A kit that is already in use stays as it is until a package with all signatures comes.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from securefda.disk import (
    PUBLIC_MODE,
    SECRET_MODE,
    FileContent,
    make_folder,
    read_file,
    remove_leftovers,
    whole_folder,
    write_file,
    writing_errors,
)
from securefda.errors import CertificateError, ConfigError
from securefda.protocol.roster import Roster, RosterEntry
from securefda.protocol.secret import Secret
from securefda.site.authority import CA_FILE, load_signing_key, private_pem
from securefda.site.certificates import has_names, host_names, parse_ca, parse_certificate
from securefda.site.endpoints import Address, SiteSpec
from securefda.site.enrolment import read_request
from securefda.site.kit import (
    KIT_FILE,
    LOCAL,
    PROPOSAL_FILE,
    PROPOSED_FILES,
    PUBLIC_FILES,
    REQUEST_FILE,
    SECRET_FILES,
    SIGNED_ROSTER_FILE,
    SIGNING_KEY_FILE,
    STARTUP,
    STARTUP_FILES,
    TLS_CERTIFICATE_FILE,
    TLS_KEY_FILE,
    PublicKit,
    check_follows,
    check_not_older,
    check_proposal,
    load_keys,
    open_public,
)
from securefda.site.package import load_public, read_package
from securefda.site.request import SiteKeys, SiteRequest, entry_fingerprint
from securefda.site.sealed import is_sealed, obtain, seal, unseal
from securefda.text import quoted

REQUESTED = "requested"
_JOINING = "joining"


@dataclass(frozen=True, slots=True)
class Joined:
    """The result of joining with a package.

    Attributes:
        public: what the authority signed for this site.
        is_ready: every member has signed, and the kit is of use now.
        signed: the roster with this site's signature, to be sent to the authority; None where it had that already.
        missing_signatures: members that have not signed, other than this site.
        previous: the roster that the kit had before; None at the first join.
    """

    public: PublicKit
    is_ready: bool
    signed: Path | None
    missing_signatures: tuple[str, ...]
    previous: Roster | None

    @property
    def changes(self) -> dict[str, tuple[str, ...]]:
        """Kind of difference from the roster before -> the members concerned; none at the first join."""
        before = {} if self.previous is None else {entry.site_id: entry for entry in self.previous.entries}
        changed: dict[str, list[str]] = {"new": [], "new keys": [], "another role or legal entity": [], "gone": []}
        for entry in self.public.roster.entries if self.previous else ():
            old = before.pop(entry.site_id, None)
            if old is None:
                changed["new"].append(entry.site_id)
            else:
                if entry_fingerprint(old) != entry_fingerprint(entry):
                    changed["new keys"].append(entry.site_id)
                if (old.role, old.legal_entity) != (entry.role, entry.legal_entity):
                    changed["another role or legal entity"].append(entry.site_id)
        changed["gone"] = list(before)
        return {what: tuple(sites) for what, sites in changed.items()}


def request_enrolment(kit: Path, federation_id: str, site: SiteSpec, address: Address | None) -> SiteRequest:
    """Make the keys of a new site and its request, in ``requested/`` of a new kit. All of it or nothing.

    Args:
        kit: folder to make.
        federation_id: which federation it asks to join.
        site: what it asks to be; the host of a target's address is among its names.
        address: where the sources will reach it; of the target only.

    Raises:
        ConfigError: the folder exists or cannot be written, or a name is malformed.
    """
    if kit.exists():
        raise ConfigError(str(kit), "exists already", hint="name a new folder with --out")
    keys = SiteKeys.generate()
    request = SiteRequest.make(federation_id, site, address, keys)
    with writing_errors(kit), whole_folder(kit) as partial:
        _write_requested(partial / REQUESTED, keys, request)
    return request


def request_renewal(
    kit: Path, now: datetime, names: Sequence[str] | None = None, *, lost_key: bool = False
) -> SiteRequest:
    """Make new keys of an enrolled site and the request for them. The kit works with the old ones until it joins.

    The present signing key signs the request. Where the present keys are sealed, the new ones are, too.

    Args:
        kit: of the site; its certificate may have expired.
        now: current time, with a time zone.
        names: host names and IP addresses for the new certificate; None: those of the old one.
        lost_key: the present signing key or its passphrase is lost. It signs nothing then, and the authority needs the
            fingerprint by telephone. A kit whose keys were sealed asks for a new passphrase.

    Raises:
        ConfigError, CertificateError: the kit is not sound, is no site's own, has a request already, or cannot be
            written; or its present key cannot be used.
    """
    with writing_errors(kit):
        _finish(kit)
    if (kit / REQUESTED).exists():
        hint = "join with the authority's package; remove that folder to make new keys only if the request was not sent"
        raise ConfigError(str(kit / REQUESTED), "exists already: a request is under way", hint=hint)
    file = kit / STARTUP / TLS_CERTIFICATE_FILE
    certificate = parse_certificate(str(file), read_file(file, hint="name the site's startup kit").data)
    # An expired kit still describes its site: it was valid once
    old = load_public(kit, min(now, certificate.not_valid_after_utc))
    site = SiteSpec(
        old.site_id, old.role, old.entry.legal_entity, host_names(certificate) if names is None else tuple(names)
    )
    address = old.endpoints.aggregator if old.role == "target" else None
    present_key, passphrase = _present_key(kit, old, lost_key=lost_key)
    keys = SiteKeys.generate()
    request = SiteRequest.make(old.federation_id, site, address, keys, present_key)
    with writing_errors(kit), whole_folder(kit / REQUESTED) as partial:
        _write_requested(partial, keys, request, passphrase)
    return request


def join(kit: Path, package: Path, now: datetime, *, expected_ca: str | None = None) -> Joined:
    """Install what the authority signed for this site into its kit, if it fits the keys that the site made.

    Args:
        kit: folder that :func:`request_enrolment` made, or any later state of it.
        package: of the authority, or the folder that it was made from.
        now: current time, with a time zone.
        expected_ca: SHA-256 fingerprint of the CA certificate in hex, learnt by another way than the package. A kit
            that has joined once knows its CA.

    Raises:
        CertificateError: the CA is another one, or a certificate is not valid.
        ConfigError: the package is not sound, or of another site; its policy or settings are not the authority's; it
            has another key, role, legal entity, name or address than the site asked for; its roster is not newer than
            the kit's, or the site signed another roster of this epoch; or a file cannot be read or written.
    """
    with writing_errors(kit):
        _finish(kit)
    known = kit / STARTUP / CA_FILE
    if known.exists():
        known_ca = parse_ca(str(known), read_file(known).data).fingerprint
    elif expected_ca is None:
        hint = "ask the authority for its CA's fingerprint by telephone, and give it as --ca FINGERPRINT"
        raise ConfigError("--ca", "is needed: this kit knows no CA yet", hint=hint)
    else:
        known_ca = None
    files, local = _read(package)
    public = open_public(package, files, now, expected_ca=expected_ca)
    if known_ca not in (None, public.ca.fingerprint):
        hint = "ask the authority; for another federation, make another kit: securefda site init"
        raise CertificateError(f"{package}: is of another CA than the one that {kit} has joined", hint=hint)
    old = _installed(kit)
    own = _fitting_keys(kit, public, old)
    check_proposal(public, local)
    check_not_older(kit / LOCAL, public.ca.fingerprint, public.roster)
    check_follows(kit / LOCAL, public.ca, public.roster, old.roster if old else None)
    missing = public.signed_roster.missing_signatures(public.roster)
    signed = None
    with writing_errors(kit):
        if public.site_id in missing:
            signed = kit / LOCAL / SIGNED_ROSTER_FILE
            make_folder(kit / LOCAL)
            proposal = public.signed_roster.countersigned(public.site_id, own.keys.signing_key)
            write_file(signed, proposal.to_bytes(), PUBLIC_MODE)
        # A working kit stays in use while the others sign the next epoch
        if not missing or old is None:
            _install(kit, own, files, local)
    others = tuple(site for site in missing if site != public.site_id)
    return Joined(public, not missing, signed, others, old.roster if old else None)


@dataclass(frozen=True, slots=True)
class _OwnKeys:
    """This site's keys, with the request for them if they are in ``requested/``.

    ``ml_dsa_key`` is the one that the request or the roster so far has; empty where that was of format 1.
    """

    keys: SiteKeys
    request: SiteRequest | None
    ml_dsa_key: bytes

    def fits(self, entry: RosterEntry) -> bool:
        """Return whether the roster has exactly these keys for the site."""
        own = (self.keys.signing_public, self.keys.tls_pin, self.ml_dsa_key)
        return own == (entry.signing_key, entry.tls_pin, entry.ml_dsa_key)


def _present_key(kit: Path, old: PublicKit, *, lost_key: bool) -> tuple[Ed25519PrivateKey | None, Secret | None]:
    """Return the key that signs for the site until it has new ones, unless lost, and the passphrase for the new ones.

    Raises:
        ConfigError: the folder is not the site's own kit, or a key cannot be read or opened, or is another one.
    """
    files = [kit / STARTUP / name for name in SECRET_FILES]
    keys = {file: read_file(file) for file in files if file.exists()}
    if not keys and not (kit / LOCAL / REQUEST_FILE).exists():
        hint = "name the kit at the site; where the authority makes the keys: securefda federation renew"
        raise ConfigError(str(kit), "holds no keys of a site", hint=hint)
    sealed = next((file for file, content in keys.items() if is_sealed(content.data)), None)
    passphrase = None
    if sealed is not None:
        passphrase = obtain(str(kit if lost_key else sealed), confirm=lost_key)
    if lost_key:
        return None, passphrase
    file = kit / STARTUP / SIGNING_KEY_FILE
    content = read_file(file, hint=f"put it back; if it is lost: securefda site renew {quoted(kit)} --lost-key")
    if sealed is not None:
        unseal(str(sealed), keys[sealed].data, passphrase)  # the passphrase is the right one, and not asked for again
    key = load_signing_key(str(file), content)
    if key.public_key().public_bytes_raw() != old.entry.signing_key:
        hint = f"put the right one back; if it is lost: securefda site renew {quoted(kit)} --lost-key"
        raise ConfigError(str(file), f"is not the signing key of {old.site_id}", hint=hint)
    return key, passphrase


def _write_requested(folder: Path, keys: SiteKeys, request: SiteRequest, passphrase: Secret | None = None) -> None:
    make_folder(folder)
    for name, key in ((TLS_KEY_FILE, private_pem(keys.tls_key)), (SIGNING_KEY_FILE, private_pem(keys.signing_key))):
        write_file(folder / name, key if passphrase is None else seal(key, passphrase), SECRET_MODE)
    write_file(folder / REQUEST_FILE, request.to_bytes(), PUBLIC_MODE)


def _read(package: Path) -> tuple[dict[str, FileContent], dict[str, FileContent]]:
    """Read the public files of ``startup/`` and the files of ``local/`` from a package or its folder."""
    if not package.is_dir():
        _, files, local = read_package(package)
        return {name: files[name] for name in PUBLIC_FILES}, local
    hint = "name the package that the authority made, or its folder of this site"
    files = {name: read_file(package / STARTUP / name, hint=hint) for name in PUBLIC_FILES}
    given = [name for name in (*PROPOSED_FILES, PROPOSAL_FILE) if (package / LOCAL / name).exists()]
    return files, {name: read_file(package / LOCAL / name) for name in given}


def _installed(kit: Path) -> PublicKit | None:
    """Read what an earlier package installed, expired or not; None before the first join."""
    file = kit / STARTUP / TLS_CERTIFICATE_FILE
    if not (kit / STARTUP / KIT_FILE).exists():
        return None
    certificate = parse_certificate(str(file), read_file(file).data)
    return load_public(kit, certificate.not_valid_after_utc)


def _keys_in(folder: Path) -> SiteKeys | None:
    if not any((folder / name).exists() for name in SECRET_FILES):
        return None
    return SiteKeys(*load_keys(folder, {name: read_file(folder / name) for name in SECRET_FILES}))


def _fitting_keys(kit: Path, public: PublicKit, old: PublicKit | None) -> _OwnKeys:
    """Find the keys of this site that the package is for, and check that it grants what the site asked for or had.

    Raises:
        ConfigError: there are none, or it does not.
    """
    requested = _keys_in(kit / REQUESTED)
    request = read_request(kit / REQUESTED / REQUEST_FILE) if requested else None
    if request is None and (old is None or not any((kit / STARTUP / name).exists() for name in SECRET_FILES)):
        raise ConfigError(str(kit), "holds no keys of a site", hint="make them: securefda site init")
    site_id = request.site.site_id if request else old.site_id if old else ""
    entry = public.entry
    if entry.site_id != site_id:
        hint = f"ask the authority for the package of {site_id}"
        raise ConfigError(str(public.root), f"is of {entry.site_id}, and {kit} is of {site_id}", hint=hint)
    own = _OwnKeys(requested, request, request.ml_dsa_key) if requested and request else None
    if old and not (own and own.fits(entry)):
        # Only now, since new keys may replace present ones that can no longer be opened
        current = _keys_in(kit / STARTUP)
        if current and (own is None or _OwnKeys(current, None, old.entry.ml_dsa_key).fits(entry)):
            own = _OwnKeys(current, None, old.entry.ml_dsa_key)
    assert own is not None
    if not own.fits(entry):
        which = "ML-DSA" if own.keys.tls_pin == entry.tls_pin else "TLS"
        which = "signing" if own.keys.signing_public != entry.signing_key else which
        hint = "do not use this package: compare fingerprints with the authority, the request may have been replaced"
        raise ConfigError("roster", f"has another {which} key of {site_id} than this site made", hint=hint)
    if own.request:
        asked = own.request
        spec, federation, address = asked.site, asked.federation_id, asked.address
        names_fit = has_names(public.certificate, federation, spec)
    else:
        assert old is not None
        federation, address = old.federation_id, old.endpoints.aggregator
        spec = SiteSpec(site_id, old.role, old.entry.legal_entity, host_names(old.certificate))
        names_fit = host_names(public.certificate) == spec.names
    fits = {
        f"federation {federation}": public.federation_id == federation,
        f"the role of a {spec.role}": public.role == spec.role,
        f"the legal entity {spec.legal_entity!r}": entry.legal_entity == spec.legal_entity,
        f"the names {', '.join(spec.names) or 'of no host'}": names_fit,
        f"the address {address}": public.role != "target" or public.endpoints.aggregator == address,
    }
    for what, fit in fits.items():
        if not fit:
            hint = "do not use this package: ask the authority why it differs"
            raise ConfigError(str(public.root), f"does not have {what}, for which {site_id} asked", hint=hint)
    return own


def _install(kit: Path, own: _OwnKeys, files: Mapping[str, FileContent], local: Mapping[str, FileContent]) -> None:
    """Return the folders that a run writes to: the kit's, and a run folder elsewhere or its nearest existing parent."""
    with whole_folder(kit / _JOINING) as partial:
        for name, content in files.items():
            write_file(partial / name, content.data, PUBLIC_MODE)
        if own.request is not None:
            for name in SECRET_FILES:  # as they are: they may be sealed
                write_file(partial / name, read_file(kit / REQUESTED / name).data, SECRET_MODE)
            write_file(partial / REQUEST_FILE, own.request.to_bytes(), PUBLIC_MODE)
    make_folder(kit / LOCAL)
    for name in PROPOSED_FILES:
        if name in local and not (kit / LOCAL / name).exists():
            write_file(kit / LOCAL / name, local[name].data, 0o644)
    _finish(kit)


def _finish(kit: Path) -> None:
    """Move the contents of ``joining/`` to their place, also after a crash half way, and remove what is left over."""
    joining = kit / _JOINING
    for written in (joining, kit / REQUESTED, *(kit / STARTUP / name for name in SECRET_FILES)):
        remove_leftovers(written)
    if not joining.exists():
        return
    make_folder(kit / STARTUP)
    make_folder(kit / LOCAL)
    for name in (*STARTUP_FILES, REQUEST_FILE):
        if (joining / name).exists():
            mode = SECRET_MODE if name in SECRET_FILES else PUBLIC_MODE
            folder = kit / (LOCAL if name == REQUEST_FILE else STARTUP)
            write_file(folder / name, read_file(joining / name).data, mode)
    if (joining / REQUEST_FILE).exists():
        shutil.rmtree(kit / REQUESTED, ignore_errors=True)
    # Remove the request last: while it is there, what is left of requested/ can safely be removed
    for name in (*STARTUP_FILES, REQUEST_FILE):
        (joining / name).unlink(missing_ok=True)
    joining.rmdir()
