"""What people read of a run whose target was measured with a model of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from securefda.local.simulator import simulate
from securefda.operations.progress import SilentReporter
from securefda.operations.report import render_report
from securefda.operations.run_folder import read_run
from securefda.operations.summary_text import run_text
from securefda.samples import sample
from securefda.site.config import load_federation


@pytest.mark.parametrize(("rule", "said"), [("ditto", True), ("fedavg", False)])
def test_a_model_of_the_targets_own_is_called_so(tmp_path: Path, rule: str, said: bool) -> None:
    settings = [f"strategy.rule={rule}", "strategy.rounds=1", "strategy.warm-up-rounds=0"]
    summary = simulate(load_federation(sample("digits"), settings), tmp_path, 0, SilentReporter())

    assert ("a model of the target's own" in run_text(summary, tmp_path)) is said
    assert ("one of the target&#39;s own, not the common" in render_report(read_run(tmp_path))) is said
