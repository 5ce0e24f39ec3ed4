"""``report.html``: one self-contained page about a run, made from its run folder alone."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from securefda.errors import SecureFdaError
from securefda.operations.model_card import write_card
from securefda.operations.records import (
    JOIN_PHASE,
    REPORTED_ROUNDS,
    RoundLine,
    SiteLine,
    chosen_metric,
    mean_metrics,
    metrics_in,
    round_seconds,
    total_of,
)
from securefda.operations.run_folder import METRICS_FILE, REPORT_FILE, SUMMARY_FILE, RunRecord, read_run, replace_file
from securefda.operations.summary_text import (
    ALONE,
    ANALYTIC,
    BASELINES,
    WARM,
    adapted_text,
    best_text,
    help_text,
    interval_text,
    labels_rows,
    levels_in,
    norm_cap_in,
    published_name,
    releases_text,
    setting_rows,
    shared_in,
    silenced_in,
    spent_text,
    undefined_text,
    verdict,
)
from securefda.pages.html import static_page
from securefda.pages.parts import (
    Chart,
    Charts,
    Facts,
    Fold,
    Line,
    Lines,
    Page,
    Part,
    Section,
    Series,
    State,
    Table,
    Tone,
)
from securefda.rules.strategy import WARMS_UP
from securefda.site.config.key_help import toml
from securefda.site.config.sections import StrategySection, TargetTrainingSection
from securefda.task_metric import ACCURACY, TaskMetric, metric_of, metrics_text, with_balance
from securefda.text import binary_unit, counted, human_bytes, names, phase_words

_STATUS: dict[str, tuple[Tone, str, str]] = {
    "finished": ("done", "Finished", "finished"),
    "failed": ("failed", "Failed", "ended early"),
    "interrupted": ("failed", "Interrupted", "was interrupted"),
}
_MOST_GROUPS = 24
_MOST_ROWS = 12
"""Longer tables of rounds and of sources are folded."""
_NEARLY_PARALLEL = 0.9
_PROJECTING = ("fedgp", "fedgp_auto", "fedgp_filtered_auto", "auto")
_AUTO = ("fedda_auto", "fedgp_auto", "fedgp_filtered_auto", "auto")
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
    "align-moments": (ANALYTIC,),
    "align": ("fedda", "fedgp", *_AUTO),
    "class-weights": (ANALYTIC,),
    "source-noise": (ANALYTIC,),
    "warm-up-": WARMS_UP,
    "lr-after-": WARMS_UP,
    "finetune-": ("finetune_offline",),
    "reptile-": ("personalized_fedavg",),
    "personal-epochs": ("personalized_fedavg", "ditto"),
    "ditto-": ("ditto",),
    "apfl-": ("apfl",),
}
"""Beginning of a strategy's key -> the rules that it means something to; of what is not here, all."""
_SHARE_CAPTION = (
    "Length of the sources' part of the step that the model took, over the step's own. Near 0 the sources had no part "
    "in it, whatever the accuracy; above 100 % the target's own part points against theirs. Under the rule analytic: "
    "how far the head lies from that of the target alone, over its own length."
)
_IN_WORDS = {
    "individual": "its own update, in clear",
    "cohort": "the sum of their updates",
    "sum": "one weighted sum, the rule already applied",
}
_MOMENTS_IN_WORDS = {
    "individual": "second moments of its rows, in clear",
    "cohort": "the sum of second moments of their rows",
    "sum": "one sum of second moments of their rows",
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


def write_report(folder: Path) -> Path | None:
    """Write ``report.html`` and the model card into a run folder and return the page's path; None where there is no
    run yet.

    Raises:
        ConfigError: a file of the run is damaged.
        SecureFdaError: the disk is full or the folder cannot be written.
    """
    if not any((folder / name).exists() for name in (METRICS_FILE, SUMMARY_FILE)):
        return None
    path = folder / REPORT_FILE
    write_card(folder)
    replace_file(path, render_report(read_run(folder)).encode("utf-8"))
    return path


def render_report(record: RunRecord) -> str:
    """Return the page."""
    rounds = list({line["round"]: line for line in record.rounds}.values())
    summary = record.summary or {}
    rule = (summary.get("strategy") or {}).get("rule") or (rounds[-1].get("rule", "") if rounds else "")
    task = str(summary.get("task", "")).rpartition(":")[2]
    title = " on ".join(part for part in (rule, task) if part) or "Run"
    charts, facts = run_charts(rounds, record.sites, summary), run_facts(summary)
    protection, verdicts = "What was protected, and what was not", list[Line]()
    if rounds and summary.get("visibility"):
        verdicts += zip(("done", "care"), verdict(summary), strict=True)
    sections = [
        result_section(summary, rounds),
        Section("protection", protection, [Lines(verdicts)] if verdicts else [], short="Protection"),
        Section("charts", "Over the rounds", [Charts(charts)] if charts else [], hidden_note(rounds), "Charts"),
        Section("rounds", "Rounds", _folded(rounds_table(rounds), "round"), short="Rounds"),
        _sources(summary, rounds),
        seen_section(rounds),
        settings_section(summary),
        Section("about", "About this run", [Facts(facts)] if facts else [], short="About"),
    ]
    return static_page(Page(title, (), _state(record.summary, rounds), sections), title, "securefda run report")


def result_section(summary: Mapping[str, Any], rounds: Sequence[RoundLine]) -> Section:
    """Return a row for the run's model and each one that it is compared with, and what the rounds took."""
    metric, done, rows = chosen_metric(summary, *rounds), finished(rounds), list[tuple[str, ...]]()

    def add(what: str, found: Mapping[str, float], difference: str = "–", share: str = "–") -> None:
        if metric.name in found:
            left = metrics_text(found, apart_from=(metric.name, "balanced_accuracy")) or "–"
            rows.append((what, with_balance(metric, found), difference, share, left))

    share, tested = summary.get("source_share"), ""
    add("this run", _means(summary, done), share="–" if share is None else f"{100 * share:.0f} %")
    for key, name in BASELINES.items():
        baseline = summary.get(key) or {}
        helped = baseline.get("help")
        tested = f"{helped['test_rows']:,} " if helped else tested
        add(name, metrics_in(baseline), interval_text(helped, metric) if helped else "–")
    if best := summary.get("best"):
        add(f"round {best['round']}, best on validation rows", metrics_in(best))
    if adapted := summary.get("adapted"):
        add(f"last model, adapted at the target{'' if adapted['kept'] else ', not kept'}", metrics_in(adapted))
    minus = f"this run minus it (95 %){', points' if metric.percent else ''}"
    head = ("model", metric.title, minus, f"sources' share of the {shared_in(summary)}", "other metrics")
    columns = [0, 1, *(place for place in (2, 3, 4) if any(row[place] != "–" for row in rows))]
    cells = [tuple(row[place] for place in columns) for row in rows]
    last = min(REPORTED_ROUNDS, len(done))
    when = f"mean of the last {last} rounds" if last > 1 else "after the only round"
    caption = f"On the target's {tested}test rows, {when}. {_personal(rounds)}"
    table = Table([head[place] for place in columns], cells, key="models", caption=caption)
    parts: list[Part] = [table] if rows else []
    seconds = [round_seconds(line) for line in rounds]
    if any(seconds):
        sent = sum(sum(line.get("bytes_up", {}).values()) + sum(line.get("bytes_down", {}).values()) for line in rounds)
        took = f"A round took {median(seconds):.2f} s (median), without the wait for sites to join."
        parts.append(f"{took} Sources and aggregator sent each other {human_bytes(sent)}.")
    return Section("result", "Result", [*parts, *_confusion_table(rounds)], short="Result")


def _personal(rounds: Sequence[RoundLine]) -> str:
    done = finished(rounds)
    own = sum("evaluated" in line for line in done)
    where = "" if own == len(done) else f", in {own} of the {counted(len(done), 'round')}"
    return f"The model is one of the target's own, not the common one{where}." if own else ""


def _result_text(summary: Mapping[str, Any], rounds: Sequence[RoundLine]) -> str:
    """Return the result in a sentence: the metric, by how much the federation helped, and the sources' share."""
    done, metric = finished(rounds), chosen_metric(summary, *rounds)
    if not (text := help_text(summary)):
        if metric.name not in (means := _means(summary, done)):
            measured = means or any("metrics" in line for line in done)
            why = undefined_text(metric) if measured else "no test row of the target has a label"
            return f"Not measured: {why}." if done else ""
        why = ", since the target trains with noise" if summary.get("target_privacy") else ""
        text = f"{metric.title} {with_balance(metric, means)}, not compared with the target alone{why}"
    return f"{text[0].upper()}{text[1:]}."


def settings_section(summary: Mapping[str, Any]) -> Section:
    """Return the settings that are not the default, and folded those that are, and those that the rule does not use."""
    strategy, setting = summary.get("strategy") or {}, summary.get("setting") or {}
    changed, kept, unused = list[tuple[str, str, str]](), list[tuple[str, str]](), list[tuple[str, str]]()
    for table, values, defaults in (
        ("strategy", strategy, StrategySection()),
        ("training", setting.get("training") or {}, TargetTrainingSection()),
    ):
        default = defaults.model_dump(mode="json", by_alias=True)
        for key, value in values.items():
            name = f"{table}.{key}", toml(value)
            if table == "strategy" and not is_used(key, strategy):
                unused.append(name)
            elif key in default and value == default[key]:
                kept.append(name)
            else:
                changed.append((*name, toml(default[key]) if key in default else "not known here"))
    parts = list[Part]()
    if changed:
        parts.append(Table(("setting", "this run", "default"), changed))
    elif kept:
        parts.append("Every setting that this rule uses has its default.")
    if kept:
        parts.append(Fold("kept", f"{counted(len(kept), 'setting')} with the default", [Facts(kept)]))
    if unused:
        text = f"{counted(len(unused), 'setting')} that this rule does not use"
        parts.append(Fold("unused", text, [Facts(unused)]))
    return Section("settings", "Settings of the strategy and of the target's training", parts, short="Settings")


def _sources(summary: Mapping[str, Any], rounds: Sequence[RoundLine]) -> Section:
    """Return a row for each source: at which visibility it took part, in how many rounds, and what it sent and got."""
    levels = levels_in(summary) or {site: at for line in rounds for site, at in line.get("levels", {}).items()}
    counted_in = Counter(site for line in rounds for site in line.get("survivors", []))
    dropped = Counter(site for line in rounds for site in line.get("dropped", []))
    refused = [(site, key) for line in rounds for site, key in line.get("refused", {}).items()]
    up = total_of(line.get("bytes_up", {}) for line in rounds)
    down = total_of(line.get("bytes_down", {}) for line in rounds)
    sites = dict.fromkeys((summary.get("setting") or {}).get("sources") or [])
    sites |= dict.fromkeys(sorted({*levels, *counted_in, *dropped, *up, *(site for site, _ in refused)}, key=_natural))
    rows = [
        (
            site,
            levels.get(site, "–" if counted_in[site] else "took no part"),
            f"{counted_in[site]}",
            f"{dropped[site]}",
            ", ".join(f"{key} ({count})" for key, count in Counter(key for of, key in refused if of == site).items()),
            human_bytes(up[site]),
            human_bytes(down[site]),
        )
        for site in sites
    ]
    head = ("source", "visibility", "rounds", "dropped", "refused (rounds)", "sent by it", "sent to it")
    return Section("sources", "Sources", _folded(Table(head, rows, numbers={2, 3, 5, 6}), "source"), short="Sources")


def _folded(table: Table, noun: str) -> list[Part]:
    """Return a table, folded if it is long; nothing without a row."""
    if len(table.rows) > _MOST_ROWS:
        return [Fold("all", counted(len(table.rows), noun), [table])]
    return [table] if table.rows else []


def _confusion_table(rounds: Sequence[RoundLine]) -> Iterator[Table]:
    """Yield which class the last model takes the target's test rows for, if the task names its classes."""
    measured = [line for line in finished(rounds) if "confusion" in line]
    if not measured:
        return
    classes, taken_for = measured[-1]["confusion"]["classes"], measured[-1]["confusion"]["rows"]
    rows = [
        (name, *map(str, of_class), f"{of_class[place] / sum(of_class):.0%}" if sum(of_class) else "no row")
        for place, (name, of_class) in enumerate(zip(classes, taken_for, strict=True))
    ]
    head = ("test rows of", *(f"taken for {name}" for name in classes), "right")
    caption = f"Which class the model of round {measured[-1]['round']} takes the target's test rows for"
    yield Table(head, rows, numbers=set(range(1, len(head))), key="confusion", caption=caption)


def seen_section(rounds: Sequence[RoundLine]) -> Section:
    """Return a row for each set of sources of which the aggregator saw something: what, in which rounds, of how many
    rows.

    Cohorts of other members are other sets; beyond two dozen sets, the last row counts the rest.
    """
    groups: dict[tuple[str, str, tuple[str, ...]], list[tuple[int, int]]] = {}
    for line in rounds:
        words = _MOMENTS_IN_WORDS if line.get("rule") == ANALYTIC else _IN_WORDS
        for seen in line.get("seen", []):
            of = seen["level"], words.get(seen["level"], ""), tuple(seen["members"])
            groups.setdefault(of, []).append((line["round"], seen["rows"]))
    rows = [
        (
            names(members),
            level,
            what,
            _ranges([number for number, _ in found]),
            f"{round(median(count for _, count in found)):,}",
        )
        for (level, what, members), found in list(groups.items())[:_MOST_GROUPS]
    ]
    if len(groups) > _MOST_GROUPS:
        rows.append((f"and {len(groups) - _MOST_GROUPS} other sets, listed in metrics.jsonl", "", "", "", ""))
    table = Table(("of whom", "visibility", "what", "rounds", "rows"), rows, numbers={4}, broad={2})
    return Section("seen", "What the aggregator saw", [table] if rows else [], short="What the aggregator saw")


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
    return f"{seen} The target added no noise, and only its noise would bound what they tell of its rows."


def _ranges(numbers: Sequence[int]) -> str:
    """Return ``1-4, 7`` for 1, 2, 3, 4, 7; many separate ranges are only counted."""
    ordered = sorted(set(numbers))
    starts = [ordered[0], *(after for before, after in pairwise(ordered) if after != before + 1)]
    ends = [*(before for before, after in pairwise(ordered) if after != before + 1), ordered[-1]]
    if len(starts) > 4:
        return f"{len(ordered)} rounds"
    return ", ".join(f"{start}–{end}" if end > start else f"{start}" for start, end in zip(starts, ends, strict=True))


def _state(summary: Mapping[str, Any] | None, rounds: Sequence[RoundLine]) -> State:
    """Say how the run ended, and what came of it."""
    result = _result_text(summary or {}, rounds)
    if summary is None:
        text = "This run has not ended, or it was killed; the page shows the rounds so far."
        return State("waiting", "No end yet", text, lines=[("", result)] if result else [])
    done, planned, lost = (summary.get(key, 0) for key in ("rounds", "rounds_planned", "rounds_lost"))
    tone, word, ended = _STATUS.get(summary.get("status", ""), ("none", "Ended", "ended"))
    text = f"The run {ended}: {done} of {counted(planned, 'round')}{f', {lost} lost' if lost else ''}."
    error = summary.get("error") or {}
    text, hint = " ".join(filter(None, [text, error.get("message")])), error.get("hint") or ""
    return State(tone, word, text, hint, [("", result)] if result else [])


def run_facts(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return all other facts that identify the run."""
    releases, rules = summary.get("target_releases"), summary.get("rounds_by_rule") or {}
    versions = [f"{name} {version}" for name, version in (summary.get("versions") or {}).items()]
    setting, rule = summary.get("setting") or {}, str(summary.get("strategy", {}).get("rule", ""))
    measured = bool(_means(summary)) or not summary.get("rounds")
    about = [*setting_rows(setting, rule), *labels_rows(setting, measured=measured)]
    facts = [
        ("Ended", str(summary.get("ended", "")).replace("T", " ").replace("Z", " UTC")),
        *((name[0].upper() + name[1:], text) for name, text in about),
        ("Task", str(summary.get("task", ""))),
        ("Rounds by rule", ", ".join(f"{rule}: {count}" for rule, count in rules.items())),
        ("Norm cap", norm_cap_in(summary)),
        ("Sources left out", silenced_in(summary)),
        (f"{published_name(rules).capitalize()} sent to sources", releases_text(releases) if releases else ""),
        ("Target's privacy", spent_text(privacy) if (privacy := summary.get("target_privacy")) else ""),
        ("Best model", best_text(summary["best"], chosen_metric(summary)) if summary.get("best") else ""),
        ("Adapted model", adapted_text(summary["adapted"]) if summary.get("adapted") else ""),
        ("Run", str(summary.get("run_id", ""))),
        ("Model digest (SHA-256)", str(summary.get("model_digest", ""))),
        ("Versions", ", ".join(versions)),
    ]
    return [(name, value) for name, value in facts if value]


def is_used(key: str, strategy: Mapping[str, Any]) -> bool:
    """Return whether a strategy's key has any effect under its own rule and server optimiser."""
    rule = str(strategy.get("rule", ""))
    if key.startswith("server-") and key != "server-optimizer":
        return rule == "personalized_fedavg" or bool(strategy.get("server-optimizer", "none") != "none")
    if key.startswith("knn-"):
        return rule == "knn_per" or strategy.get("head") == "knn"
    rules = next((rules for start, rules in _USED_BY.items() if key.startswith(start)), None)
    return rules is None or rule in rules


def _means(summary: Mapping[str, Any], done: Sequence[RoundLine] = ()) -> dict[str, float]:
    """Return the run's metrics over its last rounds, before its end of those so far."""
    return metrics_in(summary, "target_") or mean_metrics(done[-REPORTED_ROUNDS:])


def metric_points(rounds: Sequence[RoundLine], name: str) -> list[tuple[int, float]]:
    """Return a metric of the task over the rounds that have it."""
    return [(line["round"], metrics[name]) for line in rounds if name in (metrics := metrics_in(line))]


def points_of(rounds: Sequence[RoundLine], key: str) -> list[tuple[int, float]]:
    """Return a value over the rounds that have it; those that were not finite are written as null."""
    values = ((line["round"], line.get(key)) for line in rounds)
    return [(number, float(value)) for number, value in values if isinstance(value, int | float)]


def finished(rounds: Sequence[RoundLine]) -> list[RoundLine]:
    """Return the rounds with a result."""
    return [line for line in rounds if line.get("status") != "lost"]


def run_charts(
    rounds: Sequence[RoundLine],
    sites: Mapping[str, Sequence[SiteLine]],
    summary: Mapping[str, Any],
    epsilon_limit: float | None = None,
) -> list[Chart]:
    """Return the charts of a run, of what its rounds have.

    Args:
        rounds: the aggregator's lines.
        sites: each source's own lines, if they are in the run folder.
        summary: of the run; empty before its end.
        epsilon_limit: the budget of the target's rows; None for none.
    """
    charts, metric = [], chosen_metric(summary, *rounds)
    if values := metric_points(finished(rounds), metric.name):
        marked = min(REPORTED_ROUNDS, len(values))
        caption = f"On the target's test split; dots mark the last {counted(marked, 'round')}. {_personal(rounds)}"
        baselines = [
            (f"{name}, mean of its last rounds", found[metric.name])
            for key, name in (("target_only", ALONE), ("warm_target", WARM))
            if metric.name in (found := metrics_in(summary.get(key) or {}))
        ]
        line, heading = [Series("this run", values)], f"Target {metric.title}"
        charts.append(Chart(heading, caption, line, percent=metric.percent, limits=baselines, marked=marked))
    charts += _other_metrics(rounds, metric)
    if loss := points_of(finished(rounds), "loss"):
        charts.append(Chart("Target loss", "Mean over the target's test rows.", [Series("loss", loss)]))
    charts += [beta] if (beta := beta_chart(rounds, sites)) else []
    charts += _effort_charts(rounds)
    charts += _shown_charts(rounds)
    if shares := points_of([line for line in rounds if line.get("survivors")], "source_share"):
        line = [Series("sources' share", shares)]
        charts.append(Chart("The sources' share of each step", _SHARE_CAPTION, line, percent=True))
    if confident := points_of(rounds, "confident_rows"):
        caption = (
            "Rows of the target whose pseudo-label counted: the model that the round began with was sure enough of it. "
            "A round with too few went on with the warm-up. No source gets these numbers; each sees from the rule of a "
            "round whether they were too few."
        )
        charts.append(Chart("Confident rows of the target", caption, [Series("confident rows", confident)]))
    charts += _error_charts(rounds)
    if spent := points_of(rounds, "target_epsilon"):
        caption = (
            "Of one row of the target, added or removed, over all rounds and runs that its ledger knows. A source's "
            "own epsilon is known to that source alone: securefda budget show."
        )
        limits = [("limit", epsilon_limit)] if epsilon_limit else []
        charts.append(Chart("Privacy that the target has spent", caption, [Series("ε spent", spent)], limits=limits))
    return [chart for chart in charts if chart.has_shape]


def hidden_note(rounds: Sequence[RoundLine]) -> str:
    """Say why there are no losses of the sources' training, where some site trains with noise."""
    summed = [seen for line in rounds for seen in line.get("seen", []) if seen["level"] != "individual"]
    if not summed or any(seen.get("loss") is not None for seen in summed) or rounds[-1].get("rule") == ANALYTIC:
        return ""
    return "Losses and accuracies of training are in no sum, since a site trains with noise."


def _other_metrics(rounds: Sequence[RoundLine], metric: TaskMetric) -> list[Chart]:
    """Return a chart of all other metrics that lie in [0, 1], and one of each that does not."""
    names = dict.fromkeys(name for line in rounds for name in metrics_in(line) if name != metric.name)
    series = [Series(metric_of(name).title, metric_points(finished(rounds), name)) for name in names]
    shares = [line for line in series if all(0 <= value <= 1 for _, value in line.points)]
    shares = shares if len(shares) > 1 else []
    caption = "On the target's test split, as the task computes them."
    charts = [Chart("Other metrics", caption, shares)] if shares else []
    return charts + [Chart(f"Target {line.name}", caption, [line]) for line in series if line not in shares]


def beta_chart(rounds: Sequence[RoundLine], sites: Mapping[str, Sequence[SiteLine]]) -> Chart | None:
    """Draw the weights β: of each source if its records are in the run folder, else their mean; None without any."""
    own = [
        Series(site, points)
        for site, lines in sorted(sites.items(), key=lambda item: _natural(item[0]))
        if (points := sorted({line["round"]: beta for line in lines if (beta := line.get("beta")) is not None}.items()))
    ]
    if own:
        caption = "Each source's own weight β against the target, from the sources' own records."
        if {len(line.points) for line in own} == {1}:
            values, sites_of = [line.points[0][1] for line in own], [line.name for line in own]
            return Chart("β per source", caption, [Series("β", [*enumerate(values, 1)])], bars=True, names=sites_of)
        return Chart("β per source", caption, own, include=[0])
    mean = points_of(finished(rounds), "mean_beta")
    caption, levels = "Mean by samples", {level for line in rounds for level in line.get("levels", {}).values()}
    if "cohort" in levels:
        caption += ", over the cohorts: the rule was evaluated on the mean of each"
    elif "individual" not in levels:  # where the target evaluates the rule itself
        caption += "; the β of single sources are not known here"
    return Chart("Mean β", f"{caption}.", [Series("mean β", mean)], include=[0]) if mean else None


def bytes_chart(counts: Mapping[str, tuple[int, int]], caption: str) -> Chart:
    """Draw the bytes from each source to the aggregator, and back."""
    scale, unit = binary_unit(max(max(pair) for pair in counts.values()))
    series = [
        Series(way, [(place, pair[index] / scale) for place, pair in enumerate(counts.values(), 1)])
        for index, way in enumerate(("source to aggregator", "aggregator to source"))
    ]
    return Chart("Bytes per source", caption, series, unit=unit, bars=True, names=list(counts))


def _effort_charts(rounds: Sequence[RoundLine]) -> list[Chart]:
    """Return charts of seconds and bytes."""
    charts = []
    phases = dict.fromkeys(phase for line in rounds for phase in line.get("seconds", {}) if phase != JOIN_PHASE)
    spent = {phase: [(line["round"], line.get("seconds", {}).get(phase) or 0.0) for line in rounds] for phase in phases}
    if any(value for points in spent.values() for _, value in points):
        series, words = [Series(phase_words(phase), points) for phase, points in spent.items()], list[str]()
        if len(rounds) == 1:
            words = [line.name for line in series]
            values = [value for points in spent.values() for _, value in points]
            series = [Series("seconds", [*enumerate(values, 1)])]
        caption = "Wall clock at the aggregator, without the wait for sites to join."
        charts.append(Chart("Seconds by phase", caption, series, unit="seconds", bars=True, names=words))
    up = total_of(line.get("bytes_up", {}) for line in rounds)
    down = total_of(line.get("bytes_down", {}) for line in rounds)
    if counts := {site: (up[site], down[site]) for site in sorted({*up, *down}, key=_natural)}:
        charts.append(bytes_chart(counts, "Over the whole run, as the aggregator counted them."))
    return charts


def _shown_charts(rounds: Sequence[RoundLine]) -> list[Chart]:
    """Return charts of what the sources' sums and the model's changes show."""
    charts, trained = [], dict[str, list[tuple[int, float]]]()
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
    if trained:
        caption = (
            "Shown as sums: mean over the training rows of all sources under masks, summed inside the masked vector. "
            "No figure of one of them reached the aggregator by itself."
        )
        charts += [
            Chart(f"Training {figure} at the sources", caption, [Series(figure, points)], percent=figure == "accuracy")
            for figure, points in trained.items()
        ]
    if cosines := points_of(rounds, "target_cosine"):
        # A line that is nearly 1 all along shall look like it.
        include = (0, 1) if min(value for _, value in cosines) >= 0 else (-1, 1)
        heading = "The target's update and the published change of the model"
        charts.append(Chart(heading, cosine_sentence(rounds), [Series("cosine", cosines)], include=include))
    return charts


def _error_charts(rounds: Sequence[RoundLine]) -> list[Chart]:
    errors: dict[str, list[tuple[int, float]]] = {}
    for line in rounds:
        for rule, error in line.get("delta_errors", {}).items():
            if error is not None:  # finite
                errors.setdefault(rule, []).append((line["round"], error))
    if not errors:
        return []
    used = Counter(line.get("rule", "") for line in rounds if line.get("status") == "finished")
    counts = ", ".join(f"{rule} in {count}" for rule, count in used.most_common())
    caption = f"The rule with the smallest one is that of the next round. Rounds: {counts}."
    series = [Series(*line) for line in errors.items()]
    return [Chart("Estimated errors", caption, series, unit="squared error", logarithmic=True)]


def _natural(site: str) -> list[tuple[int, str]]:
    """Return a sort key that puts source-2 before source-10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", site)]


def rounds_table(rounds: Iterable[RoundLine]) -> Table:
    """Return a row for each round; metrics other than the chosen one, and an accuracy's balanced one, come last."""
    lines = list(rounds)
    metric, found = chosen_metric(*lines), dict.fromkeys(name for line in lines for name in metrics_in(line))
    others = [metric_of(name) for name in found if name != metric.name]
    first = [metric, *(one for one in others if metric == ACCURACY and one.name == "balanced_accuracy")]
    rest = [one for one in others if one not in first]
    head = ("round", "rule", *(one.title for one in first), "loss", "mean β", "sources", "their share", "seconds")
    remarks = len(head)
    columns = (*head, "remarks", *(one.title for one in rest))
    numbers = {*range(len(columns))} - {1, remarks}
    rows = [_row(line, first, rest) for line in lines]
    return Table(columns, rows, numbers=numbers, broad={remarks} if any(row[remarks] for row in rows) else ())


def _row(line: RoundLine, shown: Sequence[TaskMetric], rest: Sequence[TaskMetric]) -> tuple[str, ...]:
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
        remarks.append(f"norm caps left sources out of {names(emptied, 3)}")
    remarks.extend(f"{site} dropped" for site in line.get("dropped", []))
    remarks.extend(f"{site} refused {key}" for site, key in line.get("refused", {}).items())
    return (
        str(line["round"]),
        line.get("rule", ""),
        *("–" if lost else one.text(metrics_in(line).get(one.name)) for one in shown),
        number_cell(line.get("loss"), 3),
        number_cell(line.get("mean_beta"), 2),
        str(len(line.get("survivors", []))),
        share_cell(line),
        f"{round_seconds(line):.2f}",
        ", ".join(remarks),
        *(one.text(metrics_in(line).get(one.name)) for one in rest),
    )


def share_cell(line: RoundLine) -> str:
    """Return the sources' share of a round's step, for a table; a dash where no source took part."""
    share = line.get("source_share")
    return "–" if share is None or not line.get("survivors") else f"{100 * share:.0f} %"


def number_cell(value: float | None, places: int) -> str:
    """Return a number for a table; a dash where there is none."""
    return "–" if value is None else f"{value:.{places}f}"
