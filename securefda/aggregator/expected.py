"""The header that a run would open with, made from its configuration alone: what a policy can be tried on."""

from __future__ import annotations

from securefda.aggregator.bootstrap import settings_of
from securefda.aggregator.headers import Federation, Place, Planner, header_of
from securefda.errors import ConfigError
from securefda.protocol.contribution import terms_of
from securefda.protocol.messages import DIGEST_BYTES, Header, TargetTerms
from securefda.rules import RoundPlan, Strategy, round_plan
from securefda.site.config import FederationConfig
from securefda.tasks import TaskSettings, load_task
from securefda.training import build_model, derive_seed, layer_table

_NOTHING = bytes(DIGEST_BYTES)
_RUN_ID = bytes(16)
_STEPS = 2


def expected_header(config: FederationConfig) -> Header:
    """The header of the last round that sources take part in, with every source there.

    Sources have the roster indices 1 to N in the order of the configuration. Digests are zeros, but for that of the
    architecture; the target's numbers are made up, but for its learning rate.

    Raises:
        ConfigError, DataError: the task or its model are unfit, or no plan of levels serves all sources; or no source
            takes part under this strategy.
    """
    settings = settings_of(config, _NOTHING)
    number = _last_with_sources(settings.strategy)
    plan = round_plan(settings.strategy, number)
    names = dict(enumerate(config.federation.sources, start=1))
    session = Planner(names, settings).plan({index: config.levels[name] for index, name in names.items()})
    model = build_model(load_task(config.task.factory, _task_settings(config)), derive_seed(0, "model"))
    return header_of(
        Federation(_NOTHING, len(names), layer_table(model)),
        settings,
        Place(_RUN_ID, number, 1, b""),
        rule=terms_of(plan),
        target=_target(config, plan, to_sources=bool(session.sum_quorum)),
        model_digest=_NOTHING,
        session=session,
        metrics=not config.training.source.dp.noise_multiplier,
    )


def _last_with_sources(strategy: Strategy) -> int:
    """The last round in which sources take part."""
    rounds = range(strategy.rounds, 0, -1)
    found = next((number for number in rounds if round_plan(strategy, number).needs_sources), None)
    if found is None:
        raise ConfigError("strategy.rule", f"under {strategy.rule} no source takes part", hint="there is no header")
    return found


def _target(config: FederationConfig, plan: RoundPlan, *, to_sources: bool) -> TargetTerms | None:
    if not plan.uses_target_statistics:
        return None
    learning_rate = config.training.target.learning_rate * plan.learning_rate_factor
    if not to_sources:
        return TargetTerms(_STEPS, learning_rate)
    return TargetTerms(_STEPS, learning_rate, _NOTHING, mean_square=1.0, scatter=1.0)


def _task_settings(config: FederationConfig) -> TaskSettings:
    return TaskSettings(
        target=config.federation.target,
        sources=config.federation.sources,
        data_dir=config.task.data_dir,
        options=config.task.options,
    )
