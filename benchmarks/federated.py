"""Whole federations, simulated, many beside each other: what the studies of this folder are made of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager

from securefda.bench.accuracy.federated import Job, RunResult, fork_server, run, use_one_thread

__all__ = ["Job", "RunResult", "run", "run_all", "workers"]


@contextmanager
def workers(count: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that run jobs beside each other, one thread each, so that no figure depends on the number of cores."""
    with ProcessPoolExecutor(count, mp_context=fork_server(), initializer=use_one_thread) as pool:
        yield pool


def run_all(pool: ProcessPoolExecutor, jobs: Iterable[Job]) -> list[RunResult]:
    """Run all jobs; results in their order."""
    return list(pool.map(run, jobs))
