"""Canaries among a site's rows, and what an auditor reads of them in noisy sums. Import it where it is needed: Opacus.

A canary is a row that an auditor makes up: noise where rows have measurements, other rows' values where they have
codes, and a randomly chosen label. It is far from all rows, so that clipping leaves it as long as a row can be, in a
direction of its own. A coin decides whether it is among the rows.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor, nn

from securefda.errors import ConfigError
from securefda.privacy.private_training import optimizer_of
from securefda.protocol.encoding import Vector
from securefda.tasks import Inputs, RowsOnDisk, Samples, Task, task_code
from securefda.tasks.inputs import in_memory, joined, map_tensors
from securefda.training import TrainingSettings, choose_device, vector_to_model

_SPREAD = 3.0
"""Standard deviation of a canary's features, in units of that of the rows' features."""

_NUMBERS_AT_ONCE = 2**26
"""Numbers of the gradients of rows that are computed together."""

_LEAST_NOISE = 1e-6
"""Least variance of the noise that an auditor expects, in units of that of the rows: arithmetic is not exact."""


def canaries_like(rows: Samples, count: int, generator: torch.Generator) -> Samples:
    """Make ``count`` canaries in the form of a site's rows. Their values need not be secret.

    Labels are drawn from those that occur, each as likely as any other: a model that expects a frequent label of every
    row would learn little from a canary that has it.

    Raises:
        ConfigError: the rows are on disk.
    """

    def drawn(tensor: Tensor) -> Tensor:
        if isinstance(tensor, RowsOnDisk):
            hint = "audit a task of the same model whose train_data returns Samples of some of the rows"
            raise ConfigError("task.factory", "its rows are on disk, and canaries go among rows in memory", hint=hint)
        places = tensor.reshape(len(tensor), -1)
        values = places.gather(0, torch.randint(len(places), (count, places.shape[1]), generator=generator))
        if tensor.is_floating_point():
            noise = torch.randn(values.shape, generator=generator).to(places) * _SPREAD * places.std(0, correction=0)
            are_codes = (places == places.round()).all(0)
            values = torch.where(are_codes, values, places.mean(0) + noise)
        return values.reshape(count, *tensor.shape[1:])

    labels = torch.unique(rows.labels, dim=0)
    picked = labels[torch.randint(len(labels), (count,), generator=generator)]
    return Samples(map_tensors(drawn, rows.features), picked)


def together(*parts: Samples) -> Samples:
    """Return the rows of all parts, in their order."""
    return Samples(joined([part.features for part in parts]), torch.cat([part.labels for part in parts]))


class TaskWithBlanks(Task):
    """A site's task for training on ``rows``, of which some are blanks: rows without a loss, and so without a gradient.

    A blank is in the place of each canary that is out. So the number of rows, on which the sampling rate depends, tells
    nothing of the coins, and a coin decides whether one row counts, as the ledger's epsilon assumes.

    Args:
        task: the site's.
        rows: with their labels. In ``self.rows``, each label is the row's number.
        counts: (n,), False for a blank.
    """

    def __init__(self, task: Task, rows: Samples, counts: Tensor) -> None:
        super().__init__(task.settings)
        self._task, self._labels, self._counts = task, rows.labels, counts
        self.rows = Samples(rows.features, torch.arange(len(rows)))
        self.separate_rows = task.separate_rows

    def model(self) -> nn.Module:
        """Return the site's model."""
        return self._task.model()

    def train_data(self, site: str) -> Samples:  # noqa: ARG002 - it is of one site
        """Return ``rows``, whose labels are their numbers."""
        return self.rows

    def test_data(self, site: str) -> None:
        """Return None: nothing is held out."""

    def loss(self, outputs: Inputs, labels: Tensor) -> Tensor:
        """Return the mean over all rows, blanks included."""
        return self.row_losses(outputs, labels).mean()

    def row_losses(self, outputs: Inputs, labels: Tensor) -> Tensor:
        """Return the site's loss of each row; 0 for a blank."""
        numbers = labels.cpu()
        losses = self._task.row_losses(outputs, self._labels[numbers].to(labels.device))
        return losses * self._counts[numbers].to(losses)

    def metrics(self, outputs: Inputs, labels: Tensor) -> dict[str, float]:
        """Return the site's metrics."""
        return self._task.metrics(outputs, self._labels[labels.cpu()])


