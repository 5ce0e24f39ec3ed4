"""How many steps of a round a site has trained, for its operator."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

ProgressObserver = Callable[[int, int], None]
"""Hears how many steps of a round are done, and how many are planned; it neither raises nor blocks for long."""

INTERVAL_S = 1.0
"""Seconds between two reports, and before the first: of a short round nothing is said."""

Step = TypeVar("Step")


def observed(
    steps: Iterable[Step],
    planned: int,
    on_progress: ProgressObserver | None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Step]:
    """Yield the steps of a round, and report those that are done about once a second."""
    reported_at = clock()
    for done, step in enumerate(steps):
        if on_progress is not None and done and (now := clock()) - reported_at >= INTERVAL_S:
            reported_at = now
            on_progress(done, planned)
        yield step


def part_of_round(on_progress: ProgressObserver | None, *, before: int = 0, after: int = 0) -> ProgressObserver | None:
    """Return the observer of one training of a round, which has so many steps before and after it."""
    if on_progress is None:
        return None
    return lambda done, planned: on_progress(before + done, before + planned + after)
