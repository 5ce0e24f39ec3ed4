"""How many threads a step uses: by its work, unless the site or OpenMP's variables say otherwise."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from securefda.machine import usable_cores
from securefda.training.device import WORK_PER_THREAD, choose_threads, multiply_adds


@pytest.mark.parametrize(
    ("work", "cores", "threads"),
    [
        (0, 64, 1),
        (2 * WORK_PER_THREAD - 1, 64, 1),
        (2 * WORK_PER_THREAD, 64, 2),
        (5 * WORK_PER_THREAD, 64, 5),
        (5 * WORK_PER_THREAD, 4, 4),
        (5 * WORK_PER_THREAD, 1, 1),
    ],
)
def test_threads_follow_the_work_up_to_the_cores(monkeypatch, work, cores, threads):
    monkeypatch.setattr("securefda.training.device.usable_cores", lambda: cores)
    assert choose_threads(0, lambda: work, {}) == threads


def test_the_setting_wins_over_everything():
    assert choose_threads(3, lambda: 0, {"OMP_NUM_THREADS": "7", "OMP_THREAD_LIMIT": "1"}) == 3


def test_openmp_variable_wins_over_the_work():
    assert choose_threads(0, lambda: 100 * WORK_PER_THREAD, {"OMP_NUM_THREADS": "1"}) == torch.get_num_threads()


@pytest.mark.parametrize(("limit", "threads"), [("1", 1), ("2", 2), ("", 8), ("many", 8), ("99", 8)])
def test_openmp_limit_bounds_the_choice(monkeypatch, limit, threads):
    monkeypatch.setattr("securefda.training.device.usable_cores", lambda: 8)
    assert choose_threads(0, lambda: 100 * WORK_PER_THREAD, {"OMP_THREAD_LIMIT": limit}) == threads


def test_there_is_a_core_to_run_on():
    assert usable_cores() >= 1


@pytest.mark.parametrize(
    ("model", "shape", "expected"),
    [
        (nn.Linear(5, 3), (5,), 5 * 3 + 3),  # no fewer than the parameters
        (nn.Sequential(nn.Linear(50, 30, bias=False), nn.Linear(30, 2, bias=False)), (50,), 50 * 30 + 30 * 2),
        (nn.Conv2d(1, 4, 3, padding=1), (1, 10, 10), 4 * 9 * 100),
        (nn.Conv2d(4, 4, 3, padding=1, groups=4), (4, 10, 10), 4 * 9 * 100),
    ],
    ids=["linear", "two layers", "convolution", "grouped convolution"],
)
def test_work_of_a_row_is_counted_by_layers(model, shape, expected):
    assert multiply_adds(model, torch.zeros(3, *shape)) == expected


def test_counting_leaves_the_model_and_the_generators_as_they_were():
    model = nn.Sequential(nn.Linear(5, 3), nn.Dropout(0.5)).train()
    before = [parameter.clone() for parameter in model.parameters()]
    state = torch.get_rng_state()

    multiply_adds(model, torch.ones(2, 5))

    assert model.training
    assert all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
    assert torch.equal(state, torch.get_rng_state())
    assert not any(layer._forward_hooks for layer in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())
