"""Audit pages as the tests read them."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

from securefda.cli import main


class Page(HTMLParser):
    """Tags with their attributes, the text, and the rows of the tables by the table's id."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.source = file.read_text()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.pieces: list[str] = []
        self.tables: dict[str, list[list[str]]] = {}
        self._quiet, self._rows, self._cell = False, [[""]], False
        self.feed(self.source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._quiet = tag == "style"
        if tag == "table":
            self._rows = self.tables.setdefault(str(dict(attrs)["aria-labelledby"]), [])
        elif tag == "tr":
            self._rows.append([])
        elif tag in ("td", "th"):
            self._rows[-1].append("")
            self._cell = True

    def handle_endtag(self, tag: str) -> None:
        self._quiet = self._quiet and tag != "style"
        self._cell = self._cell and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        text = " ".join(data.split())
        if not text or self._quiet:
            return
        self.pieces.append(text)
        if self._cell:
            self._rows[-1][-1] = f"{self._rows[-1][-1]} {text}".strip()

    @property
    def states(self) -> list[str]:
        """The tones of the verdicts at the head of the page."""
        classes = [str(attrs.get("class")).split() for tag, attrs in self.tags if tag == "div"]
        return [names[1] for names in classes if names[0] == "state"]

    @property
    def text(self) -> str:
        return " ".join(self.pieces)

    def row(self, table: str, first: str) -> list[str]:
        """The row with this heading."""
        return next(row for row in self.tables[table] if row[0] == first)


def page_of(folder: Path, code: int | None = None, *options: str) -> Page:
    file = folder.parent / "page.html"
    found = main(["audit", "report", str(folder), "--out", str(file), *options])
    assert code is None or found == code
    return Page(file)
