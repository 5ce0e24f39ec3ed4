"""Requests to a task for the rows of one site; errors name site and split in one line."""

from __future__ import annotations

from typing import Literal, overload

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from securefda.errors import ConfigError, DataError
from securefda.tasks.base import Rows, Samples, Task, Unlabelled
from securefda.tasks.inputs import UnfitRows
from securefda.tasks.task_code import task_code

Split = Literal["train", "test", "oracle"]
"""The rows that a site trains on, those that it holds out, and all labelled training rows of the target."""


def rows_of(task: Task, site: str, split: Split) -> Samples:
    """Return the labelled rows of a site, from the task's ``train_data``, ``test_data`` or ``oracle_data``.

    Raises:
        DataError: they are missing, unfit or without labels, or the task's own code fails.
        ConfigError: whatever the task finds wrong with its settings.
    """
    rows = _answer(task, site, split)
    if rows is None:
        raise DataError(f"{site}, {split}", "there are no rows", hint=f"{split}_data returns Samples(features, labels)")
    if isinstance(rows, Unlabelled):
        hint = "a source trains on labelled rows alone"
        if site == task.settings.target:
            hint = 'set labels = "none" in the target\'s training settings: securefda config explain training.labels'
        raise DataError(f"{site}, {split}", f"the {len(rows)} rows have no labels", hint=hint)
    return rows


def held_out_rows(task: Task, site: str) -> Samples | None:
    """Return the rows that a site holds out, as the task gives them; None where it holds out none that has a label.

    Raises:
        DataError: they are unfit or without labels, or the task's own code fails.
        ConfigError: whatever the task finds wrong with its settings.
    """
    test = _answer(task, site, "test")
    if isinstance(test, Unlabelled):
        hint = "test_data returns Samples(features, labels), or None where no row that is held out has a label"
        raise DataError(f"{site}, test", f"the {len(test)} rows have no labels to measure a model by", hint=hint)
    return test


def unlabelled_target(task: Task) -> tuple[Rows, Samples | None]:
    """Return the training rows of a target whose labels are not used, and the test rows that have labels.

    The training rows are as the task gives them: the labels that they may have are the caller's to hide.

    Raises:
        DataError: rows are missing or unfit, or the task's own code fails.
        ConfigError: whatever the task finds wrong with its settings.
    """
    site = task.settings.target
    return _answer(task, site, "train"), held_out_rows(task, site)


def with_further_rows(task: Task, labelled: Samples) -> Unlabelled:
    """Return labelled rows of the target, and then those without labels that the task's ``unlabelled_data`` gives.

    Raises:
        ConfigError: ``training.adapt``, it gives none.
        DataError: its rows are unfit or in another form than ``labelled``, or the task's own code fails.
    """
    where, name = f"{task.settings.target}, unlabelled", type(task).__name__
    try:
        with task_code(type(task), "unlabelled_data"):
            rows: object = task.unlabelled_data()
    except UnfitRows as error:
        raise DataError(where, error.why, hint=error.hint) from error
    if rows is None:
        why = f"task {name} gives the target no rows without labels beside those with labels"
        hint = 'define unlabelled_data(self) in the task, which returns Unlabelled(features); or set it to "none"'
        raise ConfigError("training.adapt", why, hint=hint)
    if not isinstance(rows, Unlabelled):
        hint = "write: return Unlabelled(features)"
        raise DataError(where, f"unlabelled_data returned a {type(rows).__name__} and no Unlabelled", hint=hint)
    if not (isinstance(rows.features, Tensor) and isinstance(labelled.features, Tensor)):
        why = f"task {name} gives rows in several tensors or on disk, and adapting takes one tensor"
        raise ConfigError("training.adapt", why, hint='set it to "none"')
    if _form(rows) != _form(labelled):
        raise DataError(where, f"a row is {_form(rows)}, and one with a label {_form(labelled)}")
    return Unlabelled(torch.cat([labelled.features, rows.features]))


def _form(rows: Rows) -> str:
    return f"{tuple(rows.features.shape[1:])} of {rows.features.dtype}"


@overload
def _answer(task: Task, site: str, split: Literal["train", "oracle"]) -> Rows: ...
@overload
def _answer(task: Task, site: str, split: Split) -> Rows | None: ...
def _answer(task: Task, site: str, split: Split) -> Rows | None:
    try:
        with task_code(type(task), f"{split}_data"):
            rows: object
            if split == "oracle":
                rows = task.oracle_data()
            else:
                rows = task.train_data(site) if split == "train" else task.test_data(site)
            if isinstance(rows, (Dataset, DataLoader)):
                rows = Samples.of(rows)
    except UnfitRows as error:
        raise DataError(f"{site}, {split}", error.why, hint=error.hint) from error
    if rows is None and split == "test":
        return None
    if not isinstance(rows, Samples | Unlabelled):
        kind = f"a tuple of {len(rows)}" if isinstance(rows, tuple) else f"a {type(rows).__name__}"
        hint = "write: return Samples(features, labels)"
        raise DataError(f"{site}, {split}", f"{split}_data returned {kind} and no Samples", hint=hint)
    return rows
