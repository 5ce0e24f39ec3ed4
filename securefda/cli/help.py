"""Help at every width: no word is broken, nothing is cut off, and narrow terminals get one column."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence
from typing import Any

from typer import Context as TyperContext

_WIDEST = 80
_TWO_COLUMNS = 60
"""A narrower terminal has the explanation below what it explains."""


def wrapped(text: str, width: int, indent: str = "", later: str | None = None) -> str:
    """``text`` in lines of at most ``width`` characters, or of one word that is longer.

    Args:
        text: one paragraph, whatever its line breaks.
        width: of the terminal, in characters.
        indent: before the first line.
        later: before the others; default: the same.
    """
    lines = textwrap.wrap(
        " ".join(text.split()),
        width,
        initial_indent=indent,
        subsequent_indent=indent if later is None else later,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines)


def terminal_width() -> int:
    """Of the terminal, or COLUMNS, else 80; at most 80, since longer lines are hard to read."""
    return min(shutil.get_terminal_size((_WIDEST, 24)).columns, _WIDEST)


class HelpFormatter(TyperContext.formatter_class):  # type: ignore[misc, valid-type]  # a class, to which typer gives no name
    """Typer's, which breaks words at hyphens and at its narrowest column."""

    def __init__(self, **_: Any) -> None:
        super().__init__(width=terminal_width())

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        """Write how the command is typed."""
        self.write(wrapped(f"{prefix or 'Usage: '}{prog} {args}", self.width, later=" " * 7) + "\n")

    def write_text(self, text: str) -> None:
        """Write paragraphs, which an empty line divides."""
        indent = " " * self.current_indent
        self.write("\n\n".join(wrapped(part, self.width, indent) for part in text.split("\n\n")) + "\n")

    def write_dl(self, rows: Sequence[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        """Write terms and what each means: in two columns, or one below the other where there is no room."""
        indent = " " * self.current_indent
        column = min(max(len(term) for term, _ in rows), col_max) + col_spacing
        for term, meaning in rows:
            if not meaning:
                self.write(f"{indent}{term}\n")
            elif self.width < _TWO_COLUMNS:
                self.write(f"{wrapped(term, self.width, indent, indent + '  ')}\n")
                self.write(f"{wrapped(meaning, self.width, indent + '    ')}\n")
            elif len(term) > column - col_spacing:
                self.write(f"{indent}{term}\n{wrapped(meaning, self.width, indent + ' ' * column)}\n")
            else:
                first = f"{indent}{term:{column}}"
                self.write(f"{wrapped(meaning, self.width, first, ' ' * len(first))}\n")


class HelpContext(TyperContext):
    """What a command runs in, with help of ours."""

    formatter_class = HelpFormatter
