"""One verdict on a reconciliation, for the console and the page alike, in the words of its severity. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from securefda.audit.reconcile.reconciled_runs import ReconciledRun, ReconciledRuns
from securefda.audit.reconcile.suspicion import Notice, RunFinding, Severity
from securefda.text import names

HEADLINES: Final[dict[Severity, str]] = {
    "fine": "In order",
    "attention": "Attention",
    "unjudged": "Cannot be judged",
    "tampering": "Tampering or a broken promise",
}
_GRAVITY: Final[tuple[Severity, ...]] = ("fine", "attention", "unjudged", "tampering")


@dataclass(frozen=True, slots=True)
class Point:
    """One reason for the verdict.

    Attributes:
        severity: its severity.
        what: one line of words, with the site and the record if there is one.
        is_finding: whether it ends the command with exit code 13; else it is a notice.
    """

    severity: Severity
    what: str
    is_finding: bool


@dataclass(frozen=True, slots=True)
class Verdict:
    """The overall judgement on the logs.

    Attributes:
        points: the gravest first; empty where nothing is to be looked at.
        scope: which logs it rests on, one or two sentences.
    """

    points: tuple[Point, ...]
    scope: str

    @property
    def severity(self) -> Severity:
        """The severity of the gravest point."""
        return self.points[0].severity if self.points else "fine"

    @property
    def headline(self) -> str:
        """A few words, in sentence case."""
        return HEADLINES[self.severity]

    @property
    def text(self) -> str:
        """One line: the headline, and what is gravest or what the verdict rests on."""
        if not self.points:
            return f"{self.headline}. {self.scope}"
        more = f" And {len(self.points) - 1} more to look at." if len(self.points) > 1 else ""
        return f"{self.headline}. {self.points[0].what}{more}"


def verdict_of(reconciled: ReconciledRuns) -> Verdict:
    """The verdict on all runs of a reconciliation, and on the target's conduct over them."""
    several = len(reconciled.runs) > 1
    points: list[Point] = []
    for run in reconciled.runs:
        prefix = f"run {run.members.run[:12]}: " if several else ""
        points += [
            Point(finding.severity, f"{prefix}{finding_line(finding)}", True) for finding in run.outcome.findings
        ]
        for sites, what in gathered([finding for finding in run.outcome.notices if finding.care]):
            text = f"{names(sites)}: {what}" if sites else f"{what[:1].upper()}{what[1:]}"
            points.append(Point("attention", f"{prefix}{text}.", False))
    points += [Point("attention", f"{finding.what}.", True) for finding in reconciled.history.findings]
    points.sort(key=lambda point: (-_GRAVITY.index(point.severity), not point.is_finding))
    return Verdict(tuple(points), " ".join(_scope(reconciled.runs)))


def finding_line(finding: RunFinding) -> str:
    """A finding on one line: where, what, and whom it accuses."""
    where = [f"{mark.party}, record {mark.index}" for mark in finding.records[:2]]
    where += [side for side in finding.sides if side and not finding.records]
    where += [f"round {finding.round}"] if finding.round else []
    if len(finding.accused) > 1:
        accused = f" {names(finding.accused)} disagree, and no signed message settles who is right."
    elif finding.accused:
        accused = f" Accused: {finding.accused[0]}, by its own {'log' if finding.claim is None else 'signature'}."
    else:
        accused = ""
    return f"{', '.join(where)}{': ' if where else ''}{finding.what} ({finding.kind}).{accused}"


def gathered(notices: Sequence[Notice]) -> list[tuple[list[str], str]]:
    """Notices with the sites that they are about: what is said alike of several is one line."""
    sites: dict[str, list[str]] = {}
    for notice in notices:
        sites.setdefault(notice.what, []).extend([notice.site] if notice.site else [])
    return [(sorted(who), what) for what, who in sites.items()]


def _scope(runs: Sequence[ReconciledRun]) -> Iterator[str]:
    """Yield the sentences that say which logs were read, if nothing is wrong with them."""
    if len(runs) > 1:
        yield f"In {len(runs)} runs, the logs that are here verify and agree with each other."
        short = [run.members.run[:12] for run in runs if run.missing]
        if short:
            yield f"Not all sites' logs are here of {len(short)} of these runs: {names(short)}."
        return
    run = runs[0]
    here, missing = [log.party for log in run.logs], run.missing
    if len(here) == 1:
        yield f"The log of {here[0]} verifies: its records are those that it signed, none missing, none changed."
    else:
        which = f"all {len(here)} sites" if not missing else names(here)
        yield f"The logs of {which} verify, and agree with each other and with the signed messages."
    if missing:
        compared = "Nothing was compared" if len(here) == 1 else "Not compared"
        are = "log is" if len(missing) == 1 else "logs are"
        yield f"{compared} with {names(missing)}, whose {are} not here."
