"""A source's store with the book of its runs beside it, as a kit and a run folder have them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from securefda.site.policy.schema import ReleaseLimits
from securefda.source.run_book import RunBook
from securefda.source.source_store import SourceStore

NO_LIMITS = ReleaseLimits(max_runs=1_000_000, max_unfinished=1_000_000)


def book_beside(path: Path) -> Path:
    """Where the book of a source lies whose state is at ``path``."""
    return path.with_name(f"{path.stem}-runs.sqlite")


def store_at(
    path: Path,
    limits: ReleaseLimits = NO_LIMITS,
    *,
    unix_time: Callable[[], float] = time.time,
    accept_run: bool = False,
) -> SourceStore:
    """Opens both; without ``limits`` it takes part in whatever it is asked for."""
    return SourceStore(path, RunBook(book_beside(path), limits, unix_time=unix_time, accept_run=accept_run))
