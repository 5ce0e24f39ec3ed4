"""Small tasks that the training tests train."""

import pytest
import torch
from torch import Tensor, nn

from securefda.tasks import Samples, Task, TaskSettings

SETTINGS = TaskSettings("target", ("source-1",))
DEVICES = [
    "cpu",
    *(["cuda"] if torch.cuda.is_available() else []),
    *(["mps"] if torch.backends.mps.is_available() else []),
]
devices = pytest.mark.parametrize("device", DEVICES)


class Line(Task):
    """Least squares from 3 features to 1 label, 20 rows; ``network`` replaces the model."""

    separate_rows = True

    def __init__(self, network: nn.Module | None = None, settings: TaskSettings = SETTINGS) -> None:
        super().__init__(settings)
        self.network = network

    def model(self) -> nn.Module:
        return self.network if self.network is not None else nn.Linear(3, 1)

    def train_data(self, site: str) -> Samples:
        generator = torch.Generator().manual_seed(5)
        features = torch.randn(20, 3, generator=generator)
        return Samples(features, features @ torch.tensor([[1.0], [-2.0], [0.5]]) + 1.0)

    def test_data(self, site: str) -> Samples:
        return self.train_data(site)

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.mse_loss(outputs, labels)

    def metrics(self, outputs: Tensor, labels: Tensor) -> dict[str, float]:
        return {"accuracy": float(((outputs > 0) == (labels > 0)).double().mean())}


class WithDropout(Line):
    """Draws random numbers in the forward pass too."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(3, 32), nn.Dropout(0.5), nn.ReLU(), nn.Linear(32, 1))
