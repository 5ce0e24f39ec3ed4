"""Digits with something in rows and options that must be in no log, or slow; named as ``operations_tasks:Class``."""

from __future__ import annotations

import dataclasses

import torch
from e2e_tasks import Endless
from torch import Tensor

from securefda.tasks.base import Samples, TaskSettings
from securefda.tasks.digits import Digits

ROW_VALUE = 0.40417731
OPTION_VALUE = "hunter2-40417"


class Planted(Endless):
    """Every row has one pixel of a value of its own; the option ``planted`` is no option of digits."""

    def __init__(self, settings: TaskSettings) -> None:
        options = {key: value for key, value in settings.options.items() if key != "planted"}
        super().__init__(dataclasses.replace(settings, options=options))

    def train_data(self, site: str) -> Samples:
        samples = super().train_data(site)
        samples.features[:, 0] = ROW_VALUE
        return samples


class Quoting(Planted):
    """Its training fails at a source with words that quote a row."""

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            raise ValueError(f"no patient is {ROW_VALUE}, labelled {labels.tolist()}, says {OPTION_VALUE}")
        return super().loss(outputs, labels)


class Slow(Digits):
    """Its rows come when two pipes in the data folder were opened: one says that it waits, the other lets it go."""

    def train_data(self, site: str) -> Samples:
        folder = self.settings.data_dir
        assert folder is not None
        (folder / "loading").write_text("")
        (folder / "go").read_text()
        return super().train_data(site)
