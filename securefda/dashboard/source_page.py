"""The page of a source: what left it, at which visibility and to whom, ε against its limit, its policy in words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, cast

from securefda.audit.report.overview import alike
from securefda.audit.report.words import CONTRIBUTIONS, contributions_in, level_text, time_text, what_text
from securefda.dashboard.process_state import describe_process
from securefda.dashboard.shared_parts import incident_lines, log_facts, problem_section, start_hint
from securefda.dashboard.site_reader import PolicySeen, Seen
from securefda.operations.records import SiteLine
from securefda.operations.report import number_cell
from securefda.pages.parts import Chart, Charts, Facts, Fold, Line, Lines, Page, Section, Series, State, Table, Tiles
from securefda.text import bound_text, counted, human_bytes, left_text, names

MOST_ROWS: Final = 50


def source_page(seen: Seen) -> Page:
    """Return the page of a source, as far as its files allow."""
    place = seen.place
    sections = [
        Section("figures", "Figures", [Tiles(tiles)] if (tiles := _tiles(seen)) else []),
        problem_section(seen.problems),
        _left(seen),
        _budget(seen),
        _alarms(seen),
        Section("charts", "Over the rounds", [Charts(charts)] if (charts := _charts(seen)) else []),
        _rounds(seen.own),
        _policy(seen),
        Section("about", "About this site", [Facts([("Run folder", str(place.run)), *log_facts(seen)])]),
    ]
    site = place.site or "Source"
    return Page(site, [f"source · {place.run}"], source_state(seen), sections)


def source_state(seen: Seen) -> State:
    """Return the site's state and the site that it waits for."""
    if seen.process is not None:
        return describe_process(seen.process, seen.running, _done(seen), seen.late)
    if seen.log is not None and (entry := seen.log.last.entry).type == "run-ended":
        outcome, rounds = entry.facts["outcome"], counted(cast(int, entry.facts["rounds"]), "round")
        if outcome == "completed":
            return State("done", "Finished", f"The run is completed: {rounds} with a result.")
        return State("failed", "Ended", f"The run ended: {outcome}, {rounds} with a result.")
    if seen.log is not None or seen.own:
        return State("waiting", "No end yet", f"Nothing here says whether a process is at work. {_done(seen)}")
    roles = seen.keys.roles if seen.keys is not None else {}
    target = next((site for site, role in roles.items() if role == "target"), "the target")
    text = f"No process of this site has started here, and nothing has left for {target}."
    return State("none", "Not begun", text, start_hint(seen))


def _finished(own: Sequence[SiteLine]) -> dict[int, SiteLine]:
    """Return round -> the last line with a result; refused headers have separate lines."""
    return {line["round"]: line for line in own if "refused" not in line}


def _done(seen: Seen) -> str:
    return f"{counted(len(_finished(seen.own)), 'round')} with a result."


def _tiles(seen: Seen) -> list[tuple[str, str, str]]:
    done = list(_finished(seen.own).values())
    tiles = []
    if done:
        last = done[-1]
        tiles.append((str(len(done)), "rounds with a result", f"last: round {last['round']}, {last.get('rule', '')}"))
    if seen.log is not None:
        left = [flow for flow in seen.log.tables.flows if flow.what in CONTRIBUTIONS]
        tiles.append((f"{sum(flow.messages for flow in left)}", f"{contributions_in(left)} left this site", ""))
        sent = sum(one.sent_bytes for one in seen.log.tables.traffic)
        tiles.append((human_bytes(sent), "sent in all", ""))
    if spent := _spent(seen):
        limit = _limit(seen.policy)
        tiles.append((bound_text(spent[-1][1]), "ε spent", f"limit {limit:g}" if limit is not None else ""))
    if done and (apart := done[-1].get("apart_from_target")) is not None:
        note = "at least; of the step before the last round"
        tiles.append((f"{math.floor(100 * apart)} %", "of a step not the target's own", note))
    if done and (beta := done[-1].get("beta")) is not None:
        tiles.append((f"{beta:.2f}", "β of the last round", "stays at this site"))
    return tiles


