"""The figures of a report as SVG for a page: no fonts, no links, and colours that follow the page's own."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from securefda.text import phase_words

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Series = Mapping[str, Sequence[tuple[int, float]]]
"""Name of a line -> its points (round, value)."""

_INK = "#010203"  # stands for the page's text colour, which changes with light and dark
_WIDTH, _HEIGHT = 4.0, 2.9  # inches; small, so that labels stay readable when a phone shrinks the figure
_NAME_WIDTH, _NAME_HEIGHT = 0.068, 0.16  # inches of a letter and of a line in a legend; browsers have other fonts
_NAME_SIGN = 0.4  # inches of the colour before a name, and of the gap behind it
_MANY_LINES = 10
_UPRIGHT_LABELS = 4
# Okabe and Ito's colours without black and yellow, apart for every kind of colour vision, and two greys.
_COLOURS = (
    *("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9"),
    *("#e69f00", "#8c6bb1", "#7f7f7f", "#a6761d", "#5b8c5a"),
)
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.size": 9,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#888888",
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
}


def accuracy_figure(points: Sequence[tuple[int, float]], reported_rounds: int, baselines: Mapping[str, float]) -> str:
    """Draw the target's accuracy in percent over the rounds, marking the rounds whose mean is reported.

    ``baselines``, by name and from 0 to 1, are lines of dashes: what the target comes to alone.
    """
    with mpl.rc_context(_STYLE):
        figure, axes = _axes("round", "target accuracy, %")
        rounds = [number for number, _ in points]
        percent = [100 * value for _, value in points]
        axes.plot(rounds, percent, color=_COLOURS[0], linewidth=1.8)
        axes.plot(rounds[-reported_rounds:], percent[-reported_rounds:], "o", color=_COLOURS[0], markersize=3.5)
        for (name, accuracy), dashes in zip(baselines.items(), cycle([(4, 3), (1, 2)]), strict=False):
            axes.axhline(100 * accuracy, label=name, color=_INK, linewidth=1.0, linestyle=(0, dashes))
        if baselines:
            axes.lines[0].set_label("this run")
            _legend(figure, axes)
        return _svg(figure, "accuracy")


def beta_figure(lines: Series) -> str:
    """Draw beta over the rounds, one line per name; more than ten lines are thin and unnamed."""
    with mpl.rc_context(_STYLE):
        figure, axes = _axes("round", "β")
        few = len(lines) <= _MANY_LINES
        for place, ((name, points), colour) in enumerate(zip(lines.items(), cycle(_COLOURS), strict=False)):
            rounds, values = zip(*points, strict=True)
            # Sources of one size and shift have nearly one beta: later lines are thinner, so none hides another.
            width = 3.6 - 2.4 * (place + 1) / len(lines) if few else 0.7
            marker = "o" if len(rounds) == 1 else ""
            axes.plot(rounds, values, color=colour, linewidth=width, marker=marker, label=name if few else None)
        highest = max(value for points in lines.values() for _, value in points)
        axes.set_ylim(-0.03 * highest, min(1.03, 1.15 * highest) or 1.03)
        _legend(figure, axes)
        return _svg(figure, "beta")


def lines_figure(
    lines: Series, y_label: str, name: str, *, logarithmic: bool = False, limits: tuple[float, float] | None = None
) -> str:
    """Draw one line per name over the rounds.

    On a logarithmic axis, values that are not above 0 are left out.
    """
    with mpl.rc_context(_STYLE):
        figure, axes = _axes("round", y_label)
        for (label, points), colour in zip(lines.items(), cycle(_COLOURS), strict=False):
            shown = [(number, value) for number, value in points if value > 0 or not logarithmic]
            if shown:
                marker = "o" if len(shown) == 1 else ""
                axes.plot(*zip(*shown, strict=True), color=colour, linewidth=1.6, marker=marker, label=label)
        if logarithmic:
            axes.set_yscale("log")
        if limits is not None:
            axes.set_ylim(*limits)
        _legend(figure, axes)
        return _svg(figure, name)


def seconds_figure(rounds: Sequence[int], phases: Mapping[str, Sequence[float]]) -> str:
    """Draw the seconds per round, stacked by phase."""
    with mpl.rc_context(_STYLE):
        figure, axes = _axes("round", "seconds")
        floor = [0.0] * len(rounds)
        for (name, seconds), colour in zip(phases.items(), cycle(_COLOURS), strict=False):
            axes.bar(rounds, seconds, bottom=floor, width=0.85, color=colour, label=phase_words(name), linewidth=0)
            floor = [low + more for low, more in zip(floor, seconds, strict=True)]
        _legend(figure, axes)
        return _svg(figure, "seconds")


def bytes_figure(sites: Sequence[str], up: Sequence[float], down: Sequence[float], unit: str) -> str:
    """Draw the bytes between each source and the aggregator over the run, in ``unit``; many sources stay unnamed."""
    with mpl.rc_context(_STYLE):
        few = len(sites) <= _MANY_LINES
        figure, axes = _axes("" if few else "source", unit)
        places = range(1, len(sites) + 1)
        axes.bar([p - 0.2 for p in places], up, width=0.38, color=_COLOURS[0], label="source to aggregator")
        axes.bar([p + 0.2 for p in places], down, width=0.38, color=_COLOURS[5], label="aggregator to source")
        axes.grid(visible=False, axis="x")
        if few:
            axes.set_xticks(list(places), labels=list(sites))
        if few and len(sites) > _UPRIGHT_LABELS:
            axes.tick_params(axis="x", labelrotation=35)
            for label in axes.get_xticklabels():
                label.set(horizontalalignment="right", rotation_mode="anchor")
        _legend(figure, axes)
        return _svg(figure, "bytes")


def _axes(x_label: str, y_label: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(_WIDTH, _HEIGHT), layout="constrained")
    axes = figure.add_subplot()
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
    return figure, axes


def _legend(figure: Figure, axes: Axes) -> None:
    """Add a legend below the axes with as many columns as fit; each row after the first makes the figure taller."""
    handles, labels = axes.get_legend_handles_labels()
    if len(labels) < 2:
        return
    widest = max(map(len, labels)) * _NAME_WIDTH + _NAME_SIGN
    columns = max(1, min(3, int(_WIDTH / widest)))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, columnspacing=1.2, handlelength=1.2)
    figure.set_figheight(_HEIGHT + _NAME_HEIGHT * (-(-len(labels) // columns) - 1))


def _svg(figure: Figure, name: str) -> str:
    """Render for inlining: no XML prolog, metadata or namespaces, unique ids, and the page's text colour."""
    canvas: Any = FigureCanvasSVG(figure)
    buffer = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with mpl.rc_context({"svg.hashsalt": name}):
        # Not by savefig, which lays the figure out and draws it twice.
        canvas.print_svg(buffer, metadata=nothing)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", text)
    text = re.sub(r'(<svg[^>]*?)\sheight="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?)\swidth="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'\sid="(?!\w*\d{0,3}[0-9a-f]{10})[^"]*"', "", text)
    return text.replace(_INK, "currentColor")
