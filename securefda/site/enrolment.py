"""Enrolment: making a federation's files and changing who belongs to it.

The federation's folder holds ``ca/`` (the CA's keys and its copies of what it signed) and one startup kit per site,
``SITE/startup`` and ``SITE/local``. Each change makes the next roster epoch, which can be used once every member has
signed it. Members whose signing key is still in the folder sign at once; the others sign at home with
:func:`countersign`, and :func:`merge_signatures` collects their signatures. For a kit that has left the folder, and for
a site that made its keys at home, ``SITE/startup`` holds the public files only.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

from securefda.disk import PUBLIC_MODE, SECRET_MODE, make_folder, read_file, whole_folder, write_file, writing_errors
from securefda.errors import ConfigError
from securefda.protocol.roster import Role, Roster, RosterEntry, SignedRoster, check_name, sign_roster
from securefda.site.authority import CA_FILE, CA_KEY_FILE, Authority, Identity, load_signing_key, private_pem
from securefda.site.certificates import (
    CA_VALIDITY,
    SITE_VALIDITY,
    check_server_name,
    host_names,
    parse_certificate,
    tls_pin,
    to_pem,
)
from securefda.site.endpoints import Address, Endpoints, SiteSpec
from securefda.site.kit import (
    ENDPOINTS_FILE,
    KIT_FILE,
    LOCAL,
    POLICY_FILE,
    PROPOSAL_FILE,
    PROPOSED_FILES,
    ROSTER_FILE,
    SECRET_FILES,
    SETTINGS_FILE,
    SIGNED_ROSTER_FILE,
    SIGNING_KEY_FILE,
    STARTUP,
    TLS_CERTIFICATE_FILE,
    TLS_KEY_FILE,
    Kit,
    check_follows,
    make_manifest,
    make_proposal,
    naming_roster,
    signed_roster_at,
)
from securefda.site.policy.signed import write_policy_signature
from securefda.site.request import MAX_REQUEST_BYTES, SiteRequest, entry_fingerprint
from securefda.text import quoted

CA_FOLDER = "ca"
_ISSUED = "issued"
_LOCAL_MODE = 0o644

SiteText = str | Callable[[str], str]
"""Contents of a file of one site: the same for all, or made from the site id."""


@dataclass(frozen=True, slots=True)
class Enrolment:
    """The result of a change of the federation.

    Attributes:
        root: the federation's folder.
        roster: the new roster.
        ca_fingerprint: SHA-256 of the CA certificate in hex, for comparing by another way than the kits.
        missing_signatures: members that must countersign before the roster can be used; usually none.
    """

    root: Path
    roster: Roster
    ca_fingerprint: str
    missing_signatures: tuple[str, ...]

    @property
    def kits(self) -> tuple[Path, ...]:
        """The kit of every site, in roster order."""
        return tuple(self.root / entry.site_id for entry in self.roster.entries)

    @property
    def fingerprints(self) -> dict[str, str]:
        """Site id -> fingerprint of its keys, in roster order; each site compares its own by telephone."""
        return {entry.site_id: entry_fingerprint(entry) for entry in self.roster.entries}


@dataclass(frozen=True, slots=True)
class _Store:
    """The federation's folder as the CA sees it."""

    root: Path
    authority: Authority
    endpoints: Endpoints

    @property
    def ca_folder(self) -> Path:
        return self.root / CA_FOLDER

    def certificate_path(self, site_id: str) -> Path:
        return self.ca_folder / _ISSUED / f"{site_id}.crt"

    def startup(self, site_id: str) -> Path:
        return self.root / site_id / STARTUP