def _left(seen: Seen) -> Section:
    log = seen.log
    heading = "What left this site"
    if log is None:
        why = "No audit log here, so this page cannot say what left."
        if seen.place.kit is not None:
            why = "No audit log yet: the site begins it before anything leaves."
        return Section("left", heading, [Lines([("none", why)])])
    flows = alike(log.tables.flows)
    if not flows:
        return Section("left", heading, [Lines([("done", "Nothing that discloses anything has left yet.")])])
    rows = [
        (what_text(one.what), names(one.receivers), level_text(one), f"{one.messages:,}", f"{one.rounds:,}")
        for one in flows
    ]
    table = Table(("what", "to whom", "visibility", "messages", "rounds"), rows, numbers={3, 4})
    last = log.tables.spans[-1] if log.tables.spans else None
    note = "As this site's own audit log says, for the whole run."
    when = f" The last round was {last.round}, until {time_text(last.last)} UTC." if last is not None else ""
    return Section("left", heading, [table], f"{note}{when}")


def _spent(seen: Seen) -> list[tuple[int, float]]:
    """Return (round, ε) pairs: from the audit log, which has all charges, or else from the rounds."""
    if seen.log is not None and seen.log.tables.epsilons:
        return list({one.round: (one.round, one.epsilon) for one in seen.log.tables.epsilons}.values())
    lines = _finished(seen.own).values()
    return [(line["round"], line["epsilon"]) for line in lines if line.get("epsilon") is not None]


def _limit(policy: PolicySeen | None) -> float | None:
    return None if policy is None else policy.policy.dp.target_epsilon


def _budget(seen: Seen) -> Section:
    heading, spent, limit = "Privacy budget", _spent(seen), _limit(seen.policy)
    if not spent:
        if seen.policy is None:
            return Section("budget", heading, [])
        line = "No round of this run has trained with noise, so nothing was charged."
        if seen.policy.policy.dp.required:
            line = f"Nothing is charged in this run yet. The policy requires noise, ε at most {limit:g}."
        elif seen.own:
            line += " Without noise, sums and later models may reveal something of single rows."
        return Section("budget", heading, [Lines([("none", line)])])
    number, epsilon = spent[-1]
    facts = [("ε spent", f"{bound_text(epsilon)} with round {number}, over all rounds and runs of the ledger")]
    lines: list[Line] = []
    if limit is not None:
        share = epsilon / limit
        facts.append(("limit", f"ε at most {limit:g}, as the policy says now"))
        facts.append(("left", f"{left_text(limit - epsilon)}, {max(0.0, 100 * (1 - share)):.0f} % of the limit"))
        if epsilon > limit:
            lines.append(("failed", "More is spent than the policy allows now: nothing trains on these rows."))
    if seen.log is not None and seen.log.tables.epsilons:
        charge = seen.log.tables.epsilons[-1]
        dp = charge.spent
        facts.append(("δ", dp.delta))
        facts.append(("accountant", dp.accountant))
        steps = "one sum over all rows" if dp.is_of_all_rows else counted(dp.steps, "step")
        noise = f"noise multiplier {dp.noise_multiplier}"
        facts.append(("last charge", f"{steps}, {noise}, {time_text(charge.time)} UTC"))
    note = "As the last charge says. securefda budget show recomputes it from the ledger, resets included."
    return Section("budget", heading, [*([Lines(lines)] if lines else []), Facts(facts)], note)


