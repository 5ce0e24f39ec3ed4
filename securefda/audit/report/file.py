"""The work of ``securefda audit report``: reads the logs, writes the page, and says what is wrong with them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from securefda.audit.kept_check import EvidenceLost
from securefda.audit.reading import NoLog, looks_like_log
from securefda.audit.reconcile.outcome import conduct_error, history_json
from securefda.audit.report.page import render_page
from securefda.audit.report.sources import LogState, Sources, read_sources
from securefda.audit.report.words import count_of, verification_text
from securefda.audit.verification import Outcome
from securefda.errors import ConfigError, ExitCode, SecureFdaError
from securefda.operations.run_folder import replace_file

_PAGE: Final = "audit.html"


class AuditPageFinding(SecureFdaError):
    """The page was written, and the logs that it is made from are not what they should be."""

    exit_code = ExitCode.AUDIT


@dataclass(frozen=True, slots=True)
class Written:
    """A page, and what it is made from."""

    page: Path
    sources: Sources


def write_audit_page(folder: Path, out: Path | None, run: str, roster: Path | None, made: datetime) -> Written:
    """Read the logs at or below ``folder`` and write the page.

    Args:
        folder: a run folder, a kit, a log, or any folder with logs in it.
        out: the page; None for ``audit.html`` in ``folder``, or in the current folder where that is a log.
        run: which run, where there are logs of several.
        roster: file of the roster that the user trusts.
        made: now, with a time zone.

    Raises:
        NoLog: there is none that can be read.
        ConfigError, CertificateError: there is no roster, or an option does not fit.
        SecureFdaError: the page cannot be written.
    """
    if not folder.is_dir():
        raise NoLog(folder, "is no folder", hint="name a run folder, a kit, or a folder with logs in it")
    page = out or (Path(_PAGE) if looks_like_log(folder) else folder / _PAGE)
    if page.is_dir() or not page.parent.is_dir():
        raise ConfigError("--out", f"{page} is {'a folder' if page.is_dir() else 'in a folder that does not exist'}")
    sources = read_sources(folder, run, roster)
    replace_file(page, render_page(sources, made).encode("utf-8"))
    return Written(page, sources)


def said_of(written: Written) -> Outcome:
    """What ``securefda audit report`` says of the page that it wrote."""
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
    logs = [f"audit log of {log.party}: {_state(log)}" for log in sources.logs if not log.is_sound]
    logs += [f"audit log {folder}: {why}" for folder, why in sources.unreadable.items()]
    wrong = [*logs, *comparison.findings[:1]]
    hint = f"{written.page} was written and says what is wrong"
    if wrong or lost:
        others = len(logs) + comparison.total + len(lost) + len(sources.history.findings) - 1
        more = f"; {count_of(others, 'more finding')}" if others else ""
        of = AuditPageFinding if wrong else EvidenceLost
        return Outcome(data, "", of(f"{[*wrong, *lost][0]}{more}", hint=hint))
    if (conduct := conduct_error(sources.history)) is not None:
        conduct.hint = hint
        return Outcome(data, "", conduct)
    compared = "compared with each other" if comparison.done else "not compared with each other"
    missing = f"; {count_of(len(sources.missing), 'site')} without a log here" if sources.missing else ""
    return Outcome(data, f"{written.page}\n{count_of(len(sources.logs), 'log')} verified, {compared}{missing}")


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
