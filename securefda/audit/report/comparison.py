"""What comparing the logs of a run with each other said, for the audit page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from securefda.audit.findings import Verification
from securefda.audit.kept_check import KeptVerdict
from securefda.audit.reconcile.outcome import accused_text, gathered
from securefda.audit.report.words import count_of, names
from securefda.errors import SecureFdaError

if TYPE_CHECKING:
    from securefda.audit.reconcile.check import PartyLog
    from securefda.audit.reconcile.runs import ReconciledRun
    from securefda.audit.reconcile.suspicion import RunFinding

MOST_LINES: Final = 60
_ALONE: Final = ("unverified-log", "forked-log")
"""What a log fails by itself, which the page says of that log."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What comparing the logs with each other said.

    Attributes:
        done: whether there were two logs at least that could be compared.
        findings: one line each, the first divergence first, as many as are listed.
        total: how many there are.
        checked: what was compared, and how much of it.
        notices: what is odd, or could not be compared, and why; one line each.
        verified: folder -> what its log is worth, compared with the checkpoints that the others have of it too, and
            the messages beside it.
    """

    done: bool
    findings: tuple[str, ...] = ()
    total: int = 0
    checked: tuple[tuple[str, str], ...] = ()
    notices: tuple[str, ...] = ()
    verified: Mapping[Path, tuple[Verification, KeptVerdict]] | None = None


def compare(root: Path, run: str, roster: Path | None) -> Comparison:
    """Reconcile the logs of a run at or below ``root``; what makes that impossible is a notice."""
    from securefda.audit.reconcile.runs import reconcile_folder

    try:
        found = reconcile_folder(root, run, roster)
    except SecureFdaError as error:
        return Comparison(done=False, notices=(f"{error}.",))
    findings = [one for one in found.outcome.findings if not one.is_of_evidence and not _is_of_log(one, found.logs)]
    notices = _together(found)
    if len(found.logs) < 2:
        notices.insert(0, "There is one log here only, and nothing to compare it with.")
    return Comparison(
        done=len(found.logs) > 1,
        findings=_bounded([_finding_text(one) for one in findings], "finding"),
        total=len(findings),
        checked=tuple((name, f"{count:,}") for name, count in found.outcome.counts.items()),
        notices=_bounded(notices, "line"),
        verified={Path(log.folder): (log.verification, log.kept) for log in found.logs},
    )


def _is_of_log(one: RunFinding, logs: Sequence[PartyLog]) -> bool:
    failed = {log.party for log in logs if log.verification.finding is not None}
    return one.kind in _ALONE and set(one.accused) <= failed


def _finding_text(one: RunFinding) -> str:
    where = f"round {one.round}, attempt {one.attempt}" if one.round else "outside rounds"
    blamed = accused_text(one, names(one.accused)) if one.accused else "no site"
    return f"{one.kind}, {where}: {one.what}. Accused: {blamed}."


def _together(found: ReconciledRun) -> list[str]:
    """Notices that the page has not said elsewhere; what is said alike of several sites is one line."""
    said = {
        *found.keys.warnings,
        *(f"{log.party}: {note}" for log in found.logs for note in (*log.verification.notes, *log.kept.notes)),
    }
    lines = gathered(found, said)
    return [f"{names(who)}: {text}" if who else text for who, text in lines]


def _bounded(lines: Sequence[str], what: str) -> tuple[str, ...]:
    more = len(lines) - MOST_LINES
    rest = f"And {count_of(more, f'more {what}')}: securefda audit reconcile --all lists them."
    return (*lines[:MOST_LINES], rest) if more > 0 else tuple(lines)
