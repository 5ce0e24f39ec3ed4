"""``report.html``: one self-contained page about a run, made from its run folder alone."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from securefda.errors import SecureFdaError
from securefda.operations.records import JOIN_PHASE, REPORTED_ROUNDS, RoundLine, round_seconds
from securefda.operations.run_folder import METRICS_FILE, REPORT_FILE, SUMMARY_FILE, RunRecord, read_run, replace_file
from securefda.operations.summary_text import (
    ALONE,
    WARM,
    absent_sources,
    best_text,
    help_text,
    labels_rows,
    levels_text,
    norm_cap_text,
    percent,
    published_name,
    releases_text,
    setting_rows,
    setting_text,
    silenced_in,
    spent_text,
    verdict,
)
from securefda.text import counted

if TYPE_CHECKING:
    from jinja2 import Environment

_TEMPLATE = "report.html.j2"
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_STATUS = {"finished": "finished", "failed": "ended early", "interrupted": "was interrupted"}
_MOST_GROUPS = 24
_NAMED_SITES = 8
_NEARLY_PARALLEL = 0.9
_PROJECTING = ("fedgp", "fedgp_auto", "auto")
_AUTO = ("fedda_auto", "fedgp_auto", "auto")
_USED_BY = {
    "beta-per-layer": _AUTO,
    "beta": ("fedda", "fedgp"),
    "projection": _PROJECTING,
    "filter": _PROJECTING,
    "estimator": _AUTO,
    "variance": _AUTO,
    "step": ("fedda", "fedgp", *_AUTO),
    "folds": ("fedda", "fedgp", *_AUTO),
    "attention-": ("fada_attention", "fada_adversarial", "fada"),
    "feature-": ("fada_adversarial", "fada", "f_dann", "f_dan"),
    "align": ("fedda", "fedgp", *_AUTO),
    "finetune-": ("finetune_offline",),
    "reptile-": ("personalized_fedavg",),
    "personal-epochs": ("personalized_fedavg", "ditto"),
    "ditto-": ("ditto",),
    "apfl-": ("apfl",),
}
"""Beginning of a strategy's key -> the rules that it means something to; of what is not here, all."""
SHARE_CAPTION = (
    "Length of the sources' part of the step that the model took, over the step's own. Near 0 the sources had no part "
    "in it, whatever the accuracy; above 100 % the target's own part points against theirs."
)
_IN_WORDS = {
    "individual": "its own update, in clear",
    "cohort": "the sum of their updates",
    "sum": "one weighted sum, the rule already applied",
}


@contextmanager
def report_after(folder: Path) -> Iterator[None]:
    """Write the report of ``folder`` when the block ends, with or without an error, if there is a run to report.

    Raises:
        SecureFdaError: the report cannot be written. An error of the block is never hidden by that.
    """
    try:
        yield
    except (SecureFdaError, KeyboardInterrupt):
        with suppress(SecureFdaError):
            write_report(folder)
        raise
    write_report(folder)


def load_charts() -> None:
    """Import the chart library, which takes a second; call it while the process only waits."""
    with suppress(ImportError):
        import jinja2  # noqa: F401

        from securefda.operations import figures  # noqa: F401


def write_report(folder: Path) -> Path | None:
    """Write ``report.html`` into a run folder and return its path; None where there is no run yet.

    Raises:
        ConfigError: a file of the run is damaged.
        SecureFdaError: the disk is full or the folder cannot be written.
    """
    if not any((folder / name).exists() for name in (METRICS_FILE, SUMMARY_FILE)):
        return None
    path = folder / REPORT_FILE
    replace_file(path, render_report(read_run(folder)).encode("utf-8"))
    return path


@cache
def _environment() -> Environment:
    """Return the template environment; it compiles the template once."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("securefda.operations"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def render_report(record: RunRecord) -> str:
    """Return the page. It loads nothing, from no network: its own policy (CSP) forbids it."""
    rounds = list({line["round"]: line for line in record.rounds}.values())
    summary = record.summary or {}
    rule = summary.get("strategy", {}).get("rule") or (rounds[-1].get("rule", "") if rounds else "")
    task = str(summary.get("task", "")).rpartition(":")[2]
    strategy = summary.get("strategy") or {}
    helped = help_text(summary)
    return (
        _environment()
        .get_template(_TEMPLATE)
        .render(
            title=" on ".join(part for part in (rule, task) if part) or "Run",
            ended=_ended(record.summary),
            error=summary.get("error"),
            helped=f"{helped[0].upper()}{helped[1:]}." if helped else "",
            verdict=verdict(summary) if summary.get("visibility") else (),
            facts=_facts(summary),
            unused=[(key, setting_text(value)) for key, value in strategy.items() if not is_used(key, strategy)],
            tiles=_tiles(summary, rounds),
            charts=[*run_charts(record, rounds), *level_charts(rounds)] if rounds else [],
            seen=seen_rows(rounds),
            rows=[_row(line) for line in rounds],
        )
    )


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart of the page: heading, description in words, and SVG."""

    heading: str
    caption: str
    svg: str


