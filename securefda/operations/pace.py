"""Limits how often something is done that only its last time matters for, such as writing down where a run stands."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

INTERVAL_S = 0.5
"""Seconds from one time to the next. A masked round changes its state dozens of times, mostly within milliseconds."""

_LINGER_S = 5.0


class Pace:
    """Calls ``act`` whenever it is due, but not twice within ``interval_s`` seconds; safe for threads.

    What is due within that time is done once, when it is over, on a thread that does not keep the process alive.
    """

    def __init__(self, act: Callable[[], None], interval_s: float = INTERVAL_S) -> None:
        self._act, self._interval_s = act, interval_s
        self._changed = threading.Condition(threading.Lock())
        self._next = 0.0
        self._is_late = self._has_thread = False

    def due(self) -> None:
        """Do it now, or once the interval is over."""
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
        """Do it now if it is still due."""
        with self._changed:
            if self._is_late:
                self._do()

    def now(self) -> None:
        """Do it now; nothing is due afterwards."""
        with self._changed:
            self._do()

    def _do(self) -> None:
        self._is_late = False
        self._act()
        self._next = time.monotonic() + self._interval_s

    def _do_what_is_late(self) -> None:
        """Do it when its time has come, then stay a while: to start a thread again costs about as much as to act."""
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
