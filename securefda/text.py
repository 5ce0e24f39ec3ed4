"""Text for people: columns, line breaks, and foreign text made safe for a terminal."""

from __future__ import annotations

import math
import re
import shlex
import textwrap
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

MOST_NAMES: Final = 8
"""The most names that a list in a sentence has."""

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")
_PHASES: Final = {
    "join": "gathering sources",
    "witness": "collecting signatures of the audit log",
    "train_target": "training at the target",
    "target_features": "computing features of the target's rows",
    "training and update": "sources train and send their updates",
    "training and R0 advertise": "sources train and send their keys",
    "training and R1 shares": "sources train and send shares of their keys",
    "moments": "adding up second moments of its rows",
    "moments and update": "sources add up second moments of their rows and send them",
    "moments and R0 advertise": "sources add up second moments of their rows and send their keys",
    "moments and R1 shares": "sources add up second moments of their rows and send shares of their keys",
    "R0 advertise": "collecting keys",
    "R0 nonces": "drawing neighbours at random",
    "R1 shares": "collecting shares of the keys",
    "R2 masked input": "collecting masked updates",
    "R3 survivors": "collecting signatures of who is in the sum",
    "R3 consistency": "collecting signatures of who is in the sum",
    "R4 unmask": "removing the masks",
    "rule": "combining the updates",
    "evaluate": "measuring the model",
    "compare": "running other rules",
    "closing": "collecting signatures of the end of the run",
}
"""A phase's name in logs, metrics and records, and what people read of it."""


def utc_minute(time: datetime | int) -> str:
    """Return a moment to the minute; ``time`` has a time zone, or is Unix time in seconds."""
    moment = datetime.fromtimestamp(time, UTC) if isinstance(time, int) else time.astimezone(UTC)
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def utc_second(unix_s: int) -> str:
    """Return a Unix time to the second."""
    return f"{datetime.fromtimestamp(unix_s, UTC):%Y-%m-%d %H:%M:%S} UTC"


def said_of(site: str, message: str) -> str:
    """Return a message that begins with the site that it is of, which it may do already."""
    return message if message.startswith((f"{site}: ", f"{site}, ")) else f"{site}: {message}"


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Lay out rows as columns, two blanks apart; nothing is cut off, whatever the width of the terminal."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def wrapped(text: str, width: int, indent: str = "", later: str | None = None) -> str:
    """Wrap a paragraph into lines of at most ``width`` characters; a longer word gets a line of its own, unbroken.

    Args:
        text: one paragraph; runs of blanks inside it stay.
        width: in characters.
        indent: before the first line.
        later: before the others; default: the same.
    """
    lines = textwrap.wrap(
        text,
        width,
        initial_indent=indent,
        subsequent_indent=indent if later is None else later,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines)


def fitted(text: str, width: int) -> str:
    """Fit lines into a terminal of ``width`` characters: long ones continue below their last column.

    A command to be copied stays one line, below its label if it has one, and the second line of a comment is a comment.
    """
    lines = []
    for line in text.split("\n"):
        words = line.lstrip(" ")
        if len(line) <= width or words.startswith("securefda "):
            lines.append(line)
            continue
        if labelled := re.fullmatch(r"(\S+) {2,}(securefda .*)", line):
            lines += [labelled[1], f"  {labelled[2]}"]
            continue
        columns = [found.end() for found in re.finditer(r"\S {2,}(?=\S)", line)]
        blanks = len(line) - len(words)
        under = columns[-1] if columns and columns[-1] <= width // 2 else min(blanks + 2, width // 2)
        later = "# " if words.startswith("# ") else " " * under
        lines.append(wrapped(words, width, " " * min(blanks, width // 2), later))
    return "\n".join(lines)


def printable(text: str) -> str:
    """Return text without characters that would control a terminal or break a log; a peer's words may stand in it."""
    return "".join(character if character.isprintable() else "?" for character in text)


def quoted(path: object) -> str:
    """Return a path as one word of a command that a user copies into a shell."""
    return shlex.quote(str(path))


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun, for example ``1 source`` or ``3,000 sources``."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def human_bytes(count: float) -> str:
    """Return a number of bytes with a binary unit, for example ``1.5 MiB``."""
    scale, unit = binary_unit(count)
    return f"{count / scale:.1f} {unit}" if scale > 1 else f"{count:.0f} B"


def binary_unit(count: float) -> tuple[int, str]:
    """Return the largest unit of which there is one in a number of bytes: how many bytes it has, and its name."""
    power = next((power for power in range(len(_UNITS)) if count < 1024 ** (power + 1)), len(_UNITS) - 1)
    return 1024**power, _UNITS[power]


def bound_text(epsilon: float) -> str:
    """Format an upper bound with four decimals, rounded up."""
    return f"{math.ceil(epsilon * 10_000) / 10_000:.4f}" if math.isfinite(epsilon) else "not finite"


def left_text(epsilon: float) -> str:
    """Format what is left with four decimals, rounded down, and never below zero."""
    return f"{math.floor(max(0.0, epsilon) * 10_000) / 10_000:.4f}"


def phase_words(phase: str) -> str:
    """Describe a phase, for example ``collecting masked updates``; a phase without a description keeps its name.

    What stands behind a comma says of whom, and stays.
    """
    name, comma, of_whom = phase.partition(", ")
    return _PHASES.get(name, name) + comma + of_whom


def duration(seconds: float) -> str:
    """Return a duration for people, with about two digits: ``0.25 s``, ``4.2 s``, ``56 s``, ``5 min``, ``2.5 h``."""
    if seconds < 1:
        return f"{seconds:.2f} s"
    if seconds < 90:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def names(sites: Sequence[str], most: int = MOST_NAMES) -> str:
    """Join names with commas; of many, show the first ones and the total."""
    return ", ".join(sites) if len(sites) <= most else f"{', '.join(sites[: most - 2])} and others, {len(sites)} in all"


def first_of(sites: Sequence[str], most: int) -> str:
    """Join names with commas; of many, show the first ones and how many more there are."""
    return f"{', '.join(sites[:most])}{f' and {len(sites) - most} more' if len(sites) > most else ''}"
