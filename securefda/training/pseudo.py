"""Training a target without labels on its own confident predictions: pseudo-labels (Lee 2013), made in every round.

A row counts where the model that the round begins with is at least as sure of a label as the threshold says. The label
is that of the row as it is; it is trained on the row a little changed, where the task can change it. Labels that are
frequent among those rows count less, so that all have one weight: else a model soon gives every row the same label.

The loss of every other row is left out of the mean, and the steps are those of a target with labels: their number does
not tell how many rows counted. Where fewer count than the least share, the target does not train.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from securefda.errors import TrainingError
from securefda.protocol.encoding import Vector
from securefda.tasks import Samples, Task, Unlabelled, task_code
from securefda.training.alignment import Aligned
from securefda.training.local import LocalResult, outputs_of, train_local
from securefda.training.memory import PersonalMemory
from securefda.training.seeds import SecretSeed
from securefda.training.settings import TrainingSettings
from securefda.training.trainer import SiteTrainer

_TRIED_ROWS = 2


@dataclass(frozen=True, slots=True)
class PseudoSettings:
    """When pseudo-labels count.

    Attributes:
        threshold: how sure of a label the model has to be for the row to count, in (0, 1).
        share: which share of the rows has to count for the target to train, in (0, 1].
    """

    threshold: float
    share: float


class PseudoTrainer(SiteTrainer):
    """As :class:`SiteTrainer`, on rows without labels.

    Args:
        task, site, settings, seed, secret, before_round, memory: as for :class:`SiteTrainer`.
        data: the rows.
        pseudo: when their pseudo-labels count.

    Raises:
        ConfigError: the task says of no label how sure the model is of it; also as for :class:`SiteTrainer`.
        TrainingError, DataError: as for :class:`SiteTrainer` and :func:`guessed`.
    """

    def __init__(
        self,
        task: Task,
        site: str,
        data: Unlabelled,
        settings: TrainingSettings,
        seed: int,
        *,
        pseudo: PseudoSettings,
        secret: SecretSeed | None = None,
        before_round: Callable[[], None] | None = None,
        memory: PersonalMemory | None = None,
    ) -> None:
        super().__init__(task, site, data, settings, seed, secret=secret, before_round=before_round, memory=memory)
        self._pseudo = pseudo
        guessed(task, outputs_of(task, self.module, data.features[:_TRIED_ROWS]))  # now, not after the warm-up

    def train(
        self,
        received: Vector,
        round_number: int,
        factor: float,
        *,
        run_id: str = "",
        attempt: int = 0,  # noqa: ARG002 - nothing is charged
        fewest_steps: int = 1,
        on_step: Callable[[Vector], None] | None = None,
        align: Aligned | None = None,  # noqa: ARG002 - the rules that have it train no target
    ) -> LocalResult:
        """Train one round from ``received``, float32 (m,). Where too few rows count, take no step at all.

        Raises:
            TrainingError, DataError: as for ``train_local``, and what :func:`guessed` raises.
        """
        self.before_round()
        settings, features = self.settings.with_learning_rate_factor(factor), self.rows.features
        self.prepare_to_evaluate(received)
        labels, sure = guessed(self.task, outputs_of(self.task, self.module, features))
        counts = sure >= self._pseudo.threshold  # of a model that gives NaN, no row
        confident = int(counts.sum())
        if confident < max(1, self._pseudo.share * len(features)):
            still, rate = np.zeros_like(received), settings.learning_rate
            return LocalResult(still, 0, len(features), None, None, rate, confident=confident)
        self.prepare_to_train(run_id, round_number)
        result = train_local(
            self.task,
            self.module,
            received,
            Samples(features, labels),
            settings=replace(settings, vary=True),
            seed=self.round_seed(run_id, round_number),
            site=self.site,
            fewest_steps=fewest_steps,
            on_step=on_step,
            row_weights=balanced(labels, counts),
        )
        self.keep_statistics(run_id, round_number)
        return replace(result, loss=None, accuracy=None, confident=confident)


def balanced(labels: Tensor, counts: Tensor) -> Tensor:
    """Weights (n,) of rows: 0 where they do not count; else equal in sum for every label, and 1 on average.

    Args:
        labels: of the rows, (n, ...).
        counts: which of them count, (n,), at least one.
    """
    _, kind, often = torch.unique(labels[counts], dim=0, return_inverse=True, return_counts=True)
    weights = torch.zeros(len(labels))
    weights[counts] = (len(kind) / (len(often) * often[kind])).float()
    return weights


def guessed(task: Task, outputs: Tensor) -> tuple[Tensor, Tensor]:
    """The labels that a model gives rows (n, ...), and how sure it is of each, (n,).

    Raises:
        ConfigError: the task does not say how.
        DataError: its own code fails.
        TrainingError: it does not give one of both for each row.
    """
    with task_code(type(task), "guesses"):
        labels, sure = task.guesses(outputs)
    if len(labels) != len(outputs) or sure.shape != (len(outputs),):
        shapes = f"{tuple(labels.shape)} and {tuple(sure.shape)}"
        raise TrainingError(
            f"task {type(task).__name__}: its guesses for {len(outputs)} rows have the shapes {shapes}",
            hint="guesses returns a label for each row, in the form of Samples.labels, and one number in [0, 1]",
        )
    return labels, sure
