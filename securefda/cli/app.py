"""The command's tree. Only names and options are imported here; a command imports its work when it runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
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
    upgrade,
)
from securefda.cli.help import HelpContext
from securefda.cli.output import Verbosity, set_verbosity


def _louder(value: bool) -> None:
    if value:
        set_verbosity(Verbosity.VERBOSE)


def _quieter(value: bool) -> None:
    if value:
        set_verbosity(Verbosity.QUIET)


GROUPS: Mapping[str, Mapping[str, Any]] = {
    "Try, on this machine": {
        "demo": training.demo,
        "new": new.new,
        "task": task.app,
        "features": features.features,
        "statistics": statistics.statistics,
        "run": training.run,
        "simulate": training.simulate,
        "runs": runs.app,
        "predict": runs.predict,
        "export": runs.export,
        "bench": bench.app,
    },
    "Operate a site": {
        "federation": federation.app,
        "site": site.app,
        "kit": kit.app,
        "config": config.app,
        "preflight": preflight.preflight,
        "aggregator": processes.aggregator,
        "source": processes.source,
        "status": status.status,
        "dashboard": dashboard.dashboard,
        "upgrade": upgrade.upgrade,
    },
    "Decide what may leave": {
        "policy": policy.app,
        "budget": budget.app,
    },
    "Audit what left": {
        "audit": audit.app,
        "threats": threats.threats,
    },
}
"""Every command under one heading, in the order in which ``--help`` and the reference list them."""

_MOST_NEAR = 4
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
        self._list("Commands", self.commands, formatter)

    def _list(self, heading: str, names: Iterable[str], formatter: Any) -> None:
        shown = {name: one.get_short_help_str(1000) for name, one in self.commands.items() if not one.hidden}
        column = max(map(len, shown))  # the same below every heading
        rows = [(name.ljust(column), shown[name]) for name in names if name in shown]
        with formatter.section(heading):
            formatter.write_dl(rows)


class _Root(_Group):
    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - typer's signature
        """List the commands in their groups."""
        for heading, names in GROUPS.items():
            self._list(heading, names, formatter)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Find the command; a name that is none gets the near ones, with those that are within another command."""
        if not (args[0] in self.commands or args[0].startswith("-") or ctx.resilient_parsing):
            ctx.fail(f"No such command {args[0]!r}.{self._near(args[0])}")
        return super().resolve_command(ctx, args)

    def _near(self, asked: str) -> str:
        """Return the commands whose name, or the last word of it, is near to what was asked for."""
        named = {name: [name] for name in self.commands}
        for group, command in self.commands.items():
            for name, inner in getattr(command, "commands", {}).items():
                if not inner.hidden:
                    named.setdefault(name, []).append(f"{group} {name}")
        words = [asked] if asked in named else get_close_matches(asked, named)
        near = [command for word in words for command in named[word]]
        return f" Did you mean {', '.join(near[:_MOST_NEAR])}?" if near else ""


app = typer.Typer(
    name="securefda",
    cls=_Root,
    help="Federated domain adaptation under secure aggregation.",
    context_settings={"help_option_names": ["-h", "--help"]},
    # A traceback of an unforeseen error must not print local variables: they may hold keys and data rows.
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for _commands in GROUPS.values():
    for _name, _command in _commands.items():
        if isinstance(_command, typer.Typer):
            app.add_typer(_command, name=_name)
        else:
            app.command(_name)(_command)


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
