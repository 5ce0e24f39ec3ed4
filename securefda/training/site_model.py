"""A site's copy of the task's model, and all that goes with it: rows, settings, seeds, threads, running statistics."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import torch

from securefda.errors import TrainingError
from securefda.protocol.encoding import Vector
from securefda.protocol.transcript import architecture_digest
from securefda.tasks import Rows, Samples, Task, Unlabelled, task_code
from securefda.training.batch_norm import SiteStatistics, Statistic, running_statistics, settings_for_model
from securefda.training.device import choose_device, choose_threads, multiply_adds
from securefda.training.local import Evaluation, evaluate
from securefda.training.memory import NoMemory, PersonalMemory
from securefda.training.model_features import feature_width
from securefda.training.parameter_vectors import (
    build_model,
    frozen_digest,
    layer_sizes,
    layer_table,
    model_to_vector,
    vector_to_model,
)
from securefda.training.round_progress import ProgressObserver
from securefda.training.seeds import SecretSeed, Seed, derive_seed, round_seed
from securefda.training.training_settings import TrainingSettings


class SiteModel:
    """The task's model at one site. The rows are read once; all randomness derives from (secret, run, site, round).

    BatchNorm's running statistics start from those of the newly built model and continue from round to round in
    ``memory``. No update depends on them.

    Attributes:
        task, site, rows, memory, before_round: as given.
        settings: how the site trains this model, before the round's learning rate factor.
        module: the model itself; training and evaluation overwrite its parameters.
        device: where it is trained.
        layers: names and shapes of the federated parameters, and ``sizes`` their numbers of elements.
        architecture_digest, frozen_digest: SHA-256 of ``layers``, and of the parameters that are not federated.
        repeatable: whether the same training gives the same bits again; a GPU does not promise that.
        on_progress: hears about once a second how far the training of a round is; None at first.

    Args:
        task: the site's instance of the task.
        site: site id.
        rows: the site's training rows.
        settings: how it trains.
        seed: seed of the run; the initial model depends on it alone.
        secret: seed of all other random choices. None: the run's seed, so that anyone can repeat the training.
        before_round: called before the rows are used in a round; an exception from it ends the round.
        memory: keeps what stays at this site between rounds. None: all of it starts anew in each round.

    Raises:
        TrainingError: the task's model cannot be federated.
        ConfigError: this machine lacks the device that the settings name.
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
    ) -> None:
        self.task, self.site, self.rows = task, site, rows
        self.before_round = before_round or (lambda: None)
        self.memory = NoMemory() if memory is None else memory
        self.on_progress: ProgressObserver | None = None
        self._seed = seed
        self._draws_from: Seed = seed if secret is None else secret
        self.device = choose_device(settings.device)  # so that a missing device is reported at the start of the process
        self.repeatable = self.device.type == "cpu"
        self.module = build_model(task, derive_seed(seed, "model"))
        self.settings = settings_for_model(settings, self.module)
        self.layers = layer_table(self.module)
        self.sizes = layer_sizes(self.layers)
        self.architecture_digest = architecture_digest(self.layers)
        self.frozen_digest = frozen_digest(self.module)
        self._statistics = SiteStatistics(task, self.module, rows, self.memory)

    @property
    def samples(self) -> int:
        """Number of rows that this site trains on."""
        return len(self.rows)

    @property
    def n_params(self) -> int:
        """Number of federated parameters, m."""
        return sum(self.sizes)

    @property
    def feature_width(self) -> int:
        """Number of features of a row, d; 0 if the model has none."""
        try:
            return feature_width(self.module)
        except TrainingError:
            return 0

    @cached_property
    def threads(self) -> int:
        """Number of CPU threads that compute a step, chosen once, by a forward pass of the new model if need be."""
        batch = min(self.settings.batch_size, len(self.rows))
        with task_code(type(self.task), "a forward pass"):
            return choose_threads(self.settings.threads, lambda: batch * multiply_adds(self.module, self.rows.features))

    def initial_model(self) -> Vector:
        """Return the first model of the run, float32 (m,): a function of the run's seed alone."""
        return model_to_vector(build_model(self.task, derive_seed(self._seed, "model")))

    def round_seed(self, run_id: str, round_number: int, *purpose: str) -> Seed:
        """Return the seed of this site's random choices for a purpose in a round; it is the same at every attempt."""
        return round_seed(self._draws_from, self.site, run_id, round_number, *purpose)

    def labelled_rows(self, purpose: str = "to train on") -> Samples:
        """Return the rows with their labels; ``purpose`` ends the message of the error.

        Raises:
            TrainingError: the rows have no labels.
        """
        if isinstance(self.rows, Unlabelled):
            raise TrainingError(f"{self.site}: its {len(self.rows)} rows have no labels {purpose}")
        return self.rows

    def prepare_to_train(self, run_id: str, round_number: int) -> None:
        """Set the threads, and the running statistics that this site had before the round."""
        torch.set_num_threads(self.threads)
        self._statistics.recall(run_id, round_number)

    def keep_statistics(self, run_id: str, round_number: int) -> None:
        """Keep the running statistics as the training of a round has left them."""
        self._statistics.keep(run_id, round_number)

    def prepare_to_evaluate(self, vector: Vector) -> None:
        """Set the threads, the parameters to ``vector``, float32 (m,), and the running statistics that go with it."""
        torch.set_num_threads(self.threads)
        vector_to_model(vector, self.module)
        self._statistics.estimate(vector)

    def evaluate(self, vector: Vector, data: Samples) -> Evaluation:
        """Return loss and metrics of a model, float32 (m,), over ``data``, with this site's :meth:`statistics`."""
        self.prepare_to_evaluate(vector)
        return evaluate(self.task, self.module, data)

    def statistics(self, vector: Vector) -> dict[str, Statistic]:
        """Return the running statistics for this site's evaluation of a model, float32 (m,), by their names in PyTorch.

        They are computed from this site's training rows, see :func:`estimate_statistics`. Empty without BatchNorm.
        """
        if not running_statistics(self.module):
            return {}
        self.prepare_to_evaluate(vector)
        return {name: buffer.cpu().numpy().copy() for name, buffer in running_statistics(self.module).items()}
