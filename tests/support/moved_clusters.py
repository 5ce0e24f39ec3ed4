"""Three clusters of points that lie elsewhere at the target, so that a model of the sources cuts through them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from securefda.tasks import Samples, TaskSettings, Unlabelled
from securefda.tasks.classification import Classification

CLASSES = 3
_CENTRES = torch.tensor([[3.0, 0.0], [-1.5, 2.6], [-1.5, -2.6]])
_MOVED = torch.tensor([1.3, 2.3])


class MovedClusters(Classification):
    """Points in a plane; 300 rows at every site. The target has labels for the first ``labelled``, all by default.

    Options: ``labelled``; ``hidden``, the units of the model, 0 for a linear one; ``normed``, 1 for BatchNorm.
    """

    separate_rows = True

    def __init__(self, settings: TaskSettings) -> None:
        super().__init__(settings)
        self.hidden = settings.count("hidden", 64, low=0, high=64)
        self.normed = settings.count("normed", 0, low=0, high=1)
        self.labelled = settings.count("labelled", 300, low=1, high=300)

    def model(self) -> nn.Module:
        if not self.hidden:
            return nn.Linear(2, CLASSES)
        norm = nn.BatchNorm1d(self.hidden) if self.normed else nn.Identity()
        return nn.Sequential(nn.Linear(2, self.hidden), norm, nn.ReLU(), nn.Linear(self.hidden, CLASSES))

    def train_data(self, site: str) -> Samples:
        rows = self._points(site, 0)
        if site != self.settings.target:
            return rows
        return Samples(rows.features[: self.labelled], rows.labels[: self.labelled])

    def unlabelled_data(self) -> Unlabelled | None:
        rows = self._points(self.settings.target, 0).features[self.labelled :]
        return Unlabelled(rows) if len(rows) else None

    def test_data(self, site: str) -> Samples:
        return self._points(site, 1)

    def varied(self, features: Tensor, generator: torch.Generator) -> Tensor:
        return features + 0.3 * torch.randn(features.shape, generator=generator)

    def _points(self, site: str, part: int) -> Samples:
        is_target = site == self.settings.target
        number = 0 if is_target else 1 + self.settings.sources.index(site)
        generator = torch.Generator().manual_seed(1000 * self.settings.seed + 10 * number + part)
        labels = torch.arange(300) % CLASSES
        points = _CENTRES[labels] + 0.6 * torch.randn(300, 2, generator=generator)
        return Samples(points + _MOVED if is_target else points, labels)
