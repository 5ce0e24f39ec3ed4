"""The studies of features and of rounds without labels: what they compute of what was measured."""

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def studies():
    sys.path.insert(0, str(BENCHMARKS))
    yield importlib.import_module("domain_features"), importlib.import_module("domain_rounds")
    sys.path.remove(str(BENCHMARKS))
    for name in ("domain_features", "domain_rounds", "federated", "studies"):
        sys.modules.pop(name, None)


def test_features_that_are_alike_have_a_distance_near_zero_and_those_apart_one_of_two(studies):
    draws = np.random.default_rng(1)
    some, others = (draws.normal(size=(600, 8)).astype(np.float32) for _ in range(2))
    assert studies[0].a_distance(some, others) < 0.3
    assert studies[0].a_distance(some, others + 4) > 1.9


def test_each_rule_is_run_as_the_suite_runs_it_with_the_target_of_the_picture(studies, tmp_path):
    features = studies[0]
    for rule in features.RULES:
        config = features.Cell(rule, tmp_path).job(()).config
        assert (config.strategy.rule, config.federation.target) == (rule, "mnist-m")
        assert config.training.target.release_features


def row(rule, level, seconds):
    return {"rule": rule, "level": level, "seconds": seconds, "bytes_up": 1_000_000, "bytes_down": 2_500_000}


def test_a_masked_round_that_takes_too_long_is_a_miss_and_so_is_a_long_run(studies):
    rounds = studies[1]
    rows = [row("fada", "individual", 10.0), row("fada", "sum", 13.0)]
    assert "| fada | 10.00 | 13.00 | 1.30 | 1,000 | 1,000 | 2,500 | 2,500 |" in rounds.tables(rows)["rounds"]
    assert rounds.misses(rows) == []
    assert rounds.misses([rows[0], row("fada", "sum", 13.1)]) == [
        "MISSED: fada: a round at sum takes 1.31 times one at individual, may 1.3"
    ]
    assert rounds.misses([row("fada", "individual", 100.0), row("fada", "sum", 100.0)]) == [
        "MISSED: a run of fada takes 20.0 minutes, may 10"
    ]
