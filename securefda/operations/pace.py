"""A limit on how often an action runs of which only the last time matters, such as writing a run's state."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

INTERVAL_S = 0.5
"""Seconds from one time to the next. A masked round changes its state dozens of times, mostly within milliseconds."""

_LINGER_S = 5.0


class Pace:
    """Calls ``act`` when it is due, but at most once per ``interval_s`` seconds; thread-safe.

    Calls that become due within the interval are combined into one at its end, on a daemon thread.
    """

    def __init__(self, act: Callable[[], None], interval_s: float = INTERVAL_S) -> None:
        self._act, self._interval_s = act, interval_s
        self._changed = threading.Condition(threading.Lock())
        self._next = 0.0
        self._is_late = self._has_thread = False

    def due(self) -> None:
        """Act now, or at the end of the interval."""
        with self._changed:
            if time.monotonic() >= self._next:
                self._do()
            elif not self._is_late:
                self._is_late = True
                if self._has_thread:
                    self._changed.notify()
                else:
                    self._has_thread = True
                    threading.Thread(target=self._do_what_is_late, daemon=True).start()

    def catch_up(self) -> None:
        """Act now if it is still due."""
        with self._changed:
            if self._is_late:
                self._do()

    def now(self) -> None:
        """Act now; nothing is due afterwards."""
        with self._changed:
            self._do()

    def _do(self) -> None:
        self._is_late = False
        self._act()
        self._next = time.monotonic() + self._interval_s

    def _do_what_is_late(self) -> None:
        """Act at the due time, then wait for more work: starting a thread again costs about as much as to act."""
        with self._changed:
            try:
                while self._is_late or self._changed.wait(_LINGER_S):
                    left_s = self._next - time.monotonic()
                    if left_s > 0:
                        self._changed.wait(left_s)
                    elif self._is_late:
                        self._do()
            finally:
                self._has_thread = False
