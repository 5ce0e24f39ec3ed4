"""Where the processor time of logging goes: by work, in rounds of digits with all sites in one process.

A timer of processor time interrupts the rounds, every few milliseconds, and each sample counts the time of this thread
since the one before. Nothing is timed inside a call, so short calls count as they are. Forced writes wait more than
they compute: each is timed by the clock.

    python benchmarks/log_profile.py --measure [--rounds 300] [--repeat 3]
    python benchmarks/log_profile.py    from log_profile.json: print the table
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from studies import markdown, shown, this_machine

from securefda.local.simulator import simulate
from securefda.operations.progress import SilentReporter
from securefda.site.config import load_federation

HERE = Path(__file__).resolve().parent
FIGURES = HERE / "log_profile.json"
LEFT_OUT = 10
"""Rounds at the beginning."""
INTERVAL_S = 0.001  # the kernel rounds it up
WORKS: dict[str, dict[str, tuple[str, ...]]] = {
    "checks of signatures of kept messages": {"protocol/envelope.py": ("verify",)},
    "forced writes, and every 256th record": {"audit/log.py": ("_finish_bundle",), "log_profile.py": ("forced",)},
    "keeping messages": {"audit/journal.py": ("_keep", "keep"), "audit/kept.py": ("keep",)},
    "the record's fields, with their checks": {"audit/journal.py": ("_entry",)},
    "the record's text": {"audit/log_records.py": ("encode_record",)},
    "its time": {"audit/log_records.py": ("format_time",), "audit/journal.py": ("<lambda>",)},
    "hashing it into the tree": {"audit/merkle.py": ("append", "leaf_hash")},
    "writing it": {"audit/log.py": ("_write_tail",)},
}
"""Work -> the end of a module's path -> its functions. The innermost of them in a stack counts."""
REST = "fields of events, and calls between these"
_ENTRIES = {"audit/journal.py": ("__call__", "_entry", "_keep", "append", "event")}
"""What logging is entered by; what a recorder hands a message to, is none of it."""


def _is(frame: FrameType, places: Mapping[str, tuple[str, ...]]) -> bool:
    code = frame.f_code
    return any(code.co_filename.endswith(f"/{path}") and code.co_name in names for path, names in places.items())


def work_of(frame: FrameType | None) -> str:
    """What a stack is busy with, from its innermost frame: a work, the rest of logging, or "" for anything else."""
    found, inner = "", None
    while frame is not None:
        found = found or next((work for work, places in WORKS.items() if _is(frame, places)), "")
        if _is(frame, _ENTRIES):
            handed_on = frame.f_code.co_name == "__call__" and inner is not None and "/audit/" not in inner
            return "" if handed_on else found or REST
        inner, frame = frame.f_code.co_filename, frame.f_back
    return ""


class Samples(SilentReporter):
    """Samples the rounds of a run after the first, and times its forced writes."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.waits: list[float] = []
        self.began = self.before = 0.0
        self._sync = os.fsync

    def round_started(self, round_number: int, rounds: int) -> None:  # noqa: ARG002 - as it is called
        """Begin after the first rounds."""
        if round_number == LEFT_OUT + 1:
            os.fsync = self.forced
            signal.signal(signal.SIGPROF, self._sample)
            signal.setitimer(signal.ITIMER_PROF, INTERVAL_S, INTERVAL_S)
            self.began = self.before = time.thread_time()

    def end(self) -> float:
        """Stop, and return the processor time of the rounds that were sampled."""
        signal.setitimer(signal.ITIMER_PROF, 0)
        os.fsync = self._sync
        return time.thread_time() - self.began

    def forced(self, file: int) -> None:
        """``os.fsync``; timed for the tail of a log alone."""
        began = time.perf_counter()
        self._sync(file)
        if sys._getframe(1).f_code.co_name == "_write_tail":
            self.waits.append(time.perf_counter() - began)

    def _sample(self, _: int, frame: FrameType | None) -> None:
        now = time.thread_time()
        self.seconds[work_of(frame)] += now - self.before
        self.before = time.thread_time()  # without the time of this function


def profile(rounds: int, seed: int) -> dict[str, Any]:
    """Milliseconds a round by work, records a round, and the waits for forced writes."""
    config = load_federation(HERE.parent / "securefda" / "samples" / "digits.toml", (f"strategy.rounds={rounds}",), {})
    with tempfile.TemporaryDirectory() as folder:
        samples = Samples()
        simulate(config, Path(folder), seed, samples)
        samples.end()
        records = sum(len(list(_records(log))) for log in Path(folder).glob("**/audit/*/checkpoint"))
    counted = rounds - LEFT_OUT
    by_work = {work: 1000 * samples.seconds[work] / counted for work in (*WORKS, REST)}
    return {
        "round_ms": 1000 * sum(samples.seconds.values()) / counted,
        "records": records / rounds,
        "forced": len(samples.waits) / counted,
        "forced_ms": 1000 * sum(samples.waits) / counted,
        "by_work_ms": by_work,
    }


def _records(checkpoint: Path) -> Iterator[Any]:
    from securefda.audit.reading import open_log  # noqa: PLC0415

    return open_log(checkpoint.parent).records()


def tables(figures: Mapping[str, Any]) -> dict[str, str]:
    """What logging works, by work."""
    runs = figures["runs"]
    records = statistics.median(run["records"] for run in runs)
    of = {work: statistics.median(run["by_work_ms"][work] for run in runs) for work in runs[0]["by_work_ms"]}
    whole = sum(of.values())
    rows = [
        [work, f"{100 * ms / whole:.0f} %", f"{ms:.2f}", f"{1000 * ms / records:.1f}"]
        for work, ms in sorted(of.items(), key=lambda one: -one[1])
    ]
    rows.append(["all", "100 %", f"{whole:.2f}", f"{1000 * whole / records:.1f}"])
    return {"works": markdown(["work", "share of logging", "ms a round, all sites", "µs a record"], rows)}


def main() -> None:
    """Measure where asked to, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--figures", type=Path, default=FIGURES, help="the measured figures, JSON")
    options = parser.parse_args()
    if options.measure:
        runs = [profile(options.rounds, seed) for seed in range(options.repeat)]
        options.figures.write_text(json.dumps({"machine": this_machine(), "runs": runs}, indent=1) + "\n")
    print(shown(tables(json.loads(options.figures.read_text()))))


if __name__ == "__main__":
    main()
