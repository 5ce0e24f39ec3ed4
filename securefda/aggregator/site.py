"""What the target is during a run, how the run goes, and how both follow from the settings; the summary at its end."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import cast

import torch

from securefda.aggregator.adaptation import Adaptation
from securefda.aggregator.comparison import LoneTrainer, TargetAlone
from securefda.aggregator.folds import Folds
from securefda.aggregator.store import AggregatorStore
from securefda.aggregator.target import FeatureSettings, OutputFromFeatures, UnlabelledTarget
from securefda.audit.journal import logs_folder
from securefda.audit.witness import Witness
from securefda.bootstrap import Member, run_info, target_rows, task_of, trainer_at, training_rows, witness_of
from securefda.errors import ConfigError, SecureFdaError
from securefda.operations.recording import model_file, rows_file
from securefda.operations.records import RoundLine, RunStatus, Setting, Summary, summarise
from securefda.protocol.hybrid import require_available
from securefda.protocol.messages import DownLink, Granularity, KeyAgreement, Signer, SourcesKeep, Visibility
from securefda.protocol.roster import Roster
from securefda.protocol.secret import RandomBytes
from securefda.rules import Rule, Strategy, TargetLabels
from securefda.site.config import (
    AggregatorConfig,
    FederationConfig,
    budget_of,
    require_rule_at_sum,
    strategy_of,
    training_settings,
)
from securefda.site.config.effective import secret_options, without_secrets
from securefda.tasks import Rows, Samples, Task, Unlabelled, with_further_rows
from securefda.training import PersonalMemory, PersonalModel, PersonalTrainer, SecretSeed, Vector, require_steps
from securefda.training.batch_norm import Statistic
from securefda.training.head import HeadAlone, HeadFitter, require_classes, require_right_targets
from securefda.training.model_features import require_frozen_features
from securefda.training.neighbours import KnnSettings
from securefda.training.personal import Apfl, Ditto, FedRepHead, FineTuned, KnnPer
from securefda.training.seeds import Seed, derive_seed, new_generator
from securefda.training.site_features import SiteFeatures
from securefda.training.site_model import SiteModel
from securefda.training.target_adaptation import AdaptationSettings, require_adaptable
from securefda.training.trainer import Trainer

ByteCounts = tuple[Mapping[int, int], Mapping[int, int]]
"""Bytes up and down since the start of the process, by roster index."""


@dataclass(frozen=True, slots=True)
class TargetSite:
    """Everything of the target that stays the same during a run; ``notes`` are for its operator, before it begins.

    ``trains_on`` says for people what computes: "cpu (1 thread)".
    ``test_data`` is None where no label is known of any test row: then no model is measured.
    ``personal`` is what the target is measured with where that is not the common model, ``head`` the rows whose labels
    have a say in it where they do. ``alone`` is what the run is compared with, if it is, and ``adaptation`` adapts its
    last model to the target's rows, if it is adapted. ``validation`` are the rows by
    which the best model is chosen, if it is. ``folds`` choose between the rule's model and that of the target alone, if
    they do. ``statistics`` gives the running statistics that a model is measured with, by name, see
    :meth:`SiteModel.statistics`.
    ``output_from_features`` computes the output of a round under a rule that uses the features of the target's rows;
    see :meth:`UnlabelledTarget.output`. ``head_fitter`` fits the head under the analytic rule.
    """

    signer: Signer
    roster: Roster
    trainer: Trainer
    test_data: Samples | None
    random_bytes: RandomBytes
    clock: Callable[[], float]
    traffic: Callable[[], ByteCounts]
    witness: Witness
    unix_time: Callable[[], float] = time.time
    notes: tuple[str, ...] = ()
    trains_on: str = ""
    personal: PersonalModel | None = None
    head: Samples | None = None
    alone: TargetAlone | None = None
    adaptation: Adaptation | None = None
    validation: Samples | None = None
    folds: Folds | None = None
    statistics: Callable[[Vector], Mapping[str, Statistic]] = lambda _: {}
    output_from_features: OutputFromFeatures | None = None
    head_fitter: HeadFitter | None = None

    @property
    def sources(self) -> frozenset[int]:
        """Roster indices of all sources."""
        return frozenset(entry.index for entry in self.roster.sources)

    def model_file(self, model: Vector, origin: str) -> bytes:
        """The file of a model, float32 (m,), with what it is measured with beside its parameters."""
        return model_file(self.trainer.layers, model, origin, statistics=self.statistics(model))

    def head_file(self, run_id: str) -> bytes | None:
        """The file of the rows whose labels have a say beside the model; None where none have."""
        return None if self.head is None else rows_file(self.head, run_id)

    def admits(self, index: int) -> bool:
        """Whether the roster lets this source take part now; else every source would refuse a header that names it."""
        return not self.roster.out_of_date((index,), int(self.unix_time()))

    def has_left(self, index: int) -> bool:
        """Whether this source has revoked its keys, by a certificate that the target holds."""
        return bool(self.roster.left((index,)))

    def name(self, index: int) -> str:
        """Site id of a roster index, or words for an index that the roster does not have."""
        entries = self.roster.entries
        return entries[index].site_id if 0 <= index < len(entries) else f"index {index}"


@dataclass(frozen=True, slots=True)
class RunSettings:
    """How a run goes; ``threshold`` 0 is the default formula, deadlines are seconds.

    ``cohort_size`` is the fewest members of a cohort when it forms; 0 lets each cohort lose one source. ``kappa`` is of
    the norm cap, 0 for none. ``bits`` is the width of a parameter's word once there are sums to go by, 0 for the fewest
    that do, see :mod:`securefda.aggregator.ranges`. ``target_noise`` is what protects g_T when it is published, as its
    releases are accounted. ``learning_rate`` is the target's, before the factor of a round; ``patience`` is after how
    many rounds without a better model the run ends, 0 for never. ``sources_keep`` is what the sources keep of the model
    when the run is complete, ``down_link`` in what it travels to them. ``dropouts`` is the share of the sources
    that may drop out of a session in which each has neighbours; None where all are neighbours. ``key_agreement`` is
    that of the sessions.
    """

    strategy: Strategy
    visibility: Visibility
    min_others: int
    max_colluders: int
    threshold: int
    bits: int
    clip: float
    max_samples: int
    attempts: int
    join_deadline_s: float
    training_deadline_s: float
    phase_deadline_s: float
    config_digest: bytes
    sources_keep: SourcesKeep
    cohort_size: int = 0
    kappa: float = 1.0
    norm_cap_granularity: Granularity = Granularity.LAYER
    target_noise: str = "none"
    learning_rate: float = 0.001
    patience: int = 0
    down_link: DownLink = DownLink.FLOAT32
    dropouts: float | None = None
    key_agreement: KeyAgreement = KeyAgreement.X25519_MLKEM768

    def __post_init__(self) -> None:
        if self.cohort_size == 0:
            object.__setattr__(self, "cohort_size", self.smallest_sum + 1)
        if self.visibility is Visibility.SUM:
            require_rule_at_sum(self.strategy)

    @property
    def smallest_sum(self) -> int:
        """Fewest sources in a sum: a source itself, ``min_others`` others, and ``max_colluders`` that may collude."""
        return self.min_others + self.max_colluders + 1


@dataclass(frozen=True, slots=True, repr=False)
class TargetRows:
    """The target's rows, by what they are for.

    Attributes:
        owned: its training rows as the task gives them, of which a privacy ledger is; under ``oracle`` those of all
            sites.
        trained_on: those of them that training without noise uses, without labels that it is not to know.
        validation: the others, by which the best model is chosen; None where none are left out.
        test: what every model is measured on; None where no label of such rows is known.
    """

    owned: Rows
    trained_on: Rows
    validation: Samples | None
    test: Samples | None

    @classmethod
    def of(cls, config: AggregatorConfig, task: Task, site_id: str, seed: Seed) -> TargetRows:
        """Load them; which rows are left out to choose a model by is drawn from ``seed``.

        Raises:
            ConfigError, DataError: rows are missing or unfit, or too few for ``strategy.validation-share``.
        """
        labels = TargetLabels(config.training.labels)
        owned, trained_on, test = target_rows(task, strategy_of(config.strategy).rule, labels)
        share = config.strategy.validation_share
        if share and isinstance(trained_on, Samples):
            return cls(owned, *without_share(trained_on, share, site_id, seed), test)
        return cls(owned, trained_on, None, test)


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
    labels = TargetLabels(config.training.labels)
    task = task_of(config.task, member.roster, seed, labels)
    rows = TargetRows.of(config, task, site_id, seed if secret is None else secret)
    budget = budget_of(config.privacy.budget)
    info = run_info(config.task.factory, config.strategy.rule)
    witness = witness_of(logs_folder(config.aggregator.kit.resolve()), member, store, info)
    trainer, notes = trainer_at(
        config.aggregator,
        config.training,
        member,
        task,
        rows.owned,
        secret=secret,
        budget=budget,
        on_charge=witness.journal.charged,
        memory=store,
        left_after=rows.trained_on,
    )

    unlabelled = _unlabelled_target(config, trainer, store) if strategy.rule.uses_target_features else None
    head_fitter = _head_fitter(config, trainer) if strategy.rule.adds_moments else None
    if strategy.rule.adapts:
        require_steps(site_id, len(rows.trained_on), trainer.settings)
        trainer.require_variance(strategy.variance)

    def trainer_alone() -> LoneTrainer:
        owned, trained_on = rows.owned, rows.trained_on
        if strategy.rule is Rule.ORACLE:
            owned = trained_on = training_rows(task, site_id)
        plain = config.training.model_copy(update={"personal_layers": 0})
        how = (config.aggregator, plain, member, task, owned)
        own = trainer_at(*how, secret=secret, budget=budget, left_after=trained_on)[0]
        return own if head_fitter is None else HeadAlone(replace(head_fitter, site=own))

    alone, adaptation, personal, head, folds = None, None, None, None, None
    if config.training.adapt != "none":
        how = AdaptationSettings(
            config.training.adapt_epochs, config.training.adapt_threshold, config.training.adapt_prior
        )
        adapted: SiteModel = trainer
        labelled = rows.trained_on if isinstance(rows.trained_on, Samples) else None
        if labelled is not None:
            every, ahead = with_further_rows(task, labelled), trainer.before_round
            adapted = SiteModel(task, site_id, every, training, seed, secret=secret, before_round=ahead)
        require_adaptable(adapted)
        adaptation = Adaptation(adapted, how, rows.test, store, config.model.release_adapted, labelled)
    if isinstance(rows.trained_on, Samples):  # all take the target's own labels
        if config.strategy.folds and strategy.rule.adapts:
            folds = Folds.of(trainer, config.strategy.folds, seed if secret is None else secret, store)
        compares = config.strategy.compare_target_only and not config.training.with_noise
        if rows.test is not None and compares and strategy.rule is not Rule.TARGET_ONLY:
            alone = TargetAlone(trainer_alone, rows.test, task, store, strategy.warm_up, strategy.lr_after_warm_up)
        if strategy.is_personal and (rows.test is not None or strategy.asks_neighbours):
            personal = personal_of(
                strategy, PersonalTrainer(task, site_id, rows.trained_on, training, seed, secret), store
            )
            head = rows.trained_on if strategy.asks_neighbours else None
    return TargetSite(
        signer=member.signer,
        roster=member.roster,
        trainer=trainer,
        test_data=rows.test,
        random_bytes=os.urandom,
        clock=time.monotonic,
        traffic=traffic,
        witness=witness,
        notes=(*notes, *unlabelled_notes(task, rows), *filter(None, [task.scaling_caution(rows.trained_on)])),
        trains_on=trainer.trains_on,
        personal=personal,
        head=head,
        alone=alone,
        adaptation=adaptation,
        validation=rows.validation,
        folds=folds,
        statistics=trainer.statistics,
        output_from_features=None if unlabelled is None else unlabelled.output,
        head_fitter=head_fitter,
    )


def _unlabelled_target(config: AggregatorConfig, trainer: SiteModel, store: AggregatorStore) -> UnlabelledTarget:
    """The target under a rule that uses features of its rows. Raises ConfigError: the model or the rows are unfit."""
    asked, own = config.strategy, config.training
    unlabelled = UnlabelledTarget(
        SiteFeatures(trainer),
        asked.attention_rows,
        FeatureSettings(asked.feature_rows, own.feature_clip, own.feature_noise, asked.feature_step),
        DownLink[config.session.down_link.upper()],
        store,
        os.urandom,
    )
    unlabelled.require(strategy_of(asked).rule)
    return unlabelled


def _head_fitter(config: AggregatorConfig, trainer: SiteModel) -> HeadFitter:
    """What solves for the head from second moments. Raises ConfigError: the model or the labels are unfit."""
    require_frozen_features(trainer.module)
    require_right_targets(trainer)
    asked = config.strategy
    moves = asked.align_moments == "mean"
    balanced = asked.class_weights == "balanced"
    fitter = HeadFitter(trainer, config.session.clip, balanced, moves, asked.source_noise)
    if fitter.balanced:
        require_classes(trainer)
    return fitter


def unlabelled_notes(task: Task, rows: TargetRows) -> Iterator[str]:
    """What the target's operator should know where labels are missing."""
    if task.sums_only:
        return  # its sum is what is wanted: no model is measured
    if isinstance(rows.trained_on, Unlabelled):
        yield f"the {len(rows.trained_on)} training rows count as rows without labels"
    if rows.test is None:
        yield "no test row has a label, so no model is measured: there will be no accuracy"


