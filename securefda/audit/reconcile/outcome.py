"""What a reconciliation says: of each run, and of the history of all runs, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from securefda.audit.kept_check import EvidenceLost, KeptVerdict
from securefda.audit.outcome import Outcome
from securefda.audit.reconcile.check import PartyLog
from securefda.audit.reconcile.history import (
    MOST_UNFINISHED_IN_A_ROW,
    MOST_UNFINISHED_RUNS_A_DAY,
    Conduct,
    History,
    Left,
    SiteRun,
    words,
)
from securefda.audit.reconcile.runs import ReconciledRun, ReconciledRuns
from securefda.audit.reconcile.suspicion import RunFinding
from securefda.errors import ExitCode, SecureFdaError
from securefda.text import aligned, printable

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


def said_of(found: ReconciledRuns, evidence: Path | None, *, everything: bool) -> Outcome:
    """What ``securefda audit reconcile`` says of the runs; ``evidence`` is the file that was written, if one was."""
    runs = [(run, run.outcome.findings if everything else run.outcome.findings[:1]) for run in found.runs]
    parts = [_json(run, shown, evidence) for run, shown in runs]
    data = (parts[0] if len(parts) == 1 else _json_of_several(parts)) | history_json(found.history)
    if len(runs) == 1:
        text = [*_parts(*runs[0]), *history_text(found.history)]
    else:
        text = [*history_text(found.history), *_parts_of_several(runs)]
    if evidence is not None:
        text.append(f"evidence: {evidence}; securefda audit verify-evidence {evidence} --roster FILE checks it")
    return Outcome(data, "\n\n".join([*text, _SHOWS]), _error(found, evidence, everything=everything))


def _parts_of_several(runs: Sequence[tuple[ReconciledRun, tuple[RunFinding, ...]]]) -> Iterator[str]:
    """Of many runs only those with a finding are written out."""
    for run, shown in runs:
        if shown:
            yield from _parts(run, shown)
    sound = sum(not shown for _, shown in runs)
    if sound:
        yield f"{sound} of {len(runs)} runs without a finding of their own; --run RUN says what was checked in one"


def _json_of_several(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Of several runs, each in the order in which they began."""
    return {
        "federation": parts[0]["federation"],
        "target": parts[0]["target"],
        "reconciled": parts,
        "findings_total": sum(part["findings_total"] for part in parts),
    }


def _error(found: ReconciledRuns, evidence: Path | None, *, everything: bool) -> SecureFdaError | None:
    """What the logs contradict each other in comes first, then lost evidence, then the conduct over all runs."""
    findings = [one for run in found.runs for one in run.outcome.findings]
    findings.sort(key=lambda one: one.is_of_evidence)
    if not findings:
        return conduct_error(found.history)
    others = len(findings) - 1 + len(found.history.findings)
    more = f"; {others} more findings" if others else ""
    of = EvidenceLost if findings[0].is_of_evidence else Contradiction
    hint = _hint(findings, len(found.runs), evidence, everything=everything)
    return of(f"{findings[0].kind}: {findings[0].what}{more}", hint=hint)


def _hint(findings: Sequence[RunFinding], runs: int, evidence: Path | None, *, everything: bool) -> str:
    proved = any(one.claim is not None for one in findings)
    hints = [] if everything or len(findings) <= runs else ["--all lists all of them"]
    if proved and evidence is None:
        hints.append("--evidence FILE writes the signed messages that prove it")
    return "; ".join([*hints, "keep the logs as they are"])


def _parts(found: ReconciledRun, shown: tuple[RunFinding, ...]) -> Iterator[str]:
    yield aligned([(key, printable(value)) for key, value in _head(found)])
    head = ("log of", "records", "covered", "cosigned by", "by itself", "kept messages")
    yield aligned([head, *map(_log_row, found.logs)])
    yield aligned([("checked", "how many"), *((name, str(count)) for name, count in found.outcome.counts.items())])
    if found.outcome.notices:
        yield "\n".join(f"note: {printable(notice)}" for notice in _gathered(found))
    for place, finding in enumerate(shown):
        title = "divergence" if not finding.is_of_evidence else "evidence"
        yield _finding_text(finding, f"first {title}" if place == 0 and title == "divergence" else title)


def _head(found: ReconciledRun) -> Iterator[tuple[str, str]]:
    keys = found.keys
    yield "run", f"{found.members.run} of federation {found.members.federation}, target {found.members.target}"
    yield "roster", f"{keys.file}, digest {keys.digest}"


def _gathered(found: ReconciledRun) -> list[str]:
    """The notices; those that say the same of several sites in one line."""
    sites: dict[str, list[str]] = {}
    for notice in found.outcome.notices:
        site, colon, text = notice.partition(": ")
        of_site = bool(colon) and site in found.members.keys
        sites.setdefault(text if of_site else notice, []).extend([site] if of_site else [])
    return [f"{', '.join(names)}: {text}" if names else text for text, names in sites.items()]


def _log_row(log: PartyLog) -> tuple[str, ...]:
    found = log.verification
    state = "as signed" if found.finding is None else f"{found.finding.kind} at record {found.finding.index}"
    witnesses = ", ".join(found.witnesses) or "nobody"
    return log.party, str(found.size), str(found.covered), witnesses, state, _kept(log.kept)


def _kept(kept: KeptVerdict) -> str:
    if not kept.judged:
        return "not compared"
    return f"{kept.messages}, {f'{len(kept.findings)} findings' if kept.findings else 'as recorded'}"


