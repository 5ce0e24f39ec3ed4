"""A round of training at a source that compares its features with the target's."""

from __future__ import annotations

from dataclasses import replace
from typing import Unpack

import torch
from torch import nn

from securefda.protocol.encoding import Vector
from securefda.tasks import Samples, Task, task_code
from securefda.tasks.inputs import in_memory, take
from securefda.training.alignment.loss import MOST_OWN_ROWS, AlignmentLoss, AlignmentRule, FeatureAlignment
from securefda.training.device import choose_device
from securefda.training.local import LocalResult, RoundOptions, train_local
from securefda.training.model_features import extract_features
from securefda.training.parameter_vectors import vector_to_model
from securefda.training.seeds import Seed, derive_seed, new_generator, seeded_torch


def train_aligned(
    task: Task,
    model: nn.Module,
    received: Vector,
    data: Samples,
    aligned: FeatureAlignment,
    *,
    first: Seed,
    kept: bytes | None,
    **options: Unpack[RoundOptions],
) -> tuple[LocalResult, bytes]:
    """Train one round as :func:`securefda.training.train_local` does, with an alignment loss added.

    Args:
        task, model, received, data: as for ``train_local``.
        aligned: the rule and the features of the target's rows.
        first: seed of the private modules' first weights.
        kept: the private modules after the site's last round, as returned then; None in its first round.
        options: as for ``train_local``; ``settings.align`` has the weights of the losses.

    Returns:
        The result, with the pull on the target's features, and the private modules as bytes, to be kept.

    Raises:
        TrainingError: as for ``train_local``; the features have another width than the model's, or the model does not
            fit the rule.
        DataError: as for ``train_local``.
    """
    settings, seed = options["settings"], options["seed"]
    device = choose_device(settings.device)
    vector_to_model(received, model.to(device))
    spread = float(extract_features(task, model, take(data.features, slice(MOST_OWN_ROWS))).std(axis=0).mean())
    with seeded_torch(first, device), task_code(type(task), "a forward pass"):
        loss = AlignmentLoss(
            aligned, model, settings.align, in_memory(take(data.features, slice(2)), device), own_spread=spread
        )
    if kept is not None:
        loss.restore(kept)
    result = train_local(task, model, received, data, auxiliary=loss, **options)
    own = None
    if aligned.kind is AlignmentRule.F_DAN:
        chosen = torch.randperm(len(data), generator=new_generator(derive_seed(seed, "pull")))[:MOST_OWN_ROWS]
        own = torch.from_numpy(extract_features(task, model, take(data.features, chosen)))
    return replace(result, pull=loss.pull(own)), loss.to_bytes()
