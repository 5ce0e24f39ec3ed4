"""The ``securefda`` command."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from securefda.cli import entry

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with ``arguments``, by default the process's own, and return its exit code."""
    if arguments is not None:
        return entry.run(arguments)
    code = entry.run(sys.argv[1:])
    # End the process at once where a thread still trains: it cannot be stopped, and Python would abort over it
    offload = sys.modules.get("securefda.transport.event_loop")
    if offload is not None and offload.work_goes_on():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code
