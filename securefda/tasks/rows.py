"""Asking a task for the rows of one site: what is wrong with them is one line that names site and split."""

from __future__ import annotations

from typing import Literal

from securefda.errors import DataError
from securefda.tasks.base import Samples, Task, UnfitRows
from securefda.tasks.guard import task_code

Split = Literal["train", "test", "oracle"]
"""What a site trains on, what it holds out, and all labelled training rows of the target."""


def rows_of(task: Task, site: str, split: Split) -> Samples:
    """Return the rows of a site, from the task's ``train_data``, ``test_data`` or ``oracle_data``.

    Raises:
        DataError: they are missing or unfit, or the task's own code fails.
        ConfigError: whatever the task finds wrong with its settings.
    """
    try:
        with task_code(type(task), f"{split}_data"):
            rows: object
            if split == "oracle":
                rows = task.oracle_data()
            else:
                rows = task.train_data(site) if split == "train" else task.test_data(site)
    except UnfitRows as error:
        raise DataError(f"{site}, {split}", error.why, hint=error.hint) from error
    if not isinstance(rows, Samples):
        kind = f"a tuple of {len(rows)}" if isinstance(rows, tuple) else f"a {type(rows).__name__}"
        hint = "write: return Samples(features, labels)"
        raise DataError(f"{site}, {split}", f"{split}_data returned {kind} and no Samples", hint=hint)
    return rows
