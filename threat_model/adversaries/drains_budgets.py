"""T19: rounds that are charged and never finished, until nothing of a site's budget is left; runs that only reserve."""

from __future__ import annotations

from hashlib import sha256

from securefda.aggregator.headers import AttemptPosition, schedule_of
from securefda.protocol.encoding import vector_to_wire
from securefda.protocol.messages import (
    NO_CONTEXT,
    NO_SESSION,
    RUN_ID_BYTES,
    Advertise,
    Join,
    KeyList,
    Parcel,
    Result,
    Send,
    Step,
    Survivors,
)
from securefda.protocol.secret import draw
from threat_model.adversaries.base import MaliciousAggregator
from threat_model.sites import AggregatorSeat


class DrainsBudget(MaliciousAggregator):
    """Lets every round reach the masked inputs, drops it there, and begins the next.

    Powers: the target's key, and when a round ends.
    Goal: the budget of every source that trains with noise, for no result: such a source trains no more.
    Source: our own.
    """

    threat = "T19"

    def next_place(self) -> AttemptPosition | None:
        """Return one round after another, as long as the last one brought an input."""
        if self.sessions and not self.heard.inputs:
            return None
        return AttemptPosition(self.run, len(self.sessions) + 1, 1, b"")

    def survivors_for(self, index: int) -> Survivors | None:  # noqa: ARG002 - of the base
        """Return None: the sum is of no interest."""
        return None


class AbortsRounds(MaliciousAggregator):
    """Ends each round with a signed abort, and begins the next.

    Powers: the target's key, and when a round ends.
    Goal: an answer in every round and a charge for it, and no round that counts.
    Source: our own.

    Args:
        seat: of the target.
        after: what each source still sends in a round: ``Advertise`` or ``MaskedInput``.
    """

    threat = "T19"

    def __init__(self, seat: AggregatorSeat, *, after: type) -> None:
        super().__init__(seat)
        self._after = after

    def next_place(self) -> AttemptPosition | None:
        """Return one round after another, as long as the last one brought an answer."""
        if self.sessions and not self.heard.answers(self._after):
            return None
        return AttemptPosition(self.run, len(self.sessions) + 1, 1, b"")

    def _send_key_list(self, index: int) -> list[Send]:
        is_enough = self._after is Advertise
        return self.abort(index, Step.ADVERTISE) if is_enough else super()._send_key_list(index)

    def _send_survivors(self, index: int) -> list[Send]:
        return self.abort(index, Step.MASKED_INPUT)


class PaysWithWords(MaliciousAggregator):
    """Drops every round after the first message, and shows a result of it that never was before the next.

    Powers: the target's key: it signs a result under any session that it has begun.
    Goal: as :class:`DrainsBudget`, and rounds that pass for finished ones though no sum was opened.
    Source: our own.
    """

    threat = "T19"

    def next_place(self) -> AttemptPosition | None:
        """Return the next round, which continues a made-up result of the last, as long as that brought an answer."""
        number, previous = len(self.sessions) + 1, b""
        if self.sessions:
            if not self.heard.advertised:
                return None
            context = next(iter(self.heard.views.values())).ctx
            made_up = Result(b"", len(self.heard.views), sha256(vector_to_wire(self.model)).digest())
            self.last_result = self.signer.sign(self.heard.session_id, context, made_up)
            self.receipts, self.had_result = {}, set()
            previous = self.last_result.digest()
        return AttemptPosition(self.run, number, 1, previous) if number <= self.seat.settings.strategy.rounds else None

    def key_list_for(self, index: int) -> KeyList | None:  # noqa: ARG002 - of the base
        """Return None: the round is over."""
        return None


class HoldsBudget(MaliciousAggregator):
    """Opens one run after another, announces as many rounds as it may, and begins none.

    Powers: the target's key, and to open runs as it likes.
    Goal: that a source keeps its budget for runs that will never spend it, and refuses every other.
    Source: our own.
    """

    threat = "T19"

    def next_place(self) -> AttemptPosition | None:
        """Return None: a round would cost the budget."""
        return None

    def receive(self, parcel: Parcel) -> list[Send]:
        """Receive as usual; a source that joins hears what is planned."""
        schedule, index = [], parcel.message.sender
        if isinstance(parcel.message.body, Join):
            planned = schedule_of(self.run, self.seat.settings, len(self.seat.site.sources))
            schedule = [Send(index, Parcel(self.signer.sign(NO_SESSION, NO_CONTEXT, planned)))] if planned else []
        return schedule + super().receive(parcel)

    def open_another(self) -> list[Send]:
        """Begin another run; sources join it as they connect again."""
        self.run = draw(self.seat.site.random_bytes, RUN_ID_BYTES)
        self.witness.enter(self.run_id)
        self.witness.renew()
        self.instance += 1
        return []
