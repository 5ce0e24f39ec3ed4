"""What a round with noise will cost, by one step before it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from training_private import ROWS, SGD, Net, by

from securefda.privacy.private_training import RoundCost, cost_of, loss_lines
from securefda.tasks import Samples
from securefda.training import build_model, model_to_vector

PARAMETERS = 26


def test_the_cost_is_that_of_the_rounds_steps_and_the_model_stays_as_it_was() -> None:
    task = Net()
    model = build_model(task, 0)
    before = model_to_vector(model).tobytes()
    cost = cost_of(task, model, task.train_data("source-1"), SGD)
    assert cost.steps == 8
    assert 0 < cost.step_seconds == cost.seconds / 8
    assert cost.gradient_bytes == 4 * PARAMETERS * SGD.batch_size
    assert model_to_vector(model).tobytes() == before
    assert all(parameter.grad is None for parameter in model.parameters())
    assert cost.words() == []


def test_ghost_clipping_stores_no_gradient_of_a_row() -> None:
    task = Net()
    assert cost_of(task, build_model(task, 0), task.train_data("source-1"), by(SGD, True)).gradient_bytes == 0


def test_an_operator_is_told_of_a_long_round_and_of_much_memory() -> None:
    (line,) = RoundCost(11, 20.0, 3 * 2**30).words()
    assert line.startswith("a round of training with noise takes about 4 min here (11 steps of 20 s)")
    assert "3.0 GiB for gradients of rows" in line
    assert RoundCost(1, 0.1, 2 * 2**30).words()
    assert not RoundCost(11, 0.5, 2**20).words()


class Weighted(Net):
    """Two classes, of which one counts for more: by torch's weights, which cancel where a row is alone, or its own."""

    def __init__(self, *, cancels: bool) -> None:
        super().__init__()
        self.cancels = cancels

    def model(self) -> nn.Module:
        return nn.Linear(3, 2)

    def train_data(self, site: str) -> Samples:
        return Samples(super().train_data(site).features, torch.arange(ROWS) * 2 // ROWS)

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        weights = torch.tensor([1.0, 5.0])
        if self.cancels:
            return nn.functional.cross_entropy(outputs, labels, weight=weights)
        return (weights[labels] * nn.functional.cross_entropy(outputs, labels, reduction="none")).mean()


@pytest.mark.parametrize("cancels", [True, False])
def test_an_operator_is_told_of_weights_that_cancel_in_the_loss_of_a_row(cancels: bool) -> None:
    task = Weighted(cancels=cancels)
    lines = loss_lines(task, build_model(task, 0), task.train_data("source-1"))
    assert [("weights of classes cancel" in line) for line in lines] == [True] * cancels
