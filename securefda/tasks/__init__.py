"""Tasks: models and data of the learning problems that sites train on together."""

from securefda.tasks.base import Rows, Samples, Task, TaskSettings, Unlabelled, load_task, task_class
from securefda.tasks.disentangled import Disentangled
from securefda.tasks.inputs import Inputs, RowsOnDisk
from securefda.tasks.rows import rows_of, unlabelled_target, with_further_rows
from securefda.tasks.task_code import task_code

__all__ = [
    "Disentangled",
    "Inputs",
    "Rows",
    "RowsOnDisk",
    "Samples",
    "Task",
    "TaskSettings",
    "Unlabelled",
    "load_task",
    "rows_of",
    "task_class",
    "task_code",
    "unlabelled_target",
    "with_further_rows",
]
