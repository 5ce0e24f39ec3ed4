"""The aggregator's address, the name in its certificate, and the description of a site to enrol."""

from __future__ import annotations

import difflib
import ipaddress
import json
import re
from dataclasses import dataclass

from securefda.errors import ConfigError
from securefda.parse import toml_table
from securefda.protocol.roster import Role, check_legal_entity, check_name

_DNS_LABEL = r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)"
_DNS_NAME = re.compile(rf"{_DNS_LABEL}(\.{_DNS_LABEL})*")
_MAX_DNS_NAME = 253
_FILE = "endpoints.toml"


def is_ip_address(host: str) -> bool:
    """Return whether ``host`` is an IPv4 or IPv6 address in its usual text form, without a scope.

    A scope (``%eth0``) names an interface of one machine. Python's parser takes every text for one, line ends included.
    """
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return "%" not in host


def is_loopback(host: str) -> bool:
    """Return whether ``host`` means the machine, or the container, that reads it."""
    return ipaddress.ip_address(host).is_loopback if is_ip_address(host) else host.lower() == "localhost"


def check_host(key: str, host: str) -> str:
    """Return a host name or IP address unchanged, or refuse it.

    Raises:
        ConfigError: ``host`` is neither a DNS name in ASCII nor an IP address.
    """
    if is_ip_address(host) or (len(host) <= _MAX_DNS_NAME and _DNS_NAME.fullmatch(host)):
        return host
    hint = ""
    if "%" in host:
        hint = "leave out the % and what follows: it names an interface of one machine"
    elif "_" in host:
        hint = "names of hosts have no _, and certificates none either: use another name of the machine, or its address"
    raise ConfigError(key, f"{host!r} is neither a host name nor an IP address", hint=hint)


@dataclass(frozen=True, slots=True)
class Address:
    """A TCP address: host name or IP address, and port 1 to 65535.

    Raises:
        ConfigError: one of the two is malformed.
    """

    host: str
    port: int

    def __post_init__(self) -> None:
        check_host("address", self.host)
        if not 1 <= self.port <= 65535:
            raise ConfigError("address", f"port {self.port} is not in 1 to 65535")

    @classmethod
    def parse(cls, text: str, key: str = "address") -> Address:
        """Read ``host:port``; an IPv6 address stands in brackets. Raises ConfigError, which names ``key``."""
        host, colon, port = text.rpartition(":")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host:
            colon = ""
        if not colon or not re.fullmatch(r"[0-9]{1,5}", port):
            raise ConfigError(key, f"{text!r} is not host:port", hint="for example aggregator.example.org:8443")
        try:
            return cls(host, int(port))
        except ConfigError as error:
            raise ConfigError(key, error.why, hint=error.hint) from None

    @classmethod
    def parse_reached(cls, text: str, key: str) -> Address:
        """Read ``host:port`` as `parse` does, of an address that other sites connect to.

        Raises:
            ConfigError: as of `parse`, or the host is a placeholder for all addresses of a machine.
        """
        address = cls.parse(text, key)
        if address.host in ("0.0.0.0", "::"):  # noqa: S104
            hint = "name the host as sources know it; --listen says where its process binds"
            raise ConfigError(
                key, f"{address.host} stands for all addresses of a machine: no site can reach it", hint=hint
            )
        return address

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Contents of ``endpoints.toml``.

    Attributes:
        aggregator: where the sources connect to.
        server_name: host name or IP address that the target's certificate must carry, whatever the address is.
    """

    aggregator: Address
    server_name: str

    def __post_init__(self) -> None:
        check_host("server-name", self.server_name)

    def to_toml(self) -> bytes:
        """Return the file's contents. JSON strings are TOML strings for the characters that hosts consist of."""
        return (
            "# Where the aggregator listens, and the name that its certificate carries.\n"
            "# Signed by the federation's CA: to change it, ask for a new startup kit.\n"
            "[aggregator]\n"
            f"address = {json.dumps(str(self.aggregator))}\n"
            f"server-name = {json.dumps(self.server_name)}\n"
        ).encode("ascii")

    @classmethod
    def from_toml(cls, data: bytes) -> Endpoints:
        """Parse the file. Raises ConfigError for bad TOML, unknown or missing keys and malformed values."""
        try:
            tables = toml_table(data)
        except ValueError as error:
            raise ConfigError(_FILE, "is not valid TOML") from error
        _check_keys("", tables, ("aggregator",))
        table = tables["aggregator"]
        if not isinstance(table, dict):
            raise ConfigError(f"{_FILE} aggregator", "must be a table")
        _check_keys("aggregator.", table, ("address", "server-name"))
        for key, value in table.items():
            if not isinstance(value, str):
                raise ConfigError(f"{_FILE} aggregator.{key}", "must be a string")
        return cls(Address.parse(table["address"]), table["server-name"])


def _check_keys(prefix: str, table: dict[str, object], known: tuple[str, ...]) -> None:
    for key in table:
        if key not in known:
            nearest = difflib.get_close_matches(key, known, n=1, cutoff=0.0)[0]
            raise ConfigError(f"{_FILE} {prefix}{key}", "is no known key", hint=f"did you mean {prefix}{nearest}?")
    for key in known:
        if key not in table:
            raise ConfigError(f"{_FILE} {prefix}{key}", "is missing")


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
        ConfigError: the site id is malformed or reserved, the legal entity is not printable, empty or too long, or a
            name is neither host name nor IP address.
    """

    site_id: str
    role: Role
    legal_entity: str
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_name("site-id", self.site_id)
        if self.site_id in _RESERVED:
            raise ConfigError("site-id", f"{self.site_id!r} is reserved", hint="choose another site id")
        check_legal_entity(f"legal entity of {self.site_id}", self.legal_entity)
        for name in self.names:
            check_host(f"names of {self.site_id}", name)
