"""Finds the roster to check an audit log with: the one that the user names, that of the surrounding kit, or its own."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from securefda.audit.reading import LogFolder
from securefda.disk import read_file
from securefda.errors import CertificateError, ConfigError
from securefda.protocol.roster import Roster, SignedRoster
from securefda.site.authority import CA_FILE
from securefda.site.certificates import parse_ca
from securefda.site.kit import KIT_FILE, LOCAL, SIGNING_KEY_FILE, STARTUP, Manifest, naming_roster
from securefda.site.kit import ROSTER_FILE as KIT_ROSTER_FILE

ROSTER_FILE: Final = "roster.json"
"""File in the folder of a log with the canonical bytes of the roster under which the run began."""
_AUDIT: Final = "audit"
OPTION: Final = "--roster"


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys that a log is checked with, and where they come from.

    Attributes:
        roster: the roster with all sites.
        where_from: ``"option"`` if the user named the file; ``"kit"`` if the members and the CA of the kit around the
            log signed it; ``"log"`` if it is the log's own, which the maker of the log could have forged.
        file: the file of the roster.
        site: the site whose kit it is; empty outside a kit.
        newest: the epoch of the kit's roster if the run began under an earlier one; else 0.
        ca: the fingerprint of the kit's CA if it vouches for the roster, 64 hex digits; else empty.
        ca_file: the file of this CA.
        is_own: whether it is the kit that the user works with, not one that somebody may have handed over.
    """

    roster: Roster
    where_from: Literal["option", "kit", "log"]
    file: Path
    site: str = ""
    newest: int = 0
    ca: str = ""
    ca_file: Path | None = None
    is_own: bool = False

    @property
    def federation(self) -> str:
        """The federation id."""
        return self.roster.federation_id

    @property
    def public(self) -> Mapping[str, bytes]:
        """The raw Ed25519 public key of every site, 32 bytes, by site id in roster order."""
        return {entry.site_id: entry.signing_key for entry in self.roster.entries}

    @property
    def ml_dsa(self) -> Mapping[str, bytes]:
        """The raw ML-DSA-65 public key of each site that has one, 1952 bytes, by site id."""
        return self.roster.ml_dsa_keys

    @property
    def roles(self) -> Mapping[str, str]:
        """``"target"`` or ``"source"`` by site id in roster order."""
        return {entry.site_id: entry.role for entry in self.roster.entries}

    @property
    def digest(self) -> str:
        """The SHA-256 of the canonical bytes in hex, which ``run-began`` names and people compare."""
        return self.roster.digest().hex()

    @property
    def warnings(self) -> tuple[str, ...]:
        """The steps that the user must take before relying on these keys, one line each."""
        if self.where_from == "log":
            return (
                "the keys are from the log's own roster, which the maker of the log could have made: compare the "
                f"digest {self.digest} with that of the roster that you trust, or name that with {OPTION} FILE",
            )
        if self.where_from == "kit" and not self.is_own:
            return (
                "the keys are from a kit beside the logs, which the maker of the logs could have made: compare the "
                f"fingerprint {self.ca} of its CA with the one that you know, or name {OPTION} FILE",
            )
        return ()

    @property
    def believed(self) -> str:
        """Who was believed that these are the sites' keys, and where that lies, on one line."""
        if self.where_from == "option":
            return f"as named with {OPTION}"
        if not self.ca:
            return "as it lies beside the log; no CA vouches for it"
        return f"by the CA with fingerprint {self.ca}, {self.ca_file}"

    @property
    def is_trusted(self) -> bool:
        """Whether the user vouches for these keys, by an option or by working with their kit."""
        return self.where_from == "option" or (self.where_from == "kit" and self.is_own)

    def contradicts(self, other: Keys) -> bool:
        """Return whether two rosters of one run have no CA in common that explains why they differ."""
        return self.digest != other.digest and (not self.ca or self.ca != other.ca)

    @property
    def notes(self) -> tuple[str, ...]:
        """The facts about these keys that the user should know, one line each."""
        if not self.newest:
            return ()
        what = f"the run began under the roster of epoch {self.roster.epoch}, and is checked with it"
        return (f"{what}; the kit has epoch {self.newest} by now",)

    def disagreement(self, named: str | None) -> str | None:
        """Return in one line why a log that names this roster, see `roster_named`, does not belong; None if it does."""
        if named in (None, self.digest):
            return None
        return f"the run began under the roster with digest {named}, and {self.file} has digest {self.digest}"


