"""What holds for every run of the tests: its threads, its temporary folder, Ctrl-C, and which tests it has."""

from __future__ import annotations

import gc
import os
import shutil
import signal
from pathlib import Path

import hypothesis

# Before torch and numpy are imported, here and in the processes that tests start: models of tests are small, and
# several workers share the cores.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")

# Sites force every release to the disk, thousands of times in a run of the tests. In memory that takes no time, and
# what a killed process wrote is kept there too; no test can cut a machine's power.
MEMORY = Path("/dev/shm")  # noqa: S108 - pytest makes a folder in it that is its owner's alone
has_room = os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 4 << 30
if has_room and not {"PYTEST_DEBUG_TEMPROOT", "TMPDIR"} & os.environ.keys():
    os.environ["PYTEST_DEBUG_TEMPROOT"] = str(MEMORY)

# How long an example takes says something about the machine, and nothing about the code.
hypothesis.settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any machine")

# A shell makes what it starts in the background deaf to Ctrl-C, and so the processes that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["threat_model.recorder", "depth", "processor_time"]


def pytest_collection_finish() -> None:
    """Spare the collector thousands of tests and all modules, which stay to the end."""
    gc.freeze()
