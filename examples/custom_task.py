"""A task of your own, in one small class: which of three blobs does a point belong to?

Name it in a federation's file as ``task.factory = "custom_task:Blobs"`` and start in this folder, or put it on
PYTHONPATH, at every site. A site is only ever asked for its own rows; here they are generated, yours would come from
``self.settings.data_dir``. With DP-SGD, models must not hold BatchNorm: use GroupNorm.
"""

import torch
from torch import Tensor, nn

from securefda.tasks import Samples, Task


class Blobs(Task):
    """Three blobs in the plane; the target sees them moved to the right by the option ``shift``, and has 20 rows."""

    separate_rows = True  # each row is made by itself: with DP-SGD, what noise covers rests on it

    def model(self) -> nn.Module:
        """Two coordinates in, three logits out."""
        return nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 3))

    def train_data(self, site: str) -> Samples:
        """The rows that one site trains on."""
        return self._blobs(site, rows=20 if site == self.settings.target else 200, part=0)

    def test_data(self, site: str) -> Samples:
        """The rows that one site holds out; the target's are what accuracy is measured on."""
        return self._blobs(site, rows=300, part=1)

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """What training makes small: a mean over the batch."""
        return nn.functional.cross_entropy(outputs, labels)

    def metrics(self, outputs: Tensor, labels: Tensor) -> dict[str, float]:
        """What is reported; ``accuracy`` must be there."""
        return {"accuracy": float((outputs.argmax(dim=1) == labels).double().mean())}

    def _blobs(self, site: str, *, rows: int, part: int) -> Samples:
        sites = (self.settings.target, *self.settings.sources)
        generator = torch.Generator().manual_seed(1000 * self.settings.seed + 2 * sites.index(site) + part)
        labels = torch.randint(3, (rows,), generator=generator)
        middles = torch.tensor([[0.0, 2.0], [-2.0, -1.0], [2.0, -1.0]])
        moved = self.settings.number("shift", 1.5, low=0, high=10) if site == self.settings.target else 0.0
        features = middles[labels] + torch.randn(rows, 2, generator=generator) + torch.tensor([moved, 0.0])
        return Samples(features, labels)
