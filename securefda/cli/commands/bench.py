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
    dropped: Annotated[int, typer.Option("--dropped", min=0, help="Sources that vanish after their shares.")] = 0,
    output: OutputFormat = Format.TXT,
) -> None:
    """Measure one masking session beside the raw cipher and an unmasked round."""
    from securefda.cli.bench import bench_secagg

    figures = bench_secagg(sources=sources, params=params, dropped=dropped)
    print_result(output, figures, aligned([(key.replace("_", " "), _text(value)) for key, value in figures.items()]))


def _text(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
