"""Runs the tests, keeps what they took, and says what has grown.

    python tests/run.py                       what `make test` does: the quick tests
    python tests/run.py --deep [--part N]     what `make test-deep` does: all tests in their long forms; the results go
                                              into tests/deep.json, for you to commit
    python tests/run.py --deep --next-part    what .ci/run does: the part whose turn it is, by the number of commits
    python tests/run.py --check               what `make lint` does: what has grown, how old the deep results are
    python tests/run.py --renew               with each version: growth is measured from here on

Tests of processes wait most of the time, so they have a pool of their own, with twice as many workers as cores. The
others have a worker for each core: every worker collects all tests, which in a fresh clone takes half a minute.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import secrets
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "support"))
from depth import PROCESSES, is_listed, listed  # noqa: E402 - it is where the tests have it

REPOSITORY = HERE.parent
LAST_RUN = HERE / ".last-run.json"
BASELINE = HERE / "baseline.json"
DEEP_RESULTS = HERE / "deep.json"

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
POOLS = {"memory": CORES, "processes": 2 * CORES}
PARTS = 4
BUDGET_S = 600.0
"""Processor time of `make test`, on the machine of the baseline; a third more fails `make lint`."""
GROWTH = 1.05
MOST_COMMITS = 30
LONGEST_DEEP_TEST_S = 3600
WIDTH = 31


# --- running ----------------------------------------------------------------------------------------------------------


def run_pools(options: list[str], variables: dict[str, str], shown: str) -> dict[str, Any]:
    """Run the tests of each pool in turn, and add up what they took and how they ended."""
    total: dict[str, Any] = {"status": 0, "folders": Counter(), "slow": {}, "outcomes": Counter()}
    began, before = time.monotonic(), _processor_s_of_children()
    for pool, workers in POOLS.items():
        print(f"{shown}, {pool}: {workers} workers", flush=True)
        before_pool = _processor_s_of_children()
        with tempfile.TemporaryDirectory() as folder:
            times = Path(folder) / "times.json"
            variables |= {"SECUREFDA_TEST_POOL": pool, "SECUREFDA_TEST_TIMES": str(times)}
            command = [sys.executable, "-m", "pytest", "-n", str(workers), "--dist", "worksteal", "--durations", "5"]
            status = subprocess.run(
                [*command, "-rfEs", *options], cwd=REPOSITORY, env=os.environ | variables, check=False
            ).returncode
            if not times.exists():
                raise SystemExit(status or 1)
            found = json.loads(times.read_text())
        if pool == "processes":  # most of what its tests start is waited for at the end
            found["folders"] = {PROCESSES: round(_processor_s_of_children() - before_pool, 1)}
        for name, values in found.items():
            total[name].update(values)
        nothing_to_run = status == 5
        total["status"] = max(total["status"], 0 if nothing_to_run else status)
    total["seconds"] = round(time.monotonic() - began, 1)
    total["processor_s"] = round(_processor_s_of_children() - before, 1)
    return total


def _processor_s_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def calibration_s() -> float:
    """Seconds of a fixed piece of work on every core at once, so that figures of two machines can be compared."""
    with ProcessPoolExecutor(CORES) as pool:
        return round(min(sum(pool.map(_work, range(CORES))) / CORES for _ in range(3)), 4)


def _work(number: int) -> float:
    began = time.process_time()
    for step in range(2_000_000):
        number = (31 * number + step) % 65_521
    return time.process_time() - began


def quick() -> int:
    """Run the quick tests; what they took is kept for `make lint`."""
    before = calibration_s()
    total = run_pools([], {}, "quick tests")
    machine = {"machine": _machine(), "calibration_s": (before + calibration_s()) / 2}
    LAST_RUN.write_text(json.dumps(machine | total, indent=1) + "\n")
    print(f"{total['seconds'] / 60:.1f} minutes, {total['processor_s'] / 60:.1f} minutes of processor time")
    return int(total["status"])


def deep(parts: list[int]) -> int:
    """Run parts of the deep tests in an order drawn at random; the result of each is kept in ``tests/deep.json``."""
    worst = 0
    for part in parts:
        commit, seed = _commit(), secrets.randbelow(2**32)
        variables = {"SECUREFDA_TEST_DEPTH": "deep", "SECUREFDA_TEST_PART": f"{part}/{PARTS}"}
        options = ["-p", "randomly", "--randomly-seed", str(seed), "--timeout", str(LONGEST_DEEP_TEST_S)]
        total = run_pools(options, variables, f"deep tests, part {part} of {PARTS}")
        outcomes = {name: total["outcomes"][name] for name in ("passed", "failed", "skipped")}
        times = {"minutes": total["seconds"], "processor_minutes": total["processor_s"]}
        times = {name: round(seconds / 60, 1) for name, seconds in times.items()}
        date = datetime.now(UTC).strftime("%Y-%m-%d")
        result = {"commit": commit, "date": date, **outcomes, **times, "seed": seed, "machine": _machine()}
        print(f"deep tests, part {part} of {PARTS}: {json.dumps(result)}", flush=True)
        results = _read(DEEP_RESULTS) | {str(part): result}
        DEEP_RESULTS.write_text(json.dumps(dict(sorted(results.items())), indent=1) + "\n")
        worst = max(worst, total["status"])
    return worst


def next_part() -> int:
    """The part whose turn it is: four commits in a row have all four."""
    return int(_git("rev-list", "--count", "HEAD")) % PARTS + 1


# --- what has grown ---------------------------------------------------------------------------------------------------


def lines_of() -> dict[str, int]:
    """Lines of Python by folder, without generated code."""
    lines: Counter[str] = Counter()
    for name in _git("ls-files", "*.py").splitlines():
        folder = "/".join(name.split("/")[:-1][:2])
        if (REPOSITORY / name).exists() and folder != "securefda/v1":
            lines[folder or "."] += (REPOSITORY / name).read_text(encoding="utf-8").count("\n")
    return dict(sorted(lines.items()))


def processor_s_of(run: dict[str, Any], baseline: dict[str, Any]) -> dict[str, float]:
    """Processor seconds of a quick run by folder, as the machine of the baseline would have taken them."""
    rate = baseline["calibration_s"] / run["calibration_s"] if baseline else 1.0
    folders = run["folders"] | {"start, collection, fork servers": run["processor_s"] - sum(run["folders"].values())}
    return {name: round(seconds * rate, 1) for name, seconds in folders.items()}


def check() -> int:
    """Print what there is of each folder and what has grown; 1 where `make test` lies a third above its budget."""
    baseline, run = _read(BASELINE), _read(LAST_RUN)
    columns = {"lines": lines_of(), "processor_s": processor_s_of(run, baseline) if run else {}}
    print(f"{'':{WIDTH}} {'lines':>8} {'make test, s':>13}")
    for folder in [*sorted(columns["lines"].keys() | columns["processor_s"].keys()), "in all"]:
        cells = [_cell(column, folder) for column in columns.values()]
        print(f"{folder:{WIDTH}} {cells[0]:>8} {cells[1]:>13}")
    spent = sum(columns["processor_s"].values())
    for warning in [*_grown(columns, baseline), *_slow(run, baseline), *_old()]:
        print(f"warning: {warning}", file=sys.stderr)
    if not run:
        print("note: `make test` has not run here, so nothing is known of its processor time")
    if spent > BUDGET_S * 4 / 3:
        print(f"error: make test takes {spent:.0f} s of processor time; its budget is {BUDGET_S:.0f}", file=sys.stderr)
        print("hint: tests/deep.toml lists what is left to the deep tests; add to it, or delete", file=sys.stderr)
        return 1
    return 0


def _cell(column: dict[str, Any], folder: str) -> str:
    value = sum(column.values()) if folder == "in all" else column.get(folder, "")
    return f"{value:.1f}" if isinstance(value, float) else str(value)


def _grown(columns: dict[str, dict[str, Any]], baseline: dict[str, Any]) -> list[str]:
    units = {"lines": ("{:.0f} lines", 100), "processor_s": ("{:.0f} s of make test", 5)}
    of = baseline.get("of", "")
    return [
        f"{folder} has grown from {unit.format(before)} at {of} to {unit.format(columns[name][folder])}"
        for name, (unit, least) in units.items()
        for folder, before in baseline.get(name, {}).items()
        if columns[name].get(folder, 0) > max(GROWTH * before, before + least)
    ]


def _slow(run: dict[str, Any], baseline: dict[str, Any]) -> list[str]:
    """Quick tests of clearly more than a second for which ``tests/deep.toml`` gives no reason."""
    rate, known = baseline.get("calibration_s", 1) / run.get("calibration_s", 1), listed("slow")
    slow = sorted(
        name for name, took in run.get("slow", {}).items() if took * rate > 1.5 and not is_listed(name, known)
    )
    return [f"{name} takes {run['slow'][name]} s and is quick without a reason in tests/deep.toml" for name in slow]


def _old() -> list[str]:
    results = _read(DEEP_RESULTS)
    reasons = {part: _why_run(results.get(str(part))) for part in range(1, PARTS + 1)}
    return [f"deep tests: {why}; run `make test-deep PART={part}`" for part, why in reasons.items() if why]


def _why_run(result: dict[str, Any] | None) -> str:
    if result is None:
        return "no result"
    of = f"the last run, of {result['commit'][:8]} on {result['date']},"
    if result["failed"]:
        return f"{of} had {result['failed']} failed tests"
    try:
        behind = int(_git("rev-list", "--count", f"{result['commit'].split('+')[0]}..HEAD"))
    except subprocess.CalledProcessError:
        return f"{of} is of a commit that is not in this history"
    return f"{of} is {behind} commits old" if behind > MOST_COMMITS else ""


def renew() -> int:
    """Growth is measured from this commit and the last whole quick run on."""
    run = _read(LAST_RUN)
    if not run:
        print("error: `make test` has not run here, so its processor time is not known", file=sys.stderr)
        print("hint: make test", file=sys.stderr)
        return 4
    here = {"of": _git("describe", "--always", "--tags"), "machine": run["machine"]}
    figures = {"lines": lines_of(), "calibration_s": run["calibration_s"], "processor_s": processor_s_of(run, {})}
    BASELINE.write_text(json.dumps(here | figures, indent=1) + "\n")
    return 0


# --- the rest ---------------------------------------------------------------------------------------------------------


def _read(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text())) if path.exists() else {}


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(REPOSITORY), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _commit() -> str:
    changes = _git("status", "--porcelain", "--untracked-files=no", "--", f":(exclude){DEEP_RESULTS}")
    return _git("rev-parse", "HEAD") + ("+changes" if changes else "")


def _machine() -> str:
    return f"{CORES} cores, {platform.machine()}, Python {platform.python_version()}"


def main() -> int:
    """Do what is asked; 4 outside of a git checkout, where only the quick tests run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--deep", action="store_true", help="all tests in their long forms")
    parser.add_argument("--part", type=int, choices=range(1, PARTS + 1), help="one part of the deep tests")
    parser.add_argument("--next-part", action="store_true", help="the part whose turn it is")
    parser.add_argument("--check", action="store_true", help="what has grown, and how old the deep results are")
    parser.add_argument("--renew", action="store_true", help="measure growth from here on")
    given = parser.parse_args()
    if (given.check or given.renew or given.deep) and not (REPOSITORY / ".git").exists():
        print(f"error: {REPOSITORY} is no git checkout, and results belong to a commit", file=sys.stderr)
        print("hint: clone the repository", file=sys.stderr)
        return 4
    if given.check:
        return check()
    if given.renew:
        return renew()
    if not given.deep:
        return quick()
    one = next_part() if given.next_part else given.part
    return deep([one] if one else list(range(1, PARTS + 1)))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
