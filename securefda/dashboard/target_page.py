"""The page of a target: rounds, accuracy and loss, β, the sources, phases and their times, alarms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any, Final

from securefda.audit.report.words import time_text
from securefda.dashboard.process_state import describe_process
from securefda.dashboard.shared_parts import incident_lines, log_facts, problem_section, start_hint
from securefda.dashboard.site_reader import Seen
from securefda.operations.records import (
    REPORTED_ROUNDS,
    RoundLine,
    best_round,
    chosen_metric,
    round_seconds,
    validation_rank,
)
from securefda.operations.report import (
    finished,
    hidden_note,
    metric_points,
    points_of,
    result_section,
    rounds_table,
    run_charts,
    run_facts,
    seen_section,
    settings_section,
    share_cell,
)
from securefda.operations.run_folder import REPORT_FILE
from securefda.operations.state import ENDED
from securefda.pages.parts import Charts, Facts, Line, Lines, Page, Section, State, Table, Tiles
from securefda.task_metric import TaskMetric
from securefda.text import bound_text, counted, duration, human_bytes, names, phase_words

MOST_ROWS: Final = 50
_MOST_SOURCES: Final = 64
_BASELINES: Final = "If the target trains alone after the last round, to compare, what it reaches is drawn across."


def target_page(seen: Seen) -> Page:
    """Return the page of a target's run, as far as its files allow."""
    place, rounds, tiles = seen.place, seen.rounds, _tiles(seen)
    charts = run_charts(rounds, seen.sites, seen.summary or {}, _limit(seen))
    before = len(rounds) - MOST_ROWS
    noted = [hidden_note(rounds), "" if seen.summary is not None else _BASELINES]
    facts = [("Run folder", str(place.run)), *run_facts(seen.summary or {}), *log_facts(seen)]
    if (report := place.run / REPORT_FILE).exists():
        facts.append(("Report", str(report)))
    result = [result_section(seen.summary, rounds)] if seen.summary is not None else []
    sections = [
        *result,
        Section("figures", "Figures", [Tiles(tiles)] if tiles else []),
        problem_section(seen.problems),
        _alarms(seen),
        Section(
            "charts", "Over the rounds", [Charts(charts)] if charts else [], " ".join(filter(None, noted)), "Charts"
        ),
        _sources(seen),
        _phases(rounds),
        Section(
            "rounds",
            "Rounds",
            [rounds_table(reversed(rounds[-MOST_ROWS:]))] if rounds else [],
            f"The last {MOST_ROWS}; {before} before them." if before > 0 else "",
            "Rounds",
        ),
        seen_section(finished(rounds)),
        *([settings_section(seen.summary)] if seen.summary is not None else []),
        Section("about", "About this run", [Facts(facts)], short="About"),
    ]
    return Page(place.site or "Run", [f"target · {place.run}"], target_state(seen), sections)


def target_state(seen: Seen) -> State:
    """Return the state of the run."""
    done, planned = finished(seen.rounds), seen.planned
    count = f"{len(done)} of {planned} rounds" if planned else counted(len(done), "round")
    lost = len(seen.rounds) - len(done)
    text = f"{count}{f', {lost} lost' if lost else ''}."
    summary = seen.summary
    if seen.process is not None:
        error = ((summary or {}).get("error") or {}).get("message")
        if summary is None or seen.process.doing != ENDED or seen.process.error not in ("", error):
            return describe_process(seen.process, seen.running, text, seen.late)
    if summary is not None:
        return _ended(summary, text)
    if seen.rounds or seen.log is not None:
        return State("waiting", "No end yet", f"Nothing here says whether a process is at work. {text}")
    text = "No round has begun here yet. This page shows the run as soon as it does."
    return State("none", "Not begun", text, start_hint(seen))


def _ended(summary: Mapping[str, Any], text: str) -> State:
    error = summary.get("error") or {}
    hint = str(error.get("hint") or "")
    match summary.get("status"):
        case "finished":
            return State("done", "Finished", text)
        case "interrupted":
            return State("failed", "Interrupted", text, hint)
        case _:
            return State("failed", "Failed", f"{error.get('message', 'The run ended early.')} {text}", hint)


def _tiles(seen: Seen) -> list[tuple[str, str, str]]:
    rounds = seen.rounds
    if not rounds:
        return []
    last = rounds[-1]
    tiles = [(str(last["round"]), f"round of {seen.planned}" if seen.planned else "last round", last.get("rule", ""))]
    metric = chosen_metric(seen.summary or {}, *rounds)
    if values := metric_points(finished(rounds), metric.name):
        of_last = [value for _, value in values[-REPORTED_ROUNDS:]]
        note = f"mean of the last {len(of_last)}: {metric.text(fmean(of_last))}"
        tiles.append((metric.text(values[-1][1]), f"target {metric.title}", note))
        tiles.append(_best_tile(rounds, values, metric))
    if loss := points_of(rounds, "loss"):
        tiles.append((f"{loss[-1][1]:.3f}", "target loss", ""))
    if beta := points_of(rounds, "mean_beta"):
        tiles.append((f"{beta[-1][1]:.2f}", "mean β", ""))
    if confident := points_of(rounds, "confident_rows"):
        tiles.append((f"{confident[-1][1]:.0f}", "confident rows of the target", "their pseudo-labels count"))
    if "source_share" in last and last.get("survivors"):
        tiles.append((share_cell(last), "the sources' share of the last step", ""))
    expected = _source_ids(seen)
    of = f"of {len(expected)} sources" if expected else "sources"
    tiles.append((str(len(last.get("survivors", []))), f"{of} in the last round", ""))
    if seconds := [round_seconds(line) for line in finished(rounds)]:
        tiles.append((f"{median(seconds):.2f} s", "per round, median", ""))
    if (left := seen.planned - last["round"]) > 0 and seen.running:
        pace = [round_seconds(line) for line in rounds[-REPORTED_ROUNDS:]]
        tiles.append((duration(left * fmean(pace)), "left, estimated", f"{counted(left, 'round')} at the present pace"))
    if spent := points_of(rounds, "target_epsilon"):
        limit = _limit(seen)
        tiles.append((bound_text(spent[-1][1]), "ε spent of the target's rows", f"limit {limit:g}" if limit else ""))
    return tiles


