"""One attempt at a round, seen from the aggregator: it ends with a sum over some sources, or with an error.

:class:`MaskedAttempt` drives a session of visibility ``sum``; :class:`ClearAttempt` collects updates of visibility
``individual`` and evaluates the rule on each as it comes. Both keep one running sum and no update.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Protocol

import numpy as np

from securefda.adaptation import ContributionSum, TargetStatistics, contribute
from securefda.errors import FaultySourceError, QuorumLost, SecureFdaError
from securefda.rounds.site import vector_from_wire
from securefda.rounds.terms import clip_contribution, plan_of
from securefda.secagg import aggregator as steps
from securefda.secagg.checks import envelope_fault
from securefda.secagg.messages import (
    Abort,
    Advertise,
    Body,
    Header,
    MaskedInput,
    Parcel,
    Refusal,
    ShareBundle,
    Signed,
    Step,
    SurvivorSignature,
    Unmask,
    Update,
)
from securefda.training import Vector


@dataclass(frozen=True, slots=True)
class Send:
    """A parcel for one site, by roster index."""

    to: int
    parcel: Parcel


@dataclass(frozen=True, slots=True, repr=False)
class RoundSum:
    """What an attempt gives: V, w and n of the rules (in any common unit), and over whom.

    Attributes:
        vector: V, float64 (m,).
        kept: w.
        samples: n.
        survivors: roster indices in the sum.
        dropped: sources that took part and are not in the sum.
        digest: SHA-256 of the opened ring sum; empty where updates travelled in clear.
        context: what the result is signed under.
        betas: per source, where the aggregator evaluated the rule.
    """

    vector: Any
    kept: float
    samples: float
    survivors: frozenset[int]
    dropped: frozenset[int]
    digest: bytes
    context: bytes
    betas: Mapping[int, float | None]


class Attempt(Protocol):
    """What the run needs of an attempt, whichever the visibility."""

    header: Signed[Header]
    refused: dict[int, str]
    alarms: list[SecureFdaError]

    @property
    def outcome(self) -> RoundSum | SecureFdaError | None:
        """None while it goes on."""

    @property
    def phase(self) -> str:
        """Name of the phase that it waits in."""

    @property
    def waiting_for(self) -> frozenset[int]:
        """Sources that still may answer."""

    @property
    def may_have_released(self) -> bool:
        """Whether an update of this round may have left a source."""

    def expected_upload(self, index: int) -> int:
        """Length of the vector that this source may upload now, in bytes; 0 for none."""

    def receive(self, parcel: Parcel) -> list[Send]:
        """Process a message."""

    def lose(self, index: int) -> list[Send]:
        """A source went away."""

    def expire(self) -> list[Send]:
        """The phase's deadline passed: go on with who answered."""


