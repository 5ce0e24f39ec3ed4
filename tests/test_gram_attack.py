"""The study of second moments: each attack wins where it must, and the committed figures keep their controls."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import ModuleType

import numpy as np
import pytest
from benchmark_studies import imported_study


@pytest.fixture(scope="module")
def study() -> Iterator[ModuleType]:
    with imported_study("gram_attack") as module:
        yield module


@pytest.fixture
def pool(study: ModuleType):
    """Rows with six features, the last of which one row in twenty has, and two classes."""
    numbers = np.random.default_rng(0)
    features = np.column_stack([numbers.normal(size=(2000, 5)), numbers.random(2000) < 0.05])
    return study.Pool(features, np.where(numbers.random(2000) < 0.1, 1.0, -1.0)[:, None])


def test_a_row_that_is_alone_in_its_class_or_category_is_read_and_no_other(study: ModuleType, pool) -> None:
    features, codes = pool.features[:20].copy(), -np.ones((20, 1))
    features[:, 5], features[3, 5], codes[8] = 0.0, 1.0, 1.0
    small = study.Pool(features, codes)
    by_class, by_feature = study.candidate_rows(small.moments(np.arange(20)), small)
    assert study.read(by_class, features) == {8}
    assert study.read(by_feature, features) == {3}


@pytest.mark.parametrize("classes", [2, 4])
def test_moments_of_features_and_labels_follow_from_what_is_opened(study: ModuleType, pool, classes: int) -> None:
    labels = np.random.default_rng(1).integers(0, classes, len(pool.features))
    codes = np.eye(classes)[labels] - 1 / classes
    for of in (study.Pool(pool.features, codes), study.Pool(pool.features, 2 * codes[:, 1:])):
        vectors = of.vectors[:50]
        found = study.extended(of.moments(np.arange(50)), of)
        np.testing.assert_allclose(found, (vectors.T @ vectors)[: len(found), : len(found)], atol=1e-12)


def test_members_are_told_apart_where_rows_are_few_and_hardly_where_they_are_many(study: ModuleType, pool) -> None:
    few, many = study.one_draw(pool, 1, 5, 0), study.one_draw(pool, 10, 150, 0)
    assert few["auc"] == 1.0
    assert many["auc"] < 0.6
    assert few["moments.min-rows"] == many["refused"] + 1 == 1.0


def test_the_committed_figures_keep_their_controls(study: ModuleType) -> None:
    assert study.misses(json.loads(study.FIGURES.read_text())["rows"]) == []


def test_a_control_that_fails_is_said(study: ModuleType) -> None:
    row = {"study": "made up", "sources": 1, "rows": 4, "numbers": 9, "by_class": 0.0, "by_feature": 0.0}
    wrong = study.misses([row | {"auc": 0.7, "null": 0.8, "read_under_policy": 0.5}])
    assert len(wrong) == 3
    exact = {"study": "prevalence", "sources": 1, "r2": 0.9}
    assert study.misses([exact]) == ["prevalence is not exact at N = 1: 0.9"]
