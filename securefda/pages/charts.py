"""Charts as SVG without inline styles, since the page's policy permits only its style sheet."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from importlib import resources
from itertools import pairwise
from typing import Final

from markupsafe import Markup

from securefda.pages.parts import Chart, Series
from securefda.text import printable

NAMED_LINES: Final = 10
"""Beyond as many, lines are thin and unnamed; so are places below the axis."""
_DASHES: Final = ("none", "7 3", "2 3", "9 3 2 3", "4 2", "1 4", "12 4", "6 2 1 2", "3 6", "8 2 2 2 2 2")
"""So that no line is known by its colour alone."""
_ACROSS: Final = ("6 4", "1.5 3")
"""Dashes of limits."""

_WIDTH, _HEIGHT = 400, 220
_LEFT, _RIGHT, _BOTTOM = 52, 380, 186
"""Edges of the area with the lines; a number of five digits fits on either side of it."""
_MOST_POINTS: Final = 500
_MOST_BARS: Final = 120
_MARKS: Final = 6
"""About as many marks has each of several lines."""
_SHAPES: Final = (
    "M-3.2 0a3.2 3.2 0 1 0 6.4 0a3.2 3.2 0 1 0-6.4 0z",
    "M-2.8-2.8h5.6v5.6h-5.6z",
    "M0-3.8l3.8 6.6h-7.6z",
    "M0-4.2l4.2 4.2l-4.2 4.2l-4.2-4.2z",
    "M0 3.8l3.8-6.6h-7.6z",
)
"""Of marks: filled for the first lines, hollow for as many after them."""
_Scale = Callable[[float], float]
"""From a round or a value to where it is drawn."""
_SIDE, _NAME, _LETTERS = 8, 16, 54
"""Of bars below their names: the left edge, the height of a name, and how many of its letters surely fit."""


def drawn(chart: Chart) -> Markup:
    """Draw the chart, which has at least one point, as one ``svg`` element; its label describes it in words."""
    return _svg(chart, Markup("").join(_parts(chart)), _height(chart))


def legend(chart: Chart) -> list[tuple[Markup, str]]:
    """Return a sample and a name for each line that is named; empty where the heading says enough."""
    several = 1 < len(chart.series) <= NAMED_LINES
    if not (several or chart.limits or (chart.bars and not chart.names)):
        return []
    return [(_element("svg", shape, viewBox="0 0 28 10", width="28", height="10", aria_hidden="true"), name)
            for shape, name in _samples(chart)]  # fmt: skip


def svg_file(chart: Chart, about: str) -> str:
    """Return a chart as a file of its own, with its names and light colours, and ``about`` as its description."""
    style = resources.files("securefda.pages").joinpath("templates", "chart.css").read_text("utf-8")
    light = dict(re.findall(r"(--\w+): ([^;]+);", style.partition("@media")[0]))
    rules = style.partition("/* rules */")[2]  # viewers of images know no variables
    rules = re.sub(r"var\((--\w+)\)", lambda found: light[found[1]], rules)
    below = _height(chart)
    rows = [
        _element("g", shape + _element("text", name, x=34, y=9), transform=f"translate({_LEFT} {below + 16 * place})")
        for place, (shape, name) in enumerate(_samples(chart))
    ]
    head = _element("style", Markup(rules)) + _element("desc", about)  # noqa: S704 - ours
    paper = _element("rect", x=0, y=0, width="100%", height="100%", fill="#fff")
    inner = head + paper + Markup("").join([*_parts(chart), *rows])
    return str(_svg(chart, inner, below + 16 * len(rows), xmlns="http://www.w3.org/2000/svg"))


def describe(chart: Chart) -> str:
    """Describe where each line began and where it is now; of many lines or bars, only their number and range."""
    series = _drawable(chart)
    if chart.names:
        last = [value for line in series for _, value in line.points]
        parts = [f"{len(chart.names)} places, from {_text(chart, min(last))} to {_text(chart, max(last))}"]
    elif len(series) > NAMED_LINES and not chart.bars:
        last = [line.points[-1][1] for line in series]
        parts = [f"{len(series)} lines, now from {_text(chart, min(last))} to {_text(chart, max(last))}"]
    else:
        parts = [_describe_line(chart, line) for line in series]
    return "; ".join([*parts, *(_named(chart, *limit) for limit in chart.limits)])


def _describe_line(chart: Chart, line: Series) -> str:
    (first, begin), (last, end) = line.points[0], line.points[-1]
    if first == last:
        return f"{line.name} {_text(chart, end)} in round {last}"
    return f"{line.name} from {_text(chart, begin)} in round {first} to {_text(chart, end)} in round {last}"


def _named(chart: Chart, name: str, value: float) -> str:
    return f"{name} {_text(chart, value)}"


def _text(chart: Chart, value: float) -> str:
    return f"{100 * value:.1f} %" if chart.percent else f"{value:.4g}"


def _drawable(chart: Chart) -> list[Series]:
    """Return the lines that have a point, with the points that can be drawn."""
    most = _MOST_BARS if chart.bars else _MOST_POINTS
    lines = [[one for one in line.points if one[1] > 0 or not chart.logarithmic] for line in chart.series]
    return [Series(of.name, thinned(points, most)) for of, points in zip(chart.series, lines, strict=True) if points]


def _samples(chart: Chart) -> Iterator[tuple[Markup, str]]:
    for place, line in enumerate(chart.series):
        if chart.bars:
            yield _element("path", class_=f"filled s{place % NAMED_LINES}", d="M8 0h12v10h-12z"), line.name
        elif len(chart.series) <= NAMED_LINES:
            mark = _mark(place, 14, 5) if len(chart.series) > 1 else Markup("")
            yield _line(place, stroke_width=2, points="0,5 28,5") + mark, line.name
    for place, limit in enumerate(chart.limits):
        yield _limit(place, 0, 28, 5), _named(chart, *limit)


def _parts(chart: Chart) -> Iterator[Markup]:
    """Yield what is in the picture: the axes, what is drawn across, and the lines or bars."""
    series = _drawable(chart)
    if chart.names:
        yield from _lying(chart, series)
        return
    rounds = sorted({number for line in series for number, _ in line.points}) or [0]
    top = 26 if chart.unit else 10
    values = [*chart.include, *(value for _, value in chart.limits)]
    if chart.bars:
        values += [0.0, *(sum(dict(line.points).get(number, 0.0) for line in series) for number in rounds)]
    else:
        values += [value for line in series for _, value in line.points]
    values = values or [1.0]
    ticks = _powers(values) if chart.logarithmic else _ticks(min(values), max(values))
    slot = min((after - before for before, after in pairwise(rounds)), default=1)
    margin = slot / 2 if chart.bars else 0
    first, last = rounds[0] - margin, rounds[-1] + margin

    def x(number: float) -> float:
        return _LEFT + (_RIGHT - _LEFT) * (0.5 if first == last else (number - first) / (last - first))

    def y(value: float) -> float:
        low, high, at = (math.log10(one) if chart.logarithmic else one for one in (ticks[0], ticks[-1], value))
        return _BOTTOM - (_BOTTOM - top) * (at - low) / (high - low)

    if chart.unit:
        yield _element("text", chart.unit, x=2, y=11)
    for tick in ticks:
        yield _element("line", class_="grid", x1=_LEFT, x2=_RIGHT, y1=y(tick), y2=y(tick))
        number_text = f"{100 * tick:g} %" if chart.percent else f"{tick:g}"
        yield _element("text", number_text, x=_LEFT - 6, y=y(tick) + 4, text_anchor="end")
    for number in _round_ticks(rounds[0], rounds[-1]):
        yield _element("text", str(number), x=x(number), y=_BOTTOM + 16, text_anchor="middle")
    yield _element("text", "round", x=(_LEFT + _RIGHT) / 2, y=_HEIGHT - 3, text_anchor="middle")
    for place, (_, value) in enumerate(chart.limits):
        yield _limit(place, _LEFT, _RIGHT, y(value))
    if chart.bars:
        yield from _stacked(series, x, y, slot)
        return
    few, marks = len(series) <= NAMED_LINES, []
    for place, line in enumerate(series):
        points = [(x(number), y(value)) for number, value in line.points]
        path = " ".join(f"{left:.1f},{height:.1f}" for left, height in points)
        # Where lines coincide, the wider one below shows at the edges of the other, and each has marks of its own.
        width = 3.4 - 1.8 * (place + 1) / len(series) if few else 1.0
        yield _line(place, stroke_width=width, points=path, dashed=few)
        if len(series) == 1:
            marks += [_mark(0, *point) for point in points[-chart.marked :]]
        elif few:
            step = max(len(series), len(points) // _MARKS)
            marks += [_mark(place, *point) for point in points[place * step // len(series) :: step] or points[-1:]]
    yield from marks


def _stacked(series: Sequence[Series], x: _Scale, y: _Scale, slot: float) -> Iterator[Markup]:
    """Yield one path of bars for each of the series, each on top of those before."""
    width = 0.8 * (x(slot) - x(0))
    floor: dict[int, float] = {}
    for place, line in enumerate(series):
        path = []
        for number, value in line.points:
            low = floor.get(number, 0.0)
            floor[number] = low + value
            path.append(f"M{x(number) - width / 2:.1f} {y(low):.1f}h{width:.1f}V{y(low + value):.1f}h{-width:.1f}z")
        yield _element("path", class_=f"filled s{place % NAMED_LINES}", d="".join(path))


def _lying(chart: Chart, series: Sequence[Series]) -> Iterator[Markup]:
    """Yield bars from left to right, those of a place below each other, and below its name where there are few."""
    places, bottom = max(number for line in series for number, _ in line.points), _height(chart) - 34
    slot, name_height = (bottom - 4) / places, _NAME if places <= NAMED_LINES else 0
    thick = (slot - name_height) * 0.85 / len(series)
    values = [0.0, *(value for line in series for _, value in line.points)]
    ticks = _ticks(min(values), max(values) or 1.0)

    def x(value: float) -> float:
        return _SIDE + (_RIGHT - _SIDE) * (value - ticks[0]) / (ticks[-1] - ticks[0])

    for tick in ticks:
        yield _element("line", class_="grid", x1=x(tick), x2=x(tick), y1=4, y2=bottom)
        yield _element("text", f"{tick:g}", x=x(tick), y=bottom + 15, text_anchor="middle")
    yield _element("text", chart.unit, x=(_SIDE + _RIGHT) / 2, y=bottom + 30, text_anchor="middle")
    for place, name in enumerate(chart.names if name_height else ()):
        fits = {"textLength": f"{_WIDTH - 2 * _SIDE}", "lengthAdjust": "spacingAndGlyphs"}
        yield _element("text", name, x=_SIDE, y=4 + place * slot + 12, **(fits if len(name) > _LETTERS else {}))
    for order, line in enumerate(series):
        path = []
        for number, value in line.points:
            high, long = 4 + (number - 1) * slot + name_height + order * thick, x(value) - x(0)
            path.append(f"M{x(0):.1f} {high:.1f}h{long:.1f}v{thick:.1f}h{-long:.1f}z")
        yield _element("path", class_=f"filled s{order % NAMED_LINES}", d="".join(path))


def _height(chart: Chart) -> int:
    """Return the height of the picture, which grows with the names in it."""
    if not 0 < len(chart.names) <= NAMED_LINES:
        return _HEIGHT
    return 38 + len(chart.names) * (_NAME + 9 * len(chart.series) + 5)


def _mark(place: int, left: float, height: float) -> Markup:
    kind = f"{'filled' if place < len(_SHAPES) else 'hollow'} s{place % NAMED_LINES}"
    at = f"translate({left:.1f} {height:.1f})"
    return _element("path", class_=kind, d=_SHAPES[place % len(_SHAPES)], transform=at)


def _svg(chart: Chart, content: Markup, height: int, **more: str) -> Markup:
    label = f"{chart.heading}: {describe(chart)}"
    return _element("svg", content, viewBox=f"0 0 {_WIDTH} {height}", role="img", aria_label=label, **more)


def _line(place: int, *, points: str, stroke_width: float, dashed: bool = True) -> Markup:
    dash = _DASHES[place] if dashed else "none"
    colour = f"line s{place % NAMED_LINES}"
    return _element("polyline", class_=colour, points=points, stroke_dasharray=dash, stroke_width=stroke_width)


def _limit(place: int, left: float, right: float, at: float) -> Markup:
    dash = _ACROSS[place % len(_ACROSS)]
    return _element("line", class_="limit", x1=left, x2=right, y1=at, y2=at, stroke_dasharray=dash)


def _element(name: str, content: str = "", **attributes: str | float) -> Markup:
    """Return an element; ``class_`` is ``class``, and ``text_anchor`` is ``text-anchor``. Texts are escaped."""
    given = Markup("").join(
        Markup(' {}="{}"').format(
            key.rstrip("_").replace("_", "-"),
            printable(value) if isinstance(value, str) else f"{value:.1f}".removesuffix(".0"),
        )
        for key, value in attributes.items()
    )
    return Markup("<{}{}>{}</{}>").format(
        name, given, content if isinstance(content, Markup) else printable(content), name
    )


def thinned(points: Sequence[tuple[int, float]], most: int) -> Sequence[tuple[int, float]]:
    """Return about ``most`` points at most, including the last."""
    step = math.ceil(len(points) / most)
    return points if step <= 1 else [*points[:-1:step], points[-1]]


def _ticks(low: float, high: float) -> list[float]:
    """Return round numbers, evenly spaced, from at or below ``low`` to at or above ``high``; at least two."""
    if high - low < 1e-9 * max(1.0, abs(high)):
        low, high = low - 0.1 * (abs(low) or 1.0), high + 0.1 * (abs(high) or 1.0)
    step = _step((high - low) / 4 * 0.999)
    begin, end = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(number * step, 12) for number in range(begin, max(end, begin + 1) + 1)]


def _powers(values: Sequence[float]) -> list[float]:
    """Return powers of ten from at or below the least of ``values`` to at or above the largest; at most about six."""
    begin, end = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    step = max(1, math.ceil((end - begin) / 5))
    return [10.0**power for power in range(begin, max(end, begin + 1) + step, step)]


def _round_ticks(first: int, last: int) -> list[int]:
    """Return the first and the last round, and a few round numbers between them that have room."""
    step = int(_step(max(1.0, (last - first) / 6)))
    between = range((first // step + 1) * step, last, step)
    return sorted({first, last, *(one for one in between if min(one - first, last - one) >= 0.6 * step)})


def _step(rough: float) -> float:
    """Return 1, 2, 5 or 10 times a power of ten, at or above ``rough``."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= rough)
