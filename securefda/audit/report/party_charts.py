"""The figures of an audit page, with what they show in words; drawn only where there is something to draw."""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import Final

from securefda.audit.report.sources import LogState, Sources
from securefda.operations import report
from securefda.pages.parts import Cell, Chart, Series, Table, cell
from securefda.text import bound_text, counted

MOST_LINES: Final = 8
MOST_BARS: Final = 60


def epsilon_chart(sources: Sources) -> Chart | None:
    """Epsilon of each site over the rounds, with the limits; None where no log has a charge."""
    spent = [party for party in sources.tables if party.epsilons]
    if not spent:
        return None
    shown = sorted(sorted(spent, key=lambda party: -party.epsilons[-1].epsilon)[:MOST_LINES], key=attrgetter("party"))
    series = [
        Series(party.party, sorted({point.round: point.epsilon for point in party.epsilons}.items())) for party in shown
    ]
    limits = sorted({limit for party in shown if (limit := epsilon_limit(sources, party.party)) > 0})
    caption = "As each site's own log says, of all that its ledger knows; earlier runs on the same rows are in it."
    if len(spent) > len(shown):
        caption += f" Drawn are the {len(shown)} largest of {len(spent)}."
    if len(limits) > 2:
        caption += " Of the limits the two smallest are drawn; all are in the table."
    return Chart("Epsilon over the rounds", caption, series, limits=[("limit", limit) for limit in limits[:2]])


def epsilon_table(sources: Sources) -> Table | None:
    """Return the final epsilon of each site, with its limit; None if no log has a charge."""
    if not any(party.epsilons for party in sources.tables):
        return None
    rows = [_epsilon_row(sources, log) for log in sources.logs if not log.is_copy]
    head = ("site", "epsilon spent", "limit", "of the limit", "delta", "last charge")
    caption = "What the rows of each site had cost after its last charge in this run"
    return Table(head, rows, numbers={1, 3, 4}, key="epsilons", caption=caption, broad={5})


def epsilon_limit(sources: Sources, party: str) -> float:
    """Return the epsilon that the policy, or the target's settings, allow; 0 if it is unknown here."""
    for log in sources.logs:
        if log.party == party and log.policy.policy is not None:
            return log.policy.policy.dp.target_epsilon
    summary = sources.record.summary if sources.record is not None else None
    spent = (summary or {}).get("target_privacy")
    limit = spent.get("limit") if isinstance(spent, Mapping) and sources.keys.roles.get(party) == "target" else None
    return float(limit) if isinstance(limit, int | float) else 0.0


def run_charts(sources: Sources) -> tuple[tuple[Chart, ...], str]:
    """Return the chart of beta, which only the target's run folder has, or why its numbers give no chart.

    These figures are not signed, and the file may hold anything.
    """
    if sources.record is None:
        return (), sources.record_problem
    try:
        rounds = list({line["round"]: line for line in sources.record.rounds}.values())
        chart = report.beta_chart(rounds, sources.record.sites) if rounds else None
    except (KeyError, TypeError, ValueError, AttributeError):
        return (), "the run folder's figures are not of the form that a run writes"
    return (chart,) if chart else (), ""


def norm_cap_table(sources: Sources) -> Table | None:
    """Return the effect of the norm cap on each source, by the source's own log; None if no log has caps."""
    rows = [
        (
            party.party,
            f"{len(party.caps):,}",
            f"{sum(point.layers for point in party.caps):,}",
            f"{sum(point.capped for point in party.caps):,}",
            f"{sum(point.zeroed for point in party.caps):,}",
        )
        for party in sources.tables
        if party.caps
    ]
    head = ("site", "rounds with caps", "layers in them", "scaled down", "reduced to nothing")
    caption = "What the norm cap did to each source's contribution, as its own log says"
    return Table(head, rows, numbers={1, 2, 3, 4}, key="caps", caption=caption) if rows else None


def bytes_chart(sources: Sources) -> Chart | None:
    """Bytes between each source and the target; from the target's log, or from the sources' own."""
    counts, whose = _between(sources)
    sites = [site for site in sources.keys.roles if site in counts][:MOST_BARS]
    if not sites:
        return None
    caption = f"Signed messages with their vectors over the whole run, as {whose} counted them; not TLS or TCP."
    if len(counts) > len(sites):
        caption += f" Drawn are the first {len(sites)} of {len(counts)}."
    return report.bytes_chart({site: counts[site] for site in sites}, caption)


def _between(sources: Sources) -> tuple[dict[str, tuple[int, int]], str]:
    """Source -> bytes to the target and from it, and who counted."""
    roles = sources.keys.roles
    for party in sources.tables:
        if roles.get(party.party) == "target" and party.traffic:
            counts = {item.peer: (item.received_bytes, item.sent_bytes) for item in party.traffic}
            return counts, "the target's log"
    counts = {
        party.party: (sum(item.sent_bytes for item in own), sum(item.received_bytes for item in own))
        for party in sources.tables
        if (own := [item for item in party.traffic if roles.get(item.peer) == "target"])
    }
    return counts, "the sources' logs"


def _epsilon_row(sources: Sources, log: LogState) -> tuple[Cell, ...]:
    points = log.tables.epsilons
    if not points:
        return log.party, "–", "–", "–", "–", "no charge in this log: no noise that a ledger counted"
    last, limit = points[-1], epsilon_limit(sources, log.party)
    limit_from = "its policy" if log.policy.policy is not None else "the run folder"
    spent = last.spent
    what = f"{counted(spent.steps, 'step')} of {spent.mechanism}"
    if spent.is_of_all_rows:
        what = "one sum over all rows"
    charge = (
        f"round {last.round}: {what}, noise multiplier "
        f"{float(spent.noise_multiplier):g}, sampling rate {float(spent.sampling_rate):.4g}, accountant "
        f"{spent.accountant}"
    )
    return (
        log.party,
        cell(bound_text(last.epsilon), care=bool(limit) and last.epsilon > limit),
        f"{limit:g} ({limit_from})" if limit else "not known here",
        f"{100 * last.epsilon / limit:.0f} %" if limit else "–",
        f"{float(spent.delta):g}",
        charge,
    )
