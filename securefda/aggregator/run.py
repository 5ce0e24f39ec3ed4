"""A whole run at the aggregator: it gathers sources, makes attempts round after round, and ends.

The driver (the aggregator's process or the simulator) reports messages, sources that come or leave, and deadlines that
pass, and sends the messages that each call returns. No call waits for the network, but a call can train or write to the
disk, so make it in a thread. Time comes only from the given clock.

A report updates the sources or the attempt. Then :meth:`AggregatorRun._advance` enters phase after phase until one has
to wait: :data:`_HANDLERS`, at the end, says what each event does in each phase. A handler returns a :data:`Change`, the
next phase with the messages to send as it begins; its type says which phases these can be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

from securefda.aggregator.attempt import NOTHING, Attempt
from securefda.aggregator.attendance import (
    OF_CONSENT,
    OWN_TROUBLE,
    Attendance,
    Candidates,
    CosignerTracker,
    goodbye,
    reason_for_sources,
    with_hint,
)
from securefda.aggregator.headers import Planner, schedule_of
from securefda.aggregator.model import RunModel
from securefda.aggregator.phases import (
    AskingCosigners,
    AttemptOver,
    AwaitingCosignatures,
    BetweenRounds,
    CatchingUp,
    Closing,
    DuePhase,
    Ended,
    Ending,
    Event,
    Gathering,
    InAttempt,
    LastPhase,
    NotOpened,
    Opening,
    Phase,
    Progress,
    TimedRoundPhase,
)
from securefda.aggregator.rounds import CurrentRound, last_errors
from securefda.aggregator.site import RunSettings, TargetSite
from securefda.aggregator.store import AggregatorStore, Position, RoundRequest
from securefda.aggregator.sums import RoundSum
from securefda.errors import (
    ConfigError,
    FaultySourceError,
    ProtocolError,
    QuorumLost,
    RunEnded,
    SecureFdaError,
    without_frames,
)
from securefda.operations.notes import Note
from securefda.operations.progress import Reporter
from securefda.operations.records import RoundLine, best_round
from securefda.protocol.aggregator_session import AggregatorSession
from securefda.protocol.envelope_checks import envelope_fault
from securefda.protocol.masking import available_threads
from securefda.protocol.messages import (
    NO_CONTEXT,
    NO_SESSION,
    RUN_ID_BYTES,
    Abort,
    Body,
    Checkpoint,
    Cosigned,
    Goodbye,
    Header,
    Join,
    Parcel,
    Receipt,
    Refusal,
    Send,
    Signed,
    SourcesKeep,
    Step,
)
from securefda.protocol.secret import draw
from securefda.protocol.transcript import joining_digest
from securefda.protocol.weighed_contribution import FaultySum
from securefda.rules import RoundPlan, round_plan
from securefda.training import LayerTable, Vector

CLOSING_S = 5.0
"""Seconds that the end of a run waits for cosignatures."""
MOST_LOST_IN_A_ROW = 3
"""The run ends after this many lost rounds in a row, since the cause will not go away by itself."""
ANOTHER_RUN = "a new run needs another --out folder at every site"

Entered = TypeVar("Entered", bound=Phase)
Change = tuple[Entered, list[Send]]
"""The next phase, and the messages to send as it begins."""
RoundBegun = AskingCosigners | Gathering | BetweenRounds | Ending
"""Phases in which a round begins; or that of the target alone, or the run, has ended."""


class AggregatorRun:
    """Runs all rounds. ``phase`` is its state, one of :mod:`.phases`.

    A round begins with a new checkpoint of the log, which the sources cosign while the target trains. When the sources
    that can take part have joined and cosigned, an attempt begins with a header, and ends with sums or an error. With
    sums, the model is updated and each source gets the result. Without, the round is tried again or lost. At the end
    the sources cosign the last checkpoint and learn why the run ended.

    ``run_id``, 16 bytes, names a new run; None draws one. A resumed run keeps its own.

    Raises:
        ConfigError: the store holds a run with other settings.
    """

    def __init__(
        self,
        site: TargetSite,
        settings: RunSettings,
        store: AggregatorStore,
        reporter: Reporter,
        run_id: bytes | None = None,
    ) -> None:
        self._site, self._settings, self._store, self._reporter = site, settings, store, reporter
        position = store.position(settings.config_digest)
        new_id = draw(site.random_bytes, RUN_ID_BYTES) if run_id is None else run_id
        self._run_id = new_id if position is None else position.run_id
        self._attendance = Attendance(site, reporter)
        self._cosigners = CosignerTracker(site)
        planner = Planner({index: site.name(index) for index in site.sources}, settings)
        self._candidates = Candidates(site, self._attendance, self._cosigners, planner)
        schedule = schedule_of(self._run_id, settings, len(site.sources))
        self._schedule = None if schedule is None else site.signer.sign(NO_SESSION, NO_CONTEXT, schedule)
        self._model = RunModel(site, settings, store, reporter, self._run_id)
        self._phase: Phase = NotOpened()
        self._reported: tuple[str, tuple[str, ...], int] = ("", (), 0)
        self._progress = Progress()

    # --- What others read ---------------------------------------------------------------------------------------------

    @property
    def run_id(self) -> str:
        """Id of the run, 32 hex digits."""
        return self._run_id.hex()

    @property
    def model(self) -> Vector:
        """The model that the target keeps, float32 ``(n_params,)``; empty before :meth:`open`."""
        return self._model.kept

    @property
    def site(self) -> TargetSite:
        """The target's site."""
        return self._site

    @property
    def layers(self) -> LayerTable:
        """Names and shapes of the model's layers."""
        return self._site.trainer.layers

    @property
    def phase(self) -> Phase:
        """The present phase."""
        return self._phase

    @property
    def opened(self) -> bool:
        """Whether :meth:`open` has begun."""
        return not isinstance(self._phase, NotOpened)

    @property
    def deadline(self) -> float | None:
        """The clock's time at which :meth:`expire` is due; None before the run is opened and when it is done.

        Between rounds it is now, so that the last messages of a round leave before the target trains again.
        """
        return self._phase.deadline if isinstance(self._phase, DuePhase) else None

    @property
    def done(self) -> bool:
        """Whether nothing is left to do."""
        return isinstance(self._phase, Ended)

    @property
    def error(self) -> SecureFdaError | None:
        """Why the run ended early."""
        return self._phase.error if isinstance(self._phase, LastPhase) else None

    def waiting_for(self) -> tuple[str, ...]:
        """Site ids that the current phase waits for."""
        return tuple(self._site.name(index) for index in sorted(self._awaited()))

    def expected_upload(self, index: int) -> int:
        """Length of the vector that this source may upload now, in bytes; 0 for none."""
        return self._phase.attempt.expected_upload(index) if isinstance(self._phase, InAttempt) else 0

    # --- What the driver reports --------------------------------------------------------------------------------------

    def open(self) -> list[Send]:
        """Begin the run, or continue after its last finished round."""
        if self.opened:
            raise RuntimeError("the run was opened before")
        return self._advance((Opening(), []))

    def receive(self, parcel: Parcel) -> list[Send]:
        """Process one message. Messages of a session are dropped unless its attempt is open."""
        match parcel.message.body:
            case Join():
                return self._receive_join(parcel.message)
            case Checkpoint() | Cosigned():
                return self._receive_checkpoint(parcel.message)
            case Receipt():
                return self._receive_receipt(parcel.message)
            case Refusal(key=key) if parcel.message.envelope.session_id == NO_SESSION:
                return self._receive_refusal(parcel.message, key)
        if not isinstance(self._phase, InAttempt):
            return []
        self._site.witness.journal.save()  # new cosignatures, while the sources are busy
        return self._phase.attempt.receive(parcel) + self._advance()

    def left(self, index: int, why: str = "its connection ended", *, may_return: bool = False) -> list[Send]:
        """The connection to a source is gone, for good unless it ``may_return`` as the same process."""
        self._attendance.left(index, why)
        attempt = self._phase.attempt if isinstance(self._phase, InAttempt) else None
        sends = [] if attempt is None else attempt.lose(index, why, may_return=may_return)
        return sends + self._advance()  # its cosignature is not awaited any more

    def replaced(self, index: int, why: str) -> list[Send]:
        """A new process of a source has connected: an attempt loses the old one, and the new one will join."""
        self._attendance.replaced(index, why)
        self._cosigners.replaced(index)
        return self._phase.attempt.lose(index, why) + self._advance() if isinstance(self._phase, InAttempt) else []

    def misbehaved(self, index: int, check: str, detail: str) -> list[Send]:
        """The transport dropped a source's message; keep the reason in case the source is missing later."""
        self._attendance.note_trouble(index, f"fails check {check}: {detail}")
        return []

    def incompatible(self, index: int, theirs: str, ours: str) -> list[Send]:
        """A source joins with a build that must not speak with this one. If the others are too few, the run ends."""
        self._attendance.note_other_build(index, theirs, ours)
        return self._go_on_without(index)

    def returned(self, index: int) -> list[Send]:
        """A source that had left is back as the same process; it takes part again from the next header."""
        if not self._attendance.reconnected(index) or self.done:
            return []
        asked = self._cosigners.ask_again(index) if index not in self._cosigners.cosigned else []
        return asked + self._advance()

    def expire(self, arrived: Mapping[int, float] = NOTHING) -> list[Send]:
        """The deadline passed: go on with the sources that have answered.

        Args:
            arrived: by roster index, the fraction of a source's vector that has arrived, 0 to 1.
        """
        sends = self._phase.attempt.expire(arrived) if isinstance(self._phase, InAttempt) else []
        return sends + self._advance(self._on(Event.DUE))

    def fail(self, error: SecureFdaError) -> list[Send]:
        """End the run because of an error that the driver met. If ending it fails too, the first error is reported."""
        if self.done:
            return []
        if not self.opened:
            raise RuntimeError("the run is not open")
        if isinstance(self._phase, LastPhase):  # asking for cosignatures again would fail without end
            return self._advance(self._say_goodbye(replace(self._phase, error=self._phase.error or error)))
        return self._advance((self._failed(error), []))

    # --- From round to round ------------------------------------------------------------------------------------------

    def _advance(self, following: Change[Phase] | None = None) -> list[Send]:
        """Enter the next phases until one has to wait; returns the messages to send."""
        sends: list[Send] = []
        following = following or self._on(Event.READY)
        while following is not None:
            phase, as_it_begins = following
            self._enter(phase)
            sends += as_it_begins
            following = self._on(Event.READY)
        self._report_phase()
        return sends

    def _on(self, event: Event) -> Change[Phase] | None:
        """What an event leads to in the present phase, as `_HANDLERS` says; None if the phase goes on."""
        handler = _HANDLERS.get((type(self._phase), event))
        if handler is None or (event is Event.READY and not self._is_ready()):
            return None
        return handler(self, self._phase)

    def _is_ready(self) -> bool:
        """Whether the present phase waits for nothing more; after this process's first attempt, enough sources do."""
        match self._phase:
            case InAttempt(attempt=attempt, name=name):
                return attempt.outcome is not None or attempt.phase != name
            case Gathering(current=current) if self._progress.attempted:
                return self._candidates.suffice(current, self._candidates.ready(current)) or not self._awaited()
        return not self._awaited()

    def _enter(self, phase: Phase) -> None:
        """Change the phase (the only place that does), and add the time of the last one to the round's record."""
        last = self._phase
        if last.name != phase.name and isinstance(last, TimedRoundPhase):
            last.current.add_seconds(last.name, self._site.clock() - last.began)
        self._phase = phase
        self._report_phase()

    def _report_work(self, doing: str) -> None:
        """Report that the target itself is at work, which can take long; afterwards the phase is reported again."""
        self._reporter.phase(doing)
        self._reported = (doing, (), 0)

    def _report_phase(self) -> None:
        """Report the phase and the sources that it waits for, if either has changed."""
        now = (self._phase.name, self.waiting_for(), self._count_asked())
        if self._phase.name and now != self._reported:
            self._reporter.phase(*now)
        self._reported = now

    def _count_asked(self) -> int:
        """Number of sources in the present phase, including those that it waits for."""
        match self._phase:
            case InAttempt(attempt=attempt):
                return attempt.asked
            case AskingCosigners() | CatchingUp() | AwaitingCosignatures() | Closing():
                return len(self._attendance.connected - self._cosigners.faulty)
            case Gathering(current=current):
                return len(self._candidates.expected(current))
        return 0

    def _begin_or_resume(self, _: Opening) -> Change[RoundBegun | Ended]:
        """Store a new run, or continue where the last process stopped."""
        self._site.witness.enter(self.run_id)
        position = self._store.position(self._settings.config_digest)
        if position is None:
            self._model.begin()
            return self._begin_round(1)
        self._model.restore(position)
        if position.completed:
            self._reporter.note(f"this run is complete already; {ANOTHER_RUN}")
            return self._say_goodbye(
                Ending(Goodbye(True, 0, ""), None)
            )  # no checkpoint: no source is connected to cosign it
        recorded = {record["round"] for record in self._store.records()}
        self._reporter.note(f"resuming after round {max(recorded)}" if recorded else "resuming before any round ended")
        if position.round == 0 or position.round in recorded:
            return self._begin_round(position.round + 1)
        if self._may_take_up(position):
            return self._begin_round(position.round, position.attempt, position.request)
        return self._lose_interrupted(position), []

    def _may_take_up(self, interrupted: Position) -> bool:
        """Whether an interrupted round can be tried again: no update can have left, and it would ask for the same."""
        # If the target computed a different g_T, sources would refuse the second header of the round. With DP-SGD, g_T
        # would have fresh noise, and be one more release than was charged.
        trains_again = interrupted.attempt > 0 and not self._site.trainer.repeatable
        would_differ = trains_again and self._plan_of(interrupted.round).uses_target_statistics
        return not interrupted.released and interrupted.attempt < self._settings.attempts and not would_differ

    def _lose_interrupted(self, position: Position) -> BetweenRounds:
        current = self._start_round(position.round, position.attempt)
        lost = f"round {current.number} was interrupted and cannot be taken up again; it is lost"
        self._reporter.note(Note(lost, "warning"))
        self._model.lose_round(current, ())
        return BetweenRounds(self._site.clock())

    def _begin_next_round(self, _: BetweenRounds) -> Change[RoundBegun]:
        return self._begin_round(self._progress.last_round + 1)

    def _begin_round(self, number: int, attempts: int = 0, request: RoundRequest | None = None) -> Change[RoundBegun]:
        """Begin a round, or end the run after its last one; ``attempts`` counts attempts before a restart."""
        if number > self._settings.strategy.rounds or self._has_stopped_improving():
            return self._end_of_rounds(), []
        current = self._start_round(number, attempts, request)
        if not current.plan.needs_sources:
            self._train_target(current)
            self._model.finish_target_round(current)
            self._progress = replace(self._progress, losses=())
            return BetweenRounds(self._site.clock()), []
        sends = self._cosigners.renew(self._attendance.present)
        if not sends:
            return self._gathering(current), []
        now = self._site.clock()
        return AskingCosigners(current, began=now, deadline=now), sends

    def _end_of_rounds(self) -> Ending:
        """The end of a run whose rounds are over: it is complete unless all of them were lost."""
        if any(record["status"] == "finished" for record in self._store.records()):
            self._store.complete()
            return Ending(Goodbye(True, self._progress.last_round, ""), None)
        all_lost = RunEnded("every round was lost", hint=ANOTHER_RUN)
        return self._failed(self._progress.losses[-1] if self._progress.losses else all_lost)

    def _has_stopped_improving(self) -> bool:
        """Whether the last ``patience`` rounds after warm-up brought no better model; if so, the operator reads it."""
        patience, warm_up = self._settings.patience, self._settings.strategy.warm_up
        records = cast(list[RoundLine], self._store.records())
        finished = [line for line in records if line["round"] > warm_up and line.get("status") == "finished"]
        best = best_round(finished)
        if not patience or best is None or sum(line["round"] > best["round"] for line in finished) < patience:
            return False
        after = " after warm-up" if warm_up else ""
        which = f"the best model{after} is of round {best['round']}, and none of the {patience} after it was better"
        self._reporter.note(f"the run ends early: {which}")
        return True

    def _start_round(self, number: int, attempts: int, request: RoundRequest | None = None) -> CurrentRound:
        self._reporter.round_started(number, self._settings.strategy.rounds)
        self._model.begin_round(number)
        current = CurrentRound(number, self._plan_of(number), attempts, self._site.traffic(), request)
        self._progress = replace(self._progress, last_round=number)
        return current

    def _plan_of(self, number: int) -> RoundPlan:
        return round_plan(self._settings.strategy, number, last_errors(self._store.records()))

    def _train_meanwhile(self, asking: AskingCosigners) -> Change[CatchingUp]:
        """Train the target while sources cosign, if enough sources are connected for the round."""
        current, clock = asking.current, self._site.clock
        paused = clock()
        if self._candidates.suffice(current, self._candidates.expected(current) & self._attendance.present):
            self._train_target(current)
        now = clock()
        return CatchingUp(current, began=asking.began + (now - paused), deadline=now), []

    def _train_target(self, current: CurrentRound) -> None:
        if not current.trained:
            if current.plan.rule.uses_target_features:
                self._report_work("target_features")
            elif not current.plan.rule.adds_moments:
                self._report_work("training at the target")
            self._model.train_target(current)

    def _await_cosignatures(self, caught_up: CatchingUp) -> Change[AwaitingCosignatures]:
        due = self._site.clock() + self._settings.phase_deadline_s
        return AwaitingCosignatures(caught_up.current, caught_up.began, due), []

    def _gather(self, asked: AskingCosigners | AwaitingCosignatures) -> Change[Gathering]:
        return self._gathering(asked.current), []

    def _gathering(self, current: CurrentRound) -> Gathering:
        """Wait for the sources that have not joined or not cosigned."""
        now = self._site.clock()
        return Gathering(current, now, now + self._settings.join_deadline_s)

    # --- From attempt to attempt --------------------------------------------------------------------------------------

    def _start_attempt(self, gathered: Gathering) -> Change[CatchingUp | InAttempt | AttemptOver | Ending]:
        """Plan an attempt of the sources that are ready, and open it with a header that asks for the same as before.

        If the target has yet to train for the round, it does that instead, and the run hears what happened meanwhile.
        """
        current = gathered.current
        ready = self._candidates.ready(current)
        try:
            plan = self._candidates.plan(current, ready)
        except ConfigError as error:
            return self._end_without_plan(current, ready, error), []
        self._progress = replace(self._progress, attempted=True)
        if not current.trained:
            self._train_target(current)
            now = self._site.clock()
            return CatchingUp(current, began=now, deadline=now), []
        trains = not current.plan.rule.adds_moments  # without training there is no loss
        with_metrics = trains and self._attendance.all_hand_in_metrics(plan.participants)
        header = self._model.header(current, plan, with_metrics=with_metrics)
        request = RoundRequest.of(header.body)
        if current.request is not None and current.request.terms != request.terms:
            return self._give_up_retry(current), []
        self._model.publish(current, header, request)
        return self._open_attempt(current, header)

    def _end_without_plan(self, current: CurrentRound, ready: frozenset[int], error: ConfigError) -> Ending:
        """The end of a run in which the sources that are ready cannot make an attempt; ``error`` says why not."""
        attendance, candidates = self._attendance, self._candidates
        if (out := attendance.why_out()) is not None and not candidates.enough_left(current):
            return self._failed(out)
        if all(index in ready for index in self._site.sources if self._site.admits(index)):  # no process is missing
            return self._failed(error, of_policies=True)
        for index in attendance.present - self._cosigners.cosigned:
            attendance.note_trouble(index, "has not cosigned the aggregator's log")
        return self._failed(attendance.with_troubles(candidates.planner.too_few(ready, error)))

    def _give_up_retry(self, current: CurrentRound) -> AttemptOver:
        """Sources that accepted the round's first header would refuse the next one, and accuse the target."""
        why = f"round {current.number} cannot be tried again: it would ask the sources for something else"
        error = RunEnded(why, hint="with every source connected it need not be tried again")
        self._reporter.note(Note(f"{error}; it is lost", "warning"))
        return AttemptOver(current, error)

    def _open_attempt(self, current: CurrentRound, header: Signed[Header]) -> Change[InAttempt]:
        """Open the session of a published header, and send that to its participants, with a result that they missed."""
        session = AggregatorSession(self._site.signer, self._site.roster, header, available_threads())
        attempt = Attempt(session, current.target, self._store.mark_released)
        participants = header.body.participants
        # Before the header, as a missed result counts for the next header only (SFDA-SA/1, section 6).
        sends = self._model.receipts.missed_results_for(participants)
        sends += [Send(index, self._model.header_for(header, index, current)) for index in participants]
        now = self._site.clock()
        return InAttempt(current, attempt, attempt.phase, now, now + self._settings.training_deadline_s), sends

    def _follow_attempt(self, under_way: InAttempt) -> Change[InAttempt | AttemptOver]:
        """Enter the next phase of the attempt's session, or its end."""
        current, attempt = under_way.current, under_way.attempt
        if attempt.outcome is not None:
            return AttemptOver(current, attempt), []
        now = self._site.clock()
        due = now + self._settings.phase_deadline_s
        if attempt.sources_train:  # they may since the header
            due = max(due, under_way.deadline)
        return InAttempt(current, attempt, attempt.phase, now, due), []

    def _conclude(self, over: AttemptOver) -> Change[Gathering | BetweenRounds | Ending]:
        """Take the sums of an attempt, try again, or lose the round; without an attempt, the round is lost."""
        current, ended = over.current, over.ended
        current.forbidden = self._attendance.forbidden_by_index
        if isinstance(ended, SecureFdaError):
            return self._lose_round(current, current.levels, ended), []
        self._note_lost_sources(current, ended)
        match ended.outcome:
            case None:
                raise RuntimeError("an attempt that goes on is not over")
            case RoundSum() as sums:
                return self._finish_round(current, ended, sums)
            case error:
                return self._lose_attempt(current, ended, error), []

    def _note_lost_sources(self, current: CurrentRound, attempt: Attempt) -> None:
        """Keep and report why an attempt lost sources: refusals, silence, failed checks, and what else was heard."""
        current.refused |= attempt.refused
        current.silent |= attempt.silent
        current.out_of_range |= "CLIPPED" in attempt.refused.values()
        for index, key in attempt.refused.items():
            name = self._site.name(index)
            self._reporter.note(Note(f"{name} refused: {key}", "warning", name))
            if key in OWN_TROUBLE or key in OF_CONSENT:  # its process ends, so do not wait for it
                self._attendance.refused[index] = key
        for alarm in attempt.alarms:
            self._raise_alarm(attempt, alarm)
        for index, why in attempt.why.items():
            self._attendance.note_trouble(index, why)

    def _finish_round(self, current: CurrentRound, attempt: Attempt, sums: RoundSum) -> Change[BetweenRounds | Ending]:
        """Update the model by the sums, and send the result to the sources in them."""
        waiting = sorted(sums.survivors - attempt.gone)
        try:
            self._report_work("fitting the head" if current.plan.rule.adds_moments else "measuring the model")
            change = self._model.change_by(current, attempt.terms, sums)
        except FaultySum as error:
            return self._reject_sums(current, attempt, waiting, error)
        self._attendance.forget_trouble(sums.survivors)
        # On the disk before the result leaves: a source that has it would refuse a header that does not continue it.
        result = self._model.finish_round(current, attempt.header, sums, change)
        self._progress = replace(self._progress, losses=())
        return BetweenRounds(self._site.clock()), [Send(index, Parcel(result)) for index in waiting]

    def _reject_sums(
        self, current: CurrentRound, attempt: Attempt, waiting: Sequence[int], error: FaultySum
    ) -> Change[BetweenRounds | Ending]:
        """Lose a round whose sums honest contributions cannot give. Masks hide the liar, so nobody is accused."""
        header = attempt.header
        alarm = ProtocolError("SUM", f"a source lied about its contribution: {error}")
        self._raise_alarm(attempt, alarm)
        self._log("aborted", attempt, alarm)
        abort = self._site.signer.sign(
            header.envelope.session_id, header.digest(), Abort(Step.RESULT, alarm.check, None)
        )
        sends = [Send(index, Parcel(abort)) for index in waiting]
        return self._lose_round(current, header.body.participants, alarm), sends

    def _lose_attempt(
        self, current: CurrentRound, attempt: Attempt, error: SecureFdaError
    ) -> Gathering | BetweenRounds | Ending:
        """Try again without the sources that refused or were silent, if no update can have left and enough remain."""
        lost = f"round {current.number} attempt {current.attempt} without a result: {error}"
        self._reporter.note(Note(lost, "warning"))
        self._log("aborted", attempt, error)
        may_retry = not attempt.may_have_released and current.attempt < self._settings.attempts
        if may_retry and self._candidates.enough_left(current):
            return self._gathering(current)
        return self._lose_round(current, attempt.header.body.participants, error)

    def _lose_round(
        self, current: CurrentRound, participants: Iterable[int], error: SecureFdaError
    ) -> BetweenRounds | Ending:
        """Record that a round has no result. After three in a row, or with too few sources left, the run ends."""
        # A round without a result has no survivors; its line lists as dropped only the sources that it waited for.
        awaited = error.missing if isinstance(error, QuorumLost) else ()
        self._model.lose_round(current, [index for index in participants if self._site.name(index) in awaited])
        refused = {self._site.name(index): key for index, key in sorted(current.refused.items())}
        losses = (*self._progress.losses, without_frames(with_hint(error, refused)))
        self._progress = replace(self._progress, losses=losses)
        too_few_are_left = bool(self._attendance.out) and not self._candidates.enough_left(current)
        if too_few_are_left and (out := self._attendance.why_out()) is not None:
            return self._failed(out)
        if len(losses) >= MOST_LOST_IN_A_ROW or too_few_are_left:
            return self._failed(losses[-1])
        return BetweenRounds(self._site.clock())

    def _raise_alarm(self, attempt: Attempt, alarm: SecureFdaError) -> None:
        """Report an alarm of an attempt to the operator, and log it."""
        self._reporter.note(Note.alarm_of(alarm))
        self._log("alarm", attempt, alarm)

    def _log(self, kind: str, attempt: Attempt, error: SecureFdaError) -> None:
        """Log an attempt's error, with the source to blame, if there is one."""
        names = {self._site.name(index) for index in self._site.sources}  # it may blame several, as "one of"
        accused = [error.source_id] if isinstance(error, FaultySourceError) and error.source_id in names else []
        check = getattr(error, "check", "QUORUM")
        self._site.witness.journal.event(kind, attempt.header, check=check, accused=accused)

    # --- The end ------------------------------------------------------------------------------------------------------

    def _failed(self, error: SecureFdaError, *, of_policies: bool = False) -> Ending:
        """The end of a failed run; the goodbye gives the sources the part of the reason that concerns them."""
        reason = reason_for_sources(error, of_policies=of_policies)
        return Ending(Goodbye(False, self._progress.last_round, reason), error)

    def _write_end(self, end: Ending) -> Change[Closing | Ended]:
        """Record the end in the log and ask for cosignatures; end silently if the log cannot be written."""
        present, farewell, error = self._attendance.present, end.farewell, end.error
        try:
            outcome = "completed" if farewell.completed else "failed"
            self._site.witness.journal.event("run-ended", outcome=outcome, rounds=farewell.rounds)
            # Without a connected source, the last cosigned checkpoint stays the newest: nobody could cosign another.
            asked = self._cosigners.renew(present, lasting=True) if present or not self._site.witness.size else []
        except SecureFdaError as failure:  # what came first is the cause
            return Ended(farewell, error or failure), []
        now = self._site.clock()
        return Closing(farewell, error, now, now + min(CLOSING_S, self._settings.phase_deadline_s)), asked

    def _say_goodbye(self, end: LastPhase) -> Change[Ended]:
        return Ended(end.farewell, end.error), self._goodbyes(sorted(self._attendance.present), end.farewell)

    def _goodbyes(self, sources: Sequence[int], farewell: Goodbye) -> list[Send]:
        """Goodbyes to these sources, with the final model for those that may keep it."""
        signer, keep = self._site.signer, farewell.completed and self._settings.sources_keep is SourcesKeep.FINAL
        had_part = {name for record in self._store.records() for name in record["survivors"]} if keep else set()
        kept = [index for index in sources if self._site.name(index) in had_part]
        sends = [goodbye(signer, index, farewell) for index in sources if index not in kept]
        if not kept:
            return sends
        with_model, vectors = self._model.goodbye_with_model(farewell)
        shown = self._model.receipts.missed_results_for(kept)
        return [*sends, *shown, *(goodbye(signer, index, with_model, vectors) for index in kept)]

    # --- Messages outside of an attempt -------------------------------------------------------------------------------

    def _receive_join(self, message: Signed[Body]) -> list[Send]:
        """A source joins, perhaps again: it gets the schedule and the checkpoint to cosign, or learns why it cannot."""
        index, body, attendance = message.sender, message.body, self._attendance
        if attendance.refuses_join(message) or not isinstance(body, Join):
            return []
        attendance.returning.discard(index)
        own = self._site.trainer
        if body.architecture_digest != joining_digest(own.layers, own.frozen_digest):
            attendance.note_other_model(index)
            abort = Abort(Step.HEADER, "HEADER_ARCHITECTURE", index)
            return [Send(index, Parcel(self._site.signer.sign(NO_SESSION, NO_CONTEXT, abort)))]
        if isinstance(self._phase, LastPhase):
            return [*self._goodbyes([index], self._phase.farewell), *self._advance()]
        lost: list[Send] = []
        if isinstance(self._phase, InAttempt) and index in attendance.present:
            lost = self._phase.attempt.lose(index, "its process restarted") + self._advance()
        attendance.joined(index, body)
        self._cosigners.note_known(index, body.known)
        schedule = [] if self._schedule is None else [Send(index, Parcel(self._schedule))]
        return [*lost, *schedule, *self._cosigners.ask_again(index), *self._advance()]

    def _receive_refusal(self, message: Signed[Body], key: str) -> list[Send]:
        """A source's policy forbids the run's schedule. If the others are too few without it, the run ends."""
        index, site = message.sender, self._site
        if self._schedule is None or index not in site.sources:
            return []
        outside = {"session_id": NO_SESSION, "context": self._schedule.digest()}
        if envelope_fault(message, kind=Refusal, roster=site.roster, sender=index, **outside):
            return []
        if key in OF_CONSENT:
            self._attendance.awaits_consent(index, key)
        else:
            self._attendance.refuses_the_run(index, key)
        return self._go_on_without(index)

    def _go_on_without(self, index: int) -> list[Send]:
        match self._phase:
            case InAttempt(attempt=attempt):
                return attempt.lose(index, "it takes no part any more") + self._advance()
            case AskingCosigners() | CatchingUp() | AwaitingCosignatures() | Gathering() as phase:
                out = self._attendance.why_out()
                if out is not None and not self._candidates.enough_left(phase.current):
                    return self._advance((self._failed(out), []))
        return self._advance()

    def _receive_checkpoint(self, message: Signed[Body]) -> list[Send]:
        """A source cosigns the aggregator's log, or shows its own."""
        if self.done:
            return []
        try:
            sends = self._cosigners.receive(message)
        except FaultySourceError as error:
            sends = []
            self._accuse(message.sender, error)
        return sends + self._advance()

    def _receive_receipt(self, message: Signed[Body]) -> list[Send]:
        """A source has accepted the last result. The run does not wait for that."""
        try:
            self._model.receipts.take(message)
        except FaultySourceError as error:
            self._accuse(message.sender, error)
        return []

    def _accuse(self, index: int, error: FaultySourceError) -> None:
        """Report a source whose message outside of a session failed a check."""
        self._attendance.note_trouble(index, f"fails check {error.check}")
        self._reporter.note(Note.alarm_of(error))
        self._site.witness.journal.event("alarm", check=error.check, accused=[error.source_id])

    def _awaited(self) -> frozenset[int]:
        """Sources that the phase waits for: first those that are absent; when all have joined, those yet to answer."""
        match self._phase:
            case InAttempt(attempt=attempt):
                return attempt.waiting_for
            case AskingCosigners() | CatchingUp() | AwaitingCosignatures() | Closing():
                return frozenset(self._attendance.connected - self._cosigners.cosigned - self._cosigners.faulty)
            case Gathering(current=current):
                expected = self._candidates.expected(current)
                return expected - self._attendance.present or expected - self._candidates.ready(current)
        return frozenset()


