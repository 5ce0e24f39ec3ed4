"""An attempt at visibility ``sum`` or ``cohort``: one masking session, of which nothing opens but the sums."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from securefda.aggregator.attempt import Members, PartialSum, RoundSum
from securefda.errors import FaultySourceError, QuorumLost, SecureFdaError
from securefda.protocol import aggregator as steps
from securefda.protocol.aggregator import AggregatorSession
from securefda.protocol.encoding import ErrorUnits, decode_statistics
from securefda.protocol.messages import (
    Abort,
    Advertise,
    Body,
    MaskedInput,
    Parcel,
    Refusal,
    Send,
    ShareBundle,
    Signed,
    Step,
    SurvivorSignature,
    Unmask,
)


@dataclass(frozen=True, slots=True)
class _PhaseRules:
    """What a collecting phase accepts and what it is called."""

    message: type
    step: Step
    name: str


_PHASES: dict[type, _PhaseRules] = {
    steps.CollectingKeys: _PhaseRules(Advertise, Step.ADVERTISE, "training and R0 advertise"),
    steps.CollectingShares: _PhaseRules(ShareBundle, Step.SHARES, "R1 shares"),
    steps.CollectingInputs: _PhaseRules(MaskedInput, Step.MASKED_INPUT, "R2 masked input"),
    steps.CollectingSignatures: _PhaseRules(SurvivorSignature, Step.SURVIVORS, "R3 survivors"),
    steps.CollectingUnmask: _PhaseRules(Unmask, Step.UNMASK, "R4 unmask"),
}
_MESSAGE_ORDER = [rules.message for rules in _PHASES.values()]


class MaskedAttempt:
    """Drives one session R0 to R4. The state machine decides; this class routes, times nothing and opens nothing."""

    def __init__(
        self,
        session: AggregatorSession,
        before_release: Callable[[], None],
        *,
        units: ErrorUnits | None = None,
        others_train: Callable[[], bool] = lambda: False,
    ) -> None:
        """Open the session.

        Args:
            session: whose header is published.
            before_release: called, and must return, before any source can be induced to release.
            units: of estimated errors, where the header asks for them.
            others_train: whether sources outside the session still have training to do; R0 stays open for as long.
        """
        self._session = session
        self._members = Members(session, session.header.body.masked)
        self._units = units
        self._others_train = others_train
        self._state: steps.Collecting = steps.open_session(session)
        self._before_release = before_release
        self._outcome: RoundSum | SecureFdaError | None = None
        self._released = False
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
        """Name of the phase that it waits in."""
        return _PHASES[type(self._state)].name

    @property
    def gone(self) -> frozenset[int]:
        """Participants that take no part any more."""
        return frozenset(self._members.gone)

    @property
    def waiting_for(self) -> frozenset[int]:
        """Sources that still may answer."""
        return self._state.waiting_for - self._members.gone

    @property
    def may_have_released(self) -> bool:
        """Whether a masked input may have left a source."""
        return self._released

    def expected_upload(self, index: int) -> int:
        """Length of the masked input of a source in R2, in bytes; 0 otherwise."""
        state = self._state
        in_time = isinstance(state, steps.CollectingInputs) and index in self.waiting_for
        return steps.input_bytes(self.header.body) if in_time else 0

    def receive(self, parcel: Parcel) -> list[Send]:
        """Process a message of this session; messages of other sessions and late ones are discarded."""
        message = parcel.message
        if self._outcome is not None or message.envelope.session_id != self.header.envelope.session_id:
            return []
        if isinstance(message.body, (Refusal, Abort)):
            self._members.leave(message)
            return self.go_on()
        rules = _PHASES[type(self._state)]
        if message.sender in self._members.gone or self._is_late(message.body, rules):
            return []
        try:
            self._state = self._add(message, parcel)
        except FaultySourceError as error:
            return self._members.expel(message.sender, error, rules.step) + self.go_on()
        return self.go_on()

    def lose(self, index: int, why: str) -> list[Send]:
        """A source went away."""
        self._members.lose(index, why)
        return self.go_on()

    def expire(self) -> list[Send]:
        """The phase's deadline passed: sources that have not answered are gone."""
        late = self._members.give_up_on(self.waiting_for, _PHASES[type(self._state)].step)
        return late + self.go_on()

    @staticmethod
    def _is_late(body: Body, rules: _PhaseRules) -> bool:
        order = _MESSAGE_ORDER
        return type(body) in order and order.index(type(body)) < order.index(rules.message)

    def _add(self, message: Signed[Any], parcel: Parcel) -> steps.Collecting:
        match self._state, message.body:
            case steps.CollectingKeys() as state, Advertise():
                return steps.add_advertise(state, message)
            case steps.CollectingShares() as state, ShareBundle():
                return steps.add_shares(state, message)
            case steps.CollectingInputs() as state, MaskedInput():
                return steps.add_input(state, message, parcel.vectors[0] if parcel.vectors else b"")
            case steps.CollectingSignatures() as state, SurvivorSignature():
                return steps.add_signature(state, message)
            case steps.CollectingUnmask() as state, Unmask():
                return steps.add_unmask(state, message)
            case _:
                raise FaultySourceError(self._session.name(message.sender), "ORDER", message.type_name)

    def go_on(self) -> list[Send]:
        """Close phases for as long as no source is waited for, or too few can still answer."""
        sends: list[Send] = []
        while self._outcome is None:
            step = _PHASES[type(self._state)].step
            try:
                self._require_enough_left()
                if self.waiting_for or (step is Step.ADVERTISE and self._others_train()):
                    break
                sends += self._close()
            except (QuorumLost, FaultySourceError) as error:
                self._outcome = self._members.explained(error) if isinstance(error, QuorumLost) else error
                sends += self._members.abort_all(step, error)
        return sends

    def _require_enough_left(self) -> None:
        """End at once what cannot succeed; sources that have not answered yet are not to blame for it."""
        able = set(self._state.received) | self.waiting_for
        if len(able) < self._session.threshold:
            have, missing = (
                [self._session.name(index) for index in sorted(group)]
                for group in (able, set(self.header.body.masked) - able)
            )
            raise QuorumLost(self.phase, self._session.threshold, have, missing)

    def _close(self) -> list[Send]:
        match self._state:
            case steps.CollectingKeys() as keys:
                self._state, key_list = steps.close_keys(keys)
                return self._to_all(self._state.u1, key_list)
            case steps.CollectingShares() as shares:
                self._state, deliveries = steps.close_shares(shares)
                self._released = True
                self._before_release()
                left_out = self._give_up(set(shares.received) - self._state.u2, Step.SHARES)
                return left_out + [
                    Send(to, Parcel(one)) for to, one in deliveries.items() if to not in self._members.gone
                ]
            case steps.CollectingInputs() as inputs:
                self._state, lists = steps.close_inputs(inputs)
                given_up = set(inputs.received) - self._state.survivors
                return self._give_up(given_up, Step.SURVIVORS) + self._to_all(self._state.survivors, lists)
            case steps.CollectingSignatures() as signatures:
                self._state, consistency = steps.close_signatures(signatures)
                return self._to_all(self._state.asked, consistency)
            case steps.CollectingUnmask() as unmask:
                opened = steps.close_unmask(unmask)
                self.alarms.extend(opened.faults)
                parts = tuple(
                    PartialSum(
                        self.header.body.level_of(min(one.survivors)),
                        one.decoded.vector,
                        decode_statistics(one.decoded.tail, self._units),
                        one.survivors,
                    )
                    for one in opened.sums
                )
                self._outcome = RoundSum(parts, opened.sum_digest)
        return []

    def _give_up(self, members: set[int], step: Step) -> list[Send]:
        """Tell those whose cohort lost too many that nothing of theirs will be opened."""
        self._members.gone |= members
        return [self._members.abort(index, step, "COHORT_QUORUM", None) for index in sorted(members)]

    def _to_all(self, members: Any, message: Signed[Body]) -> list[Send]:
        return [Send(index, Parcel(message)) for index in sorted(members) if index not in self._members.gone]
