"""``securefda bench``: measure on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from securefda.cli.options import OutputFormat
from securefda.cli.output import Format, aligned, print_result

app = typer.Typer(help="Measure on this machine.")


@app.callback()
def _bench() -> None:
    """Measure on this machine."""


@app.command("secagg")
def secagg(
    sources: Annotated[int, typer.Option("--sources", min=3, help="Number of sources.")] = 10,
    params: Annotated[int, typer.Option("--params", min=1, help="Number of model parameters.")] = 1_100_000,
    dropped: Annotated[int, typer.Option("--dropped", min=0, help="Sources that leave after their shares.")] = 0,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Rounds of each kind; figures are medians.")] = 5,
    processes: Annotated[
        int | None, typer.Option("--processes", min=2, help="Processes of the sources; default: one each, up to 16.")
    ] = None,
    output: OutputFormat = Format.TXT,
) -> None:
    """Measure a masking session of real processes beside the raw cipher and a plain round."""
    from securefda.cli.bench.secagg import bench_secagg

    figures = bench_secagg(sources, params, dropped, repeats=repeats, processes=processes)
    print_result(output, figures, aligned([(key.replace("_", " "), _text(value)) for key, value in figures.items()]))


def _text(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
