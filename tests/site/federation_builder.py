"""Builds the federation that the tests of this folder share: a target and two sources."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from securefda.disk import write_file
from securefda.protocol.roster import Roster, sign_roster
from securefda.site.authority import Authority
from securefda.site.endpoints import Address, Endpoints, SiteSpec
from securefda.site.enrolment import Enrolment, init_federation
from securefda.site.kit import LISTED_FILES, load_kit, make_manifest

NOW = datetime(2026, 6, 1, 12, 0, tzinfo=UTC)


def make(root: Path, federation_id: str = "heart-study", **changes: object) -> Enrolment:
    """A target and two sources; ``changes`` replace arguments of init_federation."""
    arguments: dict[str, object] = {
        "sites": [
            SiteSpec("geneva", "target", "Hospital of Geneva", ("localhost", "127.0.0.1")),
            SiteSpec("lyon", "source", "Hospital of Lyon"),
            SiteSpec("basel", "source", "Hospital of Basel", ("basel.example.org",)),
        ],
        "aggregator": Address("127.0.0.1", 8443),
        "policy_text": "min-others = 2\n",
        "settings_text": lambda site_id: f'site-id = "{site_id}"\n',
        "now": NOW,
    }
    return init_federation(root, federation_id, **(arguments | changes))  # type: ignore[arg-type]


def put(path: Path, data: bytes) -> None:
    write_file(path, data, path.stat().st_mode & 0o777)


def reissue(federation: Path, site_id: str, roster: Roster, endpoints: Endpoints) -> None:
    """Write a kit that the CA and all members signed, with this roster and these endpoints in it."""
    ca_key = Authority.load(federation / "ca").roster_key
    keys = {entry.site_id: load_kit(federation / entry.site_id, NOW).signing_key for entry in roster.entries}
    startup = federation / site_id / "startup"
    put(startup / "endpoints.toml", endpoints.to_toml())
    put(startup / "roster.json", sign_roster(roster, ca_key, keys).to_bytes())
    files = {name: (startup / name).read_bytes() for name in LISTED_FILES}
    put(startup / "kit.json", make_manifest(roster, site_id, files).to_signed_bytes(ca_key))
