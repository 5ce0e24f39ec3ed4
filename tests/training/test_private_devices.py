"""DP-SGD on every device of this machine: on one without a GPU, on the CPU alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from training_private import NO_NOISE, WHOLE, Net, by, fixed, train, ways
from training_tasks import DEVICES, devices

from securefda.tasks import Samples
from securefda.training import build_model, model_to_vector, train_local
from securefda.training.training_settings import NoiseSettings


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


class Half(nn.Module):
    """Computes in bfloat16, as models for GPUs do."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))

    def forward(self, rows: Tensor) -> Tensor:
        with torch.autocast(rows.device.type, dtype=torch.bfloat16):
            outputs: Tensor = self.layers(rows)
        return outputs.float()


class InHalf(Net):
    """Its rows have long gradients."""

    def model(self) -> nn.Module:
        return Half()

    def row(self, seed: int) -> Samples:
        return Samples(5 * torch.randn(1, 3, generator=torch.Generator().manual_seed(seed)), torch.full((1, 1), 100.0))


@pytest.mark.parametrize("device", [name for name in DEVICES if name != "mps"])
def test_a_row_is_clipped_to_the_bound_where_a_model_computes_in_sixteen_bits(device: str) -> None:
    task = InHalf()
    dp = NoiseSettings(1e-9, 1.0)
    settings = replace(WHOLE, device=device, learning_rate=1.0, batch_size=1, dp=dp)
    lengths = [np.linalg.norm(train(task, settings, data=task.row(seed)).update.astype(float)) for seed in range(20)]
    assert max(lengths) < 1 + 1e-6
    assert min(lengths) > 0.99


@pytest.fixture
def tf32() -> Iterator[None]:
    """A task's code, or another part of the process, has asked for quick products of matrices."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision(before)


class Precision(Net):
    """Says how products of matrices are computed while it trains."""

    def row_losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        self.seen = torch.get_float32_matmul_precision(), torch.backends.cuda.matmul.allow_tf32
        return super().row_losses(outputs, labels)


@ways
def test_products_of_matrices_have_all_bits_of_float32(tf32: None, ghost: bool) -> None:
    task = Precision()
    train(task, by(WHOLE, ghost))
    assert task.seen == ("highest", False)
