"""T20: noise is what it is charged for, and nobody who knows a seed knows any of it.

Noise is drawn afresh in every run. A check is passed by noise that is as it should be with a probability of 1 - 4e-8
(5.5 standard deviations), and there are fewer than 20: false alarms, 1e-6.
"""

from __future__ import annotations

import math
from itertools import pairwise
from statistics import NormalDist

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from securefda.tasks import Samples
from securefda.training import Vector
from securefda.training.private import train_private
from threat_model.adversaries.known_seed import KnowsTheSeed
from threat_model.private_sites import ABSENT, Candidates, Rows, rows_of, sgd
from threat_model.sites import INPUTS, N_PARAMS, roster_of
from threat_model.switches import switched_off
from threat_model.without_noise import NOISE_OF_A_CSPRNG, SECRET_SEED, noise_scaled

BEYOND = 5.5
NOISE, CLIP, RATE, PLACES, STEPS = 1.3, 0.5, 0.25, 16, 4
ZEROS = np.zeros(N_PARAMS, np.float32)
SEED = 2026


def steps_without_rows(seed: int, noise: float = NOISE) -> NDArray[np.float64]:
    """What the engine adds in each step, in units of what is charged for, (steps, m): no row is in, so it is noise."""
    data = rows_of(np.ones((PLACES, INPUTS)), np.full(PLACES, ABSENT))
    steps: list[NDArray[np.float64]] = []
    task = Rows()
    torch.manual_seed(seed)
    train_private(
        task,
        task.model(),
        ZEROS,
        data,
        settings=sgd(RATE, PLACES, epochs=STEPS, noise=noise, clip=CLIP),
        site="site",
        on_step=lambda step: steps.append(np.asarray(step, np.float64) * PLACES / (RATE * NOISE * CLIP)),
    )
    return np.stack(steps)


def failed(steps: NDArray[np.float64]) -> set[str]:
    """Names of what is wrong with steps (steps, m) that should be independent, each value N(0, 1)."""
    values, m = steps.ravel(), steps.size
    ranks = np.arange(m + 1) / m
    law = np.array([NormalDist().cdf(value) for value in np.sort(values)])
    distance = max((law - ranks[:-1]).max(), (ranks[1:] - law).max())
    between = [abs(float(one @ other)) / math.sqrt(N_PARAMS) for one, other in pairwise(steps)]
    deviations = {
        "mean": abs(values.mean()) * math.sqrt(m),
        "scale": abs(np.square(values).mean() - 1) * math.sqrt(m / 2),
        "correlation of steps": max(between),
        "correlation of neighbours": abs(float(values[1:] @ values[:-1])) / math.sqrt(m),
        # Massart 1990: exceeded with 4e-8
        "law": BEYOND * distance / math.sqrt(math.log(2 / 4e-8) / (2 * m)),
    }
    return {name for name, deviation in deviations.items() if not deviation < BEYOND}


@pytest.mark.threat("T20")
def test_what_the_engine_adds_in_its_steps_is_independent_noise_of_the_scale_that_is_charged() -> None:
    assert failed(steps_without_rows(SEED)) == set()


@pytest.mark.threat("T20")
@pytest.mark.control
@pytest.mark.parametrize("factor", [2 / 3, 3 / 2])
def test_noise_of_another_scale_is_found(factor: float) -> None:
    with switched_off(noise_scaled(factor), roster=roster_of(3)):
        assert {"scale", "law"} <= failed(steps_without_rows(SEED))


@pytest.mark.threat("T20")
def test_noise_that_was_added_before_is_found() -> None:
    """A companion: one step's noise in all steps."""
    first, *_ = steps_without_rows(SEED)
    assert "correlation of steps" in failed(np.stack([first] * STEPS))


DATA = Candidates.drawn(20, seed=20)
ROW = int(np.flatnonzero(DATA.members)[0])
SETTINGS = sgd(RATE, len(DATA.labels), epochs=2, noise=NOISE)


def row_in_or_out(is_in: bool) -> Samples:
    members = DATA.members.copy()
    members[ROW] = is_in
    return rows_of(DATA.features, np.where(members, DATA.labels, ABSENT))


def update_of(is_in: bool, seed: int) -> Vector:
    """The site's update, with torch seeded by whoever wants to know its noise."""
    torch.manual_seed(seed)
    task = Rows()
    data = row_in_or_out(is_in)
    return train_private(task, task.model(), ZEROS, data, settings=SETTINGS, site="site").update


def told(is_in: bool, seed: int) -> bool | None:
    return KnowsTheSeed(row_in_or_out(True), ROW, SETTINGS, seed).attack(ZEROS, update_of(is_in, seed))


@pytest.mark.threat("T20")
@pytest.mark.parametrize("seed", [0, SEED])
def test_whoever_knows_all_seeds_and_all_other_rows_takes_no_noise_off(seed: int) -> None:
    assert [told(is_in, seed) for is_in in (True, False)] == [None, None]

    adversary = KnowsTheSeed(row_in_or_out(True), ROW, SETTINGS, seed)
    left = adversary.noise(ZEROS, update_of(True, seed))
    unit = left * len(DATA.labels) / (RATE * NOISE * math.sqrt(2 * SETTINGS.epochs))  # of two independent updates
    # The second step starts from two models that noise has set apart; its gradients then differ by less than a tenth.
    assert 0.87 < np.square(unit).mean() < 1.2


@pytest.mark.threat("T20")
@pytest.mark.control
@pytest.mark.parametrize("seed", [0, SEED])
def test_noise_of_torch_is_predicted_exactly_and_tells_whether_a_row_is_in(seed: int) -> None:
    with switched_off(NOISE_OF_A_CSPRNG, SECRET_SEED, roster=roster_of(3)):
        assert [told(is_in, seed) for is_in in (True, False)] == [True, False]
        assert failed(steps_without_rows(seed)) == set()  # no test of the noise itself would have told
        assert np.array_equal(steps_without_rows(seed), steps_without_rows(seed))


@pytest.mark.threat("T20")
def test_seed_of_torch_has_no_effect_on_any_parameter_of_an_update() -> None:
    first, second = (update_of(True, SEED) for _ in range(2))
    assert np.mean(first == second) < 0.01  # by chance: both are on a grid of 2^-20 standard deviations
    assert abs(float(np.corrcoef(first, second)[0, 1])) < 0.3  # what they have in common is the rows
