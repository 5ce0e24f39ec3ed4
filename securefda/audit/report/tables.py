"""The tables of an audit page, as rows of text: each is bounded, and says how much it leaves out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from securefda.audit.reconcile.history import left_lines
from securefda.audit.reconcile.own_logs import HONEST
from securefda.audit.report import overview, words
from securefda.audit.report.party_tables import Flow, Incident, PartyTables
from securefda.audit.report.sources import LogState, Sources
from securefda.pages.parts import Cell, Line, Table, Tone, cell
from securefda.text import counted, human_bytes, names

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
_GRAVITY: Final = ("alarm", "aborted", "refused", "refusal-sent", "refusal-received", "abort-sent", "abort-received")


def runs_table(sources: Sources) -> Table:
    """All runs of which there is a log, and what left each site in them."""
    rows = [
        (
            run.run,
            run.party,
            words.time_text(run.began) if run.began else "–",
            cell(words.ending_text(run), care=run.ended in ("failed", "no end", "not known")),
            f"{run.headers:,}",
            f"{run.finished:,}",
            cell(f"{run.lost:,}", care=run.lost > 0),
            cell(*(left_lines(run.left) or ["nothing"]), *([run.problem] if run.problem else [])),
        )
        for run in sources.history.runs[:MOST_RUNS]
    ]
    return Table(
        ("run", "site", "began, UTC", "ended how", "headers accepted", "rounds finished", "rounds lost",
         "what left this site"),
        rows,
        numbers={2, 4, 5, 6},
        key="runs",
        caption="Every run of which a log is here, as each site's own log tells it",
        note=_not_listed(len(sources.history.runs) - len(rows), "more row"),
        broad={7},
        mono={0},
    )  # fmt: skip


def sites_table(sources: Sources) -> Table:
    """Return the sites of the federation, whether their logs are here, and the policies that the logs name."""
    logs = {log.party: log for log in sources.logs if not log.is_copy}
    rows = [
        (entry.site_id, entry.role, entry.legal_entity, *_log_and_policy(logs.get(entry.site_id), entry.role))
        for entry in sources.keys.roster.entries
    ]
    caption = f"The {counted(len(rows), 'site')} of the federation, from its roster"
    return Table(("site", "role", "organisation", "log", "policy"), rows, key="sites", caption=caption)


def policies(sources: Sources) -> tuple[list[tuple[list[str], Explanation]], int]:
    """The policies that are known in words, each with the sites that have it, and how many more there are.

    Those of the same numbers are one, said of the first of its sites.
    """
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
    explained = [(who, explain(policy, who[0], count)) for policy, who in sites[:MOST_EXPLAINED]]
    return explained, max(0, len(sites) - MOST_EXPLAINED)


def matrix_table(sources: Sources) -> Table | None:
    """Return the total disclosures from site to site; None for no sites, or too many."""
    flows, arrivals = overview.all_flows(sources.tables), overview.unreported(sources.tables)
    disclosers = {flow.discloser for flow in flows} | {item.sender for item in arrivals}
    receivers = {flow.receiver for flow in flows} | {item.receiver for item in arrivals}
    order = [*sources.keys.roles, *sorted((disclosers | receivers) - set(sources.keys.roles))]
    down, across = ([site for site in order if site in ends] for ends in (disclosers, receivers))
    if not down or max(len(down), len(across)) > MOST_MATRIX_SITES:
        return None
    cells: dict[tuple[str, str], list[Line]] = {}
    for flow in flows:
        cells.setdefault((flow.discloser, flow.receiver), []).append(
            (_tone(flow.level, flow.what), words.cell_text(flow))
        )
    for item in arrivals:
        line = f"{item.messages:,} × {item.type}, as only the receiver says"
        cells.setdefault((item.sender, item.receiver), []).append(("strong", line))
    rows = [(site, *(cells.get((site, to), "–") for to in across)) for site in down]
    caption = "Who disclosed (rows) what to whom (columns), with the number of messages over the whole run"
    return Table(("from \\ to", *across), rows, key="matrix", caption=caption)


def flows_table(sources: Sources) -> Table:
    """Return the disclosures as a list: what, at which level and how often."""
    flows, arrivals = overview.alike(overview.all_flows(sources.tables)), overview.unreported(sources.tables)
    rows: list[Sequence[Cell]] = [
        (
            names(item.disclosers),
            names(item.receivers),
            words.what_text(item.what),
            [(_tone(item.level, item.what), words.level_text(item))],
            f"{item.messages:,}",
            f"{item.rounds:,}",
        )
        for item in flows[:MOST_FLOW_ROWS]
    ]
    level = "not known: the sender's log is not here"
    rows += [
        (item.sender, item.receiver, f"{item.type} message", level, f"{item.messages:,}", f"{item.rounds:,}")
        for item in arrivals[: MOST_FLOW_ROWS - len(rows)]
    ]
    left = len(flows) + len(arrivals) - len(rows)
    return Table(
        ("from", "to", "what", "visibility", "messages each", "rounds each"),
        rows,
        numbers={4, 5},
        key="flows",
        caption="Disclosures in total, by kind and level",
        note=f"{counted(left, 'more kind')} of disclosures are not listed." if left else "",
    )


def rounds_table(sources: Sources) -> Table:
    """Disclosures round by round; rounds alike are one row."""
    groups = overview.round_groups(sources.tables)
    rows = []
    for group in groups[:MOST_GROUPS]:
        lines: list[Line] = [
            (_tone(item.level, item.what), words.alike_text(item)) for item in overview.alike(group.flows)
        ]
        more: list[Line] = [("", f"and {len(lines) - MOST_LINES} more kinds")] if len(lines) > MOST_LINES else []
        rows.append((words.rounds_text(group.rounds), [*lines[:MOST_LINES], *more]))
    left = sum(len(group.rounds) for group in groups[MOST_GROUPS:])
    note = f"{counted(left, 'more round')} of other kinds are not listed." if left else ""
    caption = "Disclosures by round"
    return Table(("rounds", "disclosed"), rows, key="by-round", caption=caption, note=note, broad={1})


def timeline_table(sources: Sources) -> Table:
    """Return the events of the run in order, by the parties' clocks."""
    moments, left = overview.shortened(overview.timeline(sources.tables), MOST_MOMENTS)
    by_round = overview.flows_by_round(sources.tables)
    rows = []
    for moment in moments:
        updates = words.updates_text(by_round.get(moment.round, ())) if moment.kind == "round" else ""
        what = cell(words.event_text(moment, updates), care=moment.kind in ("alarm", "aborted"))
        rows.append((cell(*words.span_lines(moment.time, moment.until)), what, _who(moment.parties, sources)))
    note = f"{counted(left, 'more entry', 'more entries')} are not listed, most of them rounds." if left else ""
    head = ("time, UTC", "what", "as its log says")
    return Table(head, rows, key="events", caption="What happened when", note=note, broad={1})


