"""The run report in Chromium: no name in a figure is cut off, at both widths."""

from __future__ import annotations

from pathlib import Path

import pytest
from browser import CHROMIUM, NARROW, WIDE, browser

from securefda.operations.records import RoundLine
from securefda.operations.report import render_report
from securefda.operations.run_folder import RunRecord

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine: apt-get install chromium")

PHASES = (
    *("train_target", "training and R0 advertise", "R1 shares", "R2 masked input", "R3 survivors", "R4 unmask"),
    *("rule", "evaluate", "witness"),
)
CUT_NAMES = """
[...document.querySelectorAll('svg text, .legend li')].filter(text => {
  const [name, figure] = [text, text.closest('figure')].map(one => one.getBoundingClientRect());
  return name.left < figure.left || name.right > figure.right || name.bottom > figure.bottom;
}).map(text => text.textContent)
"""
NAMES = "[...document.querySelectorAll('.legend li')].map(text => text.textContent)"


def test_the_names_of_all_phases_are_whole(tmp_path: Path) -> None:
    rounds = tuple(
        RoundLine(round=number, accuracy=0.5, status="finished", seconds=dict.fromkeys(PHASES, 0.25))
        for number in range(1, 9)
    )
    page = tmp_path / "report.html"
    page.write_text(render_report(RunRecord(tmp_path, None, rounds, {})))
    with browser() as tab:
        for width in (WIDE, NARROW):
            tab.open(page, width)
            assert "collecting signatures of who is in the sum" in tab.evaluate(NAMES)
            assert tab.evaluate(CUT_NAMES) == []
