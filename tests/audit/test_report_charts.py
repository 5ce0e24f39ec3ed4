"""The figures of an audit page: where there are none, the page says why."""

from __future__ import annotations

from pathlib import Path

import pytest
from run_builder import Run

from securefda.audit.report.party_charts import run_charts
from securefda.audit.report.sources import read_sources

pytestmark = pytest.mark.usefixtures("no_disk_sync")


def test_a_run_folder_that_cannot_be_read_gives_no_chart_and_the_reason(tmp_path: Path) -> None:
    folder = Run(tmp_path).write()
    assert run_charts(read_sources(folder)) == ((), "")
    (folder / "summary.json").write_text("{")
    charts, why = run_charts(read_sources(folder))
    assert charts == ()
    assert why.startswith("the run folder's figures cannot be read: ")
