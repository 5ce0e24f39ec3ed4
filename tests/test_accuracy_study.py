"""The scripts behind the accuracy figures, run as a reader of the README runs them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


def study(*arguments):
    command = [sys.executable, BENCHMARKS / "accuracy.py", *arguments, "--format", "json", "--check"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=550)
    assert ran.returncode in (0, 1), ran.stderr
    result = json.loads(ran.stdout)
    assert bool(result["misses"]) == bool(ran.returncode)
    return result


def test_on_digits_fedgp_auto_beats_either_side_alone():
    result = study("digits", "--rules", "source_only", "target_only", "fedgp_auto")
    mean = {rule: figures["average"] for rule, figures in result["rules"].items()}
    assert result["seeds"] == [0, 1, 2]
    assert mean["fedgp_auto"] >= mean["target_only"] + 2
    assert mean["fedgp_auto"] >= mean["source_only"] + 20
    assert not result["misses"]


@pytest.mark.data
@pytest.mark.timeout(600)  # 60 runs of 55 rounds: about a minute on an idle core
def test_on_fed_heart_both_auto_rules_reach_the_published_accuracy(fed_heart_data):
    rules = ("source_only", "fedda_auto", "fedgp_auto")
    result = study("fed-heart", "--data-dir", fed_heart_data, "--rules", *rules)
    mean = {rule: figures["average"] for rule, figures in result["rules"].items()}
    assert result["seeds"] == [0, 1, 2, 3, 4]
    assert set(result["rules"]["fedgp_auto"]["targets"]) == {"cleveland", "hungarian", "switzerland", "va"}
    assert mean["fedgp_auto"] >= 74.8
    assert mean["fedda_auto"] >= 75.0
    assert mean["source_only"] <= min(mean["fedgp_auto"], mean["fedda_auto"]) - 6
    assert not result["misses"]
