"""The optimizers of torch.optim are the oracle: same arithmetic, through the classes."""

import pytest
import torch

from securefda.training import TrainingSettings
from securefda.training.optimizers import _BLOCK, new_optimizer

CPU = torch.device("cpu")
STEPS = 25
CASES = [
    (TrainingSettings(optimizer="adam", learning_rate=0.05), torch.optim.Adam, {}),
    (TrainingSettings(optimizer="adam", learning_rate=0.05, weight_decay=0.1), torch.optim.Adam, {"weight_decay": 0.1}),
    (TrainingSettings(optimizer="sgd", learning_rate=0.05), torch.optim.SGD, {}),
    (TrainingSettings(optimizer="sgd", learning_rate=0.05, weight_decay=0.1), torch.optim.SGD, {"weight_decay": 0.1}),
    (TrainingSettings(optimizer="sgd", learning_rate=0.05, momentum=0.9), torch.optim.SGD, {"momentum": 0.9}),
]


def descend(step, values):
    """Walk down a bowl that is a million times steeper along one axis than along another."""
    slopes = torch.tensor([1e-3, 1.0, 1e3, 1.0])
    for number in range(STEPS):
        gradient = slopes * (values.detach() - 1) / 1e3 + (0.1 if number % 2 else -0.1) * slopes
        step(gradient)
    return values.detach()


@pytest.mark.parametrize(("settings", "oracle_class", "arguments"), CASES)
def test_path_is_that_of_torch(settings, oracle_class, arguments):
    expected = torch.nn.Parameter(torch.tensor([0.0, 2.0, -1.0, 0.5]))
    oracle = oracle_class([expected], lr=0.05, foreach=False, **arguments)

    def oracle_step(gradient):
        expected.grad = gradient
        oracle.step()

    values = torch.tensor([0.0, 2.0, -1.0, 0.5])
    optimizer = new_optimizer(4, settings, CPU)
    moved = descend(lambda gradient: optimizer.step(values, gradient), values)
    assert torch.equal(moved, descend(oracle_step, expected))
    assert not torch.allclose(moved, torch.tensor([0.0, 2.0, -1.0, 0.5]), atol=1e-2)


@pytest.mark.parametrize(("settings", "oracle_class", "arguments"), CASES)
def test_a_vector_of_several_blocks_moves_as_one(settings, oracle_class, arguments):
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(2 * _BLOCK + 3, generator=generator)
    expected = torch.nn.Parameter(values.clone())
    oracle = oracle_class([expected], lr=0.05, foreach=False, **arguments)
    optimizer = new_optimizer(len(values), settings, CPU)
    for _ in range(3):
        gradient = torch.randn(len(values), generator=generator)
        expected.grad = gradient.clone()
        oracle.step()
        optimizer.step(values, gradient)
    assert torch.equal(values, expected.detach())
