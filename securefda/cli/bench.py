"""``securefda bench``: measure on this machine."""

from __future__ import annotations

import os
import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from securefda.cli.options import OutputFormat, Overrides, RayExposed, interruptible, terminable
from securefda.cli.output import Format, print_outcome, print_result
from securefda.errors import ConfigError, SecureFdaError
from securefda.text import aligned

if TYPE_CHECKING:
    from securefda.bench.accuracy.accuracy_bench import Accuracy, Comparison

app = typer.Typer(help="Measure accuracy and masking on this machine.")


class Graph(StrEnum):
    """The values of ``secagg --graph``, which are those of ``session.graph``."""

    COMPLETE = "complete"
    K_REGULAR = "k-regular"


_COLUMNS = {
    "sources": "N",
    "params": "m",
    "dropped": "dropped",
    "neighbours": "neighbours",
    "source_cpu_session_ms": "source CPU, ms",
    "source_message_bytes_up": "source up, bytes",
    "source_message_bytes_down": "source down, bytes",
    "aggregator_cpu_session_ms": "aggregator CPU, ms",
    "aggregator_session_growth_mb": "aggregator memory, MB",
    "session_s": "session of processes, s",
}
"""The figures of a grid's cell in text output; JSON has all of them."""


class RunsFailed(SecureFdaError):
    """Some runs of a suite gave no result."""


class CriteriaMissed(SecureFdaError):
    """A suite does not meet its requirements."""


@app.command("secagg")
def secagg(
    sources: Annotated[str, typer.Option("--sources", metavar="N[,N...]", help="Number of sources.")] = "10",
    params: Annotated[
        str, typer.Option("--params", metavar="M[,M...]", help="Number of model parameters.")
    ] = "1100000",
    dropped: Annotated[
        str,
        typer.Option(
            "--dropped",
            metavar="D[,D...]",
            help="Sources that leave after their shares: one number, or one for each N.",
        ),
    ] = "0",
    graph: Annotated[
        Graph,
        typer.Option("--graph", help="With whom a source shares: all others, or neighbours as many as are needed."),
    ] = Graph.COMPLETE,
    max_colluders: Annotated[
        int | None,
        typer.Option(
            "--max-colluders", min=0, help="How many sources may collude, with k-regular; default: 0. Sets neighbours."
        ),
    ] = None,
    repeats: Annotated[
        int | None, typer.Option("--repeats", min=1, help="How often; default: 5, fewer where a session is large.")
    ] = None,
    processes: Annotated[
        int | None, typer.Option("--processes", min=2, help="Processes of the sources; default: one each, up to 16.")
    ] = None,
    output: OutputFormat = Format.TXT,
) -> None:
    """Measure a masking session: every step's cost, and real processes beside a plain round. Lists make a grid."""
    from securefda.bench.secagg.secagg_bench import bench_secagg, grid_jobs

    if max_colluders is not None and graph is Graph.COMPLETE:
        why, hint = "sets the neighbours of --graph k-regular", "name that graph too, or leave this option out"
        raise ConfigError("--max-colluders", why, hint=hint)
    jobs = grid_jobs(
        _numbers("--sources", sources, least=3),
        _numbers("--params", params, least=1),
        _numbers("--dropped", dropped, least=0),
        colluders=None if graph is Graph.COMPLETE else max_colluders or 0,
    )
    cells = []
    with terminable():
        for job in jobs:
            began = time.monotonic()
            cells.append(bench_secagg(job, repeats=repeats, processes=processes))
            if len(jobs) > 1:
                took = f"{time.monotonic() - began:.0f} s"
                sys.stderr.write(f"measured N = {job.sources}, m = {job.params} in {took}\n")
                sys.stderr.flush()
    if len(jobs) == 1:
        print_result(
            output, cells[0], aligned([(key.replace("_", " "), _text(value)) for key, value in cells[0].items()])
        )
    else:
        rows = [[_text(cell.get(name, "-")) for name in _COLUMNS] for cell in cells]
        print_result(output, {"cells": cells}, aligned([list(_COLUMNS.values()), *rows]))


