"""What a round with noise will cost, by one step before it."""

from __future__ import annotations

from training_private import SGD, Net, by

from securefda.privacy.private_training import RoundCost, cost_of
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
