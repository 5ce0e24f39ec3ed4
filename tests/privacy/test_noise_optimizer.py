"""Opacus' step takes its noise from a NoiseSource, in both ways of clipping."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from opacus import PrivacyEngine
from opacus.optimizers import AdaClipDPOptimizer, DPOptimizer, DPPerLayerOptimizer
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from securefda.privacy.noise import NoiseSource, grid_of, take_noise_from

ROWS, FEATURES, CLASSES = 64, 50, 40
CLIP, MULTIPLIER = 0.5, 2.0
WAYS = ["hooks", "ghost"]


class Training:
    """A linear model, its rows and Opacus around them, the same in each instance; ``step`` takes a step on all rows."""

    def __init__(self, way: str, source: NoiseSource | None) -> None:
        torch.manual_seed(7)
        self.model: Any = nn.Linear(FEATURES, CLASSES)
        self.rows = TensorDataset(torch.randn(ROWS, FEATURES), torch.arange(ROWS) % CLASSES)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Opacus says that secure_mode is off
            private = PrivacyEngine(accountant="rdp").make_private(
                module=self.model,
                optimizer=torch.optim.SGD(self.model.parameters(), lr=1.0),
                criterion=nn.CrossEntropyLoss(),
                data_loader=DataLoader(self.rows, batch_size=ROWS),
                poisson_sampling=False,
                grad_sample_mode=way,
                noise_multiplier=MULTIPLIER,
                max_grad_norm=CLIP,
            )
        self.module, self.optimizer = private[0], private[1]
        self.loss = private[2] if way == "ghost" else nn.CrossEntropyLoss()
        if source is not None:
            take_noise_from(source, self.optimizer)

    def step(self, seed: int = 1) -> Tensor:
        """The step's change of the weights."""
        before = self.model.weight.detach().clone()
        torch.manual_seed(seed)
        self.optimizer.zero_grad()
        features, labels = self.rows.tensors
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch, about Opacus' hooks
            self.loss(self.module(features), labels).backward()
            self.optimizer.step()
        return before - self.model.weight.detach()


@pytest.fixture(scope="module", params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def weights_of(flat: Tensor) -> Tensor:
    """The weights' part of what is drawn for all parameters at once."""
    return flat[: CLASSES * FEATURES].view(CLASSES, FEATURES)


def noise_free(way: str) -> Tensor:
    training = Training(way, None)
    training.optimizer.noise_multiplier = 0.0
    return training.step()


def test_a_step_is_the_clipped_mean_plus_noise_of_the_source(way: str) -> None:
    source = NoiseSource(lambda length: bytes(range(length)))
    change = Training(way, source).step()
    noise = weights_of(source.normal((CLASSES * (FEATURES + 1),), MULTIPLIER * CLIP))
    torch.testing.assert_close(change, noise_free(way) + noise / ROWS, rtol=0, atol=1e-6)


def test_noise_of_a_step_has_the_scale_that_is_accounted(way: str) -> None:
    """False-alarm rate 1e-6: 2000 values, so their mean square is within 4.9 * sqrt(2 / 2000) of one."""
    noise = (Training(way, NoiseSource()).step() - noise_free(way)) * ROWS / (MULTIPLIER * CLIP)
    mean_square = noise.square().mean().item()
    assert abs(mean_square - 1) < 0.17
    for wrong in (2 / 3, 3 / 2):
        assert abs(mean_square * wrong**2 - 1) > 0.17


def test_seeding_torch_neither_tells_nor_changes_the_noise_of_a_step(way: str) -> None:
    first, second = (Training(way, NoiseSource()).step(seed=3) for _ in range(2))
    assert (first == second).double().mean() < 0.01


def test_noise_of_a_step_does_not_move_the_generator_of_torch(way: str) -> None:
    training = Training(way, NoiseSource())
    training.step(seed=3)
    after = torch.get_rng_state()
    torch.manual_seed(3)
    assert torch.equal(torch.get_rng_state(), after)


def test_noised_gradients_are_on_the_grid(way: str) -> None:
    training = Training(way, NoiseSource())
    assert training.step().abs().max() > 0
    steps = training.model.weight.grad.double() * ROWS / grid_of(MULTIPLIER * CLIP)  # ROWS is a power of two: exact
    assert torch.equal(steps, steps.round())


def test_noise_follows_the_multiplier_of_the_moment(way: str) -> None:
    training = Training(way, NoiseSource(lambda length: bytes(range(length))))
    training.optimizer.noise_multiplier = MULTIPLIER / 2
    source = NoiseSource(lambda length: bytes(range(length)))
    noise = weights_of(source.normal((CLASSES * (FEATURES + 1),), MULTIPLIER * CLIP / 2))
    torch.testing.assert_close(training.step(), noise_free(way) + noise / ROWS, rtol=0, atol=1e-6)


def test_a_step_whose_noise_cannot_be_made_changes_no_parameter(way: str) -> None:
    def fails(length: int) -> bytes:
        raise OSError("no random bytes")

    training = Training(way, NoiseSource(fails))
    before = copy.deepcopy(training.model.state_dict())
    with pytest.raises(OSError, match="no random bytes"):
        training.step()
    for name, value in training.model.state_dict().items():
        assert torch.equal(value, before[name])


def test_a_multiplier_that_falls_to_zero_stops_the_step_instead_of_the_noise(way: str) -> None:
    training = Training(way, NoiseSource())
    training.optimizer.noise_multiplier = 0.0
    before = training.model.weight.detach().clone()
    with pytest.raises(ValueError, match="standard deviation 0"):
        training.step()
    assert torch.equal(training.model.weight, before)


def test_a_gradient_that_is_used_twice_is_refused(way: str) -> None:
    training = Training(way, NoiseSource())
    training.step()
    with pytest.raises(ValueError, match="zero_grad"):
        training.optimizer.add_noise()


@pytest.mark.parametrize(("multiplier", "clip"), [(0.0, 1.0), (1.0, 0.0), (-1.0, 1.0), (float("nan"), 1.0)])
def test_an_optimizer_without_noise_is_refused(multiplier: float, clip: float) -> None:
    plain = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=1.0)
    optimizer = DPOptimizer(plain, noise_multiplier=multiplier, max_grad_norm=clip, expected_batch_size=4)
    with pytest.raises(ValueError, match="above zero"):
        take_noise_from(NoiseSource(), optimizer)


def test_optimizers_that_draw_noise_elsewhere_are_refused() -> None:
    plain = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=1.0)
    adaptive = AdaClipDPOptimizer(
        plain,
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        expected_batch_size=4,
        target_unclipped_quantile=0.5,
        clipbound_learning_rate=0.2,
        max_clipbound=10.0,
        min_clipbound=0.1,
        unclipped_num_std=1.0,
    )
    per_layer = DPPerLayerOptimizer(plain, noise_multiplier=1.0, max_grad_norm=[1.0, 1.0], expected_batch_size=4)
    for optimizer in (adaptive, per_layer, plain):
        with pytest.raises(ValueError, match="DPOptimizer and DPOptimizerFastGradientClipping"):
            take_noise_from(NoiseSource(), optimizer)
