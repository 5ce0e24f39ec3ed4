"""The page of a target: rounds, accuracy and loss, β, the sources, phases and their times, alarms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, Final

from securefda.audit.report.words import time_text
from securefda.dashboard.parts import (
    Chart,
    Charts,
    Facts,
    Lines,
    Page,
    Part,
    Section,
    Series,
    State,
    Table,
    Tiles,
    Tone,
)
from securefda.dashboard.process_state import describe_process
from securefda.dashboard.reading import Seen
from securefda.dashboard.words import incident_lines, log_facts, problem_section
from securefda.dashboard.words import spent_text as up
from securefda.operations.records import REPORTED_ROUNDS, RoundLine
from securefda.operations.report import SHARE_CAPTION, human_bytes, is_used, seen_rows, share_cell
from securefda.operations.run_folder import REPORT_FILE
from securefda.operations.state import ENDED
from securefda.operations.summary_text import (
    ALONE,
    WARM,
    difference_text,
    labels_rows,
    percent,
    points,
    setting_text,
    spent_text,
)
from securefda.text import counted, names, phase_words

MOST_ROWS: Final = 50
_MOST_SOURCES: Final = 64


def target_page(seen: Seen) -> Page:
    """Return the page of a target's run, as far as its files allow."""
    place = seen.place
    sections = [
        Section("figures", "Figures", [Tiles(tiles)] if (tiles := _tiles(seen)) else []),
        problem_section(seen.problems),
        _alarms(seen),
        Section("charts", "Over the rounds", [Charts(charts)] if (charts := _charts(seen)) else []),
        _sources(seen),
        _phases(seen.rounds),
        _rounds(seen.rounds),
        _seen(seen.rounds),
        Section("about", "About this run", [Facts(_facts(seen))]),
    ]
    return Page(
        place.site or "Run", f"target · {place.run}", target_state(seen), [one for one in sections if one.parts]
    )


def target_state(seen: Seen) -> State:
    """Return the state of the run."""
    done, planned = _finished(seen.rounds), seen.planned
    count = f"{len(done)} of {planned} rounds" if planned else f"{len(done)} {'round' if len(done) == 1 else 'rounds'}"
    lost = len(seen.rounds) - len(done)
    text = f"{count}{f', {lost} lost' if lost else ''}."
    summary = seen.summary
    if seen.process is not None:
        ended_well = seen.process.doing == ENDED and not seen.process.error
        state = describe_process(seen.process, seen.running, text)
        if summary is None or seen.process.doing != ENDED:
            return state
        same_error = (summary.get("error") or {}).get("message") == seen.process.error
        if not (ended_well or same_error):
            return state
        return _ended(summary, text)
    return _state_without_process(seen, text)


def _state_without_process(seen: Seen, text: str) -> State:
    """Return the state of a run whose process left no state file here: a simulated run, or a copy."""
    if seen.summary is not None:
        return _ended(seen.summary, text)
    if seen.rounds or seen.log is not None:
        return State("waiting", "No end yet", f"Nothing here says whether a process is at work. {text}")
    return State("none", "Not begun", "No round has begun here yet. This page shows the run as soon as it does.")


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


def _finished(rounds: Sequence[RoundLine]) -> list[RoundLine]:
    return [line for line in rounds if line.get("status") != "lost"]


def _points(rounds: Sequence[RoundLine], key: str) -> list[tuple[int, float]]:
    """Return a value over the finished rounds, without those that were not finite and written as null."""
    found = ((line["round"], line.get(key)) for line in _finished(rounds))
    return [(number, float(value)) for number, value in found if isinstance(value, int | float)]


