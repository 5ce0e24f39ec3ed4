"""The canary audit: no honest run is above its ledger, and controls and faults are found."""

from __future__ import annotations

import sys

import pytest
from benchmark_studies import imported_study


@pytest.mark.parametrize("kind", [[], ["--moments"]])
def test_no_honest_run_is_above_its_ledger_and_the_fault_is_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kind: list[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["dp_audit.py", "--check", "--seed", "1", "--threads", "1", *kind])
    with imported_study("dp_audit") as study:
        study.main()
    assert "(!)" not in capsys.readouterr().out
