"""Charts: what a reader could not tell from the picture if it broke."""

from __future__ import annotations

import re

import pytest

from securefda.pages.charts import drawn, legend
from securefda.pages.parts import Chart, Series

MARK = re.compile(r'<path class="(\w+) s\d" d="(M[^"]*)" transform="(translate\([^"]*\))">')
TEXT = re.compile(r"<text[^>]*>([^<]*)</text>")


def marks(chart: Chart) -> dict[tuple[str, str], set[str]]:
    """Shape and filling -> the places where it is drawn."""
    found: dict[tuple[str, str], set[str]] = {}
    for filling, shape, place in MARK.findall(drawn(chart)):
        found.setdefault((filling, shape), set()).add(place)
    return found


@pytest.mark.parametrize("rounds", [12, 60])
@pytest.mark.parametrize("lines", [2, 5, 10])
def test_lines_that_coincide_have_marks_of_their_own(rounds: int, lines: int) -> None:
    points = [(number, 0.5) for number in range(1, rounds + 1)]
    chart = Chart("β", "", [Series(f"source-{place}", points) for place in range(lines)])
    found = marks(chart)
    assert len(found) == lines
    assert len(set().union(*found.values())) == sum(map(len, found.values()))
    samples = [re.findall(r'<path class="(\w+) s\d" d="(M[^"]*)"', sample) for sample, _ in legend(chart)]
    assert [sample[0] for sample in samples] == list(found)


def test_of_a_few_rounds_every_line_has_a_mark() -> None:
    chart = Chart("β", "", [Series(f"source-{place}", [(1, 0.5), (2, 0.5)]) for place in range(5)])
    assert len(marks(chart)) == 5


def test_names_of_bars_are_whole() -> None:
    sites = ["a", "hospital-of-the-good-samaritan", "x" * 63]
    series = [Series(way, [(1, 3.0), (2, 2.0), (3, 1.0)]) for way in ("up", "down")]
    texts = TEXT.findall(drawn(Chart("Bytes", "", series, unit="KiB", bars=True, names=sites)))
    assert set(sites) < set(texts)
    assert "KiB" in texts


def test_bars_of_many_places_have_no_names_and_keep_to_the_picture() -> None:
    sites = [f"source-{place}" for place in range(40)]
    series = [Series(way, [*enumerate(range(40), 1)]) for way in ("up", "down")]
    picture = drawn(Chart("Bytes", "", series, unit="KiB", bars=True, names=sites))
    assert "source-7" not in picture
    lowest = max(float(high) for high in re.findall(r"M8.0 ([\d.]+)h", picture))
    assert lowest < 220 - 34


def test_a_bar_below_zero_goes_to_the_other_side() -> None:
    picture = drawn(Chart("Gain", "", [Series("gain", [(1, 4.0), (2, -2.0)])], bars=True, names=["a", "b"]))
    (zero, up), (same, down) = re.findall(r"M([\d.]+) [\d.]+h(-?[\d.]+)v", picture)
    assert zero == same
    assert float(up) == pytest.approx(-2 * float(down), abs=0.2)
    assert float(zero) + float(down) >= 8


@pytest.mark.parametrize(("points", "names", "shown"), [(1, (), False), (2, (), True), (1, ("a",), True)])
def test_one_round_makes_no_line(points: int, names: tuple[str, ...], shown: bool) -> None:
    series = [Series("loss", [(number, 1.0) for number in range(points)])]
    assert Chart("Loss", "", series, names=names).has_shape is shown
