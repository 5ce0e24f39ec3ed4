"""Times the norm cap as one source evaluates it and prints one JSON object.

The caps are computed from the rows of all sources; the row and the scaling concern the source's own contribution.

    python benchmarks/norm_caps.py [--sources 100] [--layers 100] [--parameters 1000000] [--runs 200]
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable

import numpy as np

from securefda.rules import caps_for, contribution_norms, norm_codes, norms_of, scale_to_caps

SEED = 20240517
WARM_UP_RUNS = 5
KAPPA = 1.0


def main() -> None:
    arguments = _arguments()
    cases = _cases(arguments.sources, arguments.layers, arguments.parameters)
    print(
        json.dumps(
            {
                "sources": arguments.sources,
                "layers": arguments.layers,
                "parameters": arguments.parameters,
                "kappa": KAPPA,
                "runs": arguments.runs,
                "numpy": np.__version__,
                "machine": platform.machine(),
                "median_ms": {name: _median_ms(call, arguments.runs) for name, call in cases.items()},
            },
            indent=2,
        )
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="time the norm cap")
    parser.add_argument("--sources", type=int, default=100, help="at least 3")
    parser.add_argument("--layers", type=int, default=100)
    parser.add_argument("--parameters", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=200)
    return parser.parse_args()


def _cases(sources: int, layers: int, parameters: int) -> dict[str, Callable[[], object]]:
    generator = np.random.default_rng(SEED)
    # lognormal and wide, so that most layers have a cap
    rows = np.exp(generator.normal(scale=2, size=(sources, layers))).astype(np.float32)
    vector = generator.normal(size=parameters)
    sizes = [len(part) for part in np.array_split(np.arange(parameters), layers)]
    row = contribution_norms(vector, sizes, 0.5)
    few = max(1, sources // 2)
    limits = [100.0 * max(row.max(), rows.max())] * layers
    codes = [norm_codes(one, sizes, limits) for one in rows]

    def caps_of_codes() -> object:
        """As a source computes them from the boxes of all."""
        return caps_for([norms_of(one, sizes, limits) for one in codes], kappa=KAPPA, others=sources - 1)

    def scale() -> object:
        """Under caps that hardly change the vector, so that every run does the same work."""
        return scale_to_caps(vector, sizes, row, row * (1 - 1e-6))

    return {
        "caps": lambda: caps_for(rows, kappa=KAPPA, others=sources - 1),
        "caps, rows as codes": caps_of_codes,
        "caps, half of the others count": lambda: caps_for(rows, kappa=KAPPA, others=few),
        "row of a contribution, with its codes": lambda: norm_codes(
            contribution_norms(vector, sizes, 0.5), sizes, limits
        ),
        "scaling of a contribution": scale,
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
