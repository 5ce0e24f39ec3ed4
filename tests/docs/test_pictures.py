"""Pictures of the manual can be read: by a screen reader, in the dark, on a telephone, and while they stand still."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from securefda.pages.charts import svg_file
from securefda.pages.parts import Chart, Series

ROOT = Path(__file__).parents[2]
PICTURES = sorted((ROOT / "docs" / "pictures").glob("*.svg"))
DRAWN = [path for path in PICTURES if path.stem != "epsilon"]
"""By hand; `docs/generate.py` draws the other one."""
SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("path", DRAWN, ids=lambda path: path.stem)
def test_a_picture_can_be_read_by_all(path: Path) -> None:
    text = path.read_text("utf-8")
    picture = ET.fromstring(text)
    title, description = picture.find(f"{SVG}title"), picture.find(f"{SVG}desc")
    assert title is not None
    assert description is not None
    assert len(title.text or "") > 10
    assert len(description.text or "") > 80
    assert picture.get("aria-labelledby") == f"{title.get('id')} {description.get('id')}"
    _, _, width, height = map(float, (picture.get("viewBox") or "").split())
    assert width <= 420  # letters of 13 are 11 high on a telephone of 390
    sizes = {float(size) for size in re.findall(r'font-size="([\d.]+)"', text)}
    assert min(sizes) >= 11.5
    assert "prefers-color-scheme: dark" in text
    assert ("animation:" in text) == ("prefers-reduced-motion: no-preference" in text)
    assert not re.search(r"<script|href=|url\((?!#)|@import", text)
    for box in picture.iter(f"{SVG}rect"):
        left, top, across, down = (float(box.get(name, 0)) for name in ("x", "y", "width", "height"))
        assert min(left, top, width - left - across, height - top - down) >= 0


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.stem)
def test_a_page_shows_it_and_says_what_it_shows(path: Path) -> None:
    pages = (page.read_text("utf-8") for page in (ROOT / "docs").rglob("*.md") if "_build" not in page.parts)
    shown = re.compile(rf"!\[[^\]]{{15,}}\]\([./]*pictures/{path.name}\)")
    assert sum(len(shown.findall(text)) for text in pages) == 1


def test_the_legend_of_a_chart_is_below_its_names_and_bars() -> None:
    names = [f"a long name {place}" for place in range(6)]
    chart = Chart("Bars", "", [Series("one", [(place, 1.0) for place in range(1, 7)])], bars=True, names=names)
    drawn = svg_file(chart, "six bars")
    at_names = [float(y) for y in re.findall(r'y="([\d.]+)">a long name \d<', drawn)]
    at_bars = [float(y) for y in re.findall(r"M[\d.]+ ([\d.]+)h", drawn)]
    (legend,) = (float(y) for y in re.findall(r'translate\([\d.]+ ([\d.]+)\)"', drawn))
    assert len(at_names) == 6
    assert legend > max(at_names + at_bars[:6]) + 30
