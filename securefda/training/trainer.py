"""The trainer of a site: it turns a received model into an update, one round per call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from securefda.errors import ConfigError, TrainingError
from securefda.protocol.encoding import Vector, Vector64
from securefda.rules import Moments, Variance
from securefda.rules.analytic import Floats
from securefda.tasks import Rows, Samples, Task
from securefda.training.alignment import FeatureAlignment, train_aligned
from securefda.training.batch_norm import batch_norm_layers
from securefda.training.device import describe_device
from securefda.training.head import head_rows
from securefda.training.local import Evaluation, LocalResult, RoundOptions, StepObserver, require_steps, train_local
from securefda.training.memory import NoMemory, PersonalMemory, own_layers_key, private_modules_key
from securefda.training.parameter_vectors import LayerTable
from securefda.training.personal import head_size, train_with_head, vector_from_bytes
from securefda.training.round_progress import ProgressObserver
from securefda.training.seeds import SecretSeed
from securefda.training.site_model import SiteModel
from securefda.training.step_variance import (
    cross_fitted_variance,
    fixed_point_variance,
    require_batches,
    require_halves,
)
from securefda.training.team import Team, TrainingOrder, not_federated
from securefda.training.training_settings import TrainingSettings

PermittedRows = Callable[[Floats, Floats, bool], tuple[Floats, Floats]]
"""Features (n, d), what a head fits to them (n, c), and whether only sums of the latter are wanted -> what may count of
both; or raises PolicyRefusal.
"""


@dataclass(frozen=True, slots=True)
class PlannedRound:
    """The known quantities of a round before training: rows, steps, and the effective learning rate."""

    samples: int
    steps: int
    learning_rate: float


class Trainer(Protocol):
    """The trainer that a round needs; :class:`SiteTrainer` implements it on a site's rows."""

    layers: LayerTable
    sizes: tuple[int, ...]
    architecture_digest: bytes
    frozen_digest: bytes
    repeatable: bool
    on_progress: ProgressObserver | None

    @property
    def feature_width(self) -> int:
        """Number of features of a row, d; 0 if the model has none."""

    @property
    def n_params(self) -> int:
        """Number of federated parameters, m."""

    def initial_model(self) -> Vector:
        """Return the first model of the run, float32 (m,), the same at every site."""

    def charged_round(self, factor: float) -> PlannedRound | None:
        """Return the round that a ledger is charged for with this learning rate factor; None if nothing is charged."""

    def reserve_run(self, run_id: str, rounds: int, *, moments: bool) -> None:
        """Reserve what a run's rounds cost, if a ledger is charged; ``moments``: they release second moments alone."""

    def release_run(self, run_id: str) -> None:
        """Free what a run that has ended did not use of its reservation."""

    def train(
        self,
        received: Vector,
        round_number: int,
        factor: float,
        *,
        run_id: str = "",
        attempt: int = 0,
        fewest_steps: int = 1,
        on_step: StepObserver | None = None,
        align: FeatureAlignment | None = None,
    ) -> LocalResult:
        """Train one round from ``received``, float32 (m,). Private training charges its ledger by run and attempt.

        With ``align``, training also makes this site's features like the target's, and the result has the pull on the
        target's features.
        """

    def moments(
        self,
        received: Vector,
        round_number: int,
        *,
        bound: float,
        permitted: PermittedRows,
        run_id: str = "",
        attempt: int = 0,
    ) -> LocalResult:
        """Return the second moments of this site's rows in place of an update, see :mod:`securefda.rules.analytic`."""

    def step_variance(
        self, received: Vector, round_number: int, factor: float, kind: Variance, *, run_id: str = ""
    ) -> float:
        """Return sigma^2 of the mean step of :meth:`train`, in squared parameter units."""

    def evaluate(self, vector: Vector, data: Samples) -> Evaluation:
        """Return loss and metrics of a model, float32 (m,), over ``data``."""


