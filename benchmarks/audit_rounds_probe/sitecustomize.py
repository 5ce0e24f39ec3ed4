"""Loaded by every process of a measured run: times what its audit log takes, and writes it down when it ends; or has
hardly anything logged.

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
    """Starts the timing when the services are imported: everything that is timed is there then."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:  # noqa: ARG002 - the finder's interface
        if fullname == "securefda.transport.process":
            sys.meta_path.remove(self)
            _start()


def _start() -> None:
    sys.path.insert(0, os.environ["SECUREFDA_BENCHMARKS"])
    from audit_rounds_shares import Shares, log_nothing, replace  # noqa: PLC0415 - not before the services are

    if os.environ["SECUREFDA_CLOCK"] == "none":
        if os.environ["SECUREFDA_LOGGED"] == "no":
            log_nothing()
        return
    shares = Shares(os.environ["SECUREFDA_CLOCK"])
    replace(shares)
    atexit.register(_leave, shares)


def _leave(shares: Any) -> None:
    folder = Path(os.environ["SECUREFDA_SHARES"])
    text = json.dumps({"seconds": shares.seconds, "calls": shares.calls, "command": sys.argv})
    (folder / f"{os.getpid()}.json").write_text(text)


sys.meta_path.insert(0, _Wait())
