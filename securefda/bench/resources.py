"""The machine of a measurement, and the resources that a process uses, as Linux counts them."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

from securefda.machine import give_free_memory_back

_CPUS = Path("/proc/cpuinfo")


def this_machine() -> dict[str, Any]:
    """Describe the machine for readers of figures; nothing in it identifies the machine."""
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


_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"


def resident_bytes(field: str) -> int | None:
    """Return ``VmRSS``, the memory resident now, or ``VmHWM``, its peak; None if there is no /proc."""
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:")), None)


def cpu_seconds(process_id: int) -> float | None:
    """Return the processor time of this user's process since its start, to about 10 ms; None if there is no /proc."""
    try:
        stat = Path(f"/proc/{process_id}/stat").read_text()
    except OSError:
        return None
    user, system = stat.rpartition(")")[2].split()[11:13]  # fields 14 and 15; the name before may hold anything
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


class PeakGrowth:
    """The rise of the resident memory above its value when this was made."""

    def __init__(self) -> None:
        self._can_measure = True
        give_free_memory_back()  # or what was free before would hide what is taken now
        try:
            _CLEAR.write_text(_RESET_PEAK)
        except OSError:
            self._can_measure = False
        self._before = resident_bytes("VmRSS")

    def bytes(self) -> int | None:
        """The rise in bytes; None if the system does not report it."""
        peak = resident_bytes("VmHWM")
        if not self._can_measure or peak is None or self._before is None:
            return None
        return max(0, peak - self._before)
