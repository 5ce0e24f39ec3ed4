"""A TCP proxy that is a bad network: it delays, limits, cuts, falls silent and flips bits, as a seed says.

    python tests/support/bad_network.py --seed 7 --every 200000 --show 12     # print the schedule
    python tests/support/bad_network.py --seed 7 --every 200000 --delay-s 0.2 --bytes-per-s 125000 \
        --listen 127.0.0.1:8443 --to 127.0.0.1:8444                           # be the network

What befalls a connection follows from the seed, from the line that it comes over, which is the address of the site that
dials, and from how many came over that line before. When it does follows from the bytes that have passed, and not from
a clock: the same traffic meets the same faults. Nothing befalls the connection after it, so that every fault is one
that the sites have to get over.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import signal
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Way = Literal["up", "down"]
WAYS: tuple[Way, Way] = ("up", "down")
KINDS = ("cut", "silence", "flip")

PIECE_BYTES = 4096
SOCKET_BYTES = 65536
"""What the kernel may hold of a connection at the proxy. By default it takes megabytes, which would hide the limit."""
QUEUE_S = 0.2
"""A slow line holds so much of what waits for it, as a router does; then the sender has to wait."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What befalls a connection when ``at`` bytes have passed one way; ``bit`` is the one that is flipped."""

    kind: str
    way: Way
    at: int
    bit: int = 0


@dataclass(frozen=True, slots=True)
class Conditions:
    """How bad a network is.

    Attributes:
        seed: of the faults.
        delay_s: seconds that every byte is late, each way.
        bytes_per_s: what a line carries each way, over all of its connections; 0 for no limit.
        every: mean of the bytes after which a connection meets a fault; 0 for no faults.
        kinds: of faults: ``cut`` resets a connection, ``silence`` lets it carry nothing any more without a word,
            ``flip`` turns one bit.
        first: what befalls the first connections of each line, in place of what the seed says.
    """

    seed: int = 0
    delay_s: float = 0.0
    bytes_per_s: float = 0.0
    every: int = 0
    kinds: tuple[str, ...] = KINDS
    first: tuple[Fault | None, ...] = ()

    def fault_of(self, line: str, number: int) -> Fault | None:
        """What befalls connection ``number``, from 1, of a line."""
        if number <= len(self.first):
            return self.first[number - 1]
        if not self.every:
            return None
        draw = random.Random(f"{self.seed} {line} {number}")
        kind, way = draw.choice(self.kinds), draw.choice(WAYS)
        return Fault(kind, way, int(draw.expovariate(1 / self.every)), draw.randrange(8))


@dataclass(slots=True)
class _Line:
    """What connects one site: how many connections it has had, and when each way is free again."""

    connections: int = 0
    free_at: dict[Way, float] = field(default_factory=lambda: dict.fromkeys(WAYS, 0.0))


class _Connection:
    """One connection of a line, as two pairs of streams."""

    def __init__(self, fault: Fault | None, struck: Callable[[], None]) -> None:
        self.fault, self._struck = fault, struck
        self.passed = dict.fromkeys(WAYS, 0)
        self.silent = False
        self.writers: list[asyncio.StreamWriter] = []

    def abort(self) -> None:
        for writer in self.writers:
            writer.transport.abort()

    def befall(self, way: Way, data: bytes) -> bytes | None:
        """What becomes of bytes that pass; None where nothing passes any more."""
        before, fault = self.passed[way], self.fault
        self.passed[way] += len(data)
        if fault is None or fault.way != way or not before <= fault.at < self.passed[way]:
            return None if self.silent else data
        self._struck()
        if fault.kind == "flip":
            turned = bytearray(data)
            turned[fault.at - before] ^= 1 << fault.bit
            return bytes(turned)
        self.silent = True
        if fault.kind == "cut":
            self.abort()
        return None


