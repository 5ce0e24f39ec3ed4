"""Last layers that stay at their site, at the target as at every source: FedRep (Collins et al. 2021, algorithm 1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from torch import nn

from securefda.errors import ConfigError
from securefda.protocol.contribution import LocalResult
from securefda.protocol.encoding import Vector
from securefda.tasks import Samples, Task
from securefda.training.local import Evaluation, StepObserver, train_local
from securefda.training.personal import OwnRows, PersonalMemory, vector_of
from securefda.training.seeds import Seed, derive_seed
from securefda.training.settings import TrainingSettings
from securefda.training.vectors import layer_sizes, layer_table


def head_size(sizes: Sequence[int], layers: int) -> int:
    """Number of parameters in the last ``layers``.

    Raises:
        ConfigError: ``training.personal-layers``; no layer would be left.
    """
    if layers >= len(sizes):
        why = f"{layers} of the model's {len(sizes)} layers leaves none to train together"
        raise ConfigError("training.personal-layers", why, hint="a weight and a bias are one layer each; lower it")
    return sum(sizes[len(sizes) - layers :])


def train_with_head(
    task: Task,
    model: nn.Module,
    received: Vector,
    head: Vector,
    data: Samples,
    *,
    settings: TrainingSettings,
    seed: Seed,
    site: str,
    fewest_steps: int = 1,
    on_step: StepObserver | None = None,
) -> tuple[LocalResult, Vector]:
    """Train a site's head on the received body for ``head_epochs``, then the body under it for ``epochs``.

    Args:
        task, model, data, settings, seed, site, fewest_steps: as for ``train_local``; steps are those of the body.
        received: the global model, (m,) float32; where the head is, it does not matter.
        head: the site's own last parameters, float32.
        on_step: called after each step of the body.

    Returns:
        The round's result, whose update is exactly zero where the head is, whose loss is over both, and whose steps
        are the body's; and the new head.

    Raises:
        TrainingError, DataError: as for ``train_local``.
    """
    cut = len(received) - len(head)
    body, own = slice(0, cut), slice(cut, None)
    of_head = train_local(
        task,
        model,
        np.concatenate([received[body], head]),
        data,
        settings=replace(settings, epochs=settings.head_epochs),
        seed=derive_seed(seed, "head"),
        site=site,
        part=own,
    )
    head = head + of_head.update[own]
    start = np.concatenate([received[body], head])
    result = train_local(
        task,
        model,
        start,
        data,
        settings=settings,
        seed=seed,
        site=site,
        fewest_steps=fewest_steps,
        on_step=on_step,
        part=body,
    )
    return replace(result, loss=_mean_loss(of_head, result, settings)), head


def _mean_loss(of_head: LocalResult, of_body: LocalResult, settings: TrainingSettings) -> float | None:
    if of_head.loss is None or of_body.loss is None:
        return None
    rows = settings.head_epochs + settings.epochs
    return (settings.head_epochs * of_head.loss + settings.epochs * of_body.loss) / rows


class OwnHead:
    """The common body under the target's own head, which its training in the rounds keeps."""

    def __init__(self, rows: OwnRows, memory: PersonalMemory) -> None:
        self._rows, self._memory = rows, memory
        self._size = head_size(layer_sizes(layer_table(rows.model)), rows.settings.personal_layers)

    def train(self, received: Vector, run_id: str, round_number: int, factor: float) -> None:
        """Nothing: the round's own training does."""

    def evaluate(self, model: Vector, run_id: str, round_number: int, data: Samples) -> Evaluation:
        """Of the round's new body and the head that was trained in it."""
        cut = len(model) - self._size
        head = vector_of(self._memory.personal(run_id, round_number + 1), model[cut:])
        return self._rows.evaluated(np.concatenate([model[:cut], head]), data)
