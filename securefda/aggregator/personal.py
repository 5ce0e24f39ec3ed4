"""The target's own model, as the strategy of a run has it."""

from __future__ import annotations

from securefda.rules import Rule, Strategy
from securefda.site.config import AggregatorConfig, strategy_of, training_settings
from securefda.tasks import Samples, Task
from securefda.training import OwnRows, PersonalMemory, PersonalModel, SecretSeed
from securefda.training.mixture import Mixture
from securefda.training.model_heads import OwnHead
from securefda.training.neighbours import Neighbours
from securefda.training.personal import Drawn, FineTuned


def personal_model(
    config: AggregatorConfig,
    task: Task,
    site_id: str,
    data: Samples,
    memory: PersonalMemory,
    *,
    secret: SecretSeed | None,
) -> PersonalModel | None:
    """What the target is measured with; None under a strategy that has the common model alone.

    It is trained with what ``secret`` gives, or without one the run's seed.

    Raises:
        TrainingError: it cannot be had of this task.
        ConfigError: ``training.personal-layers``, all layers would stay at their site.
    """
    strategy = strategy_of(config.strategy)
    if not strategy.rule.is_personal:
        return None
    settings = training_settings(config.training)
    return personal_of(strategy, OwnRows(task, site_id, data, settings, config.aggregator.seed, secret), memory)


def personal_of(strategy: Strategy, rows: OwnRows, memory: PersonalMemory) -> PersonalModel | None:
    """As :func:`personal_model`, of rows that are there already."""
    match strategy.rule:
        case Rule.PERSONALIZED_FEDAVG:
            return FineTuned(rows, strategy.personal_epochs)
        case Rule.DITTO:
            return Drawn(rows, memory, epochs=strategy.personal_epochs, strength=strategy.ditto_lambda)
        case Rule.APFL:
            return Mixture(rows, memory, alpha=strategy.apfl_alpha, adaptive=strategy.apfl_adaptive)
        case Rule.KNN_PER:
            numbers = strategy.knn_neighbours, strategy.knn_weight, strategy.knn_scale
            return Neighbours(rows, neighbours=numbers[0], weight=numbers[1], scale=numbers[2])
        case Rule.FEDREP:
            return OwnHead(rows, memory)
    return None
