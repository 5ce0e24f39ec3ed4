"""What a session of neighbours costs beside one of the complete graph, in processor time of both sides.

    python benchmarks/many_sources.py --measure    measure all sizes (half an hour), write many_sources.json
    python benchmarks/many_sources.py [--check]    print the tables from many_sources.json

Whole sessions of the state machines, every message as bytes, with a tenth of the sources lost after R1; no transport.
At N = 5000 a few sources are measured on real messages, and the aggregator is extrapolated. ``--check`` ends with 1
where a bound does not hold.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from many_sources_runs import sampled_sources
from studies import markdown, of_bounds, this_machine

from securefda.bench.secagg.crowd import STEPS
from securefda.bench.secagg.job import Job
from securefda.bench.secagg.session import measured_session, session_figures
from securefda.protocol import roster
from securefda.transport import wire

FIGURES = Path(__file__).parent / "many_sources.json"
PARAMS = 10_000
WHOLE = ((100, None, 3), (300, None, 1), (500, 25, 1), (1000, 50, 1))
"""Sources, colluders (None: the complete graph) and repeats of whole sessions."""
SAMPLED, SAMPLE = (5000, 250), 3
"""Sources and colluders of the session of which some sources are measured, and how many are."""
MOST_SITES = 8192
"""A roster has at most 1024 sites: for the sampled session this process lifts the limit for itself."""

OVER_COMPLETE, AGGREGATOR_S, AGGREGATOR_MB = 2.0, 30.0, 1073.7
"""Bars at N = 1000: the source over that of N = 100 with the complete graph; the aggregator."""

Cell = Mapping[str, Any]


def job_of(sources: int, colluders: int | None) -> Job:
    """A session of this size, of which a tenth drops out."""
    return Job("", sources, PARAMS, sources // 10, colluders)


def described(job: Job, **figures: Any) -> dict[str, Any]:
    """A cell: the size, the graph, and figures to four digits."""
    graph = job.graph
    setting = {
        "sources": job.sources,
        "params": job.params,
        "dropped": job.dropped,
        "colluders": job.colluders,
        "neighbours": job.sources - 1 if graph is None else graph.degree,
        "shares": job.threshold if graph is None else graph.threshold,
        "load": os.getloadavg()[0],
    }
    given = setting | figures
    return {name: float(f"{one:.4g}") if isinstance(one, float) else one for name, one in given.items()}


def measure() -> dict[str, Any]:
    """Measure every size, and extrapolate the aggregator of the largest."""
    cells = []
    for sources, colluders, repeats in WHOLE:
        job = job_of(sources, colluders)
        figures = session_figures([measured_session(job) for _ in range(repeats)])
        cells.append(described(job, repeats=repeats, **figures))
        print(f"N = {sources}: {figures['source_cpu_session_ms']:.0f} ms", file=sys.stderr, flush=True)
    wire.MAX_SITES = roster.MAX_SITES = MOST_SITES
    job = job_of(*SAMPLED)
    found = sampled_sources(job, SAMPLE)
    steps = {f"source_cpu_{step}_ms": 1e3 * median(one[step] for one in found) for step in STEPS}
    whole = 1e3 * median(sum(one.values()) for one in found)
    aggregator = extrapolated(cells, SAMPLED[0])
    cells.append(described(job, sampled=SAMPLE, source_cpu_session_ms=whole, **steps, **aggregator))
    return {"machine": this_machine(), "cells": cells}


def extrapolated(cells: Sequence[Cell], sources: int) -> dict[str, float]:
    """The aggregator's processor time at another size, by the power of N that fits the two sessions of neighbours."""
    less, more = (cell for cell in cells if cell["colluders"] is not None and "sampled" not in cell)
    name = "aggregator_cpu_session_ms"
    power = math.log(more[name] / less[name]) / math.log(more["sources"] / less["sources"])
    return {f"extrapolated_{name}": more[name] * (sources / more["sources"]) ** power, "power_of_sources": power}


