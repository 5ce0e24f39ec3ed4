"""One attempt at a round: it ends with sums over some of its sources, or with an error.

An attempt holds the session of the sources at ``sum`` and ``cohort``, the updates in clear of those at ``individual``,
or both. It routes messages to them, keeps who is gone and why, and keeps only running sums and no single update.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from securefda.aggregator.clear_updates import ClearUpdates
from securefda.aggregator.sums import PartialSum, RoundSum
from securefda.aggregator.target import TargetOutput, error_units
from securefda.errors import FaultySourceError, QuorumLost, SecureFdaError, SourceAborted
from securefda.operations.summary_text import work_phase
from securefda.protocol import aggregator_session
from securefda.protocol.aggregator_session import AggregatorSession
from securefda.protocol.encoding import decode_statistics
from securefda.protocol.envelope_checks import envelope_fault
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
    Visibility,
)
from securefda.protocol.weighed_contribution import RoundTerms

NOTHING: Mapping[int, float] = MappingProxyType({})
"""Nothing of any vector has arrived."""


class Attempt:
    """One attempt at a round.

    Attributes:
        header: the signed header that opened it.
        terms: the computation that it asks for.
        gone: participants that refused, aborted, failed a check or were lost; they get no further message.
        refused: policy key or check for which a source refused, by roster index.
        why: why each source is gone. Refusals are left out, since other sources read this in the last goodbye.
    """

    def __init__(
        self, session: AggregatorSession, target: TargetOutput | None, before_release: Callable[[], None]
    ) -> None:
        """Open the attempt of a header.

        Args:
            session: the session of a header that is about to be published.
            target: what the target computed in this round; None if the rule uses nothing of it.
            before_release: called before any message that can make a source release its input. If a source is at
                ``individual``, it is called here.
        """
        header = session.header.body
        self._session, self.header = session, session.header
        self.terms = RoundTerms.of(header, session.encoding)
        self.gone: set[int] = set()
        self.refused: dict[int, str] = {}
        self.why: dict[int, str] = {}
        self._alarms: list[SecureFdaError] = []
        self._hint = ""
        self._before_release, self._released = before_release, False
        self._units = error_units(target, header.rule.select)
        self._in_clear, self._masked = frozenset(header.at(Visibility.INDIVIDUAL)), frozenset(header.masked)
        self._state: aggregator_session.Collecting | None = (
            aggregator_session.open_session(session) if self._masked else None
        )
        self._updates = ClearUpdates(session, self.terms, target, self._units) if self._in_clear else None
        self._masked_outcome: RoundSum | SecureFdaError | None = None
        self._clear_outcome: PartialSum | SecureFdaError | None = None
        if self._updates is not None:
            self._release()

    # --- What the run reads -------------------------------------------------------------------------------------------

    @property
    def phase(self) -> str:
        """Name of the present phase."""
        name = "update" if self._state is None else _PHASES[type(self._state)].name
        return f"{work_phase(self.header.body.rule.rule)} and {name}" if self.sources_train else name

    @property
    def sources_train(self) -> bool:
        """Whether the present phase is the one that ends once the sources have trained.

        Until the updates in clear have arrived, the session is at most in this phase, or has failed in it. Its failure
        does not shorten the time that the others have to train.
        """
        trains_first = self.header.body.graph is not None
        phase = aggregator_session.CollectingKeys if trains_first else aggregator_session.CollectingShares
        return self._state is None or isinstance(self._state, phase)

    @property
    def outcome(self) -> RoundSum | SecureFdaError | None:
        """None while the attempt goes on. It has sums if the session has them, or the updates in clear have."""
        masked, clear = self._masked_outcome, self._clear_outcome
        if self._masking or self._collecting:
            return None
        if isinstance(masked, RoundSum):
            in_clear = (clear,) if isinstance(clear, PartialSum) else ()
            return RoundSum((*masked.partial_sums, *in_clear), masked.digest)
        return RoundSum((clear,), digest=b"") if isinstance(clear, PartialSum) else masked or clear

    @property
    def alarms(self) -> list[SecureFdaError]:
        """Errors to report to the operator, including why one half has no sum where the other has."""
        halves = (self._clear_outcome, self._masked_outcome)
        lost = [outcome for outcome in halves if isinstance(outcome, SecureFdaError)]
        return [*self._alarms, *(lost if isinstance(self.outcome, RoundSum) else ())]

    @property
    def waiting_for(self) -> frozenset[int]:
        """Sources that can still answer."""
        return self._awaited_in_clear() | self._awaited_in_session()

    @property
    def asked(self) -> int:
        """Number of sources in the phase: those that have answered, and those that still can."""
        answered: set[int] = set()
        if self._updates is not None and self._collecting:
            answered |= self._updates.answered.keys()
        if self._state is not None and self._masking:
            answered |= self._state.received.keys()
        return len(answered | self.waiting_for)

    @property
    def silent(self) -> frozenset[int]:
        """The sources whose missing nonces ended the attempt, if that was the cause; retry without them."""
        ended_for_it = isinstance(self._state, aggregator_session.CollectingNonces) and not self._masking
        return self._state.waiting_for if self._state is not None and ended_for_it else frozenset()

    @property
    def may_have_released(self) -> bool:
        """Whether an input may have left a source: one in clear may as soon as the header has arrived."""
        return self._released

    def expected_upload(self, index: int) -> int:
        """Length of the vector that this source may upload now, in bytes; 0 for none."""
        if index in self._awaited_in_clear():
            return 4 * self.header.body.n_summed
        if isinstance(self._state, aggregator_session.CollectingInputs) and index in self._awaited_in_session():
            return self._state.input_bytes(index)
        return 0

    @property
    def _masking(self) -> bool:
        """Whether the session goes on."""
        return self._state is not None and self._masked_outcome is None

    @property
    def _collecting(self) -> bool:
        """Whether updates in clear are still expected."""
        return self._updates is not None and self._clear_outcome is None

    def _awaited_in_clear(self) -> frozenset[int]:
        if self._updates is None or not self._collecting:
            return frozenset()
        return self._in_clear - self._updates.answered.keys() - self.gone

    def _awaited_in_session(self) -> frozenset[int]:
        return self._state.waiting_for - self.gone if self._state is not None and self._masking else frozenset()

    # --- What the run reports -----------------------------------------------------------------------------------------

    def receive(self, parcel: Parcel) -> list[Send]:
        """Process a message of this attempt; messages of other sessions and late ones are discarded."""
        message, index = parcel.message, parcel.message.sender
        updates = self._updates if index in self._in_clear or self._state is None else None
        goes_on = self._masking if updates is None else self._collecting
        if not goes_on or message.envelope.session_id != self.header.envelope.session_id:
            return []
        if isinstance(message.body, (Refusal, Abort)):
            self._leave(message)
            return self._go_on()
        if index in self.gone:
            return []
        try:
            if updates is not None:
                updates.add(message, parcel)
            else:
                self._take(message, parcel)
        except FaultySourceError as error:
            return self._expel(index, error) + self._go_on()
        return self._go_on()

    def lose(self, index: int, why: str, *, may_return: bool = False) -> list[Send]:
        """Note that a source is away. One that ``may_return`` has until the deadline if there is no sum without it."""
        if not (may_return and self._needs(index)):
            self._forget(index, why)
        return self._go_on()

    def _needs(self, index: int) -> bool:
        half, least = (self._masked, self._session.threshold) if self._masked else (self._in_clear, 1)
        return index in half and len(half - self.gone - {index}) < least

    def expire(self, arrived: Mapping[int, float] = NOTHING) -> list[Send]:
        """The deadline passed: go on with the sources that have answered. In a half that is over, no source is late.

        Args:
            arrived: by roster index, the fraction of a source's vector that has arrived, 0 to 1.
        """
        late = self._give_up_on(self._awaited_in_clear(), Step.MASKED_INPUT, arrived, "transport.training-deadline-s")
        sends = late + self._close_clear()
        if self._state is not None:
            step = _PHASES[type(self._state)].step
            sends += self._give_up_on(self._awaited_in_session(), step, arrived, "transport.phase-deadline-s")
        return sends + self._go_on()

    # --- The updates in clear -----------------------------------------------------------------------------------------

    def _close_clear(self) -> list[Send]:
        """Add up the updates once every source has answered or is gone."""
        if self._updates is None or not self._collecting or self._awaited_in_clear():
            return []
        if self._updates.answered:
            self._clear_outcome = self._updates.sum()
            return []
        names = [self._session.name(index) for index in sorted(self._in_clear)]
        error = self._explained(QuorumLost("training and update", 1, [], names))
        self._clear_outcome = error
        return self._abort_all(self._in_clear, Step.MASKED_INPUT, error)

    # --- The session --------------------------------------------------------------------------------------------------

    def _take(self, message: Signed[Any], parcel: Parcel) -> None:
        """Hand a message to the session, by the phase's row of `_PHASES`; a late one is discarded."""
        phase, kind = _PHASES[type(self._state)], type(message.body)
        order = [row.message for row in _PHASES.values()]
        # Late, and not false: its sender could not know that the step was over (SFDA-SA/1, section 11).
        if kind in order and order.index(kind) < order.index(phase.message):
            return
        if kind is not phase.message:
            raise FaultySourceError(self._session.name(message.sender), "ORDER", message.type_name)
        vector = (parcel.vectors[0] if parcel.vectors else b"",) if kind is MaskedInput else ()
        self._state = phase.add(self._state, message, *vector)

    def _go_on(self) -> list[Send]:
        """Close phases until one has to wait for a source, or too few sources are left."""
        sends = self._close_clear()
        while self._state is not None and self._masking:
            phase = _PHASES[type(self._state)]
            try:
                self._require_enough_left(self._state)
                # Open until the sources outside of the session have trained, too.
                if self._awaited_in_session() or (self.sources_train and self._collecting):
                    break
                sends += phase.close(self, self._state)
            except (QuorumLost, FaultySourceError) as error:
                self._masked_outcome = self._explained(error) if isinstance(error, QuorumLost) else error
                sends += self._abort_all(self._masked, phase.step, error)
        return sends

    def _require_enough_left(self, state: aggregator_session.Collecting) -> None:
        """Fail at once if too few sources are left; those that could still answer do not count as missing."""
        able = set(state.received) | self._awaited_in_session()
        if len(able) < self._session.threshold:
            have, missing = (
                [self._session.name(index) for index in sorted(group)] for group in (able, self._masked - able)
            )
            raise QuorumLost(self.phase, self._session.threshold, have, missing)

    def _close_keys(self, state: aggregator_session.CollectingKeys) -> list[Send]:
        self._state, key_list = aggregator_session.close_keys(state, self.gone)
        return self._to_all(self._state.u1, key_list)

    def _close_nonces(self, state: aggregator_session.CollectingNonces) -> list[Send]:
        self._state, neighbours = aggregator_session.close_nonces(state)
        return self._to_each(neighbours)

    def _close_shares(self, state: aggregator_session.CollectingShares) -> list[Send]:
        self._state, deliveries = aggregator_session.close_shares(state)
        # On the disk before a delivery leaves. With it a source masks, and from then on a second attempt could give a
        # second sum of the same updates (decision 0002).
        self._release()
        # In this order: those that are given up are gone by the time the deliveries are made.
        return self._give_up(set(state.received) - self._state.u2, Step.SHARES) + self._to_each(deliveries)

    def _close_inputs(self, state: aggregator_session.CollectingInputs) -> list[Send]:
        self._state, lists = aggregator_session.close_inputs(state)
        given_up = self._give_up(set(state.received) - self._state.survivors, Step.SURVIVORS)
        return given_up + self._to_all(self._state.survivors, lists)

    def _close_signatures(self, state: aggregator_session.CollectingSignatures) -> list[Send]:
        self._state, shown = aggregator_session.close_signatures(state)
        return self._to_each(shown) if isinstance(shown, Mapping) else self._to_all(self._state.asked, shown)

    def _close_unmask(self, state: aggregator_session.CollectingUnmask) -> list[Send]:
        opened = aggregator_session.close_unmask(state)
        self._alarms.extend(opened.faults)
        partial_sums = tuple(
            PartialSum(
                self.header.body.level_of(min(opened_sum.survivors)),
                opened_sum.decoded.vector,
                decode_statistics(opened_sum.decoded.statistics, self._units),
                opened_sum.survivors,
            )
            for opened_sum in opened.sums
        )
        self._masked_outcome = RoundSum(partial_sums, opened.sum_digest)  # the run reads it as `outcome`
        return []

    def _release(self) -> None:
        """Note, once and before it can happen, that an input may leave a source."""
        if not self._released:
            self._released = True
            self._before_release()

    def _give_up(self, members: set[int], step: Step) -> list[Send]:
        """Send an abort to the members of cohorts that lost too many, as their inputs will not be opened."""
        self.gone |= members
        return [self._abort(index, step, "COHORT_QUORUM", None) for index in sorted(members)]

    def _to_each(self, messages: Mapping[int, Signed[Any]]) -> list[Send]:
        return [Send(to, Parcel(one)) for to, one in messages.items() if to not in self.gone]

    def _to_all(self, members: Iterable[int], message: Signed[Body]) -> list[Send]:
        return [Send(index, Parcel(message)) for index in sorted(members) if index not in self.gone]

    # --- Who is gone, and why -----------------------------------------------------------------------------------------

    def _forget(self, index: int, why: str) -> None:
        """Expect nothing more from a source."""
        self.gone.add(index)
        self.why.setdefault(index, why)

    def _give_up_on(
        self, waiting: Collection[int], step: Step, arrived: Mapping[int, float], setting: str
    ) -> list[Send]:
        """Give up on sources that missed the deadline, and send each an abort.

        Args:
            waiting: the late sources.
            step: the step whose deadline passed.
            arrived: the fraction of each source's vector that has arrived, 0 to 1.
            setting: key of the setting for this deadline.
        """
        for index in sorted(waiting):
            # A source that was still sending is slow, not gone: a longer deadline helps.
            fraction = arrived.get(index, 0.0)
            self._forget(index, f"{fraction:.0%} of its update had come in time" if fraction else "no answer in time")
            if fraction:
                self._hint = f"raise {setting} at the target: its line is slow for a model of this size"
        return [self._abort(index, step, "DEADLINE", None) for index in sorted(waiting)]

    def _explained(self, error: QuorumLost) -> QuorumLost:
        """The error, with the reason why each source is gone."""
        return error.because({self._session.name(index): why for index, why in self.why.items()}, hint=self._hint)

    def _leave(self, message: Signed[Body]) -> None:
        """Take a refusal or an abort; the source gets no further message in this attempt."""
        body, index, envelope = message.body, message.sender, message.envelope
        if index in self.gone or index not in self._masked | self._in_clear:
            return
        session_id = self.header.envelope.session_id
        # In any context: a source may leave from whatever view of the session it was shown.
        roster, context = self._session.roster, envelope.context
        if envelope_fault(message, roster=roster, sender=index, session_id=session_id, context=context):
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
            self._alarms.append(SourceAborted(name, body.check, text))
            self.why[index] = f"aborted at {step}: check {body.check} failed"

    def _expel(self, index: int, error: FaultySourceError) -> list[Send]:
        """Exclude a source whose message failed a check, and send it an abort that names the check."""
        in_clear = index in self._in_clear or self._state is None
        step = Step.MASKED_INPUT if in_clear else _PHASES[type(self._state)].step
        self.gone.add(index)
        error.place = step.label
        self._alarms.append(error)
        self.why[index] = f"fails check {error.check} at {error.place}"
        return [self._abort(index, step, error.check, index)]

    def _abort(self, to: int, step: Step, check: str, accused: int | None) -> Send:
        """A signed abort for one source."""
        return Send(to, Parcel(self._session.sign(self._session.ctx, Abort(step, check, accused))))

    def _abort_all(self, members: frozenset[int], step: Step, error: SecureFdaError) -> list[Send]:
        """Tell every one of these sources that is not gone that the attempt is over."""
        check, accused = getattr(error, "check", "QUORUM"), None
        if isinstance(error, FaultySourceError) and check != "SHARE_COMMITMENT":  # there a holder may have lied
            named = [entry.index for entry in self._session.roster.sources if entry.site_id == error.source_id]
            accused = named[0] if named else None
        return [self._abort(index, step, check, accused) for index in sorted(members - self.gone)]