def evidence_of_rows(parts: Tensor, surprise: Tensor, chance: Tensor, std: float) -> Tensor:
    """Return how much likelier a noisy sum is if it holds a row than if not, as a logarithm, float64 (rows,).

    For each row, all others are taken for Gaussian, with the mean and the covariance that their chances give them.

    Args:
        parts: what each row adds to the sum if it is in it, (rows, m).
        surprise: the sum less its mean, float64 (m,).
        chance: float64 (rows,), of each row to be in it, in (0, 1).
        std: of the noise in each number.
    """
    spread = (chance * (1 - chance)).sqrt()
    scaled = parts * spread.to(parts)[:, None]
    are_few = len(scaled) <= scaled.shape[1]
    covariance = (scaled @ scaled.T if are_few else scaled.T @ scaled).double()
    variances = covariance.diagonal()
    noise = std**2 + _LEAST_NOISE * float(variances.mean())
    variances.add_(noise)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(covariance))
    if are_few:
        along = inverse @ (scaled @ surprise.to(scaled)).double()
        of_others = noise * inverse.diagonal()
    else:
        weights = scaled.double() @ inverse
        along = weights @ surprise
        of_others = 1 - (weights * scaled.double()).sum(dim=1)
    # Both are by the covariance of all rows; the share of the others is what takes the row itself out of it.
    length = (1 - of_others) / spread**2 / of_others
    return along / spread / of_others + (chance - 0.5) * length


def clipped_gradients(task: Task, model: nn.Module, at: Vector, rows: Samples, settings: TrainingSettings) -> Tensor:
    """Return what each row adds to a step of DP-SGD that draws it, (rows, m), at a model, float32 (m,).

    Raises:
        DataError: the task's own code fails.
    """
    if settings.dp is None:
        raise ValueError("no dp")
    # Opacus keeps gradients of rows only where they are not clipped as ghosts
    plain = replace(settings, dp=replace(settings.dp, ghost_clipping=False))
    device, parts = choose_device(settings.device), []
    vector_to_model(at, model.to(device).train())
    with optimizer_of(task, model, rows, plain) as (optimizer, backward), task_code(type(task), "training"):
        for numbers in torch.split(torch.arange(len(rows)), max(1, _NUMBERS_AT_ONCE // len(at))):
            some = rows.at(numbers)
            backward(in_memory(some.features, device), some.labels.to(device))
            each = torch.cat([parameter.grad_sample.flatten(1) for parameter in optimizer.params], dim=1).cpu()
            parts.append(each * (settings.dp.max_grad_norm / (each.norm(dim=1, keepdim=True) + 1e-6)).clamp(max=1.0))
    return torch.cat(parts)


def evidence_in_step(canaries: Tensor, rows: Tensor, total: Tensor, rate: float, std: float) -> Tensor:
    """Return how much likelier a step is if a canary is among the rows, as a logarithm, float64 (canaries,).

    Args:
        canaries: what each canary adds to the step if it is among the rows and drawn, (canaries, m).
        rows: what each of the site's rows adds if it is drawn, (rows, m).
        total: the noisy sum of gradients, float64 (m,).
        rate: the probability with which a step draws a row.
        std: of the noise in each number.
    """
    surprise = total - rate * (canaries.double().sum(0) / 2 + rows.double().sum(0))
    chance = torch.full((len(canaries),), rate / 2, dtype=torch.float64)
    if rate == 1:
        return evidence_of_rows(canaries, surprise, chance, std)
    of_rows = chance.new_full((len(rows),), rate)
    drawn = evidence_of_rows(torch.cat([canaries, rows]), surprise, torch.cat([chance, of_rows]), std)[: len(canaries)]
    return torch.logaddexp(drawn + math.log(rate), drawn.new_tensor(math.log1p(-rate)))
