"""How a masking session's cost grows with the number of sources N and of parameters m: a grid, a plot and a check.

    python benchmarks/scale.py --measure    measure the grid (about a quarter of an hour), write scale.json
    python benchmarks/scale.py [--check]    from scale.json: write scale.svg, print the tables

Every cell is ``securefda bench secagg``. ``--check`` ends with 1 where a step grows faster than the work that the
protocol gives it: N^2 shares in all, and one keystream of m words for every mask.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from studies import markdown, style, this_machine, told

from securefda.bench.secagg.secagg_bench import bench_secagg, grid_jobs

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SOURCES = (3, 10, 30, 100)
DROPPED = (0, 1, 3, 10)
PARAMS = (44_000, 1_100_000, 11_000_000)
MOST_REPEATS = 3
PROCESSES = 8
HEADROOM = 1.3
"""How much more than its work a step's cost may grow from one size to the next: caches, and a machine with others."""

HERE = Path(__file__).parent
FIGURES, PLOT = HERE / "scale.json", HERE / "scale.svg"

Cell = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a session, and the work that the protocol gives it.

    Attributes:
        name: of its figure in a cell.
        words: what it is.
        bound: its work, in words.
        shares: work that does not depend on m.
        vector: work on vectors or keystream, None where there is none.
    """

    name: str
    words: str
    bound: str
    shares: Callable[[Cell], float]
    vector: Callable[[Cell], float] | None = None

    def work(self, cell: Cell) -> list[float]:
        """Each kind of work in a cell."""
        return [one(cell) for one in (self.shares, self.vector) if one is not None]


def _each(cell: Cell) -> float:
    return float(cell["sources"])


def _squared(cell: Cell) -> float:
    """N shares of a polynomial of t coefficients at a source; N shares of each of N secrets at the aggregator."""
    return float(cell["sources"]) ** 2


def _vector(cell: Cell) -> float:
    return float(cell["params"])


def _vectors(cell: Cell) -> float:
    """At a source its N masks, at the aggregator N inputs."""
    return float(cell["sources"] * cell["params"])


def _masks_left(cell: Cell) -> float:
    """Words of keystream in the sum: a self mask of each survivor, and its mask with each source that dropped out."""
    return float((cell["sources"] - cell["dropped"]) * (cell["dropped"] + 1) * cell["params"])


STEPS = (
    Step("source_cpu_r0_advertise_ms", "source: header, R0", "N", _each),
    Step("source_cpu_r1_shares_ms", "source: key list checked, shares dealt and sealed, R1", "N²", _squared),
    Step("source_cpu_r2_open_boxes_ms", "source: boxes opened, R2", "N", _each),
    Step("source_cpu_r2_masked_input_ms", "source: encoded, masked, hashed, R2", "N, N m", _each, _vectors),
    Step("source_cpu_r3_survivors_ms", "source: survivors, R3", "N", _each),
    Step("source_cpu_r4_unmask_ms", "source: signatures checked, shares, R4", "N", _each),
    Step("aggregator_cpu_r0_key_list_ms", "aggregator: key list, R0", "N²", _squared),
    Step("aggregator_cpu_r1_shares_ms", "aggregator: boxes passed on, sum begun, R1", "N², m", _squared, _vector),
    Step("aggregator_cpu_r2_masked_inputs_ms", "aggregator: inputs hashed, added, R2", "N², N m", _squared, _vectors),
    Step("aggregator_cpu_r3_survivors_ms", "aggregator: signatures, R3", "N²", _squared),
    Step("aggregator_cpu_r4_unmask_ms", "aggregator: unmasking shares received, R4", "N²", _squared),
    Step("aggregator_cpu_r4_open_ms", "aggregator: sum opened, R4", "N², (N−D)(D+1) m", _squared, _masks_left),
)


def measure(sources: Sequence[int], dropped: Sequence[int], params: Sequence[int]) -> dict[str, Any]:
    """Measure every cell; each is named on stderr when it is done."""
    began, cells = time.monotonic(), []
    for job in grid_jobs(sources, params, dropped):
        at = time.monotonic()
        cells.append(_rounded(bench_secagg(job, repeats=min(job.usual_repeats, MOST_REPEATS), processes=PROCESSES)))
        sys.stderr.write(f"N = {job.sources}, m = {job.params}: {time.monotonic() - at:.0f} s\n")
    return {"machine": this_machine(), "minutes": round((time.monotonic() - began) / 60, 1), "cells": cells}


def _rounded(cell: Cell) -> dict[str, Any]:
    return {name: float(f"{value:.4g}") if isinstance(value, float) else value for name, value in cell.items()}


@dataclass(frozen=True, slots=True)
class Growth:
    """How a step's cost grew from one cell to a larger one.

    Attributes:
        expected: cost of the larger cell if it grew as the work does, each kind at its cost in smaller cells.
        exponent: of the cost in whichever of N and m changed.
    """

    step: Step
    before: Cell
    after: Cell
    expected: float
    exponent: float

    @property
    def is_within_bound(self) -> bool:
        """Whether the cost grew no more than the work does, with some headroom."""
        return bool(self.after[self.step.name] <= HEADROOM * self.expected)

    def __str__(self) -> str:
        cost, expected = _time(self.after[self.step.name]), _time(self.expected)
        return f"{self.step.words}: {cost} at {_sizes(self.after)}, {expected} going by {_sizes(self.before)}"


def growths(cells: Sequence[Cell]) -> list[Growth]:
    """Growth of every step between the two largest N, for each m, and between the two largest m, for the largest N.

    The largest sizes tell, since a step that takes a millisecond is mostly what it takes for nothing.
    """
    few, many = sorted({cell["sources"] for cell in cells})[-2:]
    at = {(cell["sources"], cell["params"]): cell for cell in cells}
    sizes = sorted({cell["params"] for cell in cells})
    over_n = [
        _growth(step, [at[few, size] for size in sizes], at[few, m], at[many, m], "sources")
        for m in sizes
        for step in STEPS
    ]
    known, largest = [at[many, size] for size in sizes[:-1]], at[many, sizes[-1]]
    return over_n + [_growth(step, known, known[-1], largest, "params") for step in STEPS]


def _growth(step: Step, known: Sequence[Cell], before: Cell, after: Cell, varying: str) -> Growth:
    prices = _prices(step, known)
    expected = sum(price * work for price, work in zip(prices, step.work(after), strict=True))
    exponent = math.log(after[step.name] / before[step.name]) / math.log(after[varying] / before[varying])
    return Growth(step, before, after, expected, exponent)


def _prices(step: Step, known: Sequence[Cell]) -> list[float]:
    """Cost of a unit of each kind of work, none below zero, with the least squared relative error."""
    relative = np.array([np.array(step.work(cell)) / cell[step.name] for cell in known])
    best, least = [0.0] * relative.shape[1], math.inf
    for kinds in ([0], [1], [0, 1])[: 2 * relative.shape[1] - 1]:
        found, *_ = np.linalg.lstsq(relative[:, kinds], np.ones(len(known)), rcond=None)
        error = float(np.square(relative[:, kinds] @ found - 1).sum())
        if error < least and found.min() >= 0:
            best, least = [0.0] * relative.shape[1], error
            for kind, price in zip(kinds, found, strict=True):
                best[kind] = float(price)
    return best


_COLUMNS: tuple[tuple[str, Callable[[Cell], str]], ...] = (
    ("N", lambda cell: str(cell["sources"])),
    ("m", lambda cell: _short(cell["params"])),
    ("dropped", lambda cell: str(cell["dropped"])),
    ("source: CPU", lambda cell: _time(cell["source_cpu_session_ms"])),
    ("sends", lambda cell: _size(cell["source_message_bytes_up"])),
    ("receives", lambda cell: _size(cell["source_message_bytes_down"])),
    ("aggregator: CPU", lambda cell: _time(cell["aggregator_cpu_session_ms"])),
    ("memory", lambda cell: _megabytes(cell.get("aggregator_session_growth_mb"))),
    ("processes: session", lambda cell: _seconds(cell.get("session_s"))),
    ("a source's CPU", lambda cell: _seconds(cell.get("source_process_cpu_s"))),
    ("the aggregator's CPU", lambda cell: _seconds(cell.get("aggregator_process_cpu_s"))),
    ("its memory", lambda cell: _megabytes(cell.get("aggregator_peak_growth_mb"))),
)


def tables(cells: Sequence[Cell]) -> dict[str, str]:
    """Both tables as Markdown, by name."""
    return {"cells": cells_table(cells), "growth": growth_table(growths(cells))}


def cells_table(cells: Sequence[Cell]) -> str:
    """What one session costs each side, as Markdown."""
    rows = [
        [text(cell) for _, text in _COLUMNS]
        for cell in sorted(cells, key=lambda cell: (cell["params"], cell["sources"]))
    ]
    return markdown([name for name, _ in _COLUMNS], rows)


def growth_table(found: Sequence[Growth]) -> str:
    """Exponents of every step, as Markdown: in N at the smallest and largest m, in m at the largest N."""
    rows = []
    for step in STEPS:
        of_step = [one for one in found if one.step is step]
        told = (of_step[0], of_step[-2], of_step[-1])
        exponents = [f"{one.exponent:.2f}{'' if one.is_within_bound else ' (!)'}" for one in told]
        rows.append([step.words, step.bound, *exponents])
    return markdown(("step", "bound", "in N, small m", "in N, large m", "in m, most sources"), rows)


def _sizes(cell: Cell) -> str:
    return f"N = {cell['sources']}, m = {_short(cell['params'])}"


def _time(milliseconds: float) -> str:
    return f"{milliseconds:.3g} ms" if milliseconds < 1000 else f"{milliseconds / 1e3:.3g} s"


def _seconds(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds:.2g} s"


def _size(count: float) -> str:
    return f"{count / 1e6:.3g} MB" if count >= 1e6 else f"{count / 1e3:.3g} kB"


def _megabytes(megabytes: float | None) -> str:
    return "–" if megabytes is None else f"{megabytes:.0f} MB"


def _short(params: int) -> str:
    return f"{params / 1e6:g} M" if params >= 1_000_000 else f"{params / 1e3:g} k"


_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")
_MARKERS = ("o", "s", "^", "D")
_GUIDE: dict[str, Any] = {"color": "#777777", "linestyle": "--", "linewidth": 1}


def plot(cells: Sequence[Cell], path: Path) -> None:
    """Processor time of a session on logarithmic axes: of a source and the aggregator over N, and of both over m."""
    with mpl.rc_context(style("scale")):
        figure = Figure(figsize=(11, 4.2), layout="constrained")
        of_source, of_aggregator, over_m = figure.subplots(1, 3, sharey=True)
        _over_sources(of_source, cells, "source", 1)
        _over_sources(of_aggregator, cells, "aggregator", 2)
        _over_params(over_m, cells)
        of_source.set_ylabel("processor time of a session, seconds")
        low, high = of_source.get_ylim()
        of_source.set_ylim(low, 20 * high)  # space for the legends
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def _over_sources(axes: Axes, cells: Sequence[Cell], side: str, power: int) -> None:
    name = f"{side}_cpu_session_ms"
    for place, params in enumerate(sorted({cell["params"] for cell in cells}, reverse=True)):
        line = sorted((cell["sources"], cell[name] / 1e3) for cell in cells if cell["params"] == params)
        _line(axes, line, place, f"m = {_short(params)}")
    last, least = line[-1]
    axes.plot(*_guide(last, least / 3, power), **_GUIDE, label="∝ N²" if power == 2 else "∝ N")
    axes.set_title(f"{side}, a tenth of the N dropped")
    _finish(axes, "sources, N", sorted({cell["sources"] for cell in cells}), str)


def _over_params(axes: Axes, cells: Sequence[Cell]) -> None:
    place = 0
    for side in ("aggregator", "source"):
        for sources in (100, 10):
            name = f"{side}_cpu_session_ms"
            line = sorted((cell["params"], cell[name] / 1e3) for cell in cells if cell["sources"] == sources)
            _line(axes, line, place, f"{side}, N = {sources}")
            place += 1
    last, least = line[-1]
    axes.plot(*_guide(last, least / 3, 1), **_GUIDE, label="∝ m")
    axes.set_title("both, over the size of the model")
    _finish(axes, "parameters, m", sorted({cell["params"] for cell in cells}), _short)


def _guide(last: float, value: float, power: int) -> tuple[tuple[float, float], tuple[float, float]]:
    """One decade of a power law that ends below the last point."""
    return (last / 10, last), (value / 10**power, value)


def _line(axes: Axes, line: Sequence[tuple[float, float]], place: int, label: str) -> None:
    axes.plot(*zip(*line, strict=True), color=_COLOURS[place], marker=_MARKERS[place], markersize=4, label=label)


def _finish(axes: Axes, label: str, ticks: Sequence[int], text: Callable[[int], str]) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(list(ticks), [text(tick) for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.set_xlabel(label)
    axes.legend(loc="upper left", ncols=2, columnspacing=1, handlelength=1.5)


def main() -> int:
    """Measure where asked to, then say what was measured."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--measure", action="store_true", help="measure the grid first")
    parser.add_argument("--check", action="store_true", help="end with 1 where a step grows faster than its work")
    parser.add_argument("--figures", type=Path, default=FIGURES, help="the measured figures, JSON")
    parser.add_argument("--plot", type=Path, default=PLOT, help="where the plot goes, .svg or .png")
    given = parser.parse_args()
    if given.measure:
        given.figures.write_text(json.dumps(measure(SOURCES, DROPPED, PARAMS), indent=1) + "\n")
    cells = json.loads(given.figures.read_text())["cells"]
    plot(cells, given.plot)
    too_fast = [str(growth) for growth in growths(cells) if not growth.is_within_bound]
    return told(tables(cells), too_fast, check=given.check)


if __name__ == "__main__":
    sys.exit(main())
