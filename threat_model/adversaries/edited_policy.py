"""T33: an insider at the site edits its policy."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from securefda.site.policy import default_policy, default_policy_text
from securefda.site.policy.signed import policy_signature

Way = Literal["edited", "unsigned", "of another site", "signed by another key", "signed in another's name"]
WAYS: tuple[Way, ...] = ("edited", "unsigned", "of another site", "signed by another key", "signed in another's name")


@dataclass(frozen=True, slots=True)
class EditsPolicy:
    """Replaces the policy that the site's owner signed by one that allows everything.

    Powers: may write every file in the ``local`` folder of the site's kit; a key of its own, and the policy of another
    site with that site's signature. It does not hold the site's signing key.
    Goal: a source that starts with its policy.
    Source: known of every configuration file; insiders are the threat that signed audit logs are built against.

    Args:
        kit: folder of the site's kit.
        other: folder of the kit of another site of the federation, whose policy allows more.
        key: a signing key that is not the site's.
    """

    kit: Path
    other: Path
    key: Ed25519PrivateKey

    threat = "T33"

    def attack(self, way: Way, federation_id: str) -> None:
        """Change the files in one of the ways that need no key of the site."""
        policy = self.kit / "local" / "policy.toml"
        signature = policy.with_suffix(".sig")
        if way == "of another site":
            for file in (policy, signature):
                shutil.copy(self.other / "local" / file.name, file)
            return
        policy.write_text(default_policy_text(self.kit.name, default_policy("individual")))
        name = {"signed by another key": self.kit.name, "signed in another's name": self.other.name}.get(way, "")
        if way == "unsigned":
            signature.unlink()
        elif name:
            signature.write_bytes(policy_signature(federation_id, name, self.key, policy.read_bytes()))
