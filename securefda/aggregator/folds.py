"""The choice between a rule's model and that of the target alone, by the losses on rows which training left out.

From the first round of a rule on, the target also trains alone, from the model that the warm-up left. It plays this and
the rule once more without each fold of its rows, the rule with the same sums, so a source sees the same messages. The
models without a fold are compared on it. As each has come all the way from the warm-up without these rows, that judges
where a rule leads, and not how far one step of it goes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from securefda.errors import ConfigError
from securefda.operations.records import REPORTED_ROUNDS, Candidate, finite_loss
from securefda.protocol.encoding import Vector64
from securefda.tasks import Samples
from securefda.training import PersonalMemory, Vector, derive_seed, require_steps
from securefda.training.memory import folds_key
from securefda.training.personal import vector_from_bytes
from securefda.training.seeds import Seed, new_generator
from securefda.training.trainer import SiteTrainer

RULE: Candidate = "rule"
WARM_TARGET: Candidate = "warm_target"


@dataclass(frozen=True, slots=True)
class Fold:
    """Rows that training leaves out, and the others."""

    left_out: Samples
    others: Samples


@dataclass(frozen=True, slots=True, repr=False)
class FoldedTraining:
    """The candidates' models before a round and the target's update from each, both float32 (1 + 2K, m) with K folds.

    In this order: the target alone on all rows, without each fold, and the rule without each fold.
    """

    models: NDArray[np.float32]
    updates: NDArray[np.float32]


@dataclass(frozen=True, slots=True, repr=False)
class FoldedRound:
    """A round of the target alone, float32 (m,), and by candidate the mean loss over the rows of all folds."""

    alone: Vector
    losses: Mapping[Candidate, float]


@dataclass(frozen=True, slots=True, repr=False)
class Folds:
    """Plays the candidates beside a run: :meth:`train`, then :meth:`finish`, for every round that has sums.

    Attributes:
        trainer: the target's, on all of its training rows.
        rows: these rows.
        folds: of them.
        memory: keeps the candidates' models, 1 + 2K with K folds, so that a restarted process chooses the same.
    """

    trainer: SiteTrainer
    rows: Samples
    folds: Sequence[Fold]
    memory: PersonalMemory

    @classmethod
    def of(cls, trainer: SiteTrainer, count: int, seed: Seed, memory: PersonalMemory) -> Folds:
        """Split the trainer's rows at random into ``count`` folds, whose sizes differ by one row at most.

        Raises:
            ConfigError: there are fewer rows than folds.
            TrainingError: the rows have no labels, or too few are left for a step without a fold.
        """
        rows, site = trainer.labelled_rows(), trainer.site
        if len(rows) < count:
            why = f"the {len(rows)} training rows at {site} do not make {count} folds"
            raise ConfigError("strategy.folds", why, hint="set fewer, or 0 for none")
        place = torch.randperm(len(rows), generator=new_generator(derive_seed(seed, site, "folds"))) % count
        splits = ((place == number, place != number) for number in range(count))
        folds = tuple(Fold(*(rows.at(part) for part in split)) for split in splits)
        for fold in folds:
            require_steps(site, len(fold.others), trainer.settings, fewest=1)
        return cls(trainer, rows, folds, memory)

    def train(self, run_id: str, round_number: int, factor: float, received: Vector) -> FoldedTraining:
        """Train for a round, which needs no sums, before sources wait for its result.

        Args:
            run_id: id of the run.
            round_number: number of the round; training for it again gives the same.
            factor: factor of the learning rate.
            received: the model with which the round begins, float32 (m,), from which the candidates start in the first.

        Raises:
            TrainingError: a loss or an update is not finite.
        """
        kept = self.memory.personal(folds_key(run_id), round_number)
        models = vector_from_bytes(kept, np.tile(received, 1 + 2 * len(self.folds))).reshape(-1, len(received))
        others = [fold.others for fold in self.folds]
        updates = [
            self.trainer.train_on(rows, model, round_number, factor, run_id=run_id)
            for model, rows in zip(models, [self.rows, *others, *others], strict=True)
        ]
        return FoldedTraining(models, np.stack(updates))

    def finish(
        self, run_id: str, round_number: int, trained: FoldedTraining, update_of: Callable[[Vector], Vector64]
    ) -> FoldedRound:
        """Move the candidates when the round has its sums, keep them, and compare them.

        Args:
            run_id: id of the run.
            round_number: number of the round.
            trained: of this round.
            update_of: the rule's update, from the round's sums and the update of the target that it is given.
        """
        first = 1 + len(self.folds)
        moved = [*trained.updates[:first], *(update_of(own) for own in trained.updates[first:])]
        models = np.stack([(model + update).astype("<f4") for model, update in zip(trained.models, moved, strict=True)])
        self.memory.keep_personal(folds_key(run_id), round_number, models.tobytes())
        return FoldedRound(models[0], {RULE: self._loss(models[first:]), WARM_TARGET: self._loss(models[1:first])})

    def _loss(self, models: Iterable[Vector]) -> float:
        sums = [
            self.trainer.evaluate(model, fold.left_out).loss * len(fold.left_out)
            for model, fold in zip(models, self.folds, strict=True)
        ]
        return math.fsum(sums) / len(self.rows)


def chosen(losses: Mapping[Candidate, float], records: Sequence[Mapping[str, Any]]) -> Candidate:
    """Return the candidate with the smaller loss over this round and the last ones that have losses, five in all.

    One round's losses are noisy. Of equal ones it is the rule's model, which the sources have as well.

    Args:
        losses: of this round, by candidate.
        records: of the rounds before.
    """
    earlier = [record["fold_losses"] for record in records if "fold_losses" in record]
    window = [*earlier[1 - REPORTED_ROUNDS :], losses]
    totals = {name: sum(finite_loss(one[name]) for one in window) for name in (RULE, WARM_TARGET)}
    return min(totals, key=lambda name: totals[name])
