"""What comparing the logs with each other said, for the audit page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from securefda.cli.audit_report_sources import Sources


@dataclass(frozen=True, slots=True)
class Comparison:
    """What comparing the logs with each other said.

    Attributes:
        done: whether there was anything to compare.
        findings: one line each, the first divergence first.
        checked: what was compared, and how much of it.
        unchecked: what could not be compared, and why.
    """

    done: bool
    findings: tuple[str, ...] = ()
    checked: tuple[tuple[str, str], ...] = ()
    unchecked: tuple[str, ...] = ()


def compare(sources: Sources, roster: Path | None) -> Comparison:
    """Hold the logs against each other, if there are two at least."""
    return Comparison(False, unchecked=("securefda audit reconcile does that.",))
