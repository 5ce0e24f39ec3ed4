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


@pytest.mark.skipif(not DEEP, reason="24 runs of 55 rounds, in make test-deep")
@pytest.mark.timeout(1800)
def test_on_fed_heart_with_public_scaling_the_sources_help(tmp_path):
    chosen = ("--data", "fed-heart-public", "--seeds", "2", "--rules", "source_only,warm_target,fedda_auto")
    result = suite("fed-heart", tmp_path, *chosen)
    hospitals = {rule: of_rule["fed-heart-public"] for rule, of_rule in result["means"].items()}
    mean = {rule: sum(of_rule.values()) / 4 for rule, of_rule in hospitals.items()}
    assert set(hospitals["fedda_auto"]) == {"cleveland", "hungarian", "switzerland", "va"}
    assert mean["fedda_auto"] >= 79
    assert mean["fedda_auto"] >= mean["warm_target"] + 2
    assert mean["fedda_auto"] >= mean["source_only"] + 6
    assert not result["misses"]
