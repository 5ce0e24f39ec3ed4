"""How the plots of studies look."""

from __future__ import annotations

from typing import Any


def style(name: str) -> dict[Any, Any]:
    """Settings of matplotlib. The names of a plot's parts follow from ``name``: the same figures give the same file."""
    return {
        "svg.hashsalt": name,
        "svg.fonttype": "path",
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.alpha": 0.3,
        "legend.frameon": False,
    }
