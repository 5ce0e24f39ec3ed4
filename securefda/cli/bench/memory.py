"""What a process takes of the machine's memory and of its processors, as Linux counts it."""

from __future__ import annotations

import os
from pathlib import Path

from securefda.heap import give_free_memory_back

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"


def resident_bytes(field: str) -> int | None:
    """``VmRSS``, what is resident now, or ``VmHWM``, the most that was; None where there is no /proc."""
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:")), None)


def cpu_seconds(process_id: int) -> float | None:
    """Processor time of a process of this user since its start, to 10 ms or so; None where there is no /proc."""
    try:
        stat = Path(f"/proc/{process_id}/stat").read_text()
    except OSError:
        return None
    user, system = stat.rpartition(")")[2].split()[11:13]  # fields 14 and 15; the name before may hold anything
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


class PeakGrowth:
    """How far the resident memory rose above what it was when this was made."""

    def __init__(self) -> None:
        self._can_measure = True
        give_free_memory_back()  # or what was free before would hide what is taken now
        try:
            _CLEAR.write_text(_RESET_PEAK)
        except OSError:
            self._can_measure = False
        self._before = resident_bytes("VmRSS")

    def bytes(self) -> int | None:
        """The rise in bytes; None where the system does not tell."""
        peak = resident_bytes("VmHWM")
        if not self._can_measure or peak is None or self._before is None:
            return None
        return max(0, peak - self._before)
