"""Limits how often something is done that only its last time matters for, such as writing down where a run stands."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

INTERVAL_S = 0.25
"""Seconds from one time to the next. A masked round changes its state dozens of times, mostly within milliseconds."""


class Pace:
    """Calls ``act`` whenever it is due, but not twice within ``interval_s`` seconds; safe for threads.

    What is due within that time is done once, when it is over, on a thread that does not keep the process alive.
    """

    def __init__(self, act: Callable[[], None], interval_s: float = INTERVAL_S) -> None:
        self._act, self._interval_s = act, interval_s
        self._lock = threading.Lock()
        self._next = 0.0
        self._late: threading.Timer | None = None

    def due(self) -> None:
        """Do it now, or once the interval is over."""
        with self._lock:
            wait = self._next - time.monotonic()
            if wait <= 0:
                self._do()
            elif self._late is None:
                self._late = threading.Timer(wait, self.catch_up)
                self._late.daemon = True
                self._late.start()

    def catch_up(self) -> None:
        """Do it now if it is still due."""
        with self._lock:
            if self._late is not None:
                self._do()

    def now(self) -> None:
        """Do it now; nothing is due afterwards."""
        with self._lock:
            self._do()

    def _do(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None
        self._act()
        self._next = time.monotonic() + self._interval_s
