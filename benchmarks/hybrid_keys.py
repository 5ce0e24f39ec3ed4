"""What keys of X25519 and ML-KEM-768 cost beside those of X25519 alone, in turns on one machine.

    python benchmarks/hybrid_keys.py --measure    sessions of each size (some minutes), write hybrid_keys.json
    python benchmarks/hybrid_keys.py [--check]    print the table from hybrid_keys.json

All sites' state machines run each session, every message as bytes. Rounds are those of ``securefda run``, each site a
process. ``--check`` ends with 1 where a size is missing or a round costs more than `MOST`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from round_pairs import round_ms
from studies import markdown, of_bounds, this_machine

from securefda.bench.secagg.job import Job
from securefda.bench.secagg.secagg_bench import grid_jobs
from securefda.bench.secagg.session import measured_session, session_figures

FIGURES, TREE = Path(__file__).parent / "hybrid_keys.json", Path(__file__).resolve().parent.parent
PARAMS, PLAIN, HYBRID = 100_000, "x25519", "x25519-mlkem768"
Cell = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Size:
    """A session, and how often it is measured with each kind of keys."""

    sources: int
    dropped: int
    turns: int
    colluders: int | None = None

    @property
    def job(self) -> Job:
        """The session as the benchmark of sessions has it."""
        return grid_jobs([self.sources], [PARAMS], [self.dropped], self.colluders)[0]


SIZES = (Size(5, 1, 5), Size(10, 2, 5), Size(50, 5, 1, 1), Size(100, 10, 1))
PAIRS, ROUNDS, MOST = 5, 13, 1.05


def _in_turns(size: Size) -> dict[str, Any]:
    """Medians of each kind; which comes first alternates."""
    sessions: dict[str, list[Any]] = {PLAIN: [], HYBRID: []}
    for turn in range(size.turns):
        for kind in (PLAIN, HYBRID) if turn % 2 else (HYBRID, PLAIN):
            sessions[kind].append(measured_session(replace(size.job, key_agreement=kind)))
    figures: dict[str, Any] = {"sources": size.sources, "neighbours": size.job.neighbours, "turns": size.turns}
    for kind, of_kind in sessions.items():
        all_figures = session_figures(of_kind)
        figures[kind] = {
            name: float(f"{all_figures[name]:.4g}")
            for name in (
                "source_cpu_session_ms",
                "aggregator_cpu_session_ms",
                "source_message_bytes_up",
                "source_message_bytes_down",
            )
        }
    return figures


def measure() -> dict[str, Any]:
    """Measure every size."""
    cells = []
    for size in SIZES:
        cells.append(_in_turns(size))
        print(f"N = {size.sources}: {cells[-1]}", file=sys.stderr, flush=True)
    return {"machine": this_machine(), "cells": cells, "rounds": _whole_rounds(sources=10)}


def _whole_rounds(sources: int) -> dict[str, Any]:
    """Milliseconds of a round with each kind of keys, medians of runs in turns, and the median ratio of a pair."""
    found: dict[str, list[float]] = {PLAIN: [], HYBRID: []}
    for pair in range(PAIRS):
        for kind in (PLAIN, HYBRID) if pair % 2 else (HYBRID, PLAIN):
            setting = f"session.key-agreement={kind}"
            found[kind].append(round_ms(TREE, PARAMS, ROUNDS, sources=sources, settings=(setting,)))
    ratio = median(hybrid / plain for plain, hybrid in zip(found[PLAIN], found[HYBRID], strict=True))
    return {"sources": sources, "pairs": PAIRS, "ratio": ratio} | {kind: median(of) for kind, of in found.items()}


LINES = (
    ("source: processor time of a session", "source_cpu_session_ms", "{:.3g} ms", 1.0),
    ("aggregator: processor time of a session", "aggregator_cpu_session_ms", "{:.3g} ms", 1.0),
    ("source: sends", "source_message_bytes_up", "{:.1f} kB", 1e-3),
    ("source: reads, beside the model", "source_message_bytes_down", "{:.1f} kB", 1e-3),
)


def tables(figures: Mapping[str, Any]) -> dict[str, str]:
    """The tables as Markdown, by name: of each size X25519 alone, then both; and of whole rounds."""
    cells = figures["cells"]
    heads = [
        f"N = {cell['sources']}" + (f", {cell['neighbours']} neighbours" if _on_a_ring(cell) else "") for cell in cells
    ]
    lines = [f"| | {' | '.join(heads)} |", f"|---|{'---|' * len(cells)}"]
    for words, name, form, factor in LINES:
        pairs = [[form.format(factor * cell[kind][name]) for kind in (PLAIN, HYBRID)] for cell in cells]
        lines.append(f"| {words} | {' | '.join(' → '.join(pair) for pair in pairs)} |")
    rounds = figures["rounds"]
    cell = f"{rounds[PLAIN]:.0f} → {rounds[HYBRID]:.0f} ms, {rounds['ratio']:.2f} times"
    whole = markdown(("a round of processes", f"N = {rounds['sources']}"), [("all sites on two cores", cell)])
    return {"costs": "\n".join(lines), "rounds": whole}


def _on_a_ring(cell: Cell) -> bool:
    return int(cell["neighbours"]) < int(cell["sources"]) - 1


def misses(figures: Mapping[str, Any]) -> list[str]:
    """A line for each size that is missing, and for a round that costs too much."""
    there, ratio = {cell["sources"] for cell in figures["cells"]}, figures["rounds"]["ratio"]
    missing = [f"MISSING: N = {size.sources}" for size in SIZES if size.sources not in there]
    return missing + ([f"MISSED: a round takes {ratio:.3f} times as long, must be {MOST}"] if ratio > MOST else [])


def main() -> int:
    """Measure where asked to, then say what was measured."""
    return of_bounds(__doc__ or "", FIGURES, measure, tables, misses)


if __name__ == "__main__":
    sys.exit(main())
