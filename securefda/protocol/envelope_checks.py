"""The checks of a message's envelope, the same for every message at both sides, and how a failed check is raised.

The names of failed checks, here and in the other modules of checks, are part of the protocol and of its error vectors.
"""

from __future__ import annotations

import hmac

from securefda.errors import FaultyAggregatorError
from securefda.protocol.messages import SUITE, Body, Signed
from securefda.protocol.roster import Roster


def require(condition: bool, check: str, detail: str = "") -> None:
    """Blame the aggregator with the name of the failed check."""
    if not condition:
        raise FaultyAggregatorError(check, detail)


def envelope_fault(
    signed: Signed[Body], *, roster: Roster, sender: int, session_id: bytes, context: bytes, kind: type | None = None
) -> str | None:
    """Name of the first check that the envelope of a message fails, or None.

    Covers type, suite, sender, session, context and signature, so a message replayed from another session, phase or
    sender fails. ``kind`` is the expected type of the body; None only if the caller has checked the type itself.
    """
    envelope = signed.envelope
    # Not isinstance: a NeighbourConsistency is a Consistency, and must not pass for one.
    if kind is not None and type(envelope.body) is not kind:
        return "TYPE"
    if envelope.suite != SUITE:
        return "SUITE"
    if envelope.sender != sender:
        return "SENDER"
    if not hmac.compare_digest(envelope.session_id, session_id):
        return "SESSION"
    if not hmac.compare_digest(envelope.context, context):
        return "CONTEXT"
    # Last, as in SFDA-SA/1, section 7: it costs more than all before it.
    return None if signed.verify(roster.by_index(sender).signing_key) else "SIGNATURE"
