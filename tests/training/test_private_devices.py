"""DP-SGD on every device of this machine: on one without a GPU, on the CPU alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from training_private import NO_NOISE, WHOLE, Net, fixed, train, ways

from securefda.training import build_model, model_to_vector, train_local

DEVICES = [
    "cpu",
    *(["cuda"] if torch.cuda.is_available() else []),
    *(["mps"] if torch.backends.mps.is_available() else []),
]
devices = pytest.mark.parametrize("device", DEVICES)


@devices
@ways
def test_without_noise_to_speak_of_a_step_is_that_of_plain_training(device: str, ghost: bool) -> None:
    task = Net()
    settings = replace(WHOLE, device=device, dp=replace(NO_NOISE, ghost_clipping=ghost))
    private = train(task, settings)
    model = build_model(task, 0)
    plain = train_local(
        task,
        model,
        model_to_vector(model),
        task.train_data("source-1"),
        settings=replace(settings, dp=None),
        seed=11,
        site="source-1",
    )
    np.testing.assert_allclose(private.update, plain.update, rtol=1e-3, atol=1e-6)


@devices
@ways
def test_noise_comes_from_the_host_whatever_the_device(device: str, ghost: bool) -> None:
    dp = replace(NO_NOISE, noise_multiplier=1e6, max_grad_norm=1e-3, ghost_clipping=ghost)
    settings = replace(WHOLE, device=device, dp=dp)
    first, second = (train(settings=settings, random_bytes=fixed(3)).update for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert not np.allclose(first, train(settings=settings).update)
