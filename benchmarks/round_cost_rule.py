"""One call of a rule at the size of the paper's timing, by wall clock and by processor time, as one JSON object.

The calls are those of ``rule_evaluation.py``. On one core that others use too, processor time is what a call would take
on a quiet one. Run by ``round_cost.py``, with one thread for the numbers.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from statistics import median

from rule_evaluation import WARM_UP_RUNS, _cases

SOURCES, PARAMS, LAYERS, STEPS = 10, 44_000, 10, 10
RUNS = 200
SHOWN = ("fedgp", "round of fedgp_auto")


def timed(call: Callable[[], object], runs: int = RUNS) -> dict[str, float]:
    """Medians of a call in milliseconds."""
    for _ in range(WARM_UP_RUNS):
        call()
    wall, processor = [], []
    for _ in range(runs):
        began, busy = time.perf_counter(), time.process_time()
        call()
        wall.append(time.perf_counter() - began)
        processor.append(time.process_time() - busy)
    return {"wall_ms": round(1e3 * median(wall), 3), "processor_ms": round(1e3 * median(processor), 3)}


def main() -> None:
    """Time the calls and print."""
    load = os.getloadavg()[0]
    cases = _cases(SOURCES, PARAMS, LAYERS, STEPS)
    calls = {name: timed(cases[name]) for name in SHOWN}
    found = {"sources": SOURCES, "params": PARAMS, "layers": LAYERS, "calls": calls, "load": round(load, 1)}
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
