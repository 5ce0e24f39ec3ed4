"""Times one evaluation of a rule and prints one JSON object.

The defaults are the setting of the paper's timing table: 10 sources, a network of 44 k parameters in 10 layers. The
paper reports 0.023 s for one FedGP aggregation on a TITAN Xp.

    python benchmarks/rule_evaluation.py [--sources 10] [--parameters 44000] [--layers 10] [--steps 10] [--runs 200]
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable

import numpy as np

from securefda.rules import ContributionSum, RoundPlan, Rule, TargetStatistics, auto_beta, contribute, fedda, fedgp

SEED = 20240517
WARM_UP_RUNS = 5


def main() -> None:
    arguments = _arguments()
    cases = _cases(arguments.sources, arguments.parameters, arguments.layers, arguments.steps)
    print(
        json.dumps(
            {
                "sources": arguments.sources,
                "parameters": arguments.parameters,
                "layers": arguments.layers,
                "target_steps": arguments.steps,
                "runs": arguments.runs,
                "numpy": np.__version__,
                "machine": platform.machine(),
                "median_ms": {name: _median_ms(call, arguments.runs) for name, call in cases.items()},
            },
            indent=2,
        )
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="time one evaluation of a rule")
    parser.add_argument("--sources", type=int, default=10)
    parser.add_argument("--parameters", type=int, default=44_000)
    parser.add_argument("--layers", type=int, default=10)
    parser.add_argument("--steps", type=int, default=10, help="steps of the target in the round")
    parser.add_argument("--runs", type=int, default=200)
    return parser.parse_args()


def _cases(sources: int, parameters: int, layers: int, steps: int) -> dict[str, Callable[[], object]]:
    generator = np.random.default_rng(SEED)
    batches = generator.normal(size=(steps, parameters)).astype(np.float32)
    target = batches.sum(axis=0, dtype=np.float64).astype(np.float32)
    updates = generator.normal(size=(sources, parameters)).astype(np.float32)
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
        "fedda": lambda: fedda(target, updates, 0.5),
        "fedgp": lambda: fedgp(target, updates, 0.5, layers=sizes),
        "round of fedda_auto": lambda: whole_round(Rule.FEDDA_AUTO),
        "round of fedgp_auto": lambda: whole_round(Rule.FEDGP_AUTO),
        "auto_beta fedgp mean-field": lambda: auto_beta(batches, updates, "fedgp", estimator="mean-field"),
        "auto_beta fedgp exact": lambda: auto_beta(batches, updates, "fedgp"),
    }


def _median_ms(call: Callable[[], object], runs: int) -> float:
    for _ in range(WARM_UP_RUNS):
        call()
    seconds = []
    for _ in range(runs):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return round(statistics.median(seconds) * 1e3, 3)


if __name__ == "__main__":
    main()
