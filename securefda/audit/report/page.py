"""The audit page: one self-contained HTML file for people who were not there. It claims what logs prove, no more.

Its verdict is that of ``securefda audit reconcile``: `securefda.audit.reconcile.verdict` makes both from one list of
findings and notices. What the run disclosed is said beside it without a judgement: that is for the reader.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Final

from securefda import __version__
from securefda.audit.reconcile.history import MOST_UNFINISHED_IN_A_ROW, MOST_UNFINISHED_RUNS_A_DAY
from securefda.audit.reconcile.verdict import finding_line, gathered
from securefda.audit.report.charts import (
    bytes_chart,
    epsilon_chart,
    epsilon_table,
    norm_cap_table,
    run_charts,
)
from securefda.audit.report.overview import all_flows, unreported
from securefda.audit.report.sections import (
    bytes_table,
    flows_table,
    incidents_table,
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
from securefda.audit.report.sources import Sources
from securefda.audit.report.words import OF_HEADERS, moment_text, span_text
from securefda.text import counted, names, printable

if TYPE_CHECKING:
    from jinja2 import Environment

_TEMPLATE = "audit.html.j2"
_WHERE_FROM: Final = {
    "option": "the file that was named with --roster",
    "kit": "the startup kit around a log, whose CA and members signed it",
    "log": "a log's own copy, which the maker of the log could have made as well",
}
MOST_POINTS: Final = 40
MOST_LINES: Final = 60
GLOSSARY: Final = (
    ("site, source, target", "A site is an organisation of the federation. Sources train on their rows and hand in "
     "updates; the target trains too, sums what they hand in, and gets the model."),
    ("roster", "The signed list of the sites with their public keys. An epoch is one state of it."),
    ("run, round", "A run is one training. In a round each source gets the model, trains, and hands in one update."),
    ("log, record", "Each site writes a record of what it is about to send, what it received, and what happened, into "
     "its own log of the run."),
    ("checkpoint, cosigned", "A site signs the number and the digest of its records: a checkpoint. Another site "
     "cosigns it once it has seen that it continues the one before. So a site cannot tell two stories unnoticed."),
    ("verified", "The records are those that the site signed, in their order, none missing, none changed."),
    ("evidence", "The signed messages that a site keeps beside its log. They prove to a third person what passed."),
    ("individual, cohort, sum", "At which visibility the target sees an update: by itself and in clear; as a term of a "
     "cohort's sum; or as a term of one sum over all."),
    ("masked", "An update that only the sum over enough sources makes readable."),
    ("g_T", "The target's own update, which some rules send to the sources."),
    ("ε, δ", "What noise bounds: how much all that left a site can tell of any one row. Smaller is less. δ is the "
     "chance with which the bound need not hold."),
    ("β", "How much weight the rule gives to the sources against the target's own update."),
    ("norm cap", "A bound on how large a source's contribution to the sum is, per layer."),
    ("refusal", "A site's own policy, or its checks, kept it from taking part. That is the policy at work."),
    ("abort, alarm", "A site ended a session; an alarm says that a check failed as no honest peer makes it fail."),
)  # fmt: skip
"""Words of the page, for readers who have not run a federation."""


@cache
def _environment() -> Environment:
    """Return the template environment, which compiles the template once."""
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=ChoiceLoader([PackageLoader("securefda.audit.report"), PackageLoader("securefda.operations")]),
        autoescape=True,
        finalize=_without_controls,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _without_controls(value: object) -> object:
    """Return text without characters that would control a terminal or the direction of writing; charts stay."""
    return printable(value) if type(value) is str else value


def render_page(sources: Sources, made: datetime) -> str:
    """Return the page. It loads nothing and runs nothing: its own policy (CSP) forbids it.

    Args:
        sources: what it is made from.
        made: now, with a time zone.
    """
    verdict, outcome = sources.verdict, sources.reconciled.outcome
    words, unexplained = policies(sources)
    charts, no_charts = run_charts(sources)
    notices = [f"{names(sites)}: {what}" if sites else what for sites, what in gathered(outcome.notices)]
    return (
        _environment()
        .get_template(_TEMPLATE)
        .render(
            run=sources.run,
            federation=sources.keys.federation,
            period=_period(sources),
            made=moment_text(made),
            release=__version__,
            verdict=verdict,
            points=verdict.points[:MOST_POINTS],
            more_points=max(0, len(verdict.points) - MOST_POINTS),
            said=list(facts_of(sources)),
            tiles=_tiles(sources),
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
            compared=len(sources.reconciled.logs) > 1,
            findings=[(one.severity, finding_line(one)) for one in outcome.findings[:MOST_LINES]],
            more_findings=max(0, len(outcome.findings) - MOST_LINES),
            checked=[(name, f"{count:,}") for name, count in outcome.counts.items()],
            notices=notices[:MOST_LINES],
            more_notices=max(0, len(notices) - MOST_LINES),
            left_out=[
                f"{party.party}: {counted(number, 'record')} of the table of {table}"
                for party in sources.tables
                for table, number in sorted(party.left_out.items())
            ],
            facts=_about_the_page(sources, made),
            glossary=GLOSSARY,
        )
    )


_PUBLISHED: Final[Mapping[str, str]] = {
    "model-and-target-update": "The target's own update g_T",
    "model-and-gap-gradient": "The gradient of the gap of the target's features",
    "model-and-target-features": "Features of the target's rows",
    "model-and-target-features-and-gap-gradient": "Features of the target's rows and the gradient of their gap",
}


def facts_of(sources: Sources) -> Iterator[str]:
    """Yield what the run disclosed and what the sites recorded, in one or two sentences each, without a judgement."""
    flows = all_flows(sources.tables)
    bare = [flow for flow in flows if shows_update(flow) and not shows_target(flow)]
    summed = [flow for flow in flows if flow.level != "individual" and flow.what == "update"]
    if bare:
        count = counted(sum(flow.messages for flow in bare), "update")
        yield f"{count} left in clear, of {names(sorted({flow.discloser for flow in bare}))}."
    if summed:
        fewest = min(flow.fewest for flow in summed)
        count = counted(sum(flow.messages for flow in summed), "update")
        yield f"{count} left only under masks, in sums over at least {counted(fewest, 'source')}."
    if not bare and not summed:
        yield "No update of a source is recorded as disclosed by a log that is here."
    if unreported(sources.tables):
        yield "Models or updates of sites without a log here were received; at which level, only their own logs say."
    if disclosing := [flow for flow in flows if shows_target(flow)]:
        count = counted(sum(flow.messages for flow in disclosing), "message")
        whom = names(sorted({flow.receiver for flow in disclosing}))
        what = sorted({_PUBLISHED[flow.what] for flow in disclosing})
        yield f"{names(what)} went in clear to {whom}, in {count}."
    yield _about_incidents(sources)
    charged = [party for party in sources.tables if party.epsilons]
    if charged:
        largest = max(charged, key=lambda party: party.epsilons[-1].epsilon)
        sites = f"{counted(len(charged), 'site')} charged a ledger for noise"
        yield f"{sites}; the largest epsilon spent is {largest.epsilons[-1].epsilon:.3f}, of {largest.party}."
    else:
        yield "No log here records a charge for noise: nothing bounds what updates, sums and the model tell of a row."


def _about_incidents(sources: Sources) -> str:
    """Alarms, aborts and refusals, and whom the logs blame: one site's word is no proof against another."""
    counts = _incident_counts(sources)
    if not any(counts.values()):
        return "No alarm, no abort and no refusal is recorded."
    said = ", ".join(counted(number, kind) for kind, number in counts.items() if number)
    by: dict[str, set[str]] = {}
    for party in sources.tables:
        for site in {site for incident in party.incidents for site in incident.accused}:
            by.setdefault(site, set()).add(party.party)
    blamed = "; ".join(f"{site} is blamed by {names(sorted(parties))}" for site, parties in sorted(by.items()))
    return f"Recorded: {said}." + (f" By their own word, which proves nothing: {blamed}." if blamed else "")


