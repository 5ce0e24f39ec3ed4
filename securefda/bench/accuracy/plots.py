"""The plots of a suite, as SVG, and their style. The same figures give the same files."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from securefda.bench.accuracy.columns import RULES, Plot, Suite
from securefda.bench.accuracy.requirements import Judgement, SelectionHolds, judgements
from securefda.bench.accuracy.results import BySeed, Results
from securefda.rules.strategy import CANDIDATES
from securefda.task_metric import metric_of


def style(name: str) -> dict[Any, Any]:
    """Return settings of matplotlib; ids in the file follow from ``name``, so that the same figures give the
    same file.
    """
    return {
        "svg.hashsalt": name,
        "svg.fonttype": "path",
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.alpha": 0.3,
        "legend.frameon": False,
    }


if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

AUTO_RULES = ("fedda_auto", "fedgp_auto")
_COLOURS = (
    *("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00"),
    *("#8c6bb1", "#7f7f7f", "#a6761d", "#5b8c5a", "#333333"),
)
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_INCHES_PER_NAME = 1.6
_NAMED_SOURCES = 6
_ACROSS = 3
_WIDE_RANGE = 10.0


def write_plots(suite: Suite, results: Results, folder: Path) -> list[Path]:
    """Draw every plot of the suite for which there are runs.

    Returns:
        The files: ``accuracy``, ``betas`` and ``selection``.
    """
    written = []
    for plot in suite.plots:
        name, draw = _PLOTS[plot]
        with mpl.rc_context(style(name)):
            figure = draw(suite, results)
            if figure is not None:
                path = folder / f"{name}.svg"
                figure.savefig(path, metadata={"Date": None})
                written.append(path)
    return written


def _over_x(suite: Suite, results: Results) -> Figure | None:
    """Draw the metric of each rule over x, a panel for each data set: Figures 2 and 3 of the paper."""
    figure, panels = _panels(len(results.data), suite.title)
    for axes, data in zip(panels, results.data, strict=True):
        columns = results.columns_of(data)
        for rule in results.rules:
            points = [
                (column.x, of_seeds)
                for column in columns
                if column.x is not None and (of_seeds := results.by_seed(rule, column))
            ]
            if points:
                axes.errorbar(
                    [x for x, _ in points],
                    [fmean(of_seeds.values()) for _, of_seeds in points],
                    yerr=[_deviation(of_seeds) for _, of_seeds in points],
                    linestyle="--" if _is_late(rule) else "-",
                    markersize=4,
                    linewidth=1.4,
                    elinewidth=0.8,
                    **_look(rule),
                )
        # Numbers of rows go over more than a decade; of a shift or a weight there is a zero, or nearly one
        values = [column.x for column in columns if column.x is not None]
        if min(values, default=0.0) > 0 and max(values) / min(values) >= _WIDE_RANGE:
            axes.set_xscale("log")
            axes.minorticks_off()
        axes.set_xticks(values, [f"{value:g}" for value in values])
        axes.set_title(data if len(results.data) > 1 else "", loc="left")
        axes.set_xlabel(suite.axis)
    for axes in panels[::_ACROSS]:
        axes.set_ylabel(_label_of(suite))
    return _with_legend(figure, panels)


def _label_of(suite: Suite) -> str:
    metric = metric_of(suite.metric)
    return f"target {metric.title}{', %' if metric.percent else ''}"


def _by_column(suite: Suite, results: Results) -> Figure | None:
    """Draw the metric of each rule in each column."""
    figure, panels = _panels(1, suite.title, width=max(6.0, 2.2 * len(results.columns)))
    axes = panels[0]
    step = 0.8 / max(len(results.rules), 1)
    for place, rule in enumerate(results.rules):
        points = [
            (number, of_seeds)
            for number, column in enumerate(results.columns)
            if (of_seeds := results.by_seed(rule, column))
        ]
        axes.errorbar(
            [number + (place - (len(results.rules) - 1) / 2) * step for number, _ in points],
            [fmean(of_seeds.values()) for _, of_seeds in points],
            yerr=[_deviation(of_seeds) for _, of_seeds in points],
            linestyle="none",
            markersize=5,
            elinewidth=1,
            **_look(rule),
        )
    axes.set_xticks(range(len(results.columns)), [column.name for column in results.columns])
    axes.set_xlim(-0.5, len(results.columns) - 0.5)
    axes.grid(visible=False, axis="x")
    axes.set_ylabel(_label_of(suite))
    return _with_legend(figure, panels)


def _betas(suite: Suite, results: Results) -> Figure | None:
    """Draw β of every source over the rounds under both auto rules, mean over seeds: Figures 6 to 11 of the paper."""
    rules = [rule for rule in AUTO_RULES if rule in results.rules]
    columns = [column for column in results.columns if any(results.betas(rule, column) for rule in rules)]
    if not columns:
        return None
    figure = Figure(figsize=(2.6 * len(columns) + 0.6, 2.3 * len(rules) + 0.4), layout="constrained")
    grid = figure.subplots(len(rules), len(columns), squeeze=False)
    for rule, row in zip(rules, grid, strict=True):
        for column, axes in zip(columns, row, strict=True):
            lines = results.betas(rule, column)
            named = len(lines) <= _NAMED_SOURCES
            for place, (source, points) in enumerate(lines.items()):
                if points:
                    rounds, betas = zip(*points, strict=True)
                    width = 1.4 if named else 0.7
                    axes.plot(
                        rounds,
                        betas,
                        color=_COLOURS[place % len(_COLOURS)],
                        linewidth=width,
                        label=source if named else None,
                    )
            axes.set_ylim(0, 1.05)
            axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
            if named and lines:
                axes.legend(fontsize=7, frameon=True, framealpha=0.8, edgecolor="none")
            axes.set_title(f"{rule}, {column.name}", loc="left", fontsize=8)
        row[0].set_ylabel("β")
    for axes in grid[-1]:
        axes.set_xlabel("round")
    figure.suptitle(f"{suite.title}: weight of each source", x=0.01, ha="left")
    return figure


def _selection(suite: Suite, results: Results) -> Figure | None:
    """Draw which rule has the smallest estimated error, and which the smallest loss, over d² and σ²: Figure 5.

    All three estimates are those of the first round that has any, see `Judgement`.
    """
    judged = judgements(results)
    if not judged:
        return None
    figure, panels = _panels(2, suite.title, width=9.0)
    _grid_panel(panels[0], judged, lambda one: one.predicted, "smallest estimated error, first round")
    _grid_panel(panels[1], judged, lambda one: one.actual, "smallest loss")
    within = SelectionHolds().within
    wrong = [one for one in judged if not one.holds(within, one.predicted)]
    panels[1].scatter(
        [one.distance for one in wrong],
        [one.variance for one in wrong],
        s=130,
        facecolors="none",
        edgecolors="#333333",
        linewidths=0.8,
        label=f"more than {within:.0%} below that of the predicted rule",
    )
    return _with_legend(figure, panels[1:])


def _grid_panel(axes: Axes, found: list[Judgement], choice: Callable[[Judgement], str], title: str) -> None:
    for rule in CANDIDATES:
        chosen = [one for one in found if choice(one) == rule]
        axes.scatter(
            [one.distance for one in chosen],
            [one.variance for one in chosen],
            color=colour(rule),
            marker=marker(rule),
            s=34,
            label=rule,
        )
    axes.set_title(title, loc="left")
    axes.set_xlabel("d², between source and target")
    axes.set_ylabel("σ², of the target")
    _by_decades(axes.set_xscale, axes.set_xlim, [one.distance for one in found])
    _by_decades(axes.set_yscale, axes.set_ylim, [one.variance for one in found])


def _by_decades(set_scale: Callable[..., None], set_limits: Callable[..., Any], values: list[float]) -> None:
    """Use a logarithmic scale; a distance clipped at zero is drawn below the smallest other one."""
    positive = [value for value in values if value > 0]
    if not positive:
        return
    if len(positive) == len(values):
        set_scale("log")
    else:
        least = 10.0 ** math.floor(math.log10(min(positive)))
        set_scale("symlog", linthresh=least)
        set_limits(-least / 2, 2 * max(positive))


def colour(rule: str) -> str:
    """Return the rule's colour, the same in all plots; see `_look` for rules that share one."""
    return _COLOURS[_place(rule) % len(_COLOURS)]


