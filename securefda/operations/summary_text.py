"""The summary of a run in words: its figures, what was protected and from whom, and what was not."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from securefda.operations.records import (
    IN_MEMORY,
    JOIN_PHASE,
    NO_PART,
    PUBLISHED_OF_THE_TARGET,
    RULES_WITHOUT_SOURCES,
    Adapted,
    Baseline,
    BestModel,
    Help,
    NormCap,
    PrivacySpent,
    Summary,
    TargetReleases,
    chosen_metric,
    is_shipped,
    metrics_in,
)
from securefda.operations.run_folder import ADAPTED_FILE, BEST_FILE, MODEL_FILE, REPORT_FILE, SITES_FOLDER
from securefda.task_metric import ACCURACY, TaskMetric, metrics_text, with_balance
from securefda.text import aligned, bound_text, counted, first_of, quoted

_ALL_ANSWER = 3
"""With so many sources, none may drop out of a sum anyway."""

_NAMED = 10
_HEAD = "the head"
_NAMED_SITES = 6
ANALYTIC = "analytic"
"""The rule under which no site trains, and second moments leave in place of updates."""

READ_ROWS = ("securefda.tasks.features", "securefda.tasks.image_folder", "securefda.tasks.tabular")
"""Modules whose tasks read rows of one's own to predict."""

_CANCELLING = (
    "FedGP ran without its filter, so a target that lies about its update could let the contributions of sources that "
    "are alike cancel each other, and a sum then shows the one that differs, whatever the norms"
)


def run_text(summary: Summary, folder: Path) -> str:
    """Return aligned lines about one run: its figures, and below them `result_rows`."""
    lost, cosine, rules = summary.rounds_lost, summary.target_cosine, summary.rounds_by_rule
    known = summary.as_json()
    levels = levels_in(known)
    absent = absent_sources(levels, summary.setting or {})
    metric, means, final = chosen_metric(known), metrics_in(known, "target_"), metrics_in(known, "final_")
    others = metrics_text(means, apart_from=(metric.name,))
    rows = [
        (f"final {metric.title}", with_balance(metric, final)),
        *([("other metrics", f"{others} (mean of the last rounds)")] if others else []),
        *([("measured", "a model of the target's own, not the common one")] if summary.evaluated == "personal" else []),
        *labels_rows(summary.setting or {}, measured=bool(means) or not summary.rounds),
        *baseline_rows(summary.target_only, summary.warm_target, metric),
        *([("ended", summary.ended.replace("T", " ").replace("Z", " UTC"))] if summary.ended else []),
        *setting_rows(summary.setting or {}, str(summary.strategy.get("rule", ""))),
        *([("took no part", ", ".join(absent))] if absent else []),
        ("rounds", f"{summary.rounds} of {summary.rounds_planned}{f', {lost} lost' if lost else ''}"),
        (
            "seconds per round",
            f"{sum(s or 0 for phase, s in summary.seconds_by_phase.items() if phase != JOIN_PHASE):.2f}",
        ),
        ("bytes up", f"{sum(summary.bytes_up.values()):,}"),
        ("bytes down", f"{sum(summary.bytes_down.values()):,}"),
    ]
    rows.extend((f"dropped {site}", f"in {counted(count, 'round')}") for site, count in summary.dropped.items())
    for site, keys in summary.refusals.items():
        rows.extend((f"refused by {site}", f"{key} in {counted(count, 'round')}") for key, count in keys.items())
    spread = (
        f"of the target's update and the change of the model: median {_figure(cosine['median'], '.2f')}, "
        f"{_figure(cosine['smallest'], '.2f')} to {_figure(cosine['largest'], '.2f')}"
        if cosine
        else ""
    )
    average = "" if summary.strategy.get("rule") == ANALYTIC else " on average, warm-up apart"
    privacy = [
        ("rounds by rule", ", ".join(f"{rule} {count}" for rule, count in rules.items()) if len(rules) > 1 else ""),
        ("visibility", levels_text(levels)),
        ("norm cap", norm_cap_in(known)),
        (
            "sources' share",
            ""
            if summary.source_share is None
            else share_text(summary.source_share, f"the {shared_in(known)}{average}"),
        ),
        ("sources left out", silenced_in(known)),
        (f"{published_name(rules)} sent to sources", releases_text(summary.target_releases)),
        ("cosine", spread),
        ("target's privacy", spent_text(summary.target_privacy) if summary.target_privacy else ""),
    ]
    rows.extend((name, text) for name, text in privacy if text)
    if summary.model_round:
        rows.append(("last model", f"of round {summary.model_round}: {MODEL_FILE}"))
    if summary.best:
        rows.append(("best model", best_text(summary.best, metric)))
    if summary.adapted:
        rows.append(("adapted model", adapted_text(summary.adapted)))
    if summary.model_digest and summary.setting and not _is_in_memory(summary):
        own = "" if is_shipped(summary.task) else f", task={summary.task!a}"
        rows.append(("load the model", f"import securefda; model = securefda.Run.open({str(folder)!r}{own}).model"))
    return (
        f"{aligned(rows)}\n\n{aligned(result_rows(summary, str(folder / REPORT_FILE), _next_command(summary, folder)))}"
    )


