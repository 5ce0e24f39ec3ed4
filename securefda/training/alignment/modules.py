"""Modules that stay at a source, as in Tables 7 and 8 of Peng et al. (ICLR 2020), and narrower where features are."""

from __future__ import annotations

import torch
from torch import Tensor, nn

_WIDEST = 256


class DomainIdentifier(nn.Module):
    """Of features (n, d), the logit of each row being the source's, (n,)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        hidden = min(_WIDEST, width)
        self.layers = nn.Sequential(nn.Linear(width, hidden), nn.LeakyReLU(), nn.Linear(hidden, 1))

    def forward(self, features: Tensor) -> Tensor:
        """See the class."""
        logits: Tensor = self.layers(features)[:, 0]
        return logits


class ClassIdentifier(nn.Linear):
    """Of domain-specific features (n, d), outputs as those of the model, (n, classes)."""


class InformationEstimator(nn.Module):
    """Of two parts of features, (n, d) and (n, e), one number for each pair, (n,)."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__()
        hidden = min(_WIDEST, first)
        self.of_first, self.of_second = nn.Linear(first, hidden), nn.Linear(second, hidden)
        self.out = nn.Linear(hidden, 1)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        """See the class."""
        number: Tensor = self.out(nn.functional.leaky_relu(self.of_first(first) + self.of_second(second)))[:, 0]
        return number


class Reconstructor(nn.Module):
    """Of two parts of features, (n, d) and (n, e), the features that they were made of, (n, f)."""

    def __init__(self, first: int, second: int, features: int) -> None:
        super().__init__()
        self.layer = nn.Linear(first + second, features)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        """See the class."""
        made: Tensor = self.layer(torch.cat([first, second], dim=1))
        return made
