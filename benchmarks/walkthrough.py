"""How long a round of the README's walk-through takes, by hand from kits and with `securefda run`, in turns.

Four processes on one machine share its cores; torch's threads are as each process chooses them. Prints one JSON object:
seconds of a round, the median over all rounds but the first of each run, and how many of a run by hand one with
``securefda run`` takes.

    python benchmarks/walkthrough.py [--rounds 30] [--repeats 3]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from securefda.bench.machine import this_machine

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "three_hospitals.toml"
SITES = {"clinic": "aggregator", "hospital-a": "source", "hospital-b": "source", "hospital-c": "source"}
COMMAND = [sys.executable, "-m", "securefda.cli"]


def environment() -> dict[str, str]:
    """As somebody has it who has set nothing of threads."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "OPENBLAS_"))}


def call(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*COMMAND, *arguments], env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )


def finish(process: subprocess.Popen[bytes]) -> None:
    said = process.communicate()[1].decode()
    if process.returncode:
        raise SystemExit(f"error: {' '.join(map(str, process.args))}\n{said}")


def seconds_of(metrics: Path) -> float:
    """Median of a run's rounds but the first."""
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    return statistics.median(sum(line["seconds"].values()) for line in lines[1:])


def by_hand(folder: Path, rounds: int) -> float:
    kits = folder / "kits"
    finish(call("federation", "init", str(EXAMPLE), "--out", str(kits)))
    more = ("--set", f"strategy.rounds={rounds}")
    processes = [
        call(
            role, "start", "--config", str(kits / site / "local" / "settings.toml"), *(more if site == "clinic" else ())
        )
        for site, role in SITES.items()
    ]
    for process in processes:
        finish(process)
    return seconds_of(kits / "clinic" / "local" / "run" / "metrics.jsonl")


def with_run(folder: Path, rounds: int) -> float:
    finish(call("run", str(EXAMPLE), "--out", str(folder / "out"), "--set", f"strategy.rounds={rounds}"))
    return seconds_of(folder / "out" / "metrics.jsonl")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    pairs = []
    for _ in range(given.repeats):
        with tempfile.TemporaryDirectory() as hand, tempfile.TemporaryDirectory() as run:
            pairs.append((by_hand(Path(hand), given.rounds), with_run(Path(run), given.rounds)))
    hands, runs = zip(*pairs, strict=True)
    figures = {
        "by_hand_s": round(statistics.median(hands), 3),
        "securefda_run_s": round(statistics.median(runs), 3),
        "run_over_hand": round(statistics.median(run / hand for hand, run in pairs), 2),
    }
    print(json.dumps({"machine": this_machine(), **vars(given), **figures}, indent=1))


if __name__ == "__main__":
    main()
