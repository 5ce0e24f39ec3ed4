"""A federation whose target trains on pseudo-labels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rounds_federation import SEED, TARGET, Federation, site_id, task_of, training_of
from rounds_tasks import Points
from torch import Tensor

from securefda.aggregator.run import AggregatorRun
from securefda.tasks import Unlabelled
from securefda.training.pseudo import PseudoLabelSettings, PseudoTrainer


class Sure(Points):
    """Points of whose class a model says how sure it is."""

    def guesses(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        sure, classes = torch.softmax(outputs, dim=1).max(dim=1)
        return classes, sure


class PseudoFederation(Federation):
    """As :class:`Federation`; rows of the target count whose class is at least ``threshold`` probable."""

    def __init__(self, folder: Path, *, threshold: float, **options: Any) -> None:
        self.threshold = threshold
        super().__init__(folder, **options)

    def new_aggregator(self) -> AggregatorRun:
        run = super().new_aggregator()
        task, name = Sure(task_of(self.n).settings), site_id(TARGET)
        rows, pseudo = Unlabelled(task.train_data(name).features), PseudoLabelSettings(self.threshold, 0.1)
        trainer = PseudoTrainer(task, name, rows, training_of(), SEED, pseudo=pseudo)
        return AggregatorRun(replace(run._site, trainer=trainer), self.settings, self.store, self.watch)