def _tiles(seen: Seen) -> list[tuple[str, str, str]]:
    rounds = seen.rounds
    if not rounds:
        return []
    last = rounds[-1]
    tiles = [(str(last["round"]), f"round of {seen.planned}" if seen.planned else "last round", last.get("rule", ""))]
    if accuracy := _points(rounds, "accuracy"):
        mean = sum(value for _, value in accuracy[-REPORTED_ROUNDS:]) / len(accuracy[-REPORTED_ROUNDS:])
        best = max(accuracy, key=lambda point: point[1])
        note = f"mean of the last {len(accuracy[-REPORTED_ROUNDS:])}: {percent(mean)}"
        tiles.append((percent(accuracy[-1][1]), "target accuracy", note))
        tiles.append((percent(best[1]), "best accuracy", f"round {best[0]}"))
    if loss := _points(rounds, "loss"):
        tiles.append((f"{loss[-1][1]:.3f}", "target loss", ""))
    if beta := _points(rounds, "mean_beta"):
        tiles.append((f"{beta[-1][1]:.2f}", "mean β", ""))
    if confident := _points(rounds, "confident_rows"):
        tiles.append((f"{confident[-1][1]:.0f}", "confident rows of the target", "their pseudo-labels count"))
    if "source_share" in last and last.get("survivors"):
        tiles.append((share_cell(last), "the sources' share of the last step", ""))
    for name, words in (("warm_target", WARM), ("target_only", ALONE)):
        if found := ((seen.summary or {}).get(name) or {}).get("help"):
            tiles.append((points(found["difference"]), f"points over the {words}", difference_text(found, words)))
    expected = _source_ids(seen)
    of = f"of {len(expected)} sources" if expected else "sources"
    tiles.append((str(len(last.get("survivors", []))), f"{of} in the last round", ""))
    if seconds := [sum(filter(None, line.get("seconds", {}).values())) for line in _finished(rounds)]:
        tiles.append((f"{median(seconds):.2f} s", "per round, median", ""))
    if spent := _points(rounds, "target_epsilon"):
        limit = _limit(seen)
        tiles.append((up(spent[-1][1]), "ε spent of the target's rows", f"limit {limit:g}" if limit else ""))
    return tiles


def _charts(seen: Seen) -> list[Chart]:
    rounds = seen.rounds
    charts = []
    if accuracy := _points(rounds, "accuracy"):
        own = " The model is one of the target's own." if any("evaluated" in line for line in rounds) else ""
        caption = f"On the target's test rows.{own}"
        charts.append(Chart("Target accuracy", caption, [Series("accuracy", accuracy)], percent=True))
    if loss := _points(rounds, "loss"):
        charts.append(Chart("Target loss", "Mean over the target's test rows.", [Series("loss", loss)]))
    if betas := _betas(seen):
        caption = "Each source's own β, from the sources' own records, which lie in this run folder."
        charts.append(Chart("β per source", caption, betas))
    elif mean := _points(rounds, "mean_beta"):
        caption = "Mean by rows. The β of a single source stays at that source."
        charts.append(Chart("Mean β", caption, [Series("mean β", mean)]))
    if share := _points(rounds, "source_share"):
        shares = [Series("sources' share", share)]
        charts.append(Chart("The sources' share of each step", SHARE_CAPTION, shares, percent=True))
    if spent := _points(rounds, "target_epsilon"):
        limit = _limit(seen)
        caption = "What the target's rows have cost, over all rounds and runs that their ledger knows."
        line = ("limit", limit) if limit else None
        charts.append(Chart("ε of the target's rows", caption, [Series("ε spent", spent)], limit=line))
    return charts


def _limit(seen: Seen) -> float | None:
    """Return the budget of the target's rows, if it trains with noise."""
    if seen.process is not None and seen.process.epsilon_limit is not None:
        return seen.process.epsilon_limit
    limit = ((seen.summary or {}).get("target_privacy") or {}).get("limit")
    return float(limit) if isinstance(limit, int | float) else None


def _betas(seen: Seen) -> list[Series]:
    found = []
    for site, lines in seen.sites.items():
        points = {line["round"]: beta for line in lines if (beta := line.get("beta")) is not None}
        if points:
            found.append(Series(site, sorted(points.items())))
    return found


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
    up = Counter[str]()
    down = Counter[str]()
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
    head = ("source", "now", "last round", "last heard (UTC)", "visibility", "rounds", "received", "sent")
    more = len(sources) - _MOST_SOURCES
    note = f"And {more} more sources, which metrics.jsonl lists." if more > 0 else ""
    table = Table("Sources", head, rows, frozenset({5, 6, 7}))
    return Section("sources", "Sources", [table] if rows else [], note)


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
    parts = [Table("Phases", head, rows, frozenset({1, 2, 3}))] if rows else []
    return Section("phases", "Phases and their times", parts, "Wall clock at the aggregator.")


