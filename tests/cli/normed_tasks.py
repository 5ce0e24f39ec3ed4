"""A task whose model holds BatchNorm and dropout, and that reads rows without labels from ``.npy`` files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from securefda.tasks.digits import Digits


class NormedDigits(Digits):
    """Digits, with BatchNorm before its hidden layer and behind it."""

    def model(self) -> nn.Module:
        return nn.Sequential(
            nn.BatchNorm1d(64), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 10)
        )

    def inputs_from(self, path: Path) -> Tensor:
        return torch.from_numpy(np.load(path))
