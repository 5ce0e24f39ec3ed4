"""The audit page: one self-contained HTML file for people who were not there. It claims what logs prove, no more."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from securefda import __version__
from securefda.audit.reconcile.history import MOST_UNFINISHED_IN_A_ROW, MOST_UNFINISHED_RUNS_A_DAY
from securefda.audit.report.charts import (
    bytes_chart,
    epsilon_chart,
    epsilon_limit,
    epsilon_table,
    norm_cap_table,
    run_charts,
)
from securefda.audit.report.overview import all_flows, unreported
from securefda.audit.report.party_tables import PartyTables
from securefda.audit.report.sections import (
    MOST_LINES,
    bytes_table,
    flows_table,
    incidents_table,
    is_of_rows,
    logs_table,
    matrix_table,
    policies,
    rounds_table,
    runs_table,
    shows_target,
    shows_update,
    sites_table,
    timeline_table,
)
from securefda.audit.report.sources import Comparison, Sources
from securefda.audit.report.words import OF_HEADERS, count_of, moment_text, names, span_text

_TEMPLATE = "audit.html.j2"
_WHERE_FROM: Final = {
    "option": "the file that was named with --roster",
    "kit": "the startup kit around a log, whose CA and members signed it",
    "log": "a log's own copy, which the maker of the log could have made as well",
}


@dataclass(frozen=True, slots=True)
class Said:
    """A sentence at the head of the page; ``care`` where it needs attention."""

    text: str
    care: bool


def render_page(sources: Sources, made: datetime) -> str:
    """Return the page. It loads nothing and runs nothing: its own policy (CSP) forbids it.

    Args:
        sources: what it is made from.
        made: now, with a time zone.
    """
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=ChoiceLoader([PackageLoader("securefda.audit.report"), PackageLoader("securefda.operations")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    words, unexplained = policies(sources)
    charts, no_charts = run_charts(sources)
    return environment.get_template(_TEMPLATE).render(
        run=sources.run,
        federation=sources.keys.federation,
        period=_period(sources),
        verdicts=list(verdicts(sources)),
        tiles=_tiles(sources),
        warnings=[f"{line[:1].upper()}{line[1:]}." for line in sources.keys.warnings],
        sites=sites_table(sources),
        runs=runs_table(sources),
        limits=(MOST_UNFINISHED_IN_A_ROW, MOST_UNFINISHED_RUNS_A_DAY),
        policies=words,
        unexplained=unexplained,
        matrix=matrix_table(sources),
        flows=flows_table(sources),
        rounds=rounds_table(sources),
        events=timeline_table(sources),
        epsilon_chart=epsilon_chart(sources),
        epsilons=epsilon_table(sources),
        norms=norm_cap_table(sources),
        run_charts=charts,
        has_record=sources.record is not None,
        no_charts=no_charts,
        bytes_chart=bytes_chart(sources),
        traffic=bytes_table(sources.tables),
        incidents=incidents_table(sources),
        logs=logs_table(sources),
        comparison=sources.comparison,
        left_out=_left_out(sources),
        facts=_facts(sources, made),
    )


def verdicts(sources: Sources) -> Iterator[Said]:
    """What the page comes to, one sentence or two each."""
    yield _about_logs(sources)
    yield from _about_evidence(sources)
    yield _about_comparison(sources.comparison)
    yield from _about_runs(sources)
    yield _about_updates(sources)
    yield from _about_target(sources)
    yield _about_incidents(sources)
    yield _about_noise(sources)


def _about_logs(sources: Sources) -> Said:
    bad = sorted({log.party for log in sources.logs if not log.is_sound})
    here = len({log.party for log in sources.logs})
    parts = []
    if bad or sources.unreadable:
        who = f"of {names(bad)}" if bad else "in this folder"
        parts.append(f"Not every log is what was signed: see the log {who} below. What stands behind the first fault")
        parts[-1] += " is not counted on this page."
    else:
        parts.append(f"{'The log' if here == 1 else f'All {here} logs'} in this folder {_verify(here)}.")
    if sources.missing:
        missing = f"{count_of(len(sources.missing), 'site')} of {len(sources.keys.roles)}"
        parts.append(
            f"The logs of {missing} are not here ({names(sources.missing)}): what these disclosed is not on this page."
        )
    alone = [log.party for log in sources.logs if log.is_sound and log.verification and not log.verification.witnesses]
    if alone:
        parts.append(f"No other site cosigned the newest checkpoint of {names(alone)}: only its key vouches for it.")
    return Said(" ".join(parts), bool(bad or sources.unreadable or sources.missing or alone))


def _about_evidence(sources: Sources) -> Iterator[Said]:
    """Of messages that are kept beside the logs, where they are not what the records say."""
    lost = {log.party: len(log.kept.findings) for log in sources.logs if log.kept.findings}
    if lost:
        text = (
            f"Evidence is lost: of the signed messages that {names(sorted(lost))} kept, "
            f"{count_of(sum(lost.values()), 'message is', 'messages are')} not what the records say, see Verification. "
            "That takes nothing from the logs; it takes the proof that a third person could have checked."
        )
        yield Said(text, care=True)


def _verify(count: int) -> str:
    if count == 1:
        return "verifies: its records up to the newest checkpoint are those that its site signed"
    return "verify: their records up to the newest checkpoints are those that their sites signed"


def _about_comparison(comparison: Comparison) -> Said:
    if comparison.findings:
        count = count_of(comparison.total, "finding")
        text = f"Held against each other and the rules, the logs do not agree: {count}, the first of them: "
        return Said(text + comparison.findings[0], care=True)
    if not comparison.done:
        return Said(f"The logs were not compared with each other. {' '.join(comparison.notices[:1])}", care=True)
    if comparison.notices:
        return Said("Held against each other, the logs agree; not all could be judged, see Verification.", care=True)
    return Said("Held against each other, the logs agree.", care=False)


def _about_runs(sources: Sources) -> Iterator[Said]:
    """What all runs together say of the target's conduct."""
    for found in sources.history.findings[:MOST_LINES]:
        yield Said(f"{found.what[:1].upper()}{found.what[1:]}.", care=True)


