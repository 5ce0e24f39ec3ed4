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
from torch import nn

from securefda.privacy.private_training import train_private
from securefda.tasks import Samples, Task
from securefda.training import TrainingSettings, Vector
from threat_model.adversaries.known_seed import KnowsTheSeed, without_row
from threat_model.adversaries.noise_grid import ReadsTheGrid
from threat_model.private_sites import ABSENT, Rows, rows_of, sgd
from threat_model.sites import INPUTS, N_PARAMS, OUTPUTS, roster_of
from threat_model.switches import Switch, switched_off
from threat_model.without_noise import NOISE_OF_A_CSPRNG, SECRET_SEED, noise_scaled

BEYOND = 5.5
NOISE, CLIP, RATE, PLACES, STEPS = 1.3, 0.5, 0.25, 16, 4
ZEROS = np.zeros(N_PARAMS, np.float32)
SEED = 2026


def rows_drawn(n: int, inputs: int, seed: int) -> Samples:
    """Features of length about two in random directions, classes by lot."""
    numbers = np.random.default_rng(seed)
    features = 2 * numbers.normal(size=(n, inputs)) / np.sqrt(inputs)
    return rows_of(features, numbers.integers(0, OUTPUTS, n))


def steps_without_rows(seed: int, noise: float = NOISE) -> NDArray[np.float64]:
    """Return the noise of each step in units of the noise charged, (steps, m); without a row, all is noise."""
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


def row_in_or_out(data: Samples, is_in: bool) -> Samples:
    return data if is_in else without_row(data, ROW)


def update_of(is_in: bool, seed: int, task: Task, data: Samples, settings: TrainingSettings) -> Vector:
    """The site's update, with torch seeded by an attacker who wants to know its noise."""
    torch.manual_seed(seed)
    model = task.model()
    zeros = np.zeros(sum(one.numel() for one in model.parameters()), np.float32)
    return train_private(task, model, zeros, row_in_or_out(data, is_in), settings=settings, site="site").update


# What a seed predicts.

ROW = 3
DATA = rows_drawn(20, INPUTS, seed=20)
SETTINGS = sgd(RATE, len(DATA), epochs=2, noise=NOISE)
SITE = (Rows(), DATA, SETTINGS)


class DroppingRows(Rows):
    """With dropout, which draws for one row after the other."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Dropout(), super().model())


MANY = rows_drawn(1600, INPUTS, seed=21)
DROPPING_SITE = (DroppingRows(), MANY, sgd(RATE, len(MANY), noise=NOISE))


def guessed_from_the_seed(is_in: bool, seed: int, task: Task, data: Samples, settings: TrainingSettings) -> bool | None:
    adversary = KnowsTheSeed(task, data, ROW, settings, seed)
    return adversary.attack(ZEROS, update_of(is_in, seed, task, data, settings))


@pytest.mark.threat("T20")
@pytest.mark.parametrize("seed", [0, SEED])
def test_all_seeds_and_all_other_rows_do_not_take_noise_off(seed: int) -> None:
    assert [guessed_from_the_seed(is_in, seed, *SITE) for is_in in (True, False)] == [None, None]

    adversary = KnowsTheSeed(*SITE[:2], ROW, SETTINGS, seed)
    left = adversary.noise(ZEROS, update_of(True, seed, *SITE))
    unit = left * len(DATA) / (RATE * NOISE * math.sqrt(2 * SETTINGS.epochs))  # of two independent updates
    # The second step starts from two models that noise has set apart; its gradients then differ by less than a tenth.
    assert 0.87 < np.square(unit).mean() < 1.2


@pytest.mark.threat("T20")
@pytest.mark.parametrize("switch", [NOISE_OF_A_CSPRNG, SECRET_SEED], ids=["of torch", "of a CSPRNG"])
def test_noise_is_not_predicted_though_it_is_of_torch_or_torch_has_the_seed_of_the_run(switch: Switch) -> None:
    with switched_off(switch, roster=roster_of(3)):
        assert [guessed_from_the_seed(is_in, SEED, *SITE) for is_in in (True, False)] == [None, None]


@pytest.mark.threat("T20")
@pytest.mark.parametrize("seed", [0, SEED])
def test_all_seeds_do_not_reveal_what_dropout_draws(seed: int) -> None:
    assert [guessed_from_the_seed(is_in, seed, *DROPPING_SITE) for is_in in (True, False)] == [None, None]


@pytest.mark.threat("T20")
@pytest.mark.control
@pytest.mark.parametrize("seed", [0, SEED])
def test_dropout_that_is_predicted_tells_through_the_noise_whether_a_row_is_in(seed: int) -> None:
    """Without the row, all behind it train with another one's dropout: no noise for one row hides that."""
    with switched_off(SECRET_SEED, roster=roster_of(3)):
        assert [guessed_from_the_seed(is_in, seed, *DROPPING_SITE) for is_in in (True, False)] == [True, False]


# What floating-point noise shows without a seed.

WIDE = 512
FEW = rows_drawn(20, WIDE, seed=22)
WIDE_SITE = (Rows(inputs=WIDE), FEW, sgd(RATE, len(FEW), noise=NOISE))


def guessed_from_the_grid(is_in: bool) -> bool | None:
    update = update_of(is_in, SEED, *WIDE_SITE)
    return ReadsTheGrid(*WIDE_SITE[:2], ROW, WIDE_SITE[2], WIDE * OUTPUTS).attack(np.zeros_like(update), update)


@pytest.mark.threat("T20")
def test_what_is_left_of_an_update_without_its_rows_is_on_no_grid_of_torch() -> None:
    assert [guessed_from_the_grid(is_in) for is_in in (True, False)] == [None, None]


@pytest.mark.threat("T20")
@pytest.mark.control
def test_noise_of_torch_tells_by_its_grid_whether_a_row_is_in_though_nobody_knows_its_seed() -> None:
    with switched_off(NOISE_OF_A_CSPRNG, roster=roster_of(3)):
        assert [guessed_from_the_grid(is_in) for is_in in (True, False)] == [True, False]
        assert failed(steps_without_rows(SEED)) == set()  # no test of the noise itself would have found it


@pytest.mark.threat("T20")
def test_seed_of_torch_has_no_effect_on_any_parameter_of_an_update() -> None:
    first, second = (update_of(True, SEED, *SITE) for _ in range(2))
    assert np.mean(first == second) < 0.01  # by chance: both are on a grid of 2^-20 standard deviations
    assert abs(float(np.corrcoef(first, second)[0, 1])) < 0.3  # what they have in common is the rows
