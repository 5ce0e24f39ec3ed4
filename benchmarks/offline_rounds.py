"""The sites of a federation file and its model in one process, for studies that look into single rounds.

There is no network, no mask and no norm cap here: what a source hands in is what `contribute` makes of its update.
"""

from __future__ import annotations

import numpy as np

from securefda.aggregator.target import TargetRound
from securefda.rules import (
    Contribution,
    ContributionSum,
    RoundPlan,
    alignment_factor,
    contribute,
)
from securefda.site.config import FederationConfig, strategy_of, training_settings
from securefda.tasks import Samples, TaskSettings, Unlabelled, load_task
from securefda.training import LocalResult, TrainingSettings, Vector
from securefda.training.pseudo import PseudoLabelSettings, PseudoTrainer
from securefda.training.trainer import SiteTrainer


class OfflineSites:
    """Trains what a round needs.

    Attributes:
        strategy: of the file.
        target: trains on the target's rows; ``sources`` each on its own.
        test_data: the target's.
        model: float32 ``(n_params,)``; the caller that plays the rounds moves it.
    """

    def __init__(self, config: FederationConfig, seed: int) -> None:
        sites, task = config.federation, config.task
        settings = TaskSettings(sites.target, tuple(sites.sources), seed, task.data_dir, task.options)
        self._task, self._seed, self._site = load_task(task.factory, settings), seed, sites.target
        self._target, of_source = training_settings(config.training.target), training_settings(config.training.source)
        self.strategy = strategy_of(config.strategy)
        self._rows = self._task.train_data(sites.target)
        self.target = self._trainer(sites.target, self._rows, self._target)
        self.sources = [self._trainer(site, self._task.train_data(site), of_source) for site in sites.sources]
        self.test_data = self._task.test_data(sites.target)
        self.model: Vector = self.target.initial_model()

    def target_on_pseudo_labels(self, pseudo: PseudoLabelSettings) -> PseudoTrainer:
        """Trains on the same rows without their labels."""
        rows = Unlabelled(self._rows.features)
        return PseudoTrainer(self._task, self._site, rows, self._target, self._seed, pseudo=pseudo)

    def train_sources(self, plan: RoundPlan, number: int) -> list[LocalResult]:
        """Let every source train from the model as it is."""
        return [source.train(self.model, number, plan.learning_rate_factor) for source in self.sources]

    def part(self, plan: RoundPlan, target: TargetRound | None, result: LocalResult) -> Contribution:
        """What a source hands in; ``target`` is None in rounds that use nothing of it."""
        if target is None:
            return contribute(plan, None, None, result.update, layers=self.target.sizes)
        factor = alignment_factor(
            target_steps=target.result.steps,
            source_steps=result.steps,
            learning_rate_ratio=target.result.learning_rate / result.learning_rate,
        )
        averaged = np.multiply(result.update, factor if plan.align else 1.0, dtype=np.float64)
        own = (target.statistics, target.result.update)
        alignment = 1.0 if plan.align else factor
        return contribute(plan, *own, averaged, layers=self.target.sizes, alignment=alignment)

    def update_of(
        self, plan: RoundPlan, target: TargetRound | None, parts: list[Contribution], results: list[LocalResult]
    ) -> Vector:
        """The update of the model that the parts amount to, ``(n_params,)``."""
        total = ContributionSum(self.model.size)
        for part, result in zip(parts, results, strict=True):
            total.add(part, result.samples)
        return total.combine(plan.rule, None if target is None else target.result.update)

    def move(self, update: Vector) -> None:
        """Go to the next round's model."""
        self.model = (self.model + update).astype(np.float32)

    def _trainer(self, site: str, rows: Samples, settings: TrainingSettings) -> SiteTrainer:
        return SiteTrainer(self._task, site, rows, settings, self._seed)