def incidents_table(sources: Sources) -> Table:
    """Refusals, aborts and alarms, the gravest first."""
    incidents = sorted(
        (incident for party in sources.tables for incident in party.incidents),
        key=lambda incident: (_GRAVITY.index(incident.kind), incident.first, incident.party),
    )
    rows = [*map(_incident_row, incidents[:MOST_INCIDENTS])]
    return Table(
        ("what", "check or policy key", "accused", "as its log says", "other side", "rounds", "times",
         "first to last, UTC"),
        rows,
        numbers={6},
        key="incidents",
        caption="Alarms, aborts and refusals",
        note=_not_listed(len(incidents) - len(rows), "more row"),
    )  # fmt: skip


def bytes_table(tables: Sequence[PartyTables]) -> Table:
    """Messages and bytes of each site, as its own log counts them."""
    rows = []
    for party in tables:
        sent, received = (
            sum(peer.sent_messages for peer in party.traffic),
            sum(peer.received_messages for peer in party.traffic),
        )
        out = human_bytes(sum(peer.sent_bytes for peer in party.traffic))
        into = human_bytes(sum(peer.received_bytes for peer in party.traffic))
        rows.append((party.party, f"{sent:,}", out, f"{received:,}", into))
    head = ("site", "messages sent", "bytes sent", "messages received", "bytes received")
    caption = "Messages and bytes, as each site's own log counts them"
    return Table(head, rows, numbers={1, 2, 3, 4}, key="traffic", caption=caption)