class _Members:
    """Who takes part in an attempt, who is gone and why."""

    def __init__(self, session: steps.AggregatorSession) -> None:
        self._session = session
        self.header = session.header
        self.gone: set[int] = set()
        self.refused: dict[int, str] = {}
        self.alarms: list[SecureFdaError] = []

    def leave(self, message: Signed[Body]) -> None:
        """A source refuses or aborts; it is asked nothing more in this attempt."""
        body, index, envelope = message.body, message.sender, message.envelope
        if index in self.gone or index not in self.header.body.participants:
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
            self.alarms.append(FaultySourceError(name, body.check, f"it aborted at {body.step.name.lower()}"))

    def expel(self, index: int, error: FaultySourceError, step: Step) -> list[Send]:
        """A source lied: nothing of its message is kept, and it is told which check found it."""
        self.gone.add(index)
        self.alarms.append(error)
        return [self.abort(index, step, error.check, index)]

    def abort(self, to: int, step: Step, check: str, accused: int | None) -> Send:
        """A signed abort for one source."""
        session_id = self.header.envelope.session_id
        message = self._session.signer.sign(session_id, self._session.ctx, Abort(step, check, accused))
        return Send(to, Parcel(message))

    def abort_all(self, step: Step, error: SecureFdaError) -> list[Send]:
        """Tell every source that is still there that the attempt is over."""
        check = getattr(error, "check", "QUORUM")
        accused = self._accused(error)
        alive = set(self.header.body.participants) - self.gone
        return [self.abort(index, step, check, accused) for index in sorted(alive)]

    def _accused(self, error: SecureFdaError) -> int | None:
        if isinstance(error, FaultySourceError):
            for entry in self._session.roster.sources:
                if entry.site_id == error.source_id:
                    return entry.index
        return None


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

    def __init__(self, session: steps.AggregatorSession, before_release: Callable[[], None]) -> None:
        """``before_release`` is called, and must return, before any source can be induced to release."""
        self._session = session
        self._members = _Members(session)
        self._state: steps.Collecting = steps.open_session(session)
        self._before_release = before_release
        self._outcome: RoundSum | SecureFdaError | None = None
        self._released = False
        self.header = session.header
        self.refused = self._members.refused
        self.alarms = self._members.alarms

    @property
    def outcome(self) -> RoundSum | SecureFdaError | None:
        """None while it goes on."""
        return self._outcome

    @property
    def phase(self) -> str:
        """Name of the phase that it waits in."""
        return _PHASES[type(self._state)].name

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
            return self._go_on()
        rules = _PHASES[type(self._state)]
        if message.sender in self._members.gone or self._is_late(message.body, rules):
            return []
        try:
            self._state = self._add(message, parcel)
        except FaultySourceError as error:
            return self._members.expel(message.sender, error, rules.step) + self._go_on()
        return self._go_on()

    def lose(self, index: int) -> list[Send]:
        """A source went away."""
        self._members.gone.add(index)
        return [] if self._outcome is not None else self._go_on()

    def expire(self) -> list[Send]:
        """The phase's deadline passed: who has not answered is gone."""
        self._members.gone |= self.waiting_for
        return [] if self._outcome is not None else self._go_on()

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

    def _go_on(self) -> list[Send]:
        """Close phases for as long as nobody is waited for, or too few can still answer."""
        sends: list[Send] = []
        while self._outcome is None and self._phase_is_over():
            step = _PHASES[type(self._state)].step
            try:
                sends += self._close()
            except (QuorumLost, FaultySourceError) as error:
                self._outcome = error
                sends += self._members.abort_all(step, error)
        return sends

    def _phase_is_over(self) -> bool:
        able = len(self._state.received) + len(self.waiting_for)
        return not self.waiting_for or able < self._session.threshold

    def _close(self) -> list[Send]:
        match self._state:
            case steps.CollectingKeys() as keys:
                self._state, key_list = steps.close_keys(keys)
                return self._to_all(self._state.u1, key_list)
            case steps.CollectingShares() as shares:
                self._state, deliveries = steps.close_shares(shares)
                self._released = True
                self._before_release()
                return [Send(to, Parcel(message)) for to, message in deliveries.items()]
            case steps.CollectingInputs() as inputs:
                self._state, lists = steps.close_inputs(inputs)
                return self._to_all(self._state.survivors, lists)
            case steps.CollectingSignatures() as signatures:
                self._state, consistency = steps.close_signatures(signatures)
                return self._to_all(self._state.asked, consistency)
            case steps.CollectingUnmask() as unmask:
                self._finish(steps.close_unmask(unmask))
        return []

    def _to_all(self, members: Any, message: Signed[Body]) -> list[Send]:
        return [Send(index, Parcel(message)) for index in sorted(members) if index not in self._members.gone]

    def _finish(self, opened: steps.Opened) -> None:
        self.alarms.extend(opened.faults)
        kept, samples = (float(element) for element in opened.decoded.tail)
        self._outcome = RoundSum(
            vector=opened.decoded.vector,
            kept=kept,
            samples=samples,
            survivors=opened.survivors,
            dropped=frozenset(self.header.body.participants) - opened.survivors,
            digest=opened.sum_digest,
            context=opened.ctx2,
            betas={},
        )


