"""The tables of a suite as Markdown: mean ± standard deviation over the seeds, the paper's figure in brackets."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from statistics import fmean, stdev

from securefda.bench.accuracy.columns import Suite
from securefda.bench.accuracy.paper import MEAN, Published
from securefda.bench.accuracy.requirements import SelectionHolds, judgements
from securefda.bench.accuracy.results import BySeed, Results
from securefda.operations.records import REPORTED_ROUNDS
from securefda.task_metric import TaskMetric, metric_of

_WIDE = 8
_NOTHING = "–"


def tables(suite: Suite, results: Results, level: str) -> str:
    """Return all tables of a suite, one for each of its data sets, with an explanation."""
    seeds = ", ".join(map(str, results.seeds)) or "none"
    explained = (
        f"On the target's test rows, mean over the last {REPORTED_ROUNDS} rounds, then mean ± standard deviation over "
        f"seeds ({seeds}). In square brackets: how many seeds, where some are missing."
    )
    parts = [f"# {suite.title}, visibility {level}", explained]
    for data in results.data:
        published = suite.published.get(data)
        parts.append(f"## {data}{f', {suite.axis}' if suite.axis else ''}")
        for name in results.metrics_of(data) or [suite.metric]:
            paper = published if name == suite.metric else None
            parts.append(_heading(metric_of(name)) + (f" In brackets: the paper, {paper.where}." if paper else ""))
            parts.append(_table(suite, results, data, paper, name))
        if suite.losses:
            columns = results.columns_of(data)
            rows = {
                rule: [
                    _spread_text(results.losses_by_seed(rule, column), results, lambda value: f"{value:.3g}")
                    for column in columns
                ]
                for rule in results.rules
            }
            parts += ["Loss on the target's test rows:", _markdown([column.name for column in columns], rows)]
        if chosen := _chosen(results, data):
            parts.append(chosen)
    if "selection" in suite.plots and (judged := _selection(results)):
        parts.append(judged)
    return "\n\n".join(parts) + "\n"


def _heading(metric: TaskMetric) -> str:
    title = metric.title[0].upper() + metric.title[1:]
    return f"{title}{', percent' if metric.percent else ''}{', lower is better' if metric.better == 'lower' else ''}."


def _table(suite: Suite, results: Results, data: str, published: Published | None, metric: str) -> str:
    columns = results.columns_of(data)
    names, form = [column.name for column in columns], ".1f" if metric_of(metric).percent else ".3g"
    rows = {
        rule: [
            _cell(results.by_seed(rule, column, metric), results, _figure(published, rule, column.name), form)
            for column in columns
        ]
        for rule in results.rules
    }
    if suite.averaged:
        names.append(MEAN)
        for rule, cells in rows.items():
            average = results.average_by_seed(rule, columns, metric)
            cells.append(_cell(average, results, _figure(published, rule, MEAN), form))
    return _markdown(names, rows)


def _figure(published: Published | None, rule: str, column: str) -> float | None:
    return None if published is None else published.figure(rule, column)


def _cell(values: BySeed, results: Results, published: float | None, form: str) -> str:
    published_text = "" if published is None else f" ({published:.1f})"
    return f"{_spread_text(values, results, lambda value: format(value, form))}{published_text}"


def _spread_text(values: BySeed, results: Results, text: Callable[[float], str]) -> str:
    if not values:
        return _NOTHING
    spread = stdev(values.values()) if len(values) > 1 and all(map(math.isfinite, values.values())) else None
    some = f" [{len(values)}]" if len(values) < len(results.seeds) else ""
    return f"{text(fmean(values.values()))}{'' if spread is None else f' ± {text(spread)}'}{some}"


def _markdown(names: Sequence[str], rows: dict[str, list[str]]) -> str:
    """Return a row for each rule; for each column if there are many columns."""
    if len(names) > _WIDE:
        head, lines = ["", *rows], [[name, *cells] for name, *cells in zip(names, *rows.values(), strict=True)]
    else:
        head, lines = ["rule", *names], [[rule, *cells] for rule, cells in rows.items()]
    text = [f"| {' | '.join(head)} |", f"|---|{'---|' * (len(head) - 1)}"]
    return "\n".join([*text, *(f"| {' | '.join(cells)} |" for cells in lines)])


def _chosen(results: Results, data: str) -> str:
    """Describe how often ``auto`` chose each rule, if it was measured."""
    total: Counter[str] = Counter()
    for key, result in results.runs.items():
        if (key.data, key.rule) == (data, "auto"):
            total.update(result.rounds_by_rule)
    shares = ", ".join(f"{rule} {number / total.total():.0%}" for rule, number in total.most_common())
    return f"Rounds of auto by rule, those of warm-up included: {shares}." if total else ""


def _selection(results: Results) -> str:
    found, within = judgements(results), SelectionHolds().within
    if not found:
        return ""
    right = fmean(one.holds(within, one.predicted) for one in found)
    later = fmean(one.holds(within, one.later) for one in found)
    lines = [
        "## Predicted and actual best rule",
        "",
        "Predicted by the errors in the first round that estimates them, and, as *later*, by the mean over all rounds "
        "of auto; best by the loss of each rule on its own. The predicted rule is the best, or within "
        f"{within:.0%} of its loss, in {right:.0%} of these columns; *later* in {later:.0%}.",
        "",
        "| | d² | σ² | predicted | later | best | loss of predicted / best |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in found:
        ratio = one.losses[one.predicted] / one.losses[one.actual] if one.losses[one.actual] else 1.0
        rules = (one.predicted, one.later, one.actual)
        cells = (one.column.name, f"{one.distance:.3g}", f"{one.variance:.3g}", *rules)
        lines.append(f"| {' | '.join(cells)} | {ratio:.3f} |")
    return "\n".join(lines)
