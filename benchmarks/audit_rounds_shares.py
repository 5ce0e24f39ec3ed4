"""What ``audit_rounds.py`` and the processes it starts share: a log's calls timed, or left out by blocks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from shares import Shares

from securefda.audit.journal import Journal, MessageRecorder
from securefda.audit.records import Entry
from securefda.audit.witness import Witness
from securefda.protocol.messages import Body, Header, Signed
from securefda.transport.observer import Direction

LOGGING = ((Journal, "append"), (Journal, "event"), (MessageRecorder, "_keep"), (MessageRecorder, "_entry"))
STAY = frozenset({"run-began", "policy-loaded", "restarted", "run-ended", "checkpoint-signed", "checkpoint-cosigned"})
WITNESSING = (
    *((Witness, name) for name in ("renew", "show", "cosign", "take", "check_previous_checkpoint")),
    (Journal, "save"),
)


def replace(shares: Shares) -> list[tuple[type, str, Any]]:
    """Have the calls of this process's log timed; returns what was there before."""
    before = [(kind, name, getattr(kind, name)) for kind, name in LOGGING + WITNESSING]
    for kind, name, work in before:
        setattr(kind, name, shares.timed("logging" if (kind, name) in LOGGING else "witnessing", work))
    return before


@contextmanager
def timing() -> Iterator[Shares]:
    """Time the calls of logs in this block."""
    shares = Shares()
    before = replace(shares)
    try:
        yield shares
    finally:
        for kind, name, work in before:
            setattr(kind, name, work)


def log_by_blocks(block: int) -> None:
    """Have this process write down what it does in every second block of rounds alone.

    In the others it writes no record of a message or of what a round decided, and keeps no message. Only the events
    that begin and end a log stay, and those of checkpoints: sites go on cosigning a log that grows.
    """
    append, observe = Journal.append, MessageRecorder.__call__
    logged = True

    def append_what_stays(self: Journal, entry: Entry, *, durable: bool = False) -> None:
        if logged or entry.type in STAY:
            append(self, entry, durable=durable)

    def observe_in_turn(
        self: MessageRecorder,
        direction: Direction,
        peer: int,
        message: Signed[Body],
        wire_bytes: int,
        *,
        more: bool = False,
    ) -> None:
        nonlocal logged
        if isinstance(message.body, Header):
            logged = is_logged(message.body.round, block)
        if logged:
            observe(self, direction, peer, message, wire_bytes, more=more)
            return
        if self._run is not None:
            self._journal.begin(self._run)
        self._then(direction, peer, message, wire_bytes, more=more)

    Journal.append = append_what_stays  # type: ignore[method-assign]
    MessageRecorder.__call__ = observe_in_turn  # type: ignore[method-assign]


def is_logged(round_number: int, block: int) -> bool:
    """Whether sites write down what happens in a round, counted from 1, where every second block has its records."""
    return ((round_number - 1) // block) % 2 == 0