@app.command("accuracy")
def accuracy(
    suite: Annotated[str, typer.Option("--suite", metavar="SUITE", help="What to measure, e.g. fed-heart.")],
    level: Annotated[str, typer.Option("--level", help="Visibility: individual, cohort or sum.")] = "sum",
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="How many seeds, from 0.")] = 5,
    rules: Annotated[str, typer.Option("--rules", metavar="RULE[,RULE...]", help="Default: those of the suite.")] = "",
    data: Annotated[
        str, typer.Option("--data", metavar="NAME[,NAME...]", help="Of the suite's data sets; default: all.")
    ] = "",
    data_dir: Annotated[
        Path | None,
        typer.Option("--data-dir", help="Folder of the data files, or of mnist/, fashion_mnist/, ..."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder of the results; default: runs/accuracy-SUITE-LEVEL.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, help="Runs beside each other; default: one a core.")
    ] = None,
    engine: Annotated[
        str, typer.Option("--engine", help="What computes: local, ray, or slurm (by submitit); extras of those names.")
    ] = "local",
    ray_address: Annotated[
        str, typer.Option("--ray-address", metavar="HOST:PORT", help="Of a Ray cluster; default: one made for this.")
    ] = "",
    ray_exposed: RayExposed = False,
    check: Annotated[
        bool, typer.Option("--check", help="End with 1 where the suite's requirements do not hold.")
    ] = False,
    compare: Annotated[
        Path | None, typer.Option("--compare", metavar="FOLDER", help="Of the same suite at another level.")
    ] = None,
    overrides: Overrides = [],
    output: OutputFormat = Format.TXT,
) -> int:
    """Measure the target's accuracy and other metrics under every rule of a suite. Goes on where it was."""
    from securefda.bench.accuracy.accuracy_bench import at_another_level, bench_accuracy, compared
    from securefda.bench.accuracy.engines import engine_settings
    from securefda.bench.accuracy.plan import Request
    from securefda.bench.accuracy.suite_progress import console_watcher

    computing = engine_settings(engine, workers or os.cpu_count() or 1, ray_address, exposed=ray_exposed)
    request = Request(suite, level, seeds, _names(rules), _names(data), data_dir, overrides, os.environ)
    folder = out or Path("runs") / f"accuracy-{suite}-{level}"
    other = None if compare is None else (compare, at_another_level(request, compare))
    kept = f"every finished run is in {folder}; the same command goes on"
    with interruptible(kept), console_watcher() as watcher:
        done = bench_accuracy(request, folder, engine=computing, watcher=watcher)
    return _print_accuracy(output, done, None if other is None else compared(done, *other), check=check)


def _print_accuracy(output: Format, done: Accuracy, comparison: Comparison | None, *, check: bool) -> int:
    """Print tables and requirements; return 1 where a run failed or, with ``check``, a requirement does not hold."""
    from securefda.bench.accuracy.accuracy_bench import TABLE_FILE, means, means_by_metric

    misses = [*done.misses, *(comparison.misses if comparison else ())]
    data: dict[str, Any] = {
        "out": str(done.out),
        "suite": done.request.suite,
        "level": done.request.level,
        "seeds": done.results.seeds,
        "metric": done.results.suite.metric,
        "means": means(done.results),
        "means_by_metric": means_by_metric(done.results),
        "misses": misses,
        "failed": {str(key): why for key, why in done.failed.items()},
        "differences": dict(comparison.differences) if comparison else {},
    }
    error: SecureFdaError | None = None
    if done.failed:
        key, why = next(iter(done.failed.items()))
        what = f"{len(done.failed)} {'run' if len(done.failed) == 1 else 'runs'} failed, first {key}: {why}"
        error = RunsFailed(what, hint="the same command tries again what failed, and nothing else")
    elif misses and check:
        failing = "requirement does" if len(misses) == 1 else "requirements do"
        error = CriteriaMissed(f"{len(misses)} {failing} not hold")
    parts = [(done.out / TABLE_FILE).read_text().rstrip("\n")]
    if comparison is not None:
        rows = [["rule", f"points above {comparison.other}"]]
        rows += [[rule, f"{difference:+.2f}"] for rule, difference in comparison.differences]
        parts.append(aligned(rows))
    if done.request.definition.bars or comparison is not None:
        parts.append("\n".join(misses) or "Every requirement holds.")
    return print_outcome(output, data, "\n\n".join([*parts, f"in {done.out}"]), error)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _numbers(option: str, text: str, *, least: int) -> list[int]:
    try:
        numbers = [int(one) for one in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no list of numbers", param_hint=option) from None
    if min(numbers) < least:
        raise typer.BadParameter(f"{min(numbers)} is not in the range x>={least}", param_hint=option)
    return numbers


def _text(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