class ClearAttempt:
    """Collects updates in clear, by the sources' consent, and evaluates the rule on each."""

    def __init__(
        self,
        session: steps.AggregatorSession,
        statistics: TargetStatistics | None,
        target_update: Vector | None,
        step_updates: Any = None,
    ) -> None:
        """``step_updates`` (B, m) are the target's single steps, for rules that need them."""
        self._session = session
        self._members = _Members(session)
        self._statistics = statistics
        self._target_update = target_update
        self._step_updates = step_updates
        self._sum = ContributionSum(session.header.body.n_params)
        self._betas: dict[int, float | None] = {}
        self._outcome: RoundSum | SecureFdaError | None = None
        self.header = session.header
        self.refused = self._members.refused
        self.alarms = self._members.alarms

    @property
    def outcome(self) -> RoundSum | SecureFdaError | None:
        """None while it goes on."""
        return self._outcome

    @property
    def phase(self) -> str:
        """Name of the only phase."""
        return "training and update"

    @property
    def waiting_for(self) -> frozenset[int]:
        """Sources that still may answer."""
        return frozenset(self.header.body.participants) - set(self._betas) - self._members.gone

    @property
    def may_have_released(self) -> bool:
        """Always: an update in clear may leave as soon as the header is there."""
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

    def lose(self, index: int) -> list[Send]:
        """A source went away."""
        self._members.gone.add(index)
        return [] if self._outcome is not None else self._go_on()

    def expire(self) -> list[Send]:
        """The deadline passed: who has not answered is gone."""
        self._members.gone |= self.waiting_for
        return [] if self._outcome is not None else self._go_on()

    def _add(self, message: Signed[Any], parcel: Parcel) -> None:
        header, index = self.header.body, message.sender
        self._session.admit(message, self._session.ctx, header.participants, self._betas, kind=Update)
        name = self._session.name(index)
        body, vector = message.body, parcel.vectors[0] if parcel.vectors else b""
        if not len(vector) == body.length_bytes == 4 * header.n_params:
            raise FaultySourceError(name, "INPUT_LENGTH", f"{len(vector)} bytes")
        if sha256(vector).digest() != body.digest:
            raise FaultySourceError(name, "INPUT_DIGEST")
        if body.samples > header.max_samples:
            raise FaultySourceError(name, "INPUT_SAMPLES", f"{body.samples} of at most {header.max_samples}")
        self._evaluate(index, name, vector_from_wire(vector), body.samples)

    def _evaluate(self, index: int, name: str, update: Vector, samples: int) -> None:
        header, target = self.header.body, self.header.body.target
        if not np.all(np.isfinite(update)):
            raise FaultySourceError(name, "INPUT_FINITE", "the update holds NaN or infinity")
        contribution = contribute(
            plan_of(header.rule),
            self._statistics,
            self._target_update,
            update,
            source_steps=target.steps if target else 1,  # the source aligned its update itself
            learning_rate_ratio=1.0,
            layers=[layer.size for layer in header.layers],
            step_updates=self._step_updates,
        )
        clip_contribution(header, contribution)
        self._sum.add(contribution, samples)
        self._betas[index] = contribution.beta

    def _go_on(self) -> list[Send]:
        if self.waiting_for:
            return []
        if not self._betas:
            names = [self._session.name(index) for index in self.header.body.participants]
            error = QuorumLost(self.phase, 1, [], names)
            self._outcome = error
            return self._members.abort_all(Step.MASKED_INPUT, error)
        self._outcome = RoundSum(
            vector=self._sum.vector,
            kept=self._sum.kept,
            samples=self._sum.samples,
            survivors=frozenset(self._betas),
            dropped=frozenset(self.header.body.participants) - set(self._betas),
            digest=b"",
            context=self._session.ctx,
            betas=dict(self._betas),
        )
        return []