def keys_of(log_folder: Path, roster_option: Path | None = None, named: Path | None = None) -> Keys:
    """Find the roster of a log.

    ``roster_option`` comes first: a signed roster or canonical bytes, trusted because the user named it. Next comes the
    roster of the kit if the folder is ``KIT/local/audit/RUN``. Last comes the log's own ``roster.json``.

    ``named`` is the place that the user named. The kit that this is, or lies in, is the user's own if it has private
    keys, which are not read. Any other kit came with the logs.

    Raises:
        ConfigError: there is no roster, or the first one that exists is invalid.
        CertificateError: the kit's files belong to two federations.
    """
    if roster_option is not None:
        return Keys(_read_roster(roster_option), "option", roster_option)
    kit = _kit_of(log_folder)
    own = log_folder / ROSTER_FILE
    if kit is not None:
        try:
            is_own = named is not None and kit in (named.resolve(), *named.resolve().parents)
            return replace(keys_of_kit(kit, own), is_own=is_own and (kit / STARTUP / SIGNING_KEY_FILE).exists())
        except (ConfigError, CertificateError) as error:  # the log can be checked without it
            error.hint = f"fetch the startup kit again, or name a roster that you trust: {OPTION} FILE"
            raise
    if not own.exists():
        hint = f"name the federation's: {OPTION} FILE; every kit has one, {STARTUP}/{KIT_ROSTER_FILE}"
        raise ConfigError(OPTION, f"there is no roster beside the log {log_folder}", hint=hint)
    return Keys(_read_roster(own), "log", own)


def roster_named(log: LogFolder) -> str | None:
    """Return the hex digest of the roster under which the run began, from the log's first record; None if unknown."""
    record = log.record(0)
    if record is None or record.entry.type != "run-began":
        return None
    return str(record.entry.facts["roster"])


def _kit_of(log_folder: Path) -> Path | None:
    """Return the kit if the folder is its ``local/audit/RUN``, else None."""
    parents = log_folder.resolve().parents
    if [folder.name for folder in parents[:2]] != [_AUDIT, LOCAL]:
        return None
    return parents[2] if (parents[2] / STARTUP / KIT_ROSTER_FILE).exists() else None


def keys_of_kit(kit: Path, own: Path | None = None) -> Keys:
    """Return the roster of a kit, as its CA and all members signed it.

    Dates are not checked, since the log may be old. No private key is read. If the run of a log began under an earlier
    roster, that one is beside the log at ``own`` and is checked in the same way.

    Raises:
        ConfigError: a file of the kit is missing, or is not what was signed.
        CertificateError: the kit's files belong to two federations.
    """
    startup = kit / STARTUP
    ca_file = startup / CA_FILE
    ca = parse_ca(str(ca_file), read_file(ca_file).data)
    manifest = Manifest.from_signed_bytes(str(startup / KIT_FILE), read_file(startup / KIT_FILE).data, ca)
    file = startup / KIT_ROSTER_FILE
    data = read_file(file).data
    with naming_roster(file):
        roster = SignedRoster.from_bytes(data).verify(ca.roster_key)
    keys = Keys(roster, "kit", file, manifest.site_id, ca=ca.fingerprint, ca_file=ca_file)
    named = None if own is None else roster_named(LogFolder(own.parent, "", "", ""))
    if own is None or named in (None, keys.digest):
        return keys
    try:
        earlier = _read_roster(own)
    except ConfigError:
        return keys
    later = (earlier.federation_id, named) != (keys.federation, earlier.digest().hex()) or earlier.epoch >= roster.epoch
    if later:  # it is not the roster of the run, or not an earlier one
        return keys
    try:
        SignedRoster.from_bytes(read_file(own).data).verify(ca.roster_key)
    except ConfigError:
        return Keys(earlier, "log", own, manifest.site_id, roster.epoch)
    return replace(keys, roster=earlier, file=own, newest=roster.epoch)


def _read_roster(file: Path) -> Roster:
    data = read_file(file).data
    with suppress(ConfigError):  # if this fails, it is canonical bytes or no roster
        data = SignedRoster.from_bytes(data).roster_bytes
    try:
        with naming_roster(file):
            return Roster.from_canonical_bytes(data)
    except ConfigError as error:
        hint = f"name the federation's roster: {OPTION} FILE; every kit has one, {STARTUP}/{KIT_ROSTER_FILE}"
        raise ConfigError(error.key, error.why, hint=hint) from error
