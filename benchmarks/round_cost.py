"""What a round costs at each level of visibility: seconds, processor time and bytes, against plain FedAvg.

    python benchmarks/round_cost.py --measure --cache FOLDER    run what FOLDER lacks, write round_cost.json
    python benchmarks/round_cost.py [--check]    from round_cost.json: write round_cost.svg, print the tables

Every run is ``securefda run``: a process for each site, mutual TLS over loopback, and a task that takes next to no time
to train on, so that what remains is protocol (`round_cost_runs.py` has the grid). Plain FedAvg is rule source_only with
updates in clear, over the same transport and with the same logs: no masks, no rule at the sources. Levels of a size
follow each other, and each ratio is to the plain run of the same repeat.

A round waits for the target and for the slowest source, so parts are what these two do; what is left is transport, and
whatever waits for a processor. ``--check`` ends with 1 where messages take more bytes than they may beside the vectors,
or where a bar of ``bars`` does not hold.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.figure import Figure
from round_cost_runs import DP, KINDS, LEVELS, PLAIN, REPEATS, SIZES, STUDY, Cell, Figures, cells, run_cell
from round_cost_task import params_of
from studies import Cache, as_text, markdown, measure, shown, style, this_machine

from securefda.aggregator.ranges import narrowest

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HERE = Path(__file__).parent
FIGURES, PLOT = HERE / "round_cost.json", HERE / "round_cost.svg"
MESSAGES_KB, MESSAGES_KB_A_SOURCE = 4.0, 1.5
"""What messages may take beside the vectors in a round, each way at one source: at all, and for every source."""
MOST_TIMES_PLAIN = {(5, 1_100_000): 1.15, (10, 100_000): 1.3, (20, 100_000): 1.5}
"""Sources and parameters -> how many times the plain round a round at ``sum`` may take."""
MOST_BYTES_A_PARAMETER = 2.6
"""Of an upload at ``sum`` with 10 sources, messages included."""

MASKED = ("cohort", "sum", DP)

Row = Mapping[str, Any]
"""One size at one level, medians over the repeats, and the ratios to the plain run of each repeat."""


def rows_of(known: Mapping[str, Mapping[str, Any]], sizes: Sequence[tuple[int, int]] = SIZES) -> list[dict[str, Any]]:
    """A row for each size and level that was measured, from figures by cell."""
    rows = []
    for sources, params in sorted(sizes, key=lambda size: (size[1], size[0])):
        for level in LEVELS:
            found = {
                repeat: known[key]
                for repeat in range(REPEATS)
                if (key := Cell(sources, params, level, repeat).key) in known
            }
            plain = {repeat: known.get(Cell(sources, params, PLAIN, repeat).key) for repeat in found}
            if found:
                rows.append({"study": STUDY, "sources": sources, "level": level} | _row(found, plain))
    return rows


def _row(found: Mapping[int, Mapping[str, Any]], plain: Mapping[int, Mapping[str, Any] | None]) -> dict[str, Any]:
    runs = list(found.values())
    pairs = [(run, beside) for repeat, run in found.items() if (beside := plain[repeat]) is not None]
    return {
        "params": runs[0]["params"],
        "repeats": len(runs),
        "seconds": _short(median(run["seconds"] for run in runs)),
        "times_plain": [round(run["seconds"] / beside["seconds"], 3) for run, beside in pairs],
        "processor": _medians(runs, "processor", ("target", "source")),
        "processor_times_plain": [round(_processor(run) / _processor(beside), 3) for run, beside in pairs],
        "target": _medians(runs, "target", KINDS),
        "source": _medians(runs, "source", KINDS),
        "bytes_up": round(median(run["bytes_up"] for run in runs)),
        "bytes_down": round(median(run["bytes_down"] for run in runs)),
        "load": _range(run["load"] for run in runs),
        "others": _range(run["others"] for run in runs),
    }


def _processor(run: Mapping[str, Any]) -> float:
    return float(run["processor"]["target"] + run["processor"]["source"])


def _medians(runs: Sequence[Mapping[str, Any]], name: str, keys: Iterable[str]) -> dict[str, float]:
    return {key: _short(median(run[name][key] for run in runs)) for key in keys}


def _range(values: Iterable[float]) -> list[float]:
    found = sorted(values)
    return [round(found[0], 1), round(found[-1], 1)]


def _short(seconds: float) -> float:
    return float(f"{seconds:.4g}")


def parts_of(row: Row) -> dict[str, float]:
    """Kind -> seconds of the way that a round waits for, and ``rest``, what the round took beside it."""
    parts = {kind: row["target"][kind] + row["source"][kind] for kind in KINDS}
    return parts | {"rest": max(0.0, row["seconds"] - sum(parts.values()))}


def misses(rows: Sequence[Row], sizes: Sequence[tuple[int, int]] = SIZES) -> list[str]:
    """A line for each requirement that does not hold or cannot be judged."""
    wrong = []
    at = {(row["sources"], row["params"], row["level"]) for row in rows}
    for sources, params in sizes:
        missing = [level for level in LEVELS if (sources, params_of(params), level) not in at]
        wrong += [f"MISSING: N = {sources}, m = {params_text(params)}, {level}" for level in missing]
    for row in rows:
        allowed = 1000 * (MESSAGES_KB + MESSAGES_KB_A_SOURCE * row["sources"])
        vectors = {"up": upload_bytes(row), "down": 4 * row["params"] * vectors_down(row["level"])}
        for way, length in vectors.items():
            more = row[f"bytes_{way}"] - length
            if not 0 <= more <= allowed:
                wrong.append(f"MISSED: {_size_of(row)}, {row['level']}: {more} bytes {way} beside the vectors")
    return wrong + [f"MISSED: {what}: {found:.3g}, at most {bar:g}" for what, found, bar in bars(rows) if found > bar]


def upload_bytes(row: Row) -> int:
    """Length of a source's vector: float32 in clear, else the words that a run with so many sources has."""
    bits = narrowest(0, row["sources"]) if row["level"] in MASKED else 32
    return math.ceil(row["params"] * bits / 8)


