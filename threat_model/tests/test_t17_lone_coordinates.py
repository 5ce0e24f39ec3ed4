"""T17: coordinates of a sum that are one source's own, with noise at that source and without."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from torch import nn

from securefda.tasks import Samples
from securefda.training.trainer import SiteTrainer
from threat_model.adversaries.lone_coordinates import ReadsLoneCoordinates
from threat_model.privacy_bounds import guess_bound, too_many_right
from threat_model.private_sites import DELTA, Rows, plain_trainer, private_trainer, rows_of, sgd, spent
from threat_model.scores import RECOVERED_COSINE, cosine
from threat_model.sites import INPUTS, OUTPUTS
from threat_model.stage import MakesStage, Stage

VICTIM, N = 2, 3
RATE, NOISE = 0.5, 3.0
OWN = np.arange(24)
"""Features of the victim alone, each of which one of its rows has."""

PER_SITE = len(OWN)


def coded(index: int, labels: NDArray[np.int64]) -> Samples:
    """Rows with some features that all sites have, and at the victim one more in each, as a code of one row."""
    features = np.random.default_rng(index).normal(size=(PER_SITE, INPUTS)) / 8
    features[:, OWN] = np.eye(PER_SITE) if index == VICTIM else 0.0
    return rows_of(features, labels)


def drawn_classes(seed: int | None) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(0, OUTPUTS, PER_SITE)


def others() -> dict[int, SiteTrainer]:
    indices = set(range(1, N + 1)) - {VICTIM}
    return {index: plain_trainer(coded(index, drawn_classes(index)), sgd(RATE, PER_SITE)) for index in indices}


def played(staged: MakesStage, sites: dict[int, SiteTrainer]) -> Stage:
    return staged(N, aggregator=ReadsLoneCoordinates, trainers=sites).play()


# A feature of one source.


@pytest.mark.threat("T17")
@pytest.mark.control
def test_features_of_one_source_are_read_from_a_sum_with_the_class_of_every_row_without_noise(
    staged: MakesStage,
) -> None:
    labels = drawn_classes(VICTIM)
    victim = plain_trainer(coded(VICTIM, labels), sgd(RATE, PER_SITE))
    adversary = played(staged, others() | {VICTIM: victim}).adversary
    secret = victim.train(victim.initial_model(), 1, 1.0).update[: OUTPUTS * INPUTS].reshape(OUTPUTS, INPUTS)
    for feature in OWN:
        assert cosine(adversary.of_feature(feature), secret[:, feature]) > 1 - 1e-6
    assert list(adversary.classes(OWN)) == list(labels)


@pytest.mark.threat("T17")
def test_class_of_a_row_with_a_feature_of_its_own_is_read_no_better_than_epsilon_allows(
    staged: MakesStage, ledgers: Path
) -> None:
    """Classes and noise are drawn afresh. False alarms: 1e-6, by the binomial law under the bound."""
    labels = drawn_classes(None)
    victim = private_trainer(ledgers, coded(VICTIM, labels), sgd(RATE, PER_SITE, noise=NOISE))
    read = played(staged, others() | {VICTIM: victim}).adversary.classes(OWN)
    right = int(np.count_nonzero(read == labels))
    assert right < too_many_right(PER_SITE, guess_bound(spent(victim), DELTA, OUTPUTS)) < PER_SITE / 2


@pytest.mark.threat("T17")
def test_nothing_is_read_of_features_that_fewer_rows_have_than_the_source_asks_for(staged: MakesStage) -> None:
    victim = plain_trainer(coded(VICTIM, drawn_classes(VICTIM)), sgd(RATE, PER_SITE), least_rows=2)
    adversary = played(staged, others() | {VICTIM: victim}).adversary
    for feature in OWN:
        assert not adversary.of_feature(feature).any()
    assert adversary.of_feature(OWN[-1] + 1).any()  # one that all rows have


# A unit that one row turns on.


class Hidden(Rows):
    """A hidden layer of ``OUTPUTS`` units with ReLU, as it is built, and an output layer that begins at zero."""

    def model(self) -> nn.Module:
        """Two layers."""
        return nn.Sequential(nn.Linear(INPUTS, OUTPUTS), nn.ReLU(), nn.Linear(OUTPUTS, 10))


@cache
def digits(index: int) -> Samples:
    """Eight pictures of a site."""
    data = load_digits()
    chosen = slice(8 * index, 8 * index + 8)
    return rows_of(data.data[chosen, 1:] / 16, data.target[chosen])


def of_digits(staged: MakesStage, victim: SiteTrainer) -> Stage:
    plain = {index: plain_trainer(digits(index), sgd(RATE, 8), task=Hidden()) for index in range(N + 1)}
    return played(staged, plain | {VICTIM: victim})


def rebuilt(stage: Stage, index: int) -> int:
    """Return how many rows of a site one of the attacker's images shows."""
    images = stage.adversary.images()
    return sum(max(cosine(image, row) for image in images) > RECOVERED_COSINE for row in digits(index).features.numpy())


@pytest.mark.threat("T17")
@pytest.mark.control
def test_rows_that_alone_turn_a_unit_on_are_rebuilt_from_a_sum_without_noise(staged: MakesStage) -> None:
    stage = of_digits(staged, plain_trainer(digits(VICTIM), sgd(RATE, 8), task=Hidden()))
    assert rebuilt(stage, VICTIM) >= 1


@pytest.mark.threat("T17")
def test_no_row_of_a_source_with_noise_is_rebuilt_from_a_sum(staged: MakesStage, ledgers: Path) -> None:
    victim = private_trainer(ledgers, digits(VICTIM), sgd(RATE, 8, noise=NOISE), task=Hidden())
    assert rebuilt(of_digits(staged, victim), VICTIM) == 0


@pytest.mark.threat("T17")
def test_no_row_is_rebuilt_of_a_source_that_asks_for_three_rows_behind_what_leaves(staged: MakesStage) -> None:
    victim = plain_trainer(digits(VICTIM), sgd(RATE, 8), task=Hidden(), least_rows=3)
    stage = of_digits(staged, victim)
    assert rebuilt(stage, VICTIM) == 0
    assert max(rebuilt(stage, index) for index in (1, 3)) >= 1  # of those that ask for nothing
