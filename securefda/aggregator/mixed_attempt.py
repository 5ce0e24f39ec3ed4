"""An attempt at more than one level: a masking session beside updates in clear."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from securefda.aggregator.attempt import Attempt, RoundSum
from securefda.aggregator.clear_attempt import ClearAttempt
from securefda.aggregator.masked_attempt import MaskedAttempt
from securefda.aggregator.target import TargetRound, error_units
from securefda.errors import SecureFdaError
from securefda.protocol.aggregator import AggregatorSession
from securefda.protocol.encoding import ErrorUnits
from securefda.protocol.messages import Parcel, Send, Visibility


def open_attempt(session: AggregatorSession, target: TargetRound | None, before_release: Callable[[], None]) -> Attempt:
    """The attempt that a header opens, whatever the levels in it.

    Args:
        session: whose header is about to be published.
        target: what the target's own training gave; None where the rule uses nothing of it.
        before_release: called before any source can be induced to release; where one is at ``individual``, that is now.
    """
    header = session.header.body
    units = error_units(target, header.rule.select)
    if header.at(Visibility.INDIVIDUAL):
        before_release()
        clear = ClearAttempt(session, target)
        return MixedAttempt(clear, session, units) if header.masked else clear
    return MaskedAttempt(session, before_release, units=units)


class MixedAttempt:
    """Both at once. The session waits in R0 until every update in clear has arrived, or its time is over.

    Each part ends by itself. The attempt has a result where one of them has.
    """

    def __init__(self, clear: ClearAttempt, session: AggregatorSession, units: ErrorUnits | None) -> None:
        self._clear = clear
        self._masked = MaskedAttempt(session, _nothing, units=units, others_train=lambda: clear.outcome is None)
        self.header = session.header

    @property
    def refused(self) -> Mapping[int, str]:
        """Policy key or check by roster index of the source that refused."""
        return {**self._clear.refused, **self._masked.refused}

    @property
    def alarms(self) -> Sequence[SecureFdaError]:
        """What the operator should know; also why a part gave nothing, where the other one gave something."""
        lost = [part.outcome for part in (self._clear, self._masked) if isinstance(part.outcome, SecureFdaError)]
        partly = lost if isinstance(self.outcome, RoundSum) else []
        return [*self._clear.alarms, *self._masked.alarms, *partly]

    @property
    def why(self) -> Mapping[int, str]:
        """What became of those that are gone."""
        return {**self._clear.why, **self._masked.why}

    @property
    def outcome(self) -> RoundSum | SecureFdaError | None:
        """None while either part goes on."""
        clear, masked = self._clear.outcome, self._masked.outcome
        if clear is None or masked is None:
            return None
        if not isinstance(masked, RoundSum):
            return clear if isinstance(clear, RoundSum) else masked
        if not isinstance(clear, RoundSum):
            return masked
        return RoundSum((*masked.parts, *clear.parts), masked.digest)

    @property
    def phase(self) -> str:
        """Name of the phase that it waits in.

        Until the updates in clear have arrived the session is in R0, or was lost in it; what it lost costs the others
        none of the time that they have to train.
        """
        return self._masked.phase

    @property
    def gone(self) -> frozenset[int]:
        """Participants that take no part any more."""
        return self._clear.gone | self._masked.gone

    @property
    def waiting_for(self) -> frozenset[int]:
        """Sources that still may answer."""
        waiting: frozenset[int] = frozenset()
        for part in (self._clear, self._masked):
            waiting |= part.waiting_for if part.outcome is None else frozenset()
        return waiting

    @property
    def may_have_released(self) -> bool:
        """Always: an update in clear may leave as soon as the header has arrived."""
        return True

    def expected_upload(self, index: int) -> int:
        """Length of the vector that this source may upload now, in bytes; 0 for none."""
        return max(self._clear.expected_upload(index), self._masked.expected_upload(index))

    def receive(self, parcel: Parcel) -> list[Send]:
        """Process a message."""
        return self._part_of(parcel.message.sender).receive(parcel) + self._masked.go_on()

    def lose(self, index: int, why: str) -> list[Send]:
        """A source went away."""
        return self._part_of(index).lose(index, why) + self._masked.go_on()

    def expire(self) -> list[Send]:
        """The deadline passed: go on with the sources that have answered. In a part that is over none is late."""
        sends = self._clear.expire() if self._clear.outcome is None else []
        return sends + (self._masked.expire() if self._masked.outcome is None else [])

    def _part_of(self, index: int) -> ClearAttempt | MaskedAttempt:
        return self._clear if index in self.header.body.at(Visibility.INDIVIDUAL) else self._masked


def _nothing() -> None:
    """What has to be written before a release was written when the first update in clear was asked for."""