def init_federation(
    root: Path,
    federation_id: str,
    sites: Sequence[SiteSpec | SiteRequest],
    *,
    aggregator: Address,
    policy_text: SiteText,
    settings_text: SiteText | None,
    now: datetime,
    server_name: str | None = None,
    validity: timedelta = SITE_VALIDITY,
    ca_validity: timedelta = CA_VALIDITY,
) -> Enrolment:
    """Make a federation: CA, identities, signed roster, one startup kit per site. All of it or nothing.

    Args:
        root: folder to make; an empty one may exist.
        federation_id: 1 to 63 characters of ``a-z 0-9 -``.
        sites: exactly one target; the order is the roster's. A request is of a site that made its own keys; such a
            site signs the roster at home, before it can be used.
        aggregator: where the sources will connect to.
        policy_text: contents of each source's ``local/policy.toml``; a target has none.
        settings_text: contents of each site's ``local/settings.toml``; None writes none.
        now: current time, with a time zone; certificates are valid from five minutes before.
        server_name: what the sources expect in the target's certificate; default: the aggregator's host.
        validity: of the sites' certificates and roster entries.
        ca_validity: of the CA.

    Raises:
        ConfigError: the folder is not empty or not writable, the sites do not make a valid roster, or a request is for
            another federation or address.
        CertificateError: the target's names lack ``server_name``.
    """
    check_name("federation-id", federation_id)
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise ConfigError(str(root), "exists already", hint="name a new folder, or use `securefda federation add`")
    authority = Authority.create(federation_id, now, ca_validity)
    identities = [authority.issue(site, now, validity) for site in sites]
    entries = tuple(identity.entry(index) for index, identity in enumerate(identities))
    roster = Roster(federation_id, 1, entries)
    endpoints = Endpoints(aggregator, server_name or aggregator.host)
    _check_address(sites[roster.target.index], aggregator)
    target = identities[roster.target.index]
    check_server_name(
        f"certificate of {roster.target.site_id}", target.certificate, authority.ca, endpoints.server_name, now
    )
    made_here = {i.site.site_id: i.keys.signing_key for i in identities if i.keys is not None}
    signed = sign_roster(roster, authority.roster_key, made_here)
    with writing_errors(root), whole_folder(root) as partial:
        store = _Store(partial, authority, endpoints)
        make_folder(store.ca_folder / _ISSUED)
        authority.save(store.ca_folder)
        write_file(store.ca_folder / ENDPOINTS_FILE, endpoints.to_toml(), PUBLIC_MODE)
        for identity in identities:
            _write_identity(store, identity, policy_text, settings_text)
        _publish(store, signed, roster)
    return Enrolment(root, roster, authority.ca.fingerprint, signed.missing_signatures(roster))


def read_requests(folder: Path, roles: Mapping[str, Role], fingerprints: Mapping[str, str] = {}) -> list[SiteRequest]:
    """Read every ``*.json`` in a folder as a request.

    Args:
        folder: with one request of each site, and no other.
        roles: site id -> role of the federation's sites.
        fingerprints: site id -> fingerprint of its request's keys, as the site read it out; not of every site.

    Returns:
        The requests, in the order of ``roles``.

    Raises:
        ConfigError: it is no folder, one is not sound, two are of one site, one is of no site of the federation or
            asks for another role, a site has none, or a request has another fingerprint.
    """
    if not folder.is_dir():
        why = "is not a folder" if folder.exists() else "is missing"
        raise ConfigError(str(folder), why, hint="name the folder that has one request of each site")
    requests: dict[str, tuple[str, SiteRequest]] = {}
    for file in sorted(folder.glob("*.json")):
        request = read_request(file)
        site_id, role = request.site.site_id, request.site.role
        if site_id in requests:
            why = f"is a second request of {site_id}, beside {requests[site_id][0]}"
            raise ConfigError(str(file), why, hint="ask the site for its fingerprint, and remove the other request")
        if site_id not in roles:
            why = f"is of {site_id}, which is no site of this federation"
            raise ConfigError(str(file), why, hint=f"sites: {', '.join(roles)}")
        if role != roles[site_id]:
            why = f"asks for the role of a {role}, but the federation's file has {site_id} as a {roles[site_id]}"
            raise ConfigError(str(file), why, hint="the target asks with --address, a source without it")
        requests[site_id] = (file.name, request)
    for site_id in roles:
        if site_id not in requests:
            hint = f"the site makes it: securefda site init {site_id}; put it there as {site_id}.json"
            raise ConfigError(str(folder), f"holds no request of {site_id}", hint=hint)
        _check_fingerprint(requests[site_id][1], fingerprints.get(site_id))
    return [requests[site_id][1] for site_id in roles]


