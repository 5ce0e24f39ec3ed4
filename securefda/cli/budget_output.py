"""What the budget commands share in what they print and draw."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from securefda.errors import ConfigError

if TYPE_CHECKING:
    from securefda.cli.figures import Series

_WIDTH = 100
_SVG_START = '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'


def up(epsilon: float) -> str:
    """Four decimals, rounded up: what is printed of an upper bound is one."""
    return f"{math.ceil(epsilon * 10_000) / 10_000:.4f}" if math.isfinite(epsilon) else "not finite"


def down(epsilon: float) -> str:
    """Four decimals, rounded down: for what is left."""
    return f"{math.floor(epsilon * 10_000) / 10_000:.4f}"


def finite(epsilon: float) -> float | None:
    """What JSON can say of an epsilon; None where none is known."""
    return epsilon if math.isfinite(epsilon) else None


def filled(lines: Iterable[str]) -> str:
    """Lines of words, wrapped."""
    return "\n".join(textwrap.fill(line, _WIDTH, break_long_words=False) for line in lines)


def require_new(plot: Path | None) -> None:
    """Refuse, before any work, to draw over a file. Raises ConfigError."""
    if plot is not None and plot.exists():
        raise ConfigError("--plot", f"{plot} exists already", hint="name a new file, or remove that one")


def draw(path: Path, lines: Series, delta: float, about: str) -> None:
    """Write the curves of epsilon over the rounds as an SVG by itself, with ``about`` in it.

    Raises:
        ConfigError: the file cannot be written.
    """
    from securefda.cli.figures import lines_figure
    from securefda.federation.files import write_file, writing_errors

    label = f"epsilon at delta {delta:g},\none row added or removed"
    svg = lines_figure(lines, label, "budget")
    # A figure of the report takes names and colours from its page; a file has to bring them.
    start = f'{_SVG_START} style="background: #fff; color: #000"'
    opening, end, rest = svg.replace("<svg", start, 1).partition(">")
    with writing_errors(path):
        write_file(path, f"{opening}{end}<desc>{about}</desc>{rest}".encode(), 0o644)
