"""The audit of noisy moments: it proves no more than was spent, and finds a site that adds too little noise."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from benchmark_studies import imported_study


@pytest.fixture(scope="module")
def study() -> Iterator[ModuleType]:
    with imported_study("moments_audit") as module:
        yield module


@pytest.mark.parametrize(("noise", "charged_as"), [(2.0, None), (0.5, 2.0)])
def test_only_a_site_with_less_noise_than_it_is_charged_for_is_found(
    study: ModuleType, tmp_path: Path, noise: float, charged_as: float | None
) -> None:
    # Seed 1. An honest site is found by chance in 5 % of the seeds, one with a quarter of the noise in most.
    random_bytes = np.random.default_rng(1).bytes
    outcome = study.audited(
        study.Run(noise, charged_as=charged_as), releases=400, random_bytes=random_bytes, folder=tmp_path
    )
    assert outcome.epsilon == pytest.approx(2.17, abs=0.01)
    assert outcome.bound > 0.1
    assert outcome.is_as_it_should_be
