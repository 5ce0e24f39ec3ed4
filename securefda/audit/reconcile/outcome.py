"""The report of a reconciliation on each run and on the history of all runs, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Final

from securefda.audit.kept_check import EvidenceLost
from securefda.audit.keys import OPTION
from securefda.audit.reconcile.evidence import Evidenced
from securefda.audit.reconcile.history import (
    MOST_UNFINISHED_IN_A_ROW,
    MOST_UNFINISHED_RUNS_A_DAY,
    History,
    words,
)
from securefda.audit.reconcile.reconciled_runs import ReconciledRun, ReconciledRuns
from securefda.audit.reconcile.run_verdict import Verdict, gathered, verdict_of
from securefda.audit.reconcile.suspicion import RunFinding
from securefda.audit.verification import Outcome
from securefda.errors import ExitCode, SecureFdaError
from securefda.text import aligned, counted, printable, quoted

_MOST_ROWS: Final = 60
_SHOWS: Final = (
    "Shown, where nothing is found: what one site says it sent, another says it received; all were shown the same; no "
    "source released twice in a round; no sum opened over fewer than the headers allow; the messages kept as evidence "
    "are those that the records name. Not shown: that sites whose logs agree wrote down what happened."
)


class Contradiction(SecureFdaError):
    """The logs of a run contradict each other, or the rules."""

    exit_code = ExitCode.AUDIT


class TargetConduct(SecureFdaError):
    """Runs took something from a source and brought it no result, more often than the limits allow."""

    exit_code = ExitCode.AUDIT


class MissingLog(SecureFdaError):
    """A site took part in a run, and its log is not here."""

    exit_code = ExitCode.AUDIT


def said_of(reconciled: ReconciledRuns, evidence: Evidenced | None, *, everything: bool) -> Outcome:
    """Return the outcome of ``securefda audit reconcile``; ``evidence`` is None if none was asked for."""
    runs = [(run, run.outcome.findings if everything else run.outcome.findings[:1]) for run in reconciled.runs]
    parts = [_json(run, shown) for run, shown in runs]
    data = parts[0]
    verdict = verdict_of(reconciled)
    text = [aligned([("verdict", printable(verdict.text))])]
    if len(runs) == 1:
        text += [*_parts(*runs[0]), *history_text(reconciled.history)]
    else:
        total = sum(part["findings_total"] for part in parts)
        data = {
            "federation": data["federation"],
            "target": data["target"],
            "reconciled": parts,
            "findings_total": total,
        }
        text += [
            *history_text(reconciled.history),
            *(part for run, shown in runs if shown for part in _parts(run, shown)),
        ]
        if sound := sum(not shown for _, shown in runs):
            text.append(
                f"{sound} of {len(runs)} runs without a finding of their own; --run RUN says what was checked in one"
            )
    data = data | verdict_json(verdict) | {"evidence": None, "why_no_evidence": ""}
    if evidence is not None:
        files = list(map(str, evidence.files))
        data |= {
            "evidence": files[0] if len(files) == 1 else files or None,
            "why_no_evidence": evidence.why_not or None,
        }
        checks = "securefda audit verify-evidence {} --roster FILE checks it"
        lines = [f"evidence: {file}; {checks.format(quoted(file))}" for file in files]
        text.append("\n".join(lines or [f"evidence: no file was written: {evidence.why_not}"]))
    error = error_of(reconciled, evidence, everything=everything)
    return Outcome(data | history_json(reconciled.history), "\n\n".join([*text, _SHOWS]), error)


def verdict_json(verdict: Verdict) -> dict[str, Any]:
    """The verdict for programs."""
    points = [{"severity": point.severity, "what": point.what, "finding": point.is_finding} for point in verdict.points]
    return {"verdict": {"severity": verdict.severity, "headline": verdict.headline, "points": points}}


def error_of(reconciled: ReconciledRuns, evidence: Evidenced | None, *, everything: bool) -> SecureFdaError | None:
    """Return the error to end the command with; None if there is no finding.

    What the logs contradict each other in comes first, then lost evidence, the conduct over all runs, a missing log.
    """
    findings = [finding for run in reconciled.runs for finding in run.outcome.findings]
    findings.sort(key=lambda finding: (finding.kind == "missing-log", finding.is_of_evidence))
    if not findings or (reconciled.history.findings and findings[0].kind == "missing-log"):
        return conduct_error(reconciled.history)
    others = len(findings) - 1 + len(reconciled.history.findings)
    more = f"; {others} more findings" if others else ""
    hints = [] if everything or len(findings) <= len(reconciled.runs) else ["--all lists all of them"]
    if evidence is None and any(finding.claim is not None for finding in findings):
        hints.append("--evidence FILE writes the signed messages that prove it")
    first = findings[0]
    of: type[SecureFdaError] = EvidenceLost if first.is_of_evidence else Contradiction
    match first.kind:
        case "missing-log":
            of = MissingLog
            hints.append(f"ask {first.sides[0]} for its local/audit folder; --no-require-all goes on without it")
        case "rosters-in-doubt":
            hints.append(f"name the roster of your own kit: {OPTION} KIT/startup/roster.json")
        case _:
            hints.append("keep the logs as they are")
    return of(f"{first.kind}: {first.what}{more}", hint="; ".join(hints))


def _parts(reconciled: ReconciledRun, shown: tuple[RunFinding, ...]) -> Iterator[str]:
    """The text on one run: what was read, what was checked, the notices, and the findings that are shown."""
    keys, members = reconciled.keys, reconciled.members
    run = f"{members.run} of federation {members.federation}, target {members.target}"
    roster = f"{keys.file}, digest {keys.digest}"
    yield aligned([("run", printable(run)), ("roster", printable(roster)), ("", printable(keys.believed))])
    rows = [("log of", "records", "covered", "cosigned by", "by itself", "kept messages")]
    for log in reconciled.logs:
        verified, kept = log.verification, "not compared"
        fault = verified.finding
        state = "as signed" if fault is None else f"{fault.kind} at record {fault.index}"
        if log.kept.judged:
            lost = len(log.kept.findings)
            kept = f"{log.kept.messages}, {counted(lost, 'finding') if lost else 'as recorded'}"
        witnesses = ", ".join(verified.witnesses) or "no site"
        rows.append((log.party, str(verified.size), str(verified.covered), witnesses, state, kept))
    yield aligned(rows)
    yield aligned([("checked", "how many"), *((name, str(count)) for name, count in reconciled.outcome.counts.items())])
    if reconciled.outcome.notices:
        notices = gathered(reconciled.outcome.notices)
        lines = (f"{', '.join(sites)}: {text}" if sites else text for sites, text in notices)
        yield "\n".join(f"note: {printable(line)}" for line in lines)
    for place, finding in enumerate(shown):
        title = "evidence" if finding.is_of_evidence else "first divergence" if place == 0 else "divergence"
        yield _finding_text(finding, title)


def _finding_text(finding: RunFinding, title: str) -> str:
    if finding.round:
        session = f", session {finding.session[:12]}" if finding.session else ""
        where = f"round {finding.round}, attempt {finding.attempt}, at {finding.step}{session}"
    else:
        where = "outside rounds" + (f", at {finding.step}" if finding.step else "")
    sites = ", ".join(finding.accused)
    if finding.is_of_evidence:
        accused = f"no site: nothing shows who changed what {finding.sides[0]} has kept"
    elif not finding.accused:
        accused = "no site: it does not show which one is at fault"
    elif len(finding.accused) > 1:
        accused = f"no site alone: {sites} disagree, and no signed message settles who is right"
    else:
        accused = f"{sites}, by its own {'log' if finding.claim is None else 'signature'}"
    rows = [(title, f"{finding.kind}: {printable(finding.what)}"), ("where", where), ("accused", accused)]
    if finding.records:
        rows.append(("records", ", ".join(f"{mark.index} of {mark.party}" for mark in finding.records[:8])))
    return aligned([*rows, *(("message", digest) for digest in finding.digests)])


def _json(reconciled: ReconciledRun, shown: tuple[RunFinding, ...]) -> dict[str, Any]:
    members = reconciled.members
    return {
        "run": members.run,
        "federation": members.federation,
        "target": members.target,
        "roster": {
            "digest": reconciled.keys.digest,
            "file": str(reconciled.keys.file),
            "from": reconciled.keys.where_from,
            "ca": reconciled.keys.ca or None,
        },
        "logs": [
            {
                "party": log.party,
                "log": log.folder,
                "records": log.verification.size,
                "covered": log.verification.covered,
                "root": log.verification.root.hex(),
                "cosigned_by": list(log.verification.witnesses),
                "finding": None
                if (fault := log.verification.finding) is None
                else {"kind": fault.kind, "index": fault.index},
                "kept_messages": log.kept.to_json() | {"findings": len(log.kept.findings)},
            }
            for log in reconciled.logs
        ],
        "missing_logs": sorted(reconciled.missing),
        "counts": dict(reconciled.outcome.counts),
        "notices": list(map(str, reconciled.outcome.notices)),
        "findings_total": len(reconciled.outcome.findings),
        "findings": [_finding_json(finding) for finding in shown],
    }


def _finding_json(finding: RunFinding) -> dict[str, Any]:
    is_one = len(finding.accused) == 1
    return {
        "kind": finding.kind,
        "severity": finding.severity,
        "what": finding.what,
        "accused": list(finding.accused) if is_one else [],
        "disagree": [] if is_one else list(finding.accused),
        "proved_by": "messages" if finding.claim is not None else "log" if is_one else None,
        "sides": [side for side in finding.sides if side],
        "step": finding.step,
        "round": finding.round,
        "attempt": finding.attempt,
        "session": finding.session,
        "records": [asdict(mark) for mark in finding.records],
        "messages": list(finding.digests),
    }


def history_text(history: History) -> Iterator[str]:
    """The table of all runs, and each finding."""
    rounds = ("headers accepted", "rounds finished", "rounds lost")
    head = ("run", "site", "began (UTC)", "ended how", *rounds, "what left this site")
    rows = [head]
    for run in history.runs[:_MOST_ROWS]:
        began = f"{run.began[:10]} {run.began[11:19]}" if run.began else "-"
        counts = (str(run.headers), str(run.finished), str(run.lost))
        left = words(run.left) + (f" ({printable(run.problem)})" if run.problem else "")
        rows.append((run.run, run.party, began, run.ended, *counts, left))
    more = len(history.runs) - _MOST_ROWS
    yield aligned(rows) + (f"\nand {more} more rows; --format json lists all of them" if more > 0 else "")
    for finding in history.findings:
        what, runs = f"{finding.kind}: {printable(finding.what)}", ", ".join(run[:12] for run in finding.runs[:6])
        runs += f" and {len(finding.runs) - 6} more" if len(finding.runs) > 6 else ""
        yield aligned([("conduct", what), ("towards", finding.source), ("of", finding.target), ("runs", runs)])


def conduct_error(history: History) -> TargetConduct | None:
    """Return the error to end a command with for all runs together; None if nothing is wrong."""
    if not history.findings:
        return None
    more = f"; {len(history.findings) - 1} more findings" if len(history.findings) > 1 else ""
    hint = "ask the target what ended these runs; a source's policy bounds how many runs and rounds it takes part in"
    return TargetConduct(f"{history.findings[0].kind}: {history.findings[0].what}{more}", hint=hint)


def history_json(history: History) -> dict[str, Any]:
    """The same data for programs."""
    return {
        "runs": [
            {
                "run": run.run,
                "party": run.party,
                "began": run.began,
                "last": run.last,
                "ended": run.ended,
                "headers_accepted": run.headers,
                "rounds_finished": run.finished,
                "rounds_lost": run.lost,
                "unfinished_with_disclosure": run.is_unfinished,
                "left": [asdict(left) for left in run.left],
                "problem": run.problem,
            }
            for run in history.runs
        ],
        "conduct": [
            asdict(finding) | {"rounds": [{"run": run, "round": number} for run, number in finding.rounds]}
            for finding in history.findings
        ],
        "limits": {
            "unfinished_rounds_in_a_row": MOST_UNFINISHED_IN_A_ROW,
            "unfinished_runs_a_day": MOST_UNFINISHED_RUNS_A_DAY,
        },
    }