def marker(rule: str) -> str:
    """Return the rule's marker, the same in all plots."""
    return _MARKERS[_place(rule) % len(_MARKERS)]


def _look(rule: str) -> dict[str, Any]:
    """Return the style of points with error bars. Rules beyond the colours reuse them with hollow markers."""
    own = colour(rule)
    face = "white" if _is_late(rule) else own
    return {"color": own, "marker": marker(rule), "markerfacecolor": face, "label": rule}


def _is_late(rule: str) -> bool:
    return _place(rule) >= len(_COLOURS)


def _place(rule: str) -> int:
    return list(RULES).index(rule)


def _deviation(of_seeds: BySeed) -> float:
    return stdev(of_seeds.values()) if len(of_seeds) > 1 else 0.0


def _panels(count: int, title: str, width: float = 0.0) -> tuple[Figure, list[Axes]]:
    """Make panels side by side, at most `_ACROSS` in a row."""
    across = min(count, _ACROSS)
    rows = -(-count // across)
    height = 4.6 if rows == 1 else 3.4 * rows + 0.8
    figure = Figure(figsize=(width or 3.6 * across + 3.2, height), layout="constrained")
    figure.suptitle(title, x=0.01, ha="left")
    panels = list(figure.subplots(rows, across, squeeze=False).flat)
    for empty in panels[count:]:
        empty.remove()
    return figure, panels[:count]


def _with_legend(figure: Figure, panels: list[Axes]) -> Figure:
    """Add one legend for all panels."""
    entries: dict[str, Artist] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    across = int(figure.get_figwidth() / _INCHES_PER_NAME)
    figure.legend(entries.values(), list(entries), loc="outside lower center", ncols=across, fontsize=8)
    return figure


_PLOTS: dict[Plot, tuple[str, Callable[[Suite, Results], Figure | None]]] = {
    "columns": ("accuracy", _by_column),
    "line": ("accuracy", _over_x),
    "betas": ("betas", _betas),
    "selection": ("selection", _selection),
}
