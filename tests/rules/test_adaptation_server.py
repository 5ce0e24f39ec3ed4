"""Optimisers at the aggregator: torch's own are the oracle, and a state that is stored is the state."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from securefda.rules import ServerOptimizer, ServerPlan, ServerState, Strategy, server_step

STEPS = 12
RNG = np.random.default_rng(3)
UPDATES = RNG.normal(size=(STEPS, 5)) * [1e-4, 1e-2, 1.0, 10.0, 0.0]


def plan_of(optimizer: str, **numbers: float) -> ServerPlan:
    settings = {f"server_{name}": number for name, number in numbers.items()}
    plan = Strategy(rule="fedavg", rounds=1, server_optimizer=optimizer, **settings).server()
    assert plan is not None
    return plan


MOMENTUM = plan_of("momentum", learning_rate=0.7, momentum=0.8)
ADAM = plan_of("adam", learning_rate=0.05, momentum=0.85, second_momentum=0.97, epsilon=1e-4)


def path(plan: ServerPlan) -> np.ndarray:
    """The model after each round, from zero."""
    model, state, seen = np.zeros(5), None, []
    for update in UPDATES:
        step, state = server_step(plan, state, update)
        model = model + step
        seen.append(model)
    return np.array(seen)


def oracle(make) -> np.ndarray:
    model, seen = torch.nn.Parameter(torch.zeros(5, dtype=torch.float64)), []
    optimizer = make([model])
    for update in UPDATES:
        model.grad = torch.from_numpy(-update)
        optimizer.step()
        seen.append(model.detach().numpy().copy())
    return np.array(seen)


def test_momentum_is_torchs_sgd_on_the_negative_update():
    expected = oracle(lambda parameters: torch.optim.SGD(parameters, lr=0.7, momentum=0.8))

    assert np.allclose(path(MOMENTUM), expected, rtol=1e-12, atol=0)


def test_adam_is_torchs_adam_on_the_negative_update():
    expected = oracle(lambda parameters: torch.optim.Adam(parameters, lr=0.05, betas=(0.85, 0.97), eps=1e-4))

    assert np.allclose(path(ADAM), expected, rtol=1e-12, atol=0)
    assert not np.allclose(path(plan_of("adam", learning_rate=0.05)), expected, rtol=1e-3)


@pytest.mark.parametrize("plan", [MOMENTUM, ADAM], ids=["momentum", "adam"])
def test_a_state_that_was_stored_goes_on_to_the_last_bit(plan):
    _, state = server_step(plan, None, UPDATES[0])

    again = ServerState.from_bytes(state.to_bytes())

    assert again.to_bytes() == state.to_bytes()
    for update in UPDATES[1:3]:
        expected, state = server_step(plan, state, update)
        step, again = server_step(plan, again, update)
        assert np.array_equal(step, expected)


def test_an_optimizer_begins_afresh_behind_another():
    _, state = server_step(MOMENTUM, None, UPDATES[0])

    step, _ = server_step(ADAM, state, UPDATES[1])

    assert np.array_equal(step, server_step(ADAM, None, UPDATES[1])[0])


@pytest.mark.parametrize(
    "bad", [b"", bytes(9), bytes([3]) + bytes(16), bytes([1, 1]) + bytes(7), b"\x02\x01" + bytes(15)]
)
def test_other_bytes_are_no_state(bad):
    with pytest.raises(ValueError, match=r"^data: "):
        ServerState.from_bytes(bad)


@pytest.mark.parametrize("bad", [np.ones(4), np.array([1.0, np.nan, 0, 0, 0]), np.ones((5, 1)), []])
def test_an_update_of_another_model_or_that_is_not_finite_is_refused(bad):
    _, state = server_step(MOMENTUM, None, UPDATES[0])

    with pytest.raises(ValueError, match=r"^update: "):
        server_step(MOMENTUM, state, bad)


def test_a_state_shows_no_number_of_its_vectors():
    assert "0.12345" not in repr(ServerState(ServerOptimizer.MOMENTUM, 1, (np.full(3, 0.12345),)))
