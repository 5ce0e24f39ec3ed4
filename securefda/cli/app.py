"""The command's tree. Only names and options are imported here; a command imports its work when it runs."""

from __future__ import annotations

from typing import Annotated

import typer

from securefda import __version__
from securefda.cli import (
    audit,
    bench,
    budget,
    config,
    dashboard,
    federation,
    kit,
    new,
    policy,
    preflight,
    processes,
    runs,
    status,
    task,
    threats,
    training,
)

app = typer.Typer(
    name="securefda",
    help="Federated domain adaptation under secure aggregation.",
    add_completion=False,
    # A traceback of an unforeseen error must not print local variables: they may hold keys and data rows.
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("demo")(training.demo)
app.command("run")(training.run)
app.command("simulate")(training.simulate)
app.command("status")(status.status)
app.command("new")(new.new)
app.command("preflight")(preflight.preflight)
app.command("dashboard")(dashboard.dashboard)
app.command("predict")(runs.predict)
app.command("export")(runs.export)
app.command("threats")(threats.threats)
app.add_typer(federation.app, name="federation")
app.add_typer(kit.app, name="kit")
app.add_typer(task.app, name="task")
app.add_typer(config.app, name="config")
app.add_typer(policy.app, name="policy")
app.add_typer(budget.app, name="budget")
app.add_typer(audit.app, name="audit")
app.add_typer(processes.aggregator, name="aggregator")
app.add_typer(processes.source, name="source")
app.add_typer(runs.app, name="runs")
app.add_typer(bench.app, name="bench")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"securefda {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Federated domain adaptation under secure aggregation."""