def _is_in_memory(summary: Summary) -> bool:
    """Whether no other process can import the run's task, which a notebook defined."""
    return summary.task.startswith(f"{IN_MEMORY}:")


def _next_command(summary: Summary, folder: Path) -> str:
    """Return what to type after a run that finished: predict where the task reads rows, else compare the logs."""
    place = quoted(folder)
    if summary.status != "finished" or not summary.model_digest:
        return ""
    # Under fedrep no file has the last layers, which stay at the sites.
    predicts = not _is_in_memory(summary) and summary.strategy.get("rule") != "fedrep"
    if predicts and not is_shipped(summary.task):
        return f"securefda predict {place} --task {quoted(summary.task)} --data FILE"
    if predicts and summary.task.partition(":")[0] in READ_ROWS:
        return f"securefda predict {place} --data FILE"
    if (folder / SITES_FOLDER).is_dir():
        return f"securefda audit reconcile {place}"
    return f"securefda export {place} --format onnx" if predicts else ""


def result_rows(summary: Summary, report: str, then: str) -> list[tuple[str, str]]:
    """Return what a run ends with: the metric, what the federation gained, the report, and the next command if any."""
    known = summary.as_json()
    metric, means = chosen_metric(known), metrics_in(known, "target_")
    return [
        (f"target {metric.title}", f"{metric.text(means.get(metric.name))} (mean of the last rounds, at most 5)"),
        *gain_rows(known),
        ("report", report),
        *([("next", then)] if then else []),
    ]


def best_text(best: BestModel, metric: TaskMetric) -> str:
    """Describe which round had the best model on the validation rows, and name its file."""
    named = f"{metric.title} {with_balance(metric, metrics_in(best, 'validation_'))}"
    return f"of round {best['round']}, {named} on the validation rows: {BEST_FILE}"


def adapted_text(adapted: Adapted) -> str:
    """Describe what adaptation at the target alone came to, by its score and, where it was measured, by accuracy."""
    scores = f"score {_figure(adapted['score_before'], '.2f')} → {_figure(adapted['score'], '.2f')}"
    what = ADAPTED_FILE if adapted["kept"] else "not kept, for the last model has the higher score"
    labels = f", {adapted['labelled']} with labels" if adapted.get("labelled") else " without labels"
    return f"at the target alone, on {counted(adapted['rows'], 'row')}{labels}, {scores}: {what}"


