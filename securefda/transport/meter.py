"""Counting bytes per site, from the one place through which all messages pass."""

from __future__ import annotations

from collections import Counter

from securefda.secagg.messages import Body, Signed
from securefda.transport.observer import Direction


class TrafficMeter:
    """An observer at the aggregator: bytes up (from a source) and down (to it) since the start, by roster index."""

    def __init__(self) -> None:
        self._up: Counter[int] = Counter()
        self._down: Counter[int] = Counter()

    def __call__(
        self, direction: Direction, peer: int, message: Signed[Body], wire_bytes: int, *, more: bool = False
    ) -> None:
        """Take note of a message."""
        del message, more  # only its size counts
        (self._down if direction is Direction.SENT else self._up)[peer] += wire_bytes

    def counts(self) -> tuple[dict[int, int], dict[int, int]]:
        """Bytes up and bytes down so far."""
        return dict(self._up), dict(self._down)
