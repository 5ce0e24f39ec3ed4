"""A source that lies about its vector, and keeps to the protocol otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from securefda.rounds.source import SourceRounds
from securefda.secagg.checks import TAIL
from securefda.secagg.messages import Header, KeyList, Parcel

KEPT, SAMPLES, LOSS, ACCURACY = range(-TAIL, 4 - TAIL)
"""Where w, n and the sums of metrics stand in an encoded vector."""


class Liar(SourceRounds):
    """Masks another vector than its own: ``lie`` changes it in place when it is encoded."""

    def __init__(self, honest: SourceRounds, lie: Callable[[Any, Header], None]) -> None:
        super().__init__(honest._site, honest._reporter)
        self._lie = lie

    def handle(self, parcel: Parcel) -> list[Parcel]:
        answers = super().handle(parcel)
        if isinstance(parcel.message.body, KeyList) and self._round is not None:
            self._lie(self._round.encoded, self._round.header.body)
        return answers
