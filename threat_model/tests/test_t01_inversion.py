"""T01: what one update tells of the row behind it, at `individual` and in a sum, with noise and without.

Each source makes one step on one picture, the worst case. Pictures are hand-written digits without their first pixel,
which is empty in all of them; classes are drawn by lot from 64, so that a guess is hardly ever right.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from securefda.protocol.messages import Visibility
from securefda.training.trainer import SiteTrainer
from threat_model.adversaries.inversion import InvertsUpdates
from threat_model.privacy_bounds import guess_bound, too_many_right
from threat_model.private_sites import DELTA, plain_trainer, private_trainer, rows_of, sgd, spent
from threat_model.scores import psnr
from threat_model.sites import OUTPUTS
from threat_model.stage import MakesStage, Stage

SITES, IN_A_SUM = 24, 5
REBUILT_DB, DROP_DB = 20.0, 8.0
NOTHING_DB = 10.0
"""Noise that is cut to the range of pictures has 6 to 7 dB here. Without a look at any update a grey picture has 8.5 dB
on average, the mean of all pictures 11.5 dB."""

RATE, NOISE = 0.05, 3.0
ONE_CLASS = 17


@cache
def pictures() -> NDArray[np.float64]:
    """(sites, 63), values in [0, 1]."""
    images: NDArray[np.float64] = load_digits().data[:SITES, 1:] / 16
    return images


def classes(seed: int | None = None) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(0, OUTPUTS, SITES)


def site(index: int, label: int, folder: Path | None = None) -> SiteTrainer:
    data = rows_of(pictures()[index - 1 : index], np.array([label]))
    if folder is None:
        return plain_trainer(data, sgd(RATE, 1))
    return private_trainer(folder, data, sgd(RATE, 1, noise=NOISE), name=f"rows-{index}")


def played(staged: MakesStage, sites: dict[int, SiteTrainer], visibility: Visibility) -> Stage:
    settings: dict[str, Any] = {"min_others": 1}
    return staged(
        len(sites), aggregator=InvertsUpdates, trainers=sites, visibility=visibility, settings=settings
    ).play()


@pytest.mark.threat("T01")
@pytest.mark.control
def test_every_picture_and_every_class_is_rebuilt_from_single_updates_without_noise(staged: MakesStage) -> None:
    labels = classes()
    sites = {index: site(index, label) for index, label in enumerate(labels, 1)}
    rebuilt = played(staged, sites, Visibility.INDIVIDUAL).adversary.attack()
    assert [row.label for row in rebuilt.values()] == list(labels)
    assert min(psnr(row.features, pictures()[index - 1]) for index, row in rebuilt.items()) > REBUILT_DB + DROP_DB


@pytest.mark.threat("T01")
def test_neither_picture_nor_class_is_rebuilt_from_single_updates_of_sites_with_noise(
    staged: MakesStage, ledgers: Path
) -> None:
    """Classes and noise are drawn afresh. False alarms by classes: 1e-6, by the binomial law under the bound."""
    labels = classes()
    sites = {index: site(index, label, ledgers) for index, label in enumerate(labels, 1)}
    rebuilt = played(staged, sites, Visibility.INDIVIDUAL).adversary.attack()
    epsilon = spent(sites[1])  # type: ignore[arg-type]
    right = sum(row.label == label for row, label in zip(rebuilt.values(), labels, strict=True))
    assert len(rebuilt) == SITES
    assert right < too_many_right(SITES, guess_bound(epsilon, DELTA, OUTPUTS)) < SITES / 2
    quality = [psnr(row.features, pictures()[index - 1]) for index, row in rebuilt.items()]
    assert np.mean(quality) < NOTHING_DB
    assert max(quality) < REBUILT_DB


@pytest.mark.threat("T01")
def test_picture_rebuilt_from_a_sum_with_others_of_its_class_is_8_db_worse(staged: MakesStage) -> None:
    sites = {index: site(index, ONE_CLASS) for index in range(1, IN_A_SUM + 1)}
    single = played(staged, sites, Visibility.INDIVIDUAL).adversary.attack()
    summed = played(staged, sites, Visibility.SUM).adversary.from_sum(ONE_CLASS)
    for index, row in single.items():
        secret = pictures()[index - 1]
        assert psnr(row.features, secret) > REBUILT_DB
        assert psnr(summed.features, secret) < psnr(row.features, secret) - DROP_DB
        assert psnr(summed.features, secret) < REBUILT_DB


@pytest.mark.threat("T01", "T03")
def test_sum_does_not_hide_a_picture_that_alone_is_of_its_class(staged: MakesStage) -> None:
    """The residual risk of the register: the masks are whole, and the sum itself reveals each row."""
    sites = {index: site(index, 10 + index) for index in range(1, IN_A_SUM + 1)}
    adversary = played(staged, sites, Visibility.SUM).adversary
    for index in sites:
        assert psnr(adversary.from_sum(10 + index).features, pictures()[index - 1]) > REBUILT_DB
