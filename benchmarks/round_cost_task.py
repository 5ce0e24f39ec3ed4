"""A task that takes next to no time to train on: a model of about m parameters, and eight rows at each site.

The import of this module by a process that takes part in a measured run starts the timing there.
"""

from __future__ import annotations

import os
import time

import torch
from torch import nn

from securefda.tasks import Samples, TaskSettings
from securefda.tasks.classification import Classification

ROWS = 8
FEATURES, HIDDEN, CLASSES = 20, 32, 10
FEWEST_PARAMS = 1000


class Wide(Classification):
    """Three linear layers, the middle one as wide as ``parameters`` asks for; rows are noise, labels by chance."""

    separate_rows = True

    def __init__(self, settings: TaskSettings) -> None:
        super().__init__(settings)
        settings.reject_unknown_options("parameters")
        self._width = width_of(settings.count("parameters", 10_000, low=FEWEST_PARAMS, high=10**8))

    def model(self) -> nn.Module:
        """Six parameter tensors."""
        layers = (nn.Linear(FEATURES, HIDDEN), nn.Linear(HIDDEN, self._width), nn.Linear(self._width, CLASSES))
        return nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2], Pause())

    def train_data(self, site: str) -> Samples:
        """The rows that one site trains on."""
        return self._rows(site, part=0)

    def test_data(self, site: str) -> Samples:
        """The rows that one site holds out."""
        return self._rows(site, part=1)

    def _rows(self, site: str, *, part: int) -> Samples:
        sites = (self.settings.target, *self.settings.sources)
        generator = torch.Generator().manual_seed(1000 * self.settings.seed + 2 * sites.index(site) + part)
        labels = torch.randint(CLASSES, (ROWS,), generator=generator)
        return Samples(torch.randn(ROWS, FEATURES, generator=generator), labels)


class Pause(nn.Module):
    """Makes training as long as the environment asks for, by doing nothing for so many seconds in each step."""

    def forward(self, outputs: torch.Tensor) -> torch.Tensor:
        """The outputs as they are."""
        if self.training:
            time.sleep(float(os.environ.get("SECUREFDA_PAUSE_S", "0")))
        return outputs


def width_of(parameters: int) -> int:
    """Width of the middle layer with which the model comes nearest to a number of parameters."""
    first = FEATURES * HIDDEN + HIDDEN
    return max(1, round((parameters - first - CLASSES) / (HIDDEN + 1 + CLASSES)))


def params_of(parameters: int) -> int:
    """How many parameters it then has."""
    width = width_of(parameters)
    return FEATURES * HIDDEN + HIDDEN + (HIDDEN + 1 + CLASSES) * width + CLASSES


if os.environ.get("SECUREFDA_SHARES"):
    from round_cost_shares import start

    start()
