"""What audit logs cost a round: the share of its wall time that writing records, and witnessing, take.

Runs a federation in this process (``simulate``: all sites one after the other, so that wall time is what all of them
work together) and times every call of the log from inside. *Logging* is every record, with forced writes, and every
kept message. *Witnessing* is what the sites do to have their logs cosigned: checkpoints, proofs, notes on the disk,
signatures and their checks; the messages that carry them are in the round, not in it. Prints one JSON object: medians
over the repetitions.

    python benchmarks/audit_rounds.py [--federation examples/digits.toml] [--repeat 5] [--check]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

from securefda.config import load_federation
from securefda.rounds.journal import Journal
from securefda.rounds.progress import SilentReporter
from securefda.rounds.run_folder import METRICS_FILE
from securefda.rounds.witness import Witness
from securefda.transport.memory import simulate

MOST_OF_A_ROUND = 0.03
LOGGING = ((Journal, "append"), (Journal, "keep"))
WITNESSING = (*((Witness, name) for name in ("renew", "show", "cosign", "take", "check_header")), (Journal, "save"))


class Shares:
    """Seconds by kind; what is called inside another kind's call counts once, as its own."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self._inner: list[float] = []

    def timed(self, kind: str, work: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, timed."""

        @wraps(work)
        def timed(*args: Any, **options: Any) -> Any:
            self._inner.append(0.0)
            began = time.perf_counter()
            try:
                return work(*args, **options)
            finally:
                whole = time.perf_counter() - began
                self.seconds[kind] += whole - self._inner.pop()
                self.calls[kind] += 1
                if self._inner:
                    self._inner[-1] += whole

        return timed


@contextmanager
def timing() -> Iterator[Shares]:
    """Time the calls of logs in this block."""
    shares, replaced = Shares(), [(kind, name, getattr(kind, name)) for kind, name in LOGGING + WITNESSING]
    for kind, name, work in replaced:
        setattr(kind, name, shares.timed("logging" if (kind, name) in LOGGING else "witnessing", work))
    try:
        yield shares
    finally:
        for kind, name, work in replaced:
            setattr(kind, name, work)


def run_once(federation: Path, seed: int) -> dict[str, float]:
    """One run: shares of the wall time of its rounds."""
    with tempfile.TemporaryDirectory() as folder, timing() as shares:
        simulate(load_federation(federation), Path(folder), seed, SilentReporter())
        lines = [json.loads(line) for line in (Path(folder) / METRICS_FILE).read_text().splitlines()]
    rounds = sum(sum(line["seconds"].values()) for line in lines)
    records = shares.calls["logging"]
    return {
        "rounds": len(lines),
        "seconds_per_round": rounds / len(lines),
        "calls_per_round": records / len(lines),
        "logging_share": shares.seconds["logging"] / rounds,
        "witnessing_share": shares.seconds["witnessing"] / rounds,
    }


def main() -> None:
    """Measure and print; with ``--check`` fail where logging takes more than its share."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--federation", type=Path, default=Path(__file__).parents[1] / "examples" / "digits.toml")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    runs = [run_once(options.federation, seed) for seed in range(options.repeat)]
    found = {key: round(statistics.median(run[key] for run in runs), 5) for key in runs[0]}
    found["logging_share_worst"] = round(max(run["logging_share"] for run in runs), 5)
    sys.stdout.write(json.dumps(found, indent=2) + "\n")
    if options.check and found["logging_share"] > MOST_OF_A_ROUND:
        sys.exit(f"logging takes {found['logging_share']:.1%} of a round, more than {MOST_OF_A_ROUND:.0%}")


if __name__ == "__main__":
    main()