def _about_updates(sources: Sources) -> Said:
    flows = all_flows(sources.tables)
    bare = [flow for flow in flows if shows_update(flow) and not shows_target(flow)]
    summed = [flow for flow in flows if flow.level != "individual" and flow.what == "update"]
    parts = []
    if bare:
        count = count_of(sum(flow.messages for flow in bare), "update")
        parts.append(f"{count} left in clear, of {names(sorted({flow.discloser for flow in bare}))}.")
    if summed:
        fewest = min(flow.fewest for flow in summed)
        count = count_of(sum(flow.messages for flow in summed), "update")
        parts.append(f"{count} left only under masks, in sums over at least {count_of(fewest, 'source')}.")
    if not bare and not summed:
        parts.append("No update of a source is recorded as disclosed by a log that is here.")
    if unreported(sources.tables):
        parts.append(
            "Models or updates of sites without a log here were received; at which level, only their own logs say."
        )
    return Said(" ".join(parts), bool(bare or unreported(sources.tables)))


def _about_target(sources: Sources) -> Iterator[Said]:
    """Of the target's own update, where it was sent."""
    disclosing = [flow for flow in all_flows(sources.tables) if shows_target(flow)]
    if disclosing:
        count = count_of(sum(flow.messages for flow in disclosing), "message")
        whom = names(sorted({flow.receiver for flow in disclosing}))
        yield Said(f"The target's own update g_T went in clear to {whom}, in {count}.", care=True)


def _about_incidents(sources: Sources) -> Said:
    counts = _incident_counts(sources)
    kinds = {party.party: {mark.kind for mark in party.milestones} for party in sources.tables if party.records}
    going = names([party for party, marks in kinds.items() if "run-ended" not in marks])
    unended = f" No end of the run is recorded by {going}: it goes on, or it was killed." if going else ""
    if not any(counts.values()):
        return Said(f"No alarm, no abort and no refusal is recorded.{unended}", bool(unended))
    said = ", ".join(count_of(number, kind) for kind, number in counts.items() if number)
    return Said(f"Recorded: {said}.{_blamed(sources)}{unended}", care=True)


