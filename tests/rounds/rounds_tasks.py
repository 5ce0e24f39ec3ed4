"""Small tasks for tests of the rounds: they train in milliseconds."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from securefda.tasks import Disentangled, Samples, Task, TaskSettings

TARGET_ROWS, SOURCE_ROWS = 12, 24
WIDTH, CLASSES = 4, 3


class Points(Task):
    """Three classes of points in four dimensions, moved at every site; 15 parameters in two layers.

    Options: ``hidden`` units, and ``norm`` = "batch" for a BatchNorm before the last layer, with 8 parameters more, or
    "parts" for features of two parts.
    """

    separate_rows = True

    def __init__(self, settings: TaskSettings) -> None:
        super().__init__(settings)
        self.hidden = settings.count("hidden", 0, low=0, high=8)
        self.norm = settings.choice("norm", "none", ("none", "batch", "parts"))

    def model(self) -> nn.Module:
        if self.hidden:
            return nn.Sequential(nn.Linear(WIDTH, self.hidden), nn.ReLU(), nn.Linear(self.hidden, CLASSES))
        if self.norm == "batch":
            return nn.Sequential(nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, CLASSES))
        if self.norm == "parts":
            invariant, specific = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2)
            return Disentangled(nn.Linear(WIDTH, WIDTH), invariant, specific, nn.Linear(WIDTH, CLASSES))
        return nn.Linear(WIDTH, CLASSES)

    def train_data(self, site: str) -> Samples:
        return self._points(site, TARGET_ROWS if site == self.settings.target else SOURCE_ROWS, part=0)

    def test_data(self, site: str) -> Samples:
        return self._points(site, 60, part=1)

    def oracle_data(self) -> Samples:
        return self._points(self.settings.target, 48, part=0)

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, labels)

    def metrics(self, outputs: Tensor, labels: Tensor) -> dict[str, float]:
        return {"accuracy": float((outputs.argmax(dim=1) == labels).double().mean())}

    def _points(self, site: str, rows: int, part: int) -> Samples:
        number = (self.settings.target, *self.settings.sources).index(site)
        generator = torch.Generator().manual_seed(1000 * self.settings.seed + 10 * number + part)
        labels = torch.randint(CLASSES, (rows,), generator=generator)
        centres = 2 * torch.eye(WIDTH)[:CLASSES]
        features = centres[labels] + 0.1 * number + torch.randn(rows, WIDTH, generator=generator)
        return Samples(features, labels)
