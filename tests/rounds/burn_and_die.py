"""A process of its own that burns two fuses and is killed; between them a copy of it comes, and ends as processes do.

Usage: burn_and_die.py STATE. Prints a line when a fuse has been burnt.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from securefda.site.policy.schema import ReleaseLimits
from securefda.source.run_book import RunBook
from securefda.source.source_store import SourceStore


def main(state: Path) -> None:
    store = SourceStore(state, RunBook(state.with_name("runs.sqlite"), ReleaseLimits()))
    os.write(1, b"begins\n")
    store.burn_fuse(bytes(16), 1)
    os.write(1, b"burnt 1\n")
    child = os.fork()
    if child == 0:
        return  # on to the end of the interpreter, where everything that is still open is closed
    os.waitpid(child, 0)
    store.burn_fuse(bytes(16), 2)
    os.write(1, b"burnt 2\n")
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
