"""A bound on the connections that one address has to a port of this process.

gRPC bounds those of all addresses together, and tells nobody which it has. So this looks at the process's own sockets
every half a second, and hangs up on the newest of an address that has too many. The sources were there before, and have
few. A system without ``/dev/fd`` has the bound on all addresses only.
"""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from ipaddress import ip_address, ip_network
from pathlib import Path

_DESCRIPTORS = Path("/dev/fd")
_LOOK_S = 0.5

Peer = tuple[str, int]


class ConnectionGuard:
    """Keeps each address below a number of connections to a port.

    Args:
        port: on which this process listens.
        per_address: most connections of one IPv4 address, or of one IPv6 network of 64 bits.
    """

    def __init__(self, port: int, per_address: int) -> None:
        self._port, self._per_address = port, per_address
        self._known: dict[Peer, None] = {}

    async def watch(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_S)
            self.look()

    def look(self) -> None:
        """Hang up on the newest connections of each address that has too many."""
        with suppress(OSError):  # no such folder, or no descriptor to read it with: gRPC's own bound remains
            if sum(1 for _ in _DESCRIPTORS.iterdir()) > self._per_address:  # else no address can have too many
                self._hang_up()

    def _hang_up(self) -> None:
        with _connections(self._port) as connections:
            held = [peer for peer in self._known if peer in connections]
            newer = [peer for peer in connections if peer not in self._known]
            counts = Counter[str]()
            self._known = {}
            # The oldest first: the connections of sources were there before those of a flood.
            for peer in (*held, *newer):
                network = _network(peer[0])
                counts[network] += 1
                if counts[network] <= self._per_address:
                    self._known[peer] = None
                else:
                    with suppress(OSError):
                        connections[peer].shutdown(socket.SHUT_RDWR)


def _network(address: str) -> str:
    """Return what counts as one address: of IPv6, a host has 64 bits to choose from."""
    parsed = ip_address(address.partition("%")[0])
    if parsed.version == 6 and parsed.ipv4_mapped is None:
        return str(ip_network((parsed, 64), strict=False))
    return str(parsed)


@contextmanager
def _connections(port: int) -> Iterator[dict[Peer, socket.socket]]:
    """Yield this process's accepted connections to a port, by peer."""
    with ExitStack() as duplicates:
        connections = {}
        for descriptor in [int(entry.name) for entry in _DESCRIPTORS.iterdir()]:
            with suppress(OSError):  # closed meanwhile, or no connection
                if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                    continue
                # A duplicate, since gRPC may close its own descriptor meanwhile and the number be given to another.
                connection = duplicates.enter_context(socket.socket(fileno=os.dup(descriptor)))
                if connection.family in (socket.AF_INET, socket.AF_INET6) and connection.getsockname()[1] == port:
                    connections[connection.getpeername()[:2]] = connection
        yield connections
