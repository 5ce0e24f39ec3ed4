"""The figures of an audit page, with what they show in words; drawn only where there is something to draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

from securefda.audit.report.party_tables import PartyTables
from securefda.audit.report.sections import Cell, Table
from securefda.audit.report.sources import LogState, Sources
from securefda.operations.report import Chart, beta_chart
from securefda.text import counted

MOST_LINES: Final = 8
MOST_POINTS: Final = 300
MOST_BARS: Final = 60
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")
_Point = TypeVar("_Point")


def epsilon_chart(sources: Sources) -> Chart | None:
    """Epsilon of each site over the rounds, with the limits; None where no log has a charge."""
    spent = [party for party in sources.tables if party.epsilons]
    if not spent:
        return None
    from securefda.operations.figures import lines_figure

    shown = sorted(spent, key=lambda party: -party.epsilons[-1].epsilon)[:MOST_LINES]
    lines = {party.party: _over_rounds(party) for party in sorted(shown, key=lambda party: party.party)}
    rounds = [number for points in lines.values() for number, _ in points]
    limits = {limit for party in lines if (limit := epsilon_limit(sources, party)) > 0}
    for limit in sorted(limits)[:2]:
        lines[f"limit {limit:g}"] = [(min(rounds), limit), (max(rounds), limit)]
    caption = "As each site's own log says, of all that its ledger knows; earlier runs on the same rows are in it."
    if len(spent) > len(shown):
        caption += f" Drawn are the {len(shown)} largest of {len(spent)}."
    if len(limits) > 2:
        caption += " Of the limits the two smallest are drawn; all are in the table."
    return Chart("Epsilon over the rounds", caption, lines_figure(lines, "epsilon", "epsilon"))


def epsilon_table(sources: Sources) -> Table | None:
    """Return the final epsilon of each site, with its limit; None if no log has a charge."""
    if not any(party.epsilons for party in sources.tables):
        return None
    rows = [_epsilon_row(sources, log) for log in sources.logs if not log.is_copy]
    columns = (
        ("site", "text"),
        ("epsilon spent", "number"),
        ("limit", "text"),
        ("of the limit", "number"),
        ("delta", "number"),
        ("last charge", "text"),
    )
    caption = "What the rows of each site had cost after its last charge in this run"
    return Table("epsilons", caption, columns, tuple(rows))


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
        rounds = _thinned(list({line["round"]: line for line in sources.record.rounds}.values()))
        charts = (beta_chart(sources.record, rounds),) if rounds else ()
    except (KeyError, TypeError, ValueError, AttributeError):
        return (), "the run folder's figures are not of the form that a run writes"
    return tuple(chart for chart in charts if chart is not None), ""


def norm_cap_table(sources: Sources) -> Table | None:
    """Return the effect of the norm cap on each source, by the source's own log; None if no log has caps."""
    rows = [
        _texts(
            party.party,
            f"{len(party.caps):,}",
            f"{sum(point.layers for point in party.caps):,}",
            f"{sum(point.capped for point in party.caps):,}",
            f"{sum(point.zeroed for point in party.caps):,}",
        )
        for party in sources.tables
        if party.caps
    ]
    headings = ("rounds with caps", "layers in them", "scaled down", "reduced to nothing")
    columns = (("site", "text"), *((heading, "number") for heading in headings))
    caption = "What the norm cap did to each source's contribution, as its own log says"
    return Table("caps", caption, columns, tuple(rows)) if rows else None


def bytes_chart(sources: Sources) -> Chart | None:
    """Bytes between each source and the target; from the target's log, or from the sources' own."""
    counts, whose = _between(sources)
    sites = [site for site in sources.keys.roles if site in counts][:MOST_BARS]
    if not sites:
        return None
    from securefda.operations.figures import bytes_figure

    largest = max(max(counts[site]) for site in sites)
    power = next(power for power in range(len(_UNITS)) if largest < 1024 ** (power + 1) or power + 1 == len(_UNITS))
    up, down = ([counts[site][way] / 1024**power for site in sites] for way in (0, 1))
    caption = f"Signed messages with their vectors over the whole run, as {whose} counted them; not TLS or TCP."
    if len(counts) > len(sites):
        caption += f" Drawn are the first {len(sites)} of {len(counts)}."
    return Chart("Bytes per source", caption, bytes_figure(sites, up, down, _UNITS[power]))


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


def _over_rounds(party: PartyTables) -> list[tuple[int, float]]:
    """The last charge of each round, in order, thinned."""
    latest = {point.round: point.epsilon for point in party.epsilons}
    return _thinned(sorted(latest.items()))


def _thinned(points: Sequence[_Point]) -> list[_Point]:
    """Every n-th of many, and the last."""
    step = -(-len(points) // MOST_POINTS)
    return list(points) if step <= 1 else [*points[:-1:step], points[-1]]


def _epsilon_row(sources: Sources, log: LogState) -> tuple[Cell, ...]:
    points = log.tables.epsilons
    if not points:
        return _texts(log.party, "–", "–", "–", "–", "no charge in this log: no noise that a ledger counted")
    last, limit = points[-1], epsilon_limit(sources, log.party)
    limit_from = "its policy" if log.policy.policy is not None else "the run folder"
    spent = last.spent
    charge = (
        f"round {last.round}: {counted(spent.steps, 'step')} of {spent.mechanism}, noise multiplier "
        f"{float(spent.noise_multiplier):g}, sampling rate {float(spent.sampling_rate):.4g}, accountant "
        f"{spent.accountant}"
    )
    return (
        Cell.of(log.party),
        Cell.of(f"{last.epsilon:.4f}", care=bool(limit) and last.epsilon > limit),
        Cell.of(f"{limit:g} ({limit_from})" if limit else "not known here"),
        Cell.of(f"{100 * last.epsilon / limit:.0f} %" if limit else "–"),
        Cell.of(f"{float(spent.delta):g}"),
        Cell.of(charge),
    )


def _texts(*cells: str) -> tuple[Cell, ...]:
    return tuple(Cell.of(cell) for cell in cells)
