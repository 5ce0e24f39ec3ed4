"""The words of an audit page: disclosures, moments, incidents, findings and times as text. Nothing here is markup."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final

from securefda.audit.reconcile.history import SiteRun, ranges
from securefda.audit.report.overview import Alike, Moment
from securefda.audit.report.party_tables import Flow, Incident, PartyTables
from securefda.audit.verify import Verification
from securefda.text import counted, names

_MOST_RANGES = 6
_WHAT: Final[Mapping[str, str]] = {
    "update": "update",
    "moments": "second moments: sums over the site's rows of products of their features and labels",
    "model": "the model",
    "model-and-target-update": "the model and the target's own update g_T",
    "model-and-gap-gradient": "the model and the gradient of the gap of the target's features",
    "model-and-target-features": "the model and features of the target's rows",
    "model-and-target-features-and-gap-gradient": "the model, features of the target's rows and their gap gradient",
}
_SHORT: Final[Mapping[str, str]] = {
    "model-and-target-update": "model and g_T",
    "model-and-gap-gradient": "model and gap gradient",
    "model-and-target-features": "model and features",
    "model-and-target-features-and-gap-gradient": "model, features and gap gradient",
}
CONTRIBUTIONS: Final[Mapping[str, tuple[str, str]]] = {
    "update": ("update", "updates"),
    "moments": ("message of second moments", "messages of second moments"),
}
"""What a source adds to a sum, by the word of disclosures: one of them, and several."""
OF_HEADERS: Final = "the-headers"
"""The strategy in a source's log, since a source follows the headers."""
_KINDS: Final[Mapping[str, str]] = {
    "alarm": "alarm",
    "aborted": "abort",
    "refused": "refusal",
    "refusal-sent": "refusal sent",
    "refusal-received": "refusal received",
    "abort-sent": "abort sent",
    "abort-received": "abort received",
}
_FINDINGS: Final[Mapping[str, str]] = {
    "unreadable": "cannot be read",
    "truncated": "is truncated",
    "torn": "ends in a record that is not whole",
    "edited": "was edited",
    "reordered": "was reordered",
    "deleted": "lacks a record",
    "inserted": "has a record too many",
    "forked": "is forked: its key signed two histories",
    "replayed": "is another log, or an earlier state of this one",
    "bad-signature": "has a checkpoint with a wrong signature",
    "wrong-party": "is of another party",
    "newer-version": "is of a later release",
    "missing-cosignature": "lacks cosignatures",
    "missing-ml-dsa": "lacks ML-DSA signatures",
}


def time_text(time: str) -> str:
    """A record's time to the second, for example ``2026-11-21 12:00:03``."""
    return f"{time[:10]} {time[11:19]}"


def span_lines(first: str, last: str) -> tuple[str, ...]:
    """Return the first time, and the last if it is another second; a common day is given once."""
    begin, end = time_text(first), time_text(last)
    if begin == end:
        return (begin,)
    return begin, f"to {end[11:] if begin[:10] == end[:10] else end}"


def span_text(first: str, last: str) -> str:
    """Return `span_lines` on one line."""
    return " ".join(span_lines(first, last))


def moment_text(moment: datetime) -> str:
    """A moment in UTC to the second."""
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def rounds_text(numbers: Iterable[int]) -> str:
    """``1 to 4, 7``; many separate ones are counted; what is outside rounds is said so."""
    listed = sorted(set(numbers))
    inside = [number for number in listed if number]
    runs = ranges(inside)
    words = [f"{first}" if first == last else f"{first} to {last}" for first, last in runs]
    text = (
        ", ".join(words) if len(words) <= _MOST_RANGES else f"{len(inside):,} rounds from {inside[0]} to {inside[-1]}"
    )
    return ", ".join(part for part in ("outside rounds" if len(inside) < len(listed) else "", text) if part)


def what_text(what: str) -> str:
    """Return in words what was disclosed. A word that this release does not know stays as it is."""
    return _WHAT.get(what, what)


def level_text(flow: Flow | Alike) -> str:
    """Return the visibility level in words."""
    over = f"{flow.fewest}" if flow.fewest == flow.most else f"{flow.fewest} to {flow.most}"
    return {
        "individual": "individual: in clear, readable by the receiver",
        "cohort": f"cohort: as a term of a cohort's sum over at least {over} sources",
        "sum": f"sum: as a term of one sum over at least {over} sources",
    }.get(flow.level, flow.level)


def alike_text(flows: Alike) -> str:
    """Flows that differ in one end only, on one line."""
    each = f" ({flows.messages} messages each)" if flows.messages > 1 else ""
    ends = f"{names(flows.disclosers)} to {names(flows.receivers)}"
    return f"{ends}: {what_text(flows.what)}; {level_text(flows)}{each}"


def cell_text(flow: Flow) -> str:
    """A flow in a cell of the matrix."""
    over = "in clear" if flow.level == "individual" else f"in a {flow.level} of ≥ {flow.fewest}"
    return f"{flow.messages:,} × {_SHORT.get(flow.what, flow.what)}, {over}"


def contributions_text(flows: Iterable[Flow]) -> str:
    """Return how many contributions of sources these are, for example ``2 updates``; "" for none."""
    counts: Counter[str] = Counter()  # a word that this release does not know counts as an update
    for flow in flows:
        counts[flow.what if flow.what in CONTRIBUTIONS else "update"] += flow.messages
    return " and ".join(counted(number, *CONTRIBUTIONS[what]) for what, number in counts.items())


