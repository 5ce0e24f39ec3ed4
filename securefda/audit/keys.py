"""Which roster an audit log is checked with: the one that the user names, that of the kit around it, or its own.

keys = keys_of(log_folder, roster_option)     Keys; ConfigError where there is no roster, or none that can be used
keys.public                                   for `securefda.audit.verify.verify_log`
keys.disagreement(named)                      None, or why the log is not of this roster
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from securefda.audit.reading import LogFolder
from securefda.audit.records import Record, RecordError
from securefda.audit.store import AuditError
from securefda.disk import read_file
from securefda.errors import CertificateError, ConfigError
from securefda.protocol.roster import Roster, SignedRoster
from securefda.site.authority import CA_FILE
from securefda.site.certificates import parse_ca
from securefda.site.kit import KIT_FILE, LOCAL, STARTUP, Manifest, naming_roster
from securefda.site.kit import ROSTER_FILE as KIT_ROSTER_FILE

ROSTER_FILE: Final = "roster.json"
"""In the folder of a log: canonical bytes of the roster under which the run began."""
_AUDIT: Final = "audit"
_OPTION: Final = "--roster"


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys that a log is checked with, and why these.

    Attributes:
        roster: all sites.
        where_from: ``"option"``: the user named the file; ``"kit"``: the CA of the kit in which the log lies, and the
            members, signed it; ``"log"``: the log's own, which the maker of the log could have made as well.
        file: where it stands.
        site: whose kit it is; empty elsewhere.
        newest: epoch of the kit's roster, where the run began under an earlier one; else 0.
    """

    roster: Roster
    where_from: Literal["option", "kit", "log"]
    file: Path
    site: str = ""
    newest: int = 0

    @property
    def federation(self) -> str:
        """Federation id."""
        return self.roster.federation_id

    @property
    def public(self) -> Mapping[str, bytes]:
        """Raw Ed25519 public key of every site, 32 bytes, by site id in roster order."""
        return {entry.site_id: entry.signing_key for entry in self.roster.entries}

    @property
    def roles(self) -> Mapping[str, str]:
        """``"target"`` or ``"source"`` by site id in roster order."""
        return {entry.site_id: entry.role for entry in self.roster.entries}

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical bytes in hex: what ``run-began`` names and people compare."""
        return self.roster.digest().hex()

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the user has to do before anything rests on these keys, one line each."""
        if self.where_from == "log":
            what = (
                "the keys are from the log's own roster, which the maker of the log could have made: compare the digest"
            )
            return (f"{what} {self.digest} with that of the roster that you trust, or name that with {_OPTION} FILE",)
        return ()

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know of them, one line each."""
        if self.newest:
            what = f"the run began under the roster of epoch {self.roster.epoch}, and is checked with it"
            return (f"{what}; the kit has epoch {self.newest} by now",)
        return ()

    def disagreement(self, named: str | None) -> str | None:
        """Why a log is not of this roster, one line; None where it is.

        Args:
            named: digest in hex that its ``run-began`` has, see `roster_named`; None where it is not known.
        """
        if named in (None, self.digest):
            return None
        return f"the run began under the roster with digest {named}, and {self.file} has digest {self.digest}"


def keys_of(log_folder: Path, roster_option: Path | None = None) -> Keys:
    """Find the roster of a log.

    ``roster_option`` comes first: a signed roster or canonical bytes, trusted because the user named it. Else that of
    the kit, where the folder is ``KIT/local/audit/RUN``; its signatures are checked up to the kit's CA. Where the run
    began under an earlier roster, that one is beside the log, and is checked likewise. Else the log's own
    ``roster.json``.

    Raises:
        ConfigError: there is none, or the first of these that exists is no valid roster.
        CertificateError: the kit's files are of two federations.
    """
    if roster_option is not None:
        return Keys(_read_roster(roster_option), "option", roster_option)
    kit = _kit_of(log_folder)
    own = log_folder / ROSTER_FILE
    if kit is not None:
        try:
            return keys_of_kit(kit, own)
        except (ConfigError, CertificateError) as error:  # the log can be checked without it
            error.hint = f"fetch the startup kit again, or name a roster that you trust: {_OPTION} FILE"
            raise
    if not own.exists():
        hint = f"name the federation's: {_OPTION} FILE; every kit has one, {STARTUP}/{KIT_ROSTER_FILE}"
        raise ConfigError(_OPTION, f"there is no roster beside the log {log_folder}", hint=hint)
    return Keys(_read_roster(own), "log", own)


def roster_named(log: LogFolder) -> str | None:
    """Digest of the roster under which the run began, in hex, as the log's first record says; None where none does."""
    try:
        entry = log.entry(0)
        record = None if entry is None else Record.parse(entry)
    except (AuditError, RecordError):  # what is wrong with it is for the verification to say
        return None
    if record is None or record.entry.type != "run-began":
        return None
    return str(record.entry.facts["roster"])


def _kit_of(log_folder: Path) -> Path | None:
    """The kit whose ``local/audit/RUN`` the folder is."""
    parents = log_folder.resolve().parents
    if [folder.name for folder in parents[:2]] != [_AUDIT, LOCAL]:
        return None
    return parents[2] if (parents[2] / STARTUP / KIT_ROSTER_FILE).exists() else None


def keys_of_kit(kit: Path, own: Path | None = None) -> Keys:
    """The roster of a kit, as its CA and all members signed it.

    Neither private keys nor dates matter here: the log may be old. No private key is read.

    Args:
        kit: the folder with ``startup/`` in it.
        own: a log's own roster, in the folder of the log, which need not exist; None where no log is looked at.

    Raises:
        ConfigError: a file of the kit is missing, or is not what was signed.
        CertificateError: they are of two federations.
    """
    startup = kit / STARTUP
    ca = parse_ca(str(startup / CA_FILE), read_file(startup / CA_FILE).data)
    manifest = Manifest.from_signed_bytes(str(startup / KIT_FILE), read_file(startup / KIT_FILE).data, ca)
    file = startup / KIT_ROSTER_FILE
    data = read_file(file).data
    with naming_roster(file):
        roster = SignedRoster.from_bytes(data).verify(ca.roster_key)
    keys = Keys(roster, "kit", file, manifest.site_id)
    named = None if own is None else roster_named(LogFolder(own.parent, "", "", ""))
    if own is None or named in (None, keys.digest):
        return keys
    try:
        earlier = _read_roster(own)
    except ConfigError:
        return keys
    later = (earlier.federation_id, named) != (keys.federation, earlier.digest().hex()) or earlier.epoch >= roster.epoch
    if later:  # it is not the roster of the run, or none that a renewal has replaced
        return keys
    try:
        SignedRoster.from_bytes(read_file(own).data).verify(ca.roster_key)
    except ConfigError:
        return Keys(earlier, "log", own, manifest.site_id, roster.epoch)
    return Keys(earlier, "kit", own, manifest.site_id, roster.epoch)


def _read_roster(file: Path) -> Roster:
    data = read_file(file).data
    with suppress(ConfigError):  # then it is canonical bytes, or nothing of ours
        data = SignedRoster.from_bytes(data).roster_bytes
    try:
        with naming_roster(file):
            return Roster.from_canonical_bytes(data)
    except ConfigError as error:
        hint = f"name the federation's roster: {_OPTION} FILE; every kit has one, {STARTUP}/{KIT_ROSTER_FILE}"
        raise ConfigError(error.key, error.why, hint=hint) from error
