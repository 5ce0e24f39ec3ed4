"""How the event loop of a process ends: asked by a signal, or because something in it was cancelled by mistake."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from securefda.errors import Terminated
from securefda.transport.event_loop import run_interruptibly


@pytest.mark.parametrize(
    ("number", "expected"),
    [(signal.SIGTERM, Terminated), (signal.SIGINT, KeyboardInterrupt)],
    ids=["SIGTERM", "SIGINT"],
)
def test_a_signal_cancels_what_runs_and_has_its_own_error(number: int, expected: type[BaseException]) -> None:
    said_goodbye = []

    async def serve() -> None:
        os.kill(os.getpid(), number)
        try:
            await asyncio.Event().wait()
        finally:
            said_goodbye.append(True)

    with pytest.raises(KeyboardInterrupt) as ended:
        run_interruptibly(serve())
    assert (type(ended.value), said_goodbye) == (expected, [True])


def test_what_answered_sigterm_before_answers_it_again_afterwards() -> None:
    async def serve() -> None:
        await asyncio.sleep(0)

    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        answers = signal.getsignal(signal.SIGTERM)
        run_interruptibly(serve())
        assert signal.getsignal(signal.SIGTERM) is answers
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_cancellation_that_nobody_asked_for_is_shown_as_such() -> None:
    async def serve() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        run_interruptibly(serve())
