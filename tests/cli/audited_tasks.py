"""A task whose audit takes a moment: one linear layer, and rows that are drawn."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from securefda.tasks import Samples, Task
from securefda.tasks.metric_functions import class_metrics


class Drawn(Task):
    separate_rows = True

    def model(self) -> nn.Module:
        return nn.Linear(256, 2)

    def train_data(self, site: str) -> Samples:
        generator = torch.Generator().manual_seed(len(site))
        return Samples(torch.randn(24, 256, generator=generator), torch.randint(2, (24,), generator=generator))

    test_data = train_data

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, labels)

    def metrics(self, outputs: Tensor, labels: Tensor) -> dict[str, float]:
        return class_metrics(outputs, labels)
