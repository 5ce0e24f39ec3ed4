"""A guard around a task's own code: what it raises or returns wrongly becomes a one-line error that says where."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from securefda.errors import DataError, SecureFdaError

OTHER_DEVICE = 'set training.device = "cpu", or choose another GPU by the variable CUDA_VISIBLE_DEVICES'
"""Hint for a GPU that cannot be used or is full."""


@contextmanager
def task_code(task: type, doing: str) -> Iterator[None]:
    """Run a block of a task's code, or of torch on its behalf.

    Args:
        task: its class.
        doing: what the block does, for the message: ``"train_data"``, ``"training"``.

    Raises:
        DataError: the block raised something else than a SecureFdaError. The message, of which other sites may hear,
            names exception and place, or says that a GPU's memory is full; the exception's own words, which may quote
            a row, are in the hint alone.
    """
    try:
        yield
    except SecureFdaError:
        raise
    except torch.OutOfMemoryError as error:
        raise DataError(
            f"task {task.__name__}",
            f"{doing} takes more memory than the GPU has free",
            hint=f"lower training.batch-size, {OTHER_DEVICE}; it says: {' '.join(str(error).split())}",
        ) from error
    except Exception as error:
        words = " ".join(str(error).split())
        raise DataError(
            f"task {task.__name__}",
            f"{doing} raised {type(error).__name__} ({_place(task, error)})",
            hint=f"it says: {words}" if words else "",
        ) from error


def _place(task: type, error: Exception) -> str:
    """Return the last line of the task's own module that led to the error, else the line that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    module = getattr(sys.modules.get(task.__module__), "__file__", None)
    frame = next((frame for frame in reversed(frames) if frame.filename == module), frames[-1])
    return f"{Path(frame.filename).name}, line {frame.lineno}"
