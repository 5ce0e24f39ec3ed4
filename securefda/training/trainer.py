"""A site's own side of training: its task, its rows, its settings, and the model that it built itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from securefda.errors import TrainingError
from securefda.protocol.transcript import architecture_digest
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
    layer_sizes,
    layer_table,
    model_to_vector,
    train_local,
    vector_to_model,
)
from securefda.training.device import choose_threads, multiply_adds
from securefda.training.personal import head_size, train_with_head, vector_of
from securefda.training.seeds import Seed, round_seed


@dataclass(frozen=True, slots=True)
class Planned:
    """What is known of a round before it trains: rows, steps, and the effective learning rate."""

    samples: int
    steps: int
    learning_rate: float


class Trainer(Protocol):
    """What a round needs of a site's model; :class:`SiteTrainer` trains one on the site's rows."""

    layers: LayerTable
    sizes: tuple[int, ...]
    architecture_digest: bytes
    repeatable: bool

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
    ) -> LocalResult:
        """Train one round from ``received``, float32 (m,). A ledger, where there is one, gets run and attempt."""

    def evaluate(self, vector: Vector, data: Samples) -> Evaluation:
        """Loss and metrics of a model, float32 (m,), over ``data``."""


class SiteTrainer:
    """Trains at one site. The rows are read once; what is computed depends on (secret, run, site, round) alone.

    ``repeatable`` says whether training the same again gives the same to the last bit; a GPU does not promise that.
    ``trains_on`` says for people on what: "cpu (1 thread)".

    Args:
        task: the site's instance of the task.
        site: site id.
        data: the rows that it trains on; of a target that never trains they may lack labels.
        settings: how it trains, before the round's learning rate factor.
        seed: seed of the run, from which its first model follows.
        secret: what training draws from; None: the run's seed, with which anyone can repeat the training.
        before_round: called before each round; what it raises ends the round before the rows are touched.
        memory: keeps the layers that stay at this site, where the settings name any.

    Raises:
        TrainingError: the task's model cannot be federated.
        ConfigError: this machine does not have the device that the settings name; all layers would stay at this site.
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
    ) -> None:
        self._task = task
        self._site = site
        self._data = data
        self._settings = settings
        self._seed = seed
        self._draws_from: Seed = seed if secret is None else secret
        self._before_round = before_round
        self._memory = memory if settings.personal_layers else None
        if settings.personal_layers and memory is None:
            raise ValueError("memory: layers that stay at this site have to be kept")
        device = choose_device(settings.device)  # now, and not in the first round that trains here
        self.repeatable = device.type == "cpu"
        self._model = build_model(task, derive_seed(seed, "model"))
        self.layers = layer_table(self._model)
        self.sizes = layer_sizes(self.layers)
        self.architecture_digest = architecture_digest(self.layers)
        self._head_size = head_size(self.sizes, settings.personal_layers)
        with task_code(type(task), "a forward pass"):
            rows = min(settings.batch_size, len(data))
            work = lambda: rows * multiply_adds(self._model, data.features)  # noqa: E731
            self._threads = choose_threads(settings.threads, work)
        self.trains_on = describe_device(device, self._threads)

    @property
    def samples(self) -> int:
        """Number of rows that this site trains on."""
        return len(self._data)

    @property
    def n_params(self) -> int:
        """Number of federated parameters, m."""
        return sum(self.sizes)

    def initial_model(self) -> Vector:
        """The first model of the run, float32 (m,): a function of the run's seed alone."""
        return model_to_vector(build_model(self._task, derive_seed(self._seed, "model")))

    def learning_rate(self, factor: float) -> float:
        """The effective learning rate of a round with this factor."""
        return self._settings.with_learning_rate_factor(factor).learning_rate

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
    ) -> LocalResult:
        """Train one round from ``received``, float32 (m,).

        Raises:
            TrainingError: the rows have no labels; too few steps, or a loss or an update that is not finite.
        """
        if isinstance(self._data, Unlabelled):
            raise TrainingError(f"{self._site}: its {len(self._data)} rows have no labels to train on")
        if self._before_round is not None:
            self._before_round()
        torch.set_num_threads(self._threads)
        settings, memory = self._settings.with_learning_rate_factor(factor), self._memory
        seed = round_seed(self._draws_from, self._site, run_id, round_number)
        if memory is None:
            return train_local(
                self._task,
                self._model,
                received,
                self._data,
                settings=settings,
                seed=seed,
                site=self._site,
                fewest_steps=fewest_steps,
                on_step=on_step,
            )
        result, head = train_with_head(
            self._task,
            self._model,
            received,
            vector_of(memory.personal(run_id, round_number), received[-self._head_size :]),
            self._data,
            settings=settings,
            seed=seed,
            site=self._site,
            fewest_steps=fewest_steps,
            on_step=on_step,
        )
        memory.keep_personal(run_id, round_number, head.astype("<f4").tobytes())
        return result

    def evaluate(self, vector: Vector, data: Samples) -> Evaluation:
        """Loss and metrics of a model, float32 (m,), over ``data``."""
        torch.set_num_threads(self._threads)
        vector_to_model(vector, self._model)
        return evaluate(self._task, self._model, data)
