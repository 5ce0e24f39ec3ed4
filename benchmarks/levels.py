"""What the levels of visibility cost: accuracy, seconds and bytes of every rule at each, beside the rule in clear.

    python benchmarks/levels.py --measure --data-dir DIR --cache FOLDER [--workers N]    run, write levels.json
    python benchmarks/levels.py [--check]    from levels.json: write levels.svg, print the tables

Every run is a simulated federation (`levels_runs.py` has the grid). A study that was stopped goes on where it was, with
the same folder. ``--check`` ends with 1 where an example's own caps cost a rule, with its own filter, more than they
may, over all targets and seeds, or where a sum without caps does not give the same predictions as the updates in clear.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median, stdev
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from federated import workers
from levels_runs import RULES, STUDIES, Cell, Figures, cells_of, run_cell
from matplotlib.figure import Figure
from studies import Cache, as_text, measure, shown, style, this_machine

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HERE = Path(__file__).parent
FIGURES, PLOT = HERE / "levels.json", HERE / "levels.svg"
CLEAR, PLAIN = "individual", "sum"
SAME = ("accuracies", "predictions", "model")
"""What runs of one cell at two levels are compared by: of every round, of every row, and its digest."""
LEVELS = (CLEAR, "cohort", PLAIN, "sum, caps by layer", "sum, caps on the model", "mixed")
COSTS_OF = "fedgp_auto"

Row = Mapping[str, Any]
"""A rule at a level of a study: means over targets and seeds, and the accuracies that they are made of."""


def rows_of(known: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row for each rule and level that was measured with every target, from figures by cell."""
    rows = []
    for name, study in STUDIES.items():
        cells = [cell for cell in cells_of(name) if cell.key in known]
        for rule in RULES:
            for level in LEVELS:
                found = [cell for cell in cells if (cell.rule, cell.level) == (rule, level)]
                if row := _row(found, known, study.targets):
                    rows.append({"study": name, "level": level, "rule": rule} | row)
    return rows


def _row(cells: Sequence[Cell], known: Mapping[str, Mapping[str, Any]], targets: Sequence[str]) -> dict[str, Any]:
    """Of the seeds that every target has."""
    seeds = [
        seed
        for seed in sorted({cell.seed for cell in cells})
        if {cell.target for cell in cells if cell.seed == seed} == set(targets)
    ]
    used = [(cell, known[cell.key]) for cell in cells if cell.seed in seeds]
    if not used:
        return {}
    cosines = [figures["cosine"] for _, figures in used if figures["cosine"] is not None]
    return {
        "seeds": seeds,
        "accuracies": {
            target: [round(figures["accuracy"], 2) for cell, figures in used if cell.target == target]
            for target in targets
        },
        "seconds": round(median(figures["seconds"] for _, figures in used), 4),
        "bytes": round(fmean(figures["bytes"] for _, figures in used)),
        "emptied": round(fmean(figures["zeroed"] for _, figures in used), 4),
        "scaled_down": round(fmean(figures["capped"] for _, figures in used), 4),
        "cosine": round(median(cosines), 4) if cosines else None,
        "rounds_by_rule": _added(figures["chosen"] for _, figures in used),
        "same_as_in_clear": _same(used, known),
    }


def _same(used: Iterable[tuple[Cell, Mapping[str, Any]]], known: Mapping[str, Mapping[str, Any]]) -> dict[str, int]:
    """In how many runs the accuracy of every round, the last predictions and the last model are those in clear."""
    pairs = [
        (figures, known[other])
        for cell, figures in used
        if (other := Cell(cell.study, CLEAR, cell.rule, cell.target, cell.seed).key) in known
    ]
    return {"of": len(pairs)} | {name: sum(one[name] == other[name] for one, other in pairs) for name in SAME}


