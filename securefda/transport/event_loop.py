"""The event loop of a process: how it is asked to end, and how to run slow work beside it."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeVar

from securefda.errors import Terminated

_LAST_CALLS_S = 5.0
"""Seconds to wait for tasks that ``serve`` leaves running."""


def run_interruptibly(serve: Coroutine[Any, Any, None]) -> None:
    """Run ``serve`` in an event loop of its own; Ctrl-C and SIGTERM cancel it, so that it can say goodbye.

    Raises:
        Terminated: SIGTERM asked the process to end.
        KeyboardInterrupt: Ctrl-C did.
        asyncio.CancelledError: neither did; something in ``serve`` was cancelled by mistake.
    """
    logging.getLogger("grpc._cython.cygrpc").addFilter(_is_no_cancellation)
    before = signal.getsignal(signal.SIGTERM)
    try:
        asyncio.run(_cancelled_by_sigterm(serve))
    finally:  # a loop that closes leaves the default, with which what follows could be cut off without a word
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def _is_no_cancellation(record: logging.LogRecord) -> bool:
    """Return whether to show a record of gRPC's, which logs a traceback for each stream cut off when its server
    stops.
    """
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))


async def _cancelled_by_sigterm(serve: Coroutine[Any, Any, None]) -> None:
    # Not by raising SIGINT: a process that a script started in the background is deaf to that.
    task, terminated = asyncio.ensure_future(serve), asyncio.Event()

    def terminate() -> None:
        terminated.set()
        task.cancel()

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, terminate)
    try:
        await task
    except asyncio.CancelledError:
        if terminated.is_set():
            raise Terminated from None
        raise
    finally:
        # gRPC's calls end shortly after its server has stopped. If the loop cancels one first, gRPC prints a traceback.
        if rest := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(rest, timeout=_LAST_CALLS_S)


ResultT = TypeVar("ResultT")

_NAME = "securefda-work"


class _Worker(threading.Thread):
    """A daemon thread that does one piece of work after another."""

    def __init__(self) -> None:
        super().__init__(name=_NAME, daemon=True)
        self.work: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.busy = True

    def run(self) -> None:
        while True:
            self.work.get()()
            self.busy = False
            _idle.append(self)


_idle: deque[_Worker] = deque()
"""Workers that wait; to start a thread for each piece costs more than most pieces do."""
os.register_at_fork(after_in_child=_idle.clear)  # threads stay with the parent


def work_goes_on() -> bool:
    """Return whether work of :func:`in_thread` still runs although nothing waits for it any more."""
    return any(isinstance(thread, _Worker) and thread.busy for thread in threading.enumerate())


async def in_thread(work: Callable[[], ResultT]) -> ResultT:
    """Run ``work`` in a daemon thread, so that heartbeats continue and Ctrl-C need not wait for it."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[ResultT] = loop.create_future()

    def settle(result: ResultT | None, error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]  # None only where ResultT allows it

    def run() -> None:
        with suppress(RuntimeError):  # of a loop that has closed meanwhile: nothing waits any more
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001 - it is raised again where the work was asked for
                loop.call_soon_threadsafe(settle, None, error)
            else:
                loop.call_soon_threadsafe(settle, result, None)

    try:
        worker = _idle.pop()
    except IndexError:
        worker = _Worker()
        worker.start()
    worker.busy = True
    worker.work.put(run)
    return await done
