"""Packing of a startup kit into one file for its site, and the summary of a kit."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path, PurePosixPath

from securefda.disk import (
    MAX_FILE_BYTES,
    PUBLIC_MODE,
    SECRET_MODE,
    FileContent,
    make_folder,
    read_file,
    require_new,
    whole_folder,
    write_file,
    writing_errors,
)
from securefda.errors import ConfigError
from securefda.protocol.secret import Secret
from securefda.site.certificates import host_names
from securefda.site.kit import (
    KIT_FILE,
    LOCAL,
    POLICY_FILE,
    POLICY_SIGNATURE_FILE,
    PROPOSAL_FILE,
    PUBLIC_FILES,
    REQUEST_FILE,
    SECRET_FILES,
    SETTINGS_FILE,
    STARTUP,
    STARTUP_FILES,
    Kit,
    PublicKit,
    check_proposal,
    load_kit,
    open_kit,
    open_public,
    require_startup,
)
from securefda.site.request import MAX_REQUEST_BYTES, SiteRequest, entry_fingerprint
from securefda.site.sealed import is_sealed, seal, unseal

_AGAIN = "ask the authority for the package again"
_MAX_PACKAGE_BYTES = 4 * MAX_FILE_BYTES
_LOCAL_FILES = (POLICY_FILE, POLICY_SIGNATURE_FILE, SETTINGS_FILE, PROPOSAL_FILE)
_PACKED = {STARTUP: STARTUP_FILES, LOCAL: _LOCAL_FILES}
"""Folder in the kit -> the files that go into a package."""


@dataclass(frozen=True, slots=True)
class KitSummary:
    """The summary of a kit that passed every check; nothing in it is secret.

    Attributes:
        keys: where the site's private keys are, and who knew them.
        key_fingerprint: of the site's keys: compare it by another way than the kit.
        sites: ids of all members in roster order.
        left: those of them that have left, as far as this kit was told.
        names: host names and IP addresses of the site's certificate.
        roster_digest: SHA-256 in hex.
        ca_fingerprint: SHA-256 of the CA certificate in hex: compare it by another way than the kit.
        missing_signatures: members that have not signed the roster yet; a kit with its keys lacks none.
        package_digest: SHA-256 of the package in hex; ``""`` for a kit in a folder.
    """

    federation_id: str
    site_id: str
    role: str
    legal_entity: str
    keys: str
    key_fingerprint: str
    epoch: int
    sites: tuple[str, ...]
    left: tuple[str, ...]
    names: tuple[str, ...]
    aggregator: str
    server_name: str
    not_before: datetime
    not_after: datetime
    roster_digest: str
    ca_fingerprint: str
    missing_signatures: tuple[str, ...] = ()
    package_digest: str = ""


def package_kit(path: Path, package: Path, now: datetime, passphrase: Secret | None = None) -> str:
    """Write a kit into one file of mode 0600: a tar, sealed where there is a passphrase.

    The private keys go along if the kit :func:`holds_keys`; the package for a site that made its own has none. The
    same kit always makes the same tar; a sealed one is another file each time. From ``local/`` only policy and
    settings go along.

    Returns:
        SHA-256 of the package in hex, for comparing by another way.

    Raises:
        ConfigError, CertificateError: the kit fails a check of ``load_kit``, or the file exists or cannot be written.
    """
    require_startup(path)
    kit = load_kit(path, now) if holds_keys(path) else load_public(path, now)
    require_new("--out", package)
    members = _members(kit)
    if not isinstance(kit, Kit):
        prefix = f"{LOCAL}/"
        check_proposal(kit, {name.removeprefix(prefix): member for name, member in members.items()})
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, content in sorted(members.items()):
            member = tarfile.TarInfo(f"{kit.site_id}/{name}")  # owner 0, time 0: nothing of this machine
            member.size, member.mode = len(content.data), content.mode
            tar.addfile(member, io.BytesIO(content.data))
    data = buffer.getvalue() if passphrase is None else seal(buffer.getvalue(), passphrase)
    with writing_errors(package):
        write_file(package, data, SECRET_MODE)
    return hashlib.sha256(data).hexdigest()


def holds_keys(path: Path) -> bool:
    """Return whether a private key is in a kit's folder."""
    return any((path / STARTUP / name).exists() for name in SECRET_FILES)


def load_public(path: Path, now: datetime, *, expected_ca: str | None = None) -> PublicKit:
    """Read and check what the authority signed for a site, out of a folder without private keys.

    Raises:
        ConfigError, CertificateError: as ``open_public`` does, or a file is missing.
    """
    files = {name: read_file(path / STARTUP / name, hint=_AGAIN) for name in PUBLIC_FILES}
    return open_public(path, files, now, expected_ca=expected_ca)


def unpack_kit(package: Path, out: Path, now: datetime, *, expected_ca: str | None = None) -> KitSummary:
    """Check a package as a whole and unpack it into a new folder, which only its owner can read; or leave nothing.

    Args:
        package: a tar of :func:`package_kit`, sealed or not.
        out: folder to make.
        now: current time, with a time zone.
        expected_ca: SHA-256 fingerprint of the CA certificate in hex, learnt by another way than the package.

    Raises:
        ConfigError, CertificateError: as for :func:`inspect_kit`; or the package is a folder or holds no keys, or the
            folder exists or cannot be written.
    """
    if package.is_dir():
        hint = "name the file that securefda kit package has written"
        raise ConfigError(str(package), "is a folder, not a kit's package", hint=hint)
    if out.exists():
        raise ConfigError(str(out), "exists already", hint="name a new folder with --out")
    digest, files, local = read_package(package)
    if not set(SECRET_FILES) & set(files):
        hint = "the site joins with the keys that it made: securefda site join KIT PACKAGE"
        raise ConfigError(str(package), "holds no private keys", hint=hint)
    kit = open_kit(package, files, now, expected_ca=expected_ca)
    with writing_errors(out):
        make_folder(out.resolve().parent)
        with whole_folder(out) as partial:
            for name, content in files.items():
                make_folder(partial / STARTUP)
                write_file(partial / STARTUP / name, content.data, SECRET_MODE if name in SECRET_FILES else PUBLIC_MODE)
            make_folder(partial / LOCAL)
            for name, content in local.items():
                write_file(partial / LOCAL / name, content.data, 0o644)
    return _summary(kit, digest)


