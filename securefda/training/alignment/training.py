"""A round of training at a source that compares its features with the target's."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from securefda.protocol.encoding import Vector
from securefda.tasks import Samples, Task, task_code
from securefda.training.alignment.companion import MOST_OWN_ROWS, Aligned, Alignment, Companion
from securefda.training.device import choose_device
from securefda.training.features import features_of
from securefda.training.local import LocalResult, StepObserver, train_local
from securefda.training.seeds import Seed, derive_seed, generator_of, seeded_torch
from securefda.training.settings import TrainingSettings


def train_aligned(
    task: Task,
    model: nn.Module,
    received: Vector,
    data: Samples,
    aligned: Aligned,
    *,
    settings: TrainingSettings,
    seed: Seed,
    first: Seed,
    kept: bytes | None,
    site: str,
    fewest_steps: int = 1,
    on_step: StepObserver | None = None,
) -> tuple[LocalResult, bytes]:
    """As :func:`securefda.training.train_local`, towards features that are like the target's.

    Args:
        task: as there, and so are the others that are not named here.
        model: as there.
        received: as there.
        data: as there.
        aligned: how, and the features of the target's rows.
        settings: as there, with the weights of the losses.
        seed: as there.
        first: of the private modules' first weights.
        kept: the private modules after the site's last round; None in its first.
        site: as there.
        fewest_steps: as there.
        on_step: as there.

    Returns:
        The result, with the pull on the target's features, and the private modules, to be kept.

    Raises:
        TrainingError: as there; features of another width, or a model that does not fit the rule.
        DataError: as there.
    """
    device = choose_device(settings.device)
    with seeded_torch(first, device), task_code(type(task), "a forward pass"):
        companion = Companion(aligned, model.to(device), settings.align, data.features[:2].to(device))
    if kept is not None:
        companion.restore(kept)
    result = train_local(
        task,
        model,
        received,
        data,
        settings=settings,
        seed=seed,
        site=site,
        fewest_steps=fewest_steps,
        on_step=on_step,
        beside=companion,
    )
    own = None
    if aligned.kind is Alignment.F_DAN:
        chosen = torch.randperm(len(data), generator=generator_of(derive_seed(seed, "pull")))[:MOST_OWN_ROWS]
        own = torch.from_numpy(features_of(task, model, data.features[chosen]))
    return replace(result, pull=companion.pull(own)), companion.to_bytes()
