"""The fixed parts of a source during a run (keys, roster, policy, trainer, state), built from its settings."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from securefda.audit.journal import logs_folder
from securefda.audit.witness import Witness
from securefda.bootstrap import Member, run_info, task_of, trainer_at, training_rows, witness_of
from securefda.errors import ConfigError, FaultyAggregatorError
from securefda.operations.recording import ModelOrigin, model_file
from securefda.operations.run_folder import MODEL_FILE, RunFolder
from securefda.protocol.encoding import vector_to_wire
from securefda.protocol.envelope_checks import envelope_fault
from securefda.protocol.header_checks import SessionLimits
from securefda.protocol.hybrid import require_available
from securefda.protocol.messages import Header, Signed, Signer
from securefda.protocol.roster import Roster
from securefda.protocol.secret import RandomBytes, Secret
from securefda.site.config import SourceConfig, as_toml
from securefda.site.policy import (
    SourcePolicy,
    check_day,
    check_header_by_policy,
    check_task,
    check_training,
    default_policy_text,
    require_satisfiable,
)
from securefda.site.privacy_account import Reserving
from securefda.source.source_store import SourceStore
from securefda.training import SecretSeed, Vector
from securefda.training.seeds import encode_parts
from securefda.training.team import Assignment, Team
from securefda.training.trainer import Trainer

KeepsModel = Callable[[Vector, str, int], None]
"""Writes a model, float32 ``(n_params,)``, with its run (hex) and round; raises SecureFdaError if it cannot."""


def _discard_model(model: Vector, run: str, round_number: int) -> None:
    """Keep no model: the source has no run folder."""


@dataclass(frozen=True, slots=True)
class SourceSite:
    """Everything about a source that stays the same during a run.

    Attributes:
        policy: of the site; it bounds what this source accepts and sends.
        limits: the policy's requirements for every session over ``roster``.
        rounding_key: gives the rounding key for a run (hex) and a round number; None: keys are random.
        with_noise: whether the site trains by DP-SGD. Then its loss and accuracy never leave, not even in a sum, since
            the noise protects only the gradients.
        notes: for its operator, before the run begins.
        trains_on: the device, for display: "cpu (1 thread)".
        keep_model: writes the final model of a run that leaves it to its sources.

    Raises:
        ConfigError: ``trusted-peers`` of the policy names a site that is no source of the roster, or
            ``agreement.recipient`` another organisation than the target's.
    """

    policy: SourcePolicy
    signer: Signer
    roster: Roster
    trainer: Trainer
    store: SourceStore
    witness: Witness
    random_bytes: RandomBytes
    rounding_key: Callable[[str, int], Secret] | None = None
    with_noise: bool = False
    unix_time: Callable[[], float] = time.time
    notes: tuple[str, ...] = ()
    trains_on: str = ""
    keep_model: KeepsModel = _discard_model
    limits: SessionLimits = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "limits", self.policy.session_limits(self.roster))

    def require_permitted(self, header: Header) -> None:
        """Refuse a header that asks for more than this site's policy permits, or comes after its last day.

        Raises:
            PolicyRefusal: names the first key, what the header asks for, and what is allowed.
            FaultyAggregatorError: HEADER_PARTICIPANTS, the header does not name this site.
        """
        check_day(self.policy, self.unix_time(), with_noise=self.with_noise)
        check_header_by_policy(self.policy, header, self.signer.index, self.limits, with_noise=self.with_noise)

    def new_rounding_key(self, header: Header) -> Secret:
        """The rounding key of the header's round."""
        if self.rounding_key is None:
            return Secret.random(self.random_bytes)
        return self.rounding_key(header.run_id.hex(), header.round)

    def require_from_target(
        self,
        message: Signed[Any],
        *,
        kind: type | None = None,
        session_id: bytes | None = None,
        context: bytes | None = None,
    ) -> None:
        """Refuse a message that the aggregator did not sign, or of another kind, session or context if one is given.

        Raises:
            FaultyAggregatorError: the check names the fault of the envelope.
        """
        envelope = message.envelope
        fault = envelope_fault(
            message,
            kind=kind,
            roster=self.roster,
            sender=self.roster.target.index,
            session_id=envelope.session_id if session_id is None else session_id,
            context=envelope.context if context is None else context,
        )
        if fault:
            raise FaultyAggregatorError(fault, message.type_name)


