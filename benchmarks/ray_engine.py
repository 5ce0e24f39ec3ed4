"""How long a suite takes on Ray, over the same suite on the local engine, on the same two cores.

    python benchmarks/ray_engine.py --measure [--turns 5] [--seeds 1] [--rules RULE,RULE] [--check]
    python benchmarks/ray_engine.py [--check]    from ray_engine.json: print the table

``securefda bench accuracy --suite digits --workers 2`` runs with the engines local and ray in turns, each from its call
to its end in an empty folder, so that the start of Ray counts. A ratio is of the two of one turn. The runs of every
turn are compared: the engines must give the same results to the last bit. Before each run the machine is watched for
two seconds: what others take of its cores is among the figures.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from round_cost_runs import Load
from studies import shown, this_machine

FIGURES = Path(__file__).with_suffix(".json")
COMMAND = (sys.executable, "-m", "securefda.cli", "bench", "accuracy", "--suite", "digits", "--quiet")
ENGINES = ("local", "ray")
WORKERS = 2
MOST_RATIO = 1.15
TURNS, FEWEST = 5, 5
_WATCHED_S = 2.0


def main() -> int:
    """Measure where asked to, and say what was measured."""
    given = _arguments()
    if given.measure:
        found = measured(given.turns, given.seeds, given.rules)
        given.figures.write_text(json.dumps(found, indent=1) + "\n")
    figures = json.loads(given.figures.read_text())
    print(shown(tables(figures)))
    wrong = misses(figures)
    print("\n".join(wrong) or "Every bar is kept.", file=sys.stderr)
    return 1 if given.check and wrong else 0


def measured(turns: int, seeds: int, rules: str) -> dict[str, Any]:
    """Turns of both engines, and whether all gave the same runs; a turn that warms the disk comes first."""
    given = ("--seeds", str(seeds), "--workers", str(WORKERS), *(("--rules", rules) if rules else ()))
    found: dict[str, Any] = {"machine": this_machine(), "seeds": seeds, "turns": []}
    first: list[str] = []
    same = True
    with tempfile.TemporaryDirectory() as name:
        for number in range(turns + 1):
            turn: dict[str, Any] = {}
            for engine in ENGINES:
                folder = Path(name) / f"{number}-{engine}"
                load = Load()
                time.sleep(_WATCHED_S)
                others = round(load.of_others(), 2)
                exposed = ["--ray-exposed"] if engine == "ray" else []
                seconds = seconds_of(*given, "--engine", engine, *exposed, "--out", str(folder))
                turn[engine] = {"seconds": round(seconds, 2), "others": others}
                runs = runs_in(folder)
                first = first or runs
                same = same and runs == first
            if number:
                found["turns"].append(turn)
            print(turn, file=sys.stderr, flush=True)
    return found | {"runs": len(first), "same": same}


def seconds_of(*arguments: str) -> float:
    """Seconds of the suite from its call to its end.

    Raises:
        RuntimeError: the command failed; what it said is in the error.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    began = time.perf_counter()
    done = subprocess.run([*COMMAND, *arguments], env=environment, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - began
    if done.returncode:
        raise RuntimeError(f"{arguments} ended with {done.returncode}:\n{done.stderr}")
    return seconds


def runs_in(folder: Path) -> list[str]:
    """The results of all runs, in an order that does not depend on which ended first."""
    return sorted((folder / "runs.jsonl").read_text().splitlines())


def ratios(figures: Mapping[str, Any]) -> list[float]:
    """Ray over local, turn by turn."""
    return [turn["ray"]["seconds"] / turn["local"]["seconds"] for turn in figures["turns"]]


def misses(figures: Mapping[str, Any]) -> list[str]:
    """A line for each bar that is missed."""
    wrong = []
    if len(figures["turns"]) < FEWEST:
        wrong.append(f"MISSED: medians of {len(figures['turns'])}, at least {FEWEST} are needed")
    if not figures["same"]:
        wrong.append("MISSED: the engines gave different results")
    if (ratio := median(ratios(figures))) > MOST_RATIO:
        wrong.append(f"MISSED: Ray takes {ratio:.2f} times the local engine's time: {MOST_RATIO:g}")
    return wrong


def tables(figures: Mapping[str, Any]) -> dict[str, str]:
    """The table as Markdown."""
    found = ratios(figures)
    cells = [str(figures["runs"])]
    for engine in ENGINES:
        seconds = [turn[engine]["seconds"] for turn in figures["turns"]]
        cells.append(f"{median(seconds):.1f} ({min(seconds):.1f} to {max(seconds):.1f})")
    cells.append(f"{median(found):.2f} ({min(found):.2f} to {max(found):.2f})")
    others = [turn[engine]["others"] for turn in figures["turns"] for engine in ENGINES]
    cells += [f"{MOST_RATIO:g}", "the same" if figures["same"] else "other ones", f"{max(others):g}"]
    head = ("runs of a suite", "local, s", "Ray, s", "Ray over local", "bar", "results", "most cores of others")
    return {"suite": "\n".join(f"| {' | '.join(row)} |" for row in (head, ("---",) * len(head), cells))}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--measure", action="store_true", help="measure first")
    parser.add_argument("--check", action="store_true", help="end with 1 where a bar is missed")
    parser.add_argument("--turns", type=int, default=TURNS, help=f"of both engines; the figures need {FEWEST}")
    parser.add_argument("--seeds", type=int, default=1, help="of the suite")
    parser.add_argument("--rules", default="", help="of the suite; default: all of it")
    parser.add_argument("--figures", type=Path, default=FIGURES, help="the measured figures, JSON")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