def is_below_authority(kit: Path) -> bool:
    """Return whether a kit is in an authority's own folder, where the authority can read its keys."""
    return (kit.resolve().parent / CA_FOLDER / CA_KEY_FILE).exists()


def read_request(file: Path) -> SiteRequest:
    """Read a site's request. Raises ConfigError naming the file."""
    content = read_file(file, limit=MAX_REQUEST_BYTES, hint="a site makes it: securefda site init")
    return SiteRequest.from_bytes(str(file), content.data)


def add_site(
    root: Path,
    site: SiteSpec | SiteRequest,
    *,
    policy_text: SiteText,
    settings_text: SiteText,
    now: datetime,
    fingerprint: str | None = None,
    validity: timedelta = SITE_VALIDITY,
) -> Enrolment:
    """Enrol one more source at the end of the roster; every kit below ``root`` gets the new epoch.

    Args:
        root: the federation's folder.
        site: what it is, or its request.
        policy_text: contents of its ``local/policy.toml``.
        settings_text: contents of its ``local/settings.toml``.
        now: current time, with a time zone.
        fingerprint: of the request's keys, as the site read it out; the request must have it.
        validity: of the certificate and roster entry.

    Raises:
        ConfigError: the request has another fingerprint, the site is enrolled already, it, its legal entity or a second
            target does not fit the roster, or a file is not usable.
        CertificateError: the CA has expired.
    """
    site_id = site.site.site_id if isinstance(site, SiteRequest) else site.site_id
    with _open_store(root) as (store, roster):
        if any(entry.site_id == site_id for entry in roster.entries):
            raise ConfigError(site_id, "is enrolled already", hint="name another site, or renew this one's keys")
        _check_fingerprint(site, fingerprint)
        identity = store.authority.issue(site, now, validity)
        entries = (*roster.entries, identity.entry(len(roster.entries)))
        changed = replace(roster, epoch=roster.epoch + 1, entries=entries)
        return _change(store, changed, identity, policy_text, settings_text)


def target_of(root: Path) -> RosterEntry:
    """Return the target's entry in the federation's newest roster. Raises ConfigError: it cannot be read."""
    authority, file = Authority.load(root / CA_FOLDER), root / CA_FOLDER / ROSTER_FILE
    with naming_roster(file):
        return SignedRoster.from_bytes(read_file(file).data).verify_ca(authority.ca.roster_key).target


def revoke_site(root: Path, site_id: str) -> Enrolment:
    """Remove a source from the roster; every other kit below ``root`` gets the new epoch.

    The revoked site's own files stay as they are. They stop working at each site that loads the new roster.

    Raises:
        ConfigError: the site is not enrolled, or it is the target (renew it instead), or a file is not usable.
    """
    with _open_store(root) as (store, roster):
        entry = _find(roster, site_id)
        if entry.role == "target":
            hint = f"renew it instead: securefda federation renew FOLDER {site_id} --name HOST"
            raise ConfigError(site_id, "is the target, without which there is no federation", hint=hint)
        left = [other for other in roster.entries if other.site_id != site_id]
        entries = tuple(replace(other, index=index) for index, other in enumerate(left))
        return _change(store, replace(roster, epoch=roster.epoch + 1, entries=entries))


