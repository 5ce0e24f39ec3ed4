"""How a source reaches the aggregator: the address that it dials, and an HTTP proxy that opens a tunnel to it.

TLS runs inside the tunnel, from site to site. The proxy sees both addresses and the number of bytes.
"""

from __future__ import annotations

import base64
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from securefda.disk import check_secret_mode, read_file
from securefda.errors import ConfigError, ConnectionFailed
from securefda.protocol.secret import Secret
from securefda.site.endpoints import Address

if TYPE_CHECKING:
    from securefda.site.config import TransportSection
    from securefda.site.kit import Kit

_MOST_BYTES = 8192
_VARIABLES = ("grpc_proxy", "https_proxy", "http_proxy", "all_proxy")
_CREDENTIALS = "transport.proxy-credentials"


@dataclass(frozen=True, slots=True)
class HttpProxy:
    """An HTTP proxy, and the value of the header by which it knows this site, if it asks for one."""

    address: Address
    authorization: Secret | None = None


@dataclass(frozen=True, slots=True)
class Route:
    """The address at which this source reaches the aggregator, and the proxy between, if there is one."""

    address: Address
    proxy: HttpProxy | None = None

    @classmethod
    def of(cls, kit: Kit, transport: TransportSection) -> Route:
        """Return the route that the settings name; without them, the kit's address and no proxy.

        Raises:
            ConfigError: the file of the proxy's credentials is missing, open to others, or not
                one line ``user:password``.
        """
        address = Address.parse(transport.address) if transport.address else kit.endpoints.aggregator
        if not transport.proxy:
            return cls(address)
        authorization = None
        if transport.proxy_credentials is not None:
            content = read_file(transport.proxy_credentials, limit=_MOST_BYTES // 2)
            check_secret_mode(str(transport.proxy_credentials), content)
            given = content.data.strip()
            if b":" not in given or not given.decode("utf-8", "replace").isprintable():
                hint = f"write one line user:password into {transport.proxy_credentials}"
                raise ConfigError(_CREDENTIALS, "is not one line user:password", hint=hint)
            authorization = Secret(b"Basic " + base64.b64encode(given))
        return cls(address, HttpProxy(Address.parse(transport.proxy), authorization))


def unused_proxies(environment: Mapping[str, str]) -> list[str]:
    """Return the names of variables that set a proxy for other programs. This package reads none of them."""
    return sorted(name for name, value in environment.items() if value and name.lower() in _VARIABLES)


def open_tunnel(proxy: HttpProxy, address: str, timeout_s: float) -> socket.socket:
    """Connect to a proxy and have it open a tunnel (CONNECT, RFC 9110, section 9.3.6); what it says is not shown.

    Args:
        proxy: the proxy.
        address: ``host:port`` of the aggregator; the proxy resolves the name.
        timeout_s: seconds for all of it.

    Returns:
        The connection, on which the aggregator speaks from now on.

    Raises:
        ConfigError: the proxy asks for other credentials, or does not allow this tunnel.
        ConnectionFailed: the proxy is not there, does not answer, is no HTTP proxy, or cannot reach the aggregator.
    """
    ends = time.monotonic() + timeout_s
    try:
        connection = socket.create_connection((proxy.address.host, proxy.address.port), timeout=timeout_s)
    except OSError as error:
        raise ConnectionFailed(
            f"cannot reach the proxy at {proxy.address}: {error.strerror or error}", hint="check transport.proxy"
        ) from error
    try:
        status = _ask(connection, proxy, address, ends)
        _require_tunnel(proxy, address, status)
    except TimeoutError as error:
        connection.close()
        raise ConnectionFailed(
            f"the proxy at {proxy.address} does not answer within {timeout_s:g} s",
            hint="check that an HTTP proxy listens there, and that it can reach the aggregator",
        ) from error
    except OSError as error:
        connection.close()
        raise ConnectionFailed(f"the proxy at {proxy.address} broke off the connection") from error
    except BaseException:
        connection.close()
        raise
    return connection


def _ask(connection: socket.socket, proxy: HttpProxy, address: str, ends: float) -> int:
    """Ask for a tunnel; return the status of the answer, 0 where it is none."""
    lines = [f"CONNECT {address} HTTP/1.1".encode(), f"Host: {address}".encode()]
    lines += [b"Proxy-Authorization: " + proxy.authorization.reveal()] if proxy.authorization else []
    connection.sendall(b"\r\n".join(lines) + b"\r\n\r\n")
    head, end = b"", -1
    while end < 0 and len(head) < _MOST_BYTES:
        if (left := ends - time.monotonic()) <= 0:
            raise TimeoutError
        connection.settimeout(left)
        seen = connection.recv(_MOST_BYTES, socket.MSG_PEEK)
        if not seen:
            raise ConnectionResetError
        end = (head + seen).find(b"\r\n\r\n")
        head += connection.recv(len(seen) if end < 0 else end + 4 - len(head))  # what follows is for TLS
    version, _, rest = head.partition(b" ")
    status = rest[:3]
    is_answer = end >= 0 and version in (b"HTTP/1.0", b"HTTP/1.1") and status.isdigit()
    return int(status) if is_answer else 0


def _require_tunnel(proxy: HttpProxy, address: str, status: int) -> None:
    if 200 <= status < 300:
        return
    if status == 407:
        verdict = "refuses these credentials" if proxy.authorization else "asks for credentials"
        raise ConfigError(
            _CREDENTIALS,
            f"the proxy at {proxy.address} {verdict} (407)",
            hint="write user:password into a file, and name the file here; no other scheme than Basic is supported",
        )
    if 400 <= status < 500:
        raise ConfigError(
            "transport.proxy",
            f"the proxy at {proxy.address} allows no tunnel to {address} ({status})",
            hint="have its operator allow CONNECT to this host and port",
        )
    if status >= 500:
        raise ConnectionFailed(
            f"the proxy at {proxy.address} cannot reach the aggregator at {address} ({status})",
            hint="check that the aggregator runs, and that the proxy's network reaches it",
        )
    raise ConnectionFailed(f"what answers at {proxy.address} is no HTTP proxy", hint="check transport.proxy")
