"""The losses of rules that compare features: each by the numbers of its equation, row by row."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from securefda.training.alignment.losses import (
    FACTORS,
    discrepancy,
    identification_loss,
    information_bound,
    mean_entropy,
    median_distance,
    reconstruction_loss,
    reversed_source_loss,
    reversed_target_loss,
    source_confusion_loss,
    target_confusion_loss,
)

OWN = (-2.0, 0.3, 1.5)
TARGET = (0.7, -1.1)
PAIRS = 40_000


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def probability(logit: float) -> float:
    return 1 / (1 + math.exp(-logit))


# --- Eqs. 4 and 5 -----------------------------------------------------------------------------------------------------


def test_a_domain_identifier_is_told_own_rows_from_the_targets() -> None:
    own, target = torch.tensor(OWN, dtype=torch.float64), torch.tensor(TARGET, dtype=torch.float64)
    expected = -sum(math.log(probability(logit)) for logit in OWN) / len(OWN)
    expected -= sum(math.log(1 - probability(logit)) for logit in TARGET) / len(TARGET)

    assert float(identification_loss(own, target)) == pytest.approx(expected)


def test_confusion_wants_own_rows_taken_for_the_targets_and_these_for_own() -> None:
    own, target = torch.tensor(OWN, dtype=torch.float64), torch.tensor(TARGET, dtype=torch.float64)
    taken = -sum(math.log(1 - probability(logit)) for logit in OWN) / len(OWN)
    given = -sum(math.log(probability(logit)) for logit in TARGET) / len(TARGET)

    assert float(source_confusion_loss(own)) == pytest.approx(taken)
    assert float(target_confusion_loss(target)) == pytest.approx(given)


def test_reversed_gradients_are_those_of_the_identifier_with_the_other_sign() -> None:
    own, target = (torch.tensor(logits, requires_grad=True) for logits in (OWN, TARGET))
    of_identifier = torch.autograd.grad(identification_loss(own, target), [own, target])
    (of_source,) = torch.autograd.grad(reversed_source_loss(own), [own])
    (of_target,) = torch.autograd.grad(reversed_target_loss(target), [target])

    assert torch.allclose(of_source, -of_identifier[0])
    assert torch.allclose(of_target, -of_identifier[1])


@pytest.mark.parametrize("logit", [-200.0, 200.0])
def test_a_sure_identifier_gives_finite_losses(logit: float) -> None:
    sure = torch.tensor([logit])
    for loss in (source_confusion_loss, target_confusion_loss, reversed_source_loss, reversed_target_loss):
        assert torch.isfinite(loss(sure))


# --- Eq. 7 ------------------------------------------------------------------------------------------------------------


def test_entropy_is_the_mean_over_rows() -> None:
    logits = drawn(5, 4)
    shares = np.exp(logits.numpy()) / np.exp(logits.numpy()).sum(axis=1, keepdims=True)
    expected = np.mean([-sum(share * math.log(share) for share in row) for row in shares])

    assert float(mean_entropy(logits)) == pytest.approx(expected)
    assert float(mean_entropy(torch.zeros(3, 4))) == pytest.approx(math.log(4))


def test_entropy_of_one_output_is_that_of_yes_and_no() -> None:
    share = probability(0.8)
    expected = -share * math.log(share) - (1 - share) * math.log(1 - share)
    assert float(mean_entropy(torch.tensor([[0.8]]))) == pytest.approx(expected)


# --- Eq. 8 ------------------------------------------------------------------------------------------------------------


def test_the_bound_is_a_mean_less_the_logarithm_of_a_mean_of_exponentials() -> None:
    together, apart = drawn(6), drawn(6, seed=1)
    expected = sum(together.tolist()) / 6 - math.log(sum(math.exp(value) for value in apart.tolist()) / 6)
    assert float(information_bound(together, apart)) == pytest.approx(expected)


def test_with_the_best_estimator_the_bound_is_the_information_of_gaussians() -> None:
    # The seed is fixed; over seeds the bound's standard deviation is 0.007, so a fresh one fails once in 10^5.
    correlation = 0.6
    first, noise = drawn(PAIRS, seed=2), drawn(PAIRS, seed=3)
    second = correlation * first + math.sqrt(1 - correlation**2) * noise
    shuffled = second[torch.randperm(PAIRS, generator=torch.Generator().manual_seed(4))]
    free = 1 - correlation**2

    def ratio(first: Tensor, second: Tensor) -> Tensor:
        """Logarithm of the joint density over the product of the two."""
        quadratic = correlation**2 * (first**2 + second**2) - 2 * correlation * first * second
        return -0.5 * math.log(free) - quadratic / (2 * free)

    information = -0.5 * math.log(free)
    best = float(information_bound(ratio(first, second), ratio(first, shuffled)))
    worse = float(information_bound(0.3 * ratio(first, second), 0.3 * ratio(first, shuffled)))

    assert best == pytest.approx(information, abs=0.03)
    assert worse < best - 0.05


# --- reconstruction, and discrepancy ----------------------------------------------------------------------------------


def test_reconstruction_counts_squares_in_units_of_the_features_variance() -> None:
    made, features = drawn(7, 3), drawn(7, 3, seed=1)
    squares = np.mean((made.numpy() - features.numpy()) ** 2)
    expected = squares / np.mean(np.var(features.numpy(), axis=0))

    assert float(reconstruction_loss(made, features)) == pytest.approx(expected)
    assert float(reconstruction_loss(50 * made, 50 * features)) == pytest.approx(expected)
    assert float(reconstruction_loss(features, features)) == 0


def test_discrepancy_is_that_of_all_pairs_under_every_kernel() -> None:
    own, target, scale = drawn(5, 3), drawn(4, 3, seed=1) + 1, 2.5

    def kernel(first: Tensor, second: Tensor) -> float:
        squared = float(((first - second) ** 2).sum())
        return sum(math.exp(-squared / (factor * scale)) for factor in FACTORS)

    def mean(ones: Tensor, others: Tensor) -> float:
        return sum(kernel(row, other) for row in ones for other in others) / (len(ones) * len(others))

    expected = mean(own, own) + mean(target, target) - 2 * mean(own, target)
    assert float(discrepancy(own, target, torch.tensor(scale))) == pytest.approx(expected)
    assert float(discrepancy(own, own, torch.tensor(scale))) == pytest.approx(0, abs=1e-12)


def test_the_median_distance_is_over_all_pairs_of_different_rows() -> None:
    own, target = drawn(3, 2), drawn(3, 2, seed=1)
    rows = torch.cat([own, target])
    squared = sorted(float(((rows[a] - rows[b]) ** 2).sum()) for a in range(6) for b in range(a))

    assert float(median_distance(own, target)) == pytest.approx(squared[len(squared) // 2])


def test_rows_that_are_all_alike_have_a_finite_discrepancy() -> None:
    same = torch.ones(4, 3, requires_grad=True)
    loss = discrepancy(same, torch.ones(4, 3), median_distance(same, torch.ones(4, 3)))
    (gradient,) = torch.autograd.grad(loss, [same])

    assert float(loss.detach()) == pytest.approx(0, abs=1e-6)
    assert bool(torch.isfinite(gradient).all())
