"""Seconds and calls of what a process does, by kind, timed from inside.

It knows nothing of the package, so that it can time older trees as well.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import wraps
from typing import Any


class _Thread(threading.local):
    """What one thread is in: for each call that it has not left, the seconds of the calls inside that one."""

    def __init__(self) -> None:
        self.inner: list[float] = []


class Shares:
    """Seconds by kind; what is called inside another kind's call counts once, as its own.

    Each thread has its own stack of calls. ``clock`` is that of `time`: ``perf_counter``, or ``thread_time`` for what
    the processor does, without waiting for the disk, nor for a core that another site has.
    """

    def __init__(self, clock: str = "perf_counter") -> None:
        self._clock: Callable[[], float] = lambda: getattr(time, clock)()  # noqa: PLW0108 - as it is when it is read
        self.seconds: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self._thread = _Thread()
        self._one_at_a_time = threading.Lock()

    def timed(self, kind: str, work: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, timed."""
        name = f"{kind}.{getattr(work, '__name__', 'call')}"

        @wraps(work)
        def timed(*args: Any, **options: Any) -> Any:
            inner = self._thread.inner
            inner.append(0.0)
            began = self._clock()
            try:
                return work(*args, **options)
            finally:
                whole = self._clock() - began
                own = whole - inner.pop()
                if inner:
                    inner[-1] += whole
                with self._one_at_a_time:
                    self.seconds[kind] += own
                    self.calls[name] += 1

        return timed