def without_share(rows: Samples, share: float, site_id: str, seed: Seed) -> tuple[Samples, Samples]:
    """Split rows at random into those to train on and, about ``share`` of them, those to choose a model by.

    Raises:
        ConfigError: one of both would be empty.
    """
    count = round(share * len(rows))
    if not 0 < count < len(rows):
        lacks = "train on" if count else "choose a model by"
        why = f"{share:g} of the {len(rows)} training rows at {site_id} leaves none to {lacks}"
        raise ConfigError("strategy.validation-share", why, hint="set another share, or 0 for none")
    order = torch.randperm(len(rows), generator=new_generator(derive_seed(seed, site_id, "validation")))
    left, taken = (rows.at(chosen) for chosen in (order[count:].sort().values, order[:count].sort().values))
    return left, taken


def personal_of(strategy: Strategy, trainer: PersonalTrainer, memory: PersonalMemory) -> PersonalModel | None:
    """The model of the target's own that a strategy measures it with; None where that is the common model.

    Raises:
        TrainingError: it cannot be made of this task.
        ConfigError: ``training.personal-layers``, all layers would stay at their site.
    """
    if strategy.asks_neighbours:
        return KnnPer(trainer, KnnSettings(strategy.knn_neighbours, strategy.knn_weight, strategy.knn_scale))
    match strategy.rule:
        case Rule.PERSONALIZED_FEDAVG:
            return FineTuned(trainer, strategy.personal_epochs)
        case Rule.DITTO:
            return Ditto(trainer, memory, epochs=strategy.personal_epochs, strength=strategy.ditto_lambda)
        case Rule.APFL:
            return Apfl(trainer, memory, alpha=strategy.apfl_alpha, adaptive=strategy.apfl_adaptive)
        case Rule.FEDREP:
            return FedRepHead(trainer, memory)
    return None


