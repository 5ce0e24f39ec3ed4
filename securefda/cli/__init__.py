"""The ``securefda`` command."""

from __future__ import annotations

import sys

from securefda.cli.entry import run

__all__ = ["main", "run"]


def main() -> None:
    """Run the command with the process's own arguments and end the process with its exit code."""
    sys.exit(run(sys.argv[1:]))
