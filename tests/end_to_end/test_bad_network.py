"""A whole run over a network that delays, limits, cuts, falls silent and flips bits: the same model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from bad_network import BadNetwork, Conditions, Fault
from bad_network import main as show
from depth import at_depth
from e2e_processes import WAIT_S, Kits, free_port, kits

from securefda.cli import main

ROUNDS = at_depth(3, 20)
SETTINGS = (f"strategy.rounds={ROUNDS}", "strategy.warm-up-rounds=1", f"transport.heartbeat-s={at_depth(1, 2)}")
BAD = at_depth(
    Conditions(seed=7, delay_s=0.02, bytes_per_s=1_000_000, every=60_000),
    Conditions(seed=7, delay_s=0.2, bytes_per_s=125_000, every=100_000),
)
"""At depth: late by 200 ms and 1 Mbit/s, which all sources share."""


def run_over(federation: Kits, conditions: Conditions) -> tuple[dict[str, Any], BadNetwork]:
    """Run all sites, the sources over such a network, with draws that can be repeated."""
    behind = free_port()
    with BadNetwork(("127.0.0.1", federation.port), ("127.0.0.1", behind), conditions) as network:
        own = {federation.target: (f"transport.listen=127.0.0.1:{behind}", "aggregator.repeatable-training=true")}
        sites = {
            site: federation.start(site, *own.get(site, ("source.repeatable-training=true",)))
            for site in (federation.target, *federation.names)
        }
        for process in sites.values():
            process.end(at_depth(WAIT_S, 1800.0))
    return sites, network


def test_a_run_over_a_bad_network_ends_with_the_model_of_a_good_one(tmp_path: Path) -> None:
    models = []
    for name, conditions in (("good", Conditions()), ("bad", BAD)):
        with kits(tmp_path / name, settings=SETTINGS) as federation:
            sites, network = run_over(federation, conditions)
            assert [process.end() for process in sites.values()] == [0] * 4
            models.append([(line["round"], line["status"], line["model_digest"]) for line in federation.rounds()])
            for site in sites:
                (log,) = (federation.kit(site) / "local" / "audit").iterdir()
                assert main(["audit", "verify", str(log)]) == 0
    assert len(models[0]) == ROUNDS
    assert models[0] == models[1]
    assert network.struck.total() >= 5


def test_the_faults_of_a_seed_can_be_repeated_and_printed(capsys: pytest.CaptureFixture[str]) -> None:
    conditions = Conditions(seed=7, every=60_000)
    drawn = [conditions.fault_of("10.0.0.1", number) for number in range(1, 41)]
    assert drawn == [Conditions(seed=7, every=60_000).fault_of("10.0.0.1", number) for number in range(1, 41)]
    assert {fault.kind for fault in drawn if fault} == {"cut", "silence", "flip"}
    assert drawn != [Conditions(seed=8, every=60_000).fault_of("10.0.0.1", number) for number in range(1, 41)]
    assert drawn != [conditions.fault_of("10.0.0.2", number) for number in range(1, 41)]
    assert Conditions(first=(Fault("cut", "up", 9),)).fault_of("10.0.0.1", 1) == Fault("cut", "up", 9)
    assert show(["--seed", "7", "--every", "60000", "--line", "10.0.0.1", "--show", "40"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line.partition(": ")[2] for line in printed] == [str(fault) for fault in drawn]
