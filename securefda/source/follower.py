"""A process of a source that trains together with the one that speaks to the aggregator, and does nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Never

import torch
from torch import nn

from securefda.bootstrap import task_among, training_rows
from securefda.errors import TrainingError
from securefda.parse import toml_table
from securefda.rules import TargetLabels
from securefda.settings import parse_settings
from securefda.site.config import SourceConfig
from securefda.tasks import Samples, Task
from securefda.training import build_model, train_local
from securefda.training.seeds import derive_seed
from securefda.training.team import SystemSeed, Team, TeamGoneError, TrainingOrder, not_federated, take_gpu


def follow(team: Team) -> Never:
    """Train with the leader for as long as there is one. It reads the task's rows, and no key of the site.

    Raises:
        TeamGoneError: the leader has ended.
        TrainingError: this process failed in a step, for which the others wait.
        DataError, ConfigError: the task or its rows are unfit.
    """
    given = team.assignment()
    config = parse_settings(SourceConfig, toml_table(given.settings), file=Path("settings.toml"))
    task = task_among(config.task, given.target, given.sources, config.source.seed, TargetLabels.GIVEN)
    data = training_rows(task, given.site)
    take_gpu(config.training.device, team.rank)
    team.require_same_rows(given.site, data)
    model = build_model(task, derive_seed(config.source.seed, "model"))
    while True:
        order = team.next_order()
        torch.set_num_threads(order.threads)
        try:
            follow_order(task, model, data, order, site=given.site, team=team)
        except TeamGoneError:
            raise
        except TrainingError:
            if team.in_step:
                raise
            # The leader has met the same error, and says it.


def follow_order(task: Task, model: nn.Module, data: Samples, order: TrainingOrder, *, site: str, team: Team) -> None:
    """Take this process's part in one round, with a model that the leader's tensors make alike.

    Raises:
        TrainingError, DataError: as for ``train_local`` and ``train_private``.
    """
    own = not_federated(model)
    for name, tensor in order.others.items():
        own[name].copy_(tensor)
    if order.settings.dp is None:
        seed = SystemSeed() if order.layers_seed is None else team.layers_seed(order.layers_seed)
        train_local(task, model, order.received, data, settings=order.settings, seed=seed, site=site, team=team)
        return
    from securefda.privacy.private_training import train_private  # noqa: PLC0415 - it imports Opacus

    train_private(task, model, order.received, data, settings=order.settings, site=site, team=team)
