"""Ctrl-C during a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from securefda.errors import SecureFdaError


class RunInterruptedError(SecureFdaError):
    """Somebody pressed Ctrl-C."""


@contextmanager
def interruptible(out: Path) -> Iterator[None]:
    """Make Ctrl-C during a run an error that says what is left of it."""
    try:
        yield
    except KeyboardInterrupt:
        raise RunInterruptedError("interrupted", hint=f"every finished round is in {out}") from None
