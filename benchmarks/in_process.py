"""A federation's rounds in one process, in the clear: what the accuracy scripts measure.

Training, rules and schedule are the library's; only transport and masking are left out, which change no more than
the rounding of a fixed-point sum.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from securefda.adaptation import (
    ContributionSum,
    RoundPlan,
    Rule,
    StepStatistics,
    TargetStatistics,
    contribute,
    round_plan,
)
from securefda.config import FederationConfig, strategy_of, training_settings
from securefda.tasks import Samples, Task, TaskSettings, load_task
from securefda.training import (
    FEWEST_TARGET_STEPS,
    Evaluation,
    LocalResult,
    TrainingSettings,
    Vector,
    build_model,
    derive_seed,
    evaluate,
    layer_sizes,
    layer_table,
    model_to_vector,
    train_local,
    vector_to_model,
)

REPORTED_ROUNDS = 5

# One thread, so that a figure does not depend on the number of cores.
torch.set_num_threads(1)


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a run gave, round by round, on the target's test rows."""

    evaluations: tuple[Evaluation, ...]
    betas: tuple[tuple[float, ...], ...]
    """A tuple of one beta per source for every round whose rule has one."""
    largest_coordinate: float
    """Largest absolute value of a contribution: what ``session.clip`` must not cut."""

    @property
    def accuracy(self) -> float:
        """Mean of the last five rounds, in percent, as the paper reports it."""
        return 100 * float(np.mean([e.metrics["accuracy"] for e in self.evaluations[-REPORTED_ROUNDS:]]))

    @property
    def loss(self) -> float:
        """Mean loss of the last five rounds."""
        return float(np.mean([e.loss for e in self.evaluations[-REPORTED_ROUNDS:]]))

    @property
    def mean_betas(self) -> tuple[float, ...]:
        """Mean beta of each source over the rounds that had one; empty where none had."""
        return tuple(float(beta) for beta in np.mean(self.betas, axis=0)) if self.betas else ()


def load(config: FederationConfig, seed: int) -> Task:
    """Build the task of a federation."""
    sites = config.federation
    settings = TaskSettings(sites.target, sites.sources, seed, config.task.data_dir, config.task.options)
    return load_task(config.task.factory, settings)


def run(config: FederationConfig, seed: int, task: Task) -> RunResult:
    """Run all rounds of ``config`` on ``task``."""
    federation = _Federation(config, seed, task)
    strategy = strategy_of(config.strategy)
    evaluations, betas, largest = [], [], 0.0
    for number in range(1, strategy.rounds + 1):
        outcome = federation.round(round_plan(strategy, number), number)
        evaluations.append(outcome.evaluation)
        betas += [outcome.betas] if outcome.betas else []
        largest = max(largest, outcome.largest_coordinate)
    return RunResult(tuple(evaluations), tuple(betas), largest)


@dataclass(frozen=True, slots=True)
class _Round:
    evaluation: Evaluation
    betas: tuple[float, ...]
    largest_coordinate: float


class _Federation:
    def __init__(self, config: FederationConfig, seed: int, task: Task) -> None:
        self._task, self._seed = task, seed
        self._target, self._sources = config.federation.target, config.federation.sources
        self._target_settings = training_settings(config.training.target)
        self._source_settings = training_settings(config.training.source)
        oracle = strategy_of(config.strategy).rule is Rule.ORACLE
        self._rows = {site: task.train_data(site) for site in self._sources}
        self._rows[self._target] = task.oracle_data() if oracle else task.train_data(self._target)
        self._test = task.test_data(self._target)
        self._model = build_model(task, derive_seed(seed, "model"))
        self._sizes = layer_sizes(layer_table(self._model))
        self._vector = model_to_vector(self._model)

    def round(self, plan: RoundPlan, number: int) -> _Round:
        target, statistics, steps = self._train_target(plan, number)
        total, betas, largest = ContributionSum(len(self._vector)), [], 0.0
        for source in self._sources if plan.rule.needs_sources else ():
            result = self._train(source, self._source_settings, plan, number)
            contribution = contribute(
                plan,
                statistics,
                target.update,
                result.update,
                source_steps=result.steps,
                learning_rate_ratio=target.learning_rate / result.learning_rate,
                layers=self._sizes,
                step_updates=np.array(steps) if steps else None,
            )
            total.add(contribution, result.samples)
            largest = max(largest, float(np.abs(contribution.vector).max()))
            betas += [contribution.beta] if contribution.beta is not None else []
        change = (
            total.combine(plan.rule, target.update, target_samples=target.samples)
            if plan.rule.needs_sources
            else target.update
        )
        self._vector = (self._vector + change).astype(np.float32)
        vector_to_model(self._vector, self._model)
        return _Round(evaluate(self._task, self._model, self._test), tuple(betas), largest)

    def _train_target(self, plan: RoundPlan, number: int) -> tuple[LocalResult, TargetStatistics, list[Vector]]:
        """Train the target; the single steps are kept only for a rule that needs them."""
        statistics = StepStatistics(len(self._vector))
        steps: list[Vector] = []

        def observe(step: Vector) -> None:
            statistics.add(step)
            if plan.needs_step_updates:
                steps.append(step.copy())

        result = self._train(self._target, self._target_settings, plan, number, on_step=observe)
        return result, statistics.finish(), steps

    def _train(
        self,
        site: str,
        settings: TrainingSettings,
        plan: RoundPlan,
        number: int,
        *,
        on_step: Callable[[Vector], None] | None = None,
    ) -> LocalResult:
        rows: Samples = self._rows[site]
        return train_local(
            self._task,
            self._model,
            self._vector,
            rows,
            settings=settings.with_learning_rate_factor(plan.learning_rate_factor),
            seed=derive_seed(self._seed, site, number),
            site=site,
            fewest_steps=FEWEST_TARGET_STEPS if site == self._target else 1,
            on_step=on_step,
        )
