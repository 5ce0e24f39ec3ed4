"""A small regression whose rows, labels and option are canaries; named in configurations as ``canary_tasks:Marked``."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from securefda.tasks import Samples, Task, TaskSettings

ROW_VALUES = (0.40417731, -7.3190258)
"""The first two of the four values of every row of every site: an old friend would know the patient by them."""
LABELS = (2.7310946, 5.1860237)
OPTION = "hunter2-the-password-of-the-ward"
_ROWS, _WIDTH = 32, 4


class Marked(Task):
    """Says which of two values a row belongs to; the option ``password`` is for the site's own data base."""

    separate_rows = True

    def __init__(self, settings: TaskSettings) -> None:
        super().__init__(settings)
        if settings.options.get("password") != OPTION:
            raise ValueError("the data base does not open")

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(_WIDTH, 8), nn.ReLU(), nn.Linear(8, 1))

    def train_data(self, site: str) -> Samples:
        return self._rows(site, 0)

    def test_data(self, site: str) -> Samples:
        return self._rows(site, 1)

    def oracle_data(self) -> Samples:
        return self._rows(self.settings.target, 0)

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.mse_loss(outputs[:, 0], labels)

    def metrics(self, outputs: Tensor, labels: Tensor) -> dict[str, float]:
        return {"accuracy": float(((outputs[:, 0] - labels).abs() < 1).double().mean())}

    def _rows(self, site: str, part: int) -> Samples:
        number = (self.settings.target, *self.settings.sources).index(site)
        generator = torch.Generator().manual_seed(1000 * self.settings.seed + 10 * number + part)
        features = torch.randn(_ROWS, _WIDTH, generator=generator)
        features[:, :2] = torch.tensor(ROW_VALUES)
        return Samples(features, torch.tensor(LABELS)[(features[:, 2] > 0).long()])
