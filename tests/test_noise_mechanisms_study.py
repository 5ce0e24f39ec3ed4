"""The computed noise of other mechanisms: its matrices, its multipliers, and the committed figures."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import ModuleType

import numpy as np
import pytest
from benchmark_studies import imported_study
from opacus.accountants import RDPAccountant


@pytest.fixture(scope="module")
def study() -> Iterator[ModuleType]:
    with imported_study("noise_mechanisms") as module:
        yield module


def test_what_one_row_adds_in_different_epochs_is_orthogonal_and_of_norm_one(study):
    epoch, epochs = 5, 4
    strategy = study.band(epoch * epochs, epoch)
    for batch in range(epoch):
        of_row = strategy[:, batch::epoch]
        assert np.allclose(of_row.T @ of_row, np.eye(epochs))


def test_the_square_root_has_less_noise_than_fresh_noise_and_a_band_of_one_is_that(study):
    fresh = np.sqrt(np.arange(1, 21))
    assert np.allclose(study.noise_of_sums(study.band(20, 1)), fresh)
    whole = study.band(20, 20)
    square = np.tril(np.ones((20, 20)))
    first = whole[:, 0] / whole[0, 0]
    toeplitz = sum(np.diag(np.full(20 - k, first[k]), -k) for k in range(20))
    assert np.allclose(toeplitz @ toeplitz, square)
    assert np.mean(study.noise_of_sums(whole) ** 2) < np.mean(fresh**2) / 2


def test_steps_at_the_multiplier_spend_epsilon(study):
    accountant = RDPAccountant()
    accountant.history = [(study.multiplier(4.0, 0.5, 20), 0.5, 20)]
    assert 3.9 < accountant.get_epsilon(study.DELTA) <= 4.0


def test_committed_figures_are_those_that_the_script_computes(study):
    assert json.loads(study.FIGURES.read_text())["rows"] == study.computed()