def renew_site(
    root: Path,
    site_id: str,
    *,
    now: datetime,
    names: Sequence[str] = (),
    request: SiteRequest | None = None,
    fingerprint: str | None = None,
    validity: timedelta = SITE_VALIDITY,
) -> Enrolment:
    """Give an enrolled site new keys and a new certificate, against expiry or after a theft.

    Args:
        root: the federation's folder.
        site_id: an enrolled site, the target included.
        now: current time, with a time zone.
        names: host names and IP addresses for the new certificate; none of them: those of the certificate before.
        request: of a site that made its new keys; its names stand in it. Keys of the site that were made here go.
        fingerprint: of the request's keys, as the site read it out; needed where the request is not signed by the key
            that the site has in the roster.
        validity: of the new certificate and roster entry.

    Raises:
        ConfigError: the site is not enrolled, a file is not usable, or the request is of another site, or asks for
            another role, legal entity or address than the site has, has another fingerprint, has keys that are in the
            roster already, or is not signed by the site's present key and no fingerprint is given.
        CertificateError: the CA has expired, or the target's new names lack the server name.
    """
    with _open_store(root) as (store, roster):
        entry = _find(roster, site_id)
        spec = SiteSpec(site_id, entry.role, entry.legal_entity, tuple(names) or _issued_names(store, site_id))
        if request is not None:
            asked = request.site
            if (asked.site_id, asked.role, asked.legal_entity) != (site_id, entry.role, entry.legal_entity):
                why = f"is of {asked.role} {asked.site_id} ({asked.legal_entity}), not of {entry.role} {site_id}"
                raise ConfigError("request", f"{why} ({entry.legal_entity})", hint="name the site's own request")
            if entry.role == "target":
                _check_address(request, store.endpoints.aggregator)
            _check_fingerprint(request, fingerprint)
            if request.signing_key == entry.signing_key or request.tls_pin == entry.tls_pin:
                hint = "it is an old one; the site makes another: securefda site renew KIT"
                raise ConfigError(f"request of {site_id}", "has a key that the site has already", hint=hint)
            if fingerprint is None and not request.is_signed_by(entry.signing_key):
                why = f"is not signed by the key that {site_id} has now: it may be another's"
                hint = "have the site read its fingerprint to you by phone, and give it as --fingerprint HEX"
                raise ConfigError(f"request of {site_id}", why, hint=hint)
        identity = store.authority.issue(request or spec, now, validity)
        if entry.role == "target":
            name = f"certificate of {site_id}"
            check_server_name(name, identity.certificate, store.authority.ca, store.endpoints.server_name, now)
        entries = tuple(identity.entry(other.index) if other.site_id == site_id else other for other in roster.entries)
        return _change(store, replace(roster, epoch=roster.epoch + 1, entries=entries), identity)


def _issued_names(store: _Store, site_id: str) -> tuple[str, ...]:
    """Return the host names and IP addresses in a site's certificate."""
    file = store.certificate_path(site_id)
    return host_names(parse_certificate(str(file), read_file(file).data))


def countersign(kit: Kit, proposal: SignedRoster) -> SignedRoster:
    """Sign a new roster as a member, having checked that it follows from the one in the member's kit.

    The kit keeps what it signed, as a join does: it signs no other roster of this epoch, and none of an earlier one.

    Raises:
        ConfigError: the CA did not sign it, it is of another federation or not of a later epoch, it changes the
            member's own keys or role, the member has signed another of this epoch, or the kit cannot be written.
    """
    roster = proposal.verify_ca(kit.ca.roster_key)
    if roster.federation_id != kit.federation_id:
        why, hint = f"is of federation {roster.federation_id}, not {kit.federation_id}", "name this federation's roster"
        raise ConfigError("roster", why, hint=hint)
    if roster.epoch <= kit.roster.epoch:
        why = f"epoch {roster.epoch} does not follow epoch {kit.roster.epoch} of this kit"
        hint = (
            "the kit has this roster, or a later one: there is nothing to sign; else ask the authority for its newest"
        )
        raise ConfigError("roster", why, hint=hint)
    own = _find(roster, kit.site_id)
    if replace(own, index=kit.entry.index) != kit.entry:
        raise ConfigError("roster", f"changes the entry of {kit.site_id} itself", hint="ask the CA why before signing")
    check_follows(kit.local, kit.ca, roster, kit.roster)
    signed = proposal.countersigned(kit.site_id, kit.signing_key)
    with writing_errors(kit.local):
        make_folder(kit.local)
        write_file(kit.local / SIGNED_ROSTER_FILE, signed.to_bytes(), PUBLIC_MODE)
    return signed


