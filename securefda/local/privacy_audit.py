"""The audit of a site's noise before it joins a run: canaries among its rows, and how many of their coins are guessed.

All runs here: the site's trainer, its noise and its accounting, with a ledger in a temporary folder. Nothing leaves,
and the site's own ledger is neither read nor charged.

Canaries are spread over one or several trainings, each of some canaries among the site's rows. A coin decides for each
canary whether it is among the rows of its training. Since a coin touches one training only, all of them together are as
private about it as that one, and the bound of :mod:`securefda.privacy.empirical_audit` holds for all coins together.

Training differs from the site's own in what changes no epsilon. The batch grows with the canaries, so that as many
steps draw each row with the same probability. Steps are by plain SGD, so that each shows the noisy sum of gradients;
Adam, momentum and weight decay compute theirs from these sums, and so show no more.
"""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from securefda.bootstrap import target_rows, task_among, task_at, training_rows
from securefda.errors import ConfigError, DataError, ExitCode, SecureFdaError
from securefda.privacy.accountants import epsilon
from securefda.privacy.canaries import (
    TaskWithBlanks,
    canaries_like,
    clipped_gradients,
    evidence_in_step,
    evidence_of_rows,
    together,
)
from securefda.privacy.dp_events import Budget, DpEvent
from securefda.privacy.empirical_audit import correct_guesses, epsilon_lower_bound, throw_coins
from securefda.privacy.ledger import Ledger, Reservation
from securefda.privacy.ledger_storage import Head
from securefda.protocol.encoding import Vector
from securefda.protocol.secret import RandomBytes
from securefda.rules import Moments, Rule, TargetLabels, round_plan
from securefda.site.config import (
    AggregatorConfig,
    FederationConfig,
    SourceConfig,
    StrategySection,
    budget_of,
    strategy_of,
    training_settings,
)
from securefda.site.kit import Kit
from securefda.site.policy import load_signed_policy
from securefda.site.privacy_account import PrivacyAccount, data_set_of
from securefda.site.private_trainer import PrivateTrainer
from securefda.tasks import Rows, Samples, Task, Unlabelled
from securefda.text import bound_text, counted, duration, left_text
from securefda.training import TrainingSettings
from securefda.training.head import head_rows
from securefda.training.site_model import SiteModel

CONFIDENCE = 0.95
BELOW = "below the ledger: nothing contradicts it"
ABOVE = "ABOVE the ledger: do not train with these settings"

_PER_TRAINING = 100
"""Most canaries in a training unless it is asked for: the more there are, the more they hide each other."""

_NUMBERS_PER_CANARY = 16
"""Least numbers of a sum for each canary in it, likewise."""

_MOST_TRAININGS = 200
"""Most trainings unless more are asked for, since they take time."""

_MOST_ROWS = 1000
"""Most of the site's own rows in a training, evenly spread: an auditor follows each of them through every step."""

_MOST_NUMBERS = 2**27
"""Most numbers of the gradients of canaries, and as many of those of rows: half a GiB each."""

_BOUND = 1.0
"""The bound of a row's second moments. The noise is in its units, and no epsilon depends on it."""

_PAYS_FOR_ANYTHING = 1e300
_LONG_S = 10.0
_OTHER = "audit another site, or under another rule"


class AboveLedger(SecureFdaError):
    """An audit with canaries measured more epsilon than the ledger counts for the same training."""

    exit_code = ExitCode.PRIVACY


class Release(StrEnum):
    """What a site adds noise to."""

    TRAINING = "training"
    """The sum of gradients in each step."""

    MOMENTS = "moments"
    """The sum of second moments, under the rule `analytic`."""


@dataclass(frozen=True, slots=True)
class AuditedSite:
    """A site as its process trains.

    Attributes:
        task, site, rows, seed: as of a trainer.
        settings: how it trains; without ``dp`` there is no noise to audit.
        budget: of its rows.
        releases: what a run can ask of it, the usual first.
        noise_key: the setting that adds noise.
        asked_by: the setting that decides ``releases``.
    """

    task: Task
    site: str
    rows: Rows
    settings: TrainingSettings
    seed: int
    budget: Budget
    releases: tuple[Release, ...] = tuple(Release)
    noise_key: str = "training.dp.noise-multiplier"
    asked_by: str = "strategy.rule"


