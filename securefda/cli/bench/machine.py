"""The machine that figures were measured on."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

_CPUS = Path("/proc/cpuinfo")


def this_machine() -> dict[str, Any]:
    """What figures are to be read with; nothing in it names the machine."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9),
        "system": platform.system(),
        "python": platform.python_version(),
    }


def _processor() -> str:
    lines = _CPUS.read_text().splitlines() if _CPUS.is_file() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or "unknown")
