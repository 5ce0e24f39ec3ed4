"""Every test run is recorded against the threat register, and computes on one thread per process."""

from __future__ import annotations

import os
import signal

# Before torch and numpy are imported, here and in the processes that tests start: models of tests are small, and
# several workers share the cores.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")

# A shell makes what it starts in the background deaf to Ctrl-C, and so the processes that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["threat_model.recorder"]
