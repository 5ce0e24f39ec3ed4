"""The event loop of a process, and how the process is told to end."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any


def run_until_told(serve: Coroutine[Any, Any, None]) -> None:
    """Run ``serve`` in an event loop of its own; Ctrl-C and SIGTERM cancel it, so that it can say goodbye.

    Raises:
        KeyboardInterrupt: the process was told to end.
    """
    try:
        asyncio.run(_cancelled_by_sigterm(serve))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


async def _cancelled_by_sigterm(serve: Coroutine[Any, Any, None]) -> None:
    # Not by raising SIGINT: a process that a script started in the background is deaf to that.
    task = asyncio.ensure_future(serve)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await task
