"""Builds what a run of the target needs from its settings: site, run settings, model of its own, summary."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from hashlib import sha256
from typing import cast

from securefda.aggregator.run import AggregatorRun
from securefda.aggregator.settings import ByteCounts, RunSettings, TargetSite
from securefda.aggregator.store import AggregatorStore
from securefda.audit.journal import logs_folder
from securefda.bootstrap import Member, run_info, target_rows, task_of, trainer_at, witness_of
from securefda.errors import SecureFdaError
from securefda.operations.records import RoundLine, RunStatus, Summary, summarise
from securefda.protocol.messages import Granularity, Visibility
from securefda.protocol.roster import Roster
from securefda.rules import Rule, Strategy
from securefda.site.config import (
    AggregatorConfig,
    FederationConfig,
    budget_of,
    strategy_of,
    training_settings,
)
from securefda.training import OwnRows, PersonalMemory, PersonalModel, SecretSeed, require_steps
from securefda.training.mixture import Mixture
from securefda.training.model_heads import OwnHead
from securefda.training.neighbours import Neighbours
from securefda.training.personal import Drawn, FineTuned


def target_site(
    config: AggregatorConfig,
    member: Member,
    traffic: Callable[[], ByteCounts],
    store: AggregatorStore,
    *,
    secret: SecretSeed | None,
) -> TargetSite:
    """The target's side of a run. Training draws from ``secret``; None: from the run's seed, which every site knows.

    Raises:
        ConfigError, DataError, TrainingError: the task, its data or its model are unfit; under a strategy that has a
            model of the target's own, also what :func:`personal_of` raises.
    """
    seed, site_id = config.aggregator.seed, member.site_id
    strategy, training = strategy_of(config.strategy), training_settings(config.training)
    task = task_of(config.task, member.roster, seed)
    data, test_data = target_rows(task, site_id, strategy.rule)
    if strategy.rule.adapts:
        require_steps(site_id, len(data), training)
    budget = budget_of(config.privacy.budget)
    info = run_info(config.task.factory, config.strategy.rule)
    witness = witness_of(logs_folder(config.aggregator.kit.resolve()), member, store, info)
    trainer, notes = trainer_at(
        config.aggregator,
        config.training,
        member,
        task,
        data,
        secret=secret,
        budget=budget,
        on_charge=witness.journal.charged,
        memory=store,
    )
    own = strategy.rule.is_personal
    rows = OwnRows(task, site_id, data, training, seed, secret) if own else None
    return TargetSite(
        signer=member.signer,
        roster=member.roster,
        trainer=trainer,
        test_data=test_data,
        random_bytes=os.urandom,
        clock=time.monotonic,
        traffic=traffic,
        witness=witness,
        notes=notes,
        trains_on=trainer.trains_on,
        personal=None if rows is None else personal_of(strategy, rows, store),
    )


def personal_of(strategy: Strategy, rows: OwnRows, memory: PersonalMemory) -> PersonalModel | None:
    """The model of the target's own that a strategy measures it with; None where that is the common model.

    Raises:
        TrainingError: it cannot be made of this task.
        ConfigError: ``training.personal-layers``, all layers would stay at their site.
    """
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


def run_settings(config: AggregatorConfig, roster: Roster) -> RunSettings:
    """How the run goes. The digest covers all that must not change when a run is resumed; a budget and threads may."""
    fixed = config.model_dump_json(
        include={"task", "strategy", "training", "privacy", "session"},
        exclude={"privacy": {"budget"}, "training": {"threads"}},
    )
    return settings_of(config, sha256(f"{config.aggregator.seed}\0{fixed}".encode() + roster.digest()).digest())


def settings_of(config: AggregatorConfig | FederationConfig, config_digest: bytes) -> RunSettings:
    """How a run of this configuration goes, under a digest of it."""
    privacy, session, transport = config.privacy, config.session, config.transport
    training = config.training if isinstance(config, AggregatorConfig) else config.training.target
    return RunSettings(
        strategy=strategy_of(config.strategy),
        visibility=Visibility[privacy.visibility.upper()],
        min_others=privacy.min_others,
        max_colluders=privacy.max_colluders,
        threshold=session.threshold,
        modulus_bits=session.modulus_bits,
        clip=session.clip,
        max_samples=session.max_samples,
        attempts=session.attempts,
        join_deadline_s=transport.join_deadline_s,
        training_deadline_s=transport.training_deadline_s,
        phase_deadline_s=transport.phase_deadline_s,
        config_digest=config_digest,
        cohort_size=privacy.cohort_size,
        kappa=privacy.norm_cap_kappa,
        norm_cap_granularity=Granularity[privacy.norm_cap_granularity.upper()],
        target_noise="dp-sgd" if training.dp.noise_multiplier else "none",
    )


def summary_of(
    config: AggregatorConfig, run: AggregatorRun, store: AggregatorStore, roster: Roster, error: BaseException | None
) -> Summary:
    """The summary of a run as far as it went, rounds before a restart included."""
    privacy = config.privacy
    status: RunStatus = "finished" if error is None else "interrupted"
    return summarise(
        cast(list[RoundLine], store.records()),
        run_id=run.run_id,
        task=config.task.factory,
        strategy=config.strategy.model_dump(by_alias=True),
        visibility={entry.site_id: privacy.permitted(entry.site_id) for entry in roster.sources},
        kappa=privacy.norm_cap_kappa,
        granularity=privacy.norm_cap_granularity,
        releases=store.target_releases(),
        target_budget=budget_of(config.privacy.budget) if config.training.dp.noise_multiplier else None,
        rounds_planned=config.strategy.rounds,
        status="failed" if isinstance(error, SecureFdaError) else status,
        error=error if isinstance(error, SecureFdaError) else None,
    )
