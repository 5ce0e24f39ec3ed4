"""The suites whose figures the README states, run as a reader of the README runs them."""

import json
import subprocess
import sys

import pytest
from depth import DEEP, at_depth


def suite(name, out, *arguments):
    command = [sys.executable, "-m", "securefda.cli", "bench", "accuracy", "--suite", name, "--out", out, *arguments]
    ran = subprocess.run([*command, "--check", "--format", "json"], capture_output=True, check=False, text=True)
    assert ran.returncode in (0, 1), ran.stderr
    data = json.loads(ran.stdout)["data"]
    assert bool(data["misses"]) == bool(ran.returncode), ran.stderr
    return data


@pytest.mark.timeout(1800)
def test_on_digits_fedgp_auto_beats_either_side_alone(tmp_path):
    seeds = at_depth(1, 3)
    result = suite("digits", tmp_path, "--seeds", str(seeds), "--rules", "source_only,target_only,fedgp_auto")
    mean = {rule: of_rule["digits"]["target"] for rule, of_rule in result["means"].items()}
    assert result["seeds"] == list(range(seeds))
    assert mean["fedgp_auto"] >= mean["target_only"] + 2
    assert mean["fedgp_auto"] >= mean["source_only"] + 20
    assert not result["misses"]


@pytest.mark.timeout(1800)
@pytest.mark.skipif(not DEEP, reason="160 runs of 55 rounds, in make test-deep")
def test_on_fed_heart_both_auto_rules_reach_the_published_accuracy(tmp_path):
    result = suite("fed-heart", tmp_path, "--rules", "source_only,warm_target,fedda_auto,fedgp_auto")
    hospitals = {rule: of_rule["fed-heart"] for rule, of_rule in result["means"].items()}
    mean = {rule: sum(of_rule.values()) / 4 for rule, of_rule in hospitals.items()}
    assert result["seeds"] == [0, 1, 2, 3, 4]
    assert set(hospitals["fedgp_auto"]) == {"cleveland", "hungarian", "switzerland", "va"}
    assert mean["fedgp_auto"] >= 74.8
    assert mean["fedda_auto"] >= 75.0
    assert mean["source_only"] <= min(mean["fedgp_auto"], mean["fedda_auto"]) - 6
    assert not result["misses"]
