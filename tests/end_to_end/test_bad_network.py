"""A whole run over a network that delays, limits, cuts, falls silent and flips bits: the same model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from bad_network import BadNetwork, Conditions, Fault
from bad_network import main as show
from depth import at_depth
from e2e_processes import WAIT_S, Kits, kits
from free_ports import free_port

from securefda.cli import main

ROUNDS = at_depth(3, 5)
SETTINGS = (
    f"strategy.rounds={ROUNDS}",
    "strategy.warm-up-rounds=1",
    "transport.heartbeat-s=1",
    "transport.phase-deadline-s=600",  # a slow machine is no bad network
    "transport.reconnect-deadline-s=600",
    "transport.join-deadline-s=600",
)
BAD = at_depth(
    Conditions(seed=7, delay_s=0.02, bytes_per_s=1_000_000, every=60_000),
    Conditions(seed=7, delay_s=0.2, bytes_per_s=125_000, every=50_000),
)
"""At depth: late by 200 ms and 1 Mbit/s, which all sources share. The digits' model is about as long as ``every``."""


def run_over(federation: Kits, conditions: Conditions) -> tuple[dict[str, Any], BadNetwork]:
    """Run all sites, the sources over such a network one after the other, with draws that can be repeated."""
    behind = free_port()
    with BadNetwork(("127.0.0.1", federation.port), ("127.0.0.1", behind), conditions) as network:
        own = (f"transport.listen=127.0.0.1:{behind}", "aggregator.repeatable-training=true")
        sites = {federation.target: federation.start(federation.target, *own)}
        for name in federation.names:
            sites[name] = federation.start(name, "source.repeatable-training=true")
            sites[federation.target].until(f"{name} joined")
        for process in sites.values():
            process.end(at_depth(WAIT_S, 900.0))
    return sites, network


@pytest.mark.timeout(1800)
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
    assert network.struck.total() >= at_depth(5, 8)


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


def test_a_round_waits_for_a_source_that_it_needs_and_that_dials_again(tmp_path: Path) -> None:
    """The last source's line is cut while its update leaves, and what it dials next falls silent twice."""
    cut, silence = Fault("cut", "up", 20_000), Fault("silence", "up", 0)
    with kits(tmp_path, settings=("strategy.rounds=1", "transport.heartbeat-s=0.4")) as federation:
        sites, network = run_over(federation, Conditions(first=(None, None, None, None, None, cut, silence, silence)))
        assert [process.end() for process in sites.values()] == [0] * 4
        assert network.struck == {"cut": 1, "silence": 2}
        assert [line["status"] for line in federation.rounds()] == ["finished"]
        assert "source-3 left" in sites[federation.target].text
        assert "source-3 is back" in sites[federation.target].text
