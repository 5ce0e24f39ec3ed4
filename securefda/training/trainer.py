"""The trainer of a site: it holds the task, the rows, the settings and the model, and trains one round per call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from securefda.errors import ConfigError, TrainingError
from securefda.protocol.encoding import Vector64
from securefda.protocol.transcript import architecture_digest
from securefda.rules import Variance
from securefda.tasks import Rows, Samples, Task, Unlabelled, task_code
from securefda.training import (
    Evaluation,
    LayerTable,
    LocalResult,
    PersonalMemory,
    SecretSeed,
    TrainingSettings,
    Vector,
    build_model,
    choose_device,
    derive_seed,
    describe_device,
    evaluate,
    frozen_digest,
    layer_sizes,
    layer_table,
    model_to_vector,
    require_steps,
    train_local,
    vector_to_model,
)
from securefda.training.alignment import Aligned, Alignment, require_fit, train_aligned
from securefda.training.batch_norm import (
    bytes_to_statistics,
    estimate_statistics,
    fitted,
    norms_of,
    statistics_of,
    statistics_to_bytes,
)
from securefda.training.device import choose_threads, multiply_adds
from securefda.training.features import (
    SeenGap,
    cluster,
    clusters_wanted,
    feature_width,
    features_of,
    followed_pull,
    gap_direction,
    gap_of,
    moved_centres,
    require_trained_features,
)
from securefda.training.personal import head_size, train_with_head, vector_of
from securefda.training.seeds import Seed, generator_of, round_seed
from securefda.training.team import Team, Told
from securefda.training.variance import (
    cross_fitted_variance,
    fixed_point_variance,
    require_batches,
    require_halves,
)

Statistic = NDArray[np.float32] | NDArray[np.int64]
"""A running mean or variance, or the number of batches behind them."""


def private_modules_place(run_id: str) -> str:
    """Key in a source's memory for the modules that it trains beside a run's model."""
    return f"{run_id} alignment"


def statistics_place(run_id: str) -> str:
    """Key in a site's memory for the BatchNorm statistics of a run."""
    return f"{run_id} statistics"


def kept_places(run_id: str) -> tuple[str, ...]:
    """All keys under which a source's memory keeps its own state of a run."""
    return run_id, statistics_place(run_id), private_modules_place(run_id)


@dataclass(frozen=True, slots=True)
class Planned:
    """The known quantities of a round before training: rows, steps, and the effective learning rate."""

    samples: int
    steps: int
    learning_rate: float


class Trainer(Protocol):
    """What a round needs from a trainer; :class:`SiteTrainer` is the one that trains on the site's rows."""

    layers: LayerTable
    sizes: tuple[int, ...]
    architecture_digest: bytes
    frozen_digest: bytes
    repeatable: bool

    @property
    def feature_width(self) -> int:
        """How many numbers the features of a row have, d; 0 where the model has none."""

    @property
    def n_params(self) -> int:
        """Number of federated parameters, m."""

    def initial_model(self) -> Vector:
        """The first model of the run, float32 (m,), the same at every site."""

    def train(
        self,
        received: Vector,
        round_number: int,
        factor: float,
        *,
        run_id: str = "",
        attempt: int = 0,
        fewest_steps: int = 1,
        on_step: Callable[[Vector], None] | None = None,
        align: Aligned | None = None,
    ) -> LocalResult:
        """Train one round from ``received``, float32 (m,). Private training charges its ledger by run and attempt.

        With ``align``, training also pulls this site's features towards the target's, and the result has the pull on
        the target's features.
        """

    def step_variance(
        self, received: Vector, round_number: int, factor: float, kind: Variance, *, run_id: str = ""
    ) -> float:
        """sigma^2 of the mean step of :meth:`train`, in squared parameter units."""

    def evaluate(self, vector: Vector, data: Samples) -> Evaluation:
        """Loss and metrics of a model, float32 (m,), over ``data``."""


