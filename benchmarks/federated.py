"""Whole federations, simulated: what the accuracy scripts measure.

Every run is ``securefda simulate``: the round code, the session and the wire format of the real processes, in memory.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean

import torch

from securefda.config import FederationConfig
from securefda.rounds.progress import SilentReporter
from securefda.rounds.records import REPORTED_ROUNDS
from securefda.rounds.run_folder import RunRecord, read_run
from securefda.transport.memory import simulate


@dataclass(frozen=True, slots=True)
class Job:
    """A federation and a seed."""

    config: FederationConfig
    seed: int


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a run gave on the target's test rows.

    Attributes:
        accuracy: mean over the last five rounds, in percent, as the paper reports it.
        loss: mean loss over the same rounds.
        mean_betas: mean β of each source over the rounds that had one; empty where none had.
        clipped: coordinates that the clip changed, over all rounds and sources.
    """

    accuracy: float
    loss: float
    mean_betas: tuple[float, ...]
    clipped: int


@contextmanager
def workers(count: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that run jobs beside each other, one thread each, so that no figure depends on the number of cores."""
    context = get_context("spawn")
    with ProcessPoolExecutor(count, mp_context=context, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        yield pool


def run_all(pool: ProcessPoolExecutor, jobs: Iterable[Job]) -> list[RunResult]:
    """Run all jobs; results in their order."""
    return list(pool.map(run, jobs))


def run(job: Job) -> RunResult:
    """Run one federation to its end."""
    with tempfile.TemporaryDirectory() as folder:
        simulate(job.config, Path(folder), job.seed, SilentReporter())
        return _result(read_run(Path(folder)), job.config.federation.sources)


def _result(record: RunRecord, sources: Iterable[str]) -> RunResult:
    last = record.rounds[-REPORTED_ROUNDS:]
    lines = [record.sites.get(source, ()) for source in sources]
    betas = [[line["beta"] for line in of_source if line.get("beta") is not None] for of_source in lines]
    return RunResult(
        accuracy=100 * fmean(line["accuracy"] for line in last),
        loss=fmean(line["loss"] for line in last),
        mean_betas=tuple(fmean(of_source) for of_source in betas if of_source),
        clipped=sum(line.get("clipped", 0) for of_source in lines for line in of_source),
    )
