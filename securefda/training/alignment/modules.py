"""The private modules of a source: Tables 7 and 8 of Peng et al. (ICLR 2020), no wider than the features."""

from __future__ import annotations

import torch
from torch import Tensor, nn

_WIDEST = 256


class DomainIdentifier(nn.Module):
    """Maps features (n, d) to the logit that each row is the source's, (n,)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        hidden = min(_WIDEST, width)
        self.layers = nn.Sequential(nn.Linear(width, hidden), nn.LeakyReLU(), nn.Linear(hidden, 1))

    def forward(self, features: Tensor) -> Tensor:
        """Return the logits, (n,)."""
        logits: Tensor = self.layers(features)[:, 0]
        return logits


class ClassIdentifier(nn.Linear):
    """Maps domain-specific features (n, d) to outputs such as the model's, (n, classes)."""


class InformationEstimator(nn.Module):
    """Maps two parts of features, (n, d) and (n, e), to a score of each pair, (n,)."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__()
        hidden = min(_WIDEST, first)
        self.of_first, self.of_second = nn.Linear(first, hidden), nn.Linear(second, hidden)
        self.out = nn.Linear(hidden, 1)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        """Return the scores, (n,)."""
        score: Tensor = self.out(nn.functional.leaky_relu(self.of_first(first) + self.of_second(second)))[:, 0]
        return score


class Reconstructor(nn.Module):
    """Maps two parts of features, (n, d) and (n, e), to the extracted features, (n, f)."""

    def __init__(self, first: int, second: int, features: int) -> None:
        super().__init__()
        self.layer = nn.Linear(first + second, features)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        """Return the reconstruction, (n, f)."""
        reconstruction: Tensor = self.layer(torch.cat([first, second], dim=1))
        return reconstruction
