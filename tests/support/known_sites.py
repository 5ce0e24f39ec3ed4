"""Sites that tests make up. Their keys follow from their names, so that a test can be repeated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from hashlib import sha256

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from securefda.protocol.roster import Roster
from securefda.site.throwaway import throwaway_roster


@cache
def known_key(site_id: str) -> Ed25519PrivateKey:
    """The signing key of a site. Anyone can make it."""
    return Ed25519PrivateKey.from_private_bytes(sha256(site_id.encode()).digest())


def known_keys(site_ids: Iterable[str]) -> dict[str, Ed25519PrivateKey]:
    """The signing keys of some sites."""
    return {site_id: known_key(site_id) for site_id in site_ids}


def known_roster(
    federation_id: str,
    site_ids: Iterable[str],
    *,
    target: str = "",
    epoch: int = 1,
    entities: Mapping[str, str] | None = None,
) -> Roster:
    """A roster of known keys, as :func:`throwaway_roster` makes it."""
    return throwaway_roster(federation_id, known_keys(site_ids), target=target, epoch=epoch, entities=entities)
