"""Compares epsilon with that of Google's dp-accounting on a grid of rounds and prints a Markdown table, or JSON.

    python benchmarks/dp_accounting_grid.py [--format json] [--check]

Two comparisons, each with the relative difference (ours - theirs) / theirs: RDP against Google's RDP at the same
orders, and PRV against Google's privacy loss distributions (PLD), which are pessimistic on a grid of 1e-4. Google's
RDP adds the absolute values of an alternating series at orders that are not whole, so it may come out above ours, not
below. PRV is the upper end of an interval that is 0.02 wide, which is much of a small epsilon, so its bound is on the
difference itself. ``--check`` ends with 1 where a difference is larger than the bounds below.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import dp_accounting
from absl import logging
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from securefda.privacy.accountants import ORDERS, epsilon
from securefda.privacy.events import DpEvent

DELTAS = (1e-5, 1e-6)
SHAPES = (
    # noise multiplier, sampling rate, steps
    (0.6, 0.01, 1000),
    (0.8, 0.1, 100),
    (1.0, 0.01, 1000),
    (1.0, 0.01, 10000),
    (1.0, 0.1, 300),
    (1.5, 0.05, 2000),
    (2.0, 0.001, 10000),
    (2.0, 0.25, 200),
    (4.0, 0.02, 5000),
    (8.0, 0.1, 1000),
    (5.0, 1.0, 20),
)
RDP_ABOVE, RDP_BELOW = 1e-6, 0.02
PRV_ABOVE = 0.015


@dataclass(frozen=True, slots=True)
class Cell:
    """One point of the grid and the four epsilons."""

    noise_multiplier: float
    sampling_rate: float
    steps: int
    delta: float
    rdp: float
    google_rdp: float
    prv: float
    google_pld: float

    @property
    def rdp_difference(self) -> float:
        """Relative, of RDP."""
        return (self.rdp - self.google_rdp) / self.google_rdp

    @property
    def prv_difference(self) -> float:
        """Relative, of PRV."""
        return (self.prv - self.google_pld) / self.google_pld

    @property
    def is_within_bounds(self) -> bool:
        """Whether neither difference is larger than stated."""
        rdp_is = -RDP_BELOW <= self.rdp_difference <= RDP_ABOVE
        return rdp_is and 0 <= self.prv - self.google_pld <= PRV_ABOVE


def grid() -> Iterator[Cell]:
    """Compute every cell."""
    for noise, rate, steps in SHAPES:
        event = DpEvent("grid", 1, 0, noise, rate, steps, 1.0)
        gaussian = dp_accounting.GaussianDpEvent(noise)
        step = dp_accounting.PoissonSampledDpEvent(rate, gaussian) if rate < 1 else gaussian
        rdp, pld = RdpAccountant(list(ORDERS)), PLDAccountant()
        rdp.compose(step, steps)
        pld.compose(step, steps)
        for delta in DELTAS:
            ours = epsilon([event], delta, "rdp"), epsilon([event], delta, "prv")
            theirs = float(rdp.get_epsilon(delta)), float(pld.get_epsilon(delta))
            yield Cell(noise, rate, steps, delta, ours[0], theirs[0], ours[1], theirs[1])


def main() -> int:
    """Print the grid."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--format", choices=("txt", "json"), default="txt")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    logging.set_verbosity(logging.ERROR)  # dp-accounting says of each order that it leaves out
    with contextlib.redirect_stderr(io.StringIO()):
        cells = list(grid())
    if arguments.format == "json":
        print(json.dumps([asdict(cell) for cell in cells], indent=1))
    else:
        _print_table(cells)
    return int(arguments.check and not all(cell.is_within_bounds for cell in cells))


def _print_table(cells: list[Cell]) -> None:
    print("| noise | rate | steps | delta | RDP | Google RDP | difference | PRV | Google PLD | difference |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for cell in cells:
        shape = f"{cell.noise_multiplier:g} | {cell.sampling_rate:g} | {cell.steps} | {cell.delta:g}"
        rdp = f"{cell.rdp:.5f} | {cell.google_rdp:.5f} | {cell.rdp_difference:+.1e}"
        print(f"| {shape} | {rdp} | {cell.prv:.5f} | {cell.google_pld:.5f} | {cell.prv_difference:+.1e} |")


if __name__ == "__main__":
    sys.exit(main())