def _best_tile(
    rounds: Sequence[RoundLine], values: Sequence[tuple[int, float]], metric: TaskMetric
) -> tuple[str, str, str]:
    """Return the best round by the validation rows; without any, the one that test rows put first, named as that."""
    best = best_round(rounds)
    if best is not None and (rank := validation_rank(best)):
        return metric.text(metric.rank(rank[0])), f"best {metric.title} on validation rows", f"round {best['round']}"
    number, value = max(values, key=lambda point: metric.rank(point[1]))
    which = "highest" if metric.better == "higher" else "lowest"
    return metric.text(value), f"{which} {metric.title} on test rows", f"round {number}"


def _limit(seen: Seen) -> float | None:
    """Return the budget of the target's rows, if it trains with noise."""
    if seen.process is not None and seen.process.epsilon_limit is not None:
        return seen.process.epsilon_limit
    limit = ((seen.summary or {}).get("target_privacy") or {}).get("limit")
    return float(limit) if isinstance(limit, int | float) else None


def _source_ids(seen: Seen) -> list[str]:
    """Return every source of the roster; without one, every source that a round or a record names."""
    if seen.keys is not None:
        return [site for site, role in seen.keys.roles.items() if role == "source"]
    named: dict[str, None] = dict.fromkeys(seen.sites)
    for line in seen.rounds:
        named |= dict.fromkeys([*line.get("levels", {}), *line.get("survivors", []), *line.get("dropped", [])])
    return list(named)


def _sources(seen: Seen) -> Section:
    sources, rounds = _source_ids(seen), seen.rounds
    last = rounds[-1] if rounds else RoundLine(round=0)
    in_rounds = Counter(site for line in rounds for site in line.get("survivors", []))
    up, down = Counter[str](), Counter[str]()
    for line in rounds:
        up.update(line.get("bytes_up", {}))
        down.update(line.get("bytes_down", {}))
    rows = []
    awaited = seen.process.waiting_for if seen.process is not None and seen.running else ()
    for site in sources[:_MOST_SOURCES]:
        heard = seen.log.heard.get(site, "") if seen.log is not None else ""
        rows.append(
            (
                site,
                "awaited" if site in awaited else "–",
                _part_in(last, site),
                f"{time_text(heard)}" if heard else "not yet" if seen.log is not None else "–",
                last.get("levels", {}).get(site, "–"),
                f"{in_rounds[site]}",
                human_bytes(up[site]),
                human_bytes(down[site]),
            )
        )
    head = ("source", "now", "last round", "last heard (UTC)", "visibility", "rounds", "sent by it", "sent to it")
    more = len(sources) - _MOST_SOURCES
    note = f"And {more} more sources, which metrics.jsonl lists." if more > 0 else ""
    return Section("sources", "Sources", [Table(head, rows, numbers={5, 6, 7})] if rows else [], note, "Sources")


def _part_in(line: RoundLine, site: str) -> str:
    """Describe the part of a source in a round."""
    if site in line.get("refused", {}):
        return f"refused {line['refused'][site]}"
    if site in line.get("dropped", []):
        return "dropped"
    if site in line.get("survivors", []):
        return "counted"
    return "–" if not line["round"] else "not in it"


def _phases(rounds: Sequence[RoundLine]) -> Section:
    done = [line for line in rounds if line.get("seconds")]
    phases = dict.fromkeys(name for line in done for name in line["seconds"])
    middle = {name: median(line["seconds"].get(name, 0.0) for line in done) for name in phases}
    total = sum(middle.values())
    rows = [
        (
            phase_words(name),
            f"{done[-1]['seconds'].get(name, 0.0):.3f}",
            f"{seconds:.3f}",
            f"{100 * seconds / total:.0f} %" if total else "–",
        )
        for name, seconds in middle.items()
    ]
    head = ("phase", "last round, s", "median, s", "share")
    parts = [Table(head, rows, numbers={1, 2, 3})] if rows else []
    return Section("phases", "Phases and their times", parts, "Wall clock at the aggregator.", "Phases")


def _alarms(seen: Seen) -> Section:
    lines: list[Line] = []
    if seen.log is not None:
        lines += incident_lines(seen.log.tables.incidents)
    lost = [line["round"] for line in seen.rounds if line.get("status") == "lost"]
    if lost:
        shown = names([str(number) for number in lost])
        of = "round" if len(lost) == 1 else "rounds"
        lines.append(("failed", f"Lost: {of} {shown}. The model stayed as it was."))
    dropped = Counter(site for line in seen.rounds for site in line.get("dropped", []))
    lines += [("care", f"{site} was dropped in {counted(count, 'round')}") for site, count in dropped.items()]
    if not lines and seen.log is not None:
        lines.append(("done", "None: no check failed, no site refused a round or ended a session."))
    return Section("alarms", "Alarms and refusals", [Lines(lines)] if lines else [], short="Alarms")
