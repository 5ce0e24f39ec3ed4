"""From a source's settings and policy to the objects of its run."""

from __future__ import annotations

import os

from securefda import __version__
from securefda.audit.journal import logs_folder
from securefda.bootstrap import Member, run_info, task_of, trainer_at, training_rows, witness_of
from securefda.errors import ConfigError
from securefda.site.config import (
    SourceConfig,
)
from securefda.site.policy import SourcePolicy, check_task, check_training, default_policy_text, require_satisfiable
from securefda.source.site import SourceSite, require_room_for
from securefda.source.store import SourceStore
from securefda.training import SecretSeed


def source_site(
    config: SourceConfig,
    policy: SourcePolicy,
    member: Member,
    store: SourceStore,
    *,
    secret: SecretSeed | None,
    policy_file: bytes | None = None,
) -> SourceSite:
    """A source's side of a run.

    Training draws from ``secret`` and from which folder the state is in: the aggregator chooses the run's id, and two
    folders that were given one id do not train alike. None: it draws from the run's seed, which everybody knows.
    ``policy_file`` is the policy as it was signed, whose digest the audit log has; without one, its default text.

    Raises:
        ConfigError, DataError, TrainingError: the policy, the task, its data or its model are unfit.
        PolicyRefusal: the policy does not allow the task.
    """
    seed, site_id = config.source.seed, member.site_id
    if member.roster.by_id(site_id).role != "source":
        raise ConfigError(
            "source.kit", f"{site_id} is the target of this federation", hint="use `securefda aggregator`"
        )
    require_satisfiable(policy, site_id, [entry.site_id for entry in member.roster.sources])
    check_task(policy, config.task.factory)
    check_training(policy, config.training.dp.noise_multiplier, config.training.dp.max_grad_norm)
    task = task_of(config.task, member.roster, seed)
    data = training_rows(task, site_id)
    require_room_for(len(data), policy)
    said = default_policy_text(site_id, policy).encode() if policy_file is None else policy_file
    info = run_info(config.task.factory, "the-headers", said)
    witness = witness_of(logs_folder(config.source.kit.resolve()), member, store, info)
    budget, on_charge = policy.dp.budget, witness.journal.charged
    trainer, notes = trainer_at(
        config.source,
        config.training,
        member,
        task,
        data,
        secret=None if secret is None else secret.of("folder", store.file_id),
        budget=budget,
        on_charge=on_charge,
        memory=store,
    )
    return SourceSite.under_policy(
        policy,
        signer=member.signer,
        roster=member.roster,
        metrics=config.training.dp.noise_multiplier == 0,
        trainer=trainer,
        store=store,
        witness=witness,
        random_bytes=os.urandom,
        software_version=__version__,
        notes=notes,
        trains_on=trainer.trains_on,
    )