def bars(rows: Sequence[Row]) -> list[tuple[str, float, float]]:
    """What has a bar, in words, what was found, and the bar."""
    found = []
    for row in rows:
        size = row["sources"], round(row["params"], -4)
        if row["level"] == "sum" and row["times_plain"] and (bar := MOST_TIMES_PLAIN.get(size)):
            found.append((f"a round at sum over a plain one, {_size_of(row)}", median(row["times_plain"]), bar))
        if row["level"] == "sum" and size == (10, 100_000):
            what = f"bytes of an upload for each parameter, {_size_of(row)}"
            found.append((what, row["bytes_up"] / row["params"], MOST_BYTES_A_PARAMETER))
    return found


def vectors_down(level: str) -> int:
    """How many vectors of the model's length a source is sent: the model, and at ``sum`` the target's update."""
    return 2 if level in ("sum", DP) else 1


def tables(rows: Sequence[Row]) -> dict[str, str]:
    """Every table as Markdown, by name."""
    rounds = [row for row in rows if row["study"] == STUDY]
    made = {
        "seconds": _table(
            "seconds of a round (times plain)", rounds, lambda row: _with_ratio(row["seconds"], row["times_plain"])
        ),
        "processor": _table(
            "processor seconds, target and slowest source (times plain)",
            rounds,
            lambda row: _with_ratio(_processor(row), row["processor_times_plain"]),
        ),
        "bytes": _table(
            "kB from one source; to it", rounds, lambda row: f"{_kb(row['bytes_up'])}; {_kb(row['bytes_down'])}"
        ),
        "load": _table(
            "load; cores that other work took", rounds, lambda row: f"{_span(row['load'])}; {_span(row['others'])}"
        ),
        "parts": _parts_table(rounds),
        "bars": _bars_table(rounds),
    }
    return {name: table for name, table in made.items() if table}


def _table(title: str, rows: Sequence[Row], text: Callable[[Row], str]) -> str:
    lines = []
    for size in dict.fromkeys(_size_of(row) for row in rows):
        at = {row["level"]: row for row in rows if _size_of(row) == size}
        shown = [text(at[level]) if level in at else "–" for level in LEVELS]
        lines.append([size, *shown, _span(_range(row["repeats"] for row in at.values()))])
    return markdown((title, *LEVELS, "repeats"), lines)


def _size_of(row: Row) -> str:
    return f"N = {row['sources']}, m = {params_text(row['params'])}"


def params_text(params: int) -> str:
    """A number of parameters, roughly."""
    return f"{params / 1e6:.2g} M" if params >= 1_000_000 else f"{params / 1e3:.0f} k"


def _with_ratio(seconds: float, ratios: Sequence[float]) -> str:
    text = f"{seconds:.2f}" if seconds >= 0.1 else f"{seconds:.3f}"
    if not ratios:
        return text
    spread = f"; {min(ratios):.2g} to {max(ratios):.2g}" if len(ratios) > 1 else ""
    return f"{text} ({median(ratios):.2f}{spread})"


def _kb(count: float) -> str:
    return f"{count / 1e3:.1f}"


def _span(values: Sequence[float]) -> str:
    low, high = values
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"


def _bars_table(rows: Sequence[Row]) -> str:
    lines = [[what, f"{value:.3g}", f"{bar:g}", "yes" if value <= bar else "no"] for what, value, bar in bars(rows)]
    return markdown(("", "measured", "bar", "holds"), lines) if lines else ""


_TITLES = {
    "training": "training",
    "dp": "DP-SGD",
    "rule": "rule, encoding",
    "masking": "masking",
    "logging": "records",
    "witnessing": "witnessing",
    "rest": "transport, rest",
}


def _parts_table(rows: Sequence[Row]) -> str:
    lines = [
        [_size_of(row), row["level"], *(f"{100 * part / row['seconds']:.0f}" for part in parts_of(row).values())]
        for row in rows
    ]
    return markdown(("% of a round", "level", *_TITLES.values()), lines)


