"""``securefda audit``: what the audit logs of a run say, and whether they are what was signed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from securefda.cli.audit_reconcile import reconcile, verify_evidence
from securefda.cli.audit_report import report
from securefda.cli.options import OutputFormat
from securefda.cli.output import Format

app = typer.Typer(help="Audit logs: verify, read and follow them.")

LogArgument = Annotated[
    Path, typer.Argument(metavar="LOG", help="The log of one run: KIT/local/audit/RUN, or a copy of that folder.")
]
RosterOption = Annotated[
    Path | None,
    typer.Option(
        "--roster",
        metavar="FILE",
        help="The roster that you trust; default: that of the kit around the log, else the log's own.",
    ),
]
Last = Annotated[int | None, typer.Option("--last", metavar="N", min=0, max=100_000, help="Only the last N of them.")]
_Peer = Annotated[list[str] | None, typer.Option("--peer", metavar="SITE", help="Of messages with this site.")]
_Round = Annotated[list[int] | None, typer.Option("--round", metavar="N", min=0, help="Of this round; 0: outside.")]
_Type = Annotated[list[str] | None, typer.Option("--type", metavar="TYPE", help="MaskedInput, run-began, ...")]
_Direction = Annotated[list[str] | None, typer.Option("--direction", metavar="sent|received|event", help="Likewise.")]
_Disclosure = Annotated[
    list[str] | None,
    typer.Option("--disclosure", metavar="individual|cohort|sum", help="Of messages that disclose at this level."),
]
_From = Annotated[
    str | None, typer.Option("--from", metavar="TIME", help="Not before, for example 2026-11-21T12:00; UTC.")
]
_To = Annotated[str | None, typer.Option("--to", metavar="TIME", help="Before this time; UTC.")]


@app.callback()
def _audit() -> None:
    """Audit logs: verify, read and follow them."""


@app.command("verify")
def verify(
    logs: Annotated[
        list[Path], typer.Argument(metavar="LOG...", help="Logs of one run each: KIT/local/audit/RUN, or copies of it.")
    ],
    *,
    roster: RosterOption = None,
    witnesses: Annotated[
        int | None,
        typer.Option(
            "--witnesses",
            metavar="N",
            min=0,
            help="How many other sites must have cosigned the newest checkpoint; default: 1, of a log in use 0.",
        ),
    ] = None,
    known: Annotated[
        list[Path] | None,
        typer.Option("--known", metavar="FILE", help="A checkpoint that somebody else holds of one of the logs."),
    ] = None,
    record: Annotated[
        int | None, typer.Option("--record", metavar="N", min=0, help="Prove that this record is in the log.")
    ] = None,
    output: OutputFormat = Format.TXT,
) -> None:
    """Verify logs without their parties: every record, proof, signature and cosignature; exit code 13 on a finding.

    A log is what its party says. What is proved is that its records are those which the party signed, in their order,
    none missing; and where others cosigned it, that they saw no other log of this run.
    """
    from securefda.audit.verification import Question, check_logs
    from securefda.cli.audit_verify_output import print_checked

    question = Question(tuple(logs), roster, witnesses, tuple(known or ()), record)
    _leave(print_checked(output, check_logs(question)))


@app.command("show")
def show(
    log: LogArgument,
    *,
    peer: _Peer = None,
    rounds: _Round = None,
    types: _Type = None,
    direction: _Direction = None,
    disclosure: _Disclosure = None,
    since: _From = None,
    until: _To = None,
    last: Last = None,
    output: OutputFormat = Format.TXT,
) -> None:
    """Print the records of a log, all or those asked for. An option may be given several times: any of them fits.

    What is printed is what the party wrote; whether it is what was signed, verify says.
    """
    from securefda.cli.audit_show import parse_filter, show_log

    wanted = parse_filter(peer, rounds, types, directions=direction, levels=disclosure, since=since, until=until)
    _leave(show_log(log, wanted, last, output))


@app.command("tail")
def tail(
    log: LogArgument,
    *,
    peer: _Peer = None,
    rounds: _Round = None,
    types: _Type = None,
    direction: _Direction = None,
    disclosure: _Disclosure = None,
    last: Last = 10,
    follow: Annotated[
        bool, typer.Option("--follow/--no-follow", help="Go on with new records until the run ends, or Ctrl-C.")
    ] = True,
    output: OutputFormat = Format.TXT,
) -> None:
    """Print the last records of a log, then new ones as they are written, until the run ends."""
    from securefda.cli.audit_show import parse_filter, tail_log

    wanted = parse_filter(peer, rounds, types, directions=direction, levels=disclosure)
    _leave(tail_log(log, wanted, last or 0, output, follow=follow))


def _leave(code: int) -> None:
    if code:
        raise typer.Exit(code)


app.command("report")(report)
app.command("reconcile")(reconcile)
app.command("verify-evidence")(verify_evidence)
