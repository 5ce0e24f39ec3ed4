"""Text for people: columns, and words of others that must not steer a terminal."""

from __future__ import annotations

from collections.abc import Sequence


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Lay out rows as columns, two blanks apart; nothing is cut off, whatever the width of the terminal."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def printable(text: str) -> str:
    """Text for a terminal or a log, without what would steer either: a peer's words may stand in it."""
    return "".join(character if character.isprintable() else "?" for character in text)