def contributions_in(flows: Iterable[Flow]) -> str:
    """Return what the contributions of sources among these flows are: ``updates``, or another word for several."""
    found = {flow.what for flow in flows}
    kinds = [kind for kind in CONTRIBUTIONS if kind in found]
    return " or ".join(CONTRIBUTIONS[kind][1] for kind in kinds or ["update"])


def updates_text(flows: Iterable[Flow]) -> str:
    """Return in words how many updates, or messages of second moments, left in a round, by level; "" if none did."""
    places = {
        "individual": "in clear",
        "cohort": "inside sums of cohorts",
        "sum": "inside one sum",
    }
    left = [flow for flow in flows if flow.what in CONTRIBUTIONS]
    counts = {level: contributions_text(flow for flow in left if flow.level == level) for level in places}
    return ", ".join(f"{count} {places[level]}" for level, count in counts.items() if count)


def ending_text(run: SiteRun) -> str:
    """Return in words how a run ended."""
    unfinished = "; took something and brought no result" if run.is_unfinished else ""
    return {"no end": "without an end: broken off", "goes on": "goes on"}.get(run.ended, run.ended) + unfinished


def incident_kind(kind: str) -> str:
    """The kind of an incident, in words."""
    return _KINDS.get(kind, kind)


def incident_rounds(incident: Incident) -> str:
    """Return the rounds of an incident in words."""
    if incident.last_round == 0:
        return "outside rounds"
    if incident.first_round == incident.last_round:
        return str(incident.first_round)
    return f"{incident.first_round or 'outside rounds'} to {incident.last_round}"


def incidents_text(tables: Sequence[PartyTables]) -> str:
    """Alarms, aborts and refusals, and whom the logs blame: one site's word is no proof against another."""
    counts = incident_counts(tables)
    if not any(counts.values()):
        return "No alarm, no abort and no refusal is recorded."
    counted_kinds = ", ".join(counted(number, kind) for kind, number in counts.items() if number)
    by: dict[str, set[str]] = {}
    for party in tables:
        for site in {site for incident in party.incidents for site in incident.accused}:
            by.setdefault(site, set()).add(party.party)
    blamed = "; ".join(f"{site} is blamed by {names(sorted(parties))}" for site, parties in sorted(by.items()))
    return f"Recorded: {counted_kinds}." + (f" By their own word, which proves nothing: {blamed}." if blamed else "")


def incident_counts(tables: Sequence[PartyTables]) -> dict[str, int]:
    """Count incidents by kind. A refusal is an event, a sent message and a received one, but counts once."""
    by_site: dict[tuple[str, str], int] = {}
    for party in tables:
        for item in party.incidents:
            site = item.peer if item.kind.endswith("-received") else party.party
            by_site[item.kind, site] = by_site.get((item.kind, site), 0) + item.count
    sites = {site for _, site in by_site}
    refusals = sum(
        max(by_site.get((kind, site), 0) for kind in ("refused", "refusal-sent", "refusal-received")) for site in sites
    )
    counts = {
        word: sum(count for (kind, _), count in by_site.items() if kind == of)
        for of, word in (("alarm", "alarm"), ("aborted", "abort"))
    }
    return counts | {"refusal": refusals}


def event_text(moment: Moment, updates: str = "") -> str:
    """Describe a moment in one sentence; ``updates`` says what left in a round."""
    facts = dict(moment.detail)
    match moment.kind:
        case "round":
            attempts = f", {moment.count} attempts" if moment.count > 1 else ""
            return f"Round {moment.round}{attempts}{f': {updates}' if updates else ''}."
        case "run-began":
            strategy = "" if facts["strategy"] == OF_HEADERS else f", strategy {facts['strategy']}"
            return f"The run began: task {facts['task']}{strategy}, release {facts['release']}."
        case "run-ended":
            return f"The run ended: {facts['outcome']}, {counted(int(facts['rounds']), 'round')}."
        case "policy-loaded" | "model-kept":
            what = "Policy loaded" if moment.kind == "policy-loaded" else "The final model is in the run folder"
            return f"{what}, SHA-256 {facts.get('policy') or facts['model']:.16}…"
        case "restarted":
            lost = int(facts["lost_bytes"])
            cut = f"; {counted(lost, 'byte')} of a record that was not whole were cut off" if lost else ""
            return f"The process started again{cut}."
    text = incident_kind(moment.kind).capitalize()
    if "check" in facts:
        text += f": {facts['check']}"
    if "accused" in facts:
        text += f"; accused: {facts['accused']}"
    if "peer" in facts:
        text += f" ({'from' if moment.kind.endswith('received') else 'to'} {facts['peer']})"
    if moment.count > 1:
        until = f", up to round {facts['to-round']}" if "to-round" in facts else ""
        text += f", {moment.count:,} times{until}"
    return f"{text}."


def verification_text(verification: Verification) -> str:
    """The state of a log in one sentence."""
    finding = verification.finding
    if finding is None:
        return "verified"
    place = f"record {finding.index}" if finding.exact else f"behind record {finding.index}"
    return f"{_FINDINGS.get(finding.kind, finding.kind)} ({place}): {finding.what}"


def witnesses_text(verification: Verification) -> str:
    """Return in words who cosigned the newest checkpoint."""
    if not verification.root:
        return "no checkpoint that could be read"
    return names(verification.witnesses) if verification.witnesses else "no site"