def level_charts(rounds: Sequence[RoundLine]) -> list[Chart]:
    """Return charts of training at the sources, g_T, estimated errors and the target's privacy, if the rounds have
    them.
    """
    from securefda.operations.figures import lines_figure

    charts = []
    trained: dict[str, list[tuple[int, float]]] = {}
    errors: dict[str, list[tuple[int, float]]] = {}
    for line in rounds:
        summed = [seen for seen in line.get("seen", []) if seen["level"] != "individual"]
        by_figure = {
            "loss": [(seen["rows"], loss) for seen in summed if (loss := seen.get("loss")) is not None],
            "accuracy": [(seen["rows"], share) for seen in summed if (share := seen.get("accuracy")) is not None],
        }
        for figure, values in by_figure.items():
            if total := sum(rows for rows, _ in values):
                mean = sum(rows * value for rows, value in values) / total
                trained.setdefault(figure, []).append((line["round"], mean))
        for rule, error in line.get("delta_errors", {}).items():
            if error is None:  # not finite
                continue
            errors.setdefault(rule, []).append((line["round"], error))
    if trained:
        caption = (
            "Shown as sums: mean over the training rows of all sources under masks, summed inside the masked vector. "
            "No source's own figure reached the aggregator."
        )
        svg = lines_figure(trained, "loss, accuracy", "trained")
        charts.append(Chart("Training at the sources", caption, svg))
    if cosines := [(line["round"], cosine) for line in rounds if (cosine := line.get("target_cosine")) is not None]:
        lowest = min(value for _, value in cosines)
        limits = (-0.03 if lowest >= 0 else -1.03, 1.03)  # a line that is nearly 1 all along shall look like it
        svg = lines_figure({"cosine": cosines}, "cosine", "cosine", limits=limits)
        charts.append(Chart("The target's update and the published change of the model", cosine_sentence(rounds), svg))
    shares = [(line["round"], share) for line in rounds if (share := line.get("source_share")) is not None]
    if any(line.get("survivors") for line in rounds) and shares:
        svg = lines_figure({"sources": [(number, 100 * share) for number, share in shares]}, "% of the step", "share")
        charts.append(Chart("The sources' share of each step", SHARE_CAPTION, svg))
    if counted := [(line["round"], line["confident_rows"]) for line in rounds if "confident_rows" in line]:
        caption = (
            "Rows of the target whose pseudo-label counted: the model that the round began with was sure enough of it. "
            "A round with too few went on with the warm-up. No source gets these numbers; each sees from the rule of a "
            "round whether they were too few."
        )
        svg = lines_figure({"confident rows": counted}, "rows", "confident")
        charts.append(Chart("Confident rows of the target", caption, svg))
    if errors:
        used = Counter(line.get("rule", "") for line in rounds if line.get("status") == "finished")
        counts = ", ".join(f"{rule} in {count}" for rule, count in used.most_common())
        caption = f"The rule with the smallest one is that of the next round. Rounds: {counts}."
        svg = lines_figure(errors, "squared error", "errors", logarithmic=True)
        charts.append(Chart("Estimated errors", caption, svg))
    spent = [(line["round"], line["target_epsilon"]) for line in rounds if line.get("target_epsilon") is not None]
    if spent:
        caption = (
            "Of one row of the target, added or removed, over all rounds and runs that its ledger knows. A source's "
            "own epsilon is known to that source alone: securefda budget show."
        )
        svg = lines_figure({"epsilon": spent}, "epsilon", "epsilon")
        charts.append(Chart("Privacy that the target has spent", caption, svg))
    return charts


