"""Ports for what a test starts a moment later, and that nothing else is given meanwhile.

The kernel takes ports from a range of its own for outgoing connections and for port 0. A port of that range that is
free now may be taken by the time a process of a test listens on it. The ports here are below that range.
"""

from __future__ import annotations

import secrets
import socket
from contextlib import ExitStack

_FIRST, _COUNT = 10_000, 20_000


def free_port(in_a_row: int = 1) -> int:
    """Return the first of so many consecutive ports that are free on every address of this machine."""
    while True:
        first = _FIRST + secrets.randbelow(_COUNT)
        with ExitStack() as probes:
            try:
                for port in range(first, first + in_a_row):
                    probes.enter_context(socket.socket()).bind(("", port))
            except OSError:
                continue
            return first
