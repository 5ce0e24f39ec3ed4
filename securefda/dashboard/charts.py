"""Line charts over rounds as SVG without inline styles, since the page's policy permits only its style sheet."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from markupsafe import Markup

from securefda.dashboard.parts import Chart, Series

NAMED_LINES: Final = 8
"""Beyond as many, lines are thin and unnamed."""
DASHES: Final = ("none", "7 3", "2 3", "9 3 2 3", "4 2", "1 4", "12 4", "6 2 1 2")
"""So that no line is known by its colour alone."""

_WIDTH, _HEIGHT = 400, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 392, 10, 186
"""Edges of the area with the lines."""
_MOST_POINTS: Final = 500


def drawn(chart: Chart) -> Markup:
    """Draw the chart, which has at least one point, as one ``svg`` element; its label describes it in words."""
    series = [line for line in chart.series if line.points]
    rounds = [number for line in series for number, _ in line.points]
    values = [value for line in series for _, value in line.points]
    values += [chart.limit[1]] if chart.limit is not None else []
    first, last = min(rounds), max(rounds)
    ticks = _ticks(min(values), max(values))
    few = len(series) <= NAMED_LINES

    def x(number: float) -> float:
        return _LEFT + (_RIGHT - _LEFT) * (0.5 if first == last else (number - first) / (last - first))

    def y(value: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * (value - ticks[0]) / (ticks[-1] - ticks[0])

    parts = []
    for tick in ticks:
        parts.append(_element("line", class_="grid", x1=_LEFT, x2=_RIGHT, y1=y(tick), y2=y(tick)))
        number_text = f"{100 * tick:g} %" if chart.percent else f"{tick:g}"
        parts.append(_element("text", number_text, x=_LEFT - 6, y=y(tick) + 4, text_anchor="end"))
    for number in _round_ticks(first, last):
        parts.append(_element("text", str(number), x=x(number), y=_BOTTOM + 16, text_anchor="middle"))
    parts.append(_element("text", "round", x=(_LEFT + _RIGHT) / 2, y=_HEIGHT - 3, text_anchor="middle"))
    if chart.limit is not None:
        level = y(chart.limit[1])
        parts.append(_element("line", class_="limit", x1=_LEFT, x2=_RIGHT, y1=level, y2=level))
    for place, line in enumerate(series):
        points, colour = _thinned(line.points), f"s{place % NAMED_LINES}"
        path = " ".join(f"{x(number):.1f},{y(value):.1f}" for number, value in points)
        # Sources of one size and shift have nearly one β: later lines are thinner, so that none hides another.
        width, dash = (3.4 - 1.8 * (place + 1) / len(series), DASHES[place]) if few else (1.0, "none")
        line_of = {"class_": f"line {colour}", "points": path, "stroke_dasharray": dash}
        parts.append(_element("polyline", **line_of, stroke_width=width))
        number, value = points[-1]
        parts.append(_element("circle", class_=f"dot {colour}", cx=x(number), cy=y(value), r=3 if few else 1.5))
    label = f"{chart.heading}: {describe(chart)}"
    return _element("svg", Markup("").join(parts), viewBox=f"0 0 {_WIDTH} {_HEIGHT}", role="img", aria_label=label)


def sample(place: int) -> Markup:
    """Draw a piece of a named line, for the legend."""
    line = _element(
        "line", class_=f"line s{place}", x1=0, x2=28, y1=5, y2=5, stroke_width=2, stroke_dasharray=DASHES[place]
    )
    return _element("svg", line, viewBox="0 0 28 10", width="28", height="10", aria_hidden="true")


def describe(chart: Chart) -> str:
    """Describe where each line began and where it is now; of many lines, only their number and range."""
    series = [line for line in chart.series if line.points]
    limit = f"; {chart.limit[0]} {_shown(chart, chart.limit[1])}" if chart.limit is not None else ""
    if len(series) > NAMED_LINES:
        values = [line.points[-1][1] for line in series]
        return f"{len(series)} lines, now from {_shown(chart, min(values))} to {_shown(chart, max(values))}{limit}"
    return "; ".join(_describe_line(chart, line) for line in series) + limit


def _describe_line(chart: Chart, line: Series) -> str:
    (first, begin), (last, end) = line.points[0], line.points[-1]
    if first == last:
        return f"{line.name} {_shown(chart, end)} in round {last}"
    return f"{line.name} from {_shown(chart, begin)} in round {first} to {_shown(chart, end)} in round {last}"


def _shown(chart: Chart, value: float) -> str:
    return f"{100 * value:.1f} %" if chart.percent else f"{value:.4g}"


def _element(name: str, content: str = "", **attributes: str | float) -> Markup:
    """Return an element; ``class_`` is ``class``, and ``text_anchor`` is ``text-anchor``. Texts are escaped."""
    given = Markup("").join(
        Markup(' {}="{}"').format(
            key.rstrip("_").replace("_", "-"), value if isinstance(value, str) else f"{value:.1f}".removesuffix(".0")
        )
        for key, value in attributes.items()
    )
    return Markup("<{}{}>{}</{}>").format(name, given, content, name)


def _thinned(points: Sequence[tuple[int, float]]) -> Sequence[tuple[int, float]]:
    """Return about 500 points at most, including the last."""
    step = math.ceil(len(points) / _MOST_POINTS)
    return points if step <= 1 else [*points[:-1:step], points[-1]]


def _ticks(low: float, high: float) -> list[float]:
    """Return round numbers, evenly spaced, from at or below ``low`` to at or above ``high``; at least two."""
    if high - low < 1e-9 * max(1.0, abs(high)):
        low, high = low - 0.1 * (abs(low) or 1.0), high + 0.1 * (abs(high) or 1.0)
    rough = (high - low) / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= rough * 0.999)
    begin, end = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(number * step, 12) for number in range(begin, max(end, begin + 1) + 1)]


def _round_ticks(first: int, last: int) -> list[int]:
    """Return the first and the last round, and a few round numbers between them that have room."""
    rough = max(1.0, (last - first) / 6)
    power = 10 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    between = range((first // step + 1) * step, last, step)
    return sorted({first, last, *(one for one in between if min(one - first, last - one) >= 0.6 * step)})
