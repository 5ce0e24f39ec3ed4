"""The tables of an audit page, as rows of text: each is bounded, and says how much it leaves out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from securefda.audit.kept_check import UNREAD
from securefda.audit.reconcile.history import left_lines
from securefda.audit.reconcile.own_logs import HONEST
from securefda.audit.report.overview import alike, all_flows, round_groups, shortened, timeline, unreported
from securefda.audit.report.party_tables import Flow, Incident, PartyTables
from securefda.audit.report.sources import LogState, Sources
from securefda.audit.report.words import (
    cell_text,
    ending_text,
    event_text,
    incident_kind,
    incident_rounds,
    level_text,
    rounds_text,
    span_lines,
    span_text,
    time_text,
    updates_text,
    verification_text,
    what_text,
    witnesses_text,
)
from securefda.operations.report import human_bytes
from securefda.text import counted, names

if TYPE_CHECKING:
    from securefda.site.policy import Explanation, SourcePolicy

MOST_MATRIX_SITES: Final = 12
MOST_FLOW_ROWS: Final = 80
MOST_GROUPS: Final = 40
MOST_LINES: Final = 12
MOST_MOMENTS: Final = 240
MOST_INCIDENTS: Final = 120
MOST_LOGS: Final = 1100
MOST_RUNS: Final = 120
MOST_EXPLAINED: Final = 24
_TEXT, _NUMBER = "text", "number"
_GRAVITY: Final = ("alarm", "aborted", "refused", "refusal-sent", "refusal-received", "abort-sent", "abort-received")


Tone = Literal["", "strong", "care", "bad"]
"""Emphasis of a line: none, bold, something to look at, or something wrong."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of text in a cell."""

    text: str
    tone: Tone = ""


