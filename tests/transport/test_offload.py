"""Work beside the event loop."""

from __future__ import annotations

import asyncio
import threading
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
    threads = [thread for thread in threading.enumerate() if thread.name == "securefda-work"]
    held.set()
    for thread in threads:
        thread.join(WAIT_S)
    assert not work_goes_on()
