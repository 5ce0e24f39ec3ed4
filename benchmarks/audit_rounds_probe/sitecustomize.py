"""Loaded by every process of a measured run: times what its audit log takes, and writes it down when it ends; or has
every second block of rounds logged.

A process that never imports the round code (``securefda run`` itself) writes nothing.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any


class _Wait(MetaPathFinder):
    """Starts when the services are imported: everything that is timed or replaced exists by then."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:  # noqa: ARG002 - the finder's interface
        if fullname == "securefda.transport.event_loop":
            sys.meta_path.remove(self)
            _start()


def _start() -> None:
    sys.path.insert(0, os.environ["SECUREFDA_BENCHMARKS"])
    from audit_rounds_shares import log_by_blocks, replace  # noqa: PLC0415 - not before the services are
    from shares import Shares  # noqa: PLC0415 - found through the line above

    if block := int(os.environ["SECUREFDA_BLOCK"]):
        log_by_blocks(block)
        return
    shares = Shares(os.environ["SECUREFDA_CLOCK"])
    replace(shares)
    atexit.register(_leave, shares)


def _leave(shares: Any) -> None:
    folder = Path(os.environ["SECUREFDA_SHARES"])
    text = json.dumps({"seconds": shares.seconds, "calls": shares.calls, "command": sys.argv})
    (folder / f"{os.getpid()}.json").write_text(text)


sys.meta_path.insert(0, _Wait())
