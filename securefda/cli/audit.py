"""``securefda audit``: verify, read, compare and report the audit logs of a run; and audit a site's noise."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from securefda.cli.audit_privacy import privacy
from securefda.cli.options import OutputFormat, now
from securefda.cli.output import Format, print_outcome

if TYPE_CHECKING:
    from securefda.audit.verification import Outcome

app = typer.Typer(help="Verify, read, follow and compare audit logs; audit a site's noise.")

LogArgument = Annotated[
    Path, typer.Argument(metavar="LOG", help="A log: KIT/local/audit/RUN, or a copy of that folder; or a kit.")
]
_Run = Annotated[
    str,
    typer.Option("--run", metavar="RUN", help="Which run, where there are several; the beginning of its id."),
]
RosterOption = Annotated[
    Path | None,
    typer.Option(
        "--roster",
        metavar="FILE",
        help="The roster that you trust; default: that of the kit around the log, else the log's own.",
    ),
]
AnyRoster = Annotated[
    Path | None,
    typer.Option("--roster", metavar="FILE", help="The roster that you trust; default: a kit's, else the logs' own."),
]
TrustedRoster = Annotated[
    Path, typer.Option("--roster", metavar="FILE", help="The federation's roster, from a source that you trust.")
]
Last = Annotated[int | None, typer.Option("--last", metavar="N", min=0, max=100_000, help="Only the last N of them.")]
_Peer = Annotated[list[str] | None, typer.Option("--peer", metavar="SITE", help="Of messages with this site.")]
_Round = Annotated[list[int] | None, typer.Option("--round", metavar="N", min=0, help="Of this round; 0: outside.")]
_Type = Annotated[list[str] | None, typer.Option("--type", metavar="TYPE", help="MaskedInput, run-began, ...")]
_Direction = Annotated[list[str] | None, typer.Option("--direction", metavar="sent|received|event", help="Likewise.")]
_Disclosure = Annotated[
    list[str] | None,
    typer.Option("--disclosure", metavar="individual|cohort|sum", help="Of messages that disclose at this visibility."),
]
_From = Annotated[
    str | None, typer.Option("--from", metavar="TIME", help="Not before, for example 2026-11-21T12:00; UTC.")
]
_To = Annotated[str | None, typer.Option("--to", metavar="TIME", help="Before this time; UTC.")]

_RequireAll = Annotated[
    bool | None,
    typer.Option(
        "--require-all/--no-require-all",
        help="Whether a site's missing log is a finding; default: of a site that took part, where logs of several "
        "sites are here.",
    ),
]


@app.command("verify")
def verify(
    logs: Annotated[
        list[Path],
        typer.Argument(
            metavar="LOG...", help="Logs: KIT/local/audit/RUN, or copies of it; or kits, for all of theirs."
        ),
    ],
    *,
    run: _Run = "",
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
        typer.Option("--known", metavar="FILE", help="A checkpoint of one of the logs that another site holds."),
    ] = None,
    record: Annotated[
        int | None, typer.Option("--record", metavar="N", min=0, help="Prove that this record is in the log.")
    ] = None,
    output: OutputFormat = Format.TXT,
) -> int:
    """Verify logs without their parties: every record, proof, signature and cosignature; exit code 13 on a finding.

    A log is what its party says. Verification proves that its records are those which the party signed, in their order,
    none missing. Where others cosigned it, it also proves that they saw no other log of this run.
    """
    from securefda.audit.verification import Question, check_logs, said_of

    question = Question(tuple(logs), roster, witnesses, tuple(known or ()), record, run)
    return _print(output, said_of(check_logs(question)))


@app.command("show")
def show(
    log: LogArgument,
    *,
    run: _Run = "",
    peer: _Peer = None,
    rounds: _Round = None,
    types: _Type = None,
    direction: _Direction = None,
    disclosure: _Disclosure = None,
    since: _From = None,
    until: _To = None,
    last: Last = None,
    output: OutputFormat = Format.TXT,
) -> int:
    """Print the records of a log, all or those asked for. An option may be given several times: any of them fits.

    What is printed is what the party wrote; whether it is what was signed, verify says.
    """
    from securefda.audit.reading import log_at
    from securefda.audit.record_filter import parse_filter, require_peers
    from securefda.cli.audit_show import show_log

    wanted = parse_filter(peer, rounds, types, directions=direction, levels=disclosure, since=since, until=until)
    folder = log_at(log, run)
    require_peers(wanted, folder)
    return show_log(folder, wanted, last, output)


@app.command("tail")
def tail(
    log: LogArgument,
    *,
    run: _Run = "",
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
) -> int:
    """Print the last records of a log, then new ones as they are written, until the run ends."""
    from securefda.audit.reading import log_at
    from securefda.audit.record_filter import parse_filter, require_peers
    from securefda.cli.audit_show import tail_log

    wanted = parse_filter(peer, rounds, types, directions=direction, levels=disclosure)
    folder = log_at(log, run)
    require_peers(wanted, folder)
    return tail_log(folder, wanted, last or 0, output, follow=follow)


@app.command("report")
def report(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A run folder, a kit, a log, or any folder with logs of a run in it.")
    ],
    *,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="The page; default: audit.html in DIR, or here where DIR is a log."),
    ] = None,
    run: Annotated[str, typer.Option("--run", metavar="RUN", help="Which run, where there are logs of several.")] = "",
    roster: AnyRoster = None,
    require_all: _RequireAll = None,
    sign: Annotated[
        Path | None,
        typer.Option("--sign", metavar="KIT", help="Sign the page with the key of this kit; verify-report checks it."),
    ] = None,
    maps: Annotated[
        list[str] | None,
        typer.Option(
            "--map",
            metavar="TEXT",
            help="Also put the facts under the questions of nist-800-226, edpb-28-2024, ehds or iso-27559. It may be "
            "given several times.",
        ),
    ] = None,
    output: OutputFormat = Format.TXT,
) -> int:
    """Write one self-contained page about a run: who disclosed what to whom, epsilon, bytes, alarms, what is proved.

    It has two verdicts: on the logs, and on what bounds what the run revealed. The page is written whatever the logs
    are; exit code 13 says that something is wrong with them.
    """
    from securefda.audit.report.file import write_audit_page

    wanted = tuple(dict.fromkeys(maps or ()))
    return _print(
        output, write_audit_page(folder, out, run, roster, now(), require_all=require_all, sign=sign, maps=wanted)
    )


@app.command("verify-report")
def verify_report(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A page that report --sign has written.")],
    *,
    roster: TrustedRoster,
    output: OutputFormat = Format.TXT,
) -> int:
    """Check which site made and signed a page, and that no byte was changed since; exit code 13 if not."""
    from securefda.audit.report.signature import verify_page

    return _print(output, verify_page(file, roster))


@app.command("reconcile")
def reconcile(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A run folder, or any folder with the logs of the sites in it.")
    ],
    *,
    run: Annotated[
        str, typer.Option("--run", metavar="RUN", help="Only this run; default: every run that has a log there.")
    ] = "",
    roster: AnyRoster = None,
    evidence: Annotated[
        Path | None,
        typer.Option(
            "--evidence", metavar="FILE", help="Write the signed messages that prove findings to this new file."
        ),
    ] = None,
    require_all: _RequireAll = None,
    everything: Annotated[
        bool, typer.Option("--all", help="List every finding, not only the first divergence.")
    ] = False,
    output: OutputFormat = Format.TXT,
) -> int:
    """Compare the logs of all sites of a run; exit code 13 on a finding.

    A site is accused alone where its own signatures or its own log settle it. What one site says about another is a
    disagreement of the two.

    Every log is verified first, also with the checkpoints that other sites hold of it. The messages that are kept
    beside it are compared with its records. With fewer logs than sites, the notes say what could not be checked.

    All runs below DIR are listed together, with what left each site in each. Some runs and rounds take something from
    a source and bring it no result. They are a finding if there are more of them than a crash explains.
    """
    from securefda.audit.reconcile.evidence import require_new, write_evidence
    from securefda.audit.reconcile.outcome import said_of
    from securefda.audit.reconcile.reconciled_runs import reconcile_runs

    require_new(evidence)
    reconciled = reconcile_runs(folder, run, roster, require_all=require_all)
    written = None if evidence is None else write_evidence(evidence, reconciled.runs)
    return _print(output, said_of(reconciled, written, everything=everything))


@app.command("verify-evidence")
def verify_evidence(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What reconcile --evidence has written.")],
    *,
    roster: TrustedRoster,
    output: OutputFormat = Format.TXT,
) -> int:
    """Check, without logs or kits, that signed messages prove what they are said to prove; exit code 13 if not."""
    from securefda.audit.reconcile.evidence import judge_evidence, said_of_evidence

    return _print(output, said_of_evidence(*judge_evidence(file, roster)))


@app.command("receipt")
def receipt(
    log: LogArgument,
    *,
    round_number: Annotated[int, typer.Option("--round", metavar="N", min=1, help="Of which round.")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The receipt, a new file.")],
    run: _Run = "",
    roster: RosterOption = None,
    output: OutputFormat = Format.TXT,
) -> int:
    """Write what proves to a third party that a source's masked input was in the sum of a round's result.

    It is made from the source's own log and the signed messages beside it. The page on receipts says what it proves.
    """
    from securefda.audit.reading import log_at
    from securefda.audit.receipt import write_receipt

    return _print(output, write_receipt(log_at(log, run), round_number, out, roster))


@app.command("verify-receipt")
def verify_receipt(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What audit receipt has written.")],
    *,
    roster: TrustedRoster,
    site: Annotated[str, typer.Option("--site", metavar="SITE", help="It must be of this source.")] = "",
    run: Annotated[str, typer.Option("--run", metavar="RUN", help="It must be of this run; the beginning.")] = "",
    round_number: Annotated[int, typer.Option("--round", metavar="N", min=0, help="It must be of this round.")] = 0,
    output: OutputFormat = Format.TXT,
) -> int:
    """Check a receipt with the roster alone, without logs, kits or anybody's word; exit code 13 names what is wrong."""
    from securefda.audit.receipt_check import verify_receipt

    return _print(output, verify_receipt(file, roster, site=site, run=run, round_number=round_number))


app.command("privacy")(privacy)


def _print(output: Format, outcome: Outcome) -> int:
    return print_outcome(output, outcome.data, outcome.text, outcome.error)
