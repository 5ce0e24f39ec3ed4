"""The summary of a run as text for people."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from securefda.cli.output import aligned
from securefda.rounds.records import Summary
from securefda.rounds.run_folder import REPORT_FILE


def run_text(summary: Summary, folder: Path) -> str:
    """A few aligned lines on one run."""
    rows = [
        ("target accuracy", f"{percent(summary.target_accuracy)} (mean of the last rounds, at most 5)"),
        ("final accuracy", percent(summary.final_accuracy)),
        ("rounds", f"{summary.rounds} of {summary.rounds_planned}" + _lost(summary)),
        ("seconds per round", f"{sum(summary.seconds_by_phase.values()):.2f}"),
        ("bytes up", f"{sum(summary.bytes_up.values()):,}"),
        ("bytes down", f"{sum(summary.bytes_down.values()):,}"),
    ]
    rows.extend((f"dropped {site}", f"in {count} rounds") for site, count in summary.dropped.items())
    for site, keys in summary.refusals.items():
        rows.extend((f"refused by {site}", f"{key} in {count} rounds") for key, count in keys.items())
    rows.append(("report", str(folder / REPORT_FILE)))
    return aligned(rows)


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


def _lost(summary: Summary) -> str:
    return f", {summary.rounds_lost} lost" if summary.rounds_lost else ""
