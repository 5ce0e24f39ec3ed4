"""What is due often is done seldom, and the last time is never left out."""

from __future__ import annotations

import threading

import pytest

from securefda.operations import pace as pace_module
from securefda.operations.pace import Pace


def test_what_is_due_often_is_done_at_once_and_then_once_more() -> None:
    done: list[int] = []
    said = [0]
    twice = threading.Event()

    def act() -> None:
        done.append(said[-1])
        if len(done) == 2:
            twice.set()

    pace = Pace(act, interval_s=1.0)
    for number in range(1, 11):
        said.append(number)
        pace.due()
    assert done[0] == 1
    said.append(11)
    pace.due()
    assert twice.wait(60)
    pace.catch_up()
    assert done[-1] == 11


def test_catching_up_and_now_do_what_is_due_and_nothing_else() -> None:
    done: list[str] = []
    pace = Pace(lambda: done.append("done"), interval_s=3600)
    pace.catch_up()
    assert done == []
    for do in (pace.catch_up, pace.now):
        pace.due()
        pace.due()
        do()
        pace.catch_up()
    assert done == ["done"] * 3


def test_one_thread_does_all_that_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace_module, "_LINGER_S", 3600.0)
    late: list[int] = []
    acted = threading.Event()

    def act() -> None:
        if threading.current_thread() is not threading.main_thread():
            late.append(threading.get_ident())
            acted.set()

    pace = Pace(act, interval_s=0.05)
    for _ in range(3):
        acted.clear()
        while not acted.wait(0.001):  # a slow machine may find that nothing is late
            pace.due()
    assert len(late) >= 3
    assert len(set(late)) == 1
