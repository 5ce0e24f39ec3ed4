"""How many processor cores there are for this process."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """Return how many cores this process may run on: fewer than the machine has, where a container bounds them."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS and Windows cannot tell
        return os.cpu_count() or 1
