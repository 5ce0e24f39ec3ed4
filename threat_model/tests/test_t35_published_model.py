"""T35: a model that was trained by DP-SGD tells no more of its rows than the ledger's epsilon allows.

Coins, noise and the rows of each step are drawn afresh. An audit of training that keeps its promise exceeds epsilon
with a probability of at most 1e-6, since that is the confidence it is made with. It then takes a small delta, at which
the ledger is asked too: with delta = 1e-5 luck alone is too likely for such a confidence.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from securefda.privacy.empirical_audit import throw_coins
from securefda.site.private_trainer import PrivateTrainer
from securefda.tasks import Samples
from securefda.training import Vector
from securefda.training.trainer import SiteTrainer
from threat_model.adversaries.published_model import AuditsModel
from threat_model.privacy_bounds import FALSE_ALARM
from threat_model.private_sites import ABSENT, DELTA, Rows, asked, plain_trainer, private_trainer, rows_of, sgd
from threat_model.sites import roster_of
from threat_model.switches import switched_off
from threat_model.without_noise import noise_scaled

CANARIES, GUESSES = 1000, 400
ROUNDS, BATCH, NOISE = 3, 500, 8.0
RATE = 1.0
SURE, SMALL_DELTA = 1 - FALSE_ALARM, 1e-10


def data_of(coins: np.ndarray) -> Samples:
    return rows_of(np.eye(CANARIES), np.where(coins, 1, ABSENT))


def task() -> Rows:
    return Rows(CANARIES, 2, bias=False)


def published(site: SiteTrainer) -> Vector:
    """The model after all rounds of a federation of this one site, which hides least."""
    model = site.initial_model()
    for number in range(1, ROUNDS + 1):
        model = model + asked(site, model, round_number=number).update
    return model


def private_site(folder: Path, coins: np.ndarray) -> PrivateTrainer:
    return private_trainer(folder, data_of(coins), sgd(RATE, BATCH, noise=NOISE), task=task())


def promised(site: PrivateTrainer) -> float:
    """Return the spent epsilon in the ledger, at the delta of the audit."""
    return site.account.ledger.spent(SMALL_DELTA)


@pytest.mark.threat("T35")
def test_audit_of_the_model_finds_no_more_than_the_ledger_says(ledgers: Path) -> None:
    coins = throw_coins(CANARIES)
    site = private_site(ledgers, coins)
    model = published(site)
    assert len(site.account.ledger.events()) == ROUNDS
    assert AuditsModel(coins, GUESSES).epsilon(model, SMALL_DELTA, SURE) <= promised(site)


@pytest.mark.threat("T35")
@pytest.mark.control
def test_audit_of_a_model_without_noise_finds_every_canary() -> None:
    coins = throw_coins(CANARIES)
    adversary = AuditsModel(coins, GUESSES)
    model = published(plain_trainer(data_of(coins), sgd(RATE, BATCH), task=task()))
    assert np.array_equal(adversary.attack(model) > 0, coins)
    assert adversary.epsilon(model, DELTA, 0.95) >= 4


@pytest.mark.threat("T35")
@pytest.mark.control
def test_audit_finds_noise_that_is_a_twentieth_of_what_the_ledger_was_charged_for(ledgers: Path) -> None:
    coins = throw_coins(CANARIES)
    site = private_site(ledgers, coins)
    with switched_off(noise_scaled(0.05), roster=roster_of(3)):
        model = published(site)
    assert AuditsModel(coins, GUESSES).epsilon(model, SMALL_DELTA, SURE) > promised(site)
