"""One attempt at a round: it ends with sums over some of its sources, or with an error.

``MaskedAttempt`` drives the session of the sources at ``sum`` and ``cohort``, ``ClearAttempt`` collects the updates of
those at ``individual``, and ``MixedAttempt`` does both. All keep only running sums and no single update.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from types import MappingProxyType
from typing import Any

import numpy as np

from securefda.aggregator.target import TargetOutput, error_units, evaluate_at_target
from securefda.errors import FaultySourceError, QuorumLost, SecureFdaError, SourceAborted
from securefda.protocol import aggregator as session_phases
from securefda.protocol.aggregator import AggregatorSession
from securefda.protocol.contribution import RoundTerms, clip_contribution, encode_contribution, statistics_of, weight_of
from securefda.protocol.encoding import (
    AggregateStatistics,
    ErrorUnits,
    Vector,
    Vector64,
    decode_statistics,
    vector_from_wire,
)
from securefda.protocol.envelope_checks import envelope_fault
from securefda.protocol.masking import accumulate
from securefda.protocol.messages import (
    Abort,
    Advertise,
    Body,
    MaskedInput,
    Nonce,
    Parcel,
    Refusal,
    Send,
    ShareBundle,
    Signed,
    Step,
    SurvivorSignature,
    Unmask,
    Update,
    Visibility,
)
from securefda.protocol.secret import Secret


@dataclass(frozen=True, slots=True, repr=False)
class PartialSum:
    """One sum over some sources, weighted by samples, in units of the header's ``max_samples``.

    Attributes:
        level: visibility level of the members; at ``individual`` the aggregator added up updates in clear.
        vector: V of the rules, or at ``cohort`` the sum of n_i g_i; float64 (m,).
        statistics: the summed statistics, with w and n.
        members: roster indices in the sum.
        reports: at ``individual``, the message of each member's update.
        clipped: at ``individual``, how many coordinates of each member's contribution the clip or a range changed.
    """

    level: Visibility
    vector: Vector64
    statistics: AggregateStatistics
    members: frozenset[int]
    reports: Mapping[int, Update] = field(default_factory=dict)
    clipped: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, repr=False)
class RoundSum:
    """The result of an attempt: one sum for each set of sources that were summed together.

    Attributes:
        partial_sums: over disjoint sets of sources.
        digest: SHA-256 of the opened ring sums; empty if all updates were sent in clear.
    """

    partial_sums: tuple[PartialSum, ...]
    digest: bytes

    @property
    def survivors(self) -> frozenset[int]:
        """Roster indices of all sources in a sum."""
        return frozenset().union(*(one.members for one in self.partial_sums))

    @property
    def count(self) -> int:
        """Number of sources in masked sums, which each of them can check; if there is none, of updates in clear."""
        masked = [len(one.members) for one in self.partial_sums if one.level is not Visibility.INDIVIDUAL]
        return sum(masked) if masked else len(self.survivors)


NOTHING: Mapping[int, float] = MappingProxyType({})
"""Nothing of any vector has arrived."""


class _BaseAttempt:
    """An attempt's bookkeeping about the sources in ``scope``: which are gone, why, and the aborts to send.

    Attributes:
        header: the signed header that opened the attempt.
        terms: the computation that it asks for.
        gone: participants that refused, aborted, failed a check or were lost; they get no further message.
        refused: policy key or check for which a source refused, by roster index.
        why: why each source is gone. Refusals are left out, since other sources read this in the last goodbye.
        alarms: errors to report to the operator.
        outcome: None while the attempt goes on.
        hint: how to help sources that were late; can be empty.
    """

    def __init__(self, session: AggregatorSession, terms: RoundTerms, scope: Iterable[int]) -> None:
        self._session = session
        self._scope = frozenset(scope)
        self.header, self.terms = session.header, terms
        self.gone: set[int] = set()
        self.refused: dict[int, str] = {}
        self.why: dict[int, str] = {}
        self.alarms: list[SecureFdaError] = []
        self.outcome: RoundSum | SecureFdaError | None = None
        self.hint = ""

    @property
    def silent(self) -> frozenset[int]:
        """The sources whose missing nonces ended the attempt, if that was the cause; retry without them."""
        return frozenset()

    def _forget(self, index: int, why: str) -> None:
        """Expect nothing more from a source."""
        self.gone.add(index)
        self.why.setdefault(index, why)

    def _give_up_on(self, waiting: Iterable[int], step: Step, arrived: Mapping[int, float], setting: str) -> list[Send]:
        """Give up on sources that missed the deadline, and send each an abort.

        Args:
            waiting: the late sources.
            step: the step whose deadline passed.
            arrived: the fraction of each source's vector that has arrived, 0 to 1.
            setting: key of the setting for this deadline.
        """
        late = sorted(waiting)
        for index in late:
            fraction = arrived.get(index, 0.0)
            self._forget(index, f"{fraction:.0%} of its update had come in time" if fraction else "no answer in time")
            if fraction:
                self.hint = f"raise {setting} at the target: its line is slow for a model of this size"
        return [self._abort(index, step, "DEADLINE", None) for index in late]

    def _explained(self, error: QuorumLost) -> QuorumLost:
        """The error, with the reason why each source is gone."""
        return error.because({self._session.name(index): why for index, why in self.why.items()}, hint=self.hint)

    def _leave(self, message: Signed[Body]) -> None:
        """Take a refusal or an abort; the source gets no further message in this attempt."""
        body, index, envelope = message.body, message.sender, message.envelope
        if index in self.gone or index not in self._scope:
            return
        session_id = self.header.envelope.session_id
        roster, context = self._session.roster, envelope.context
        fault = envelope_fault(message, roster=roster, sender=index, session_id=session_id, context=context)
        if fault:
            return
        self.gone.add(index)
        name = self._session.name(index)
        if isinstance(body, Refusal):
            self.refused[index] = body.key
        elif isinstance(body, Abort):
            step = body.step.label
            text = f"source {name} aborted at {step}: check {body.check} failed"
            if body.accused in self.header.body.participants:
                text += f"; it accuses {self._session.name(body.accused)}"
            self.alarms.append(SourceAborted(name, body.check, text))
            self.why[index] = f"aborted at {step}: check {body.check} failed"

    def _expel(self, index: int, error: FaultySourceError, step: Step) -> list[Send]:
        """Exclude a source whose message failed a check, and send it an abort that names the check."""
        self.gone.add(index)
        error.place = step.label
        self.alarms.append(error)
        self.why[index] = f"fails check {error.check} at {error.place}"
        return [self._abort(index, step, error.check, index)]

    def _abort(self, to: int, step: Step, check: str, accused: int | None) -> Send:
        """A signed abort for one source."""
        return Send(to, Parcel(self._session.sign(self._session.ctx, Abort(step, check, accused))))

    def _abort_all(self, step: Step, error: SecureFdaError) -> list[Send]:
        """Tell every source that is not gone that the attempt is over."""
        check, accused = getattr(error, "check", "QUORUM"), None
        if isinstance(error, FaultySourceError) and check != "SHARE_COMMITMENT":  # there a holder may have lied
            named = [one.index for one in self._session.roster.sources if one.site_id == error.source_id]
            accused = named[0] if named else None
        return [self._abort(index, step, check, accused) for index in sorted(self._scope - self.gone)]


@dataclass(frozen=True, slots=True)
class _CollectingPhase:
    """The message that a phase of the session collects, its step, and its name for operators."""

    message: type
    step: Step
    name: str


_PHASES: dict[type, _CollectingPhase] = {
    session_phases.CollectingKeys: _CollectingPhase(Advertise, Step.ADVERTISE, "training and R0 advertise"),
    session_phases.CollectingNonces: _CollectingPhase(Nonce, Step.ADVERTISE, "R0 nonces"),
    session_phases.CollectingShares: _CollectingPhase(ShareBundle, Step.SHARES, "R1 shares"),
    session_phases.CollectingInputs: _CollectingPhase(MaskedInput, Step.MASKED_INPUT, "R2 masked input"),
    session_phases.CollectingSignatures: _CollectingPhase(SurvivorSignature, Step.SURVIVORS, "R3 survivors"),
    session_phases.CollectingUnmask: _CollectingPhase(Unmask, Step.UNMASK, "R4 unmask"),
}


class MaskedAttempt(_BaseAttempt):
    """Drives one session from R0 to R4: routes messages to the state machine, which makes all decisions."""

    def __init__(
        self,
        session: AggregatorSession,
        terms: RoundTerms,
        before_release: Callable[[], None],
        *,
        units: ErrorUnits | None,
        others_train: Callable[[], bool] = lambda: False,
    ) -> None:
        """Open the session.

        Args:
            session: the session of a published header.
            terms: the computation that the header asks for.
            before_release: called before any message that can make a source release its input.
            units: units in which estimated errors are encoded, if the header asks for them.
            others_train: whether sources outside the session are still training; R0 stays open until they are done.
        """
        super().__init__(session, terms, terms.header.masked)
        self._units = units
        self._others_train = others_train
        self._state: session_phases.Collecting = session_phases.open_session(session)
        self._before_release = before_release
        self._released = False

    @property
    def phase(self) -> str:
        """Name of the present phase."""
        return _PHASES[type(self._state)].name

    @property
    def waiting_for(self) -> frozenset[int]:
        """Sources that can still answer."""
        return self._state.waiting_for - self.gone

    @property
    def asked(self) -> int:
        """Number of sources in the phase: those that have answered, and those that still can."""
        return len(self._state.received.keys() | self.waiting_for)

    @property
    def silent(self) -> frozenset[int]:
        """The sources whose missing nonces ended the attempt, if that was the cause; retry without them."""
        ended_for_it = isinstance(self._state, session_phases.CollectingNonces) and self.outcome is not None
        return self._state.waiting_for if ended_for_it else frozenset()

    @property
    def may_have_released(self) -> bool:
        """Whether a masked input may have left a source."""
        return self._released

    def expected_upload(self, index: int) -> int:
        """Length of the masked input of a source in R2, in bytes; 0 otherwise."""
        state = self._state
        in_time = isinstance(state, session_phases.CollectingInputs) and index in self.waiting_for
        return self._session.encoding.nbytes if in_time else 0

    def receive(self, parcel: Parcel) -> list[Send]:
        """Process a message of this session; messages of other sessions and late ones are discarded."""
        message = parcel.message
        if self.outcome is not None or message.envelope.session_id != self.header.envelope.session_id:
            return []
        if isinstance(message.body, (Refusal, Abort)):
            self._leave(message)
            return self.go_on()
        phase, kind = _PHASES[type(self._state)], type(message.body)
        order = [one.message for one in _PHASES.values()]
        is_late = kind in order and order.index(kind) < order.index(phase.message)
        if message.sender in self.gone or is_late:
            return []
        try:
            self._state = self._add(message, parcel)
        except FaultySourceError as error:
            return self._expel(message.sender, error, phase.step) + self.go_on()
        return self.go_on()

    def lose(self, index: int, why: str) -> list[Send]:
        """Note that a source went away."""
        self._forget(index, why)
        return self.go_on()

    def expire(self, arrived: Mapping[int, float] = NOTHING) -> list[Send]:
        """End the phase at its deadline without the late sources. ``arrived`` is as for `_give_up_on`."""
        step = _PHASES[type(self._state)].step
        late = self._give_up_on(self.waiting_for, step, arrived, "transport.phase-deadline-s")
        return late + self.go_on()

    def _add(self, message: Signed[Any], parcel: Parcel) -> session_phases.Collecting:
        match self._state, message.body:
            case session_phases.CollectingKeys() as state, Advertise():
                return session_phases.add_advertise(state, message)
            case session_phases.CollectingNonces() as state, Nonce():
                return session_phases.add_nonce(state, message)
            case session_phases.CollectingShares() as state, ShareBundle():
                return session_phases.add_shares(state, message)
            case session_phases.CollectingInputs() as state, MaskedInput():
                return session_phases.add_input(state, message, parcel.vectors[0] if parcel.vectors else b"")
            case session_phases.CollectingSignatures() as state, SurvivorSignature():
                return session_phases.add_signature(state, message)
            case session_phases.CollectingUnmask() as state, Unmask():
                return session_phases.add_unmask(state, message)
            case _:
                raise FaultySourceError(self._session.name(message.sender), "ORDER", message.type_name)

    def go_on(self) -> list[Send]:
        """Close phases until one has to wait for a source, or too few sources are left."""
        sends: list[Send] = []
        while self.outcome is None:
            step = _PHASES[type(self._state)].step
            try:
                self._require_enough_left()
                is_first = isinstance(self._state, session_phases.CollectingKeys)
                if self.waiting_for or (is_first and self._others_train()):
                    break
                sends += self._close()
            except (QuorumLost, FaultySourceError) as error:
                self.outcome = self._explained(error) if isinstance(error, QuorumLost) else error
                sends += self._abort_all(step, error)
        return sends

    def _require_enough_left(self) -> None:
        """Fail at once if too few sources are left; those that could still answer do not count as missing."""
        able = set(self._state.received) | self.waiting_for
        if len(able) < self._session.threshold:
            have, missing = (
                [self._session.name(index) for index in sorted(group)]
                for group in (able, set(self.header.body.masked) - able)
            )
            raise QuorumLost(self.phase, self._session.threshold, have, missing)

    def _close(self) -> list[Send]:
        sends: list[Send] = []
        match self._state:
            case session_phases.CollectingKeys() as keys:
                self._state, key_list = session_phases.close_keys(keys, self.gone)
                sends = self._to_all(self._state.u1, key_list)
            case session_phases.CollectingNonces() as nonces:
                self._state, neighbours = session_phases.close_nonces(nonces)
                sends = self._to_each(neighbours)
            case session_phases.CollectingShares() as shares:
                self._state, deliveries = session_phases.close_shares(shares)
                self._released = True
                self._before_release()
                sends = self._give_up(set(shares.received) - self._state.u2, Step.SHARES) + self._to_each(deliveries)
            case session_phases.CollectingInputs() as inputs:
                self._state, lists = session_phases.close_inputs(inputs)
                given_up = self._give_up(set(inputs.received) - self._state.survivors, Step.SURVIVORS)
                sends = given_up + self._to_all(self._state.survivors, lists)
            case session_phases.CollectingSignatures() as signatures:
                self._state, shown = session_phases.close_signatures(signatures)
                sends = self._to_each(shown) if isinstance(shown, Mapping) else self._to_all(self._state.asked, shown)
            case session_phases.CollectingUnmask() as unmask:
                opened = session_phases.close_unmask(unmask)
                self.alarms.extend(opened.faults)
                partial_sums = tuple(
                    PartialSum(
                        self.header.body.level_of(min(one.survivors)),
                        one.decoded.vector,
                        decode_statistics(one.decoded.statistics, self._units),
                        one.survivors,
                    )
                    for one in opened.sums
                )
                self.outcome = RoundSum(partial_sums, opened.sum_digest)
        return sends

    def _give_up(self, members: set[int], step: Step) -> list[Send]:
        """Send an abort to the members of cohorts that lost too many, as their inputs will not be opened."""
        self.gone |= members
        return [self._abort(index, step, "COHORT_QUORUM", None) for index in sorted(members)]

    def _to_each(self, messages: Mapping[int, Signed[Any]]) -> list[Send]:
        return [Send(to, Parcel(one)) for to, one in messages.items() if to not in self.gone]

    def _to_all(self, members: Any, message: Signed[Body]) -> list[Send]:
        return [Send(index, Parcel(message)) for index in sorted(members) if index not in self.gone]


class ClearAttempt(_BaseAttempt):
    """Collects updates in clear, by the sources' consent, and evaluates the rule on each.

    The contributions are encoded and summed in the ring like masked inputs, so that all levels compute the same.
    """

    def __init__(
        self, session: AggregatorSession, terms: RoundTerms, target: TargetOutput | None, units: ErrorUnits | None
    ) -> None:
        """Expect the updates.

        Args:
            session: the session of a published header.
            terms: the computation that the header asks for.
            target: what the target computed in this round; None if the rule uses nothing of it.
            units: units in which estimated errors are encoded, if the header asks for them.
        """
        super().__init__(session, terms, terms.header.at(Visibility.INDIVIDUAL))
        self._target, self._units = target, units
        self._total = np.zeros(terms.encoding.length, np.uint32)
        self._answered: dict[int, Update] = {}
        self._clipped: dict[int, int] = {}

    @property
    def phase(self) -> str:
        """Name of the only phase."""
        return "training and update"

    @property
    def waiting_for(self) -> frozenset[int]:
        """Sources that can still answer."""
        return self._scope - set(self._answered) - self.gone

    @property
    def asked(self) -> int:
        """Number of sources that have answered, and of those that still can."""
        return len(self._answered.keys() | self.waiting_for)

    @property
    def may_have_released(self) -> bool:
        """Always: an update in clear may leave as soon as the header has arrived."""
        return True

    def expected_upload(self, index: int) -> int:
        """Length of an update in bytes for a source that has not sent its own; 0 otherwise."""
        return 4 * self.header.body.n_summed if self.outcome is None and index in self.waiting_for else 0

    def receive(self, parcel: Parcel) -> list[Send]:
        """Process a message of this attempt; others are discarded."""
        message = parcel.message
        if self.outcome is not None or message.envelope.session_id != self.header.envelope.session_id:
            return []
        if isinstance(message.body, (Refusal, Abort)):
            self._leave(message)
            return self._go_on()
        if message.sender in self.gone:
            return []
        try:
            self._add(message, parcel)
        except FaultySourceError as error:
            return self._expel(message.sender, error, Step.MASKED_INPUT) + self._go_on()
        return self._go_on()

    def lose(self, index: int, why: str) -> list[Send]:
        """Note that a source went away."""
        self._forget(index, why)
        return [] if self.outcome is not None else self._go_on()

    def expire(self, arrived: Mapping[int, float] = NOTHING) -> list[Send]:
        """The deadline passed: sources that have not answered are gone. ``arrived`` as in `_give_up_on`."""
        late = self._give_up_on(self.waiting_for, Step.MASKED_INPUT, arrived, "transport.training-deadline-s")
        return late if self.outcome is not None else late + self._go_on()

    def _add(self, message: Signed[Any], parcel: Parcel) -> None:
        header, index = self.header.body, message.sender
        self._session.admit(message, self._session.ctx, self._scope, self._answered, kind=Update)
        name = self._session.name(index)
        body, vector = message.body, parcel.vectors[0] if parcel.vectors else b""
        if not len(vector) == body.length_bytes == 4 * header.n_summed:
            raise FaultySourceError(name, "INPUT_LENGTH", f"{len(vector)} bytes")
        if sha256(vector).digest() != body.digest:
            raise FaultySourceError(name, "INPUT_DIGEST")
        if body.samples > header.max_samples:
            raise FaultySourceError(name, "INPUT_SAMPLES", f"{body.samples} of at most {header.max_samples}")
        self._clipped[index] = self._evaluate(name, vector_from_wire(vector), body)
        self._answered[index] = body

    def _evaluate(self, name: str, update: Vector, body: Update) -> int:
        """Do what a source at ``sum`` does with its own update: evaluate the rule, clip, encode; then add it.

        Returns:
            How many coordinates of the contribution the clip or a range changed.
        """
        if not np.all(np.isfinite(update)):
            raise FaultySourceError(name, "INPUT_FINITE", "the update holds NaN or infinity")
        if (body.alignment is not None) is not self.terms.plan.aligns_estimates_only:
            raise FaultySourceError(name, "INPUT_VALUE", "a factor of alignment for which no rule asks, or none")
        try:
            alignment = 1.0 if body.alignment is None else body.alignment
            contribution = evaluate_at_target(self.terms, self._target, update, alignment)
        except ValueError as error:
            raise FaultySourceError(name, "INPUT_VALUE", str(error)) from None
        weight = weight_of(self.header.body, body.samples)
        clipped = clip_contribution(self.header.body, contribution, weight)
        statistics = statistics_of(contribution, weight, None)
        rounding = Secret(body.rounding_key)
        accumulate(self._total, encode_contribution(self.terms, contribution, statistics, self._units, rounding))
        return sum(clipped)

    def _go_on(self) -> list[Send]:
        if self.waiting_for:
            return []
        if not self._answered:
            names = [self._session.name(index) for index in sorted(self._scope)]
            error = self._explained(QuorumLost(self.phase, 1, [], names))
            self.outcome = error
            return self._abort_all(Step.MASKED_INPUT, error)
        decoded = self.terms.encoding.decode(self._total, len(self._answered))
        statistics = decode_statistics(decoded.statistics, self._units)
        members = frozenset(self._answered)
        in_clear = PartialSum(
            Visibility.INDIVIDUAL, decoded.vector, statistics, members, self._answered, clipped=self._clipped
        )
        self.outcome = RoundSum((in_clear,), digest=b"")
        return []


class MixedAttempt:
    """A masked and a clear attempt at once.

    The session waits in R0 until every update in clear has arrived or is late. Each half ends by itself, and the
    attempt has a result if one of them has.
    """

    def __init__(self, session: AggregatorSession, clear: ClearAttempt, units: ErrorUnits | None) -> None:
        def others_train() -> bool:
            return clear.outcome is None

        self._clear = clear
        self._masked = MaskedAttempt(session, clear.terms, lambda: None, units=units, others_train=others_train)
        self.header, self.terms = clear.header, clear.terms

    @property
    def refused(self) -> Mapping[int, str]:
        """Policy key or check for which a source refused, by roster index."""
        return {**self._clear.refused, **self._masked.refused}

    @property
    def alarms(self) -> Sequence[SecureFdaError]:
        """Errors to report to the operator, including that of a half that failed while the other succeeded."""
        lost = [half.outcome for half in (self._clear, self._masked) if isinstance(half.outcome, SecureFdaError)]
        partly = lost if isinstance(self.outcome, RoundSum) else []
        return [*self._clear.alarms, *self._masked.alarms, *partly]

    @property
    def why(self) -> Mapping[int, str]:
        """Why each source is gone."""
        return {**self._clear.why, **self._masked.why}

    @property
    def outcome(self) -> RoundSum | SecureFdaError | None:
        """None while either half goes on."""
        clear, masked = self._clear.outcome, self._masked.outcome
        if clear is None or masked is None:
            return None
        if not isinstance(masked, RoundSum):
            return clear if isinstance(clear, RoundSum) else masked
        if not isinstance(clear, RoundSum):
            return masked
        return RoundSum((*masked.partial_sums, *clear.partial_sums), masked.digest)

    @property
    def silent(self) -> frozenset[int]:
        """As of the masked half."""
        return self._masked.silent

    @property
    def phase(self) -> str:
        """Name of the present phase.

        Until the updates in clear have arrived, the session is in R0 or has failed in it. Its failure does not shorten
        the time that the others have to train.
        """
        return self._masked.phase

    @property
    def gone(self) -> set[int]:
        """Participants that take no part any more."""
        return self._clear.gone | self._masked.gone

    @property
    def waiting_for(self) -> frozenset[int]:
        """Sources that can still answer."""
        waiting: frozenset[int] = frozenset()
        for half in (self._clear, self._masked):
            waiting |= half.waiting_for if half.outcome is None else frozenset()
        return waiting

    @property
    def asked(self) -> int:
        """Number of sources in the phases of both halves."""
        return sum(half.asked for half in (self._clear, self._masked) if half.outcome is None)

    @property
    def may_have_released(self) -> bool:
        """Always: an update in clear may leave as soon as the header has arrived."""
        return True

    def expected_upload(self, index: int) -> int:
        """Length of the vector that this source may upload now, in bytes; 0 for none."""
        return max(self._clear.expected_upload(index), self._masked.expected_upload(index))

    def receive(self, parcel: Parcel) -> list[Send]:
        """Process a message."""
        return self._half_of(parcel.message.sender).receive(parcel) + self._masked.go_on()

    def lose(self, index: int, why: str) -> list[Send]:
        """Note that a source went away."""
        return self._half_of(index).lose(index, why) + self._masked.go_on()

    def expire(self, arrived: Mapping[int, float] = NOTHING) -> list[Send]:
        """Go on at the deadline with the sources that have answered. In a half that is over, no source is late."""
        sends = self._clear.expire(arrived) if self._clear.outcome is None else []
        return sends + (self._masked.expire(arrived) if self._masked.outcome is None else [])

    def _half_of(self, index: int) -> ClearAttempt | MaskedAttempt:
        return self._clear if index in self.header.body.at(Visibility.INDIVIDUAL) else self._masked


Attempt = MaskedAttempt | ClearAttempt | MixedAttempt
"""An attempt of any kind, see :func:`open_attempt`."""


def open_attempt(
    session: AggregatorSession, target: TargetOutput | None, before_release: Callable[[], None]
) -> Attempt:
    """Open the attempt of a header, of the kind that its visibility levels need.

    Args:
        session: the session of a header that is about to be published.
        target: what the target computed in this round; None if the rule uses nothing of it.
        before_release: called before any message that can make a source release its input. If a source is at
            ``individual``, it is called here.
    """
    header = session.header.body
    terms, units = RoundTerms.of(header, session.encoding), error_units(target, header.rule.select)
    if header.at(Visibility.INDIVIDUAL):
        before_release()
        clear = ClearAttempt(session, terms, target, units)
        return MixedAttempt(session, clear, units) if header.masked else clear
    return MaskedAttempt(session, terms, before_release, units=units)