def seen_rows(rounds: Sequence[RoundLine]) -> list[dict[str, str]]:
    """Return a row for each set of sources of which the aggregator saw something: what, in which rounds, of how many
    rows.

    Cohorts of other members are other sets; beyond two dozen sets, the last row counts the rest.
    """
    groups: dict[tuple[str, tuple[str, ...]], list[tuple[int, int]]] = {}
    for line in rounds:
        for seen in line.get("seen", []):
            groups.setdefault((seen["level"], tuple(seen["members"])), []).append((line["round"], seen["rows"]))
    rows = [
        {
            "level": level,
            "members": listed(members, _NAMED_SITES),
            "what": _IN_WORDS.get(level, ""),
            "rounds": _ranges([number for number, _ in found]),
            "rows": f"{round(median(count for _, count in found)):,}",
        }
        for (level, members), found in list(groups.items())[:_MOST_GROUPS]
    ]
    if len(groups) > _MOST_GROUPS:
        more = f"and {len(groups) - _MOST_GROUPS} other sets, listed in metrics.jsonl"
        rows.append({"level": "", "members": more, "what": "", "rounds": "", "rows": ""})
    return rows


def listed(names: Sequence[str], most: int) -> str:
    """Join names with commas; of many, show the first ones and the total."""
    return ", ".join(names) if len(names) <= most else f"{', '.join(names[:3])} and others, {len(names)} in all"


def cosine_sentence(rounds: Sequence[RoundLine]) -> str:
    """Explain the cosine of the target's update and the published change of the model; empty if no round has one."""
    values = [cosine for line in rounds if (cosine := line.get("target_cosine")) is not None]
    if not values:
        return ""
    was_sent = any(line.get("target_update_to") for line in rounds)
    who = (
        "Sources at sum saw the target's update, and everybody"
        if was_sent
        else "The update stayed at the target; everybody"
    )
    middle = median(values)
    seen = (
        f"{who} sees how the model changes: nearly parallel to it (median cosine {middle:.2f}), so hiding the "
        "update would not hide what it tells of the target's rows."
        if middle >= _NEARLY_PARALLEL
        else f"{who} sees how the model changes: with a median cosine of {middle:.2f} that shows a part of the update."
    )
    if any("target_epsilon" in line for line in rounds):
        return f"{seen} The target trained with noise, which bounds what either tells of one of its rows."
    return f"{seen} Neither carries noise, and only noise at the target would bound what they tell of its rows."


def _ranges(numbers: Sequence[int]) -> str:
    """Return ``1-4, 7`` for 1, 2, 3, 4, 7; many separate ranges are only counted."""
    ordered = sorted(set(numbers))
    starts = [ordered[0], *(after for before, after in pairwise(ordered) if after != before + 1)]
    ends = [*(before for before, after in pairwise(ordered) if after != before + 1), ordered[-1]]
    if len(starts) > 4:
        return f"{len(ordered)} rounds"
    return ", ".join(f"{start}–{end}" if end > start else f"{start}" for start, end in zip(starts, ends, strict=True))


def human_bytes(count: float) -> str:
    """Return a number of bytes with a binary unit, for example ``1.5 MiB``."""
    scale, unit = _unit(count)
    return f"{count / scale:.1f} {unit}" if scale > 1 else f"{count:.0f} B"


def _unit(count: float) -> tuple[int, str]:
    power = 0
    while count >= 1024 ** (power + 1) and power + 1 < len(_UNITS):
        power += 1
    return 1024**power, _UNITS[power]


def _ended(summary: Mapping[str, Any] | None) -> str:
    if summary is None:
        return "This run has not ended, or it was killed; the page shows the rounds so far."
    done, planned, lost = (summary.get(key, 0) for key in ("rounds", "rounds_planned", "rounds_lost"))
    text = f"The run {_STATUS.get(summary.get('status', ''), 'ended')}: {done} of {counted(planned, 'round')}"
    return f"{text}, {lost} lost." if lost else f"{text}."


