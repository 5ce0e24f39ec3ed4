"""Builds, from a site's kit and settings, the parts that both kinds of site have.

These are its identity, its credentials and endpoint, its audit logs, its task and rows, and its trainer with ledgers.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, partial
from hashlib import sha256
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from securefda import __version__
from securefda.audit.charges import logged_charges
from securefda.audit.journal import Journal, RunInfo
from securefda.audit.witness import Witness, WitnessMemory
from securefda.errors import DataError
from securefda.machine import without_collections
from securefda.privacy.dp_events import Budget, DpEvent
from securefda.privacy.ledger import Ledger, Reservation
from securefda.protocol.messages import Signer
from securefda.protocol.roster import Roster
from securefda.rules import Rule, TargetLabels
from securefda.site.config import (
    AggregatorConfig,
    FederationConfig,
    SourceConfig,
    TargetTrainingSection,
    TaskSection,
    TransportSection,
    budget_of,
    strategy_of,
    training_settings,
)
from securefda.site.config.sections import DEFAULT_DATA_SET, ProcessSection, TrainingSection
from securefda.site.kit import Kit, naming
from securefda.site.policy import load_signed_policy
from securefda.site.privacy_account import (
    PrivacyAccount,
    Reserving,
    charges_for,
    data_set_of,
    ledger_file,
    make_ledger,
    require_one_ledger,
    require_unledgered,
)
from securefda.site.route import Route
from securefda.site.training_secret import REPEATABLE
from securefda.tasks import Rows, Samples, Task, TaskSettings, Unlabelled, load_task, rows_of, unlabelled_target
from securefda.text import utc_minute
from securefda.training import PersonalMemory, SecretSeed
from securefda.training.pseudo import PseudoLabelSettings, PseudoTrainer
from securefda.training.team import Team
from securefda.training.trainer import SiteTrainer
from securefda.transport.dialer import Endpoint
from securefda.transport.limits import TransportSettings
from securefda.transport.tls import Credentials
from securefda.transport.wire import encode


@dataclass(frozen=True, slots=True)
class Member:
    """A site's identity in the federation."""

    roster: Roster
    site_id: str
    signing_key: Ed25519PrivateKey
    signed_roster: bytes = b""

    @classmethod
    def of(cls, kit: Kit) -> Member:
        """The member that owns a kit."""
        return cls(kit.roster, kit.site_id, kit.signing_key, kit.signed_roster.to_bytes())

    @property
    def index(self) -> int:
        """The roster index."""
        return self.roster.by_id(self.site_id).index

    @property
    def signer(self) -> Signer:
        """The signer of this site's messages."""
        return Signer(self.index, self.signing_key, encode)


def transport_settings(section: TransportSection) -> TransportSettings:
    """Return the sizes and times of the transport.

    Raises:
        ConfigError: a value is out of its range.
    """
    return TransportSettings(
        chunk_bytes=section.chunk_bytes,
        max_message_bytes=section.max_message_bytes,
        heartbeat_s=section.heartbeat_s,
        reconnect_deadline_s=section.reconnect_deadline_s,
    )


def credentials_of(kit: Kit) -> Credentials:
    """Return the kit's certificates and TLS key."""
    return Credentials(kit.ca.pem, kit.certificate_pem, kit.tls_key_pem.reveal())


def endpoint_of(kit: Kit, transport: TransportSection | None = None) -> Endpoint:
    """Return how to reach the aggregator by kit and settings, and its identity from the roster.

    ``transport`` None is a site without settings.

    Raises:
        ConfigError: the file of the proxy's credentials cannot be used.
    """
    target, route = kit.roster.target, Route.of(kit, transport or TransportSection())
    return Endpoint(str(route.address), kit.endpoints.server_name, target.tls_pin, target.index, route.proxy)


def source_of_pin(kit: Kit, pin: bytes) -> int | None:
    """Return the roster index of the source with this TLS pin.

    None for an unknown one, for one that has left the federation, and for the target itself.
    """
    try:
        entry = kit.roster.by_tls_pin(pin)
    except KeyError:
        return None
    return entry.index if entry.role == "source" and not entry.has_left else None


