"""The header that a run would open with, made from its configuration alone: a policy can be tried on it."""

from __future__ import annotations

from securefda.aggregator.bootstrap import settings_of
from securefda.aggregator.headers import Federation, Place, Planner, header_of
from securefda.errors import ConfigError
from securefda.protocol.contribution import terms_of
from securefda.protocol.messages import DIGEST_BYTES, RUN_ID_BYTES, Header, TargetTerms
from securefda.rules import round_plan
from securefda.site.config import FederationConfig
from securefda.tasks import TaskSettings, load_task
from securefda.training import build_model, derive_seed, layer_table

_NO_DIGEST = bytes(DIGEST_BYTES)
_STEPS = 2


def expected_header(config: FederationConfig) -> Header:
    """The header of the last round that sources take part in, with every source present.

    Sources have the roster indices 1 to N in the order of the configuration. Digests are zeros, but for that of the
    architecture; the target's numbers are made up, but for its learning rate.

    Raises:
        ConfigError, DataError: the task or its model are unfit, or no plan of levels serves all sources; or no source
            takes part under this strategy.
    """
    settings = settings_of(config, _NO_DIGEST)
    strategy = settings.strategy
    plans = ((number, round_plan(strategy, number)) for number in range(strategy.rounds, 0, -1))
    number, plan = next((one for one in plans if one[1].needs_sources), (0, None))
    if plan is None:
        raise ConfigError("strategy.rule", f"under {strategy.rule} no source takes part", hint="there is no header")
    names = dict(enumerate(config.federation.sources, start=1))
    session = Planner(names, settings).plan({index: config.levels[name] for index, name in names.items()})
    learning_rate = config.training.target.learning_rate * plan.learning_rate_factor
    if not plan.uses_target_statistics:
        target = None
    elif session.sum_quorum:  # some source is at ``sum``, and gets what the rule needs of the target
        target = TargetTerms(_STEPS, learning_rate, _NO_DIGEST, mean_square=1.0, scatter=1.0)
    else:
        target = TargetTerms(_STEPS, learning_rate)
    task = TaskSettings(
        target=config.federation.target,
        sources=config.federation.sources,
        data_dir=config.task.data_dir,
        options=config.task.options,
    )
    model = build_model(load_task(config.task.factory, task), derive_seed(0, "model"))
    return header_of(
        Federation(_NO_DIGEST, len(names), layer_table(model)),
        settings,
        Place(bytes(RUN_ID_BYTES), number, 1, b""),
        rule=terms_of(plan),
        target=target,
        model_digest=_NO_DIGEST,
        session=session,
        metrics=not config.training.source.dp.noise_multiplier,
    )
