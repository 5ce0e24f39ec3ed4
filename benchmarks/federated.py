"""Whole federations, simulated, many beside each other: what the studies of this folder are made of."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager

from securefda.bench.accuracy.federated import Job, fork_server, use_one_thread

__all__ = ["Job", "workers"]


@contextmanager
def workers(count: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that run jobs beside each other, one thread each, so that no figure depends on the number of cores."""
    with ProcessPoolExecutor(count, mp_context=fork_server(), initializer=use_one_thread) as pool:
        yield pool
