"""Help at every width: no word is broken, nothing is cut off, and narrow terminals get one column."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from typing import Any

from typer import Context as TyperContext

from securefda.text import wrapped

_WIDEST = 80
"""Longer lines are hard to read."""
_TWO_COLUMNS = 60
"""A narrower terminal has the explanation below what it explains."""


_IN_WORDS = (
    (re.compile(rf"(\d+)<=x<={2**63 - 1}"), r"at least \1"),
    (re.compile(r"(\d+)<=x<=(\d+)"), r"from \1 to \2"),
    (re.compile(r"x>=(\d+)"), r"at least \1"),
    (re.compile(r"x<=(\d+)"), r"at most \1"),
)
"""Bounds of a number as Click writes them, and in words."""


def _one(paragraph: str) -> str:
    """Return a paragraph without its line breaks, with its bounds in words."""
    for bounds, words in _IN_WORDS:
        paragraph = bounds.sub(words, paragraph)
    return " ".join(paragraph.split())


def _term(term: str) -> str:
    """Return an option with the values it takes, or an argument, without names of Python's types."""
    if not term.startswith("-"):
        return re.sub(r" <.*>$", "", term)
    number = re.sub(r"<(int|float)( range)?>", "N", term)
    return number.replace("<path>", "PATH").replace("<str>", "TEXT")


def _usage(arguments: str) -> str:
    """Return arguments as they are typed: braces only around choices, and ``...`` only once."""
    return re.sub(
        r"\{([^{}|]+?)\}(\.\.\.)?", lambda found: found[1] + ("" if "..." in found[1] else found[2] or ""), arguments
    )


class HelpFormatter(TyperContext.formatter_class):  # type: ignore[misc, valid-type]  # a class, to which typer gives no name
    """Typer's formatter with two fixes: it does not break words at hyphens or at its narrowest column."""

    def __init__(self, **_: Any) -> None:
        super().__init__(width=min(shutil.get_terminal_size((_WIDEST, 24)).columns, _WIDEST))

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        """Write how the command is typed."""
        self.write(wrapped(f"{prefix or 'Usage: '}{prog} {_usage(args)}", self.width, later=" " * 7) + "\n")

    def write_text(self, text: str) -> None:
        """Write paragraphs, which an empty line divides."""
        indent = " " * self.current_indent
        self.write("\n\n".join(wrapped(_one(part), self.width, indent) for part in text.split("\n\n")) + "\n")

    def write_dl(self, rows: Sequence[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        """Write terms and their meanings in two columns, or one below the other if there is no room."""
        rows = [(_term(term), meaning) for term, meaning in rows]
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
    """The context of a command, with our help formatter."""

    formatter_class = HelpFormatter
