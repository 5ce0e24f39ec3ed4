"""What a privacy budget costs: accuracy over epsilon, with noise at the sources, at the target and at both.

    python benchmarks/dp_cost.py --measure --data-dir DIR --cache FOLDER [--workers N]    run, write dp_cost.json
    python benchmarks/dp_cost.py                             from dp_cost.json: write dp_cost.svg, print the tables

Every run is a simulated federation (`dp_cost_runs.py` has the grid and the schedules); every site's ledger holds it to
its budget, so that a run which would overspend fails. A study that was stopped goes on where it was, with the same
folder.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import fmean, median, stdev
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from dp_cost_runs import (
    BOTH,
    EPSILONS,
    OWN,
    RULES,
    SOURCES,
    STUDIES,
    TARGET,
    TIMED,
    TIMED_RULE,
    Cell,
    Figures,
    cells_of,
    run_cell,
)
from federated import workers
from matplotlib.figure import Figure
from studies import Cache, as_text, measure, shown, style, this_machine

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HERE = Path(__file__).parent
FIGURES, PLOT = HERE / "dp_cost.json", HERE / "dp_cost.svg"
COLUMNS = (*EPSILONS, math.inf)
LINES = [(rule, place) for rule, places in RULES.items() for place in places if place != OWN]
"""What the tables have a line of: a rule, and where noise is added."""

REFERENCES = ("target_only", "source_only")

Row = Mapping[str, Any]
"""A rule, a place and an epsilon of a study: the accuracies of each target, and medians of what they took."""


def rows_of(known: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row for each rule, place and epsilon that was measured with every target, from figures by cell."""
    rows = []
    for name, study in STUDIES.items():
        groups: dict[tuple[str, str, float], list[Cell]] = {}
        for cell in cells_of(name):
            if cell.key in known:
                groups.setdefault((cell.rule, cell.place, cell.epsilon), []).append(cell)
        for (rule, place, epsilon), cells in groups.items():
            if row := _row(cells, known, study.targets):
                shown = None if math.isinf(epsilon) else epsilon
                rows.append({"study": name, "rule": rule, "place": place, "epsilon": shown} | row)
    return rows


def _row(cells: Sequence[Cell], known: Mapping[str, Mapping[str, Any]], targets: Sequence[str]) -> dict[str, Any]:
    """Of the seeds that every target has."""
    seeds = sorted(
        seed
        for seed in {cell.seed for cell in cells}
        if {cell.target for cell in cells if cell.seed == seed} == set(targets)
    )
    used = [(cell, known[cell.key]) for cell in cells if cell.seed in seeds]
    if not used:
        return {}
    every = [figures for _, figures in used]
    betas = [figures["beta"] for figures in every if figures["beta"] is not None]
    return {
        "seeds": seeds,
        "accuracies": {
            target: [round(figures["accuracy"], 2) for cell, figures in used if cell.target == target]
            for target in targets
        },
        "seconds": round(median(figures["seconds"] for figures in every), 4),
        "processor": round(median(figures["processor"] for figures in every), 4),
        "beta": round(fmean(betas), 3) if betas else None,
        "clipped": sum(figures["clipped"] for figures in every),
        "noise": {side: _range(figures["noise"][side] for figures in every) for side in ("source", "target")},
        "spent": round(max((epsilon for figures in every for epsilon in figures["spent"].values()), default=0.0), 4),
    }


def _range(values: Iterable[float]) -> list[float]:
    found = sorted(values)
    return [found[0], found[-1]]


def means(row: Row) -> list[float]:
    """For each seed the mean over the targets."""
    return [fmean(values) for values in zip(*row["accuracies"].values(), strict=True)]


def overspent(rows: Iterable[Row]) -> list[str]:
    """A line for each row in which a ledger says more than the budget."""
    return [
        f"MISSED: {row['study']}, {row['rule']}, noise at {row['place']}: spent {row['spent']} of {row['epsilon']}"
        for row in rows
        if row["epsilon"] is not None and row["spent"] > row["epsilon"]
    ]


def tables(rows: Sequence[Row]) -> dict[str, str]:
    """Every table as Markdown, by name."""
    made = {}
    for study in STUDIES:
        if of_study := [row for row in rows if row["study"] == study]:
            made[f"{study}-accuracy"] = _accuracy_table(of_study)
            made[f"{study}-noise"] = _noise_table(of_study)
            made[f"{study}-round"] = _costs_table(of_study)
    return {name: table for name, table in made.items() if table}


