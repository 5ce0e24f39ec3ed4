"""Texts that both kinds of page share: alarms and refusals, the log, what could not be read."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from securefda.audit.report.party_tables import Incident
from securefda.audit.report.words import incident_kind, incident_rounds, time_text
from securefda.dashboard.site_reader import Seen
from securefda.operations.state import ENDED
from securefda.pages.parts import Line, Lines, Section
from securefda.site.certificates import RENEW, validity

_MOST_LINES: Final = 30
_FAILURES: Final = ("alarm", "aborted", "abort-sent", "abort-received")
"""Kinds of incidents that end a session or accuse a site; the others are refusals and the like."""


def incident_lines(incidents: Sequence[Incident]) -> list[Line]:
    """Return a line for each of the last incidents, with check, accused site, rounds and time."""
    lines: list[Line] = [
        ("failed" if one.kind in _FAILURES else "care", _text(one))
        for one in sorted(incidents, key=lambda one: one.last, reverse=True)
    ]
    left = len(lines) - _MOST_LINES
    more: list[Line] = [("care", f"And {left} more, which the audit log has.")] if left > 0 else []
    return [*lines[:_MOST_LINES], *more]


def start_hint(seen: Seen) -> str:
    """Return the command that starts the site's process; empty where its kit is not known."""
    if seen.place.kit is None or seen.place.settings is None:
        return ""
    process = "aggregator" if seen.place.role == "target" else "source"
    return f"Start it with: securefda {process} start --config {seen.place.settings}"


def problem_section(problems: Sequence[str]) -> Section:
    """Return the section on what could not be read; empty if there is nothing."""
    lines: list[Line] = [("failed", problem) for problem in problems]
    note = "This page shows what could be read all the same."
    return Section("problems", "Files that cannot be read", [Lines(lines)] if lines else [], note)


def log_facts(seen: Seen) -> list[tuple[str, str]]:
    """Return federation, roster, the end of the site's certificate, and audit log."""
    facts = []
    if seen.keys is not None:
        facts += [("Federation", seen.keys.federation), ("Roster (SHA-256)", seen.keys.digest)]
    if (ends := _certificate_ends(seen)) is not None:
        words, is_soon = validity(datetime.fromtimestamp(ends, UTC), datetime.now(UTC))
        facts.append(("Certificate", f"{words}: {RENEW}" if is_soon else words))
    log = seen.log
    if log is None:
        facts.append(("Audit log", "none here, so alarms and disclosures are not shown"))
        return facts
    began = next((dict(mark.detail) for mark in log.tables.milestones if mark.kind == "run-began"), {})
    if (seen.summary or {}).get("run_id") != log.run:
        facts.append(("Run of the log", log.run))
    if began:
        facts.append(("Log began", f"release {began.get('release', '')}, task {began.get('task', '')}"))
    others = f"; the kit has {log.others} more" if log.others else ""
    facts.append(("Audit log", f"{log.tables.records} records in {log.folder}{others}"))
    facts.append(("Verified", "no: this page shows what the site wrote. securefda audit verify checks it."))
    facts.append(("Last record", f"{log.last.entry.type}, {time_text(log.last.time)} UTC"))
    return facts


def _certificate_ends(seen: Seen) -> float | None:
    """Return when the site's certificate ends, as its process says, else as the kit's roster has it."""
    if seen.process is not None and seen.process.certificate_ends is not None and seen.process.doing != ENDED:
        return seen.process.certificate_ends
    entries = seen.keys.roster.entries if seen.keys is not None else ()
    return next((entry.not_after for entry in entries if entry.site_id == seen.place.site), None)


def _text(incident: Incident) -> str:
    text = incident_kind(incident.kind).capitalize()
    if incident.check:
        text += f": {incident.check}"
    if incident.accused:
        text += f"; accused: {', '.join(incident.accused)}"
    if incident.peer:
        text += f" ({'from' if incident.kind.endswith('received') else 'to'} {incident.peer})"
    where = incident_rounds(incident)
    text += f", {where if where == 'outside rounds' else f'round {where}'}"
    times = f", {incident.count} times" if incident.count > 1 else ""
    return f"{text}{times}, {time_text(incident.last)} UTC"
