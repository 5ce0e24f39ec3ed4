"""What one masking session costs: processor time of every step, and real processes beside a plain round.

    python benchmarks/masking_session.py --measure    measure two sizes (a few minutes), write masking_session.json
    python benchmarks/masking_session.py [--check]    print the table from masking_session.json

Each size is ``securefda bench secagg``, with words of the default width. ``--check`` ends with 1 where a bound does not
hold; those in seconds ask for a machine without other work.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from studies import markdown, of_bounds, this_machine

from securefda.bench.secagg.secagg_bench import bench_secagg, grid_jobs

FIGURES = Path(__file__).parent / "masking_session.json"
SOURCES, PARAMS, DROPPED, REPEATS = (10, 100), (1_100_000, 100_000), (2, 10), (5, 3)

Cell = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table.

    Attributes:
        words: what it is.
        text: the figure of a cell, in words.
        name: of the figure that is bounded; empty for none.
        bounds: number of sources -> bound of that figure; a lower one where ``least`` is true.
        least: whether the figure must not be below its bound, rather than not above.
    """

    words: str
    text: Callable[[Cell], str]
    name: str = ""
    bounds: Mapping[int, float] | None = None
    least: bool = False

    def holds(self, cell: Cell) -> bool:
        """Whether the cell keeps the bound, if it has one."""
        bound = (self.bounds or {}).get(cell["sources"])
        return bound is None or (cell[self.name] >= bound if self.least else cell[self.name] <= bound)


def _milliseconds(name: str) -> Callable[[Cell], str]:
    return lambda cell: f"{cell[name]:.3g} ms"


def _seconds(name: str) -> Callable[[Cell], str]:
    return lambda cell: f"{cell[name]:.2f} s" if cell[name] is not None else "–"


def _bytes(name: str) -> Callable[[Cell], str]:
    return lambda cell: f"{cell[name]:.3f} bytes"


BOTH = tuple(SOURCES)
SESSION_S = {10: 0.5, 100: 3.0}
LINES = (
    Line("bits of a parameter's word", lambda cell: str(cell["modulus_bits"])),
    Line(
        "keystream added into the vector, over the raw cipher: ≥ 70 %",
        lambda cell: f"{100 * cell['keystream_add_over_raw']:.0f} %",
        "keystream_add_over_raw",
        dict.fromkeys(BOTH, 0.7),
        least=True,
    ),
    Line(
        "source: quantise, all masks, digest, signature; processor: ≤ 30 ms",
        _milliseconds("source_cpu_r2_masked_input_ms"),
        "source_cpu_r2_masked_input_ms",
        dict.fromkeys(BOTH, 30.0),
    ),
    Line(
        "source: all steps of the session, processor: ≤ 1 s",
        _milliseconds("source_cpu_session_ms"),
        "source_cpu_session_ms",
        dict.fromkeys(BOTH, 1000.0),
    ),
    Line("... of the slowest source", _milliseconds("source_cpu_session_max_ms")),
    Line(
        "... the process of a source: transport, TLS, model and disk as well, mean of both rounds of a run",
        _seconds("source_process_cpu_s"),
    ),
    Line(
        "aggregator: from the last answer to the sum; processor: ≤ 60 ms at N = 10",
        _milliseconds("aggregator_cpu_r4_open_ms"),
        "aggregator_cpu_r4_open_ms",
        {10: 60.0},
    ),
    Line("aggregator: all steps of the session, processor", _milliseconds("aggregator_cpu_session_ms")),
    Line(
        "... its process: ≤ 20 s",
        _seconds("aggregator_process_cpu_s"),
        "aggregator_process_cpu_s",
        dict.fromkeys(BOTH, 20.0),
    ),
    Line(
        "rise of the aggregator's memory, process: ≤ 1 GiB",
        lambda cell: f"{cell['aggregator_peak_growth_mb']:.0f} MB",
        "aggregator_peak_growth_mb",
        dict.fromkeys(BOTH, 1073.7),
    ),
    Line(
        "**whole session, header to result**: ≤ 0.5 s at N = 10, ≤ 3 s at N = 100",
        _seconds("session_s"),
        "session_s",
        SESSION_S,
    ),
    Line("... of it header, model and R0 keys", _seconds("phase_r0_advertise_s")),
    Line("... R1 shares, while sources train", _seconds("phase_training_and_r1_shares_s")),
    Line("... R2 masked input", _seconds("phase_r2_masked_input_s")),
    Line("... R3 survivors", _seconds("phase_r3_survivors_s")),
    Line("... R4 unmask", _seconds("phase_r4_unmask_s")),
    Line("plain round", _seconds("plain_round_s")),
    Line("session over plain round", lambda cell: f"{cell['session_over_plain_round']:.1f}"),
    Line(
        "all that a source sends in a masked round, per parameter: ≤ 2.6 bytes at N = 10",
        _bytes("masked_upload_bytes_per_parameter"),
        "masked_upload_bytes_per_parameter",
        {10: 2.6},
    ),
    Line("... in a plain round", _bytes("plain_upload_bytes_per_parameter")),
    Line("processes of sources", lambda cell: str(cell["source_processes"])),
    Line("load of the machine, before and after", lambda cell: f"{cell['load_before']:.1f}; {cell['load_after']:.1f}"),
)


def measure() -> dict[str, Any]:
    """Measure both sizes."""
    cells = []
    for sources, params, dropped, repeats in zip(SOURCES, PARAMS, DROPPED, REPEATS, strict=True):
        [job] = grid_jobs([sources], [params], [dropped])
        figures = bench_secagg(job, repeats=repeats) | {"load_after": os.getloadavg()[0]}
        cells.append({name: float(f"{one:.4g}") if isinstance(one, float) else one for name, one in figures.items()})
        print(f"N = {sources}, m = {params}: {figures['session_s']:.2f} s", file=sys.stderr, flush=True)
    return {"machine": this_machine(), "cells": cells}


def tables(cells: Sequence[Cell]) -> dict[str, str]:
    """The table as Markdown, by name."""
    heads = [f"N = {cell['sources']}, m = {cell['params']:,}, {cell['dropped']} dropped" for cell in cells]
    rows = (
        [line.words, *(f"{line.text(cell)}{'' if line.holds(cell) else ' (!)'}" for cell in cells)] for line in LINES
    )
    return {"session": markdown(("", *heads), rows)}


def misses(cells: Sequence[Cell]) -> list[str]:
    """A line for each bound that does not hold or cannot be judged."""
    measured = [(cell["sources"], cell["params"], cell["dropped"]) for cell in cells]
    due = list(zip(SOURCES, PARAMS, DROPPED, strict=True))
    wrong = [f"MISSING: N = {n}, m = {m}, {d} dropped" for n, m, d in due if (n, m, d) not in measured]
    for cell in cells:
        wrong += [
            f"MISSED: N = {cell['sources']}, {line.words}: {line.text(cell)}" for line in LINES if not line.holds(cell)
        ]
    return wrong


def main() -> int:
    """Measure where asked to, then say what was measured."""
    return of_bounds(
        __doc__ or "",
        FIGURES,
        measure,
        lambda figures: tables(figures["cells"]),
        lambda figures: misses(figures["cells"]),
    )


if __name__ == "__main__":
    sys.exit(main())