def _at(rows: Iterable[Row]) -> dict[tuple[str, str, float], Row]:
    return {(row["rule"], row["place"], _epsilon(row)): row for row in rows}


def _epsilon(row: Row) -> float:
    return math.inf if row["epsilon"] is None else float(row["epsilon"])


def _names(epsilons: Iterable[float]) -> list[str]:
    return ["∞" if math.isinf(epsilon) else f"{epsilon:g}" for epsilon in epsilons]


def _accuracy_table(rows: Sequence[Row]) -> str:
    at = _at(rows)
    columns = [epsilon for epsilon in COLUMNS if any(one != OWN and two == epsilon for _, one, two in at)]
    titles = [f"ε = {name}" for name in _names(columns)]
    plain = any(place == OWN for _, place, _ in at)
    titles += ["example, plain"] if plain else []
    lines = [f"| rule | noise at | {' | '.join(titles)} |", f"|---|---|{'---|' * len(titles)}"]
    for rule, place in (line for line in LINES if any((*line, epsilon) in at for epsilon in columns)):
        cells = [_accuracy(at.get((rule, place, epsilon))) for epsilon in columns]
        cells += [_accuracy(at.get((rule, OWN, math.inf)))] if plain else []
        lines.append(f"| {rule} | {place} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _accuracy(row: Row | None) -> str:
    """Mean and standard deviation over seeds, and the number of these where there is but one."""
    if row is None:
        return "–"
    values = means(row)
    return f"{fmean(values):.1f} ± {stdev(values):.1f}" if len(values) > 1 else f"{values[0]:.1f}"


def _noise_table(rows: Sequence[Row]) -> str:
    """Noise multipliers of the FedGP runs with noise at both, and β."""
    at = _at(rows)
    found = [at.get((TIMED_RULE, BOTH, epsilon)) for epsilon in COLUMNS]
    if not any(found):
        return ""
    lines = [f"| noise at both | {' | '.join(f'ε = {name}' for name in _names(COLUMNS))} |"]
    lines.append(f"|---|{'---|' * len(COLUMNS)}")
    for side in ("source", "target"):
        lines.append(f"| noise multiplier, {side} | {' | '.join(_span(row, side) for row in found)} |")
    for rule in ("fedgp_auto", "fedda_auto"):
        of_rule = [at.get((rule, BOTH, epsilon)) for epsilon in COLUMNS]
        lines.append(f"| mean β of {rule} | {' | '.join(_beta(row) for row in of_rule)} |")
    return "\n".join(lines)


def _span(row: Row | None, side: str) -> str:
    if row is None:
        return "–"
    low, high = row["noise"][side]
    return f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"


def _beta(row: Row | None) -> str:
    return "–" if row is None or row["beta"] is None else f"{row['beta']:.2f}"


def _costs_table(rows: Sequence[Row]) -> str:
    """Seconds of a round of one rule with the example's own batches and epochs, plain and with noise."""
    at = _at(rows)
    found = {place: at.get((TIMED_RULE, place, math.inf)) for place in (OWN, *TIMED)}
    if not any(found[place] for place in TIMED):
        return ""
    names = ["plain", *(place.removeprefix(f"{OWN}, ") for place in TIMED)]
    lines = [f"| {TIMED_RULE}, example, seconds of a round | {' | '.join(names)} |", f"|---|{'---|' * len(found)}"]
    for key, title in (("seconds", "wall clock"), ("processor", "processor, all sites")):
        lines.append(f"| {title} | {' | '.join(f'{row[key]:.3f}' if row else '–' for row in found.values())} |")
    return "\n".join(lines)


_COLOURS = {"fedgp_auto": "#0072b2", "fedda_auto": "#e69f00", "target_only": "#333333", "source_only": "#009e73"}
_MARKERS = {"fedgp_auto": "o", "fedda_auto": "s", "target_only": "D", "source_only": "^"}


def plot(rows: Sequence[Row], path: Path) -> None:
    """Accuracy over epsilon: a row of panels for each study, a panel for each place of the noise."""
    studies = list(dict.fromkeys(row["study"] for row in rows if STUDIES[row["study"]].rules == RULES))
    with mpl.rc_context(style("dp_cost")):
        figure = Figure(figsize=(10, 3.2 * len(studies) + 0.5), layout="constrained")
        panels = figure.subplots(len(studies), 3, squeeze=False, sharey="row")
        for line, study in zip(panels, studies, strict=True):
            at = _at(row for row in rows if row["study"] == study)
            for axes, place in zip(line, (SOURCES, TARGET, BOTH), strict=True):
                _panel(axes, at, place)
                axes.set_title(f"{study}, noise at {place}", loc="left")
            line[0].set_ylabel("target accuracy, %")
        shown = {
            label: handle for axes in panels[0] for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
        }
        figure.legend(list(shown.values()), list(shown), loc="outside lower center", ncols=4)
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def _panel(axes: Axes, at: Mapping[tuple[str, str, float], Row], place: str) -> None:
    for rule in RULES:
        values = {
            number: means(row) for number, epsilon in enumerate(COLUMNS) if (row := at.get((rule, place, epsilon)))
        }
        if values:
            axes.errorbar(
                list(values),
                [fmean(of_seeds) for of_seeds in values.values()],
                yerr=[stdev(of_seeds) if len(of_seeds) > 1 else 0.0 for of_seeds in values.values()],
                fmt=f"-{_MARKERS[rule]}",
                color=_COLOURS[rule],
                markersize=4,
                elinewidth=1,
                label=rule,
            )
    for rule in REFERENCES:
        if row := at.get((rule, OWN, math.inf)):
            axes.axhline(fmean(means(row)), color=_COLOURS[rule], ls=":", lw=1.2, label=f"{rule}, example, plain")
    axes.set_xticks(range(len(COLUMNS)), _names(COLUMNS))
    axes.set_xlabel("ε of each site that adds noise")


def _measure(given: argparse.Namespace) -> None:
    """Run what the cache lacks, and write the figures."""
    data = {
        name: [f"task.data-dir={given.data_dir.absolute() / study.data}"] if study.data and given.data_dir else []
        for name, study in STUDIES.items()
    }
    studies = [name for name in given.studies if data[name] or not STUDIES[name].data]
    cells = sorted((cell for name in studies for cell in cells_of(name)), key=lambda cell: cell.urgency)
    cache = Cache(given.cache, "dp_cost")

    def done(cell: Cell, figures: Figures) -> None:
        print(f"{cell.key}: {figures.accuracy:.1f} %", file=sys.stderr, flush=True)

    with workers(given.workers) as pool:
        measure(pool, run_cell, cells, cache, data, done)


def _gather(given: argparse.Namespace) -> None:
    """Write the figures: of the studies that are asked for from the cache, of others as they are there."""
    before = json.loads(given.figures.read_text()) if given.figures.exists() else {"rows": []}
    others = [row for row in before["rows"] if row["study"] not in given.studies]
    rows = [row for row in rows_of(Cache(given.cache, "dp_cost").read()) if row["study"] in given.studies]
    # The machine is that of the others where there are any; accuracy depends on none.
    machine = before["machine"] if others else this_machine() | {name: version(name) for name in ("torch", "opacus")}
    given.figures.write_text(as_text([*others, *rows], machine))


def main() -> int:
    """Measure where asked to, then say what was measured."""
    given = _arguments()
    if given.measure:
        _measure(given)
    if given.measure or given.gather:
        _gather(given)
    rows = json.loads(given.figures.read_text())["rows"]
    plot(rows, given.plot)
    print(shown(tables(rows)))
    wrong = overspent(rows)
    print("\n".join(wrong) or "No ledger says more than its budget.", file=sys.stderr)
    return 1 if wrong else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--measure", action="store_true", help="run what the cache lacks first")
    parser.add_argument("--gather", action="store_true", help="write the figures from the cache as it is")
    parser.add_argument(
        "--studies", nargs="+", choices=STUDIES, default=list(STUDIES), help="figures of others stay as they are"
    )
    parser.add_argument(
        "--data-dir", type=Path, help="folder with fed_heart and fashion_mnist; without it digits alone are run"
    )
    parser.add_argument("--cache", type=Path, default=Path("dp-cost-cache"), help="folder for what was run already")
    parser.add_argument("--workers", type=int, default=1, help="federations beside each other")
    parser.add_argument("--figures", type=Path, default=FIGURES, help="the measured figures, JSON")
    parser.add_argument("--plot", type=Path, default=PLOT, help="where the plot goes, .svg or .png")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
