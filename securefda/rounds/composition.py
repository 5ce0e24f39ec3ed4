"""From a site's settings to the objects that take part in a run; the services and the simulator build alike."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import cast

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from securefda import __version__
from securefda.aggregator.personal import personal_model
from securefda.aggregator.run import AggregatorRun
from securefda.aggregator.settings import ByteCounts, RunSettings, TargetSite
from securefda.audit.journal import Journal, Opening, logs_folder
from securefda.audit.witness import Witness, WitnessMemory
from securefda.errors import ConfigError, SecureFdaError
from securefda.operations.records import RoundLine, RunStatus, Summary, summarise
from securefda.privacy.events import Budget, DpEvent
from securefda.privacy.ledger import Ledger, Reservation
from securefda.protocol.messages import Body, Envelope, Granularity, Signer, Visibility
from securefda.protocol.roster import Roster
from securefda.rounds.store import AggregatorStore, SourceStore
from securefda.rules import Rule
from securefda.site.config import (
    AggregatorConfig,
    FederationConfig,
    SourceConfig,
    TaskSection,
    budget_of,
    strategy_of,
    training_settings,
)
from securefda.site.config.sections import DEFAULT_DATA_SET, ProcessSection, TrainingSection
from securefda.site.policy import SourcePolicy, check_task, check_training, default_policy_text, require_satisfiable
from securefda.site.privacy_account import (
    PrivacyAccount,
    data_set_of,
    ledger_file,
    make_ledger,
    require_no_ledger_at,
    require_unledgered,
)
from securefda.source.run import SourceSite
from securefda.source.site import require_room_for
from securefda.tasks import Samples, Task, TaskSettings, load_task, task_code
from securefda.training import PersonalMemory, SecretSeed, require_steps
from securefda.training.trainer import SiteTrainer

Encode = Callable[[Envelope[Body]], bytes]


@dataclass(frozen=True, slots=True)
class Member:
    """A site's identity in the federation, and how its messages become bytes."""

    roster: Roster
    site_id: str
    signing_key: Ed25519PrivateKey
    encode: Encode

    @property
    def index(self) -> int:
        """Roster index."""
        return self.roster.by_id(self.site_id).index

    @property
    def signer(self) -> Signer:
        """What signs this site's messages."""
        return Signer(self.index, self.signing_key, self.encode)


def witness_of(
    logs: Path,
    member: Member,
    memory: WitnessMemory,
    opening: Opening,
    unix_time: Callable[[], float] = time.time,
) -> Witness:
    """A site's audit logs, which lie in the folder ``logs``, and what it remembers of those of others."""
    journal = Journal(
        logs,
        member.roster,
        member.site_id,
        member.signing_key,
        opening=opening,
        clock=lambda: datetime.fromtimestamp(unix_time(), UTC),
    )
    return Witness(journal, member.roster, member.signer, memory, unix_time)


def _opening(task: str, strategy: str, policy: bytes | None = None) -> Opening:
    digest = "" if policy is None else sha256(policy).hexdigest()
    return Opening(__version__, _word(task), _word(strategy), digest)


def _word(text: str) -> str:
    """A name as a record of the log can hold it."""
    return re.sub(r"[^A-Za-z0-9._-]", ".", text)[:64].lstrip("._-") or "unnamed"


def task_of(section: TaskSection, roster: Roster, seed: int) -> Task:
    """The site's own instance of the task; ``seed`` is the run's and must be equal at every site."""
    return _task(section, roster.target.site_id, tuple(entry.site_id for entry in roster.sources), seed)


def _task(section: TaskSection, target: str, sources: tuple[str, ...], seed: int) -> Task:
    settings = TaskSettings(
        target=target,
        sources=sources,
        seed=seed,
        data_dir=section.data_dir,
        options=section.options,
    )
    return load_task(section.factory, settings)


def training_rows(task: Task, site_id: str) -> Samples:
    """The rows that a site trains on.

    Raises:
        DataError: they are missing or unfit, or the task's own code fails.
    """
    with task_code(type(task), "train_data"):
        return task.train_data(site_id)


def _target_rows(task: Task, site_id: str, rule: Rule) -> tuple[Samples, Samples]:
    """Training and test rows of the target."""
    if rule is Rule.ORACLE:
        with task_code(type(task), "oracle_data"):
            data = task.oracle_data()
    else:
        data = training_rows(task, site_id)
    with task_code(type(task), "test_data"):
        return data, task.test_data(site_id)


def rows_here(config: FederationConfig, site_id: str, seed: int) -> Samples:
    """The rows that a site of a federation on this machine trains on; of the target, its test rows are loaded too.

    Raises:
        ConfigError, DataError: the task or its data are unfit.
    """
    target = config.federation.target
    task = _task(config.task, target, config.federation.sources, seed)
    if site_id != target:
        return training_rows(task, site_id)
    return _target_rows(task, site_id, strategy_of(config.strategy).rule)[0]