@dataclass(frozen=True, slots=True)
class Cell:
    """The contents of one cell of a table."""

    lines: tuple[Line, ...]

    @classmethod
    def of(cls, *lines: str, care: bool = False) -> Cell:
        """A cell all of whose lines are to be looked at, or none."""
        return cls(tuple(Line(text, "care" if care else "") for text in lines))


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the page.

    Attributes:
        name: its own on the page, as an id.
        caption: what it shows.
        columns: heading and whether the column holds ``"text"`` or a ``"number"``.
        rows: as many cells each; the first one is the row's heading.
        note: what is left out or has to be known; empty without.
    """

    name: str
    caption: str
    columns: tuple[tuple[str, str], ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class PolicyWords:
    """A policy in words, for a part that can be opened; said of the first of the sites that have it."""

    sites: tuple[str, ...]
    summary: str
    parts: tuple[tuple[str, tuple[str, ...]], ...]


def runs_table(sources: Sources) -> Table:
    """All runs of which there is a log, and what left each site in them."""
    rows = [
        _row(
            one.run,
            one.party,
            time_text(one.began) if one.began else "–",
            Cell.of(ending_text(one), care=one.ended in ("failed", "no end", "not known")),
            f"{one.headers:,}",
            f"{one.finished:,}",
            Cell.of(f"{one.lost:,}", care=one.lost > 0),
            Cell.of(*(left_lines(one.left) or ["nothing"]), *([one.problem] if one.problem else [])),
        )
        for one in sources.history.runs[:MOST_RUNS]
    ]
    numbers = (("headers accepted", _NUMBER), ("rounds finished", _NUMBER), ("rounds lost", _NUMBER))
    columns = (*_columns("run", "site", "began, UTC", "ended how"), *numbers, ("what left this site", _TEXT))
    left = len(sources.history.runs) - len(rows)
    note = f"{counted(left, 'more row')} are not listed." if left else ""
    return Table(
        "runs", "Every run of which a log is here, as each site's own log tells it", columns, tuple(rows), note
    )


def sites_table(sources: Sources) -> Table:
    """Return the sites of the federation, whether their logs are here, and the policies that the logs name."""
    logs = {log.party: log for log in sources.logs if not log.is_copy}
    rows = [
        _row(entry.site_id, entry.role, entry.legal_entity, *_log_and_policy(logs.get(entry.site_id), entry.role))
        for entry in sources.keys.roster.entries
    ]
    columns = _columns("site", "role", "organisation", "log", "policy")
    caption = f"The {counted(len(rows), 'site')} of the federation, from its roster"
    return Table("sites", caption, columns, tuple(rows))


def policies(sources: Sources) -> tuple[tuple[PolicyWords, ...], int]:
    """The policies that are known, those of the same numbers once, and how many more there are."""
    from securefda.site.policy import explain

    sites: list[tuple[SourcePolicy, list[str]]] = []
    for log in sources.logs:
        if log.policy.policy is None:
            continue
        same = next((names for policy, names in sites if policy == log.policy.policy), None)
        if same is None:
            sites.append((log.policy.policy, [log.party]))
        elif log.party not in same:
            same.append(log.party)
    count = sum(role == "source" for role in sources.keys.roles.values())
    words = tuple(_in_words(explain(policy, who[0], count), tuple(who)) for policy, who in sites[:MOST_EXPLAINED])
    return words, max(0, len(sites) - MOST_EXPLAINED)


def matrix_table(sources: Sources) -> Table | None:
    """Return the total disclosures from site to site; None for no sites, or too many."""
    flows, arrivals = all_flows(sources.tables), unreported(sources.tables)
    disclosers = {flow.discloser for flow in flows} | {item.sender for item in arrivals}
    receivers = {flow.receiver for flow in flows} | {item.receiver for item in arrivals}
    order = [*sources.keys.roles, *sorted((disclosers | receivers) - set(sources.keys.roles))]
    down, across = ([site for site in order if site in ends] for ends in (disclosers, receivers))
    if not down or max(len(down), len(across)) > MOST_MATRIX_SITES:
        return None
    cells: dict[tuple[str, str], list[Line]] = {}
    for flow in flows:
        line = Line(cell_text(flow), "strong" if shows_update(flow) else "")
        cells.setdefault((flow.discloser, flow.receiver), []).append(line)
    for item in arrivals:
        cells.setdefault((item.sender, item.receiver), []).append(
            Line(f"{item.messages:,} × {item.type}, as only the receiver says", "strong")
        )
    nothing = [Line("–")]
    rows = [(Cell.of(site), *(Cell(tuple(cells.get((site, to), nothing))) for to in across)) for site in down]
    caption = "Who disclosed (rows) what to whom (columns), with the number of messages over the whole run"
    return Table("matrix", caption, _columns("from \\ to", *across), tuple(rows))


def flows_table(sources: Sources) -> Table:
    """Return the disclosures as a list: what, at which level and how often."""
    found = alike(all_flows(sources.tables))
    rows = [
        _row(
            names(item.disclosers),
            names(item.receivers),
            what_text(item.what),
            Cell((Line(level_text(item), _tone_of(item.level, item.what)),)),
            f"{item.messages:,}",
            f"{item.rounds:,}",
        )
        for item in found[:MOST_FLOW_ROWS]
    ]
    for item in unreported(sources.tables)[: MOST_FLOW_ROWS - len(rows)]:
        level = "not known: the sender's log is not here"
        rows.append(
            _row(item.sender, item.receiver, f"{item.type} message", level, f"{item.messages:,}", f"{item.rounds:,}")
        )
    columns = (*_columns("from", "to", "what", "visibility"), ("messages each", _NUMBER), ("rounds each", _NUMBER))
    left = len(found) + len(unreported(sources.tables)) - len(rows)
    note = f"{counted(left, 'more kind')} of disclosures are not listed." if left else ""
    return Table("flows", "Disclosures in total, by kind and level", columns, tuple(rows), note)


def rounds_table(sources: Sources) -> Table:
    """Disclosures round by round; rounds alike are one row."""
    groups = round_groups(sources.tables)
    rows = []
    for group in groups[:MOST_GROUPS]:
        found = alike(group.flows)
        lines = [
            Line(
                f"{names(item.disclosers)} to {names(item.receivers)}: {what_text(item.what)}; {level_text(item)}"
                + (f" ({item.messages} messages each)" if item.messages > 1 else ""),
                _tone_of(item.level, item.what),
            )
            for item in found
        ]
        more = [Line(f"and {len(lines) - MOST_LINES} more kinds")] if len(lines) > MOST_LINES else []
        rows.append((Cell.of(rounds_text(group.rounds)), Cell((*lines[:MOST_LINES], *more))))
    left = sum(len(group.rounds) for group in groups[MOST_GROUPS:])
    note = f"{counted(left, 'more round')} of other kinds are not listed." if left else ""
    return Table("by-round", "Disclosures by round", _columns("rounds", "disclosed"), tuple(rows), note)


def timeline_table(sources: Sources) -> Table:
    """Return the events of the run in order, by the parties' clocks."""
    moments, left = shortened(timeline(sources.tables), MOST_MOMENTS)
    by_round: dict[int, list[Flow]] = {}
    for party in sources.tables:
        for number, flows in party.by_round.items():
            by_round.setdefault(number, []).extend(flows)
    rows = []
    for moment in moments:
        updates = updates_text(by_round.get(moment.round, ())) if moment.kind == "round" else ""
        care = moment.kind in ("alarm", "aborted")
        rows.append(
            _row(
                Cell.of(*span_lines(moment.time, moment.until)),
                Cell.of(event_text(moment, updates), care=care),
                _who(moment.parties, sources),
            )
        )
    note = f"{counted(left, 'more entry', 'more entries')} are not listed, most of them rounds." if left else ""
    return Table("events", "What happened when", _columns("time, UTC", "what", "as its log says"), tuple(rows), note)


