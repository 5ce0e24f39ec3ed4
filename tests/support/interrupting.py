"""Ctrl-C at a certain place, in this process: no waiting, and no guess at how long a command takes to come there."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def ctrl_c_in(function: Callable[..., Any]) -> Iterator[None]:
    """Send SIGINT when ``function`` is called first in the block; the block must come to it."""
    happened = False

    def look(frame: Any, event: str, _: Any) -> None:
        nonlocal happened
        if event == "call" and frame.f_code is function.__code__:  # type: ignore[attr-defined]
            sys.setprofile(None)
            happened = True
            signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # it is ignored where tests run in the background
    sys.setprofile(look)
    try:
        yield
    finally:
        sys.setprofile(None)
        signal.signal(signal.SIGINT, before)
    assert happened
