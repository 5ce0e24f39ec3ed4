"""The study of features without labels: the distance, its runs, its picture and its table."""

import numpy as np
import pytest
from benchmark_studies import imported_study


@pytest.fixture(scope="module")
def study():
    with imported_study("domain_features") as module:
        yield module


def test_features_that_are_alike_have_a_distance_near_zero_and_those_far_apart_of_two(study):
    draws = np.random.default_rng(1)
    some, others = (draws.normal(size=(600, 8)).astype(np.float32) for _ in range(2))
    assert study.a_distance(some, others) < 0.3
    assert study.a_distance(some, others + 4) > 1.9


def test_each_rule_is_run_as_the_suite_runs_it_with_the_target_of_the_picture(study, tmp_path):
    for rule in study.RULES:
        config = study.Cell(rule, tmp_path).job(()).config
        assert (config.strategy.rule, config.federation.target) == (rule, study.TARGET)
        assert config.privacy.visibility == "sum"


def test_the_picture_has_as_many_rows_of_the_target_as_of_the_sources(study, tmp_path):
    draws = np.random.default_rng(2)
    target, others = (draws.normal(size=(study.ROWS, 16)).astype(np.float32) for _ in range(2))
    points = study.picture(target, others)
    assert points.shape == (2 * study.DRAWN, 2)
    rows = [{"rule": "fada", "accuracy": 61.26, "distance": 1.5, "points": points.tolist()}]
    assert "| fada | 1.50 | 61.3 |" in study.tables(rows)["distances"].splitlines()
    study.plot(rows, tmp_path / "picture.svg")
    assert "fada, A-distance 1.50" in (tmp_path / "picture.svg").read_text()