def _blamed(sources: Sources) -> str:
    """Whom the logs blame, and whose logs: one site's word is no proof against another."""
    by: dict[str, set[str]] = {}
    for party in sources.tables:
        for site in {site for incident in party.incidents for site in incident.accused}:
            by.setdefault(site, set()).add(party.party)
    said = "; ".join(f"{site} is blamed by {names(sorted(parties))}" for site, parties in sorted(by.items()))
    return f" By their own word, which proves nothing: {said}." if said else ""


def _incident_counts(sources: Sources) -> dict[str, int]:
    """Of events alone: the messages about them are not counted again."""
    kinds = {"alarm": "alarm", "aborted": "abort", "refused": "refusal"}
    return {
        word: sum(item.count for party in sources.tables for item in party.incidents if item.kind == kind)
        for kind, word in kinds.items()
    }


def _about_noise(sources: Sources) -> Said:
    charged = [party for party in sources.tables if party.epsilons]
    if not charged:
        text = "No log here records a charge for noise: nothing bounds what updates, sums and the model tell of a row."
        return Said(text, care=True)
    bare = [party.party for party in sources.tables if party.flows and _is_uncharged(party)]
    limits = {party.party: epsilon_limit(sources, party.party) for party in charged}
    beyond = [party.party for party in charged if 0 < limits[party.party] < party.epsilons[-1].epsilon]
    largest = max(charged, key=lambda party: party.epsilons[-1].epsilon)
    parts = [
        f"{count_of(len(charged), 'site')} charged a ledger for noise; the largest epsilon spent is "
        f"{largest.epsilons[-1].epsilon:.3f}, of {largest.party}."
    ]
    if bare:
        parts.append(f"Something left {names(bare)} in rounds without a charge: no noise is known to bound it.")
    if beyond:
        parts.append(f"More than the limit was spent by {names(beyond)}.")
    return Said(" ".join(parts), bool(bare or beyond))


def _is_uncharged(party: PartyTables) -> bool:
    """Whether an update left in a round in which no charge is recorded, or anything where none ever was."""
    charged = {point.round for point in party.epsilons}
    released = {number for number, flows in party.by_round.items() if any(map(is_of_rows, flows))}
    return not charged or bool(released - charged)


def _tiles(sources: Sources) -> list[tuple[str, str]]:
    sound = len({log.party for log in sources.logs if log.is_sound})
    rounds = len({span.round for party in sources.tables for span in party.spans})
    flows = all_flows(sources.tables)
    bare = sum(flow.messages for flow in flows if shows_update(flow) and not shows_target(flow))
    masked = sum(flow.messages for flow in flows if flow.level != "individual" and flow.what == "update")
    return [
        (f"{sound} of {len(sources.keys.roles)}", "sites whose log is here and verifies"),
        (f"{rounds:,}", "rounds in these logs"),
        (f"{masked:,}", "updates that left inside sums"),
        (f"{bare:,}", "updates of sources in clear"),
        (f"{sum(_incident_counts(sources).values()):,}", "alarms, aborts and refusals"),
    ]


def _period(sources: Sources) -> str:
    times = [(party.first, party.last) for party in sources.tables if party.first]
    if not times:
        return "No record that counts."
    return (
        f"{span_text(min(first for first, _ in times), max(last for _, last in times))} UTC, by the sites' own clocks"
    )


def _left_out(sources: Sources) -> list[str]:
    """What did not fit into the tables that the page is made of."""
    return [
        f"{party.party}: {count_of(number, 'record')} of the table of {table}"
        for party in sources.tables
        for table, number in sorted(party.left_out.items())
    ]


def _facts(sources: Sources, made: datetime) -> list[tuple[str, str]]:
    began = [dict(mark.detail) for party in sources.tables for mark in party.milestones if mark.kind == "run-began"]
    said = {key: sorted({facts[key] for facts in began} - {OF_HEADERS}) for key in ("task", "strategy", "release")}
    keys = sources.keys
    return [
        ("Run", sources.run),
        ("Federation", keys.federation),
        *((key.capitalize(), names(values)) for key, values in said.items() if values),
        ("Roster", f"epoch {keys.roster.epoch}, SHA-256 {keys.digest}"),
        ("Roster from", _WHERE_FROM[keys.where_from]),
        ("Records counted", f"{sum(party.records for party in sources.tables):,}"),
        ("Page made", f"{moment_text(made)}, securefda {__version__}"),
    ]
