"""The study of hospitals: its Cox model, and the intervals over patients."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import numpy as np
import pytest
from benchmark_studies import imported_study

from securefda.samples import sample
from securefda.site.config import load_federation
from securefda.tasks import TaskSettings
from securefda.tasks.tabular import Tabular


@pytest.fixture(scope="module")
def study() -> Iterator[ModuleType]:
    with imported_study("one_round_hospitals") as module:
        yield module


def test_the_cox_model_solves_its_equation_of_two_rows(study: ModuleType) -> None:
    """A row of 1 has the event and one of 0 outlives it: -1 / (1 + e^w) + 2 ridge w = 0."""
    (weight,) = study._cox([(np.array([[1.0], [0.0]]), np.array([1.0, 2.0]), np.array([1.0, 0.0]))], 0.1)
    assert 1 / (1 + np.exp(weight)) == pytest.approx(0.2 * weight, abs=1e-9)


def test_the_likelihoods_derivatives_are_those_of_differences(study: ModuleType) -> None:
    random = np.random.default_rng(0)
    times, events = random.integers(1, 6, 12).astype(float), random.integers(0, 2, 12).astype(float)
    part, weights, step = [(random.normal(size=(12, 3)), times, events)], random.normal(size=3), 1e-5
    _, gradient, curvature = study._cox_terms(part, weights)
    for place, to in enumerate(np.eye(3) * step):
        after, before = (study._cox_terms(part, weights + sign * to) for sign in (1, -1))
        assert (after[0] - before[0]) / (2 * step) == pytest.approx(gradient[place], abs=1e-6)
        assert (after[1] - before[1]) / (2 * step) == pytest.approx(curvature[place], abs=1e-6)


@pytest.mark.parametrize(("tied", "low"), [(True, 0.0), (False, 50.0)])
def test_an_interval_over_patients_is_of_differences_in_the_same_patients(
    study: ModuleType, tied: bool, low: float
) -> None:
    """Two columns that rank all pairs alike differ in no resample; one that ranks them all wrongly, in every one."""
    compared = np.tile(np.arange(40)[:, None] < 20, (1, 40)) & (np.arange(40) >= 20)
    right = {"labels": compared * 1.0, "target alone": compared * (1.0 if tied else 0.0)}
    one = {"rows": [bytes([row]) for row in range(40)], "compared": compared, "right": right}
    gained = study._summary({"north": [one, one]})["gains"]["target alone"]
    assert gained["low"] == pytest.approx(2 * low) == gained["high"] == gained["mean"]


@pytest.mark.parametrize(("name", "features"), [("eicu", 63), ("tcga_brca", 39)])
def test_a_federation_of_hospitals_reads_the_columns_that_the_page_says(name: str, features: int) -> None:
    config = load_federation(sample(name), (), {})
    federation = config.federation
    task = Tabular(TaskSettings(federation.target, federation.sources, options=config.task.options))
    assert len(task.feature_names()) == features
