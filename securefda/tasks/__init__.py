"""Tasks: models and data of the learning problems that sites train on together."""

from securefda.tasks.base import Samples, Task, TaskSettings, load_task
from securefda.tasks.guard import task_code
from securefda.tasks.rows import rows_of

__all__ = ["Samples", "Task", "TaskSettings", "load_task", "rows_of", "task_code"]
