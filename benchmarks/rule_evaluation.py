"""Times one evaluation of a rule, for models of three sizes.

    python benchmarks/rule_evaluation.py --measure    measure each size, write rule_evaluation.json
    python benchmarks/rule_evaluation.py [--check]    print the table from rule_evaluation.json
    python benchmarks/rule_evaluation.py --one [--parameters 44000] [--runs 200] ...
                                                      measure one size, print one JSON object

The smallest size is that of the paper's timing table: 10 sources, a network of 44 k parameters in 10 layers. The paper
reports 0.023 s for one FedGP aggregation on a TITAN Xp. Each call is timed by processor time on one thread; medians.
``--check`` ends with 1 where a call takes longer than it may at the paper's size.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from securefda.rules import ContributionSum, RoundPlan, Rule, TargetStatistics, auto_beta, contribute, fedda, fedgp

FIGURES = Path(__file__).resolve().parent / "rule_evaluation.json"
SEED = 20240517
WARM_UP_RUNS = 5
RUNS = {44_000: 200, 1_100_000: 20, 11_000_000: 5}
"""Parameters -> runs of each call."""
PAPER_PARAMS, MOST_MS = 44_000, 5.0
MEAN = "mean of the updates"


def main() -> int:
    """Measure where asked to, then print."""
    given = _arguments()
    if given.one:
        print(json.dumps(_one(given), indent=2))
        return 0
    if given.measure:
        given.figures.write_text(json.dumps(_measured(), indent=1) + "\n")
    figures = json.loads(given.figures.read_text())
    print(table(figures))
    wrong = misses(figures)
    print("\n".join(wrong) or "Every bar is kept.", file=sys.stderr)
    return 1 if given.check and wrong else 0


def _measured() -> dict[str, Any]:
    """Every size in a process of its own, on one thread."""
    from studies import this_machine  # noqa: PLC0415 - with matplotlib, which a measured process does not need

    load, sizes = os.getloadavg()[0], []
    for parameters, runs in RUNS.items():
        print(f"measuring: {parameters} parameters", file=sys.stderr, flush=True)
        one = [sys.executable, __file__, "--one", "--parameters", str(parameters), "--runs", str(runs)]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        done = subprocess.run(one, check=True, capture_output=True, env=environment)
        sizes.append(json.loads(done.stdout))
    return {"machine": this_machine(), "load": round(load, 1), "sizes": sizes}


def _one(given: argparse.Namespace) -> dict[str, Any]:
    cases = _cases(given.sources, given.parameters, given.layers, given.steps)
    return {
        "sources": given.sources,
        "parameters": given.parameters,
        "layers": given.layers,
        "target_steps": given.steps,
        "runs": given.runs,
        "numpy": np.__version__,
        "median_ms": {name: _median_ms(call, given.runs) for name, call in cases.items()},
    }


def misses(figures: Mapping[str, Any]) -> list[str]:
    """A line for each call that takes too long at the paper's size, and where that was not measured."""
    found = [size["median_ms"] for size in figures["sizes"] if size["parameters"] == PAPER_PARAMS]
    if not found:
        return [f"MISSING: {PAPER_PARAMS} parameters"]
    return [f"MISSED: {name} takes {ms:g} ms: {MOST_MS:g} ms" for name, ms in found[0].items() if ms > MOST_MS]


def table(figures: Mapping[str, Any]) -> str:
    """As Markdown: a row for each call, a column for each size, with how many times the mean of the updates it is."""
    sizes: Sequence[Mapping[str, Any]] = figures["sizes"]
    head = ["processor ms of a call (times the mean)", *(f"m = {size['parameters']:,}" for size in sizes)]
    rows = []
    for name in sizes[0]["median_ms"]:
        times = [(size["median_ms"][name], size["median_ms"][MEAN]) for size in sizes]
        rows.append([name, *(f"{_short(ms)} ({ms / mean:.1f})" for ms, mean in times)])
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def _short(ms: float) -> str:
    return f"{ms:.3g}" if ms < 100 else f"{ms:,.0f}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--measure", action="store_true", help="measure first")
    parser.add_argument("--check", action="store_true", help="end with 1 where a call takes too long")
    parser.add_argument("--figures", type=Path, default=FIGURES, help="the measured figures, JSON")
    parser.add_argument("--one", action="store_true", help="measure one size here and print it")
    parser.add_argument("--sources", type=int, default=10)
    parser.add_argument("--parameters", type=int, default=PAPER_PARAMS)
    parser.add_argument("--layers", type=int, default=10)
    parser.add_argument("--steps", type=int, default=10, help="steps of the target in the round")
    parser.add_argument("--runs", type=int, default=200)
    return parser.parse_args()


def _cases(sources: int, parameters: int, layers: int, steps: int) -> dict[str, Callable[[], object]]:
    generator = np.random.default_rng(SEED)
    batches = generator.standard_normal((steps, parameters), dtype=np.float32)
    target = batches.sum(axis=0, dtype=np.float64).astype(np.float32)
    updates = generator.standard_normal((sources, parameters), dtype=np.float32)
    sizes = [len(part) for part in np.array_split(np.arange(parameters), layers)]
    target_statistics = TargetStatistics.from_batches(batches)

    def whole_round(rule: Rule) -> object:
        """All that a round's rule needs: beta and projection of every source, and their combination."""
        plan = RoundPlan(rule=rule)
        total = ContributionSum(parameters)
        for update in updates:
            part = contribute(plan, target_statistics, target, update, layers=sizes)
            total.add(part, 1.0)
        return total.combine(rule, target)

    return {
        MEAN: lambda: updates.mean(axis=0, dtype=np.float64),
        "fedda": lambda: fedda(target, updates, 0.5),
        "fedgp": lambda: fedgp(target, updates, 0.5, layers=sizes),
        "round of fedda_auto": lambda: whole_round(Rule.FEDDA_AUTO),
        "round of fedgp_auto": lambda: whole_round(Rule.FEDGP_AUTO),
        "auto_beta fedgp mean-field": lambda: auto_beta(batches, updates, "fedgp", estimator="mean-field"),
        "auto_beta fedgp exact": lambda: auto_beta(batches, updates, "fedgp"),
    }


def _median_ms(call: Callable[[], object], runs: int) -> float:
    for _ in range(WARM_UP_RUNS if runs > WARM_UP_RUNS else 1):
        call()
    seconds = []
    for _ in range(runs):
        start = time.process_time()
        call()
        seconds.append(time.process_time() - start)
    return round(statistics.median(seconds) * 1e3, 3)


if __name__ == "__main__":
    sys.exit(main())
