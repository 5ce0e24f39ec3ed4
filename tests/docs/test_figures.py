"""Figures in sentences are those of the tables that they come from, which ``benchmarks/tables.py`` makes of JSON.

``docs/figures.toml`` lists for each page sentences, as patterns with {} for each figure, and the cells that these
figures repeat. A cell is "TABLE | row | column", with "#2" behind it for the second number in it, or a difference of
two such cells. TABLE is the name of a table that is made, or "PAGE#heading" for the first one below a heading; a row is
named by its first cell or cells, a column by its head or, where two have the same, by its place from 0.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXPLANATION = ROOT / "docs" / "explanation"
FIGURES: Mapping[str, Mapping[str, list[str]]] = tomllib.loads((ROOT / "docs" / "figures.toml").read_text("utf-8"))
COMPLETE = ("README.md", "docs/index.md", "docs/explanation/faq.md", "docs/explanation/results/index.md")
"""Pages on which every figure with a decimal point is listed."""
VERSIONS = {"3.11", "3.12", "3.13", "2.0", "4.0"}
"""Of Python and of licences: no figures."""
_FIGURE = r"(\d[\d,]*(?:\.\d+)?)"
_NUMBER = re.compile(f"[-+]?{_FIGURE[1:-1]}")
_MADE = re.compile(r"<!-- table: (?P<name>[\w/-]+) -->\n(?P<table>.*?)<!-- end -->", re.DOTALL)


@cache
def made() -> dict[str, str]:
    """Every table between markers, by its name."""
    pages = (page.read_text("utf-8") for page in EXPLANATION.rglob("*.md"))
    return {match["name"]: match["table"] for text in pages for match in _MADE.finditer(text)}


def table(name: str) -> list[list[str]]:
    """The cells of a table, its head first."""
    page, _, heading = name.partition("#")
    text = (EXPLANATION / page).read_text("utf-8").partition(f"# {heading}\n")[2] if heading else made()[name]
    lines = re.search(r"(?:^\|.*\n?)+", text, re.MULTILINE)
    assert lines, f"no table {name}"
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[0].splitlines()]


def value(cell: str) -> float:
    """What "TABLE | row | column #2" stands for."""
    name, *row, column = cell.split(" | ")
    column, _, place = column.partition(" #")
    head, *rows = table(name)
    at = int(column) if column.isdigit() else head.index(column)
    found = [line[at] for line in rows if line[: len(row)] == row]
    assert len(found) == 1, f"{cell}: {len(found)} rows"
    return float(_NUMBER.findall(found[0].replace("−", "-"))[int(place or 1) - 1].replace(",", ""))


def wrong(shown: str, source: str) -> bool:
    """Whether a figure is not what its cell has, rounded; a difference of rounded cells may be off by one."""
    decimals = len(shown.partition(".")[2])
    cells = source.split(" - ")
    true = value(cells[0]) - sum(value(cell) for cell in cells[1:])
    allowed = (0.5 if len(cells) == 1 else 1.01) * 10**-decimals
    return abs(abs(float(shown.replace(",", ""))) - abs(true)) > allowed + 1e-9


def sentences(page: str) -> str:
    """The text of a page in one line, without code and without tables that are made."""
    text = _MADE.sub("", (ROOT / page).read_text("utf-8"))
    return " ".join(re.sub(r"```.*?```|`[^`\n]*`|\]\([^)]*\)", "", text, flags=re.DOTALL).split())


def listed(page: str) -> Iterator[tuple[re.Match[str], list[str]]]:
    """Each sentence of a page that is listed, where it is found, with its cells."""
    text = sentences(page)
    for pattern, cells in FIGURES[page].items():
        found = re.search(pattern.replace("{}", _FIGURE), text)
        assert found, f"{page} does not say {pattern!r} any more: change docs/figures.toml"
        yield found, cells


@pytest.mark.parametrize("page", FIGURES)
def test_figures_in_sentences_are_those_of_their_tables(page: str) -> None:
    for found, cells in listed(page):
        stale = [f"{shown}: {cell}" for shown, cell in zip(found.groups(), cells, strict=True) if wrong(shown, cell)]
        assert stale == [], found[0]


@pytest.mark.parametrize("page", COMPLETE)
def test_every_figure_of_the_summaries_is_listed(page: str) -> None:
    text = sentences(page)
    spans = [found.span(group) for found, cells in listed(page) for group in range(1, len(cells) + 1)]
    figures = re.finditer(r"(?<![\w.])\d[\d,]*\.\d+(?![\w.-])", text)
    unlisted = [at for at in figures if at.span() not in spans and at[0] not in VERSIONS]
    assert [text[at.start() - 40 : at.end()] for at in unlisted] == []


def test_a_figure_that_is_off_by_one_is_wrong() -> None:
    cell = "overview/gains | digits | target alone"
    shown = f"{value(cell):.1f}"
    assert not wrong(shown, cell)
    assert wrong(f"{value(cell) + 0.1:.1f}", cell)