def merge_signatures(root: Path, returned: SignedRoster) -> Enrolment:
    """Add the member signatures that came back to the CA's roster, and write all kits again.

    Raises:
        ConfigError: ``returned`` is another roster than the current one, or a signature is wrong.
    """
    with _open_store(root) as (store, roster):
        current = signed_roster_at(store.ca_folder / ROSTER_FILE)
        if returned.roster_bytes != current.roster_bytes:
            why = f"is not the roster of epoch {roster.epoch} that the CA of {root} signed last"
            raise ConfigError("roster", why, hint="ask the site for what it signed of the newest package")
        merged = current.with_signatures(dict(returned.member_signatures))
        merged.verify_ca(store.authority.ca.roster_key)
        _check_issued(store, roster)
        with writing_errors(root):
            _publish(store, merged, roster)
        missing = merged.missing_signatures(roster)
        return Enrolment(root, roster, store.authority.ca.fingerprint, missing)


def _change(
    store: _Store,
    roster: Roster,
    identity: Identity | None = None,
    policy_text: SiteText | None = None,
    settings_text: SiteText | None = None,
) -> Enrolment:
    # Signing keys of those members whose kits have not left the folder yet
    keys = {}
    for entry in roster.entries:
        path = store.startup(entry.site_id) / SIGNING_KEY_FILE
        if path.exists():
            key = load_signing_key(str(path), read_file(path))
            if key.public_key().public_bytes_raw() == entry.signing_key:
                keys[entry.site_id] = key
    if identity is not None and identity.keys is not None:
        keys[identity.site.site_id] = identity.keys.signing_key
    signed = sign_roster(roster, store.authority.roster_key, keys)
    _check_issued(store, roster, identity.site.site_id if identity else None)
    with writing_errors(store.root):
        if identity is not None:
            _write_identity(store, identity, policy_text, settings_text)
        _publish(store, signed, roster)
    fingerprint = store.authority.ca.fingerprint
    return Enrolment(store.root, roster, fingerprint, signed.missing_signatures(roster))


def _check_issued(store: _Store, roster: Roster, site_id: str | None = None) -> None:
    """Refuse to publish a roster beside a certificate with another key: a renewal was interrupted.

    Args:
        store: the authority's folder.
        roster: that is published next.
        site_id: the site whose certificate this change replaces.

    Raises:
        ConfigError: there is one, or a certificate cannot be read.
    """
    for entry in roster.entries:
        file = store.certificate_path(entry.site_id)
        if entry.site_id != site_id and tls_pin(parse_certificate(str(file), read_file(file).data)) != entry.tls_pin:
            renew = f"securefda federation renew {quoted(store.root)} {entry.site_id}"
            hint = f"renew it again: {renew}, as it was done then"
            why = f"is of another key than {entry.site_id} has in the roster: its renewal was cut off"
            raise ConfigError(str(file), why, hint=hint)


def _write_identity(
    store: _Store, identity: Identity, policy_text: SiteText | None, settings_text: SiteText | None
) -> None:
    site_id = identity.site.site_id
    startup, local = store.startup(site_id), store.root / site_id / LOCAL
    make_folder(startup)
    make_folder(local)
    if identity.keys is not None:
        write_file(startup / TLS_KEY_FILE, private_pem(identity.keys.tls_key), SECRET_MODE)
        write_file(startup / SIGNING_KEY_FILE, private_pem(identity.keys.signing_key), SECRET_MODE)
    else:
        for name in SECRET_FILES:  # those that were made here before the site made its own
            (startup / name).unlink(missing_ok=True)
    write_file(store.certificate_path(site_id), to_pem(identity.certificate), PUBLIC_MODE)
    policy = local / POLICY_FILE
    # A target has none: the policies of the sources bound what it sees
    written = _write_local(policy, site_id, policy_text) if identity.site.role == "source" else None
    if written is not None and identity.keys is not None:
        federation_id, key = store.authority.ca.federation_id, identity.keys.signing_key
        write_policy_signature(policy, written, federation_id, site_id, key)
    _write_local(local / SETTINGS_FILE, site_id, settings_text)