_FIXED = {"task", "strategy", "training", "privacy", "session", "model"}
_FREE = {
    "privacy": {"budget"},
    "training": {"threads", "adapt", "adapt_epochs", "adapt_threshold", "adapt_prior"},
    "strategy": {"compare_target_only"},
    "model": {"release_adapted"},
}
"""Sections whose settings must stay when a run is resumed, and those of their settings that need not."""


def run_settings(config: AggregatorConfig, roster: Roster) -> RunSettings:
    """How the run goes, under a digest of what must stay when it is resumed."""
    fixed = config.model_dump(mode="json", include=_FIXED, exclude=_FREE)
    written = json.dumps(fixed, sort_keys=True)  # the options of a task stand in the order of the file
    return settings_of(config, sha256(f"{config.aggregator.seed}\0{written}".encode() + roster.digest()).digest())


def is_fixed(key: str) -> bool:
    """Whether a setting of the target must stay when a run is resumed: the digest of :func:`run_settings` covers it."""
    section, _, name = key.partition(".")
    field = name.partition(".")[0].replace("-", "_")
    return key == "aggregator.seed" or (section in _FIXED and field not in _FREE.get(section, ()))


def settings_of(config: AggregatorConfig | FederationConfig, config_digest: bytes) -> RunSettings:
    """How a run of this configuration goes, under a digest of it. Raises ConfigError as ``require_available``."""
    require_available([config.session.key_agreement])
    privacy, session, transport = config.privacy, config.session, config.transport
    training = config.training if isinstance(config, AggregatorConfig) else config.training.target
    return RunSettings(
        strategy=strategy_of(config.strategy),
        visibility=Visibility[privacy.visibility.upper()],
        min_others=privacy.min_others,
        max_colluders=privacy.max_colluders,
        threshold=session.threshold,
        bits=0 if session.bits == "auto" else session.bits,
        clip=session.clip,
        max_samples=session.max_samples,
        attempts=session.attempts,
        join_deadline_s=transport.join_deadline_s,
        training_deadline_s=transport.training_deadline_s,
        phase_deadline_s=transport.phase_deadline_s,
        config_digest=config_digest,
        sources_keep=SourcesKeep[config.model.sources_keep.upper()],
        cohort_size=privacy.cohort_size,
        kappa=privacy.norm_cap_kappa,
        norm_cap_granularity=Granularity[privacy.norm_cap_granularity.upper()],
        target_noise="dp-sgd" if training.with_noise else "none",
        learning_rate=training.learning_rate,
        patience=config.strategy.patience,
        down_link=DownLink[session.down_link.upper()],
        dropouts=None if session.graph == "complete" else session.dropouts,
        key_agreement=KeyAgreement.named(session.key_agreement),
    )