def inspect_kit(path: Path, now: datetime, *, expected_ca: str | None = None) -> KitSummary:
    """Check a kit, in a folder or packaged, and summarise it.

    Raises:
        ConfigError, CertificateError: as ``load_kit`` does; also for a file that is no package, or a kit whose own
            request is damaged.
    """
    digest = ""
    if path.is_dir():
        has_keys = holds_keys(path) or not (path / STARTUP / KIT_FILE).exists()
        kit = (load_kit if has_keys else load_public)(path, now, expected_ca=expected_ca)
    else:
        digest, files, _ = read_package(path)
        has_keys = bool(set(SECRET_FILES) & set(files))
        kit = (open_kit if has_keys else open_public)(path, files, now, expected_ca=expected_ca)
    return _summary(kit, digest)


def _members(kit: PublicKit) -> Mapping[str, FileContent]:
    names = STARTUP_FILES if isinstance(kit, Kit) else PUBLIC_FILES
    members = {f"{STARTUP}/{name}": read_file(kit.startup / name) for name in names}
    for name in _LOCAL_FILES:
        if (kit.local / name).exists():
            members[f"{LOCAL}/{name}"] = read_file(kit.local / name)
    return members


def read_package(path: Path) -> tuple[str, dict[str, FileContent], dict[str, FileContent]]:
    """Read a package: its SHA-256, and its files of ``startup/`` and ``local/``. It has both private keys or neither.

    All is read in memory: no name in a package is followed, and a file that no kit has is left out.
    """
    sealed = read_file(path, limit=_MAX_PACKAGE_BYTES).data
    data = unseal(str(path), sealed) if is_sealed(sealed) else sealed
    files: dict[str, dict[str, FileContent]] = {STARTUP: {}, LOCAL: {}}
    try:
        for name, content in _plain_files(data):
            parts = PurePosixPath(name).parts
            if len(parts) == 3 and parts[2] in _PACKED.get(parts[1], ()):
                files[parts[1]][parts[2]] = content
    except (tarfile.TarError, ValueError) as error:
        hint = "fetch it again; or name the folder of a kit, or what securefda kit package has written"
        raise ConfigError(str(path), "is incomplete, or neither a kit's folder nor its package", hint=hint) from error
    has_keys = bool(set(SECRET_FILES) & set(files[STARTUP]))
    for name in STARTUP_FILES if has_keys else PUBLIC_FILES:
        if name not in files[STARTUP]:
            hint = "fetch it again, or package the kit again"
            raise ConfigError(str(path), f"is incomplete: it lacks {STARTUP}/{name}", hint=hint)
    return hashlib.sha256(sealed).hexdigest(), files[STARTUP], files[LOCAL]


def _plain_files(tar: bytes) -> Iterator[tuple[str, FileContent]]:
    """Yield names and contents of the files in a tar whose members are files and folders.

    Nothing has been verified yet. So this walks plain USTAR headers: a member with an extension (sparse, a long name)
    could announce contents that the tar does not hold, or headers without end.

    Raises:
        TarError, ValueError: it is no such tar.
    """
    offset = 0
    while any(header := tar[offset : offset + tarfile.BLOCKSIZE]):
        member = tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
        start, size = offset + tarfile.BLOCKSIZE, member.size
        if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE):
            raise ValueError(f"a member of type {member.type!r}")
        if not 0 <= size <= min(MAX_FILE_BYTES, len(tar) - start):
            raise ValueError(f"a member of {size} bytes")
        if member.type != tarfile.DIRTYPE:
            yield member.name, FileContent(tar[start : start + size], member.mode & 0o7777)
        offset = start + -(-size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE


def _made_keys(kit: Kit) -> bool:
    """Return whether the site itself made the keys that the kit holds now."""
    file = kit.local / REQUEST_FILE
    if not file.exists():
        return False
    request = SiteRequest.from_bytes(str(file), read_file(file, limit=MAX_REQUEST_BYTES).data)
    return request.fingerprint == entry_fingerprint(kit.entry)


def _summary(kit: PublicKit, package_digest: str = "") -> KitSummary:
    if not isinstance(kit, Kit):
        keys = "at the site alone"
    elif _made_keys(kit):
        keys = "made by this site"
    else:
        keys = "came with the kit, whose maker knew them"
    return KitSummary(
        federation_id=kit.federation_id,
        site_id=kit.site_id,
        role=kit.role,
        legal_entity=kit.entry.legal_entity,
        keys=keys,
        key_fingerprint=entry_fingerprint(kit.entry),
        epoch=kit.roster.epoch,
        sites=tuple(entry.site_id for entry in kit.roster.entries),
        left=kit.roster.gone,
        names=host_names(kit.certificate),
        aggregator=str(kit.endpoints.aggregator),
        server_name=kit.endpoints.server_name,
        not_before=kit.certificate.not_valid_before_utc,
        not_after=kit.certificate.not_valid_after_utc,
        roster_digest=kit.roster.digest().hex(),
        ca_fingerprint=kit.ca.fingerprint,
        missing_signatures=kit.signed_roster.missing_signatures(kit.roster),
        package_digest=package_digest,
    )