def _incident_counts(sources: Sources) -> dict[str, int]:
    """Count incidents by kind. A refusal is an event, a sent message and a received one, but counts once."""
    found: dict[tuple[str, str], int] = {}
    for party in sources.tables:
        for item in party.incidents:
            site = item.peer if item.kind.endswith("-received") else party.party
            found[item.kind, site] = found.get((item.kind, site), 0) + item.count
    sites = {site for _, site in found}
    refusals = sum(
        max(found.get((kind, site), 0) for kind in ("refused", "refusal-sent", "refusal-received")) for site in sites
    )
    counts = {
        word: sum(count for (kind, _), count in found.items() if kind == of)
        for of, word in (("alarm", "alarm"), ("aborted", "abort"))
    }
    return counts | {"refusal": refusals}


def _tiles(sources: Sources) -> list[tuple[str, str]]:
    sound = len({log.party for log in sources.logs if log.is_sound})
    rounds = len({span.round for party in sources.tables for span in party.spans})
    flows = all_flows(sources.tables)
    bare = sum(flow.messages for flow in flows if shows_update(flow) and not shows_target(flow))
    masked = sum(flow.messages for flow in flows if flow.level != "individual" and flow.what == "update")
    counts = _incident_counts(sources)
    return [
        (f"{sound} of {len(sources.keys.roles)}", "sites whose log is here and verifies"),
        (f"{rounds:,}", "rounds in these logs"),
        (f"{masked:,}", "updates that left inside sums"),
        (f"{bare:,}", "updates of sources in clear"),
        (f"{counts['alarm'] + counts['abort']:,}", "alarms and aborts"),
        (f"{counts['refusal']:,}", "refusals, by a policy or a check"),
    ]


def _period(sources: Sources) -> str:
    times = [(party.first, party.last) for party in sources.tables if party.first]
    if not times:
        return "No record that counts."
    return (
        f"{span_text(min(first for first, _ in times), max(last for _, last in times))} UTC, by the sites' own clocks"
    )


def _about_the_page(sources: Sources, made: datetime) -> list[tuple[str, str]]:
    began = [dict(mark.detail) for party in sources.tables for mark in party.milestones if mark.kind == "run-began"]
    said = {key: sorted({facts[key] for facts in began} - {OF_HEADERS}) for key in ("task", "strategy", "release")}
    keys = sources.keys
    return [
        ("Run", sources.run),
        ("Federation", keys.federation),
        *((key.capitalize(), names(values)) for key, values in said.items() if values),
        ("Roster", f"epoch {keys.roster.epoch}, SHA-256 {keys.digest}"),
        ("Roster from", _WHERE_FROM[keys.where_from]),
        *((("CA of the kit", f"fingerprint {keys.ca}, {keys.ca_file}"),) if keys.ca else ()),
        ("Records counted", f"{sum(party.records for party in sources.tables):,}"),
        ("Page made", f"{moment_text(made)}, securefda {__version__}"),
    ]
