"""How far the tests go: ``make test`` is quick, ``make test-deep`` sets ``SECUREFDA_TEST_DEPTH=deep``.

Both run the same tests. What differs is how many seeds, mutations and examples each of them tries.
"""

from __future__ import annotations

import os
from typing import TypeVar

Value = TypeVar("Value")

DEEP = os.environ.get("SECUREFDA_TEST_DEPTH") == "deep"


def at_depth(quick: Value, deep: Value) -> Value:
    """``quick`` in ``make test``, ``deep`` in ``make test-deep``."""
    return deep if DEEP else quick