def incidents_table(sources: Sources) -> Table:
    """Refusals, aborts and alarms, the gravest first."""
    found = sorted(
        (incident for party in sources.tables for incident in party.incidents),
        key=lambda incident: (_GRAVITY.index(incident.kind), incident.first, incident.party),
    )
    rows = [_incident_row(incident) for incident in found[:MOST_INCIDENTS]]
    columns = (
        *_columns("what", "check or policy key", "accused", "as its log says", "other side", "rounds"),
        ("times", _NUMBER),
        ("first to last, UTC", _TEXT),
    )
    left = len(found) - len(rows)
    note = f"{counted(left, 'more row')} are not listed." if left else ""
    return Table("incidents", "Alarms, aborts and refusals", columns, tuple(rows), note)


def bytes_table(tables: Sequence[PartyTables]) -> Table:
    """Messages and bytes of each site, as its own log counts them."""
    rows = []
    for party in tables:
        sums = [
            sum(getattr(item, name) for item in party.traffic)
            for name in ("sent_messages", "sent_bytes", "received_messages", "received_bytes")
        ]
        texts = (f"{sums[0]:,}", human_bytes(sums[1]), f"{sums[2]:,}", human_bytes(sums[3]))
        rows.append(_row(party.party, *texts))
    headings = ("messages sent", "bytes sent", "messages received", "bytes received")
    columns = (("site", _TEXT), *((heading, _NUMBER) for heading in headings))
    return Table("traffic", "Messages and bytes, as each site's own log counts them", columns, tuple(rows))


def logs_table(sources: Sources) -> Table:
    """Return the verification of each log, with the checkpoint that it rests on."""
    rows = [_log_row(log) for log in sources.logs[:MOST_LOGS]]
    columns = (
        *_columns("site", "result"),
        ("records", _NUMBER),
        ("under the checkpoint", _NUMBER),
        *_columns("root of the checkpoint", "cosigned by", "folder"),
    )
    left = len(sources.logs) - len(rows)
    note = f"{counted(left, 'more log')} are not listed." if left > 0 else ""
    return Table("logs", "Each log by itself", columns, tuple(rows), note)


def shows_update(flow: Flow) -> bool:
    """Return whether the receiver could read a single site's update. Unknown kinds of disclosure count as one."""
    return flow.level == "individual" and _is_update(flow.what)


