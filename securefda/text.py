"""Text for people: columns, and words of others that must not steer a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

MOST_NAMES: Final = 8
"""That a list in a sentence has."""


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Lay out rows as columns, two blanks apart; nothing is cut off, whatever the width of the terminal."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def printable(text: str) -> str:
    """Text for a terminal or a log, without what would steer either: a peer's words may stand in it."""
    return "".join(character if character.isprintable() else "?" for character in text)


def counted(number: int, noun: str, plural: str = "") -> str:
    """A number with its noun, for example ``1 source`` or ``3,000 sources``."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def duration(seconds: float) -> str:
    """A time for people, two digits or so: ``0.25 s``, ``4.2 s``, ``56 s``, ``5 min``, ``2.5 h``."""
    if seconds < 1:
        return f"{seconds:.2f} s"
    if seconds < 90:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def names(sites: Sequence[str], most: int = MOST_NAMES) -> str:
    """Names with commas; of many, the first ones and how many there are in all."""
    return ", ".join(sites) if len(sites) <= most else f"{', '.join(sites[: most - 2])} and others, {len(sites)} in all"
