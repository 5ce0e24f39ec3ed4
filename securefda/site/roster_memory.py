"""What a site remembers of the rosters that it has used, so that an old one cannot come back.

A roster is changed because a site has to go: a key was stolen, a site has left. Putting the old ``startup/`` back, by
mistake or because someone asks for it, would let it in again. The memory lies in ``local/``, which is the
site's own and stays when ``startup/`` is replaced.
"""

from __future__ import annotations

from pathlib import Path

from securefda.errors import ConfigError
from securefda.parse import canonical_json, load_object, number, object_with, text
from securefda.protocol.roster import Roster
from securefda.site.files import SECRET_MODE, make_folder, read_file, write_file, writing_errors

ROSTERS_FILE = "rosters.json"
_FORMAT = 1


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


def remember(local: Path, ca_fingerprint: str, roster: Roster) -> None:
    """Write that this site uses this roster from now on; it is on the disk when this returns.

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
        write_file(local / ROSTERS_FILE, canonical_json({"version": _FORMAT, "rosters": rosters}) + b"\n", SECRET_MODE)


def _read(local: Path) -> dict[str, tuple[int, str]]:
    """CA fingerprint -> (epoch, digest in hex) of the latest roster used."""
    path = local / ROSTERS_FILE
    if not path.exists():
        return {}
    try:
        fields = load_object(read_file(path).data, "version", "rosters")
        if number(fields["version"]) != _FORMAT or not isinstance(fields["rosters"], dict):
            raise ValueError("another format")
        rosters = {ca: object_with(item, "epoch", "digest") for ca, item in fields["rosters"].items()}
        return {ca: (number(item["epoch"]), text(item["digest"])) for ca, item in rosters.items()}
    except ValueError as error:
        hint = "put it back from a backup; delete it only if you are certain that this kit is the newest"
        raise ConfigError(str(path), "is damaged: it says which roster this site has used last", hint=hint) from error
