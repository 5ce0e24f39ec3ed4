"""A source that lies about its vector, and keeps to the protocol otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from securefda.protocol.encoding import N_STATISTICS
from securefda.protocol.messages import Header, Parcel
from securefda.protocol.source_session import AwaitingShares, receive_shares
from securefda.source.source_round import capped_and_encoded, release_masked
from securefda.source.source_run import SourceRun

KEPT, SAMPLES, LOSS, ACCURACY = range(-N_STATISTICS, 4 - N_STATISTICS)
"""Where w, n and the sums of metrics stand in an encoded vector."""


class Liar(SourceRun):
    """Masks another vector than its own: ``lie`` changes it in place when it is encoded."""

    def __init__(self, honest: SourceRun, lie: Callable[[Any, Header], None]) -> None:
        super().__init__(honest._site, honest._reporter)
        self._lie = lie

    def handle(self, parcel: Parcel) -> list[Parcel]:
        current = self._round
        if current is None or not isinstance(current.phase, AwaitingShares):
            return super().handle(parcel)
        ready = receive_shares(current.phase, parcel.message)  # type: ignore[arg-type]
        current, encoded = capped_and_encoded(self._site, current, ready)
        self._lie(encoded, current.header.body)
        self._round, answer = release_masked(self._site, current, encoded, ready)
        return [answer]