def _facts(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return all other facts that identify the run."""
    asked = summary.get("strategy") or {}
    strategy = [f"{key} = {setting_text(value)}" for key, value in asked.items() if is_used(key, asked)]
    releases, rules = summary.get("target_releases"), summary.get("rounds_by_rule") or {}
    versions = [f"{name} {version}" for name, version in (summary.get("versions") or {}).items()]
    refused = (summary.get("refusals") or {}).items()
    refusals = [f"{site}: {key} ({count})" for site, keys in refused for key, count in keys.items()]
    dropped = [f"{site} ({count})" for site, count in (summary.get("dropped") or {}).items()]
    facts = [
        ("Ended", str(summary.get("ended", "")).replace("T", " ").replace("Z", " UTC")),
        *((name[0].upper() + name[1:], text) for name, text in _about_the_target(summary)),
        ("Task", str(summary.get("task", ""))),
        ("Strategy", ", ".join(strategy)),
        ("Rounds by rule", ", ".join(f"{rule}: {count}" for rule, count in rules.items())),
        ("Took no part", ", ".join(absent_sources(summary.get("visibility") or {}, summary.get("setting") or {}))),
        ("Visibility", levels_text(summary.get("visibility") or {})),
        ("Norm cap", norm_cap_text(summary["norm_cap"]) if summary.get("norm_cap") else ""),
        ("Sources left out", silenced_in(summary)),
        (f"{published_name(rules).capitalize()} sent to sources", releases_text(releases) if releases else ""),
        ("Target's privacy", spent_text(privacy) if (privacy := summary.get("target_privacy")) else ""),
        ("Refused (rounds)", ", ".join(refusals)),
        ("Dropped (rounds)", ", ".join(dropped)),
        ("Best model", best_text(summary["best"]) if summary.get("best") else ""),
        ("Run", str(summary.get("run_id", ""))),
        ("Model digest (SHA-256)", str(summary.get("model_digest", ""))),
        ("Versions", ", ".join(versions)),
    ]
    return [(name, value) for name, value in facts if value]


def _about_the_target(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    setting = summary.get("setting") or {}
    labels = labels_rows(setting, measured=summary.get("target_accuracy") is not None)
    return [*setting_rows(setting), *labels]


def is_used(key: str, strategy: Mapping[str, Any]) -> bool:
    """Return whether a strategy's key has any effect under its own rule and server optimiser."""
    rule = str(strategy.get("rule", ""))
    if key.startswith("server-") and key != "server-optimizer":
        return bool(strategy.get("server-optimizer", "none") != "none")
    if key.startswith("knn-"):
        return rule == "knn_per" or strategy.get("head") == "knn"
    rules = next((rules for start, rules in _USED_BY.items() if key.startswith(start)), None)
    return rules is None or rule in rules


def _tiles(summary: Mapping[str, Any], rounds: Sequence[RoundLine]) -> list[tuple[str, str]]:
    seconds = [round_seconds(line) for line in rounds]
    sent = [sum(line.get("bytes_up", {}).values()) + sum(line.get("bytes_down", {}).values()) for line in rounds]
    tiles = []
    if summary.get("target_accuracy") is not None:
        last = counted(min(REPORTED_ROUNDS, len(_accuracies(rounds))), "round")
        tiles.append((percent(summary["target_accuracy"]), f"target accuracy, mean of the last {last}"))
    if _accuracies(rounds):
        tiles.append((percent(_accuracies(rounds)[-1][1]), "accuracy after the last round"))
    if alone := summary.get("target_only"):
        tiles.append((percent(alone["accuracy"]), "the target alone, mean of its last rounds"))
    if warm := summary.get("warm_target"):
        tiles.append((percent(warm["accuracy"]), "the target alone from the model after warm-up"))
    if (share := summary.get("source_share")) is not None:
        tiles.append((f"{100 * share:.0f} %", "the sources' share of the steps after warm-up"))
    if any(seconds):
        tiles.append((f"{sorted(seconds)[len(seconds) // 2]:.2f} s", "per round, median"))
    if any(sent):
        tiles.append((human_bytes(sum(sent)), "between the sources and the aggregator"))
    return tiles


def _accuracies(rounds: Sequence[RoundLine]) -> list[tuple[int, float]]:
    """Return the accuracy of the finished rounds, without values that were not finite and written as null."""
    return [
        (line["round"], line["accuracy"])
        for line in rounds
        if line.get("status") != "lost" and line.get("accuracy") is not None
    ]


def run_charts(record: RunRecord, rounds: Sequence[RoundLine]) -> list[Chart]:
    """Return charts of accuracy, β, seconds and bytes over the rounds, if the rounds have them."""
    from securefda.operations.figures import accuracy_figure, bytes_figure, seconds_figure

    charts = []
    if points := _accuracies(rounds):
        own = any("evaluated" in line for line in rounds)
        model = " The model is one of the target's own, not the common one." if own else ""
        marked = counted(min(REPORTED_ROUNDS, len(points)), "round")
        caption = f"On the target's test split; dots mark the last {marked}.{model}"
        baselines = {
            f"{name}, mean of its last rounds": found["accuracy"]
            for key, name in (("target_only", ALONE), ("warm_target", WARM))
            if (found := (record.summary or {}).get(key))
        }
        charts.append(Chart("Target accuracy", caption, accuracy_figure(points, REPORTED_ROUNDS, baselines)))
    if beta := beta_chart(record, rounds):
        charts.append(beta)
    names = dict.fromkeys(phase for line in rounds for phase in line.get("seconds", {}) if phase != JOIN_PHASE)
    phases = {name: [line.get("seconds", {}).get(name, 0.0) for line in rounds] for name in names}
    phases = {name: seconds for name, seconds in phases.items() if any(seconds)}
    if phases:
        figure = seconds_figure([line["round"] for line in rounds], phases)
        charts.append(
            Chart("Seconds by phase", "Wall clock at the aggregator, without the wait for sites to join.", figure)
        )
    up = _total(line.get("bytes_up", {}) for line in rounds)
    down = _total(line.get("bytes_down", {}) for line in rounds)
    if sites := sorted({*up, *down}, key=_natural):
        ups, downs = ([counts[site] for site in sites] for counts in (up, down))
        scale, unit = _unit(max(*ups, *downs))
        figure = bytes_figure(sites, [count / scale for count in ups], [count / scale for count in downs], unit)
        charts.append(Chart("Bytes per source", "Over the whole run, as the aggregator counted them.", figure))
    return charts


def beta_chart(record: RunRecord, rounds: Sequence[RoundLine]) -> Chart | None:
    """Draw the weights β: of each source if its records are in the run folder, else their mean; None without any."""
    from securefda.operations.figures import beta_figure

    own = {
        site: [(line["round"], beta) for line in lines if (beta := line.get("beta")) is not None]
        for site, lines in sorted(record.sites.items(), key=lambda item: _natural(item[0]))
    }
    own = {site: points for site, points in own.items() if points}
    if own:
        caption = "Each source's own weight β against the target, from the sources' own records."
        return Chart("β per source", caption, beta_figure(own))
    mean = [(line["round"], beta) for line in rounds if (beta := line.get("mean_beta")) is not None]
    if not mean:
        return None
    caption = "Mean by samples; the β of single sources are not known here."
    if any("cohort" in line.get("levels", {}).values() for line in rounds):
        caption = "Mean by samples, over the cohorts: the rule was evaluated on the mean of each."
    return Chart("Mean β", caption, beta_figure({"mean": mean}))


def _total(counts: Iterable[Mapping[str, int]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for count in counts:
        total.update(count)
    return total


def _natural(site: str) -> list[tuple[int, str]]:
    """Return a sort key that puts source-2 before source-10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", site)]


def _row(line: RoundLine) -> dict[str, str]:
    """Return a line of the table of rounds, as text."""
    lost = line.get("status") == "lost"
    remarks = ["lost"] if lost else []
    if line.get("attempts", 1) > 1:
        remarks.append(f"{line['attempts']} attempts")
    if cohorts := [seen["members"] for seen in line.get("seen", []) if seen["level"] == "cohort"]:
        *first, last = (str(len(members)) for members in cohorts)
        remarks.append(f"cohorts of {', '.join(first)} and {last}" if first else f"cohorts of {last}")
    if (share := line.get("step_share")) is not None:
        remarks.append(f"{share:g} of the rule's update")
    if line.get("chosen") == "warm_target":
        remarks.append("the target keeps its own model, better on its folds")
    if emptied := line.get("emptied"):
        remarks.append(f"norm caps left sources out of {listed(emptied, 3)}")
    remarks.extend(f"{site} dropped" for site in line.get("dropped", []))
    remarks.extend(f"{site} refused {key}" for site, key in line.get("refused", {}).items())
    return {
        "round": str(line["round"]),
        "rule": line.get("rule", ""),
        "accuracy": "–" if lost else percent(line.get("accuracy")),
        "loss": _number(line.get("loss"), 3),
        "beta": _number(line.get("mean_beta"), 2),
        "sources": str(len(line.get("survivors", []))),
        "share": share_cell(line),
        "seconds": f"{round_seconds(line):.2f}",
        "remarks": ", ".join(remarks),
    }


def share_cell(line: RoundLine) -> str:
    """Return the sources' share of a round's step, for a table; a dash where no source took part."""
    share = line.get("source_share")
    return "–" if share is None or not line.get("survivors") else f"{100 * share:.0f} %"


def _number(value: float | None, places: int) -> str:
    return "–" if value is None else f"{value:.{places}f}"