def _added(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for count in counts:
        for name, number in count.items():
            total[name] = total.get(name, 0) + number
    return total


def means(row: Row) -> list[float]:
    """For each seed the mean over the targets."""
    return [fmean(values) for values in zip(*row["accuracies"].values(), strict=True)]


def misses(rows: Sequence[Row]) -> list[str]:
    """A line for every requirement that does not hold or cannot be judged."""
    found = []
    at = {(row["study"], row["rule"], row["level"]): row for row in rows}
    for name, study in STUDIES.items():
        for rule, points in study.checked.items():
            if (lost := _lost(at, name, rule)) is None:
                found.append(f"MISSING: {name}, {rule}: not all seeds at {CLEAR} and {study.capped}")
            elif lost > points:
                found.append(f"MISSED: {name}, {rule}: its caps cost {lost:.2f} points, allowed are {points:g}")
        plain = [row for row in rows if (row["study"], row["level"]) == (name, PLAIN)]
        if not any(row["same_as_in_clear"]["of"] for row in plain):
            found.append(f"MISSING: {name}: no run at {PLAIN} beside one at {CLEAR}")
        found += [
            f"MISSED: {name}, {row['rule']}: a sum without caps gives another model than updates in clear"
            for row in plain
            if any(row["same_as_in_clear"][what] < row["same_as_in_clear"]["of"] for what in SAME)
        ]
    return found


def _lost(at: Mapping[tuple[str, str, str], Row], study: str, rule: str) -> float | None:
    """Points of accuracy that the caps cost, mean over targets and seeds; None where a run is missing."""
    clear, capped = at.get((study, rule, CLEAR)), at.get((study, rule, STUDIES[study].capped))
    every = list(range(STUDIES[study].seeds))
    if clear is None or capped is None or not clear["seeds"] == capped["seeds"] == every:
        return None
    return fmean(means(clear)) - fmean(means(capped))


def tables(rows: Sequence[Row]) -> dict[str, str]:
    """Every table as Markdown, by name."""
    made = {}
    for study in STUDIES:
        if of_study := [row for row in rows if row["study"] == study]:
            made[f"{study}-accuracy"] = _accuracy_table(of_study)
            made[f"{study}-caps"] = _caps_table(of_study)
            made[f"{study}-round"] = _costs_table(of_study)
    return {name: table for name, table in made.items() if table}


def _accuracy_table(rows: Sequence[Row]) -> str:
    at = {(row["rule"], row["level"]): row for row in rows}
    lines = [f"| rule | {' | '.join(LEVELS)} |", f"|---|{'---|' * len(LEVELS)}"]
    for rule in dict.fromkeys(row["rule"] for row in rows):
        lines.append(f"| {rule} | {' | '.join(_accuracy(at.get((rule, level)), at) for level in LEVELS)} |")
    return "\n".join(lines)


def _accuracy(row: Row | None, at: Mapping[tuple[str, str], Row]) -> str:
    """Mean and standard deviation over seeds; where there are fewer seeds than in clear, what these gave there."""
    if row is None:
        return "–"
    values = means(row)
    text = f"{fmean(values):.1f}" + (f" ± {stdev(values):.1f}" if len(values) > 1 else "")
    clear = at.get((row["rule"], CLEAR))
    if clear is None or len(clear["seeds"]) <= len(values):
        return text
    same = [value for seed, value in zip(clear["seeds"], means(clear), strict=True) if seed in row["seeds"]]
    return f"{text} ({fmean(values) - fmean(same):+.1f})" if same else text


def _caps_table(rows: Sequence[Row]) -> str:
    levels = [level for level in LEVELS if any(row["level"] == level and row["scaled_down"] for row in rows)]
    if not levels:
        return ""
    at = {(row["rule"], row["level"]): row for row in rows}
    lines = [f"| emptied; scaled down, % | {' | '.join(levels)} |", f"|---|{'---|' * len(levels)}"]
    for rule in dict.fromkeys(row["rule"] for row in rows):
        lines.append(f"| {rule} | {' | '.join(_caps(at.get((rule, level))) for level in levels)} |")
    return "\n".join(lines)


def _caps(row: Row | None) -> str:
    return "–" if row is None else f"{100 * row['emptied']:.0f}; {100 * row['scaled_down']:.0f}"


def _costs_table(rows: Sequence[Row]) -> str:
    """Seconds and bytes of a round, of one rule."""
    at = {row["level"]: row for row in rows if row["rule"] == COSTS_OF}
    if not at:
        return ""
    head = [f"| {COSTS_OF}, a round | {' | '.join(LEVELS)} |", f"|---|{'---|' * len(LEVELS)}"]
    seconds = " | ".join(f"{at[level]['seconds']:.3f}" if level in at else "–" for level in LEVELS)
    sent = " | ".join(f"{at[level]['bytes'] / 1e3:.1f}" if level in at else "–" for level in LEVELS)
    return "\n".join([*head, f"| seconds | {seconds} |", f"| kB, all sources, both ways | {sent} |"])


_COLOURS = ("#333333", "#009e73", "#56b4e9", "#0072b2", "#cc79a7", "#e69f00")
_MARKERS = ("D", "^", "o", "s", "v", "P")


def plot(rows: Sequence[Row], path: Path) -> None:
    """Accuracy of each rule at each level, with the standard deviation over seeds; a panel for each study."""
    studies = list(dict.fromkeys(row["study"] for row in rows))
    with mpl.rc_context(style("levels")):
        figure = Figure(figsize=(11, 3.4 * len(studies) + 0.5), layout="constrained")
        panels = figure.subplots(len(studies), 1, squeeze=False)[:, 0]
        for axes, study in zip(panels, studies, strict=True):
            _panel(axes, [row for row in rows if row["study"] == study], study)
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(LEVELS))
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def _panel(axes: Axes, rows: Sequence[Row], study: str) -> None:
    rules = list(dict.fromkeys(row["rule"] for row in rows))
    for place, level in enumerate(LEVELS):
        found = [row for row in rows if row["level"] == level]
        at = [rules.index(row["rule"]) + (place - (len(LEVELS) - 1) / 2) * 0.13 for row in found]
        values = [means(row) for row in found]
        axes.errorbar(
            at,
            [fmean(of_seeds) for of_seeds in values],
            yerr=[stdev(of_seeds) if len(of_seeds) > 1 else 0.0 for of_seeds in values],
            fmt=_MARKERS[place],
            color=_COLOURS[place],
            markersize=5,
            elinewidth=1,
            label=level,
        )
    axes.set_xticks(range(len(rules)), rules)
    axes.set_xlim(-0.5, len(rules) - 0.5)
    axes.grid(visible=False, axis="x")
    axes.set_title(study, loc="left")
    axes.set_ylabel("target accuracy, %")


