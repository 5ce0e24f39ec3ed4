"""T19: what all rounds together tell is what the ledger says, however often a site is restarted, killed or asked again.

The traces' choices and kills are seeded. Their rows and noise are not; no claim here depends on what is drawn.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.rdp import RdpAccountant

from securefda.privacy.dp_events import Budget
from securefda.site.private_trainer import PrivateTrainer
from threat_model.adversaries.asks_again import Answers, AsksAgain
from threat_model.privacy_bounds import auc_bound
from threat_model.private_sites import (
    DELTA,
    Candidates,
    asked,
    fixed_bytes,
    private_trainer,
    rows_of,
    sgd,
    spent,
)
from threat_model.scores import auc
from threat_model.sites import INPUTS, roster_of
from threat_model.switches import switched_off
from threat_model.without_noise import LEDGER_MEMORY

ROWS = rows_of(np.eye(20, INPUTS), np.arange(20))
LIVES, PLACES = 6, 3
WAYS = ((0.9, 4, 1), (3.0, 5, 1), (4.0, 2, 1), (4.0, 20, 3))
"""Noise multiplier, batch, epochs: what an operator may change between two starts of the site."""


def by_google(rounds: list[tuple[float, float, int]]) -> float:
    """Epsilon of rounds of (noise multiplier, sampling rate, steps), by code that is neither ours nor Opacus'.

    Over whole orders alone, since with others it takes long; what it says can be a little above the least bound.
    """
    accountant = RdpAccountant([float(order) for order in range(2, 129)])
    for noise, rate, steps in rounds:
        gaussian = GaussianDpEvent(noise)
        accountant.compose(gaussian if rate == 1 else PoissonSampledDpEvent(rate, gaussian), steps)
    return float(accountant.get_epsilon(DELTA))


def is_epsilon_of(stated: float, rounds: list[tuple[float, float, int]]) -> bool:
    recomputed = by_google(rounds)
    return 0.9 * recomputed < stated < recomputed + 1e-6


@dataclass
class Witness:
    """Stands where random bytes come from, and writes down each step before it gets any; kills its process at the
    step that the test names.

    It is asked for the rows of each step, eight bytes a row, and for a key of the step's noise.
    """

    log: Path
    kill_at: int = -1
    way: str = ""
    calls: int = 0

    def __call__(self, length: int) -> bytes:
        self.calls += 1
        with self.log.open("a") as file:
            file.write(f"{self.way}\n")
        if self.calls == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return os.urandom(length)


def life(folder: Path, number: int, chance: random.Random, *, kill_at: int) -> None:
    """One life of a site's process: trains in the given places, in some of them twice, until it is killed."""
    noise, batch, epochs = chance.choice(WAYS)
    witness = Witness(folder / "raw.log", kill_at=chance.randint(1, kill_at) if kill_at else -1)
    settings = sgd(0.5, batch, epochs=epochs, noise=noise)
    trainer = private_trainer(folder, ROWS, settings, random_bytes=witness)
    models = [trainer.initial_model(), trainer.initial_model() + np.float32(0.1)]
    steps = epochs * -(-len(ROWS) // batch)
    for place in range(PLACES):
        again = chance.random() < 0.5  # another attempt, whose model may be another one
        for attempt in (1, 2) if again else (1,):
            witness.way = f"{number} {place} {attempt} {noise} {1 / (steps // epochs)} {steps}"
            asked(trainer, chance.choice(models), run_id="run-1", round_number=1 + place, attempt=attempt)


def lived(work: Callable[[], None]) -> int:
    """Run ``work`` in a process of its own, and return how it ended."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            torch.set_num_threads(1)  # a copy has no other threads than this one
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def raw_rounds(log: Path) -> list[tuple[float, float, int]]:
    """Each training that began, once, as the witness saw it."""
    began = dict.fromkeys(log.read_text().splitlines())
    return [(float(noise), float(rate), int(steps)) for *_, noise, rate, steps in (line.split() for line in began)]


def looking(folder: Path) -> PrivateTrainer:
    """A process that only looks at the ledger."""
    return private_trainer(folder, ROWS, sgd(0.5, 5, noise=3.0))


@pytest.mark.threat("T19")
@pytest.mark.parametrize("seed", range(2))
def test_ledger_is_epsilon_of_all_training_that_began_whatever_was_killed_restarted_and_asked_again(
    ledgers: Path, seed: int
) -> None:
    looking(ledgers)
    ended = [
        lived(partial(life, ledgers, number, random.Random(f"{seed} {number}"), kill_at=20 * (number % 2)))
        for number in range(LIVES)
    ]

    began = raw_rounds(ledgers / "raw.log")
    trainer = looking(ledgers)
    events = trainer.account.ledger.events()

    assert set(ended) == {0, -signal.SIGKILL}
    assert len(began) > LIVES
    assert [(event.noise_multiplier, event.sampling_rate, event.steps) for event in events] == began
    assert is_epsilon_of(spent(trainer), began)


CANDIDATES = Candidates.drawn(100, seed=19)
NOISE, ASKED = 4.0, 60
BUDGET = Budget(1.5, DELTA)
"""Pays for two rounds of one step on all rows at this noise: 0.99 for one, 1.44 for two, 1.79 for three."""


def asked_for_long(folder: Path) -> tuple[AsksAgain, Answers]:
    """The site's process ends after every round; rows and classes are seeded, and so is the noise."""
    random_bytes = fixed_bytes(19)

    def started() -> PrivateTrainer:
        settings = sgd(0.5, len(CANDIDATES.labels), noise=NOISE)
        return private_trainer(folder, CANDIDATES.data, settings, budget=BUDGET, random_bytes=random_bytes)

    adversary = AsksAgain(started)
    return adversary, adversary.attack(ASKED)


def area(adversary: AsksAgain, answers: Answers) -> float:
    scores = adversary.scores(answers, CANDIDATES)
    return auc(scores[CANDIDATES.members], scores[~CANDIDATES.members])


@pytest.mark.threat("T19")
def test_site_that_is_asked_for_ever_ends_within_its_budget_and_tells_no_more_than_that(ledgers: Path) -> None:
    """Noise is a fixed stream, so there is no false alarm; with a fresh one the area has a deviation of 0.06."""
    adversary, answers = asked_for_long(ledgers)

    assert answers.rounds == 2
    assert answers.epsilon <= BUDGET.epsilon
    assert is_epsilon_of(answers.epsilon, [(NOISE, 1.0, 1)] * answers.rounds)
    assert area(adversary, answers) < auc_bound(answers.epsilon, DELTA)


@pytest.mark.threat("T19")
@pytest.mark.control
def test_accountant_that_is_made_anew_each_round_says_a_tenth_of_it_and_members_are_found(ledgers: Path) -> None:
    with switched_off(LEDGER_MEMORY, roster=roster_of(3)):
        adversary, answers = asked_for_long(ledgers)
    true = by_google([(NOISE, 1.0, 1)] * answers.rounds)

    assert answers.rounds == ASKED
    assert answers.epsilon < BUDGET.epsilon
    assert true > 10 * answers.epsilon
    assert area(adversary, answers) > auc_bound(answers.epsilon, DELTA)
