"""Sites that really train, with and without noise, on rows that a test knows: the secrets of membership and inversion.

The model is one linear layer, 63 inputs and 64 classes, which begins at zero: the easiest there is to read. A row that
is not in the data keeps its place with the label :data:`ABSENT` and has no gradient, so that the number of rows, which
is taken as public, does not depend on who is in.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import shake_256
from itertools import count
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from securefda.privacy.dp_events import Budget
from securefda.privacy.ledger import Ledger
from securefda.protocol.secret import RandomBytes
from securefda.site.privacy_account import PrivacyAccount, Reserving, data_set_of
from securefda.site.private_trainer import PrivateTrainer
from securefda.tasks import Samples, Task, TaskSettings
from securefda.training import LocalResult, NoiseSettings, SecretSeed, TrainingSettings, Vector
from securefda.training.trainer import SiteTrainer
from threat_model.sites import INPUTS, OUTPUTS, published_key

ABSENT = -100
DELTA = 1e-5
NOON = 1_800_000_000
SEED = 7
"""The run's seed, which every site of a federation knows."""

PUBLIC_KEY = published_key(1).public_key().public_bytes_raw()
"""The key of the site, whose signature its ledger needs."""

WIDE = Budget(1e6, DELTA)
"""For tests of what noise does; a budget that pays for everything."""


class Rows(Task):
    """Softmax regression from ``inputs`` features to ``outputs`` classes; first weights are zero."""

    separate_rows = True

    def __init__(self, inputs: int = INPUTS, outputs: int = OUTPUTS, *, bias: bool = True) -> None:
        super().__init__(TaskSettings("target", ("source-1",)))
        self._layer = inputs, outputs, bias

    def model(self) -> nn.Module:
        """Return one linear layer of zeros."""
        layer = nn.Linear(*self._layer)
        for parameter in layer.parameters():
            nn.init.zeros_(parameter)
        return layer

    def train_data(self, site: str) -> Samples:  # noqa: ARG002 - a test hands rows to the trainer
        """Return one absent row."""
        return rows_of(np.zeros((1, self._layer[0])), np.array([ABSENT]))

    def test_data(self, site: str) -> Samples:
        """Return one absent row."""
        return self.train_data(site)

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the mean over all places, taken or not."""
        return self.row_losses(outputs, labels).mean()

    def row_losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the cross-entropy of each row; 0 if it is absent."""
        return nn.functional.cross_entropy(outputs, labels, reduction="none", ignore_index=ABSENT)

    def metrics(self, outputs: Tensor, labels: Tensor) -> dict[str, float]:
        """Return the accuracy; absent rows count as wrong."""
        return {"accuracy": float((outputs.argmax(dim=1) == labels).double().mean())}


def rows_of(features: NDArray[np.floating], labels: NDArray[np.int64]) -> Samples:
    """Return rows of a site, features (n, inputs) and labels (n,)."""
    return Samples(torch.from_numpy(np.asarray(features, np.float32)), torch.from_numpy(np.asarray(labels, np.int64)))


@dataclass(frozen=True, slots=True)
class Candidates:
    """Rows of which the attacker knows everything except whether they are in the data.

    Attributes:
        features: (n, inputs) float32.
        labels: (n,).
        members: (n,), which of them are in: a random half.
    """

    features: NDArray[np.float32]
    labels: NDArray[np.int64]
    members: NDArray[np.bool_]

    @classmethod
    def drawn(cls, n: int, seed: int) -> Candidates:
        """Draw features of length about two in random directions, random classes, and the secret half of the rows."""
        numbers = np.random.default_rng(seed)
        features = (2 * numbers.normal(size=(n, INPUTS)) / np.sqrt(INPUTS)).astype(np.float32)
        return cls(features, numbers.integers(0, OUTPUTS, n), numbers.permutation(n) < n // 2)

    @property
    def data(self) -> Samples:
        """Return the rows of the site: members, and empty places for the others."""
        return rows_of(self.features, np.where(self.members, self.labels, ABSENT))


def fixed_bytes(seed: int) -> RandomBytes:
    """Return a source of bytes that look random but are the same in every test, in place of ``os.urandom``."""
    numbers = count()
    return lambda length: shake_256(f"threat model {seed} {next(numbers)}".encode()).digest(length)


def plain_trainer(
    data: Samples,
    settings: TrainingSettings,
    *,
    task: Task | None = None,
    secret: SecretSeed | None = None,
    least_rows: int = 1,
) -> SiteTrainer:
    """Return a site that trains without noise; its batches come from ``secret``, or for None from the run's seed."""
    return SiteTrainer(task or Rows(), "site", data, settings, SEED, secret=secret, least_rows=least_rows)


def private_trainer(
    folder: Path,
    data: Samples,
    settings: TrainingSettings,
    *,
    task: Task | None = None,
    budget: Budget = WIDE,
    random_bytes: RandomBytes = os.urandom,
    name: str = "rows",
    reserving: Reserving = Reserving(),  # noqa: B008 - it is frozen
    unix_time: Callable[[], float] = lambda: NOON,
) -> PrivateTrainer:
    """Return a site that trains by DP-SGD with a ledger in ``folder``, made if there is none."""
    data_set, file = data_set_of("site", name, data), folder / f"{name}.ledger.sqlite"
    ledger = Ledger(file, data_set) if file.exists() else Ledger.create(file, data_set, now=NOON)
    account = PrivacyAccount(ledger, data_set, budget, PUBLIC_KEY, unix_time=unix_time, reserving=reserving)
    return PrivateTrainer(task or Rows(), "site", data, settings, SEED, account=account, random_bytes=random_bytes)


def spent(trainer: PrivateTrainer) -> float:
    """Return the spent epsilon in the site's ledger, at the delta of its budget."""
    account = trainer.account
    return account.ledger.spent(account.budget.delta, account.budget.accountant)


def sgd(rate: float, batch: int, *, epochs: int = 1, noise: float | None = None, clip: float = 1.0) -> TrainingSettings:
    """Return settings of gradient descent; with ``noise``, a noise multiplier, by DP-SGD."""
    dp = None if noise is None else NoiseSettings(noise, clip)
    return TrainingSettings("sgd", rate, batch, epochs, device="cpu", dp=dp)


def asked(
    trainer: SiteTrainer, received: Vector, *, run_id: str = "run-1", round_number: int = 1, attempt: int = 1
) -> LocalResult:
    """Return a site's answer to one header: a new result, or the one kept for this very place and model."""
    return trainer.train(received, round_number, 1.0, run_id=run_id, attempt=attempt)