def _finding_text(one: RunFinding, title: str) -> str:
    rows = [(title, f"{one.kind}: {printable(one.what)}"), ("where", _where(one)), ("accused", _accused(one))]
    if one.records:
        rows.append(("records", ", ".join(f"{mark.index} of {mark.party}" for mark in one.records[:8])))
    rows += [("message", digest) for digest in one.digests]
    return aligned(rows)


def _where(one: RunFinding) -> str:
    if not one.round:
        return "outside rounds" + (f", at {one.step}" if one.step else "")
    return f"round {one.round}, attempt {one.attempt}, at {one.step}" + (
        f", session {one.session[:12]}" if one.session else ""
    )


def _accused(one: RunFinding) -> str:
    if one.is_of_evidence:
        return f"no site: nothing shows who changed what {one.sides[0]} has kept"
    if one.claim is not None:
        return f"{one.accused[0]}, by its own signature"
    if not one.accused:
        return "no site: it does not show which one is at fault"
    if len(one.accused) == 1:
        return f"{one.accused[0]}, by its own log"
    return f"no site alone: {', '.join(one.accused)} disagree, and no signed message settles who is right"


def _json(found: ReconciledRun, shown: tuple[RunFinding, ...], evidence: Path | None) -> dict[str, Any]:
    members = found.members
    return {
        "run": members.run,
        "federation": members.federation,
        "target": members.target,
        "roster": {"digest": found.keys.digest, "file": str(found.keys.file), "from": found.keys.where_from},
        "logs": [_log_json(log) for log in found.logs],
        "missing_logs": sorted(set(members.keys) - {log.party for log in found.logs}),
        "counts": dict(found.outcome.counts),
        "notices": list(found.outcome.notices),
        "findings_total": len(found.outcome.findings),
        "findings": [_finding_json(one) for one in shown],
        "evidence": None if evidence is None else str(evidence),
    }


def _log_json(log: PartyLog) -> dict[str, Any]:
    found = log.verification
    return {
        "party": log.party,
        "log": log.folder,
        "records": found.size,
        "covered": found.covered,
        "root": found.root.hex(),
        "cosigned_by": list(found.witnesses),
        "finding": None if found.finding is None else {"kind": found.finding.kind, "index": found.finding.index},
        "kept_messages": {
            "judged": log.kept.judged,
            "messages": log.kept.messages,
            "findings": len(log.kept.findings),
        },
    }


def _finding_json(one: RunFinding) -> dict[str, Any]:
    return {
        "kind": one.kind,
        "what": one.what,
        "accused": list(one.accused) if len(one.accused) == 1 else [],
        "disagree": list(one.accused) if len(one.accused) > 1 else [],
        "proved_by": "messages" if one.claim is not None else "log" if len(one.accused) == 1 else None,
        "sides": [side for side in one.sides if side],
        "step": one.step,
        "round": one.round,
        "attempt": one.attempt,
        "session": one.session,
        "records": [{"party": mark.party, "index": mark.index} for mark in one.records],
        "messages": list(one.digests),
    }


def history_text(history: History) -> Iterator[str]:
    """The table of all runs, and each finding."""
    rounds = ("headers accepted", "rounds finished", "rounds lost")
    head = ("run", "site", "began (UTC)", "ended how", *rounds, "what left this site")
    rows = [_row(one) for one in history.runs[:_MOST_ROWS]]
    more = len(history.runs) - len(rows)
    yield aligned([head, *rows]) + (f"\nand {more} more rows; --format json lists all of them" if more > 0 else "")
    for one in history.findings:
        yield aligned(
            [
                ("conduct", f"{one.kind}: {printable(one.what)}"),
                ("towards", one.source),
                ("of", one.target),
                ("runs", _listed(one)),
            ]
        )


def _row(one: SiteRun) -> tuple[str, ...]:
    began = f"{one.began[:10]} {one.began[11:19]}" if one.began else "-"
    counts = (str(one.headers), str(one.finished), str(one.lost))
    said = words(one.left) + (f" ({printable(one.problem)})" if one.problem else "")
    return one.run, one.party, began, one.ended, *counts, said


def _listed(one: Conduct) -> str:
    shown = ", ".join(run[:12] for run in one.runs[:6])
    return shown + (f" and {len(one.runs) - 6} more" if len(one.runs) > 6 else "")


def conduct_error(history: History) -> TargetConduct | None:
    """The error with which a command ends for the runs together; None where nothing is wrong."""
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
                "run": one.run,
                "party": one.party,
                "began": one.began,
                "last": one.last,
                "ended": one.ended,
                "headers_accepted": one.headers,
                "rounds_finished": one.finished,
                "rounds_lost": one.lost,
                "unfinished_with_disclosure": one.is_unfinished,
                "left": _left_json(one.left),
                "problem": one.problem,
            }
            for one in history.runs
        ],
        "conduct": [
            {
                "kind": one.kind,
                "source": one.source,
                "target": one.target,
                "what": one.what,
                "runs": list(one.runs),
                "rounds": [{"run": run, "round": number} for run, number in one.rounds],
                "left": _left_json(one.left),
            }
            for one in history.findings
        ],
        "limits": {
            "unfinished_rounds_in_a_row": MOST_UNFINISHED_IN_A_ROW,
            "unfinished_runs_a_day": MOST_UNFINISHED_RUNS_A_DAY,
        },
    }


def _left_json(left: Sequence[Left]) -> list[dict[str, Any]]:
    return [{"what": one.what, "to": one.to, "count": one.count} for one in left]