def shows_target(flow: Flow) -> bool:
    """Return whether a flow reveals more of the target's rows than the model: its update, gap gradient or features."""
    return flow.what.startswith("model-and-")


def _in_words(found: Explanation, sites: tuple[str, ...]) -> PolicyWords:
    parts = (
        ("The aggregator can learn", found.learns),
        ("It cannot learn", found.does_not_learn),
        ("What noise bounds", found.budget),
        ("What the sources learn of the target", found.target_pays),
        ("What the site keeps of the model", found.keeps),
        ("What this rests on", found.assumes),
    )
    return PolicyWords(sites, found.summary, parts)


def _tone_of(level: str, what: str) -> Tone:
    return "strong" if level == "individual" and _is_update(what) else ""


def _is_update(what: str) -> bool:
    return what != "model"


def _log_row(log: LogState) -> tuple[Cell, ...]:
    found = log.verification
    lost = [Line(str(one), "care" if one.kind == UNREAD else "bad") for one in log.kept.findings[:MOST_LINES]]
    if len(log.kept.findings) > MOST_LINES:
        lost.append(Line(f"and {len(log.kept.findings) - MOST_LINES} more: securefda audit verify lists them", "bad"))
    state: Tone = "" if found.finding is None else "care" if found.finding.kind in HONEST else "bad"
    lines = [Line(verification_text(found), state)]
    lines += [Line(log.problem, "bad")] if log.problem else []
    lines += [Line(note) for note in (*found.notes, *log.kept.notes)]
    if log.kept.judged and not lost:
        lines.append(Line(f"{counted(log.kept.messages, 'message')} kept as evidence, as recorded"))
    if log.is_copy:
        lines.append(Line("another copy of this log counts in the tables"))
    return _row(
        log.party,
        Cell((*lines, *lost)),
        f"{found.size:,}",
        f"{found.covered:,}",
        found.root.hex() or "–",
        Cell.of(witnesses_text(found), care=not found.witnesses),
        log.folder,
    )


def _log_and_policy(log: LogState | None, role: str) -> tuple[Cell, Cell]:
    if log is None:
        return Cell((Line("not here", "strong"),)), Cell.of("not known")
    here = Cell.of("verified")
    if not log.is_sound:
        found = log.verification.finding
        is_honest = found is not None and found.kind in HONEST and not log.problem and not log.kept.findings
        what = verification_text(log.verification).partition(" (")[0] if is_honest else "not as it should be"
        here = Cell((Line(f"{what}, see Verification", "care" if is_honest else "bad"),))
    if not log.policy.loaded:
        return here, Cell.of("none: a target has none" if role == "target" else "its log names none")
    digests = [f"SHA-256 {digest[:16]}…" for digest in log.policy.loaded[-3:]]
    if len(log.policy.loaded) > 1:
        digests.insert(0, f"changed: {len(log.policy.loaded)} in this run, the last of them")
    return here, Cell.of(*digests, log.policy.why_not or "in words below", care=len(log.policy.loaded) > 1)


def _incident_row(incident: Incident) -> tuple[Cell, ...]:
    return _row(
        Cell.of(incident_kind(incident.kind), care=incident.kind in ("alarm", "aborted")),
        incident.check or "–",
        names(incident.accused) or "–",
        incident.party,
        incident.peer or "–",
        incident_rounds(incident),
        f"{incident.count:,}",
        span_text(incident.first, incident.last) if incident.count > 1 else time_text(incident.first),
    )


def _who(parties: tuple[str, ...], sources: Sources) -> str:
    """Return in words which parties say something: all that are here, or their names."""
    everybody = len(sources.tables)
    return f"all {everybody} logs" if len(parties) == everybody > 2 else names(parties, 4)


def _columns(*headings: str) -> tuple[tuple[str, str], ...]:
    return tuple((heading, _TEXT) for heading in headings)


def _row(*cells: str | Cell) -> tuple[Cell, ...]:
    return tuple(Cell.of(cell) if isinstance(cell, str) else cell for cell in cells)
