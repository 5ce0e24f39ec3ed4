"""The command's tree. Only names and options are imported here; a command imports its work when it runs."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup

from securefda import __version__
from securefda.cli import (
    audit,
    bench,
    budget,
    config,
    dashboard,
    features,
    federation,
    kit,
    new,
    policy,
    preflight,
    processes,
    runs,
    site,
    statistics,
    status,
    task,
    threats,
    training,
)
from securefda.cli.help import HelpContext
from securefda.cli.output import Verbosity, set_verbosity


def _louder(value: bool) -> None:
    if value:
        set_verbosity(Verbosity.VERBOSE)


def _quieter(value: bool) -> None:
    if value:
        set_verbosity(Verbosity.QUIET)


_verbosity = typer.Typer()


@_verbosity.command()
def _options(
    quiet: Annotated[
        bool, typer.Option("-q", "--quiet", callback=_quieter, help="Print errors and the result alone.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", callback=_louder, help="Print every phase, and what caused an error.")
    ] = False,
) -> None:
    """The options of every command."""


@cache
def _of_every_command() -> list[Any]:
    own = [param for param in typer.main.get_command(_verbosity).params if param.name in ("quiet", "verbose")]
    for param in own:
        param.expose_value = False
    return own


def _with_verbosity(params: list[Any]) -> list[Any]:
    """Return the parameters of a command or group with ``-q`` and ``-v`` before its ``--help``."""
    return [*params[:-1], *_of_every_command(), *params[-1:]]


class _Command(TyperCommand):
    context_class = HelpContext

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the command's parameters with ``-q`` and ``-v``."""
        return _with_verbosity(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments; an empty path, as of a variable that is not set, is not the current folder."""
        has_empty = "" in args
        rest = super().parse_args(ctx, args)
        for param in self.get_params(ctx) if has_empty else ():
            value, source = ctx.params.get(param.name), ctx.get_parameter_source(param.name)
            paths = value if isinstance(value, list | tuple) else (value,)
            if source is not None and source.name == "COMMANDLINE" and Path() in paths:
                raise typer.BadParameter("is empty", ctx, param)
        return rest


class _Group(TyperGroup):
    context_class = HelpContext

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the group's parameters with ``-q`` and ``-v``."""
        return _with_verbosity(super().get_params(ctx))

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - typer's signature
        """List the commands, each with the whole first sentence of its help."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.get_short_help_str(1000)) for name, command in self.commands.items()])


app = typer.Typer(
    name="securefda",
    cls=_Group,
    help="Federated domain adaptation under secure aggregation.",
    context_settings={"help_option_names": ["-h", "--help"]},
    # A traceback of an unforeseen error must not print local variables: they may hold keys and data rows.
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("demo")(training.demo)
app.command("run")(training.run)
app.command("simulate")(training.simulate)
app.command("status")(status.status)
app.command("new")(new.new)
app.command("statistics")(statistics.statistics)
app.command("features")(features.features)
app.command("preflight")(preflight.preflight)
app.command("dashboard")(dashboard.dashboard)
app.command("predict")(runs.predict)
app.command("export")(runs.export)
app.command("threats")(threats.threats)
app.add_typer(federation.app, name="federation")
app.add_typer(site.app, name="site")
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


def _give_verbosity_options(group: typer.Typer) -> None:
    """Give every command and every group below this one the same ``-q`` and ``-v``."""
    for command in group.registered_commands:
        command.cls = _Command
    for inner in group.registered_groups:
        inner.cls = _Group
        if inner.typer_instance is not None:
            _give_verbosity_options(inner.typer_instance)


_give_verbosity_options(app)


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


COMMAND = typer.main.get_command(app)
"""The tree as it runs. Typer takes a tenth of a second to make it: once in a process, and before copies of that."""
