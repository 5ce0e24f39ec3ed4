"""What the processes of one measurement agree on.

The machine that figures were measured on.

What a process takes of the machine's memory and of its processors, as Linux counts it.
"""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from securefda.errors import ConfigError
from securefda.heap import give_free_memory_back
from securefda.parse import json_value
from securefda.protocol.checks import default_threshold

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


K_MIN = 2
CLIP = 1.0
SAMPLES = 1000
"""Rows that every source claims, which is also the unit of the weights."""

MOST_IN_PROCESSES = 120_000_000
"""Parameters of all sources up to which each is a real process: at about seven vectors each, 3.4 GB of memory."""

TARGET = "target"
KITS = "kits"


@dataclass(frozen=True, slots=True)
class Job:
    """The size of the federation that is measured.

    Attributes:
        folder: scratch folder, with the startup kits below ``kits/``.
        sources: N.
        params: m.
        dropped: D, the sources that leave after R1 of every masked session: the last ones of the roster.
    """

    folder: str
    sources: int
    params: int
    dropped: int

    def __post_init__(self) -> None:
        survivors, threshold = self.sources - self.dropped, default_threshold(self.sources, K_MIN, 0)
        if survivors < threshold:
            raise ConfigError(
                "--dropped",
                f"{self.dropped} of {self.sources} sources leave {survivors}, and a session needs {threshold}",
                hint=f"drop at most {self.sources - threshold}",
            )

    @property
    def threshold(self) -> int:
        """t of its sessions."""
        return default_threshold(self.sources, K_MIN, 0)

    @property
    def fits_processes(self) -> bool:
        """Whether this machine is asked to hold all sources' vectors at the same time."""
        return self.sources * self.params <= MOST_IN_PROCESSES

    @property
    def usual_repeats(self) -> int:
        """How often such a session is measured by default: what takes minutes once."""
        return 5 if self.sources * self.params <= MOST_IN_PROCESSES // 4 else 3 if self.fits_processes else 1

    @property
    def site_ids(self) -> list[str]:
        """Ids of the sources, in roster order."""
        return [f"source-{number}" for number in range(1, self.sources + 1)]

    @property
    def leaving(self) -> list[str]:
        """Ids of the sources that leave."""
        return self.site_ids[self.sources - self.dropped :]

    @property
    def kits(self) -> Path:
        """Folder of the startup kits."""
        return Path(self.folder) / KITS

    def to_json(self) -> str:
        """As it is handed to a process."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """What :meth:`to_json` wrote.

        Raises:
            ConfigError: it is anything else.
        """
        try:
            return cls(**json_value(text))
        except (ValueError, TypeError) as error:
            raise ConfigError("job", "is not what `securefda bench secagg` hands to its processes") from error


def update_of(site_id: str, params: int) -> NDArray[np.float32]:
    """The random vector that stands for a source's training, float32 (params,), within half the clip."""
    generator: Any = np.random.default_rng(int.from_bytes(site_id.encode(), "big"))
    vector: NDArray[np.float32] = generator.random(params, dtype=np.float32)
    vector -= np.float32(0.5)
    return vector