def adaptation_text(adapted: Adapted, metric: TaskMetric) -> str:
    """Return the metric before and after adaptation, with the interval of the difference, if they are known."""
    found, interval = adapted.get("help"), ""
    if found and found["low"] is not None and found["high"] is not None:
        low, high = metric.difference(found["low"]), metric.difference(found["high"])
        interval = f" ({metric.difference(found['difference'])}{metric.unit}, 95 %: {low} to {high})"
    before = metrics_in({"accuracy": adapted["accuracy_before"], "metrics": adapted.get("metrics_before")})
    return f"{with_balance(metric, before)} → {with_balance(metric, metrics_in(adapted))}{interval}"


ALONE, WARM = "target alone", "warm-started target"
BASELINES = {"warm_target": WARM, "target_only": ALONE}
"""The two baselines by their keys in a summary."""


def baseline_rows(
    target_only: Baseline | None, warm_target: Baseline | None, metric: TaskMetric
) -> list[tuple[str, str]]:
    """Describe what the target comes to alone, each baseline with its name."""
    rows = []
    if target_only:
        rounds = counted(target_only["rounds"], "round")
        value = with_balance(metric, metrics_in(target_only))
        rows.append((ALONE, f"{value} (mean of the last rounds, on its own rows for {rounds})"))
    if warm_target:
        rounds = counted(warm_target["rounds"], "round")
        value = with_balance(metric, metrics_in(warm_target))
        rows.append((WARM, f"{value} (mean of the last rounds, alone for {rounds} from the model after warm-up)"))
    return rows


def difference_text(found: Help, baseline: str, metric: TaskMetric) -> str:
    """Return by how much a run is better or worse than a baseline; a difference that rows do not show is called so."""
    low, high = found["low"], found["high"]
    difference = f"{metric.difference(found['difference'])}{metric.unit}"
    if low is None or high is None:
        why = "the accuracy is not a mean over rows" if metric == ACCURACY else "the test rows give none"
        return f"{difference} against the {baseline} (no interval: {why})"
    interval = f"95 %: {metric.difference(low)} to {metric.difference(high)}"
    if low <= 0 <= high:
        rows = counted(found["test_rows"], "test row")
        return f"no difference from the {baseline} that the {rows} can show ({difference}, {interval})"
    over = f"{difference} over" if low > 0 else f"{difference[1:]} below"
    if metric.better == "lower":
        over = f"{difference[1:]} {'worse' if low > 0 else 'better'} than"
    return f"{over} the {baseline} ({interval})"


def interval_text(found: Help | None, metric: TaskMetric) -> str:
    """Return a difference with its interval, for a table; a dash for None."""
    if found is None:
        return "-"
    difference, low, high = metric.difference(found["difference"]), found["low"], found["high"]
    if low is None or high is None:
        return difference
    return f"{difference} ({metric.difference(low)} to {metric.difference(high)})"


def share_text(share: float, of: str) -> str:
    """Return the sources' share of a step, or of several on average."""
    return f"no part in {of}" if share < NO_PART else f"{100 * share:.0f} % of {of}"


def shared_in(summary: Mapping[str, Any], *, warmed: bool = False) -> str:
    """Return of what a run's sources had their share: the head; or the steps, which may be of another model than the
    one that was measured.
    """
    if (summary.get("strategy") or {}).get("rule") == ANALYTIC:
        return "head"
    of = "common model's " if summary.get("evaluated") == "personal" else ""
    return f"{of}steps{' after warm-up' if warmed else ''}"


def step_of(rule: str) -> str:
    """Return what a round makes: the step, or the head that is fitted."""
    return _HEAD if rule == ANALYTIC else "the step"


def work_phase(rule: str) -> str:
    """Return the name of the phase in which the sources do what a rule asks for."""
    return "moments" if rule == ANALYTIC else "training"


def apart_words(share: float) -> str:
    """Return what a source knows of the step before a round: the least share of it that is not the target's own."""
    if share < NO_PART:
        return "the step before it points where the target's own update does"
    return f"at least {math.floor(100 * share)} % of the step before it is not the target's own"