def summary_of(
    config: AggregatorConfig, run_id: str, store: AggregatorStore, roster: Roster, error: BaseException | None
) -> Summary:
    """The summary of a run as far as it went, rounds before a restart included."""
    privacy = config.privacy
    status: RunStatus = "finished"
    if error is not None:
        status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
    return summarise(
        cast(list[RoundLine], store.records()),
        run_id=run_id,
        task=config.task.factory,
        strategy=config.strategy.model_dump(by_alias=True),
        visibility={entry.site_id: privacy.permitted(entry.site_id) for entry in roster.sources},
        kappa=privacy.norm_cap_kappa,
        granularity=privacy.norm_cap_granularity,
        releases=store.target_releases(),
        target_budget=budget_of(config.privacy.budget) if config.training.with_noise else None,
        rounds_planned=config.strategy.rounds,
        status=status,
        error=error if isinstance(error, SecureFdaError) else None,
        warm_up=strategy_of(config.strategy).warm_up,
        setting=Setting(
            federation=roster.federation_id,
            target=roster.target.site_id,
            sources=[entry.site_id for entry in roster.sources],
            seed=config.aggregator.seed,
            training=config.training.model_dump(mode="json", by_alias=True),
            task_options=without_secrets(config.task.options),
            secret_options=secret_options(config.task.options),
            data_dir=str(config.task.data_dir or ""),
        ),
    )