def _write_local(file: Path, site_id: str, content: SiteText | None) -> bytes | None:
    """Write a file of the site's own and return its bytes, unless there is nothing to write.

    A file that exists is left alone: enrolling a site again, or giving it new keys, must not touch its policy. Its
    signature is then by the old key, and the site itself signs again, once it has looked at what it signs: the thief
    of an old key could have put another policy there.
    """
    if content is None or file.exists():
        return None
    written = (content if isinstance(content, str) else content(site_id)).encode("utf-8")
    write_file(file, written, _LOCAL_MODE)
    return written


def _publish(store: _Store, signed: SignedRoster, roster: Roster) -> None:
    """Write the public files of every kit. Repeating it after a crash completes what was left half done."""
    # First of all: were the epoch lost, the next change could sign a second, different roster of the same epoch.
    write_file(store.ca_folder / ROSTER_FILE, signed.to_bytes(), PUBLIC_MODE)
    for entry in roster.entries:
        files = {
            CA_FILE: store.authority.ca.pem,
            ENDPOINTS_FILE: store.endpoints.to_toml(),
            TLS_CERTIFICATE_FILE: read_file(store.certificate_path(entry.site_id)).data,
        }
        manifest = make_manifest(roster, entry.site_id, files).to_signed_bytes(store.authority.roster_key)
        startup = store.startup(entry.site_id)
        make_folder(startup)
        for name, data in (files | {ROSTER_FILE: signed.to_bytes(), KIT_FILE: manifest}).items():
            write_file(startup / name, data, PUBLIC_MODE)
        local = store.root / entry.site_id / LOCAL
        proposed = {name: read_file(local / name).data for name in PROPOSED_FILES if (local / name).exists()}
        if not any((startup / name).exists() for name in SECRET_FILES):
            key = store.authority.roster_key
            proposal = make_proposal(key, roster, entry.site_id, proposed)
            make_folder(local)
            write_file(local / PROPOSAL_FILE, proposal, PUBLIC_MODE)


def _check_fingerprint(site: SiteSpec | SiteRequest, expected: str | None) -> None:
    if not isinstance(site, SiteRequest) or expected is None:
        return
    if expected.replace(":", "").replace(" ", "").lower() != site.fingerprint:
        why = f"has the fingerprint {site.fingerprint}, not the expected one"
        hint = "do not sign it: it may have been replaced on its way; have the site send it another way"
        raise ConfigError(f"request of {site.site.site_id}", why, hint=hint)


def _check_address(site: SiteSpec | SiteRequest, aggregator: Address) -> None:
    if isinstance(site, SiteRequest) and site.address != aggregator:
        raise ConfigError(
            f"request of {site.site.site_id}",
            f"names the address {site.address}, not {aggregator}",
            hint="leave --address out; for another one, the target makes another request",
        )


def _find(roster: Roster, site_id: str) -> RosterEntry:
    try:
        return roster.by_id(site_id)
    except KeyError:
        known = ", ".join(entry.site_id for entry in roster.entries)
        raise ConfigError(site_id, "is not enrolled", hint=f"enrolled are: {known}") from None


@contextmanager
def _open_store(root: Path) -> Iterator[tuple[_Store, Roster]]:
    """Open the CA's folder for one change at a time; two at once would sign two rosters of one epoch."""
    ca_folder = root / CA_FOLDER
    if not ca_folder.is_dir():
        raise ConfigError(
            str(root),
            f"is not a federation: it has no folder {CA_FOLDER}/",
            hint="name the folder that `securefda federation init` made",
        )
    descriptor = os.open(ca_folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(str(root), "another change of this federation is under way") from None
        authority = Authority.load(ca_folder)
        store = _Store(root, authority, Endpoints.from_toml(read_file(ca_folder / ENDPOINTS_FILE).data))
        yield store, signed_roster_at(store.ca_folder / ROSTER_FILE).verify_ca(authority.ca.roster_key)
    finally:
        os.close(descriptor)
