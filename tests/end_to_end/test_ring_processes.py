"""Processes whose sources share with neighbours: the run completes, and the logs agree."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from e2e_processes import kits

from securefda.cli import main

SETTINGS = ("session.graph=k-regular", "privacy.norm-cap-kappa=0.0", "strategy.rounds=1")


def test_processes_sum_among_neighbours_and_their_logs_agree(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with kits(tmp_path, 10, settings=SETTINGS) as federation:
        processes = federation.start_all()
        ends = {site: process.end() for site, process in processes.items()}
        capsys.readouterr()
        trusted = str(federation.kit("target") / "startup/roster.json")
        agreed = main(["audit", "reconcile", str(tmp_path), "--roster", trusted, "--format", "json"])
        found = json.loads(capsys.readouterr().out)["data"]
        asked = main(["policy", "explain", str(federation.kit("target"))])
        words = capsys.readouterr().out
    assert set(ends.values()) == {0}
    rounds = federation.rounds()
    assert [len(line["survivors"]) for line in rounds] == [10]
    assert (agreed, found["findings"], found["verdict"]["severity"]) == (0, [], "fine")
    assert (found["counts"]["headers"], found["counts"]["releases"]) == (1, 10)
    assert asked == 0
    assert 'session.graph "k-regular": each source agrees on masks and exchanges shares of keys with a few' in words