class BadNetwork:
    """Listens at one address, connects to another, and is the network between the two while its block lasts.

    It runs in a thread of its own. ``conditions`` may be replaced; connections have those that they began with.

    Args:
        listen: host and port; port 0 takes a free one.
        to: host and port of the aggregator.
        conditions: how bad it is.

    Attributes:
        port: the one it listens on.
        connections: how many there have been.
        struck: how often each kind of fault has struck.
        carried: bytes that arrived, each way.
    """

    def __init__(self, listen: tuple[str, int], to: tuple[str, int], conditions: Conditions) -> None:
        self.conditions, self._to = conditions, to
        self.connections = 0
        self.struck: Counter[str] = Counter()
        self.carried: Counter[Way] = Counter()
        self._lines: dict[str, _Line] = {}
        self._tasks: set[asyncio.Task[Any] | None] = set()
        self._socket = socket.create_server(listen)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BYTES)
        self.port: int = self._socket.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> BadNetwork:
        self._thread.start()
        listening = asyncio.start_server(self._serve, sock=self._socket)
        self._server = asyncio.run_coroutine_threadsafe(listening, self._loop).result(30)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()

    async def _end(self) -> None:
        self._server.close()
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in others:
                task.cancel()
            await asyncio.wait(others)

    def figures(self) -> dict[str, Any]:
        """What it has done so far."""
        return {
            "connections": self.connections,
            "struck": {kind: self.struck[kind] for kind in KINDS},
            "carried": {way: self.carried[way] for way in WAYS},
        }

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        self._tasks.add(task)  # nothing else holds on to it
        site, conditions = str(writer.get_extra_info("peername")[0]), self.conditions
        line = self._lines.setdefault(site, _Line())
        line.connections += 1
        self.connections += 1
        fault = conditions.fault_of(site, line.connections)
        connection = _Connection(fault, lambda: self.struck.update([fault.kind] if fault else []))
        connection.writers.append(writer)
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._to)
            connection.writers.append(far_writer)
            await asyncio.gather(
                self._carry("up", connection, line, conditions, reader, far_writer),
                self._carry("down", connection, line, conditions, far_reader, writer),
            )
        except (OSError, asyncio.CancelledError):  # nobody listens there, or the network is taken down
            pass
        finally:
            connection.abort()
            self._tasks.discard(task)

    async def _carry(
        self,
        way: Way,
        connection: _Connection,
        line: _Line,
        conditions: Conditions,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
    ) -> None:
        """Pass on what comes one way until it ends; after a silence, only hear the end."""
        loop = asyncio.get_running_loop()
        on_the_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        arriving = asyncio.create_task(self._deliver(way, connection, on_the_way, sink))
        with contextlib.suppress(OSError):
            while data := await source.read(PIECE_BYTES):
                passed = connection.befall(way, data)
                if passed is None:
                    continue
                now = loop.time()
                sent = max(now, line.free_at[way])
                if conditions.bytes_per_s:
                    sent += len(passed) / conditions.bytes_per_s
                line.free_at[way] = sent
                on_the_way.put_nowait((sent + conditions.delay_s, passed))
                await asyncio.sleep(max(0.0, sent - now - QUEUE_S))
        on_the_way.put_nowait((loop.time() + conditions.delay_s, b""))
        await arriving

    async def _deliver(
        self, way: Way, connection: _Connection, on_the_way: asyncio.Queue[tuple[float, bytes]], sink: Any
    ) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):
            while True:
                due, data = await on_the_way.get()
                await asyncio.sleep(max(0.0, due - loop.time()))
                if connection.silent:
                    if not data:
                        return
                elif data:
                    sink.write(data)
                    await sink.drain()
                    self.carried[way] += len(data)
                else:
                    sink.close()
                    return


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a schedule, or be the network until SIGTERM and print what it has done."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--delay-s", type=float, default=0.0)
    parser.add_argument("--bytes-per-s", type=float, default=0.0)
    parser.add_argument("--every", type=int, default=0, help="mean bytes to a connection's fault")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--listen", type=_address)
    parser.add_argument("--to", type=_address)
    parser.add_argument("--show", type=int, default=0, metavar="N", help="print the faults of N connections, and end")
    parser.add_argument("--line", default="127.0.0.1", help="the line whose faults are shown")
    given = parser.parse_args(arguments)
    conditions = Conditions(given.seed, given.delay_s, given.bytes_per_s, given.every, tuple(given.kinds))
    if given.show:
        for number in range(1, given.show + 1):
            print(f"{given.line} connection {number}: {conditions.fault_of(given.line, number)}")
        return 0
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGINT])
    with BadNetwork(given.listen, given.to, conditions) as network:
        print("listens", flush=True)
        signal.sigwait([signal.SIGTERM, signal.SIGINT])
        print(json.dumps(network.figures()), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
