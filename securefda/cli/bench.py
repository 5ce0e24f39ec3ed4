"""``securefda bench``: measure on this machine."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from securefda.cli.interrupt import RunInterruptedError, interruptible
from securefda.cli.options import OutputFormat, Overrides
from securefda.cli.output import Format, print_result
from securefda.text import aligned

if TYPE_CHECKING:
    from securefda.bench.job import Job

app = typer.Typer(help="Measure on this machine.")

_COLUMNS = {
    "sources": "N",
    "params": "m",
    "dropped": "dropped",
    "source_cpu_session_ms": "source CPU, ms",
    "source_message_bytes_up": "source up, bytes",
    "source_message_bytes_down": "source down, bytes",
    "aggregator_cpu_session_ms": "aggregator CPU, ms",
    "aggregator_session_growth_mb": "aggregator memory, MB",
    "session_s": "session of processes, s",
}
"""Of a cell of a grid, as text; JSON has every figure."""


@app.callback()
def _bench() -> None:
    """Measure on this machine."""


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
    repeats: Annotated[
        int | None, typer.Option("--repeats", min=1, help="How often; default: 5, fewer where a session is large.")
    ] = None,
    processes: Annotated[
        int | None, typer.Option("--processes", min=2, help="Processes of the sources; default: one each, up to 16.")
    ] = None,
    output: OutputFormat = Format.TXT,
) -> None:
    """Measure a masking session: every step's cost, and real processes beside a plain round. Lists make a grid."""
    from securefda.bench.secagg import bench_secagg, jobs_of

    jobs = jobs_of(
        _numbers("--sources", sources, least=3),
        _numbers("--params", params, least=1),
        _numbers("--dropped", dropped, least=0),
    )
    cells = []
    for job in jobs:
        began = time.monotonic()
        cells.append(bench_secagg(job, repeats=repeats, processes=processes))
        if len(jobs) > 1:
            _tell(job, time.monotonic() - began)
    if len(jobs) == 1:
        print_result(
            output, cells[0], aligned([(key.replace("_", " "), _text(value)) for key, value in cells[0].items()])
        )
    else:
        print_result(output, {"cells": cells}, aligned([list(_COLUMNS.values()), *map(_row, cells)]))


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
        typer.Option("--data-dir", help="Folder of the data files, or of fed_heart/, mnist/, ..."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder of the results; default: runs/accuracy-SUITE-LEVEL.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, help="Runs beside each other; default: one a core.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="End with 1 where the suite's requirements do not hold.")
    ] = False,
    compare: Annotated[
        Path | None, typer.Option("--compare", metavar="FOLDER", help="Of the same suite at another level.")
    ] = None,
    overrides: Overrides = [],
    output: OutputFormat = Format.TXT,
) -> int:
    """Measure the target's accuracy under every rule of a suite. Goes on where it was, in the same folder."""
    from securefda.bench.accuracy import bench_accuracy
    from securefda.bench.plan import Request
    from securefda.bench.progress import console_watcher
    from securefda.cli.bench_accuracy import at_another_level, compared, print_accuracy

    request = Request(suite, level, seeds, _names(rules), _names(data), data_dir, overrides, os.environ)
    folder = out or Path("runs") / f"accuracy-{suite}-{level}"
    other = None if compare is None else (compare, at_another_level(request, compare))
    try:
        with interruptible(folder), console_watcher() as watcher:
            done = bench_accuracy(request, folder, workers=workers or os.cpu_count() or 1, watcher=watcher)
    except RunInterruptedError as error:
        hint = f"every finished run is in {folder}; the same command goes on"
        raise RunInterruptedError(str(error), hint=hint) from None
    return print_accuracy(output, done, None if other is None else compared(done, *other), check=check)


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


def _tell(job: Job, seconds: float) -> None:
    """A grid takes minutes."""
    sys.stderr.write(f"measured N = {job.sources}, m = {job.params} in {seconds:.0f} s\n")
    sys.stderr.flush()


def _row(cell: dict[str, Any]) -> list[str]:
    return [_text(cell.get(name, "-")) for name in _COLUMNS]


def _text(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
