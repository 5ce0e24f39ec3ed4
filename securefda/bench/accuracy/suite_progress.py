"""Display of a suite's progress: a bar on a terminal, a line for each finished run elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from securefda.bench.accuracy.accuracy_bench import Watcher
from securefda.bench.accuracy.federated import RunResult
from securefda.bench.accuracy.results import RunKey
from securefda.task_metric import metric_of
from securefda.text import printable


@contextmanager
def console_watcher(stream: TextIO | None = None) -> Iterator[Watcher]:
    """Show progress on ``stream``, stderr by default, so that stdout holds nothing but results."""
    stream = sys.stderr if stream is None else stream
    if not stream.isatty():
        yield LineWatcher(stream)
        return
    columns = (
        MofNCompleteColumn(),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=Console(file=stream, highlight=False), transient=True) as progress:
        yield BarWatcher(progress)


class LineWatcher(Watcher):
    """Plain lines, for logs and pipes."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._done = self._total = 0
        self._began, self._here = time.monotonic(), 0

    def begin(self, finished: int, total: int) -> None:
        """Print how many runs have finished before."""
        self._done, self._total = finished, total
        if finished:
            self._write(f"{finished} of {total} runs have finished before")

    def finished(self, key: RunKey, result: RunResult) -> None:
        """Print the run's line, with an estimate of the time left."""
        self._count()
        left = (time.monotonic() - self._began) / self._here * (self._total - self._done)
        self._write(f"[{self._done}/{self._total}] {run_text(key, result)}  {left / 60:.0f} min left")

    def failed(self, key: RunKey, why: str) -> None:
        """Print which run failed and why."""
        self._count()
        self._write(failure_text(key, why))

    def _count(self) -> None:
        self._done += 1
        self._here += 1

    def _write(self, text: str) -> None:
        self._stream.write(f"{printable(text)}\n")
        self._stream.flush()


class BarWatcher(Watcher):
    """A bar over the runs with the last one behind it; what failed stays above it."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=None)

    def begin(self, finished: int, total: int) -> None:
        """Set the bar."""
        self._progress.reset(self._task, total=total, completed=finished)

    def finished(self, key: RunKey, result: RunResult) -> None:
        """Advance."""
        self._progress.update(self._task, advance=1, description=printable(run_text(key, result)))

    def failed(self, key: RunKey, why: str) -> None:
        """Advance, and print which run failed and why above the bar."""
        self._progress.update(self._task, advance=1)
        self._progress.console.print(printable(failure_text(key, why)), markup=False, soft_wrap=True)


def run_text(key: RunKey, result: RunResult) -> str:
    """Return for example ``fed-heart, va, fedgp_auto, seed 3: accuracy 66.5 %, AUROC 0.712``."""
    named = (
        f"{metric_of(name).title} {value:.1f} %" if metric_of(name).percent else metric_of(name).named(value)
        for name, value in result.metrics.items()
    )
    return f"{key}: {', '.join(named)}"


def failure_text(key: RunKey, why: str) -> str:
    """Return a line about a run without a result."""
    return f"FAILED: {key}: {why}"
