"""The summary of a run as text for people."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from securefda.operations.records import NormCap, PrivacySpent, Summary, TargetReleases
from securefda.operations.run_folder import REPORT_FILE
from securefda.text import aligned

_NAMED = 10


def run_text(summary: Summary, folder: Path) -> str:
    """A few aligned lines on one run."""
    lost, cosine, rules = summary.rounds_lost, summary.target_cosine, summary.rounds_by_rule
    rows = [
        ("target accuracy", f"{percent(summary.target_accuracy)} (mean of the last rounds, at most 5)"),
        *([("measured", "a model of the target's own, not the common one")] if summary.evaluated == "personal" else []),
        ("final accuracy", percent(summary.final_accuracy)),
        ("rounds", f"{summary.rounds} of {summary.rounds_planned}{f', {lost} lost' if lost else ''}"),
        ("seconds per round", f"{sum(summary.seconds_by_phase.values()):.2f}"),
        ("bytes up", f"{sum(summary.bytes_up.values()):,}"),
        ("bytes down", f"{sum(summary.bytes_down.values()):,}"),
    ]
    rows.extend((f"dropped {site}", f"in {count} rounds") for site, count in summary.dropped.items())
    for site, keys in summary.refusals.items():
        rows.extend((f"refused by {site}", f"{key} in {count} rounds") for key, count in keys.items())
    spread = f"median {cosine['median']:.2f}, {cosine['smallest']:.2f} to {cosine['largest']:.2f}" if cosine else ""
    privacy = [
        ("rounds by rule", ", ".join(f"{rule} {count}" for rule, count in rules.items()) if len(rules) > 1 else ""),
        ("levels", levels_text(summary.visibility)),
        ("norm cap", norm_cap_text(summary.norm_cap) if summary.norm_cap else ""),
        ("g_T sent to sources", releases_text(summary.target_releases)),
        ("cosine of g_T and update", spread),
        ("target's privacy", spent_text(summary.target_privacy) if summary.target_privacy else ""),
    ]
    rows.extend((name, text) for name, text in privacy if text)
    rows.append(("report", str(folder / REPORT_FILE)))
    return aligned(rows)


def levels_text(visibility: Mapping[str, str]) -> str:
    """Sites by level, for example ``sum: hospital-a, hospital-b; individual: hospital-c``."""
    by_level: dict[str, list[str]] = {}
    for site, level in visibility.items():
        by_level.setdefault(level, []).append(site)
    parts = []
    for level, sites in by_level.items():
        more = f" and {len(sites) - _NAMED} more" if len(sites) > _NAMED else ""
        parts.append(f"{level}: {', '.join(sites[:_NAMED])}{more}")
    return "; ".join(parts)


def norm_cap_text(norm_cap: NormCap) -> str:
    """What the norm cap asked for; what it did to a part, only that part's source knows."""
    return f"kappa {norm_cap['kappa']:g} {'for the whole model' if norm_cap['granularity'] == 'model' else 'per layer'}"


def releases_text(releases: TargetReleases) -> str:
    """How often the target's update left the target; empty where it never did."""
    if not releases["headers"]:
        return ""
    noise = "without noise" if releases["noise"] == "none" else f"with {releases['noise']}"
    sites, updates = len(releases["recipients"]), releases["updates"]
    return f"{updates} updates in {releases['headers']} headers, to {sites} sources, {noise}"


def spent_text(privacy: PrivacySpent) -> str:
    """What the target's rows have cost of what they may."""
    return (
        f"epsilon {privacy['epsilon']:.4f} of {privacy['limit']:g} spent at delta {privacy['delta']:g} "
        f"by {privacy['accountant']}, per row, over all rounds of its ledger"
    )


def comparison_text(summaries: Mapping[str, Summary]) -> str:
    """A table of several runs on the same data and seed, one line each."""
    rows = [("rule", "target accuracy", "final accuracy", "rounds", "bytes per source")]
    for rule, summary in summaries.items():
        sent = sum(summary.bytes_up.values()) + sum(summary.bytes_down.values())
        each = sent // max(len(summary.bytes_up), 1)
        rows.append(
            (rule, percent(summary.target_accuracy), percent(summary.final_accuracy), str(summary.rounds), f"{each:,}")
        )
    return aligned(rows)


def percent(value: float | None) -> str:
    """A fraction in percent, or a dash where there is none."""
    return "-" if value is None else f"{100 * value:.1f} %"
