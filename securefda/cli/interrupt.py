"""Ctrl-C or SIGTERM during a run."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from securefda.errors import SecureFdaError


class RunInterruptedError(SecureFdaError):
    """Somebody pressed Ctrl-C, or asked the process to end."""


@contextmanager
def interruptible(out: Path) -> Iterator[None]:
    """Make Ctrl-C or SIGTERM during a run an error that says what is left of it."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        raise RunInterruptedError("interrupted", hint=f"every finished round is in {out}") from None
    finally:
        signal.signal(signal.SIGTERM, before)
