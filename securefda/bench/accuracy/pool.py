"""Runs beside each other in separate processes, none of which outlives its parent."""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue

from securefda.bench.accuracy.federated import Job, RunResult, fork_server, run, use_one_thread
from securefda.bench.accuracy.plan import Planned
from securefda.errors import SecureFdaError


@dataclass(frozen=True, slots=True)
class Failed:
    """The reason why a run gave no result, one line."""

    why: str


Done = Callable[[Planned, RunResult | Failed], None]


def run_beside(planned: Iterable[Planned], count: int, scratch: Path, done: Done) -> None:
    """Run all, first ones first, with one torch thread each; one that fails does not stop the others.

    Args:
        planned: the runs.
        count: how many processes.
        scratch: an existing folder for the files of runs that are under way.
        done: called in this thread after each. Where it raises, or on Ctrl-C, the processes end at once.
    """
    waiting = deque(planned)
    while waiting:
        with _processes(min(count, len(waiting))) as pool:
            _feed(pool, waiting, count, scratch, done)


def _feed(pool: ProcessPoolExecutor, waiting: deque[Planned], count: int, scratch: Path, done: Done) -> None:
    """Submit runs until none is waiting. If a process dies, the runs under way have failed and the pool is gone."""
    under_way: dict[Future[RunResult | Failed], Planned] = {}
    # Not concurrent.futures.wait: interrupted by a signal, it can keep locks that the pool needs.
    ended: SimpleQueue[Future[RunResult | Failed]] = SimpleQueue()
    broken = False
    while under_way or (waiting and not broken):
        # No more than run at once: a dying process then takes with it what it was at, and not the queue.
        while waiting and len(under_way) < count and not broken:
            try:
                under_way[_submit(pool, waiting[0].job, scratch, ended)] = waiting[0]
                waiting.popleft()
            except BrokenProcessPool:
                broken = True
        if under_way:
            future = ended.get()
            error = future.exception()
            broken |= isinstance(error, BrokenProcessPool)
            why = f"{type(error).__name__}: {error}"
            if isinstance(error, BrokenProcessPool):
                why = "its process ended, or one beside it did; out of memory?"
            done(under_way.pop(future), future.result() if error is None else Failed(why))


def _submit(
    pool: ProcessPoolExecutor, job: Job, scratch: Path, ended: SimpleQueue[Future[RunResult | Failed]]
) -> Future[RunResult | Failed]:
    """Hand a run to the pool, and its future to ``ended`` when it is done.

    The first call starts processes, for which no signal to this one is meant; and none may interrupt what holds locks.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        future = pool.submit(run_or_fail, job, scratch)
        future.add_done_callback(ended.put)
        return future
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def run_or_fail(job: Job, scratch: Path | None) -> RunResult | Failed:
    """Run one federation. Return an error as text, since the package's own errors cannot be passed between
    processes.
    """
    try:
        return run(job, scratch)
    except SecureFdaError as error:
        hint = f" ({error.hint})" if error.hint else ""
        return Failed(" ".join(f"{error}{hint}".split()))


@contextmanager
def _processes(count: int) -> Iterator[ProcessPoolExecutor]:
    """Yield a pool whose processes end when the block or this process does, however that happens."""
    theirs, ours = Pipe(duplex=False)
    pool = ProcessPoolExecutor(count, mp_context=fork_server(), initializer=_begin, initargs=(theirs,))
    try:
        yield pool
    finally:
        ours.close()
        pool.shutdown(wait=True, cancel_futures=True)
        theirs.close()


def _begin(alive: Connection) -> None:
    """Prepare a process: one thread, so that no figure depends on the number of cores; end with the parent."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # with which a pool ends its processes
    use_one_thread()
    threading.Thread(target=_end_with, args=(alive,), daemon=True).start()


def _end_with(alive: Connection) -> None:
    """Wait for the parent's end: it alone has the other end open, and sends nothing."""
    try:
        alive.recv_bytes()
    except (EOFError, OSError):
        os._exit(1)
