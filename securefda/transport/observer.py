"""The interface through which every sent and received message passes, and a meter of each site's bytes."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from typing import Protocol

from securefda.protocol.messages import Body, Signed


class Direction(StrEnum):
    """The direction of a message, as seen from the site whose observer is called."""

    SENT = "sent"
    RECEIVED = "received"


class MessageObserver(Protocol):
    """Sees every message once, in the order in which this site sends and receives.

    It is called before the first byte of a message leaves, and before a received message is handed up, on the thread
    of the event loop. Whatever it raises keeps the message from leaving or from being handed up, and ends the
    transport: what cannot be recorded does not happen.
    """

    def __call__(
        self, direction: Direction, peer: int, message: Signed[Body], wire_bytes: int, *, more: bool = False
    ) -> None:
        """Observe a message.

        Args:
            direction: sent or received.
            peer: roster index of the site at the other end of the connection.
            message: the message; its signature has not been checked yet where it was received.
            wire_bytes: what :func:`wire_size` says of it, the same number at both ends.
            more: another message follows at once, and none of them leaves before it was shown: what has to be on the
                disk by then may be forced to it with the last.
        """


def wire_size(message: Signed[Body], vector_bytes: int) -> int:
    """Return the bytes of a message as both ends count it: signed bytes, signature and vectors, without framing."""
    return len(message.signed_bytes) + len(message.signature) + vector_bytes


def ignore(direction: Direction, peer: int, message: Signed[Body], wire_bytes: int, *, more: bool = False) -> None:
    """Ignore a message: the observer of a site that keeps no log."""


class TrafficMeter:
    """An observer at the aggregator: bytes up (from a source) and down (to it) since the start, by roster index."""

    def __init__(self) -> None:
        self._up: Counter[int] = Counter()
        self._down: Counter[int] = Counter()

    def __call__(
        self, direction: Direction, peer: int, message: Signed[Body], wire_bytes: int, *, more: bool = False
    ) -> None:
        """Count a message."""
        del message, more  # only its size counts
        (self._down if direction is Direction.SENT else self._up)[peer] += wire_bytes

    def counts(self) -> tuple[dict[int, int], dict[int, int]]:
        """Return bytes up and bytes down so far."""
        return dict(self._up), dict(self._down)
