"""Help at every width: no word is broken, nothing is cut off, and narrow terminals get one column."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import Any

from typer import Context as TyperContext

from securefda.text import wrapped

_WIDEST = 80
"""Longer lines are hard to read."""
_TWO_COLUMNS = 60
"""A narrower terminal has the explanation below what it explains."""


def _one(paragraph: str) -> str:
    """A paragraph without its line breaks."""
    return " ".join(paragraph.split())


class HelpFormatter(TyperContext.formatter_class):  # type: ignore[misc, valid-type]  # a class, to which typer gives no name
    """Typer's, which breaks words at hyphens and at its narrowest column."""

    def __init__(self, **_: Any) -> None:
        super().__init__(width=min(shutil.get_terminal_size((_WIDEST, 24)).columns, _WIDEST))

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        """Write how the command is typed."""
        self.write(wrapped(f"{prefix or 'Usage: '}{prog} {args}", self.width, later=" " * 7) + "\n")

    def write_text(self, text: str) -> None:
        """Write paragraphs, which an empty line divides."""
        indent = " " * self.current_indent
        self.write("\n\n".join(wrapped(_one(part), self.width, indent) for part in text.split("\n\n")) + "\n")

    def write_dl(self, rows: Sequence[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        """Write terms and what each means: in two columns, or one below the other where there is no room."""
        indent = " " * self.current_indent
        column = min(max(len(term) for term, _ in rows), col_max) + col_spacing
        for term, meaning in rows:
            if not meaning:
                self.write(f"{indent}{term}\n")
            elif self.width < _TWO_COLUMNS:
                self.write(f"{wrapped(term, self.width, indent, indent + '  ')}\n")
                self.write(f"{wrapped(_one(meaning), self.width, indent + '    ')}\n")
            elif len(term) > column - col_spacing:
                self.write(f"{indent}{term}\n{wrapped(_one(meaning), self.width, indent + ' ' * column)}\n")
            else:
                first = f"{indent}{term:{column}}"
                self.write(f"{wrapped(_one(meaning), self.width, first, ' ' * len(first))}\n")


class HelpContext(TyperContext):
    """What a command runs in, with help of ours."""

    formatter_class = HelpFormatter
