"""``securefda audit report``: the logs of a run as one page for people who were not there."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from securefda.cli.options import OutputFormat, now
from securefda.cli.output import Format

_Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="FILE", help="The page; default: audit.html in DIR, or here where DIR is a log."),
]
_Roster = Annotated[
    Path | None,
    typer.Option("--roster", metavar="FILE", help="The roster that you trust; default: a kit's, else the logs' own."),
]


def report(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A run folder, a kit, a log, or any folder with logs of a run in it.")
    ],
    *,
    out: _Out = None,
    run: Annotated[str, typer.Option("--run", metavar="RUN", help="Which run, where there are logs of several.")] = "",
    roster: _Roster = None,
    output: OutputFormat = Format.TXT,
) -> None:
    """Write one self-contained page about a run: who disclosed what to whom, epsilon, bytes, alarms, what is proved.

    The page is written whatever the logs are; exit code 13 says that something is wrong with them.
    """
    from securefda.audit.report.file import write_audit_page
    from securefda.cli.audit_report_output import print_written

    code = print_written(output, write_audit_page(folder, out, run, roster, now()))
    if code:
        raise typer.Exit(code)
