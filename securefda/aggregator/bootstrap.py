"""From the target's settings to the objects of its run."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from hashlib import sha256
from typing import cast

from securefda.aggregator.personal import personal_model
from securefda.aggregator.run import AggregatorRun
from securefda.aggregator.settings import ByteCounts, RunSettings, TargetSite
from securefda.aggregator.store import AggregatorStore
from securefda.audit.journal import logs_folder
from securefda.bootstrap import Member, run_info, target_rows, task_of, trainer_at, witness_of
from securefda.errors import SecureFdaError
from securefda.operations.records import RoundLine, RunStatus, Summary, summarise
from securefda.protocol.messages import Granularity, Visibility
from securefda.protocol.roster import Roster
from securefda.site.config import (
    AggregatorConfig,
    FederationConfig,
    budget_of,
    strategy_of,
    training_settings,
)
from securefda.training import SecretSeed, require_steps


def target_site(
    config: AggregatorConfig,
    member: Member,
    traffic: Callable[[], ByteCounts],
    store: AggregatorStore,
    *,
    secret: SecretSeed | None,
) -> TargetSite:
    """The target's side of a run. Training draws from ``secret``; None: from the run's seed, which everybody knows.

    Raises:
        ConfigError, DataError, TrainingError: the task, its data or its model are unfit.
    """
    seed, site_id = config.aggregator.seed, member.site_id
    task = task_of(config.task, member.roster, seed)
    rule = strategy_of(config.strategy).rule
    data, test_data = target_rows(task, site_id, rule)
    if rule.adapts:
        require_steps(site_id, len(data), training_settings(config.training))
    budget = budget_of(config.privacy.budget)
    info = run_info(config.task.factory, config.strategy.rule)
    witness = witness_of(logs_folder(config.aggregator.kit.resolve()), member, store, info)
    told = witness.journal.charged
    trainer, notes = trainer_at(
        config.aggregator, config.training, member, task, data, secret=secret, budget=budget, told=told, memory=store
    )
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
        personal=personal_model(config, task, site_id, data, store, secret=secret),
    )


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