_HANDLERS: Mapping[tuple[type[Phase], Event], Callable[[AggregatorRun, Any], Change[Phase]]] = {
    (Opening, Event.READY): AggregatorRun._begin_or_resume,
    (AskingCosigners, Event.READY): AggregatorRun._gather,
    (AskingCosigners, Event.DUE): AggregatorRun._train_meanwhile,
    (CatchingUp, Event.DUE): AggregatorRun._await_cosignatures,
    (AwaitingCosignatures, Event.READY): AggregatorRun._gather,
    (AwaitingCosignatures, Event.DUE): AggregatorRun._gather,
    (Gathering, Event.READY): AggregatorRun._start_attempt,
    (Gathering, Event.DUE): AggregatorRun._start_attempt,
    (InAttempt, Event.READY): AggregatorRun._follow_attempt,
    (AttemptOver, Event.READY): AggregatorRun._conclude,
    (BetweenRounds, Event.DUE): AggregatorRun._begin_next_round,
    (Ending, Event.READY): AggregatorRun._write_end,
    (Closing, Event.READY): AggregatorRun._say_goodbye,
    (Closing, Event.DUE): AggregatorRun._say_goodbye,
}
"""(phase, event) -> what the run does. Any other event has no effect in a phase; an error ends the run from each."""