def _measure(given: argparse.Namespace) -> None:
    """Run what the cache lacks, all studies together, and write the figures after every run."""
    data = [] if given.data_dir is None else [f"task.data-dir={given.data_dir.absolute()}"]
    studies = [name for name in STUDIES if name != "fed-heart" or data]
    cells = sorted((cell for name in studies for cell in cells_of(name)), key=lambda cell: cell.urgency)
    cache = Cache(given.cache, "levels")

    def done(cell: Cell, figures: Figures) -> None:
        print(f"{cell.key}: {figures.accuracy:.1f} %", file=sys.stderr, flush=True)

    with workers(given.workers) as pool:
        measure(pool, run_cell, cells, cache, {"digits": [], "fed-heart": data}, done)
    given.figures.write_text(as_text(rows_of(cache.read()), this_machine()))


def main() -> int:
    """Measure where asked to, then say what was measured."""
    given = _arguments()
    if given.measure:
        _measure(given)
    rows = json.loads(given.figures.read_text())["rows"]
    plot(rows, given.plot)
    print(shown(tables(rows)))
    wrong = misses(rows)
    print("\n".join(wrong) or "Every requirement holds.", file=sys.stderr)
    return 1 if given.check and wrong else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--measure", action="store_true", help="run what the cache lacks first")
    parser.add_argument("--data-dir", type=Path, help="folder of Fed-Heart's files; without it digits alone are run")
    parser.add_argument("--cache", type=Path, default=Path("levels-cache"), help="folder for what was run already")
    parser.add_argument("--workers", type=int, default=1, help="federations beside each other")
    parser.add_argument("--check", action="store_true", help="end with 1 where a requirement does not hold")
    parser.add_argument("--figures", type=Path, default=FIGURES, help="the measured figures, JSON")
    parser.add_argument("--plot", type=Path, default=PLOT, help="where the plot goes, .svg or .png")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
