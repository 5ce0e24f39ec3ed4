"""How ``securefda audit reconcile`` says what it found."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from securefda.audit.kept_check import EvidenceLost, KeptVerdict
from securefda.audit.reconcile.check import PartyLog
from securefda.audit.reconcile.history import error_of, history_json, history_text
from securefda.audit.reconcile.runs import ReconciledRun, ReconciledRuns
from securefda.audit.reconcile.suspicion import RunFinding
from securefda.cli.output import Format, print_error, print_result
from securefda.errors import ExitCode, SecureFdaError
from securefda.text import aligned, printable

_SHOWS = (
    "Shown, where nothing is found: what one site says it sent, another says it received; all were shown the same; no "
    "source released twice in a round; no sum opened over fewer than the headers allow; the messages kept as evidence "
    "are those that the records name. Not shown: that sites which lie alike wrote down what happened."
)


class Contradiction(SecureFdaError):
    """The logs of a run contradict each other, or the rules."""

    exit_code = ExitCode.AUDIT


def print_reconciled(output: Format, found: ReconciledRuns, evidence: Path | None, *, everything: bool) -> int:
    """Print what came out, and return the exit code."""
    runs = [(run, run.outcome.findings if everything else run.outcome.findings[:1]) for run in found.runs]
    parts = [_json(run, shown, evidence) for run, shown in runs]
    data = (parts[0] if len(parts) == 1 else _json_of_several(parts)) | history_json(found.history)
    error = _error(found, evidence, everything=everything)
    if len(runs) == 1:
        text = [*_parts(*runs[0]), *history_text(found.history)]
    else:
        text = [*history_text(found.history), *_parts_of_several(runs)]
    if evidence is not None:
        text.append(f"evidence: {evidence}; securefda audit verify-evidence {evidence} --roster FILE checks it")
    text.append(_SHOWS)
    if error is None:
        print_result(output, data, "\n\n".join(text))
        return 0
    if output is Format.TXT:
        sys.stdout.write("\n\n".join(text) + "\n")
        sys.stdout.flush()
    return print_error(error, as_json=output is Format.JSON, data=data)


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
        return error_of(found.history)
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
        return f"nobody: who changed what {one.sides[0]} has kept, nothing says"
    if one.claim is not None:
        return f"{one.accused[0]}, by its own signature"
    if not one.accused:
        return "nobody: it does not show who is to blame"
    if len(one.accused) == 1:
        return f"{one.accused[0]}, by its own log"
    return f"nobody alone: {', '.join(one.accused)} disagree, and no signed message settles who is right"


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
