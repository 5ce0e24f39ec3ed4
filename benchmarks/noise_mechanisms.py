"""How much noise other mechanisms would add for the same ε, beside DP-SGD: computed, nothing is trained.

    python benchmarks/noise_mechanisms.py            print the table
    python benchmarks/noise_mechanisms.py --write    and write noise_mechanisms.json

What is compared is the noise in the sum of all clipped gradients up to a step, at one site, for the schedules of
``dp_cost.py``. Its standard deviation per coordinate is given in clip norms, and for a mechanism whose steps take more
rows than DP-SGD's batches it is scaled down to a batch: the same learning, so less noise is better. Three mechanisms:

- DP-SGD: Poisson batches, fresh noise in each step, amplified by sampling.
- Banded DP-FTRL (Choquette-Choo et al., "(Amplified) Banded Matrix Factorization", NeurIPS 2023, without
  amplification): every epoch takes the same batches in the same order, so a row is in one step of each epoch. Noise is
  correlated over as many steps as an epoch has, by the Toeplitz square root of the sums (Fichtenberger, Henzinger,
  Upadhyay, ICML 2023), cut to that band. The columns of one row are then orthogonal, and its ε is that of as many
  releases by the Gaussian mechanism as there are epochs.
- All rows in every step: the Gaussian mechanism, as DP-SGD with a sampling rate of 1.

All three are accounted for by RDP with Opacus, as the ledger does.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from opacus.accountants.utils import get_noise_multiplier

FIGURES = Path(__file__).with_suffix(".json")
DELTA = 1e-5
EPSILONS = (1.0, 4.0, 8.0)

Matrix = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Schedule:
    """Of a source: one epoch in each round."""

    data: str
    steps: int
    epochs: int


SCHEDULES = (Schedule("digits", 2, 10), Schedule("Fashion-MNIST", 10, 6))


def multiplier(epsilon: float, sample_rate: float, steps: int) -> float:
    """The noise multiplier with which so many steps spend ε."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Opacus names the largest RDP order where it is the best one
        found: float = get_noise_multiplier(
            target_epsilon=epsilon, target_delta=DELTA, sample_rate=sample_rate, steps=steps, accountant="rdp"
        )
    return found


def band(steps: int, width: int) -> Matrix:
    """The Toeplitz square root of the lower triangle of ones, cut to a band, each column of norm 1; (steps, steps)."""
    coefficients = np.cumprod([1.0, *((2 * k - 1) / (2 * k) for k in range(1, width))])
    matrix = sum(
        np.diag(np.full(steps - k, coefficient), -k) for k, coefficient in enumerate(coefficients) if k < steps
    )
    return np.asarray(matrix / np.linalg.norm(matrix, axis=0))


def noise_of_sums(strategy: Matrix) -> Matrix:
    """Standard deviation of the noise in each prefix sum, at a multiplier of 1; (steps,)."""
    sums = np.tril(np.ones_like(strategy)) @ np.linalg.inv(strategy)
    return np.asarray(np.linalg.norm(sums, axis=1))


def noise_of(schedule: Schedule, epsilon: float) -> dict[str, list[float]]:
    """Mechanism -> noise in clip norms: of the sum over the whole run, and root mean square over all steps."""
    steps, rate = schedule.steps * schedule.epochs, 1 / schedule.steps
    fresh = np.sqrt(np.arange(1, steps + 1))
    mechanisms = {
        "DP-SGD": multiplier(epsilon, rate, steps) * fresh,
        "DP-FTRL": multiplier(epsilon, 1.0, schedule.epochs) * noise_of_sums(band(steps, schedule.steps)),
        "all rows": multiplier(epsilon, 1.0, steps) * rate * fresh,
    }
    return {
        name: [round(float(noise[-1]), 1), round(math.sqrt(float(np.mean(noise**2))), 1)]
        for name, noise in mechanisms.items()
    }


def computed() -> list[dict[str, Any]]:
    """A row for each schedule and ε."""
    return [
        {"data": schedule.data, "epsilon": epsilon, "noise": noise_of(schedule, epsilon)}
        for schedule in SCHEDULES
        for epsilon in EPSILONS
    ]


def tables(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The table in Markdown."""
    head = ["", "ε", *rows[0]["noise"]]
    lines = [
        [row["data"], f"{row['epsilon']:g}", *(f"{last:.1f}; {rms:.1f}" for last, rms in row["noise"].values())]
        for row in rows
    ]
    return {"noise": "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *lines))}


def main() -> int:
    """Compute, print, and write where asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help=f"write {FIGURES.name}")
    given = parser.parse_args()
    rows = computed()
    if given.write:
        FIGURES.write_text('{"rows": [\n' + ",\n".join(map(json.dumps, rows)) + "\n]}\n")
    print(tables(rows)["noise"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
