"""``securefda audit reconcile`` and ``verify-evidence``: logs of a run held against each other, and the proof of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from securefda.cli.options import OutputFormat
from securefda.cli.output import Format

_Folder = Annotated[
    Path, typer.Argument(metavar="DIR", help="A run folder, or any folder with the logs of the sites in it.")
]
_Roster = Annotated[
    Path | None,
    typer.Option("--roster", metavar="FILE", help="The roster that you trust; default: a kit's, else the logs' own."),
]
_Evidence = Annotated[
    Path | None,
    typer.Option("--evidence", metavar="FILE", help="Write the signed messages that prove findings to this new file."),
]


def reconcile(
    folder: _Folder,
    *,
    run: Annotated[
        str, typer.Option("--run", metavar="RUN", help="Only this run; default: every run that has a log there.")
    ] = "",
    roster: _Roster = None,
    evidence: _Evidence = None,
    everything: Annotated[
        bool, typer.Option("--all", help="List every finding, not only the first divergence.")
    ] = False,
    output: OutputFormat = Format.TXT,
) -> None:
    """Hold the logs of all sites of a run against each other; exit code 13 on a finding.

    A site is accused alone where its own signatures or its own log settle it. What one site says of another is a
    disagreement of the two.

    Every log is verified first, also with the checkpoints that other sites hold of it, and the messages that are kept
    beside it are compared with its records. With fewer logs than sites, what could not be checked is said.

    All runs below DIR are listed together, with what left each site in each. Runs and rounds that took something from a
    source and brought it no result are a finding where there are more of them than a crash explains.
    """
    from securefda.audit.reconcile.evidence_file import require_new, write_evidence
    from securefda.audit.reconcile.runs import reconcile_runs
    from securefda.cli.audit_reconcile_output import print_reconciled

    require_new(evidence)
    found = reconcile_runs(folder, run, roster)
    written = evidence if evidence is not None and write_evidence(evidence, found.runs) else None
    _leave(print_reconciled(output, found, written, everything=everything))


def verify_evidence(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What reconcile --evidence has written.")],
    *,
    roster: Annotated[
        Path, typer.Option("--roster", metavar="FILE", help="The federation's roster, from a source that you trust.")
    ],
    output: OutputFormat = Format.TXT,
) -> None:
    """Check, without logs or kits, that signed messages prove what they are said to prove; exit code 13 if not."""
    from securefda.audit.reconcile.evidence_file import judge_evidence
    from securefda.cli.audit_evidence import print_judged

    evidence, judged = judge_evidence(file, roster)
    _leave(print_judged(output, evidence, judged))


def _leave(code: int) -> None:
    if code:
        raise typer.Exit(code)