class SiteTrainer:
    """Trains at one site. The rows are read once; all randomness derives from (secret, run, site, round).

    BatchNorm's running statistics start from those of the newly built model and continue from round to round in
    ``memory``. No update depends on them.

    ``repeatable`` says whether the same training gives the same bits again; a GPU does not promise that.
    ``trains_on`` describes the device for display, such as "cpu (1 thread)".

    Args:
        task: the site's instance of the task.
        site: site id.
        data: the rows that it trains on; a target that never trains can pass rows without labels.
        settings: how it trains, before the round's learning rate factor.
        seed: seed of the run; the initial model depends on it alone.
        secret: seed of all other random choices. None: the run's seed, so that anyone can repeat the training.
        before_round: called before each round; an exception from it ends the round before the rows are touched.
        memory: keeps what stays at this site between rounds: personal layers, the running statistics of BatchNorm, and
            the private modules of rules that compare features. None: they start anew in each round.
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
        data: Rows,
        settings: TrainingSettings,
        seed: int,
        *,
        secret: SecretSeed | None = None,
        before_round: Callable[[], None] | None = None,
        memory: PersonalMemory | None = None,
        team: Team | None = None,
        least_rows: int = 1,
    ) -> None:
        self._least_rows = least_rows
        self._task = task
        self._site = site
        self._data = data
        self._seed = seed
        self._draws_from: Seed = seed if secret is None else secret
        self._before_round = before_round
        self._memory = memory
        self._team = team
        if team is not None and settings.personal_layers:
            why = f"layers that stay at this site are trained in one process, and there are {team.count}"
            raise ConfigError("training.personal-layers", why, hint="set it to 0, or start the site without torchrun")
        device = choose_device(settings.device)  # so that a missing device is reported at the start of the process
        self.repeatable = device.type == "cpu"
        self._model = build_model(task, derive_seed(seed, "model"))
        self.settings = fitted(settings, self._model)
        if team is not None and norms_of(self._model):
            raise TrainingError(
                f"the model has BatchNorm, and each of {team.count} processes would take the statistics of its part",
                hint="use torch.nn.GroupNorm, or start the site without torchrun",
            )
        if least_rows > 1:
            self._require_countable(site)
        require_steps(site, len(data), self.settings, fewest=1)
        self._first_statistics = statistics_to_bytes(self._model)
        self._evaluated: tuple[Vector, bytes] | None = None
        self.layers = layer_table(self._model)
        self.sizes = layer_sizes(self.layers)
        self.architecture_digest = architecture_digest(self.layers)
        self.frozen_digest = frozen_digest(self._model)
        self._head_size = head_size(self.sizes, settings.personal_layers)
        with task_code(type(task), "a forward pass"):
            rows = min(settings.batch_size, len(data))
            work = lambda: rows * multiply_adds(self._model, data.features)  # noqa: E731
            self._threads = choose_threads(settings.threads, work)
        together = "" if team is None else f", {team.count} processes"
        self.trains_on = describe_device(device, self._threads) + together

    def _require_countable(self, site: str) -> None:
        if norms_of(self._model):
            raise TrainingError(
                f"{site}: the model has BatchNorm, through which each row moves what others move",
                hint="use torch.nn.GroupNorm, or set release.min-rows = 1 in policy.toml",
            )
        if self._team is not None or self.settings.personal_layers:
            where = "in several processes" if self._team is not None else "with layers that stay at this site"
            why = f"{self._least_rows}, and no rows are counted in training {where}"
            raise ConfigError("release.min-rows", why, hint="set it to 1 in policy.toml, or train otherwise")

    @property
    def samples(self) -> int:
        """Number of rows that this site trains on."""
        return len(self._data)

    @property
    def n_params(self) -> int:
        """Number of federated parameters, m."""
        return sum(self.sizes)

    @property
    def feature_width(self) -> int:
        """How many numbers the features of a row have, d; 0 where the model has none."""
        try:
            return feature_width(self._model)
        except TrainingError:
            return 0

    def initial_model(self) -> Vector:
        """The first model of the run, float32 (m,): a function of the run's seed alone."""
        return model_to_vector(build_model(self._task, derive_seed(self._seed, "model")))

    def learning_rate(self, factor: float) -> float:
        """The effective learning rate of a round with this factor."""
        return self.settings.with_learning_rate_factor(factor).learning_rate

    def train(
        self,
        received: Vector,
        round_number: int,
        factor: float,
        *,
        run_id: str = "",
        attempt: int = 0,  # noqa: ARG002 - nothing is charged for plain training
        fewest_steps: int = 1,
        on_step: Callable[[Vector], None] | None = None,
        align: Aligned | None = None,
    ) -> LocalResult:
        """Train one round from ``received``, float32 (m,).

        Raises:
            TrainingError: the rows have no labels; the round has too few steps; a loss or the update is not finite;
                the target's features have another width than the model's; or the model does not fit the alignment.
        """
        if isinstance(self._data, Unlabelled):
            raise TrainingError(f"{self._site}: its {len(self._data)} rows have no labels to train on")
        if self._before_round is not None:
            self._before_round()
        torch.set_num_threads(self._threads)
        settings = self.settings.with_learning_rate_factor(factor)
        seed = round_seed(self._draws_from, self._site, run_id, round_number)
        self._recall_statistics(run_id, round_number)
        how: dict[str, Any] = {
            "settings": settings,
            "seed": seed,
            "site": self._site,
            "fewest_steps": fewest_steps,
            "on_step": on_step,
        }
        if align is not None and self._least_rows > 1:
            raise TrainingError(
                f"{self._site} counts the rows that move a parameter, and {align.kind} moves a pull on features",
                hint="take the rules that compare features out of allowed-rules, or set release.min-rows = 1",
            )
        if align is not None and self._team is not None:
            raise TrainingError(
                f"{self._site} trains in {self._team.count} processes, and {align.kind} wants a step's rows in one",
                hint="start the site without torchrun, or set another strategy.rule at the target",
            )
        if align is not None:
            place = private_modules_place(run_id)
            kept = None if self._memory is None else self._memory.personal(place, round_number)
            first = round_seed(self._draws_from, self._site, run_id, 0, "private modules")
            result, private = train_aligned(
                self._task, self._model, received, self._data, align, first=first, kept=kept, **how
            )
            if self._memory is not None:
                self._memory.keep_personal(place, round_number, private)
        elif not settings.personal_layers:
            if self._team is not None:
                self._team.tell(Told(received, settings, seed if isinstance(seed, int) else None))
            how |= {"team": self._team, "least_rows": self._least_rows}
            result = train_local(self._task, self._model, received, self._data, **how)
        else:
            if self._memory is None:
                raise ValueError("memory: layers that stay at this site have to be kept")
            result, head = train_with_head(
                self._task,
                self._model,
                received,
                vector_of(self._memory.personal(run_id, round_number), received[-self._head_size :]),
                self._data,
                **how,
            )
            self._memory.keep_personal(run_id, round_number, head.astype("<f4").tobytes())
        self._keep_statistics(run_id, round_number)
        return result

    def step_variance(
        self, received: Vector, round_number: int, factor: float, kind: Variance, *, run_id: str = ""
    ) -> float:
        """Estimate sigma^2, the variance of the mean step of :meth:`train`, in squared parameter units.

        Call it after :meth:`train`. In a team, only the leader computes it.

        Args:
            received: the model with which the round begins, float32 (m,).
            round_number: of that round; every attempt at it draws the same numbers.
            factor: of the learning rate.
            kind: the estimator; not ``steps``, which is computed from the steps of :meth:`train` themselves.
            run_id: of the run.

        Raises:
            TrainingError: the rows have no labels; there are too few rows or batches; or a loss is not finite.
            DataError: the task's own code fails.
        """
        if isinstance(self._data, Unlabelled):
            raise TrainingError(f"{self._site}: its {len(self._data)} rows have no labels to estimate a variance from")
        if self.settings.dp is not None:
            raise TrainingError(f"{self._site}: its ledger does not count what a variance beside the steps tells")
        torch.set_num_threads(self._threads)
        found = fixed_point_variance if kind is Variance.FIXED_POINT else cross_fitted_variance
        self._recall_statistics(run_id, round_number)
        return found(
            self._task,
            self._model,
            received,
            self._data,
            settings=self.settings.with_learning_rate_factor(factor),
            seed=round_seed(self._draws_from, self._site, run_id, round_number, "variance"),
            site=self._site,
        )

    def require_variance(self, kind: Variance) -> None:
        """Check that there are enough rows and batches for :meth:`step_variance`.

        Raises:
            TrainingError: there are too few.
        """
        if kind is Variance.FIXED_POINT:
            require_batches(self._site, len(self._data), self.settings)
        if kind is Variance.CROSS_FITTED:
            require_halves(self._site, len(self._data), self.settings)

    def _recall_statistics(self, run_id: str, round_number: int) -> None:
        """Load the BatchNorm statistics of this site's last round before ``round_number`` into the model."""
        if not self._first_statistics:
            return
        kept = None if self._memory is None else self._memory.personal(statistics_place(run_id), round_number)
        bytes_to_statistics(self._first_statistics if kept is None else kept, self._model)

    def _keep_statistics(self, run_id: str, round_number: int) -> None:
        if self._first_statistics and self._memory is not None:
            self._memory.keep_personal(statistics_place(run_id), round_number, statistics_to_bytes(self._model))

    def evaluate(self, vector: Vector, data: Samples) -> Evaluation:
        """Loss and metrics of a model, float32 (m,), over ``data``, with the BatchNorm :meth:`statistics` of here."""
        torch.set_num_threads(self._threads)
        self._load_to_evaluate(vector)
        return evaluate(self._task, self._model, data)

    def require_clusters(self, rows: int) -> None:
        """Check that :meth:`look` can cluster the features of at most ``rows`` rows.

        Raises:
            TrainingError: the model has no linear layer, or there are too few rows.
        """
        require_trained_features(self._model)
        clusters_wanted(self._model, min(rows, len(self._data)))

    def require_features(self, rows: int, kind: Alignment) -> None:
        """Check that :meth:`release` can give features of ``rows`` rows for a rule of this kind.

        Raises:
            TrainingError: the model has no features or does not fit the rule, or there are fewer rows.
        """
        require_fit(kind, self._model)
        if rows > len(self._data):
            raise TrainingError(
                f"there are {len(self._data)} training rows, and features of {rows} are to be released",
                hint=f"lower strategy.feature-rows to {len(self._data)} or less",
            )

    def release(self, vector: Vector, round_number: int, run_id: str, *, rows: int, clip: float) -> Vector:
        """Features of some of this site's rows under a model, float32 (T, d), to be published to the sources.

        Every attempt at a round draws the same rows.

        Args:
            vector: the model with which the round begins, float32 (m,).
            round_number: of that round.
            run_id: of the run.
            rows: T.
            clip: longest L2 norm of a row's features; longer ones are scaled down. 0 for no bound.

        Raises:
            TrainingError: a feature is NaN or infinite, or of another width than the model's last linear layer.
        """
        if self._before_round is not None:
            self._before_round()
        torch.set_num_threads(self._threads)
        drawn = self._drawn_for_release(round_number, run_id, rows)
        self._load_to_evaluate(vector)
        features = features_of(self._task, self._model, drawn)
        if features.shape[1] != self.feature_width:
            raise TrainingError(
                f"the model's last linear layer takes {features.shape[1]} numbers of a row, "
                f"in pieces of {self.feature_width}",
                hint="flatten what it takes, or set another strategy.rule",
            )
        if clip:
            lengths = np.linalg.norm(features.astype(np.float64), axis=1, keepdims=True)
            features = (features * np.minimum(1.0, clip / np.maximum(lengths, 1e-30))).astype(np.float32)
        return features

    def follow(self, vector: Vector, round_number: int, run_id: str, pull: Vector, *, rows: int) -> Vector:
        """The step in parameters that moves the released features along a pull: (1/T) sum_t J_t^T pull_t, float32 (m,).

        Args:
            vector: as for :meth:`release`, like the arguments below.
            round_number: of the round.
            run_id: of the run.
            pull: on the features of :meth:`release`, (T, d).
            rows: T.

        Raises:
            TrainingError: the gradient is not finite.
        """
        torch.set_num_threads(self._threads)
        drawn = self._drawn_for_release(round_number, run_id, rows)
        self._load_to_evaluate(vector)
        return followed_pull(self._task, self._model, drawn, pull)

    def _drawn_for_release(self, round_number: int, run_id: str, rows: int) -> Tensor:
        seed = round_seed(self._draws_from, self._site, run_id, round_number, "released features")
        chosen = torch.randperm(len(self._data), generator=generator_of(seed))[:rows].sort().values
        return self._data.features[chosen]

    def look(self, vector: Vector, round_number: int, run_id: str, *, rows: int) -> SeenGap:
        """How the features of this site's rows cluster under a model, float32 (m,). No labels are used.

        Args:
            vector: the model with which a round begins.
            round_number: of that round; every attempt at it draws the same rows.
            run_id: of the run.
            rows: the most rows to draw.

        Raises:
            TrainingError: the rows cannot be clustered, or a feature is not finite.
        """
        if self._before_round is not None:
            self._before_round()
        torch.set_num_threads(self._threads)
        seed = round_seed(self._draws_from, self._site, run_id, round_number, "clusters")
        draws = generator_of(seed)
        chosen = torch.randperm(len(self._data), generator=draws)[:rows].sort().values
        drawn, first = self._data.features[chosen], int(torch.randint(2**31, (1,), generator=draws))
        self._load_to_evaluate(vector)
        count = clusters_wanted(self._model, len(drawn))
        features = features_of(self._task, self._model, drawn)
        clusters = cluster(features, count, first)
        gap = gap_of(features, clusters)

        def gain_of(update: Vector | Vector64) -> float:
            torch.set_num_threads(self._threads)
            self._load_to_evaluate((vector + update).astype(np.float32))
            moved = features_of(self._task, self._model, drawn)
            again = cluster(moved, count, first, centres=moved_centres(moved, clusters, count))
            return gap - gap_of(moved, again)

        return SeenGap(gap, gap_direction(self._task, self._model, drawn, features, clusters), gain_of)

    def statistics(self, vector: Vector) -> dict[str, Statistic]:
        """The BatchNorm statistics with which this site evaluates a model, float32 (m,), by their names in PyTorch.

        They are computed from this site's training rows, see :func:`estimate_statistics`. Empty without BatchNorm.
        """
        if not self._first_statistics:
            return {}
        torch.set_num_threads(self._threads)
        self._load_to_evaluate(vector)
        return {name: buffer.cpu().numpy().copy() for name, buffer in statistics_of(self._model).items()}

    def _load_to_evaluate(self, vector: Vector) -> None:
        """Load ``vector`` into the model with its BatchNorm statistics; those of the last vector are cached."""
        vector_to_model(vector, self._model)
        if not self._first_statistics:
            return
        if self._evaluated is not None and np.array_equal(self._evaluated[0], vector):
            bytes_to_statistics(self._evaluated[1], self._model)
            return
        estimate_statistics(self._task, self._model, self._data)
        self._evaluated = (vector.copy(), statistics_to_bytes(self._model))
