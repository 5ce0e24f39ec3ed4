"""The policy that a site's process goes by: the very bytes that the site signed."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from securefda.policy.model import SourcePolicy, parse_policy


class HoldsPolicy(Protocol):
    """What holds a signed policy: a startup kit."""

    def signed_policy(self) -> tuple[Path, bytes]:
        """The path of ``policy.toml`` and its contents, once the site's signature over them is found right.

        Raises:
            ConfigError: ``policy``, the file or its signature is missing or wrong.
        """


def load_signed_policy(kit: HoldsPolicy) -> SourcePolicy:
    """Read a site's ``policy.toml`` as the site signed it; no other contents are ever looked at.

    Raises:
        ConfigError: ``policy``, where a file is missing or the signature wrong; else as ``load_policy`` does.
    """
    file, data = kit.signed_policy()
    return parse_policy(data, file)
