"""Tasks that something is wrong with, or that take their time; named in configurations as ``e2e_tasks:Class``."""

from __future__ import annotations

import time
from pathlib import Path

import torch
from torch import Tensor, nn

from securefda.tasks import Samples
from securefda.tasks.digits import Digits

FOREVER_S = 300.0


class WithBatchNorm(Digits):
    """Its model holds running statistics, which stay at their site; training with noise refuses it."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10))


class WithoutAccuracy(Digits):
    """Its metrics lack the one that is always reported, where a model is evaluated and not trained."""

    def metrics(self, outputs: Tensor, labels: Tensor) -> dict[str, float]:
        return super().metrics(outputs, labels) if torch.is_grad_enabled() else {"error": 0.5}


class RaisesInLoss(Digits):
    """Its loss fails as soon as something trains."""

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        raise ValueError("there is no such label")


class SlowSteps(Digits):
    """A step takes a third of a second."""

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        time.sleep(1 / 3)
        return super().loss(outputs, labels)


class ManyLayers(Digits):
    """So many named layers that no header fits 64 KiB."""

    def model(self) -> nn.Module:
        first = nn.Sequential(*[nn.Linear(1, 1) for _ in range(2000)])
        return nn.Sequential(nn.Linear(64, 1), first, nn.Linear(1, 10))


class Wider(Digits):
    """Digits, with another hidden layer."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))


class FewRows(Digits):
    """Sites have eight rows each."""

    def train_data(self, site: str) -> Samples:
        rows = super().train_data(site)
        return Samples(rows.features[:8], rows.labels[:8])


class Large(Digits):
    """Digits, with a million parameters and more: vectors of 4 MB."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(64, 13_400), nn.ReLU(), nn.Linear(13_400, 10))


class Endless(Digits):
    """Its training does not end while the file ``hold`` lies in the data folder."""

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        until = time.monotonic() + FOREVER_S
        while self._hold.exists() and time.monotonic() < until:
            time.sleep(0.05)
        return super().loss(outputs, labels)

    @property
    def _hold(self) -> Path:
        return (self.settings.data_dir or Path()) / "hold"


class Held(Digits):
    """A site does not train while ``hold-SITE`` lies in the data folder; with ``hold-evaluation``, none evaluates.

    A site that is held makes the file ``held-training-at-SITE`` or ``held-evaluation-at-SITE``.
    """

    _site = ""

    def train_data(self, site: str) -> Samples:
        self._site = site
        return super().train_data(site)

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        until = time.monotonic() + FOREVER_S
        folder = self.settings.data_dir or Path()
        name, what = (self._site, "training") if torch.is_grad_enabled() else ("evaluation", "evaluation")
        while (folder / f"hold-{name}").exists() and time.monotonic() < until:
            (folder / f"held-{what}-at-{self._site}").touch()
            time.sleep(0.05)
        return super().loss(outputs, labels)
