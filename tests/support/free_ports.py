"""Ports for what a test starts a moment later, and that nothing else is given meanwhile.

The kernel gives out its own range to every outgoing connection and to whoever asks for port 0, so a port of that range
that is free now may be taken when a process of a test listens on it. These are below that range.
"""

from __future__ import annotations

import secrets
import socket
from contextlib import ExitStack

_FIRST, _COUNT = 10_000, 20_000


def free_port(in_a_row: int = 1) -> int:
    """The first of so many ports on which nobody listens, on any address of this machine."""
    while True:
        first = _FIRST + secrets.randbelow(_COUNT)
        with ExitStack() as probes:
            try:
                for port in range(first, first + in_a_row):
                    probes.enter_context(socket.socket()).bind(("", port))
            except OSError:
                continue
            return first