def rows_of_site(config: AggregatorConfig | SourceConfig, roster: Roster, site_id: str) -> Samples:
    """The rows that a site's process trains on, of which its privacy ledger is.

    Raises:
        ConfigError, DataError: the task or its data are unfit.
    """
    if isinstance(config, SourceConfig):
        return training_rows(task_of(config.task, roster, config.source.seed), site_id)
    task = task_of(config.task, roster, config.aggregator.seed)
    return _target_rows(task, site_id, strategy_of(config.strategy).rule)[0]


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
    data, test_data = _target_rows(task, site_id, rule)
    if rule.adapts:
        require_steps(site_id, len(data), training_settings(config.training))
    budget = budget_of(config.privacy.budget)
    opening = _opening(config.task.factory, config.strategy.rule)
    witness = witness_of(logs_folder(config.aggregator.kit.resolve()), member, store, opening)
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


def trainer_at(
    process: ProcessSection,
    training: TrainingSection,
    member: Member,
    task: Task,
    rows: Samples,
    *,
    secret: SecretSeed | None,
    budget: Budget,
    told: Callable[[Budget, DpEvent, Reservation], None] = lambda *_: None,
    memory: PersonalMemory | None = None,
) -> tuple[SiteTrainer, tuple[str, ...]]:
    """What trains at a site, and what its operator should know of it before it begins.

    Args:
        process: names the kit, the data set and the run's seed.
        training: of the site.
        member: the site.
        task: the site's own instance.
        rows: that it trains on.
        secret: what training without noise draws from; None: the run's seed.
        budget: what its policy lets them cost.
        told: hears of every charge before it is trained for: the audit log does.
        memory: keeps the layers that stay at the site.

    Raises:
        LedgerError, BudgetExhausted: training with noise is not paid for.
        ConfigError: the rows have changed since they were last used; or they have a ledger, and training is without
            noise.
        TrainingError: the model cannot be federated, or not be trained with noise.
    """
    settings, file = training_settings(training), ledger_file(process.kit.resolve(), process.data_set)
    data = partial(data_set_of, member.site_id, process.data_set, rows)
    if settings.dp is None:
        require_unledgered(file, process.data_set, data)
        ahead = partial(require_no_ledger_at, file, process.data_set)  # one that is made while the run goes on, too
        seed, site = process.seed, member.site_id
        return SiteTrainer(task, site, rows, settings, seed, secret=secret, before_round=ahead, memory=memory), ()
    from securefda.source.private_trainer import PrivateTrainer  # noqa: PLC0415 - it imports Opacus

    known = data()
    key = member.signing_key.public_key().public_bytes_raw()
    account = PrivacyAccount(Ledger(file, known), known, budget, key, told=partial(told, budget))
    trainer = PrivateTrainer(task, member.site_id, rows, settings, process.seed, account=account)
    round_ahead = trainer.event("the-next", 1, 0)
    account.require(round_ahead)
    return trainer, tuple(account.lines(round_ahead))


LEDGERS_OF_A_FOLDER = (
    "the privacy ledgers are this run folder's and count what its runs spend alone; what was spent of the same rows in "
    "other folders, or under a site's own kit, is not in them and must be added to every epsilon"
)


def make_ledgers(config: FederationConfig, kits: Mapping[str, Path], seed: int) -> tuple[str, ...]:
    """Make the ledgers that a federation on this machine lacks; where sites are apart, each makes its own.

    They lie in the run's folder, so that two runs over the same rows in two folders both begin at 0: what the rows
    have cost is the sum of all, and no ledger has it. A site that keeps to a budget trains from its own kit.

    Args:
        config: the federation.
        kits: site id -> the folder that stands for its kit.
        seed: of the run.

    Returns:
        What the operator should know of them; nothing where nobody trains with noise.

    Raises:
        LedgerError, ConfigError, DataError: a ledger cannot be made, or the task or its rows are unfit.
    """
    target, sources = config.federation.target, config.federation.sources
    for site in (target, *sources):
        training = config.training.target if site == target else config.training.source
        file = ledger_file(kits[site], DEFAULT_DATA_SET)
        if not training.dp.noise_multiplier or file.exists():
            continue
        make_ledger(file, data_set_of(site, DEFAULT_DATA_SET, rows_here(config, site, seed)), now=int(time.time()))
    noisy = config.training.target.dp.noise_multiplier or config.training.source.dp.noise_multiplier
    return (LEDGERS_OF_A_FOLDER,) if noisy else ()


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
        k_min=privacy.k_min,
        n_c=privacy.n_c,
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
        kappa=privacy.kappa,
        energy_granularity=Granularity[privacy.energy_granularity.upper()],
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
        kappa=privacy.kappa,
        granularity=privacy.energy_granularity,
        releases=store.target_releases(),
        target_budget=budget_of(config.privacy.budget) if config.training.dp.noise_multiplier else None,
        rounds_planned=config.strategy.rounds,
        status="failed" if isinstance(error, SecureFdaError) else status,
        error=error if isinstance(error, SecureFdaError) else None,
    )


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
    opening = _opening(config.task.factory, "the-headers", said)
    witness = witness_of(logs_folder(config.source.kit.resolve()), member, store, opening)
    budget, told = policy.dp.budget, witness.journal.charged
    trainer, notes = trainer_at(
        config.source,
        config.training,
        member,
        task,
        data,
        secret=None if secret is None else secret.of("folder", store.file_id),
        budget=budget,
        told=told,
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
