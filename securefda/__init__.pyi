# The public names, for type checkers and editors: `__init__.py` imports each when it is first used.
from securefda.api.federation import Federation as Federation
from securefda.api.federation import load as load
from securefda.api.given_data import task_from as task_from
from securefda.api.run import Run as Run
from securefda.api.run import runs as runs
from securefda.errors import ConfigError as ConfigError
from securefda.errors import DataError as DataError
from securefda.errors import SecureFdaError as SecureFdaError
from securefda.tasks import Samples as Samples
from securefda.tasks import Task as Task
from securefda.tasks import TaskSettings as TaskSettings
from securefda.tasks import Unlabelled as Unlabelled
from securefda.tasks.classification import Classification as Classification

__all__ = [  # noqa: RUF022 - in the order in which they are needed
    "Federation",
    "load",
    "Run",
    "runs",
    "task_from",
    "Task",
    "Classification",
    "Samples",
    "Unlabelled",
    "TaskSettings",
    "SecureFdaError",
    "ConfigError",
    "DataError",
    "__version__",
]

__version__: str