def logs_table(sources: Sources) -> Table:
    """Return the verification of each log, with the checkpoint that it rests on."""
    rows = [_log_row(log) for log in sources.logs[:MOST_LOGS]]
    return Table(
        ("site", "result", "records", "under the checkpoint", "root of the checkpoint", "cosigned by", "folder"),
        rows,
        numbers={2, 3},
        key="logs",
        caption="Each log by itself",
        note=_not_listed(len(sources.logs) - len(rows), "more log"),
        broad={1},
        mono={4, 6},
    )


def shows_update(flow: Flow) -> bool:
    """Return whether the receiver could read a single site's update. Unknown kinds of disclosure count as one."""
    return flow.level == "individual" and flow.what != "model"


def shows_target(flow: Flow) -> bool:
    """Return whether a flow reveals more of the target's rows than the model: its update, gap gradient or features."""
    return flow.what.startswith("model-and-")


def _tone(level: str, what: str) -> Tone:
    return "strong" if level == "individual" and what != "model" else ""


def _log_row(log: LogState) -> tuple[Cell, ...]:
    verified = log.verification
    lost: list[Line] = [("failed", str(finding)) for finding in log.kept.findings[:MOST_LINES]]
    if (left := len(log.kept.findings) - MOST_LINES) > 0:
        lost.append(("failed", f"and {left} more: securefda audit verify lists them"))
    state: Tone = "" if verified.finding is None else "care" if verified.finding.kind in HONEST else "failed"
    lines: list[Line] = [(state, words.verification_text(verified))]
    lines += [("failed", log.problem)] if log.problem else []
    lines += [("", note) for note in (*verified.notes, *log.kept.notes)]
    if log.kept.judged and not lost:
        lines.append(("", f"{counted(log.kept.messages, 'message')} kept as evidence, as recorded"))
    if log.is_copy:
        lines.append(("", "another copy of this log counts in the tables"))
    return (
        log.party,
        [*lines, *lost],
        f"{verified.size:,}",
        f"{verified.covered:,}",
        verified.root.hex() or "–",
        cell(words.witnesses_text(verified), care=not verified.witnesses),
        log.folder,
    )


def _log_and_policy(log: LogState | None, role: str) -> tuple[Cell, Cell]:
    if log is None:
        return [("strong", "not here")], "not known"
    here: Cell = "verified"
    if not log.is_sound:
        finding = log.verification.finding
        is_honest = finding is not None and finding.kind in HONEST and not log.problem and not log.kept.findings
        what = words.verification_text(log.verification).partition(" (")[0] if is_honest else "not as it should be"
        here = [("care" if is_honest else "failed", f"{what}, see Verification")]
    if not log.policy.loaded:
        return here, "none: a target has none" if role == "target" else "its log names none"
    digests = [f"SHA-256 {digest[:16]}…" for digest in log.policy.loaded[-3:]]
    if len(log.policy.loaded) > 1:
        digests.insert(0, f"changed: {len(log.policy.loaded)} in this run, the last of them")
    return here, cell(*digests, log.policy.why_not or "in words below", care=len(log.policy.loaded) > 1)


def _incident_row(incident: Incident) -> tuple[Cell, ...]:
    return (
        cell(words.incident_kind(incident.kind), care=incident.kind in ("alarm", "aborted")),
        incident.check or "–",
        names(incident.accused) or "–",
        incident.party,
        incident.peer or "–",
        words.incident_rounds(incident),
        f"{incident.count:,}",
        words.span_text(incident.first, incident.last) if incident.count > 1 else words.time_text(incident.first),
    )


def _who(parties: tuple[str, ...], sources: Sources) -> str:
    """Return in words which parties say something: all that are here, or their names."""
    everybody = len(sources.tables)
    return f"all {everybody} logs" if len(parties) == everybody > 2 else names(parties, 4)


def _not_listed(left: int, what: str) -> str:
    return f"{counted(left, what)} are not listed." if left > 0 else ""
