"""How the event loop of a process ends: asked by a signal, or because something in it was cancelled by mistake."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from securefda.errors import Terminated
from securefda.transport import event_loop
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


@pytest.mark.parametrize(("takes_s", "ended"), [(0.05, ["by itself"]), (3600.0, ["cut off"])])
def test_what_is_left_running_may_end_by_itself_but_not_for_ever(
    takes_s: float, ended: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_loop, "_LAST_CALLS_S", 60.0 if takes_s < 1 else 0.01)
    ends, running = [], []

    async def call() -> None:
        try:
            await asyncio.sleep(takes_s)
            ends.append("by itself")
        except asyncio.CancelledError:
            ends.append("cut off")

    async def serve() -> None:
        running.append(asyncio.create_task(call()))

    run_interruptibly(serve())
    assert ends == ended


def test_a_cancellation_that_nobody_asked_for_is_shown_as_such() -> None:
    async def serve() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        run_interruptibly(serve())
