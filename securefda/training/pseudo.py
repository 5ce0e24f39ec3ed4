"""Pseudo-labels (Lee 2013): a target without labels trains on its own confident predictions, made anew in every round.

A row counts if the model with which the round begins predicts its label with at least the threshold's confidence. The
label is predicted from the row as it is. Training uses a varied row if the task can vary rows. Frequent labels count
less, so that all labels have the same total weight; otherwise a model soon predicts the same label for every row.

Rows that do not count have weight 0 in the mean loss. The steps are those of a target with labels, so their number does
not reveal how many rows counted. If fewer rows count than the least share, the target does not train.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from securefda.errors import TrainingError
from securefda.protocol.encoding import Vector
from securefda.tasks import Inputs, Samples, Task, Unlabelled, task_code
from securefda.tasks.inputs import row_count, take
from securefda.training.alignment import FeatureAlignment
from securefda.training.local import LocalResult, outputs_of, train_local
from securefda.training.memory import PersonalMemory
from securefda.training.seeds import SecretSeed
from securefda.training.trainer import SiteTrainer
from securefda.training.training_settings import TrainingSettings

_TRIED_ROWS = 2


@dataclass(frozen=True, slots=True)
class PseudoLabelSettings:
    """Conditions for training on pseudo-labels.

    Attributes:
        threshold: least confidence in a label for its row to count, in (0, 1).
        share: least share of rows that count for the target to train, in (0, 1].
    """

    threshold: float
    share: float


class PseudoTrainer(SiteTrainer):
    """A :class:`SiteTrainer` for rows without labels.

    Args:
        task, site, settings, seed, secret, before_round, memory: as for :class:`SiteTrainer`.
        rows: the site's rows.
        pseudo: when pseudo-labels count.

    Raises:
        ConfigError: the task does not implement ``guesses``; also as for :class:`SiteTrainer`.
        TrainingError, DataError: as for :class:`SiteTrainer` and :func:`predict_labels`.
    """

    def __init__(
        self,
        task: Task,
        site: str,
        rows: Unlabelled,
        settings: TrainingSettings,
        seed: int,
        *,
        pseudo: PseudoLabelSettings,
        secret: SecretSeed | None = None,
        before_round: Callable[[], None] | None = None,
        memory: PersonalMemory | None = None,
    ) -> None:
        super().__init__(task, site, rows, settings, seed, secret=secret, before_round=before_round, memory=memory)
        self._pseudo = pseudo
        predict_labels(
            task, outputs_of(task, self.module, take(rows.features, slice(_TRIED_ROWS)))
        )  # now, not after the warm-up

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
        align: FeatureAlignment | None = None,  # noqa: ARG002 - the rules that have it train no target
    ) -> LocalResult:
        """Train one round from ``received``, float32 (m,); take no step if too few rows count.

        Raises:
            TrainingError, DataError: as for ``train_local`` and :func:`predict_labels`.
        """
        self.before_round()
        settings, features = self.settings.with_learning_rate_factor(factor), self.rows.features
        self.prepare_to_evaluate(received)
        labels, confidence = predict_labels(self.task, outputs_of(self.task, self.module, features))
        counts = confidence >= self._pseudo.threshold  # NaN does not count
        confident = int(counts.sum())
        if confident < max(1, self._pseudo.share * len(self.rows)):
            still, rate = np.zeros_like(received), settings.learning_rate
            return LocalResult(still, 0, len(self.rows), None, None, rate, confident=confident)
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
            on_progress=self.on_progress,
            row_weights=balanced_row_weights(labels, counts),
        )
        self.keep_statistics(run_id, round_number)
        return replace(result, loss=None, accuracy=None, confident=confident)


def balanced_row_weights(labels: Tensor, counts: Tensor) -> Tensor:
    """Return weights of rows, float32 (n,): 0 if a row does not count, else 1 on average; all labels have equal sums.

    Args:
        labels: labels of the rows, (n, ...).
        counts: whether each row counts, bool (n,); at least one does.
    """
    _, kind, often = torch.unique(labels[counts], dim=0, return_inverse=True, return_counts=True)
    weights = torch.zeros(len(labels))
    weights[counts] = (len(kind) / (len(often) * often[kind])).float()
    return weights


def predict_labels(task: Task, outputs: Inputs) -> tuple[Tensor, Tensor]:
    """Return the labels that outputs predict, (n, ...), and the confidence in each, (n,), in [0, 1].

    Raises:
        ConfigError: the task does not implement ``guesses``.
        DataError: the task's own code fails.
        TrainingError: the task does not return one label and one confidence for each row.
    """
    with task_code(type(task), "guesses"):
        labels, confidence = task.guesses(outputs)
    rows = row_count(outputs)
    if len(labels) != rows or confidence.shape != (rows,):
        shapes = f"{tuple(labels.shape)} and {tuple(confidence.shape)}"
        raise TrainingError(
            f"task {type(task).__name__}: its guesses for {rows} rows have the shapes {shapes}",
            hint="guesses returns a label for each row, in the form of Samples.labels, and one number in [0, 1]",
        )
    return labels, confidence
