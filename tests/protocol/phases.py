"""Which function of the protocol takes a message in which phase, at a source and at the aggregator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from securefda.protocol import aggregator_session as agg
from securefda.protocol import source_session as src

OVER = object()
"""What stands in the place of a phase once the session has its result."""


def taken(
    phase: Any,
    message: Any,
    random: Callable[[int], bytes],
    masked: Callable[[src.ReadyToMask], tuple[src.AwaitingSurvivors, Any]],
    report: bytes = b"",
) -> tuple[Any, Any]:
    """What a source makes of a message: its next phase and its answer.

    ``masked`` makes its input, and ``report`` is its norm report.
    """
    match phase:
        case src.AwaitingKeyList():
            return src.receive_key_list(phase, message, random, report)
        case src.AwaitingRoll():
            return src.receive_roll(phase, message)
        case src.AwaitingNeighbours():
            return src.receive_neighbours(phase, message, random)
        case src.AwaitingShares():
            return masked(src.receive_shares(phase, message))
        case src.AwaitingSurvivors():
            return src.receive_survivors(phase, message)
        case src.AwaitingConsistency():
            return src.receive_consistency(phase, message)
        case src.AwaitingResult():
            src.receive_result(phase, message)
            return OVER, None
    raise AssertionError(f"no message is due in {type(phase).__name__}")


def added(state: Any, message: Any, vector: bytes = b"") -> Any:
    """What the aggregator makes of a source's message: its next phase."""
    if isinstance(state, agg.CollectingInputs):
        return agg.add_input(state, message, vector)
    add: dict[type, Callable[[Any, Any], Any]] = {
        agg.CollectingKeys: agg.add_advertise,
        agg.CollectingNonces: agg.add_nonce,
        agg.CollectingShares: agg.add_shares,
        agg.CollectingSignatures: agg.add_signature,
        agg.CollectingUnmask: agg.add_unmask,
    }
    return add[type(state)](state, message)


def closed(state: Any) -> tuple[Any, Any]:
    """The aggregator's next phase, and what it sends: one message, or one for each source; none once all is open."""
    if isinstance(state, agg.CollectingUnmask):
        return agg.close_unmask(state), None
    close: dict[type, Callable[[Any], tuple[Any, Any]]] = {
        agg.CollectingKeys: agg.close_keys,
        agg.CollectingNonces: agg.close_nonces,
        agg.CollectingShares: agg.close_shares,
        agg.CollectingInputs: agg.close_inputs,
        agg.CollectingSignatures: agg.close_signatures,
    }
    return close[type(state)](state)
