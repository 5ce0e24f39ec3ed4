"""Work beside the event loop."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable

import pytest

from securefda.transport.event_loop import in_thread, work_goes_on

WAIT_S = 20.0


def test_an_error_of_the_work_is_raised_where_it_was_asked_for() -> None:
    def fail() -> None:
        raise RuntimeError("out of order")

    with pytest.raises(RuntimeError, match="out of order"):
        asyncio.run(in_thread(fail))


@pytest.mark.parametrize("ending", [lambda: None, lambda: 1 / 0], ids=["result", "error"])
@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_work_that_outlasts_its_loop_ends_quietly(ending: Callable[[], object]) -> None:
    began, held = threading.Event(), threading.Event()

    def work() -> None:
        began.set()
        assert held.wait(WAIT_S)
        ending()

    async def walk_away() -> None:
        waiting = asyncio.ensure_future(in_thread(work))
        assert await asyncio.to_thread(began.wait, WAIT_S)
        waiting.cancel()

    asyncio.run(walk_away())
    assert work_goes_on()
    held.set()
    give_up = time.monotonic() + WAIT_S
    while work_goes_on() and time.monotonic() < give_up:
        time.sleep(0.01)
    assert not work_goes_on()


def test_a_thread_that_has_done_its_work_does_the_next() -> None:
    async def idents() -> list[int]:
        thread_ids = [await in_thread(threading.get_ident)]
        while work_goes_on():  # it says what it found before it waits again
            await asyncio.sleep(0.001)
        return [*thread_ids, await in_thread(threading.get_ident)]

    first, second = asyncio.run(idents())
    assert first == second != threading.get_ident()


def test_a_forked_process_asks_no_thread_of_its_parent() -> None:
    asyncio.run(in_thread(threading.get_ident))
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if asyncio.run(asyncio.wait_for(in_thread(lambda: 7), WAIT_S)) == 7 else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
