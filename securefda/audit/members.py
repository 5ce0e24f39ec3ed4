"""Whose logs of one run are read together. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from securefda.audit.names import LogName, witness_name
from securefda.audit.notes import COSIGNATURE_V1, ED25519, NoteKey


@dataclass(frozen=True, slots=True)
class Members:
    """The sites of a federation in one run.

    Attributes:
        federation: its id.
        run: run id.
        target: site id of the target.
        keys: raw Ed25519 public key of every site, 32 bytes, by site id; the target's too.
        roster: SHA-256 of the roster, 64 hex digits.
    """

    federation: str
    run: str
    target: str
    keys: Mapping[str, bytes]
    roster: str

    @property
    def sources(self) -> tuple[str, ...]:
        """Site ids of all but the target, sorted."""
        return tuple(sorted(set(self.keys) - {self.target}))

    def log_of(self, party: str) -> LogName:
        """The name of a site's log."""
        return LogName(self.federation, party, self.run)

    def log_key(self, party: str) -> NoteKey:
        """The key that signs the checkpoints of a site's log. Raises KeyError for a site that is none."""
        return NoteKey(self.log_of(party).origin, ED25519, self.keys[party])

    def witness_keys(self, party: str) -> dict[NoteKey, str]:
        """The keys of all that can cosign the checkpoints of a site's log: nobody is a witness of himself."""
        return {
            NoteKey(witness_name(self.federation, site), COSIGNATURE_V1, key): site
            for site, key in self.keys.items()
            if site != party
        }