def source_site(
    config: SourceConfig,
    policy: SourcePolicy,
    member: Member,
    store: SourceStore,
    *,
    secret: SecretSeed | None,
    policy_file: bytes | None = None,
    team: Team | None = None,
) -> SourceSite:
    """Build the source of a site from its settings and policy.

    Args:
        config: settings of the source's process.
        policy: of this site.
        member: this site's identity.
        store: the state in the run folder.
        secret: seed of the random choices in training, mixed with the identity of the state file, so that two folders
            train differently even if the aggregator gives both the same run id. None: training draws from the run's
            seed, which everyone knows, and so does rounding unless training adds noise. Otherwise rounding draws from
            the operating system.
        policy_file: bytes of the signed policy, for the digest in the audit log; None: the policy's default text.
        team: processes that train together with this one, which leads them.

    Raises:
        ConfigError, DataError, TrainingError: the policy, the task, its data or its model cannot be used.
        PolicyRefusal: the policy has ended, or does not allow the task or how this site trains.
    """
    seed, site_id = config.source.seed, member.site_id
    if member.roster.by_id(site_id).role != "source":
        raise ConfigError(
            "source.kit", f"{site_id} is the target of this federation", hint="use `securefda aggregator start`"
        )
    require_available(policy.key_agreements)
    in_roster = [entry.site_id for entry in member.roster.sources]
    require_satisfiable(policy, site_id, in_roster, member.roster.gone)
    check_day(policy, time.time(), with_noise=config.training.with_noise)
    check_task(policy, config.task.factory, config.task.options)
    check_training(policy, config.training.dp.noise_multiplier, config.training.dp.max_grad_norm)
    task = task_of(config.task, member.roster, seed)
    data = training_rows(task, site_id)
    if team is not None:
        sources = tuple(entry.site_id for entry in member.roster.sources)
        team.assign(Assignment(as_toml(config), site_id, member.roster.target.site_id, sources))
        team.require_same_rows(site_id, data)
    require_room_for(len(data), policy)
    policy_text = default_policy_text(site_id, policy).encode() if policy_file is None else policy_file
    info = run_info(config.task.factory, "the-headers", policy_text)
    witness = witness_of(logs_folder(config.source.kit.resolve()), member, store, info)
    journal = witness.journal
    # Where one run a day may begin, the site has one process: a run that it joins now is the only one that goes on.
    reserving = Reserving(policy.dp.reserve_days, policy.release.max_runs <= 1, journal.reserved)
    trainer, notes = trainer_at(
        config.source,
        config.training,
        member,
        task,
        data,
        secret=None if secret is None else secret.of("folder", store.file_id),
        budget=policy.dp.budget,
        on_charge=journal.charged,
        reserving=reserving,
        memory=store,
        team=team,
        least_rows=policy.release.min_rows,
        rules=policy.allowed_rules,
    )

    def keep_model(model: Vector, run: str, round_number: int) -> None:
        origin = ModelOrigin(config.task.factory, run, trainer.architecture_digest)
        metadata = origin.of(round_number, sha256(vector_to_wire(model)).hexdigest())
        RunFolder(config.source.out).write(MODEL_FILE, model_file(trainer.layers, model, metadata))

    def repeatable_key(_run: str, round_number: int) -> Secret:
        return Secret(sha256(encode_parts("securefda/1/rounding", seed, site_id, round_number)).digest())

    return SourceSite(
        policy=policy,
        signer=member.signer,
        roster=member.roster,
        rounding_key=repeatable_key if secret is None and not config.training.with_noise else None,
        with_noise=config.training.with_noise,
        trainer=trainer,
        store=store,
        witness=witness,
        random_bytes=os.urandom,
        notes=(*notes, *filter(None, [task.scaling_caution(data)])),
        trains_on=trainer.trains_on,
        keep_model=keep_model,
    )


def require_room_for(rows: int, policy: SourcePolicy) -> None:
    """Check at the start that every header that the policy permits has room for this site's rows.

    Otherwise refusing a header would reveal the number of rows.

    Raises:
        ConfigError: ``quantisation.max-samples-min`` is below the number of rows.
    """
    least = policy.quantisation.max_samples_min
    if rows > least:
        enough = 1000 * -(-rows // 1000)
        raise ConfigError(
            "quantisation.max-samples-min",
            f"{least} in this site's policy.toml is below its {rows} training rows",
            hint=f"raise it there and at the aggregator; for all sites of one file: --set session.max-samples={enough}",
        )
