"""How ``securefda audit reconcile`` says what it found."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from securefda.audit.reconcile import PartyLog
from securefda.audit.run_findings import RunFinding
from securefda.cli.audit_run import ReconciledRun
from securefda.cli.output import Format, aligned, print_error, print_result, printable
from securefda.errors import ExitCode, SecureFdaError

_SHOWS = (
    "Shown, where nothing is found: what one site says it sent, another says it received; all were shown the same; no "
    "source released twice in a round; no sum opened over fewer than the headers allow. Not shown: that sites which "
    "lie alike wrote down what happened."
)


class Contradiction(SecureFdaError):
    """The logs of a run contradict each other, or the rules."""

    exit_code = ExitCode.AUDIT


def print_reconciled(output: Format, found: ReconciledRun, evidence: Path | None, *, everything: bool) -> int:
    """Print what came out, and return the exit code."""
    findings = found.outcome.findings
    shown = findings if everything else findings[:1]
    data = _json(found, shown, evidence)
    text = "\n\n".join(_parts(found, shown, evidence))
    if not findings:
        print_result(output, data, text)
        return 0
    if output is Format.TXT:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
    more = f"; {len(findings) - 1} more findings" if len(findings) > 1 else ""
    error = Contradiction(f"{findings[0].kind}: {findings[0].what}{more}", hint=_hint(found, evidence, everything))
    return print_error(error, as_json=output is Format.JSON, data=data)


def _hint(found: ReconciledRun, evidence: Path | None, everything: bool) -> str:
    proved = any(one.claim is not None for one in found.outcome.findings)
    hints = [] if everything or len(found.outcome.findings) == 1 else ["--all lists all of them"]
    if proved and evidence is None:
        hints.append("--evidence FILE writes the signed messages that prove it")
    return "; ".join([*hints, "keep the logs as they are"])


def _parts(found: ReconciledRun, shown: tuple[RunFinding, ...], evidence: Path | None) -> Iterator[str]:
    yield aligned([(key, printable(value)) for key, value in _head(found)])
    head = ("log of", "records", "covered", "cosigned by", "by itself")
    yield aligned([head, *map(_log_row, found.logs)])
    yield aligned([("checked", "how many"), *((name, str(count)) for name, count in found.outcome.counts.items())])
    if found.outcome.notices:
        yield "\n".join(f"note: {printable(notice)}" for notice in _gathered(found))
    for place, finding in enumerate(shown):
        yield _finding_text(finding, "first divergence" if place == 0 else "divergence")
    if evidence is not None:
        yield f"evidence: {evidence}; securefda audit verify-evidence {evidence} --roster FILE checks it"
    yield _SHOWS


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
    return log.party, str(found.size), str(found.covered), witnesses, state


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