def _rounds(rounds: Sequence[RoundLine]) -> Section:
    rows = [
        (
            str(line["round"]),
            line.get("rule", ""),
            "lost" if line.get("status") == "lost" else percent(line.get("accuracy")),
            _number(line.get("loss"), 3),
            _number(line.get("mean_beta"), 2),
            str(len(line.get("survivors", []))),
            share_cell(line),
            f"{sum(line.get('seconds', {}).values()):.2f}",
            _remarks(line),
        )
        for line in reversed(rounds[-MOST_ROWS:])
    ]
    head = ("round", "rule", "accuracy", "loss", "mean β", "sources", "their share", "seconds", "remarks")
    parts = [Table("Rounds", head, rows, frozenset({0, 2, 3, 4, 5, 6, 7}))] if rows else []
    before = len(rounds) - len(rows)
    return Section("rounds", "Rounds", parts, f"The last {len(rows)}; {before} before them." if before > 0 else "")


def _remarks(line: RoundLine) -> str:
    remarks = [f"{line['attempts']} attempts"] if line.get("attempts", 1) > 1 else []
    if dropped := line.get("dropped"):
        remarks.append(f"dropped {names(dropped)}")
    remarks += [f"{site} refused {key}" for site, key in line.get("refused", {}).items()]
    if emptied := line.get("emptied"):
        remarks.append(f"norm caps left sources out of {counted(len(emptied), 'layer')}")
    return ", ".join(remarks)


def _number(value: float | None, places: int) -> str:
    return "–" if value is None else f"{value:.{places}f}"


def _seen(rounds: Sequence[RoundLine]) -> Section:
    """Return the section on what the aggregator saw, as in the run's report."""
    rows = [
        (row["members"], row["level"], row["what"], row["rounds"], row["rows"]) for row in seen_rows(_finished(rounds))
    ]
    head = ("of whom", "visibility", "what", "rounds", "rows")
    parts = [Table("What the aggregator saw", head, rows, frozenset({4}))] if rows else []
    return Section("seen", "What the aggregator saw", parts)


def _alarms(seen: Seen) -> Section:
    lines: list[tuple[Tone, str]] = []
    if seen.log is not None:
        lines += incident_lines(seen.log.tables.incidents)
    lost = [line["round"] for line in seen.rounds if line.get("status") == "lost"]
    if lost:
        shown = names([str(number) for number in lost])
        lines.append(
            ("failed", f"Lost: {'round' if len(lost) == 1 else 'rounds'} {shown}. The model stayed as it was.")
        )
    dropped = Counter(site for line in seen.rounds for site in line.get("dropped", []))
    lines += [
        ("waiting", f"{site} was dropped in {count} {'round' if count == 1 else 'rounds'}")
        for site, count in dropped.items()
    ]
    if not lines and seen.log is not None:
        lines.append(("done", "None: no check failed, no site refused a round or ended a session."))
    parts: list[Part] = [Lines(lines)] if lines else []
    return Section("alarms", "Alarms and refusals", parts)


def _facts(seen: Seen) -> list[tuple[str, str]]:
    summary = seen.summary or {}
    facts = [("Run folder", str(seen.place.run))]
    if summary.get("run_id"):
        facts.append(("Run", str(summary["run_id"])))
    if summary.get("task"):
        facts.append(("Task", str(summary["task"])))
    if strategy := summary.get("strategy"):
        used = (f"{key} = {setting_text(value)}" for key, value in strategy.items() if is_used(key, strategy))
        facts.append(("Strategy", ", ".join(used)))
    measured = summary.get("target_accuracy") is not None
    facts += [("Target's labels", text) for _, text in labels_rows(summary.get("setting") or {}, measured=measured)]
    if privacy := summary.get("target_privacy"):
        facts.append(("Target's privacy", spent_text(privacy)))
    facts += log_facts(seen)
    if (seen.place.run / REPORT_FILE).exists():
        facts.append(("Report", str(seen.place.run / REPORT_FILE)))
    return facts
