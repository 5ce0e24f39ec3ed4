"""What ``securefda audit report`` prints about the page that it wrote."""

from __future__ import annotations

from typing import Any

from securefda.audit.kept_check import EvidenceLost
from securefda.audit.reconcile.history import error_of, history_json
from securefda.audit.report.file import AuditPageFinding, Written
from securefda.audit.report.sources import LogState, Sources
from securefda.audit.report.words import count_of, verification_text
from securefda.cli.output import Format, print_error, print_result


def print_written(output: Format, written: Written) -> int:
    """Print what was written, and return the exit code: 13 where anything is wrong with the logs."""
    sources, comparison = written.sources, written.sources.comparison
    data = {
        "page": str(written.page),
        "run": sources.run,
        "federation": sources.keys.federation,
        "roster": {"digest": sources.keys.digest, "from": sources.keys.where_from},
        "logs": [_log_data(log) for log in sources.logs],
        "unreadable": dict(sources.unreadable),
        "missing": list(sources.missing),
        "compared": comparison.done,
        "findings": list(comparison.findings),
    } | history_json(sources.history)
    lost = [f"evidence beside the log of {log.party}: {one}" for log in sources.logs for one in log.kept.findings]
    wrong = [*_wrong_logs(sources), *comparison.findings[:1]]
    conduct = error_of(sources.history)
    if not wrong and not lost and conduct is not None:
        conduct.hint = f"{written.page} was written and says what is wrong"
        return print_error(conduct, as_json=output is Format.JSON, data=data)
    if not wrong and not lost:
        print_result(output, data, f"{written.page}\n{_summary(sources)}")
        return 0
    others = len(_wrong_logs(sources)) + comparison.total + len(lost) + len(sources.history.findings) - 1
    more = f"; {count_of(others, 'more finding')}" if others else ""
    of = AuditPageFinding if wrong else EvidenceLost
    error = of(f"{[*wrong, *lost][0]}{more}", hint=f"{written.page} was written and says what is wrong")
    return print_error(error, as_json=output is Format.JSON, data=data)


def _wrong_logs(sources: Sources) -> list[str]:
    logs = [f"audit log of {log.party}: {_state(log)}" for log in sources.logs if not log.is_sound]
    return [*logs, *(f"audit log {folder}: {why}" for folder, why in sources.unreadable.items())]


def _state(log: LogState) -> str:
    if log.verification is None or (log.problem and log.verification.finding is None):
        return log.problem
    return verification_text(log.verification)


def _log_data(log: LogState) -> dict[str, Any]:
    found = log.verification
    return {
        "party": log.party,
        "folder": log.folder,
        "state": _state(log),
        "sound": log.is_sound,
        "records": log.tables.records,
        "size": found.size if found else 0,
        "covered": found.covered if found else 0,
        "root": found.root.hex() if found else "",
        "witnesses": list(found.witnesses) if found else [],
        "kept_messages": {
            "judged": log.kept.judged,
            "messages": log.kept.messages,
            "findings": [{"kind": one.kind, "index": one.index, "what": one.what} for one in log.kept.findings],
        },
    }


def _summary(sources: Sources) -> str:
    compared = "held against each other" if sources.comparison.done else "not held against each other"
    missing = f"; {count_of(len(sources.missing), 'site')} without a log here" if sources.missing else ""
    return f"{count_of(len(sources.logs), 'log')} verified, {compared}{missing}"
