"""T29: no attacker. Messages arrive in different orders at different places."""

from __future__ import annotations

from collections.abc import Sequence

from securefda.protocol.messages import Advertise, MaskedInput, ShareBundle, SurvivorSignature, Unmask, Update
from securefda.transport.in_memory import Passed
from threat_model.sites import TARGET

_COLLECTED = (Advertise, ShareBundle, MaskedInput, SurvivorSignature, Unmask, Update)


class ArrivalOrder:
    """A network that delivers the messages for the aggregator in a chosen order of their senders.

    Powers: none but delay.
    Goal: another digest of the same sum.
    Source: addition of floats is not associative (Goldberg 1991), so that a sum depends on the order of its parts.

    Args:
        order: all sources, by roster index.
    """

    threat = "T29"

    def __init__(self, order: Sequence[int]) -> None:
        self._order = tuple(order)
        self._held: dict[tuple[bytes, type], dict[int, Passed]] = {}

    def __call__(self, passed: Passed) -> list[Passed]:
        """Hold a message back until those of all senders have come."""
        body, session_id = passed.message.body, passed.message.envelope.session_id
        if passed.to != TARGET or not isinstance(body, _COLLECTED):
            return [passed]
        held = self._held.setdefault((session_id, type(body)), {})
        held[passed.sender] = passed
        return [held[index] for index in self._order] if len(held) == len(self._order) else []