@dataclass(frozen=True, slots=True)
class Question:
    """What an audit is to find out.

    Attributes:
        canaries: in all.
        guesses: how many coins are guessed; None for a quarter. Half are the surest "in", half the surest "out".
        trainings: over which the canaries are spread, at least; None for as many as they need.
        rounds: of each training.
        delta: at which epsilons are compared; None for the budget's.
        release: None for the usual one.
        confidence: of the bound.
    """

    canaries: int = 1000
    guesses: int | None = None
    trainings: int | None = None
    rounds: int = 1
    delta: float | None = None
    release: Release | None = None
    confidence: float = CONFIDENCE

    def __post_init__(self) -> None:
        for option, asked in (("--guesses", self.guesses), ("--trainings", self.trainings)):
            if asked is not None and not 1 <= asked <= self.canaries:
                raise ConfigError(option, f"must be from 1 to the number of canaries, {self.canaries}, not {asked}")
        if self.delta is not None and not 0 < self.delta < 1:
            raise ConfigError("--delta", f"must be between 0 and 1, not {self.delta:g}")
        if not epsilon_lower_bound(2 * self.per_side, 2 * self.per_side, self.canaries, 0.0, self.confidence):
            why = f"{counted(2 * self.per_side, 'guess', 'guesses')} prove nothing, even if all are right"
            raise ConfigError("--guesses", why, hint="take 100 or more; by default they are a quarter of --canaries")

    @property
    def per_side(self) -> int:
        """Half the number of guesses."""
        return (self.canaries // 4 if self.guesses is None else self.guesses) // 2


@dataclass(frozen=True, slots=True)
class Audited:
    """The result of an audit.

    Attributes:
        site: that was audited.
        question: that was asked.
        release: what was audited.
        trainings: over which the canaries were spread.
        delta: at which both epsilons hold.
        event: the charge of one round.
        rows: of the site's own in each training.
        strength: mean length of what a canary adds to a sum, in units of the most that a row can add.
        correct: right guesses.
        bound: epsilon is at least this.
        epsilon: of the ledger, for one training.
        seconds: that the audit took.
    """

    site: AuditedSite
    question: Question
    release: Release
    trainings: int
    delta: float
    event: DpEvent
    rows: int
    strength: float
    correct: int
    bound: float
    epsilon: float
    seconds: float

    @property
    def guesses(self) -> int:
        """Number of coins that were guessed."""
        return 2 * self.question.per_side

    @property
    def most(self) -> float:
        """The bound if all guesses were right."""
        asked = self.question
        return epsilon_lower_bound(self.guesses, self.guesses, asked.canaries, self.delta, asked.confidence)

    @property
    def is_above(self) -> bool:
        """Whether more was measured than the ledger counts."""
        return self.bound > self.epsilon

    @property
    def verdict(self) -> str:
        """The result in words."""
        return ABOVE if self.is_above else BELOW

    @property
    def error(self) -> AboveLedger | None:
        """The error to end with."""
        if not self.is_above:
            return None
        counts = f"epsilon is at least {left_text(self.bound)}, and the ledger counts {bound_text(self.epsilon)}"
        luck = f"{1 - self.question.confidence:.0%}"
        hint = (
            f"audit again: by chance at most {luck} of audits end so; if it does twice, report the installation or the "
            "task as SECURITY.md says"
        )
        return AboveLedger(f"{self.site.site} is {ABOVE}; {counts}", hint=hint)


def site_of_kit(kit: Kit, config: AggregatorConfig | SourceConfig) -> AuditedSite:
    """Return the site that owns a kit, as its process trains.

    Raises:
        ConfigError, DataError: the policy, the task or its data are unfit.
    """
    task, training = task_at(config, kit.roster), training_settings(config.training)
    if isinstance(config, AggregatorConfig):
        rows, _, _ = target_rows(task, Rule(config.strategy.rule), TargetLabels(config.training.labels))
        return AuditedSite(
            task,
            kit.site_id,
            rows,
            training,
            config.aggregator.seed,
            budget_of(config.privacy.budget),
            _releases_of_target(config.strategy),
            asked_by=f"strategy.rule = {config.strategy.rule}",
        )
    policy = load_signed_policy(kit)
    rules = set(policy.allowed_rules)
    permitted = {Release.TRAINING: rules != {Rule.ANALYTIC}, Release.MOMENTS: Rule.ANALYTIC in rules}
    return AuditedSite(
        task,
        kit.site_id,
        training_rows(task, kit.site_id),
        training,
        config.source.seed,
        policy.dp.budget,
        tuple(release for release, is_permitted in permitted.items() if is_permitted),
        asked_by="allowed-rules",
    )


def site_of_federation(config: FederationConfig, site: str, seed: int) -> AuditedSite:
    """Return a site of a federation on this machine; the first source if ``site`` is empty.

    Raises:
        ConfigError, DataError: there is no such site, or the task or its data are unfit.
    """
    federation, sides = config.federation, config.training
    rule, labels = Rule(config.strategy.rule), TargetLabels(sides.target.labels)
    site = site or federation.sources[0]
    known, is_target = (federation.target, *federation.sources), site == federation.target
    if site not in known:
        raise ConfigError(f"--site {site}", "is no site of this federation", hint=f"sites: {', '.join(known)}")
    task = task_among(config.task, federation.target, federation.sources, seed, labels)
    releases: tuple[Release, ...] = (Release.MOMENTS if rule.adds_moments else Release.TRAINING,)
    if rule in (Rule.TARGET_ONLY, Rule.ORACLE):
        releases = ()
    if is_target:
        releases = _releases_of_target(config.strategy)
    return AuditedSite(
        task,
        site,
        target_rows(task, rule, labels)[0] if is_target else training_rows(task, site),
        training_settings(sides.target if is_target else sides.source),
        seed,
        budget_of(config.privacy.budget),
        releases,
        noise_key=f"training.{'target' if is_target else 'source'}.dp.noise-multiplier",
        asked_by=f"strategy.rule = {rule}",
    )


def _releases_of_target(section: StrategySection) -> tuple[Release, ...]:
    """Return the target's update where it trains in some round; its own second moments do not leave it."""
    strategy = strategy_of(section)
    plans = (round_plan(strategy, number) for number in range(1, strategy.rounds + 1))
    return (Release.TRAINING,) if any(plan.trains_target for plan in plans) else ()


def audit_privacy(
    site: AuditedSite,
    question: Question,
    *,
    random_bytes: RandomBytes = os.urandom,
    charged_as: float | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Audited:
    """Train with canaries, guess their coins, and compare what that proves with what the ledger counts.

    Args:
        site: whose noise is audited.
        question: what is asked.
        random_bytes: of coins, canaries and noise; anything but ``os.urandom`` is for tests.
        charged_as: noise multiplier for which the ledger is charged in place of the one that is added: the fault that a
            study or a test plants, so that the audit finds it.
        say: hears how long it takes, if that is long.

    Raises:
        ConfigError: there is no noise, the site releases nothing of that kind, or no canary can be made.
        TrainingError, DataError: as of :class:`PrivateTrainer`.
    """
    began = time.monotonic()
    release = question.release or next(iter(site.releases), Release.TRAINING)
    if release not in site.releases:
        what = "second moments" if release is Release.MOMENTS else "updates"
        raise ConfigError(site.asked_by, f"no {what} are asked of {site.site}: there is nothing to audit", hint=_OTHER)
    if site.settings.dp is None:
        hint = f"audit a noise that you have in mind: --set {site.noise_key}=2"
        raise ConfigError(site.noise_key, f"is 0 at {site.site}: no epsilon is claimed, so none is audited", hint=hint)
    if isinstance(site.rows, Unlabelled):
        raise DataError(
            f"{site.site}, train", "training with noise needs labels", hint="audit a site whose rows have any"
        )
    rows = site.rows
    delta = site.budget.delta if question.delta is None else question.delta
    budget = Budget(_PAYS_FOR_ANYTHING, delta, site.budget.accountant)
    with tempfile.TemporaryDirectory(prefix="securefda-audit-") as folder:
        data = data_set_of(site.site, "audit", site.rows)
        ledger = Ledger.create(Path(folder, "audit.sqlite"), data, now=int(time.time()))
        account = _OneTraining(ledger, data, budget, bytes(32), charged_as=charged_as)

        def trainer_of(task: Task, rows: Samples, settings: TrainingSettings) -> PrivateTrainer:
            return PrivateTrainer(
                task, site.site, rows, settings, site.seed, account=account, random_bytes=random_bytes
            )

        own = trainer_of(site.task, rows, site.settings)  # which refuses what the site's process would refuse
        if not math.isfinite(epsilon([own.event("audit", 1, 0)], delta, budget.accountant)):
            why = "is so small, or so large, that no finite epsilon is known"
            raise ConfigError(site.noise_key, why, hint="0.5 to 10 are usual")
        planted = (_Moments if release is Release.MOMENTS else _Steps)(own, trainer_of, question.rounds, site.seed)
        fit = max(1, _MOST_NUMBERS // planted.numbers)
        most = max(1, min(_PER_TRAINING, planted.numbers // _NUMBERS_PER_CANARY, fit))
        wanted = question.trainings or min(_MOST_TRAININGS, -(-question.canaries // most))
        trainings, strength = max(wanted, -(-question.canaries // fit)), 0.0
        generator = torch.Generator().manual_seed(int.from_bytes(random_bytes(6), "big"))
        coins, scores = throw_coins(question.canaries, random_bytes), np.empty(question.canaries)
        for number, some in enumerate(np.array_split(np.arange(question.canaries), trainings)):
            started, canaries = time.monotonic(), canaries_like(planted.rows, len(some), generator)
            strength = strength or _strength(planted, canaries)
            scores[some] = planted.scores(canaries, torch.from_numpy(coins[some])).numpy()
            left = (time.monotonic() - started) * (trainings - 1)
            if number == 0 and left > _LONG_S:
                say(f"{counted(trainings - 1, 'more training')} like the first take about {duration(left)}")
        spent = ledger.spent(delta, budget.accountant)
        (first, *_) = account.charged.values()
    correct = correct_guesses(scores, coins, question.per_side)
    bound = epsilon_lower_bound(2 * question.per_side, correct, question.canaries, delta, question.confidence)
    return Audited(
        site=site,
        question=question,
        release=release,
        trainings=trainings,
        delta=delta,
        event=first.event,
        rows=len(planted.rows),
        strength=strength,
        correct=correct,
        bound=bound,
        epsilon=spent,
        seconds=time.monotonic() - began,
    )


@dataclass(frozen=True, slots=True)
class _OneTraining(PrivacyAccount):
    """Charges the rounds of the first training to the ledger. The others cost the same, and each is a coin's only one.

    Attributes:
        charged_as: as of :func:`audit_privacy`.
        charged, ends: round -> its charge, and row of the charge -> the ledger's head after the round.
    """

    charged_as: float | None = None
    charged: dict[int, Reservation] = field(default_factory=dict)
    ends: dict[int, Head] = field(default_factory=dict)

    def reserve(self, event: DpEvent) -> Reservation:
        if event.round not in self.charged:
            noise = event.noise_multiplier if self.charged_as is None else self.charged_as
            self.charged[event.round] = PrivacyAccount.reserve(self, replace(event, noise_multiplier=noise))
        return self.charged[event.round]

    def commit(self, reservation: Reservation, steps: int) -> Head:
        if reservation.number not in self.ends:
            self.ends[reservation.number] = PrivacyAccount.commit(self, reservation, steps)
        return self.ends[reservation.number]


_TrainerOf = Callable[[Task, Samples, TrainingSettings], PrivateTrainer]


class _Steps:
    """DP-SGD over some rounds, of which an auditor sees every step.

    ``numbers`` is the length m of a noisy sum, ``longest`` the most that a row adds to it, and ``rows`` are the site's.
    """

    def __init__(self, own: PrivateTrainer, trainer_of: _TrainerOf, rounds: int, _seed: int) -> None:
        self._own, self._trainer_of, self._rounds = own, trainer_of, rounds
        settings, rows = own.settings, own.labelled_rows()
        if settings.dp is None:
            raise ValueError("a private trainer's settings have dp")
        self.numbers, self.longest = own.n_params, settings.dp.max_grad_norm
        count = min(len(rows), _MOST_ROWS, max(1, _MOST_NUMBERS // self.numbers))
        self.rows = rows.at(torch.arange(count) * len(rows) // count)
        self._batches = -(-len(rows) // settings.batch_size)
        self._std = settings.dp.noise_multiplier * self.longest
        # A step is this times the noisy sum: as in the site's own training; under Adam, so that the noise moves each
        # parameter by about as much.
        scale = self._std if settings.optimizer == "adam" else len(rows) // self._batches
        self._rate_per_row = settings.learning_rate / scale
        self._settings = replace(settings, optimizer="sgd", momentum=0.0, weight_decay=0.0)

    def parts(self, canaries: Samples) -> Tensor:
        """Return what each canary adds to a sum at the first model, (canaries, m)."""
        return self._gradients(self._own.initial_model(), canaries)

    def scores(self, canaries: Samples, coins: Tensor) -> Tensor:
        """Train once with the canaries whose coins are True; return how surely each seems to be in, float64."""
        rows, count = together(self.rows, canaries), len(self.rows)
        batch = -(-len(rows) // self._batches)
        numbers = torch.arange(batch * self._batches)
        counts = torch.zeros(len(numbers), dtype=torch.bool)
        counts[:count], counts[count : len(rows)] = True, coins
        task = TaskWithBlanks(self._own.task, rows.at(numbers.where(numbers < len(rows), 0)), counts)
        settings = replace(self._settings, batch_size=batch, learning_rate=self._rate_per_row * batch)
        trainer = self._trainer_of(task, task.rows, settings)
        scores, model = torch.zeros(len(canaries), dtype=torch.float64), trainer.initial_model()
        for number in range(1, self._rounds + 1):
            now = model.copy()

            def on_step(step: Vector, now: Vector = now) -> None:
                parts = self._gradients(now, canaries), self._gradients(now, self.rows)
                total = torch.from_numpy(step).double() / -self._rate_per_row
                scores.add_(evidence_in_step(*parts, total, 1 / self._batches, self._std))
                now += step

            model = model + trainer.train(model, number, 1.0, run_id="audit", on_step=on_step).update
        return scores

    def _gradients(self, at: Vector, rows: Samples) -> Tensor:
        return clipped_gradients(self._own.task, self._own.module, at, rows, self._settings)


class _Moments:
    """One release of second moments; attributes and methods as of :class:`_Steps`."""

    def __init__(self, own: PrivateTrainer, trainer_of: _TrainerOf, rounds: int, seed: int) -> None:
        if rounds != 1:
            raise ConfigError("--rounds", f"must be 1: under {Rule.ANALYTIC} a site releases moments once in a run")
        self._own, self._trainer_of, self._model, self._seed = own, trainer_of, own.initial_model(), seed
        self.rows, self.longest = own.labelled_rows(), _BOUND
        means = Moments.of(*head_rows(own, self._model), bound=_BOUND).means()
        self.numbers, self._sums = len(means), torch.from_numpy(means * len(self.rows))

    def parts(self, canaries: Samples) -> Tensor:
        own = self._own
        features, targets = head_rows(SiteModel(own.task, own.site, canaries, own.settings, self._seed), self._model)
        rows = (slice(row, row + 1) for row in range(len(canaries)))
        return torch.from_numpy(
            np.stack([Moments.of(features[row], targets[row], bound=_BOUND).means() for row in rows])
        )

    def scores(self, canaries: Samples, coins: Tensor) -> Tensor:
        own, count = self._own, len(self.rows)
        present = torch.cat([torch.arange(count), count + coins.nonzero().flatten()])
        trainer = self._trainer_of(own.task, together(self.rows, canaries).at(present), own.settings)
        released = trainer.moments(self._model, 1, bound=_BOUND, run_id="audit").update
        parts = self.parts(canaries)
        total = torch.from_numpy(released).double() * len(present)
        even = torch.full((len(parts),), 0.5, dtype=torch.float64)
        noise = trainer.event("audit", 1, 0).noise_multiplier * _BOUND
        return evidence_of_rows(parts, total - self._sums - parts.sum(0) / 2, even, noise)


def _strength(planted: _Steps | _Moments, canaries: Samples) -> float:
    """Return the mean length of what canaries add, in units of the most that a row can add."""
    try:
        strength = float(planted.parts(canaries).norm(dim=1).mean()) / planted.longest
    except DataError as error:
        raise ConfigError(error.key, f"no canary can be made for it: {error.why}", hint=error.hint) from error
    if not strength:
        raise ConfigError("task.factory", "no canary can be made for it: made-up rows have no gradient")
    return strength
