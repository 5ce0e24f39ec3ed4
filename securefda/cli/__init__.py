"""The ``securefda`` command."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from securefda.cli import entry

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with ``arguments``, by default the process's own, and return its exit code."""
    return entry.run(sys.argv[1:] if arguments is None else arguments)