_COLOURS = dict(zip(LEVELS, ("#333333", "#009e73", "#e69f00", "#0072b2", "#cc79a7"), strict=True))
_MARKERS = dict(zip(LEVELS, ("D", "^", "s", "o", "v"), strict=True))
_PART_COLOURS = {
    "training": "#f0e442",
    "dp": "#cc79a7",
    "rule": "#e69f00",
    "masking": "#0072b2",
    "logging": "#56b4e9",
    "witnessing": "#009e73",
    "rest": "#bbbbbb",
}
PLOTTED_SOURCES, PLOTTED_PARAMS = 5, 100_000


def plot(rows: Sequence[Row], path: Path) -> None:
    """Seconds of a round over m, over N, and what they are made of at one size."""
    rounds = [row for row in rows if row["study"] == STUDY]
    few = [row for row in rounds if row["sources"] == PLOTTED_SOURCES]
    usual = [row for row in rounds if abs(row["params"] / PLOTTED_PARAMS - 1) < 0.1]
    with mpl.rc_context(style("round_cost")):
        figure = Figure(figsize=(11, 3.9), layout="constrained")
        over_m, over_n, parts = figure.subplots(1, 3)
        over_n.sharey(over_m)  # before anything is drawn, so that the limits hold both
        _lines(over_m, few, "params", params_text)
        over_m.set_title(f"N = {PLOTTED_SOURCES} sources", loc="left")
        over_m.set_xlabel("parameters, m")
        over_m.set_ylabel("seconds of a round")
        _lines(over_n, usual, "sources", str)
        over_n.set_title(f"m = {params_text(PLOTTED_PARAMS)}", loc="left")
        over_n.set_xlabel("sources, N")
        _bars(parts, [row for row in usual if row["sources"] == PLOTTED_SOURCES])
        figure.legend(*over_m.get_legend_handles_labels(), loc="outside lower left", ncols=len(LEVELS))
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def _lines(axes: Axes, rows: Sequence[Row], over: str, text: Callable[[int], str]) -> None:
    for level in LEVELS:
        line = sorted((row[over], row["seconds"]) for row in rows if row["level"] == level)
        if line:
            sizes, seconds = zip(*line, strict=True)
            axes.plot(sizes, seconds, color=_COLOURS[level], marker=_MARKERS[level], markersize=4, label=level)
    ticks = sorted({row[over] for row in rows})
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(ticks, [text(tick) for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_minor_formatter(lambda value, _: f"{value:g}" if f"{value:.0e}"[0] in "25" else "")


def _bars(axes: Axes, rows: Sequence[Row]) -> None:
    """What the target and the slowest source do, one upon the other, and the rest."""
    below = [0.0] * len(rows)
    for kind, title in _TITLES.items():
        heights = [parts_of(row)[kind] for row in rows]
        axes.bar(range(len(rows)), heights, bottom=below, width=0.65, color=_PART_COLOURS[kind], label=title)
        below = [low + height for low, height in zip(below, heights, strict=True)]
    names = [row["level"].replace(" ", "\n") for row in rows]
    axes.set_xticks(range(len(rows)), names, fontsize=7)
    axes.set_title(f"N = {PLOTTED_SOURCES}, m = {params_text(PLOTTED_PARAMS)}: parts of a round", loc="left")
    axes.set_ylabel("seconds")
    axes.grid(visible=False, axis="x")
    axes.set_ylim(0, 1.35 * max(below, default=1.0))
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], labels[::-1], loc="upper left", ncols=2, fontsize=7, columnspacing=1)


def _measure(given: argparse.Namespace) -> None:
    """Run what the cache lacks, one federation at a time."""

    def done(cell: Cell, figures: Figures) -> None:
        shown = f"{figures.seconds:.3f} s, load {figures.load:.1f}, others {figures.others:.1f} cores"
        print(f"{cell.key}: {shown}", file=sys.stderr, flush=True)

    measure(1, run_cell, cells(), Cache(given.cache, "round_cost"), {}, done)


def main() -> int:
    """Measure where asked to, then say what was measured."""
    given = _arguments()
    if given.measure:
        _measure(given)
    if given.measure or given.gather:
        packages = {name: version(name) for name in ("grpcio", "cryptography", "torch")}
        rows = rows_of(Cache(given.cache, "round_cost").read())
        given.figures.write_text(as_text(rows, this_machine() | packages))
    rows = json.loads(given.figures.read_text())["rows"]
    plot(rows, given.plot)
    print(shown(tables(rows)))
    wrong = misses([row for row in rows if row["study"] == STUDY])
    print("\n".join(wrong) or "Every requirement holds.", file=sys.stderr)
    return 1 if given.check and wrong else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--measure", action="store_true", help="run what the cache lacks first")
    parser.add_argument("--gather", action="store_true", help="write the figures from the cache as it is")
    parser.add_argument("--check", action="store_true", help="end with 1 where a requirement does not hold")
    parser.add_argument("--cache", type=Path, default=Path("round-cost-cache"), help="folder for what was run already")
    parser.add_argument("--figures", type=Path, default=FIGURES, help="the measured figures, JSON")
    parser.add_argument("--plot", type=Path, default=PLOT, help="where the plot goes, .svg or .png")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
