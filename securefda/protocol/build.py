"""Which build of securefda a site runs: what it says in its Join or its headers, and when two builds are kept apart.

Nothing is negotiated. Two builds speak with each other if they have the same wire version and the same capabilities.
So no one between two sites, and neither of them, can talk the other into less than both can do.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from securefda.protocol.envelope import expect

WIRE_VERSION = 1
"""Rises with every change of a message, of what is signed, or of what a reader of it requires."""

CAPABILITIES = ("sfda-sa-1", "sfda-sa-2", "x25519", "x25519-mlkem768")
"""What a header may ask of every site of this wire version, in alphabetical order: session suites, key agreements."""

MAX_CAPABILITIES = 64
_CAPABILITY = re.compile(r"[a-z0-9-]{1,64}")


@dataclass(frozen=True, slots=True)
class Build:
    """The build that signs a Join or a Header."""

    wire_version: int
    software_version: str
    capabilities: tuple[str, ...]

    def __post_init__(self) -> None:
        expect(1 <= self.wire_version < 2**32, "wire_version must be at least 1")
        expect(len(self.software_version) <= 64, "software_version has at most 64 characters")
        expect(self.software_version.isprintable(), "software_version must be printable")
        expect(all(map(_CAPABILITY.fullmatch, self.capabilities)), "a capability is 1 to 64 of a-z, 0-9 and -")
        expect(list(self.capabilities) == sorted(set(self.capabilities)), "capabilities must rise strictly")

    @classmethod
    def own(cls) -> Build:
        """The build that runs here."""
        from securefda import __version__  # noqa: PLC0415 - the package's public names need this module

        return cls(WIRE_VERSION, __version__, CAPABILITIES)

    def apart_from(self, other: Build) -> tuple[str, str] | None:
        """Both builds in words, this one first, if they must not speak with each other; else None."""
        if (self.wire_version, self.capabilities) == (other.wire_version, other.capabilities):
            return None
        if self.wire_version != other.wire_version:
            return str(self), str(other)
        mine, others = set(self.capabilities), set(other.capabilities)
        return self._without(others - mine), other._without(mine - others)

    def __str__(self) -> str:
        return self._without(set())

    def _without(self, missing: set[str]) -> str:
        lacks = f", without {', '.join(sorted(missing))}" if missing else ""
        return f"securefda {self.software_version} (wire version {self.wire_version}{lacks})"
