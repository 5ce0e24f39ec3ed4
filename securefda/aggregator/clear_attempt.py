"""An attempt at visibility ``individual``: updates in clear, on each of which the aggregator evaluates the rule."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import numpy as np

from securefda.aggregator.attempt import Members, PartialSum, RoundSum
from securefda.aggregator.rounds import evaluate_at_target
from securefda.aggregator.target import TargetRound, error_units
from securefda.errors import FaultySourceError, QuorumLost, SecureFdaError
from securefda.protocol.aggregator import AggregatorSession
from securefda.protocol.contribution import RoundTerms, clip_contribution, encode_contribution, statistics_of, weight_of
from securefda.protocol.encoding import Vector, decode_statistics, vector_from_wire
from securefda.protocol.masking import accumulate
from securefda.protocol.messages import Abort, Parcel, Refusal, Send, Signed, Step, Update, Visibility


class ClearAttempt:
    """Collects updates in clear, by the sources' consent, and evaluates the rule on each.

    What comes out is summed in the ring, as masked parts are: the levels differ in what is seen, and in nothing else.
    """

    def __init__(self, session: AggregatorSession, target: TargetRound | None) -> None:
        """``target`` is what the target's own training gave, None where the rule uses nothing of it."""
        self._session = session
        self._scope = frozenset(session.header.body.at(Visibility.INDIVIDUAL))
        self._members = Members(session, self._scope)
        self._target = target
        self._units = error_units(target, session.header.body.rule.select)
        self._terms = RoundTerms.of(session.header.body)
        self._total = np.zeros(self._terms.encoding.length, self._terms.encoding.dtype)
        self._answered: dict[int, Update] = {}
        self._outcome: RoundSum | SecureFdaError | None = None
        self.header = session.header
        self.refused = self._members.refused
        self.alarms = self._members.alarms
        self.why = self._members.why

    @property
    def outcome(self) -> RoundSum | SecureFdaError | None:
        """None while it goes on."""
        return self._outcome

    @property
    def phase(self) -> str:
        """Name of the only phase."""
        return "training and update"

    @property
    def gone(self) -> frozenset[int]:
        """Participants that take no part any more."""
        return frozenset(self._members.gone)

    @property
    def waiting_for(self) -> frozenset[int]:
        """Sources that still may answer."""
        return self._scope - set(self._answered) - self._members.gone

    @property
    def may_have_released(self) -> bool:
        """Always: an update in clear may leave as soon as the header has arrived."""
        return True

    def expected_upload(self, index: int) -> int:
        """Length of an update in bytes for a source that has not sent its own; 0 otherwise."""
        return 4 * self.header.body.n_params if self._outcome is None and index in self.waiting_for else 0

    def receive(self, parcel: Parcel) -> list[Send]:
        """Process a message of this attempt; others are discarded."""
        message = parcel.message
        if self._outcome is not None or message.envelope.session_id != self.header.envelope.session_id:
            return []
        if isinstance(message.body, (Refusal, Abort)):
            self._members.leave(message)
            return self._go_on()
        if message.sender in self._members.gone:
            return []
        try:
            self._add(message, parcel)
        except FaultySourceError as error:
            return self._members.expel(message.sender, error, Step.MASKED_INPUT) + self._go_on()
        return self._go_on()

    def lose(self, index: int, why: str) -> list[Send]:
        """A source went away."""
        self._members.lose(index, why)
        return [] if self._outcome is not None else self._go_on()

    def expire(self) -> list[Send]:
        """The deadline passed: sources that have not answered are gone."""
        late = self._members.give_up_on(self.waiting_for, Step.MASKED_INPUT)
        return late if self._outcome is not None else late + self._go_on()

    def _add(self, message: Signed[Any], parcel: Parcel) -> None:
        header, index = self.header.body, message.sender
        self._session.admit(message, self._session.ctx, self._scope, self._answered, kind=Update)
        name = self._session.name(index)
        body, vector = message.body, parcel.vectors[0] if parcel.vectors else b""
        if not len(vector) == body.length_bytes == 4 * header.n_params:
            raise FaultySourceError(name, "INPUT_LENGTH", f"{len(vector)} bytes")
        if sha256(vector).digest() != body.digest:
            raise FaultySourceError(name, "INPUT_DIGEST")
        if body.samples > header.max_samples:
            raise FaultySourceError(name, "INPUT_SAMPLES", f"{body.samples} of at most {header.max_samples}")
        self._evaluate(name, vector_from_wire(vector), body.samples)
        self._answered[index] = body

    def _evaluate(self, name: str, update: Vector, samples: int) -> None:
        """Do with an update in clear what a source at ``sum`` does by itself: rule, clip, encode, add."""
        if not np.all(np.isfinite(update)):
            raise FaultySourceError(name, "INPUT_FINITE", "the update holds NaN or infinity")
        try:
            contribution = evaluate_at_target(self._terms, self._target, update)
        except ValueError as error:
            raise FaultySourceError(name, "INPUT_VALUE", str(error)) from None
        clip_contribution(self.header.body, contribution)
        statistics = statistics_of(contribution, weight_of(self.header.body, samples), None)
        accumulate(self._total, encode_contribution(self._terms, contribution, statistics, self._units))

    def _go_on(self) -> list[Send]:
        if self.waiting_for:
            return []
        if not self._answered:
            names = [self._session.name(index) for index in sorted(self._scope)]
            error = self._members.explained(QuorumLost(self.phase, 1, [], names))
            self._outcome = error
            return self._members.abort_all(Step.MASKED_INPUT, error)
        decoded = self._terms.encoding.decode(self._total, len(self._answered))
        statistics = decode_statistics(decoded.tail, self._units)
        members = frozenset(self._answered)
        part = PartialSum(Visibility.INDIVIDUAL, decoded.vector, statistics, members, self._answered)
        self._outcome = RoundSum((part,), digest=b"")
        return []
