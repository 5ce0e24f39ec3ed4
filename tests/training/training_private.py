"""What the tests of DP-SGD train, and how."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from training_tasks import Line

from securefda.privacy.private_training import train_private
from securefda.tasks import Samples, Task
from securefda.training import LocalResult, TrainingSettings, build_model, model_to_vector
from securefda.training.training_settings import NoiseSettings

ROWS = 20
WAYS = [False, True]
NO_NOISE = NoiseSettings(1e-12, 1e4)
NOISE = NoiseSettings(1.0, 0.5)
SGD = TrainingSettings("sgd", 0.05, batch_size=6, epochs=2, device="cpu", dp=NOISE)
WHOLE = replace(SGD, batch_size=ROWS, epochs=1)
"""One step on all rows: every row has its part in it for certain."""

ways = pytest.mark.parametrize("ghost", WAYS, ids=["hooks", "ghost"])


class Net(Line):
    """Two layers, each with a bias: 26 parameters."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))


class Coupled(Net):
    """A loss of which a row's part depends on the rows beside it, if it is taken of a batch."""

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.mse_loss(outputs, labels) + (outputs.sum() - 1) ** 2


def fixed(seed: int) -> Callable[[int], bytes]:
    """The same bytes each time it is made."""
    return random.Random(seed).randbytes


def train(task: Task | None = None, settings: TrainingSettings = SGD, **arguments: Any) -> LocalResult:
    task = task or Net()
    model = arguments.pop("model", None) or build_model(task, 0)
    data = arguments.pop("data", None) or task.train_data("source-1")
    received = arguments.pop("received", None)
    if received is None:
        received = model_to_vector(build_model(task, 0))
    defaults: dict[str, Any] = {"site": "source-1"}
    return train_private(task, model, received, data, settings=settings, **(defaults | arguments))


def by(settings: TrainingSettings, ghost: bool, noise: NoiseSettings = NOISE) -> TrainingSettings:
    return replace(settings, dp=replace(noise, ghost_clipping=ghost))


def silent(task: Task, row: int, label: float | None) -> Samples:
    """The task's rows, one of which has this label; None: the one that the model says, so that its gradient is zero."""
    data = task.train_data("source-1")
    labels = data.labels.clone()
    with torch.no_grad():
        labels[row] = build_model(task, 0)(data.features)[row] if label is None else label
    return Samples(data.features, labels)