class SiteTrainer(SiteModel):
    """A site's model with its training: :meth:`train` carries out one order of a round from beginning to end.

    ``trains_on`` describes the device for display, such as "cpu (1 thread)".

    Args:
        task, site, settings, seed, secret, before_round: as for :class:`SiteModel`.
        rows: the rows that it trains on; a target that never trains can pass rows without labels.
        memory: as for :class:`SiteModel`; needed if layers stay at this site.
        team: processes that train together with this one, which leads them.
        least_rows: parameters that fewer rows moved keep their received values; 1 for no such limit.

    Raises:
        TrainingError: the task's model cannot be federated; batches have too few rows for it; or it has BatchNorm and
            several processes train, each on a part of a batch, or the rows that move a parameter are counted.
        ConfigError: this machine lacks the device that the settings name; all layers would stay at this site; or two of
            these are combined: several processes, layers that stay at this site, ``least_rows`` above 1.
    """

    def __init__(
        self,
        task: Task,
        site: str,
        rows: Rows,
        settings: TrainingSettings,
        seed: int,
        *,
        secret: SecretSeed | None = None,
        before_round: Callable[[], None] | None = None,
        memory: PersonalMemory | None = None,
        team: Team | None = None,
        least_rows: int = 1,
    ) -> None:
        if team is not None and settings.personal_layers:
            why = f"layers that stay at this site are trained in one process, and there are {team.count}"
            raise ConfigError("training.personal-layers", why, hint="set it to 0, or training.processes to 1")
        super().__init__(task, site, rows, settings, seed, secret=secret, before_round=before_round, memory=memory)
        if team is not None and batch_norm_layers(self.module):
            raise TrainingError(
                f"the model has BatchNorm, and each of {team.count} processes would take the statistics of its part",
                hint="use torch.nn.GroupNorm, or set training.processes = 1",
            )
        self.team, self._least_rows = team, least_rows
        if least_rows > 1:
            self._require_countable()
        require_steps(site, len(rows), self.settings, fewest=1)
        self._head_size = head_size(self.sizes, settings.personal_layers)
        together = "" if team is None else f", {team.count} processes"
        self.trains_on = describe_device(self.device, self.threads) + together

    def _require_countable(self) -> None:
        """Check that the rows that move a parameter can be counted."""
        if batch_norm_layers(self.module):
            raise TrainingError(
                f"{self.site}: the model has BatchNorm, through which each row moves what others move",
                hint="use torch.nn.GroupNorm, or set release.min-rows = 1 in policy.toml",
            )
        if self.team is not None or self.settings.personal_layers:
            where = "in several processes" if self.team is not None else "with layers that stay at this site"
            why = f"{self._least_rows}, and no rows are counted in training {where}"
            raise ConfigError("release.min-rows", why, hint="set it to 1 in policy.toml, or train otherwise")

    def train(
        self,
        received: Vector,
        round_number: int,
        factor: float,
        *,
        run_id: str = "",
        attempt: int = 0,  # noqa: ARG002 - nothing is charged for plain training
        fewest_steps: int = 1,
        on_step: StepObserver | None = None,
        align: FeatureAlignment | None = None,
    ) -> LocalResult:
        """Train one round from ``received``, float32 (m,).

        Raises:
            TrainingError: the rows have no labels; the round has too few steps; a loss or the update is not finite;
                the target's features have another width than the model's; or the model does not fit the alignment.
        """
        rows = self.labelled_rows()
        self.before_round()
        if align is not None:
            self._require_comparable(align)
        self.prepare_to_train(run_id, round_number)
        settings = self.settings.with_learning_rate_factor(factor)
        seed = self.round_seed(run_id, round_number)
        options = RoundOptions(
            settings=settings,
            seed=seed,
            site=self.site,
            fewest_steps=fewest_steps,
            on_step=on_step,
            on_progress=self.on_progress,
        )
        if align is not None:
            key = private_modules_key(run_id)
            result, modules = train_aligned(
                self.task,
                self.module,
                received,
                rows,
                align,
                first=self.round_seed(run_id, 0, "private modules"),
                kept=self.memory.personal(key, round_number),
                **options,
            )
            self.memory.keep_personal(key, round_number, modules)
        elif settings.personal_layers:
            if isinstance(self.memory, NoMemory):
                raise ValueError("memory: layers that stay at this site have to be kept")
            key = own_layers_key(run_id)
            head = vector_from_bytes(self.memory.personal(key, round_number), received[-self._head_size :])
            result, head = train_with_head(self.task, self.module, received, head, rows, **options)
            self.memory.keep_personal(key, round_number, head.astype("<f4").tobytes())
        else:
            if self.team is not None:
                layers_seed = seed if isinstance(seed, int) else None
                self.team.order(
                    TrainingOrder(received, not_federated(self.module), settings, self.threads, layers_seed)
                )
            result = train_local(
                self.task, self.module, received, rows, team=self.team, least_rows=self._least_rows, **options
            )
        self.keep_statistics(run_id, round_number)
        return result

    def moments(
        self,
        received: Vector,
        round_number: int,  # noqa: ARG002 - moments are the same in every round
        *,
        bound: float,
        permitted: PermittedRows,
        run_id: str = "",  # noqa: ARG002
        attempt: int = 0,  # noqa: ARG002 - nothing is charged without noise
    ) -> LocalResult:
        """Return the second moments of this site's rows in place of an update, float32 (m + p (p + 1) / 2,).

        Args:
            received: the model with which the round begins, float32 (m,). Its frozen layers are this site's own.
            round_number: number of the round.
            bound: as of :meth:`securefda.rules.Moments.of`.
            permitted: what this site's policy lets count of its rows, if it adds no noise.
            run_id: id of the run.
            attempt: at the round.

        Raises:
            PolicyRefusal: the policy forbids it.
            TrainingError: the rows have no labels, or the model trains more than its last linear layer.
            ConfigError: the labels do not fit the model's outputs.
            DataError: the task's own code fails.
        """
        if self._least_rows > 1:
            raise TrainingError(
                f"{self.site} counts the rows that move a parameter, and second moments move none",
                hint="take analytic out of allowed-rules, or set release.min-rows = 1",
            )
        self.labelled_rows()
        self.before_round()
        features, targets = head_rows(self, received)
        counted = permitted(features, targets, self.task.sums_only)
        return self.result_of_moments(Moments.of(*counted, bound=bound).means())

    def result_of_moments(self, means: Vector64, epsilon: float | None = None) -> LocalResult:
        """Return the result of a round of second moments, whose means these are, float64 (m + p (p + 1) / 2,)."""
        rate = self.settings.learning_rate
        return LocalResult(means.astype(np.float32), 1, self.samples, None, None, rate, epsilon=epsilon)

    def _require_comparable(self, align: FeatureAlignment) -> None:
        """Check that this site can compare features: it counts no rows and trains in one process."""
        if self._least_rows > 1:
            raise TrainingError(
                f"{self.site} counts the rows that move a parameter, and {align.kind} moves a pull on features",
                hint="take the rules that compare features out of allowed-rules, or set release.min-rows = 1",
            )
        if self.team is not None:
            raise TrainingError(
                f"{self.site} trains in {self.team.count} processes, and {align.kind} wants a step's rows in one",
                hint="set training.processes = 1, or another strategy.rule at the target",
            )

    def charged_round(self, factor: float) -> PlannedRound | None:  # noqa: ARG002 - nothing is charged
        """Return None: training without noise charges no ledger."""
        return None

    def reserve_run(self, run_id: str, rounds: int, *, moments: bool) -> None:
        """Reserve nothing, for the same reason."""

    def release_run(self, run_id: str) -> None:
        """Release nothing."""

    def step_variance(
        self, received: Vector, round_number: int, factor: float, kind: Variance, *, run_id: str = ""
    ) -> float:
        """Estimate sigma^2, the variance of the mean step of :meth:`train`, in squared parameter units.

        Call it after :meth:`train`. In a team, only the leader computes it.

        Args:
            received: the model with which the round begins, float32 (m,).
            round_number: number of the round; every attempt at it draws the same numbers.
            factor: factor of the learning rate.
            kind: the estimator, but not ``steps``, which is computed from the steps of :meth:`train`.
            run_id: id of the run.

        Raises:
            TrainingError: the rows have no labels; training is with noise; there are too few rows or batches; or a loss
                is not finite.
            DataError: the task's own code fails.
        """
        rows = self.labelled_rows("to estimate a variance from")
        if self.settings.dp is not None:
            raise TrainingError(f"{self.site}: its ledger does not count what a variance beside the steps tells")
        estimate = fixed_point_variance if kind is Variance.FIXED_POINT else cross_fitted_variance
        self.prepare_to_train(run_id, round_number)
        return estimate(
            self.task,
            self.module,
            received,
            rows,
            settings=self.settings.with_learning_rate_factor(factor),
            seed=self.round_seed(run_id, round_number, "variance"),
            site=self.site,
        )

    def train_on(
        self, rows: Samples, received: Vector, round_number: int, factor: float, *, run_id: str = ""
    ) -> Vector:
        """Return the update, float32 (m,), of a round of training on other rows, as :meth:`train` trains on its own.

        Call it after :meth:`train`; its running statistics are not kept. In a team, only the leader computes it.

        Raises:
            TrainingError: training is with noise; there are too few rows for a step; or a loss or the update is not
                finite.
            DataError: the task's own code fails.
        """
        if self.settings.dp is not None:
            raise TrainingError(f"{self.site}: its ledger does not count training beside that of the round")
        self.prepare_to_train(run_id, round_number)
        settings, seed = self.settings.with_learning_rate_factor(factor), self.round_seed(run_id, round_number)
        return train_local(self.task, self.module, received, rows, settings=settings, seed=seed, site=self.site).update

    def require_variance(self, kind: Variance) -> None:
        """Check that there are enough rows and batches for :meth:`step_variance`.

        Raises:
            TrainingError: there are too few.
        """
        if kind is Variance.FIXED_POINT:
            require_batches(self.site, self.samples, self.settings)
        if kind is Variance.CROSS_FITTED:
            require_halves(self.site, self.samples, self.settings)
