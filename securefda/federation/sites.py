"""What is said about a site when it is enrolled."""

from __future__ import annotations

from dataclasses import dataclass

from securefda.errors import ConfigError
from securefda.federation.endpoints import check_host
from securefda.secagg.roster import Role, check_name

# Folders of a federation that are no sites.
_RESERVED = ("ca",)


@dataclass(frozen=True, slots=True)
class SiteSpec:
    """A site to enrol.

    Attributes:
        site_id: 1 to 63 characters of ``a-z 0-9 -``; not ``ca``.
        role: ``"target"`` or ``"source"``.
        legal_entity: the organisation behind it; no two sites of a federation share one.
        names: host names and IP addresses for its TLS certificate; the target's must hold the server name.

    Raises:
        ConfigError: the site id is malformed or reserved, or a name is neither host name nor IP address.
    """

    site_id: str
    role: Role
    legal_entity: str
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_name("site-id", self.site_id)
        if self.site_id in _RESERVED:
            raise ConfigError("site-id", f"{self.site_id!r} is reserved", hint="choose another site id")
        for name in self.names:
            check_host(f"names of {self.site_id}", name)