def notes_of_left(roster: Roster) -> tuple[str, ...]:
    """Return a line for the operator about each site that has left, by the certificates in the kit."""
    left = [(entry.site_id, utc_minute(entry.left_at)) for entry in roster.entries if entry.left_at is not None]
    return tuple(f"{site} left the federation on {day}: its keys are refused" for site, day in left)


def witness_of(
    logs: Path,
    member: Member,
    memory: WitnessMemory,
    info: RunInfo,
    unix_time: Callable[[], float] = time.time,
) -> Witness:
    """Return a site's own audit logs in the folder ``logs``, with its memory of the other sites' logs."""
    journal = Journal(
        logs,
        member.roster,
        member.site_id,
        member.signing_key,
        info=info,
        signed_roster=member.signed_roster,
        clock=lambda: datetime.fromtimestamp(unix_time(), UTC),
    )
    return Witness(journal, member.roster, member.signer, memory, unix_time)


def run_info(task: str, strategy: str, policy: bytes | None = None) -> RunInfo:
    """Return the facts about a run with which a site's log opens."""
    digest = "" if policy is None else sha256(policy).hexdigest()
    return RunInfo(__version__, _word(task), _word(strategy), digest)


def _word(text: str) -> str:
    """Return a name in the characters that a record of the log can hold."""
    return re.sub(r"[^A-Za-z0-9._-]", ".", text)[:64].lstrip("._-") or "unnamed"


def task_of(section: TaskSection, roster: Roster, seed: int, labels: TargetLabels = TargetLabels.GIVEN) -> Task:
    """Build the site's own instance of the task; ``seed`` is the run's and must be equal at every site.

    ``labels`` matter at the target alone: no other site knows them, or needs to.
    """
    return task_among(section, roster.target.site_id, tuple(entry.site_id for entry in roster.sources), seed, labels)


def task_among(section: TaskSection, target: str, sources: tuple[str, ...], seed: int, labels: TargetLabels) -> Task:
    """Build the task in a federation of these sites. Raises what :func:`task_of` does."""
    settings = TaskSettings(
        target=target,
        sources=sources,
        seed=seed,
        data_dir=section.data_dir,
        options=section.options,
        labelled_target=labels is TargetLabels.GIVEN,
        metric=section.metric,
    )
    return load_task(section.factory, settings)


def training_rows(task: Task, site_id: str) -> Samples:
    """Return the rows that a site trains on.

    Raises:
        DataError: they are missing or unfit, or the task's own code fails.
    """
    return rows_of(task, site_id, "train")


def target_rows(task: Task, rule: Rule, labels: TargetLabels) -> tuple[Rows, Rows, Samples | None]:
    """Return the target's training rows as the task gives them, those rows as training sees them, and its test rows.

    A privacy ledger is of the first. The second lack the labels that settings say the target does not have. Test rows
    are None where the target does not know the labels of any.

    Raises:
        DataError: they are missing or unfit, or have no labels where they should; or the task's own code fails.
    """
    if labels is TargetLabels.GIVEN:
        site = task.settings.target
        owned = rows_of(task, site, "oracle" if rule is Rule.ORACLE else "train")
        return owned, owned, rows_of(task, site, "test")
    given, test = unlabelled_target(task)
    return given, Unlabelled(given.features), test


def rows_here(config: FederationConfig, site_id: str, seed: int) -> Rows:
    """Return the rows that a site of a federation on this machine trains on; at the target, load its test rows too.

    Raises:
        ConfigError, DataError: the task or its data are unfit.
    """
    target, labels = config.federation.target, TargetLabels(config.training.target.labels)
    task = task_among(config.task, target, config.federation.sources, seed, labels)
    if site_id != target:
        return training_rows(task, site_id)
    return target_rows(task, strategy_of(config.strategy).rule, labels)[0]