def tables(cells: Sequence[Cell]) -> dict[str, str]:
    """The tables as Markdown, by name."""
    heads = [f"N = {cell['sources']:,}, {'neighbours' if cell['colluders'] is not None else 'all'}" for cell in cells]
    rows = {
        "dropped; colluders assumed": lambda cell: (
            f"{'none' if 'sampled' in cell else cell['dropped']}; {cell['colluders'] or 0}"
        ),
        "others that a source deals with; holders that open a secret": lambda cell: (
            f"{cell['neighbours']}; {cell['shares']}"
        ),
        "**source: all steps, processor**": lambda cell: f"{cell['source_cpu_session_ms']:.0f} ms",
        "... over N = 100, all": lambda cell: f"{cell['source_cpu_session_ms'] / _complete(cells):.2f}",
        **{f"... {words}": _step(step) for step, words in _WORDS.items()},
        "source: messages received": lambda cell: _kilobytes(cell, "source_message_bytes_down"),
        "source: messages and masked input sent": lambda cell: _kilobytes(cell, "source_message_bytes_up"),
        "**aggregator: all steps, processor**": _aggregator,
        "... of it from the last answer to the sum": lambda cell: _seconds(cell, "aggregator_cpu_r4_open_ms"),
        "rise of the aggregator's memory": lambda cell: (
            f"{cell['aggregator_session_growth_mb']:.0f} MB" if "aggregator_session_growth_mb" in cell else "–"
        ),
        "load of the machine": lambda cell: f"{cell['load']:.1f}",
    }
    return {"session": markdown(("", *heads), [[words, *map(text, cells)] for words, text in rows.items()])}


_WORDS = {
    "r0_advertise": "header and keys",
    "r0_nonce": "roll and nonce",
    "r1_shares": "the others' keys, shares",
    "r2_open_boxes": "opening the boxes",
    "r2_masked_input": "masks",
    "r3_survivors": "lists of survivors",
    "r4_unmask": "signatures of the others",
}


def _step(step: str) -> Any:
    return lambda cell: f"{cell[f'source_cpu_{step}_ms']:.1f} ms"


def _kilobytes(cell: Cell, name: str) -> str:
    return f"{cell[name] / 1e3:.0f} kB" if name in cell else "–"


def _seconds(cell: Cell, name: str) -> str:
    return f"{cell[name] / 1e3:.1f} s" if name in cell else "–"


def _aggregator(cell: Cell) -> str:
    if "sampled" in cell:
        return f"{cell['extrapolated_aggregator_cpu_session_ms'] / 1e3:.0f} s, extrapolated"
    return _seconds(cell, "aggregator_cpu_session_ms")


def _complete(cells: Sequence[Cell]) -> float:
    """Processor time of a source at N = 100 with the complete graph."""
    (found,) = (cell["source_cpu_session_ms"] for cell in cells if (cell["sources"], cell["colluders"]) == (100, None))
    return float(found)


def misses(cells: Sequence[Cell]) -> list[str]:
    """A line for each bar that does not hold or cannot be judged."""
    due = [(sources, colluders) for sources, colluders, _ in WHOLE] + [SAMPLED]
    measured = {(cell["sources"], cell["colluders"]): cell for cell in cells}
    wrong = [f"MISSING: N = {sources}" for sources, colluders in due if (sources, colluders) not in measured]
    cell = measured.get((1000, 50))
    if wrong or cell is None:
        return wrong
    over = cell["source_cpu_session_ms"] / _complete(cells)
    if over > OVER_COMPLETE:
        wrong.append(f"MISSED: N = 1000, source over N = 100: {over:.2f}, not above {OVER_COMPLETE:g}")
    for name, bar, unit in (
        ("aggregator_cpu_session_ms", 1e3 * AGGREGATOR_S, "ms"),
        ("aggregator_session_growth_mb", AGGREGATOR_MB, "MB"),
    ):
        if cell[name] > bar:
            wrong.append(f"MISSED: N = 1000, {name}: {cell[name]:g} {unit}, not above {bar:g}")
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