def help_text(summary: Mapping[str, Any]) -> str:
    """Return one line: the chosen metric, by how much the federation helped, and the sources' share of the steps.

    Of a model that the target adapted, the metric before and after. Empty where the run is neither compared with the
    target alone nor adapted. It takes the contents of a ``summary.json``.
    """
    metric = chosen_metric(summary)
    if adapted := _adapted_text(summary, metric):
        return adapted
    means = metrics_in(summary, "target_")
    differences = _differences(summary, metric)
    if not differences or metric.name not in means:
        return ""
    return f"{metric.title} {with_balance(metric, means)}: {', '.join(differences)}{_sources_had(summary)}"


def gain_rows(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what `help_text` says as rows of a table: each baseline has its own."""
    metric = chosen_metric(summary)
    if adapted := _adapted_text(summary, metric):
        return [("gain", adapted)]
    if (summary.get("strategy") or {}).get("rule") in RULES_WITHOUT_SOURCES:
        return []
    differences = _differences(summary, metric)
    if not differences:
        trained = summary.get("warm_target") or summary.get("target_only")
        why = undefined_text(metric) if trained else "the target did not train alone to compare"
        return [("gain", f"not measured: {why}")]
    names = ("gain", *[""] * (len(differences) - 1))
    return [*zip(names, [*differences[:-1], differences[-1] + _sources_had(summary)], strict=True)]


def _adapted_text(summary: Mapping[str, Any], metric: TaskMetric) -> str:
    adapted = summary.get("adapted")
    if not adapted or metric.name not in metrics_in(adapted):
        return ""
    return f"adapted alone at the target: {adaptation_text(adapted, metric)}{'' if adapted['kept'] else '; not kept'}"


def _differences(summary: Mapping[str, Any], metric: TaskMetric) -> list[str]:
    found = ((name, summary.get(key)) for key, name in BASELINES.items())
    return [difference_text(one["help"], name, metric) for name, one in found if one and one.get("help")]


def _sources_had(summary: Mapping[str, Any]) -> str:
    share, steps = summary.get("source_share"), f"the {shared_in(summary, warmed=bool(summary.get('warm_target')))}"
    return "" if share is None else f"; the sources had {share_text(share, steps)}"


def setting_rows(setting: Mapping[str, Any], rule: str) -> list[tuple[str, str]]:
    """Return federation, sites, seed and rates, each with its name; empty for a run that did not record them.

    Without rates where the target does not train under ``rule``, or has no labels.
    """
    if not setting:
        return []
    training = setting["training"]
    rate = _figure(training["learning-rate"], "g")
    rates = f"learning rate {rate} with {training['optimizer']}, batches of {training['batch-size']}"
    bound = f", at most {counted(training['max-steps'], 'step')}" if training.get("max-steps") else ""
    trains = f"{rates}, {counted(training['epochs'], 'epoch')} a round{bound}"
    return [
        ("federation", setting["federation"]),
        ("sites", f"target {setting['target']}; sources {first_of(setting['sources'], _NAMED)}"),
        ("seed", str(setting["seed"])),
        *([] if rule == ANALYTIC or training.get("labels") == "none" else [("target trains at", trains)]),
    ]


_LABELS = {
    "none": "none used for training: the target does not train",
    "pseudo": "made by the model in each round, where it finds one at least {threshold:g} probable",
}


def labels_rows(setting: Mapping[str, Any], *, measured: bool) -> list[tuple[str, str]]:
    """Describe how many labels the target knows, unless all.

    ``measured`` is False where rounds have finished, and no test row had a label.
    """
    training = setting.get("training", {})
    labels = training.get("labels", "given")
    if labels == "given":
        return []
    text = _LABELS[labels].format(threshold=training.get("pseudo-threshold") or 0.0)
    if labels == "none" and training.get("adapt", "none") != "none":
        text = "none used for training: the target trains in no round, and adapts the last model"
    return [("target's labels", text + ("" if measured else f"; {NO_ACCURACY}"))]


def absent_sources(visibility: Mapping[str, str], setting: Mapping[str, Any]) -> list[str]:
    """Return the sources that no round included, if some round included any."""
    return [site for site in setting.get("sources", []) if visibility and site not in visibility]


NO_ACCURACY = "no accuracy, for no test row has a label"


def undefined_text(metric: TaskMetric) -> str:
    """Say why there is no value of a metric although there are test rows: they do not define it, or it is infinite."""
    return f"the test rows give no {metric.title}"


def levels_in(summary: Mapping[str, Any]) -> Mapping[str, str]:
    """Return source -> the level at which most was seen of it, from the contents of a ``summary.json``.

    Empty where no source was asked: a summary then has the levels that the settings permit.
    """
    levels: Mapping[str, str] = summary.get("visibility") or {}
    rounds = summary.get("rounds") or summary.get("rounds_lost")
    return levels if rounds and (summary.get("strategy") or {}).get("rule") not in RULES_WITHOUT_SOURCES else {}


def levels_text(visibility: Mapping[str, str]) -> str:
    """Return the sites by level, for example ``sum: hospital-a, hospital-b; individual: hospital-c``."""
    by_level: dict[str, list[str]] = {}
    for site, level in visibility.items():
        by_level.setdefault(level, []).append(site)
    return "; ".join(f"{level}: {first_of(sites, _NAMED)}" for level, sites in by_level.items())


def head_text(source_weight: float, ridge: float, *, labelled: bool, balanced: bool, moved: bool) -> str:
    """Say how the analytic rule fitted the head: the weight s of a source's row, lambda, and what else was done."""
    if not ridge:
        return "the outputs are the means over the sources' rows"
    how = f"(ridge {ridge:.3g}{', all classes count alike' if balanced else ''})"
    if not labelled:
        where = ", moved to the target's mean" if moved else ""
        return f"the head is fitted to the sources' moments{where} {how}"
    return f"in the head a source's row weighs {source_weight:.3g} times one of the target's {how}"


def silenced_text(number: int, rule: str, sources: int, *, filtered: bool, by_layer: bool) -> str:
    """Say that norm caps left the sources no part, which key to change, and what that costs; "" for no round.

    Args:
        number: of the round, the third in a row, as in ``summary.json``; 0 for none.
        rule: the rule of the run's strategy.
        sources: how many there are.
        filtered: the setting `strategy.filter`.
        by_layer: whether the norm cap holds in each layer.
    """
    if not number:
        return ""
    what = (
        f"norm caps emptied layers in each of rounds {number - 2} to {number}, and the sources had no part in the "
        "steps (less than 1 %)"
    )
    if not (filtered and _may_project(rule)):
        return f"{what}. session.bits = 32 hides as much, and helps where words are too narrow for short contributions"
    remedies = ['strategy.rule = "fedda_auto" leaves no source out of a layer, and one sum hides as much']
    if sources > _ALL_ANSWER:
        remedies.append(
            f"session.threshold = {sources} hides as much and lets more norms count, but no source may drop out"
        )
    if by_layer:
        remedies.append(
            'privacy.norm-cap-granularity = "model" empties fewer, but shows layers in which one source is alone'
        )
    return f"{what}: FedGP's filter left too few sources there. {'; '.join(remedies)}"


def silenced_in(summary: Mapping[str, Any]) -> str:
    """Return `silenced_text` of a run, from the contents of a ``summary.json``."""
    strategy, norm_cap = summary.get("strategy") or {}, summary.get("norm_cap") or {}
    return silenced_text(
        summary.get("silenced_round", 0),
        str(strategy.get("rule", "")),
        len((summary.get("setting") or {}).get("sources", ())),
        filtered=bool(strategy.get("filter", True)),
        by_layer=norm_cap.get("granularity") == "layer",
    )


def norm_cap_in(summary: Mapping[str, Any]) -> str:
    """Return `norm_cap_text` of a run, from the contents of a ``summary.json``; empty where no source was at sum."""
    norm_cap = summary.get("norm_cap")
    return norm_cap_text(norm_cap) if norm_cap and _at(levels_in(summary), "sum") else ""


def norm_cap_text(norm_cap: NormCap) -> str:
    """Describe the norm cap that was set; how it changed a contribution, only its source knows."""
    where = "over the whole model" if norm_cap["granularity"] == "model" else "in each layer"
    kappa = _figure(norm_cap["kappa"], "g")
    times = "" if norm_cap["kappa"] == 1 else f"{kappa} times "
    return f"kappa {kappa}: {where}, the others together have at least {times}a source's squared norm"


def setting_text(value: object) -> str:
    """Return a setting's value as text for people; a switch is spelt as in the file."""
    return ("false", "true")[value] if isinstance(value, bool) else str(value)


def published_name(rules: Iterable[str]) -> str:
    """Return the name of what the target publishes beside the model under these rules."""
    return next((PUBLISHED_OF_THE_TARGET[rule] for rule in rules if rule in PUBLISHED_OF_THE_TARGET), "target's update")


def releases_text(releases: TargetReleases) -> str:
    """Describe how often the target's published vector left it; empty if never."""
    if not releases["headers"]:
        return ""
    noise = "without noise" if releases["noise"] == "none" else f"with {releases['noise']}"
    updates, headers = counted(releases["updates"], "vector"), counted(releases["headers"], "header")
    return f"{updates} in {headers}, to {counted(len(releases['recipients']), 'source')}, {noise}"


def spent_text(privacy: PrivacySpent) -> str:
    """Describe how much of the target's budget is spent."""
    return (
        f"epsilon {_bound(privacy['epsilon'])} of {_figure(privacy['limit'], 'g')} spent at delta "
        f"{_figure(privacy['delta'], 'g')} "
        f"by {privacy['accountant']}, per row, over all rounds of its ledger"
    )


def comparison_text(summaries: Mapping[str, Summary], baselines: Mapping[str, Baseline]) -> str:
    """Return a table of several runs on the same data and seed, and of what the target reaches alone, one line each."""
    rows = [("rule", "target accuracy", "balanced", "final accuracy", "rounds", "bytes per source")]
    for name, one in baselines.items():
        balanced = percent(metrics_in(one).get("balanced_accuracy"))
        rows.append((name, percent(one["accuracy"]), balanced, percent(one["final"]), str(one["rounds"]), "-"))
    for rule, summary in summaries.items():
        sent = sum(summary.bytes_up.values()) + sum(summary.bytes_down.values())
        each = sent // max(len(summary.bytes_up), 1)
        balanced, final = percent(summary.target_metrics.get("balanced_accuracy")), percent(summary.final_accuracy)
        rows.append((rule, percent(summary.target_accuracy), balanced, final, str(summary.rounds), f"{each:,}"))
    return aligned(rows)


def percent(value: float | None) -> str:
    """Return a fraction in percent, or a dash for None."""
    return "-" if value is None else f"{100 * value:.1f} %"


def _figure(value: float | None, form: str) -> str:
    """Return a number in this form; in a file, one that was not finite is None."""
    return "-" if value is None else format(value, form)


def _bound(epsilon: float | None) -> str:
    """Return an epsilon, rounded up; likewise."""
    return "-" if epsilon is None else bound_text(epsilon)


def verdict(summary: Mapping[str, Any]) -> tuple[str, str]:
    """Explain what was protected and what was not, a paragraph each, from the contents of a ``summary.json``.

    Raises:
        KeyError: the summary has no levels; of a run that has not ended nothing is claimed.
    """
    levels: Mapping[str, str] = summary["visibility"]
    strategy, norm_cap = summary.get("strategy", {}), summary.get("norm_cap")
    released = summary.get("target_releases") or {}
    rule, filtered = str(strategy.get("rule", "")), bool(strategy.get("filter", True))
    return (
        protected(levels, rule, norm_cap=norm_cap),
        unprotected(
            levels,
            rule,
            sent_to=tuple(released.get("recipients", {})),
            filtered=filtered,
            norm_cap=norm_cap,
            privacy=summary.get("target_privacy"),
            sent_noise=released.get("noise", "none"),
        ),
    )


def protected(levels: Mapping[str, str], rule: str, *, norm_cap: Mapping[str, Any] | None = None) -> str:
    """Describe what the aggregator could not see.

    Args:
        levels: source id -> level at which most was seen of it.
        rule: the rule of the run's strategy.
        norm_cap: the norm cap as in ``summary.json``; None where there was none.
    """
    if rule in RULES_WITHOUT_SOURCES:
        return f"Protected: under {rule} the sources contribute nothing, so neither rows nor updates left any of them."
    masked = _at(levels, "sum", "cohort")
    if not masked:
        each = "the second moments of each source" if rule == ANALYTIC else "each source's update"
        return (
            f"Protected: training data never left its site; but {each} went to the aggregator in clear inside mutual "
            "TLS, which keeps out only others on the network."
        )
    summed, in_cohorts = _at(levels, "sum"), _at(levels, "cohort")
    opened = "one weighted sum per cohort and round" if in_cohorts else "one weighted sum per round"
    if summed and in_cohorts:
        of_sum, of_cohorts = (first_of(sites, _NAMED_SITES) for sites in (summed, in_cohorts))
        opened = f"in each round one weighted sum of {of_sum} and one per cohort of {of_cohorts}"
    what, counts = "update", "row counts, and any losses and accuracies that left,"
    nothing = f"no single update{'' if len(masked) == len(levels) else ' of theirs'}"
    if rule == ANALYTIC:
        what, counts, nothing = "second moments", "row counts", "no single source's"
    return (
        f"Protected: training data never left its site, and the {what} of {_all_or_named(masked, levels)} left it only "
        f"under masks, so that the aggregator, which runs at the target, could open {opened} and "
        f"{nothing}; {counts} went the same way. Sources that collude with it, up to the max-colluders of the "
        f"policies, can only take their own terms out of a sum.{_bounded(levels, norm_cap)}"
    )


def unprotected(
    levels: Mapping[str, str],
    rule: str,
    *,
    sent_to: Sequence[str] = (),
    filtered: bool = True,
    norm_cap: Mapping[str, Any] | None = None,
    privacy: Mapping[str, Any] | None = None,
    sent_noise: str = "none",
) -> str:
    """Describe what stayed visible, and to whom.

    Args:
        levels: as for `protected`, and so are ``rule`` and ``norm_cap``.
        rule: of the strategy.
        sent_to: sources that were sent the target's own update.
        filtered: ``strategy.filter``.
        norm_cap: the norm cap.
        privacy: what the target's rows have cost, as in ``summary.json``; None where it trained without noise.
        sent_noise: the noise in what the target sent to sources, ``none`` or its name.
    """
    if rule in RULES_WITHOUT_SOURCES:
        if privacy is not None:
            return f"Not protected: {_of_the_target(privacy)}."
        return "Not protected: no noise was added, so the final model may reveal something of the target's rows."
    parts = []
    if clear := _at(levels, "individual"):
        what, beside = "every single update", "its row count, and any loss or accuracy that left"
        if rule == ANALYTIC:
            what, beside = "the second moments", "its row count"
        parts.append(f"the aggregator saw {what} of {_all_or_named(clear, levels)}, and {beside}")
    if _at(levels, "cohort"):
        parts.append(
            "cohorts are drawn again for every round, so the sums of many rounds together can tell more of one source "
            "than one sum does"
        )
    if sent_to:
        who = "the sources saw" if len(sent_to) == len(levels) else f"{first_of(sent_to, _NAMED_SITES)} alone saw"
        parts.append(f"{who} {_SEEN_OF_THE_TARGET.get(rule, _TARGET_UPDATE)}")
        if rule in _WITH_GAP_GRADIENT and _at(levels, "sum"):
            parts.append("those at sum also saw the gradient of the gap of these features")
    if _at(levels, "sum"):
        parts.append(_of_the_sum(rule, filtered, norm_cap))
    if rule == ANALYTIC:
        parts.append(
            "unless the sources add noise, the second moments show how many rows each class has, and a row that is the "
            "only one of its class or category"
        )
    if privacy is None:
        apart = "" if sent_noise == "none" else " but to these features"
        parts.append(
            f"the target added no noise{apart}, and without noise sums and the final model may reveal something of the "
            "rows behind them"
        )
    else:
        parts.append(_of_the_target(privacy))
        parts.append("of a source's rows, sums and the final model may reveal something unless it trained with noise")
    return f"Not protected: {'; '.join(part for part in parts if part)}."


_TARGET_UPDATE = "the target's own update, from which they evaluate the rule"
_FEATURES = "features of some of the target's rows, from which one can make much of the rows unless they have noise"
_SEEN_OF_THE_TARGET = {
    "fada_attention": "the gradient of the gap of the target's features, from which they evaluate the rule",
    "fada_adversarial": _FEATURES,
    "fada": _FEATURES,
    "f_dann": _FEATURES,
    "f_dan": _FEATURES,
}


_WITH_GAP_GRADIENT = ("fada_adversarial", "fada")
"""Rules under which sources at ``sum`` get the gradient of the gap beside what `_SEEN_OF_THE_TARGET` says."""


def _bounded(levels: Mapping[str, str], norm_cap: Mapping[str, Any] | None) -> str:
    """State the claim of the norm cap, for the sources at ``sum``."""
    if not norm_cap or not _at(levels, "sum"):
        return ""
    where = (
        "In every layer of the sum" if norm_cap["granularity"] == "layer" else "Over all layers of the sum together,"
    )
    times = (
        "as large a squared norm as"
        if norm_cap["kappa"] == 1
        else f"{_figure(norm_cap['kappa'], 'g')} times the squared norm of"
    )
    return (
        f" {where} the other sources that count held together at least {times} any one's contribution: a bound on "
        "lengths, not on directions."
    )


def _of_the_target(privacy: Mapping[str, Any]) -> str:
    """Describe what noise at the target does not hide."""
    if privacy["epsilon"] == 0:
        return "the target trains with noise, and no round has used its rows yet"
    return (
        "the target trained with noise: what left it tells of any one of its rows as much as epsilon "
        f"{_bound(privacy['epsilon'])} at delta {_figure(privacy['delta'], 'g')} allows, over all rounds that "
        "its ledger knows"
    )


def _of_the_sum(rule: str, filtered: bool, norm_cap: Mapping[str, Any] | None) -> str:
    """Describe what the one sum shows of a single source."""
    by_layer = norm_cap is not None and norm_cap["granularity"] == "layer"
    if norm_cap is None:
        shown = "nothing bounded how much of a sum is one source's contribution"
    else:
        per = "per layer" if by_layer else "for the model as a whole"
        shown = (
            "the sources at sum saw of each other how large each contribution was, to within a factor, one number "
            f"{per}; one that colludes could tell the aggregator"
        )
    if not _may_project(rule):
        return shown
    if filtered and not by_layer:
        return f"{shown}; a layer in which one source alone points the target's way shows that source's contribution"
    if not filtered and norm_cap is not None:
        return f"{shown}; {_CANCELLING}"
    return shown


def _may_project(rule: str) -> bool:
    return rule.startswith("fedgp") or rule == "auto"


def _at(levels: Mapping[str, str], *wanted: str) -> list[str]:
    return [site for site, level in levels.items() if level in wanted]


def _all_or_named(sites: Sequence[str], levels: Mapping[str, str]) -> str:
    return "every source" if len(sites) == len(levels) else first_of(sites, _NAMED_SITES)
