"""Simulated federations that run beside each other, from which every accuracy figure comes.

Every run is ``securefda simulate``: the round code, the session and the wire format of the real processes, in memory.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.context import ForkServerContext
from pathlib import Path
from statistics import fmean

import torch

from securefda.errors import SecureFdaError
from securefda.local.simulator import simulate
from securefda.operations.progress import SilentReporter
from securefda.operations.records import REPORTED_ROUNDS, RoundLine, SiteLine, mean_metrics
from securefda.operations.run_folder import RunRecord, read_run
from securefda.site.config import FederationConfig
from securefda.task_metric import metric_of
from securefda.text import counted


@dataclass(frozen=True, slots=True)
class Job:
    """A federation and a seed."""

    config: FederationConfig
    seed: int


@dataclass(frozen=True, slots=True)
class RunResult:
    """The results of a run on the target's test rows.

    Attributes:
        metrics: the task's metrics by name, each the mean over the last five rounds that finished; those of
            ``TaskMetric.percent`` in percent, as the paper reports accuracy. One that a round lacks is left out.
        loss: mean loss over the same rounds; NaN where it is not finite.
        accuracies: after every round, in percent, from the first that finished; empty for a task without accuracy.
        betas: source -> β in every round; None in a round that had none. Empty where no round had one.
        delta_errors: rule -> estimated error, of every round that estimated them.
        rounds_by_rule: rule -> rounds in which it was the one.
        clipped: coordinates that the clip changed, over all rounds and sources.
    """

    metrics: Mapping[str, float]
    loss: float
    accuracies: tuple[float, ...] = ()
    betas: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)
    delta_errors: tuple[Mapping[str, float], ...] = ()
    rounds_by_rule: Mapping[str, int] = field(default_factory=dict)
    clipped: int = 0

    @property
    def accuracy(self) -> float:
        """Mean accuracy in percent; NaN for a task without."""
        return self.metrics.get("accuracy", float("nan"))


def use_one_thread() -> None:
    """Train on one thread in this process, whatever the size of a model."""
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)


def fork_server() -> ForkServerContext:
    """Return a context that starts processes as copies of one that imported torch, since each import takes seconds."""
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


def run(job: Job, scratch: Path | None = None) -> RunResult:
    """Run one federation to its end.

    Args:
        job: what to run.
        scratch: an existing folder for the run's files, which are gone afterwards; None is the system's own.

    Raises:
        SecureFdaError: whatever ended the run early, or no round of it finished.
    """
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        alone = job.config.strategy.model_copy(update={"compare_target_only": False})  # suites have runs of their own
        simulate(job.config.model_copy(update={"strategy": alone}), Path(folder), job.seed, SilentReporter())
        return result_of(read_run(Path(folder)), job.config.federation.sources)


def result_of(record: RunRecord, sources: Iterable[str]) -> RunResult:
    """Return the results of a run; ``sources`` in the order of the federation.

    Raises:
        SecureFdaError: no round finished.
    """
    lines = {source: record.sites.get(source, ()) for source in sources}
    finished = [line for line in record.rounds if line.get("status") == "finished"]
    if not finished:
        raise SecureFdaError(f"none of {counted(len(record.rounds), 'round')} finished")
    last = finished[-REPORTED_ROUNDS:]
    losses = [line.get("loss") for line in last]
    return RunResult(
        metrics=in_percent(mean_metrics(last)),
        loss=fmean(float("nan") if loss is None else loss for loss in losses),
        accuracies=_after_each(record.rounds),
        betas=_betas(lines, len(record.rounds)),
        delta_errors=tuple(errors for line in record.rounds if (errors := line.get("delta_errors"))),
        rounds_by_rule=dict(Counter(line["rule"] for line in record.rounds)),
        clipped=sum(line.get("clipped", 0) for of_source in lines.values() for line in of_source),
    )


def in_percent(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return metrics with those in percent that are printed so."""
    return {name: 100 * value if metric_of(name).percent else value for name, value in metrics.items()}


def _after_each(rounds: Sequence[RoundLine]) -> tuple[float, ...]:
    """Return the accuracy after each round, in percent. A lost round leaves the model unchanged."""
    known: list[float] = []
    for line in rounds:
        if "accuracy" in line:
            known.append(100 * line["accuracy"])
        elif known:
            known.append(known[-1])
    return tuple(known)


def _betas(lines: Mapping[str, Sequence[SiteLine]], rounds: int) -> dict[str, tuple[float | None, ...]]:
    betas = {}
    for source, of_source in lines.items():
        by_round = {line["round"]: line.get("beta") for line in of_source if "beta" in line}
        if any(beta is not None for beta in by_round.values()):
            betas[source] = tuple(by_round.get(number) for number in range(1, rounds + 1))
    return betas
