"""The model card of a run: what a model is, from what and how it was made, and how good it is.

It holds what the run's records hold, for people (Markdown) and programs (JSON). It names no path and no option of the
task, so that it can go where the model goes.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from securefda.formats import MODEL_CARD
from securefda.operations.records import REPORTED_ROUNDS, best_round, chosen_metric, metrics_in
from securefda.operations.run_folder import CARD_FILE, CARD_JSON_FILE, RunRecord, finite, read_run, replace_file
from securefda.operations.summary_text import BASELINES, difference_text, levels_in, setting_text, shared_in
from securefda.rules.strategy import Rule
from securefda.task_metric import TaskMetric, with_balance
from securefda.text import bound_text, counted, printable

_UNKNOWN = "known to that site alone"
_MARKS = str.maketrans("", "", "`|\n")
_PERSONAL = tuple(rule for rule in Rule if rule.is_personal)
"""Rules that measure a model of the target's own, where the files hold the common one."""


def card_of(record: RunRecord) -> dict[str, Any]:
    """Return the card of a run that has ended, as plain values.

    A source's rows, its ε and the digest of its policy are there where its own records are in the run folder, as of a
    run on one machine; elsewhere they stay at the source.
    """
    summary = record.summary or {}
    setting, privacy = summary.get("setting") or {}, summary.get("target_privacy")
    rule, sources = (summary.get("strategy") or {}).get("rule"), list[dict[str, Any]]()
    levels = levels_in(summary)
    for site in setting.get("sources", []):
        lines: list[dict[str, Any]] = [{**line} for line in record.sites.get(site, ()) if "refused" not in line]
        last = lines[-1] if lines else {}
        known: dict[str, Any] = {key: last[key] for key in ("samples", "epsilon", "delta", "policy") if key in last}
        sources.append({"site": site, "visibility": levels.get(site), **known})
    spent = {key: privacy[key] for key in ("epsilon", "delta", "accountant")} if privacy else {}
    best, adapted, last_digest = best_round(record.rounds), summary.get("adapted"), summary.get("model_digest")
    metrics = {
        "last_rounds": {"accuracy": summary.get("target_accuracy"), "metrics": summary.get("target_metrics")},
        "last_round": {"accuracy": summary.get("final_accuracy"), "metrics": summary.get("final_metrics")},
        **{key: summary.get(key) or {} for key in ("target_only", "warm_target", "best")},
        "adapted": adapted if adapted and adapted["kept"] else {},
    }
    return {
        "schema_version": MODEL_CARD.number,
        "task": summary.get("task"),
        "federation": setting.get("federation"),
        "run": summary.get("run_id"),
        "ended": summary.get("ended"),
        "status": summary.get("status"),
        "rule": rule,
        "rounds": summary.get("rounds"),
        "rounds_planned": summary.get("rounds_planned"),
        "target": {"site": setting.get("target"), **spent},
        "sources": sources,
        "norm_cap": summary.get("norm_cap"),
        "models": {
            "last": {"round": summary.get("model_round"), "sha256": last_digest} if last_digest else None,
            "best": {"round": best["round"], "sha256": best.get("model_digest")} if best else None,
            "adapted": {"sha256": adapted["digest"]} if adapted and adapted["kept"] else None,
        },
        "metric": asdict(chosen_metric(summary, *record.rounds)),
        "evaluated": summary.get("evaluated", "global"),
        "models_measured": (summary.get("strategy") or {}).get("head", "none") == "none" and rule not in _PERSONAL,
        "metrics": {key: values for key, found in metrics.items() if (values := metrics_in(found))},
        "help": {key: found["help"] for key in BASELINES if (found := summary.get(key)) and "help" in found},
        "source_share": summary.get("source_share"),
        "versions": dict(summary.get("versions") or {}),
    }


