"""The audit page: one self-contained HTML file for people who were not there. It claims what logs prove, no more.

Its verdict on the logs is that of ``securefda audit reconcile``: `securefda.audit.reconcile.run_verdict` makes both
from one list of findings and notices. The verdict on what the run disclosed stands beside it: none follows from the
other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final

from securefda import __version__
from securefda.audit.reconcile.history import MOST_UNFINISHED_IN_A_ROW, MOST_UNFINISHED_RUNS_A_DAY
from securefda.audit.reconcile.run_verdict import finding_line, gathered
from securefda.audit.report import mapped, party_charts, tables, words
from securefda.audit.report.overview import all_flows, unreported
from securefda.audit.report.sources import Sources
from securefda.glossary import entries
from securefda.pages.html import static_page
from securefda.pages.parts import Charts, Facts, Fold, Line, Lines, Page, Part, Section, State, Tiles, Tone
from securefda.text import counted, names

_WHERE_FROM: Final = {
    "option": "the file that was named with --roster",
    "kit": "the startup kit around a log, whose CA and members signed it",
    "log": "a log's own copy, which the maker of the log could have made as well",
}
_TONES: Final[Mapping[str, Tone]] = {
    "fine": "done",
    "attention": "care",
    "unjudged": "unknown",
    "tampering": "failed",
}
_WHAT_TO_DO: Final = {
    "tampering": "A log or a signed message is not what its site signed, or a site broke a rule. Keep all logs as they "
    "are.",
    "unjudged": "Nothing was found to be tampered with, but it would not be seen everywhere. This keeps the logs from "
    "being judged:",
    "attention": "Nothing was found to be tampered with. This is to be looked at:",
}
GENERATOR: Final = "securefda audit report"
MOST_POINTS: Final = 40
MOST_LINES: Final = 60
GLOSSARY: Final = entries(
    ("site", "source", "target", "roster", "run", "round", "second moments", "log, record", "checkpoint, cosigned",
     "verified", "evidence", "individual, cohort, sum", "masked", "g_T", "ε, δ", "β", "norm cap", "refusal",
     "abort, alarm")
)  # fmt: skip
"""Words of the page."""
PROVES: Final = (
    "Of each log that is marked as verified: the records under its newest checkpoint are those that the site's key "
    "signed, in their order, none missing, none changed. The few records behind it are counted on this page too, and "
    "nothing vouches for them.",
    "Where others cosigned a checkpoint: since then the site cannot have changed or dropped any of these records "
    "unnoticed, unless those who cosigned helped.",
    "What a log says is what its own site wrote. That the site wrote down all that it did, and did what it wrote, no "
    "log proves by itself; a message that the other side's log has too is confirmed by it, and only comparing the logs "
    "shows that (see Verification).",
    "Levels and numbers of sources are from the log of the discloser. That a masked update can be read only inside its "
    "sum rests on the protocol and on the policies' assumptions, and not on the logs.",
    "Epsilon is what each site's privacy ledger came to. Times are those of each site's own clock.",
)
_NOT_SIGNED: Final = "This page itself is not signed: --sign KIT signs it."
_SIGNED: Final = (
    "{} signed this page, as its last line says: securefda audit verify-report FILE --roster ROSTER checks that no "
    "byte was changed since."
)
_PROOF: Final = "Who needs proof takes the logs and runs securefda audit verify and securefda audit reconcile on them."
_ALL_RUNS: Final = (
    "A target that begins run after run, takes something before the sum and hangs up leaves each single log in order. "
    "So all runs of which a log is here are counted, whichever of them this page is about. A round is lost for a "
    "source where something left it and no accepted result followed. One lost round or one run that broke off is what "
    f"a crash leaves; more than {MOST_UNFINISHED_IN_A_ROW} rounds in a row, or more than {MOST_UNFINISHED_RUNS_A_DAY} "
    "such run within 24 hours, is a finding of the target's conduct."
)


def render_page(sources: Sources, made: datetime, signer: str = "", maps: Sequence[str] = ()) -> str:
    """Return the page.

    Args:
        sources: what it is made from.
        made: now, with a time zone.
        signer: the site that will sign it, if one will.
        maps: texts under whose questions its facts stand, too.
    """
    verdict, federation = sources.verdict, sources.keys.federation
    points = [(_TONES[point.severity], point.what) for point in verdict.points]
    state = State(
        _TONES[verdict.severity],
        verdict.headline,
        _WHAT_TO_DO.get(verdict.severity, verdict.scope) if points else verdict.scope,
        lines=_first(points, MOST_POINTS, "{} more: securefda audit reconcile --all lists them."),
        of="Integrity: are the logs what the sites signed, and do they agree?",
    )
    disclosure, of = sources.disclosure, "Disclosure: what bounds what the run revealed, by the sites' own logs?"
    lines = _first([*disclosure.lines()], MOST_POINTS, "{} more.")
    beside = [State(disclosure.tone, disclosure.headline, lines=lines, of=of)]
    if faults := sources.training:
        of = "Training, by signed refusals and by the target's run folder, which is not signed"
        beside.append(State("care", "Look at the training", lines=[("care", fault) for fault in faults], of=of))
    under = (
        f"run {sources.run}",
        _period(sources),
        f"This page was made on {words.moment_text(made)} by securefda {__version__}.",
    )
    proves = [*PROVES, f"{_SIGNED.format(signer) if signer else _NOT_SIGNED} {_PROOF}"]
    sections = [*_sections(sources, made, proves, maps)]
    page = Page(f"Audit of federation {federation}", under, state, sections, beside)
    return static_page(page, f"Audit of run {sources.run} of {federation}", GENERATOR)


def _sections(sources: Sources, made: datetime, said_to_prove: Sequence[str], maps: Sequence[str]) -> Iterator[Section]:
    yield Section("figures", "Figures", [Tiles(_tiles(sources))])
    disclosed, proves = (
        "What the run disclosed, and what the sites recorded",
        "What this page proves, and what it does not",
    )
    yield Section("said", disclosed, [_plain(facts_of(sources))], short="What was disclosed")
    yield Section("proves", proves, [_plain(said_to_prove)], short="What this proves")
    federation: list[Part] = [tables.sites_table(sources), *_policies(sources)]
    yield Section("federation", "The federation and its policies", federation, short="Federation and policies")
    yield Section("all-runs", "All runs of these sites", [_ALL_RUNS, tables.runs_table(sources)], short="All runs")
    who = (
        "Each site's disclosures are those that its own log recorded before they left. The target also discloses: the "
        "model goes to every source."
    )
    matrix = tables.matrix_table(sources)
    disclosures: list[Part] = [
        who,
        *([matrix] if matrix else []),
        tables.flows_table(sources),
        Fold("rounds", "Round by round", [tables.rounds_table(sources)]),
    ]
    yield Section("disclosures", "Who disclosed what to whom", disclosures, short="Disclosures")
    timeline = tables.timeline_table(sources)
    fold = Fold("all", f"{counted(len(timeline.rows), 'entry', 'entries')}, in order", [timeline])
    yield Section("timeline", "Timeline", [fold], short="Timeline")
    yield Section("privacy", "Epsilon of each site against its limit", _epsilon(sources), short="Epsilon")
    yield Section("weights", "β and caps", _weights(sources), short="β and caps")
    chart = party_charts.bytes_chart(sources)
    volume: list[Part] = [*([Charts([chart])] if chart else []), tables.bytes_table(sources.tables)]
    yield Section("bytes", "Bytes", volume, short="Bytes")
    accusation = (
        "An accusation is what the accusing site's software concluded from a check that failed. The signed messages "
        "beside its log are the evidence; a refusal by policy accuses no site."
    )
    trouble: list[Part] = [accusation, tables.incidents_table(sources)]
    yield Section("trouble", "Alarms, aborts and refusals", trouble, short="Alarms and refusals")
    yield Section("verification", "Verification", list(_verification(sources)), short="Verification")
    for name in maps:
        yield mapped.mapping_section(sources, name)
    yield Section("glossary", "Glossary", [Facts(GLOSSARY)], short="Glossary")
    yield Section("about", "About this page", [Facts(_about_the_page(sources, made))])
    read = (
        f"I have read this page on run {sources.run} of federation {sources.keys.federation}. Its verdict is: "
        f"{sources.verdict.headline}. On what was disclosed it says: {sources.disclosure.headline}."
    )
    blanks = ("Name and role", "Organisation", "Decision, remarks", "Place and date", "Signature")
    yield Section("signoff", "Sign-off", [read, Facts([(blank, "") for blank in blanks])])


def _policies(sources: Sources) -> Iterator[Part]:
    known, unexplained = tables.policies(sources)
    for place, (sites, explained) in enumerate(known):
        same = f" The policies of {', '.join(sites[1:])} say the same." if len(sites) > 1 else ""
        parts = [_plain(lines, heading) for heading, lines in explained.parts()]
        yield Fold(f"policy-{place}", f"{explained.summary}{same}", parts)
    if unexplained:
        yield f"{unexplained} more policies are known and not written out here: securefda policy explain says them."
    if not known:
        yield (
            "No policy file that a log names lies beside it, so policies cannot be put in words here. What the sites "
            "did under them is in the tables below; securefda policy explain says what a policy file means."
        )


def _epsilon(sources: Sources) -> list[Part]:
    bounds = (
        "Epsilon bounds how much all that left a site can tell of any one of its rows; smaller is less. It counts "
        "rounds with noise only."
    )
    chart, table = party_charts.epsilon_chart(sources), party_charts.epsilon_table(sources)
    return [bounds, *([Charts([chart])] if chart else []), table or "No log here records a charge."]


def _weights(sources: Sources) -> list[Part]:
    parts = list[Part]()
    if norms := party_charts.norm_cap_table(sources):
        told = (
            "For the caps, each source tells the other sources of the sum how large its contribution is, per layer and "
            "on a coarse grid. The target relays these norm reports sealed and cannot read them."
        )
        parts += [norms, told]
    drawn, no_charts = party_charts.run_charts(sources)
    if drawn:
        unsigned = (
            "The figures below are from the target's run folder (metrics.jsonl and the sources' own lines beside it). "
            "They are not signed, and no log vouches for them."
        )
        return [*parts, unsigned, Charts(drawn)]
    if no_charts:
        return [*parts, f"There are no figures of β: {no_charts}."]
    if sources.record is not None:
        return [*parts, "The run folder has no figures of β: the rule of this run has no weights, or no round ended."]
    only = "Only the target's run folder has it (metrics.jsonl): name that folder to see it here."
    return [*parts, f"Logs do not hold β. {only}"]


def _verification(sources: Sources) -> Iterator[Part]:
    outcome = sources.reconciled.outcome
    yield tables.logs_table(sources)
    if len(sources.reconciled.logs) < 2:
        yield (
            "There is one log here only, and nothing to compare it with; it was compared with its own signed messages."
        )
    findings = [(_TONES[finding.severity], finding_line(finding)) for finding in outcome.findings]
    shown = _first(findings, MOST_LINES, "{} more findings: securefda audit reconcile --all lists them.")
    yield Lines(shown or [("", "Nothing was found.")], "The logs compared with each other")
    checked = [(name, f"{count:,}") for name, count in outcome.counts.items()]
    yield Fold("checked", "What was checked", [Facts(checked)])
    notices = _plain(f"{names(sites)}: {what}" if sites else what for sites, what in gathered(outcome.notices)).lines
    if notices:
        more = "{} more lines: securefda audit reconcile lists them."
        yield Lines(_first(notices, MOST_LINES, more), "Noticed beside that")
    left_out = [
        f"{party.party}: {counted(number, 'record')} of the table of {table}"
        for party in sources.tables
        for table, number in sorted(party.left_out.items())
    ]
    if left_out:
        yield _plain(left_out, "These logs say more than the tables of this page hold. Not in them")


def _plain(lines: Iterable[str], heading: str = "") -> Lines:
    return Lines([("", line) for line in lines], heading)


def _first(lines: Sequence[Line], most: int, more: str) -> Sequence[Line]:
    """Return at most as many lines, and then how many are left out."""
    left = len(lines) - most
    return [*lines[:most], *(_plain([f"And {more.format(left)}"]).lines if left > 0 else [])]


_PUBLISHED: Final[Mapping[str, str]] = {
    "model-and-target-update": "The target's own update g_T",
    "model-and-gap-gradient": "The gradient of the gap of the target's features",
    "model-and-target-features": "Features of the target's rows",
    "model-and-target-features-and-gap-gradient": "Features of the target's rows and the gradient of their gap",
}


def facts_of(sources: Sources) -> Iterator[str]:
    """Yield what the run disclosed and what the sites recorded, in one or two sentences each, without a judgement."""
    flows = all_flows(sources.tables)
    bare = [flow for flow in flows if tables.shows_update(flow) and not tables.shows_target(flow)]
    summed = [flow for flow in flows if flow.level != "individual" and flow.what in words.CONTRIBUTIONS]
    if bare:
        whose = names(sorted({flow.discloser for flow in bare}))
        yield f"{words.contributions_text(bare)} left in clear, of {whose}."
    if summed:
        fewest = counted(min(flow.fewest for flow in summed), "source")
        yield f"{words.contributions_text(summed)} left only under masks, in sums over at least {fewest}."
    if any(flow.what == "moments" for flow in flows):
        yield "Second moments are sums over a site's rows of products of their features and labels, once in a run."
    if not bare and not summed:
        yield "No update of a source is recorded as disclosed by a log that is here."
    if unreported(sources.tables):
        yield "Models or updates of sites without a log here were received; at which level, only their own logs say."
    if disclosing := [flow for flow in flows if tables.shows_target(flow)]:
        count = counted(sum(flow.messages for flow in disclosing), "message")
        whom = names(sorted({flow.receiver for flow in disclosing}))
        what = sorted({_PUBLISHED[flow.what] for flow in disclosing})
        yield f"{names(what)} went in clear to {whom}, in {count}."
    yield words.incidents_text(sources.tables)
    if sources.record is None:
        yield "Logs hold no losses: whether training went well, only the target's run folder says."
    elif not sources.training:
        yield "No training diverged and no loss rose, by the target's run folder, which is not signed."


def _tiles(sources: Sources) -> list[tuple[str, str, str]]:
    sound = len({log.party for log in sources.logs if log.is_sound})
    rounds = len({span.round for party in sources.tables for span in party.spans})
    flows = all_flows(sources.tables)
    bare = sum(flow.messages for flow in flows if tables.shows_update(flow) and not tables.shows_target(flow))
    masked = sum(flow.messages for flow in flows if flow.level != "individual" and flow.what in words.CONTRIBUTIONS)
    counts, what = words.incident_counts(sources.tables), words.contributions_in(flows)
    tiles = [
        (f"{sound} of {len(sources.keys.roles)}", "sites whose log is here and verifies"),
        (f"{rounds:,}", "rounds in these logs"),
        (f"{masked:,}", f"{what} that left inside sums"),
        (f"{bare:,}", f"{what} of sources in clear"),
        (f"{counts['alarm'] + counts['abort']:,}", "alarms and aborts"),
        (f"{counts['refusal']:,}", "refusals, by a policy or a check"),
    ]
    return [(value, label, "") for value, label in tiles]


def _period(sources: Sources) -> str:
    times = [(party.first, party.last) for party in sources.tables if party.first]
    if not times:
        return "No record that counts."
    span = words.span_text(min(first for first, _ in times), max(last for _, last in times))
    return f"{span} UTC, by the sites' own clocks"


def _about_the_page(sources: Sources, made: datetime) -> list[tuple[str, str]]:
    began = [dict(mark.detail) for party in sources.tables for mark in party.milestones if mark.kind == "run-began"]
    stated = {
        key: sorted({facts[key] for facts in began} - {words.OF_HEADERS}) for key in ("task", "strategy", "release")
    }
    keys = sources.keys
    return [
        ("Run", sources.run),
        ("Federation", keys.federation),
        *((key.capitalize(), names(values)) for key, values in stated.items() if values),
        ("Roster", f"epoch {keys.roster.epoch}, SHA-256 {keys.digest}"),
        ("Roster from", _WHERE_FROM[keys.where_from]),
        *((("CA of the kit", f"fingerprint {keys.ca}, {keys.ca_file}"),) if keys.ca else ()),
        ("Records counted", f"{sum(party.records for party in sources.tables):,}"),
        ("Page made", f"{words.moment_text(made)}, securefda {__version__}"),
    ]