@dataclass(frozen=True, slots=True)
class _Phase:
    """What a phase of the session collects, its step and its name for operators, and what is done in it.

    ``add`` takes a message of its kind, with the vector where it is an input, and returns the phase with it; ``close``
    ends the phase.
    """

    message: type
    step: Step
    name: str
    add: Callable[..., aggregator_session.Collecting]
    close: Callable[[Attempt, Any], list[Send]]


_PHASES: Mapping[type, _Phase] = {
    aggregator_session.CollectingKeys: _Phase(
        Advertise, Step.ADVERTISE, "R0 advertise", aggregator_session.add_advertise, Attempt._close_keys
    ),
    aggregator_session.CollectingNonces: _Phase(
        Nonce, Step.ADVERTISE, "R0 nonces", aggregator_session.add_nonce, Attempt._close_nonces
    ),
    aggregator_session.CollectingShares: _Phase(
        ShareBundle, Step.SHARES, "R1 shares", aggregator_session.add_shares, Attempt._close_shares
    ),
    aggregator_session.CollectingInputs: _Phase(
        MaskedInput, Step.MASKED_INPUT, "R2 masked input", aggregator_session.add_input, Attempt._close_inputs
    ),
    aggregator_session.CollectingSignatures: _Phase(
        SurvivorSignature, Step.SURVIVORS, "R3 survivors", aggregator_session.add_signature, Attempt._close_signatures
    ),
    aggregator_session.CollectingUnmask: _Phase(
        Unmask, Step.UNMASK, "R4 unmask", aggregator_session.add_unmask, Attempt._close_unmask
    ),
}
"""The session's phases, in their order."""