def card_text(card: dict[str, Any]) -> str:
    """Return a card for people, in Markdown."""
    target, metric = card["target"], TaskMetric(**card["metric"])
    metrics = {key: values for key, values in card["metrics"].items() if metric.name in values}
    helped = [difference_text(found, BASELINES[key], metric) for key, found in card["help"].items()]
    share, warmed = card["source_share"], "warm_target" in metrics
    of = shared_in({"strategy": {"rule": card["rule"]}, "evaluated": card["evaluated"]}, warmed=warmed)
    noise = _bound(target) if "epsilon" in target else "none"
    last = min(REPORTED_ROUNDS, card["rounds"] or 0)
    of_last = f"mean of the last {last} rounds" if last > 1 else "after the only round"
    names = {**_METRICS, "last_rounds": of_last}
    lines = [
        f"# Model card: {_code(card['task'])}",
        "",
        f"Trained by federated domain adaptation (rule {_code(card['rule'])}) in {card['rounds']} of "
        f"{counted(card['rounds_planned'] or 0, 'round')}; the run {_code(card['run'])} {card['status']} "
        f"on {card['ended'] or 'an unknown date'}.",
        "",
        "## Sites",
        "",
        "| site | role | visibility | rows | privacy per row | policy (SHA-256) |",
        "|---|---|---|---|---|---|",
        f"| {_code(target['site'])} | target | | {_UNKNOWN} | {noise} | |",
        *(_source_row(source) for source in card["sources"]),
        "",
        "## Figures at the target",
        "",
        f"{metric.title[0].upper()}{metric.title[1:]} on the target's test rows, which trained no model.",
        "",
        *([] if card["models_measured"] or not metrics else [_OF_ITS_OWN, ""]),
        *([_UNTRAINED, ""] if card["rule"] == Rule.FEDREP else []),
        *(f"- {names[key]}: {with_balance(metric, values)}" for key, values in metrics.items()),
        *([] if metrics else ["- not measured"]),
        *([f"- {of_last}, compared: {', '.join(helped)}"] if helped else []),
        *([] if share is None else [f"- the sources' share of the {of}: {100 * share:.0f} %"]),
        "",
        "## Models",
        "",
        *(_model_line(name, model) for name, model in card["models"].items() if model),
        *([] if any(card["models"].values()) else ["- none: no round has finished"]),
        "",
        "## What it does not say",
        "",
        "A model is as good as its test rows are like yours. Without noise (ε) it can reveal rows that trained it.",
        "",
        f"Made with {', '.join(f'{name} {version}' for name, version in card['versions'].items())}.",
        "",
    ]
    return "\n".join(lines)


_OF_ITS_OWN = (
    "The run's figures are of a model of the target's own. The models below are the common one by itself, which was "
    "not measured."
)
_UNTRAINED = "The last layers stayed at each site. The models below have them as they were before the first round."
_METRICS = {
    "last_round": "last round",
    "target_only": "for comparison, the target alone",
    "warm_target": "for comparison, the target alone after warm-up",
    "best": "best round by validation rows",
    "adapted": "adapted to the target's rows",
}


def write_card(run: Path, beside: Path | None = None) -> None:
    """Write the card of a run that has ended, as Markdown and JSON, into its folder or beside an exported file.

    Raises:
        ConfigError: a file of the run is damaged.
        SecureFdaError: the disk is full or the folder cannot be written.
    """
    record = read_run(run)
    if record.summary is None:
        return
    card = card_of(record)
    text, data = (run / CARD_FILE, run / CARD_JSON_FILE)
    if beside is not None:
        text, data = (beside.with_name(f"{beside.name}.{suffix}") for suffix in ("card.md", "card.json"))
    replace_file(text, card_text(card).encode())
    content = json.dumps(finite(card), indent=2, ensure_ascii=False, allow_nan=False)
    replace_file(data, content.encode() + b"\n")


def _source_row(source: dict[str, Any]) -> str:
    noise = _bound(source) if "epsilon" in source else "none" if "samples" in source else _UNKNOWN
    policy = _code(source["policy"]) if "policy" in source else _UNKNOWN
    level, rows = source["visibility"] or "took no part", source.get("samples", _UNKNOWN)
    return f"| {_code(source['site'])} | source | {level} | {rows} | {noise} | {policy} |"


def _bound(spent: dict[str, Any]) -> str:
    """Return a site's ε, and its δ, which the records of earlier versions lack for a source."""
    return f"ε = {bound_text(spent['epsilon'])}" + (f" at δ = {spent['delta']:g}" if "delta" in spent else "")


def _model_line(name: str, model: dict[str, Any]) -> str:
    after = f"after round {model['round']}, " if "round" in model else ""
    return f"- {name}: {after}SHA-256 {_code(model['sha256'])}"


def _code(value: object) -> str:
    """Return a value as code, which no text of a run folder can leave."""
    return f"`{printable(setting_text(value)).translate(_MARKS)}`"