def task_at(config: AggregatorConfig | SourceConfig, roster: Roster) -> Task:
    """Build the task of a site with these settings."""
    if isinstance(config, SourceConfig):
        return task_of(config.task, roster, config.source.seed)
    return task_of(config.task, roster, config.aggregator.seed, TargetLabels(config.training.labels))


def rows_of_site(config: AggregatorConfig | SourceConfig, roster: Roster, site_id: str) -> Rows:
    """Return the rows that a site's process trains on, to which its privacy ledger belongs.

    Raises:
        ConfigError, DataError: the task or its data are unfit.
    """
    task = task_at(config, roster)
    if isinstance(config, SourceConfig):
        return training_rows(task, site_id)
    return target_rows(task, strategy_of(config.strategy).rule, TargetLabels(config.training.labels))[0]


def trainer_at(
    process: ProcessSection,
    training: TrainingSection,
    member: Member,
    task: Task,
    rows: Rows,
    *,
    secret: SecretSeed | None,
    budget: Budget,
    on_charge: Callable[[Budget, DpEvent, Reservation], None] = lambda *_: None,
    reserving: Reserving | None = None,
    memory: PersonalMemory | None = None,
    left_after: Rows | None = None,
    team: Team | None = None,
    least_rows: int = 1,
    rules: Collection[str] = (),
) -> tuple[SiteTrainer, tuple[str, ...]]:
    """Build a site's trainer; also returns lines for its operator about the privacy ledger.

    Args:
        process: names the kit, the data set and the run's seed.
        training: of the site.
        member: the site.
        task: the site's own instance.
        rows: the site's training rows.
        secret: seed for training without noise; None: the run's seed.
        budget: the privacy budget of the rows by the site's policy.
        on_charge: called at every charge, before training; the audit log records it.
        reserving: how its runs reserve their rounds; None: they do not.
        memory: keeps the state that stays at the site.
        left_after: the rows for training without noise if they differ: without validation rows, or with hidden labels.
        team: processes that train together with this one.
        least_rows: ``release.min-rows`` of its policy, for training without noise.
        rules: ``allowed-rules`` of its policy; empty for a target.

    Raises:
        LedgerError, BudgetExhausted: the ledger cannot cover the next round of training with noise, or under a policy
            that permits nothing else one release of second moments.
        AuditError: a log of the site, which may record a charge, cannot be read.
        DataError: training is with noise, and the rows have no labels.
        ConfigError: the rows have changed since they were last used, or have a second ledger; or they have one, and
            training is without noise.
        TrainingError: the model cannot be federated, or cannot be trained with noise.
    """
    settings, file = training_settings(training), ledger_file(process.kit.resolve(), process.data_set)
    data = cache(partial(data_set_of, member.site_id, process.data_set, rows))  # hashes all rows, so once a process
    if settings.dp is None:
        ahead = partial(require_unledgered, file, process.data_set, data)
        ahead()  # and before each round: a ledger may be made while the run goes on
        seed, site = process.seed, member.site_id
        rows = rows if left_after is None else left_after
        if isinstance(training, TargetTrainingSection) and training.labels == "pseudo":
            how = (task, site, Unlabelled(rows.features), settings, seed)
            pseudo = PseudoLabelSettings(training.pseudo_threshold, training.pseudo_share)
            return PseudoTrainer(*how, pseudo=pseudo, secret=secret, before_round=ahead, memory=memory), ()
        plain = SiteTrainer(
            task,
            site,
            rows,
            settings,
            seed,
            secret=secret,
            before_round=ahead,
            memory=memory,
            team=team,
            least_rows=least_rows,
        )
        return plain, ()
    with without_collections():
        from securefda.site.private_trainer import PrivateTrainer  # noqa: PLC0415 - it imports Opacus

    if isinstance(rows, Unlabelled):
        raise DataError(
            f"{member.site_id}, train", "training with noise needs labels", hint="set noise-multiplier to 0"
        )
    known = data()
    require_one_ledger(file, known)
    key = member.signing_key.public_key().public_bytes_raw()
    charges = charges_for(file, logged_charges(process.kit.resolve(), member.site_id))
    ledger = Ledger(file, known, recorded=charges)
    reserving, hears = reserving or Reserving(), partial(on_charge, budget)
    account = PrivacyAccount(ledger, known, budget, key, on_charge=hears, reserving=reserving)
    trainer = PrivateTrainer(task, member.site_id, rows, settings, process.seed, account=account, team=team)
    training_ahead = trainer.event("the-next", 1, 0) if set(rules) != {Rule.ANALYTIC} else None
    moments_ahead = trainer.release_of_moments("the-next", 1, 0, 1.0) if Rule.ANALYTIC in rules else None
    lines = account.require_ahead(training_ahead, moments_ahead)
    return trainer, (*lines, *(trainer.cost_lines() if training_ahead is not None and team is None else ()))


