"""Tasks: models and data of the learning problems that sites train on together."""

from securefda.tasks.base import Samples, Task, TaskSettings, load_task
from securefda.tasks.guard import task_code

__all__ = ["Samples", "Task", "TaskSettings", "load_task", "task_code"]