def _charts(seen: Seen) -> list[Chart]:
    done, charts = _finished(seen.own), []
    if spent := _spent(seen):
        limit = _limit(seen.policy)
        across = [("limit", limit)] if limit is not None else []
        caption = "ε with each round, and the limit of the policy."
        charts.append(Chart("ε spent", caption, [Series("ε spent", spent)], limits=across))
    if betas := [(number, beta) for number, line in done.items() if (beta := line.get("beta")) is not None]:
        caption = "This site's weight of its own update against the target's. It stays here."
        charts.append(Chart("β", caption, [Series("β", betas)]))
    if aparts := [(number, one) for number, line in done.items() if (one := line.get("apart_from_target")) is not None]:
        caption = (
            "Of the step before each round, the least share that is not the target's own: how far the model moved off "
            "the line of the target's update, which this site was sent. The sources' share is this much or more."
        )
        charts.append(Chart("Steps off the target's own line", caption, [Series("share", aparts)], percent=True))
    if losses := [(number, loss) for number, line in done.items() if (loss := line.get("loss")) is not None]:
        caption = "Mean over the rows trained on in the round. It stays here, but for its part in a sum"
        if any(line.get("level") == "individual" for line in done.values()):
            caption += "; at individual it leaves in clear if metadata.may-leave lists it"
        charts.append(Chart("Training loss", f"{caption}.", [Series("loss", losses)]))
    return [chart for chart in charts if chart.has_shape]


def _rounds(own: Sequence[SiteLine]) -> Section:
    rows = [_row(line) for line in reversed(own[-MOST_ROWS:])]
    head = ("round", "visibility", "rule", "β", "rows", "loss", "ε", "remarks")
    parts = [Table(head, rows, numbers={0, 3, 4, 5, 6}, broad={7})] if rows else []
    before = len(own) - len(rows)
    note = f"The last {len(rows)}; {before} before them." if before > 0 else ""
    return Section("rounds", "Rounds", parts, note)


def _row(line: SiteLine) -> tuple[str, ...]:
    remarks = []
    if refused := line.get("refused"):
        remarks.append(_refusal(refused))
    if line.get("attempt", 1) > 1:
        remarks.append(f"attempt {line['attempt']}")
    for key, words in (("capped", "capped"), ("zeroed", "set to zero")):
        if (layers := line.get(key)) and isinstance(layers, int):
            remarks.append(f"{counted(layers, 'layer')} {words}")
    if clipped := line.get("clipped"):
        remarks.append(f"{counted(clipped, 'coordinate')} clipped")
    return (
        str(line["round"]),
        line.get("level", "–"),
        line.get("rule", "–"),
        number_cell(line.get("beta"), 2),
        f"{line['samples']:,}" if "samples" in line else "–",
        number_cell(line.get("loss"), 3),
        bound_text(line["epsilon"]) if line.get("epsilon") is not None else "–",
        ", ".join(remarks),
    )


def _refusal(refused: Mapping[str, str]) -> str:
    key, asked, allowed = (refused.get(name, "?") for name in ("key", "asked", "allowed"))
    return f"refused by {key}: asked {asked}, allowed {allowed}"


def _alarms(seen: Seen) -> Section:
    lines = incident_lines(seen.log.tables.incidents) if seen.log is not None else []
    if seen.log is None:
        refused = [line for line in seen.own if "refused" in line]
        lines = [("care", f"Round {line['round']}: {_refusal(line['refused'])}") for line in refused[-MOST_ROWS:]]
    elif not lines:
        lines = [("done", "None: no check failed, and this site refused no round.")]
    return Section("alarms", "Alarms and refusals", [Lines(lines)] if lines else [])


def _policy(seen: Seen) -> Section:
    policy = seen.policy
    if policy is None:
        return Section("policy", "Policy", [])
    lines: list[Line] = [("none", policy.words.summary)]
    lines.append(("failed", policy.signature) if policy.signature else ("done", f"Signed by {seen.place.site}."))
    milestones = seen.log.tables.milestones if seen.log is not None else ()
    loaded = [dict(mark.detail)["policy"] for mark in milestones if mark.kind == "policy-loaded"]
    if loaded and loaded[-1] != policy.digest:
        lines.append(("failed", "The process runs with another policy than this one: it was changed after the start."))
    keys = ("learns", "hidden", "noise", "pays", "keeps", "agreed", "rests")
    folds = [
        Fold(key, heading, [Lines([("", sentence) for sentence in sentences])])
        for key, (heading, sentences) in zip(keys, policy.words.parts(), strict=True)
    ]
    return Section("policy", "Policy in words", [Lines(lines), *folds])