LEDGERS_OF_A_FOLDER = (
    "the privacy ledgers are this run folder's and count what its runs spend alone; what was spent of the same rows in "
    "other folders, in runs of this folder that --fresh deleted, or under a site's own kit, is not in them and must be "
    "added to every epsilon"
)


def make_ledgers(config: FederationConfig, kits: Mapping[str, Path], seed: int) -> tuple[str, ...]:
    """Make the missing ledgers of a federation on one machine; in a real federation each site makes its own.

    They lie in the run's folder, so two runs over the same rows in two folders both begin at 0, and no ledger has the
    total. A site that has to keep a budget must train from its own kit.

    Args:
        config: the federation.
        kits: site id -> the folder that stands for its kit.
        seed: of the run.

    Returns:
        Lines for the operator; empty if training has no noise.

    Raises:
        LedgerError, ConfigError, DataError: a ledger cannot be made, or the task or its rows are unfit.
    """
    target, sources = config.federation.target, config.federation.sources
    for site in (target, *sources):
        training = config.training.target if site == target else config.training.source
        file = ledger_file(kits[site], DEFAULT_DATA_SET)
        if not training.with_noise or file.exists():
            continue
        make_ledger(file, data_set_of(site, DEFAULT_DATA_SET, rows_here(config, site, seed)), now=int(time.time()))
    return (LEDGERS_OF_A_FOLDER,) if config.training.target.with_noise or config.training.source.with_noise else ()


def check_rows(kit: Kit, config: AggregatorConfig | SourceConfig) -> list[str]:
    """Check that a site can train: its rows load, the model accepts them, and the ledger covers a round with noise.

    Returns:
        One line that says so, before warnings if there are any.

    Raises:
        ConfigError, DataError, LedgerError, BudgetExhausted, TrainingError: as :func:`trainer_at`.
    """
    if isinstance(config, AggregatorConfig):
        process, budget, least_rows = config.aggregator, budget_of(config.privacy.budget), 1
        rules: tuple[str, ...] = ()
    else:
        process = config.source
        with naming(kit.site_id):
            policy = load_signed_policy(kit)
        budget, least_rows, rules = policy.dp.budget, policy.release.min_rows, policy.allowed_rules
    task, member = task_at(config, kit.roster), Member.of(kit)
    if isinstance(config, AggregatorConfig):
        rule, labels = strategy_of(config.strategy).rule, TargetLabels(config.training.labels)
        owned, trained_on, _ = target_rows(task, rule, labels)
    else:
        owned = trained_on = training_rows(task, kit.site_id)
    how = (process, config.training, member, task, owned)
    _, notes = trainer_at(*how, secret=None, budget=budget, left_after=trained_on, least_rows=least_rows, rules=rules)
    if process.repeatable_training and not config.training.with_noise:
        notes = (*notes, REPEATABLE)
    unlabelled = ", without labels" if isinstance(trained_on, Unlabelled) else ""
    said = [note for note in notes if not note.startswith(_WARNING)]
    line = "; ".join([f"{config.task.factory}: {len(owned)} training rows at {kit.site_id}{unlabelled}", *said])
    return [line, *(note.removeprefix(_WARNING) for note in notes if note not in said)]


_WARNING = "warning: "
"""How a note begins that warns."""
