"""Federated domain adaptation under secure aggregation.

The names in ``__all__`` are the public ones of this package. Each is imported when it is first used, so that importing
the package itself pulls in nothing heavy; ``__init__.pyi`` has them for type checkers and editors.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "1.0.0"

_HOMES = {
    "Federation": "api.federation",
    "load": "api.federation",
    "Run": "api.run",
    "runs": "api.run",
    "task_from": "api.given_data",
    "Task": "tasks",
    "Classification": "tasks.classification",
    "Samples": "tasks",
    "Unlabelled": "tasks",
    "TaskSettings": "tasks",
    "SecureFdaError": "errors",
    "ConfigError": "errors",
    "DataError": "errors",
}
__all__ = [*_HOMES, "__version__"]  # noqa: PLE0604 - names all


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
