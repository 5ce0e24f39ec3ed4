"""Sites in network namespaces of their own, each with one line to this process's namespace, and none to each other.

This process has to be in a namespace of its own first, as its root: ``unshare --map-root-user --net python ...``. That
takes no rights where the system lets users make namespaces, and touches nothing of the machine's own network. As
nothing is forwarded, sites reach what listens here, and nobody else.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

HUB = "10.77.255.1"
"""Address of this process's namespace that every site reaches."""

_CLONE_NEWNET = 0x40000000
_WAIT_S = 10.0


class Namespaces:
    """A namespace for each site, for as long as the block lasts. ``addresses`` are those of the sites.

    Raises:
        OSError, subprocess.CalledProcessError: this process may not, or ``unshare`` or ``ip`` is missing.
    """

    def __init__(self, sites: Sequence[str]) -> None:
        self.addresses = {site: f"10.77.{number}.2" for number, site in enumerate(sites)}
        self._holders: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Namespaces:
        try:
            _ip("link set lo up")
            _ip(f"address add {HUB}/32 dev lo")
            for number, site in enumerate(self.addresses):
                self._make(number, site)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for holder in self._holders.values():  # which end with this process too, however that ends
            holder.communicate()

    def _make(self, number: int, site: str) -> None:
        holder = self._holders[site] = subprocess.Popen(["unshare", "--net", "cat"], stdin=subprocess.PIPE)
        own, until = _namespace_of("self"), time.monotonic() + _WAIT_S
        while _namespace_of(holder.pid) == own:
            if holder.poll() is not None or time.monotonic() > until:
                raise OSError("there is no network namespace for a site")
            time.sleep(0.01)
        _ip(f"link add line{number} type veth peer name line netns {holder.pid}")
        _ip(f"address add 10.77.{number}.1/30 dev line{number}")
        _ip(f"link set line{number} up")
        inside = ["nsenter", "--target", str(holder.pid), "--net"]
        _ip("link set lo up", inside)
        _ip(f"address add {self.addresses[site]}/30 dev line", inside)
        _ip("link set line up", inside)
        _ip(f"route add default via 10.77.{number}.1", inside)


def _namespace_of(pid: int | str) -> Path:
    return Path(f"/proc/{pid}/ns/net").readlink()


def _ip(arguments: str, inside: Sequence[str] = ()) -> None:
    subprocess.run([*inside, "ip", *arguments.split()], check=True)


def enter(pid: int) -> None:
    """Move this process, which must have no other thread, into the network namespace of another. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path(f"/proc/{pid}/ns/net").open() as namespace:
        if libc.setns(namespace.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "cannot enter the network namespace")


def main() -> int:
    """Run a site's command in the namespace of the process ``SECUREFDA_NAMESPACE``."""
    enter(int(os.environ["SECUREFDA_NAMESPACE"]))
    from securefda.cli import main as run  # no thread before the namespace is entered

    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
