"""The ``securefda`` command."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from securefda.cli.entry import run

__all__ = ["main", "run"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with ``arguments``, by default the process's own, and return its exit code."""
    return run(sys.argv[1:] if arguments is None else arguments)
