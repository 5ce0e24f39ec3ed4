"""Builds the federation that the tests of this folder share: a target and two sources."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from securefda.site.endpoints import Address, SiteSpec
from securefda.site.enrolment import Enrolment, init_federation

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
