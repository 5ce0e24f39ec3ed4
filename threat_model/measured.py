"""A victim in a separate process, so that its memory can be measured from outside of the attacker.

Here are the real server of an aggregator and the real channel of a source; nothing of the stage, which loads torch.
"""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from securefda.errors import SecureFdaError
from securefda.transport.aggregator_server import AggregatorServer
from securefda.transport.client import SourceChannel
from securefda.transport.dialer import Endpoint
from securefda.transport.event_loop import in_thread
from securefda.transport.event_queue import Joined, Misbehaved
from securefda.transport.limits import TransportSettings
from securefda.transport.tls import Credentials

Within = Callable[[], AbstractContextManager[Any]]
_EXPECTED_BYTES = 4096
_PEAK, _PRESENT = "VmHWM:", "VmRSS:"


def _memory(key: str) -> int:
    """Return a number of bytes of this process's memory, from Linux."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))


class MeasuredProcess:
    """The other end of a victim's pipe."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._before = 0

    async def received(self) -> Any:
        """Return the victim's next report."""
        return await in_thread(self._pipe.recv)

    async def settle(self) -> None:
        """Start to measure growth from here."""
        self._before = (await self._ask())[0]

    async def growth(self) -> tuple[int, list[str]]:
        """Return by how much the peak memory exceeds the memory then, in bytes, and the checks that failed."""
        _, peak, checks = await self._ask()
        return peak - self._before, checks

    async def _ask(self) -> tuple[int, int, list[str]]:
        self._pipe.send("how much?")
        answer: tuple[int, int, list[str]] = await self.received()
        return answer


@contextmanager
def in_its_own_process(victim: Callable[..., None], *args: Any) -> Iterator[MeasuredProcess]:
    """Run ``victim(pipe, *args)`` in a fresh interpreter, which ends with its pipe, or by force."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=victim, args=(theirs, *args), daemon=True)
    process.start()
    theirs.close()
    try:
        yield MeasuredProcess(ours)
    finally:
        ours.close()
        process.join(10)
        process.kill()
        process.join()


def aggregator_server(
    pipe: Connection,
    credentials: Credentials,
    sites: Mapping[bytes, int],
    settings: TransportSettings,
    within: Within = nullcontext,
) -> None:
    """Run the real server, which lets every source upload 4 KiB. Reports its address, then its memory.

    Args:
        pipe: to the process that measures.
        credentials: of the target.
        sites: TLS pin to roster index.
        settings: sizes and times.
        within: what it runs in.
    """

    async def serve() -> None:
        server = AggregatorServer("127.0.0.1:0", credentials, sites.get, settings=settings, run_id=bytes(16))
        pipe.send(await server.start())
        checks: list[str] = []
        noting = asyncio.create_task(_note(server, checks))
        while await _asked(pipe):
            pipe.send((_memory(_PRESENT), _memory(_PEAK), list(checks)))
        noting.cancel()
        await server.stop(0.0)

    with within():
        asyncio.run(serve())


async def _note(server: AggregatorServer, checks: list[str]) -> None:
    while True:
        match await server.receive():
            case Joined(index=index):
                server.expect_upload(index, _EXPECTED_BYTES)
            case Misbehaved(check=check):
                checks.append(check)


async def _asked(pipe: Connection) -> bool:
    try:
        await in_thread(pipe.recv)
    except EOFError:
        return False
    return True


def source_channel(
    pipe: Connection,
    endpoint: Endpoint,
    credentials: Credentials,
    settings: TransportSettings,
    max_vector_bytes: int,
) -> None:
    """Run the real channel: reports its connection, takes in a message once asked, and reports the outcome.

    Args:
        pipe: to the process that measures.
        endpoint: the aggregator.
        credentials: of the source.
        settings: sizes and times.
        max_vector_bytes: longest vector that it takes.
    """

    async def take_part() -> str:
        channel = SourceChannel(endpoint, credentials, max_vector_bytes=max_vector_bytes, settings=settings)
        try:
            await channel.open()
            pipe.send("connected")
            await in_thread(pipe.recv)
            pipe.send((_memory(_PRESENT), _memory(_PEAK), []))
            await channel.receive()
        except SecureFdaError as error:
            return f"{type(error).__name__} {error}"
        finally:
            await channel.close(0.0)
        return "accepted"

    pipe.send(asyncio.run(take_part()))
    while asyncio.run(_asked(pipe)):
        pipe.send((_memory(_PRESENT), _memory(_PEAK), []))
