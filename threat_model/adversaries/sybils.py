"""T10: sources that the attacker made up fill the sum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from securefda.protocol.roster import Roster, SignedRoster, sign_roster
from threat_model.adversaries.colluders import SubtractsColluders


class IsolatesAmongSybils(SubtractsColluders):
    """Invites the victim and its own sources, and subtracts what these put into the sum.

    Powers: the target's key, the relay, and every key of the ``colluders``, which are made-up sites of the roster.
    Goal: the victim's update.
    Source: Douceur, The Sybil attack, 2002; Pasquini et al. 2022, section 6, on one honest user among Sybils.
    """

    threat = "T10"

    def participants(self) -> set[int]:
        """Return the victim and the made-up sources only."""
        return {self.victim, *self.colluders}


@dataclass(frozen=True, slots=True, repr=False)
class EnrolsSybils:
    """Makes a roster that contains its own sites.

    Powers: the keys of the target and of the made-up sites, and ``ca_key``: a key of its own, or the CA's where the
    CA helps. It holds no key of an honest member.
    Goal: a roster that an honest site takes, in which the made-up sites are most of the sources.

    Attributes:
        ca_key: signs as the CA.
        target_key: the target's.
    """

    ca_key: Ed25519PrivateKey
    target_key: Ed25519PrivateKey

    threat = "T10"

    def proposal(self, honest: Roster, sybils: Mapping[str, Ed25519PrivateKey], legal_entity: str = "") -> SignedRoster:
        """Return the next epoch, with the sybils (site id -> key) at its end and all signatures that the attacker can
        make.

        Args:
            honest: the roster that it goes on from.
            sybils: of the attacker.
            legal_entity: of all sybils; by default each has one of its own.

        Raises:
            ConfigError: no such roster can exist.
        """
        entries = list(honest.entries)
        entries += [
            replace(
                honest.sources[0],
                index=len(entries) + place,
                site_id=name,
                legal_entity=legal_entity or f"The {name}",
                signing_key=key.public_key().public_bytes_raw(),
                tls_pin=sha256(name.encode()).digest(),
            )
            for place, (name, key) in enumerate(sybils.items())
        ]
        roster = replace(honest, epoch=honest.epoch + 1, entries=tuple(entries))
        return sign_roster(roster, self.ca_key, {honest.target.site_id: self.target_key, **sybils})
