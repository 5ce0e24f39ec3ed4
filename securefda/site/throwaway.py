"""Rosters of sites that exist in one process for one run: simulations, benchmarks, staged attacks and tests."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from securefda.protocol.ml_dsa import ml_dsa_public
from securefda.protocol.roster import Roster, RosterEntry

FOR_EVER = 2**37
"""Unix time; in a few thousand years."""


def throwaway_roster(
    federation_id: str,
    keys: Mapping[str, Ed25519PrivateKey],
    *,
    target: str = "",
    epoch: int = 1,
    entities: Mapping[str, str] | None = None,
    with_ml_dsa: bool = False,
) -> Roster:
    """Make an unsigned roster of sites without certificates: no TLS key has the pins in it.

    Args:
        federation_id: of the federation.
        keys: site id -> its signing key, in the order of the roster.
        target: the site that is the target; the first one unless it is named.
        epoch: of the roster.
        entities: site id -> its legal entity, where that is not the site id.
        with_ml_dsa: whether the sites have ML-DSA keys too, as those of every federation that is founded have.

    Raises:
        ConfigError: there can be no such roster.
    """
    target = target or next(iter(keys), "")
    entries = []
    for index, (site_id, key) in enumerate(keys.items()):
        public = key.public_key().public_bytes_raw()
        entries.append(
            RosterEntry(
                index=index,
                site_id=site_id,
                role="target" if site_id == target else "source",
                legal_entity=(entities or {}).get(site_id, site_id),
                signing_key=public,
                tls_pin=sha256(b"no certificate" + public).digest(),
                not_before=0,
                not_after=FOR_EVER,
                ml_dsa_key=ml_dsa_public(key) if with_ml_dsa else b"",
            )
        )
    return Roster(federation_id, epoch, tuple(entries))
