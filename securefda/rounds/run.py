"""A whole run, seen from the aggregator: gather sources, run attempts round after round, remember, end.

The driver (a service or the simulator) reports what arrives, who comes and goes and when a deadline is over, and
sends what it gets back. Nothing here waits, and no clock is read but the one passed in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256

import numpy as np

from securefda.adaptation import RoundPlan, Rule, Strategy, combine, round_plan
from securefda.errors import ConfigError, QuorumLost, SecureFdaError
from securefda.rounds.attempts import Attempt, ClearAttempt, MaskedAttempt, RoundSum, Send
from securefda.rounds.progress import Reporter
from securefda.rounds.records import RoundLine
from securefda.rounds.site import Trainer, vector_to_wire
from securefda.rounds.store import AggregatorStore, Position
from securefda.rounds.target import TargetRound, published_terms, train_target
from securefda.rounds.terms import terms_of
from securefda.secagg.aggregator import AggregatorSession
from securefda.secagg.checks import envelope_fault
from securefda.secagg.messages import (
    NO_CONTEXT,
    NO_SESSION,
    SESSION_ID_BYTES,
    Abort,
    Body,
    Goodbye,
    Header,
    Join,
    Layer,
    Parcel,
    Result,
    Signed,
    Signer,
    Step,
    Visibility,
)
from securefda.secagg.parameters import default_threshold, threshold_is_sound
from securefda.secagg.roster import Roster
from securefda.secagg.secret import RandomBytes, draw
from securefda.tasks import Samples
from securefda.training import LayerTable, Vector

MOST_LOST_IN_A_ROW = 3
"""After so many rounds without a result the run ends: the cause does not pass by itself."""

ByteCounts = tuple[Mapping[int, int], Mapping[int, int]]
"""Bytes up and down since the start of the process, by roster index."""


@dataclass(frozen=True, slots=True)
class TargetSite:
    """Everything of the target that stays the same during a run."""

    signer: Signer
    roster: Roster
    trainer: Trainer
    test_data: Samples
    random_bytes: RandomBytes
    clock: Callable[[], float]
    traffic: Callable[[], ByteCounts]


@dataclass(frozen=True, slots=True)
class RunSettings:
    """How a run goes; ``threshold`` 0 is the default formula, deadlines are seconds."""

    strategy: Strategy
    visibility: Visibility
    k_min: int
    n_c: int
    threshold: int
    modulus_bits: int
    clip: float
    max_samples: int
    attempts: int
    join_deadline_s: float
    training_deadline_s: float
    phase_deadline_s: float
    config_digest: bytes

    def __post_init__(self) -> None:
        if self.visibility is Visibility.SUM and self.strategy.needs_step_updates:
            raise ConfigError(
                "strategy",
                f"{self.strategy.rule} with estimator {self.strategy.estimator} needs the target's single steps, "
                "which sources do not see at visibility sum",
                hint='set strategy.estimator = "mean-field", or privacy.visibility = "individual"',
            )


@dataclass(slots=True)
class _Progress:
    """The round in progress: what was done for it so far."""

    number: int
    plan: RoundPlan
    attempt: int
    trained: bool
    target: TargetRound | None
    seconds: dict[str, float]
    refused: dict[str, str]
    traffic_before: ByteCounts


class AggregatorRun:
    """Runs all rounds. ``done`` says that nothing is left to do, ``error`` why the run ended early.

    ``deadline`` is the clock's time at which :meth:`expire` is due, None when done.
    """

    def __init__(self, site: TargetSite, settings: RunSettings, store: AggregatorStore, reporter: Reporter) -> None:
        self._site, self._settings, self._store, self._reporter = site, settings, store, reporter
        self._present: set[int] = set()
        self._joined: set[int] = set()
        self._attempt: Attempt | None = None
        self._round: _Progress | None = None
        self._phase = ""
        self._phase_began = site.clock()
        self._began_before = False
        self._lost_in_a_row = 0
        self._result_digest = b""
        self._run_id = b""
        self.model: Vector = np.zeros(0, np.float32)
        self.deadline: float | None = None
        self.done = False
        self.error: SecureFdaError | None = None

    @property
    def run_id(self) -> str:
        """32 hex digits."""
        return self._run_id.hex()

    @property
    def layers(self) -> LayerTable:
        """Names and shapes of the model's layers."""
        return self._site.trainer.layers

    def waiting_for(self) -> tuple[str, ...]:
        """Site ids that the current phase waits for."""
        waiting = self._attempt.waiting_for if self._attempt else self._sources() - self._present
        return tuple(self._name(index) for index in sorted(waiting))

    def expected_upload(self, index: int) -> int:
        """Length of the vector that this source may upload now, in bytes; 0 for none."""
        return self._attempt.expected_upload(index) if self._attempt else 0

    def open(self) -> list[Send]:
        """Begin the run, or go on after its last finished round."""
        position = self._store.position(self._settings.config_digest)
        if position is None:
            self._run_id = draw(self._site.random_bytes, 16)
            self.model = self._site.trainer.initial_model()
            self._store.begin_run(self._run_id, self._settings.config_digest, self.model)
            return self._begin_round(1, 0)
        return self._resume(position)

    def receive(self, parcel: Parcel) -> list[Send]:
        """Process one message; what belongs to no open attempt is discarded."""
        if isinstance(parcel.message.body, Join):
            return self._join(parcel.message)
        return self._after(self._attempt.receive(parcel)) if self._attempt and not self.done else []

    def left(self, index: int) -> list[Send]:
        """The connection to a source is gone for good."""
        if index in self._present:
            self._present.discard(index)
            self._reporter.note(f"{self._name(index)} left")
        return self._after(self._attempt.lose(index)) if self._attempt and not self.done else []

    def returned(self, index: int) -> list[Send]:
        """A source that had left is back as the same process; it takes part again from the next header on."""
        if index not in self._joined:
            return []
        self._present.add(index)
        self._reporter.note(f"{self._name(index)} is back")
        return self._start_if_ready()

    def expire(self) -> list[Send]:
        """The deadline passed: go on with who is there."""
        if self.done:
            return []
        if self._attempt:
            return self._after(self._attempt.expire())
        if self._has_quorum(self._present):
            return self._start_attempt()
        return self._fail(self._quorum_error())

    def fail(self, error: SecureFdaError) -> list[Send]:
        """End the run because of something that the driver met."""
        return [] if self.done else self._fail(error)

    def _resume(self, position: Position) -> list[Send]:
        self._run_id, self._result_digest = position.run_id, position.result_digest
        self.model = self._store.model()
        if position.completed:
            self._reporter.note("this run is complete already")
            self.done = True
            return []
        recorded = {record["round"] for record in self._store.records()}
        self._reporter.note(f"resuming after round {max(recorded, default=0)}")
        if position.round == 0 or position.round in recorded:
            return self._begin_round(position.round + 1, 0)
        if not position.released:
            return self._begin_round(position.round, position.attempt)
        self._store.lose_round({"round": position.round, "status": "lost", "attempts": position.attempt})
        return self._begin_round(position.round + 1, 0)

    def _join(self, message: Signed[Body]) -> list[Send]:
        site, index, body = self._site, message.sender, message.body
        known = index in self._sources()
        fault = self._join_fault(message) if known else "not a source"
        if fault or not isinstance(body, Join):
            self._reporter.note(f"{self._name(index)}: join refused ({fault})")
            return []
        if body.architecture_digest != site.trainer.architecture_digest:
            self._reporter.note(f"{self._name(index)}: its model has other layers; it needs the same task and version")
            return [self._turn_away(index)]
        again = self._after(self._attempt.lose(index)) if self._attempt and index in self._present else []
        self._present.add(index)
        self._joined.add(index)
        self._reporter.note(f"{self._name(index)} joined ({len(self._present)} of {len(self._sources())})")
        return again + self._start_if_ready()

    def _turn_away(self, index: int) -> Send:
        """Answer a join with which no round can work; the source ends with a clear error."""
        body = Abort(Step.HEADER, "HEADER_ARCHITECTURE", index)
        return Send(index, Parcel(self._site.signer.sign(NO_SESSION, NO_CONTEXT, body)))

    def _join_fault(self, message: Signed[Body]) -> str | None:
        roster = self._site.roster
        return envelope_fault(
            message, roster=roster, sender=message.sender, session_id=NO_SESSION, context=NO_CONTEXT, kind=Join
        )

    def _begin_round(self, number: int, attempt: int) -> list[Send]:
        """Go to the next round that needs sources; rounds of the target alone are done on the way."""
        strategy = self._settings.strategy
        while number <= strategy.rounds and self.error is None:
            plan = round_plan(strategy, number)
            self._reporter.round_started(number, strategy.rounds)
            self._round = _Progress(number, plan, attempt, False, None, {}, {}, self._site.traffic())
            if plan.rule.needs_sources:
                return self._gather()
            self._round_of_target_alone(self._round)
            number, attempt = number + 1, 0
        return self._complete()

    def _gather(self) -> list[Send]:
        self._attempt = None
        self._enter("join", self._settings.join_deadline_s)
        return self._start_if_ready()

    def _start_if_ready(self) -> list[Send]:
        if self.done or self._attempt is not None or self._round is None:
            return []
        everyone = self._present == self._sources()
        ready = everyone or (self._began_before and self._has_quorum(self._present))
        return self._start_attempt() if ready else []

    def _start_attempt(self) -> list[Send]:
        if self._round is None:
            return []
        current, self._began_before = self._round, True
        if not self._has_quorum(self._present):
            return self._fail(self._quorum_error())
        self._train_target(current)
        current.attempt += 1
        self._store.begin_attempt(current.number, current.attempt)
        header = self._header(current)
        session = AggregatorSession(self._site.signer, self._site.roster, header)
        vectors: tuple[memoryview, ...] = (vector_to_wire(self.model),)
        if header.body.target and header.body.target.update_digest and current.target:
            vectors = (*vectors, vector_to_wire(current.target.result.update))
        self._attempt = self._new_attempt(session, current)
        self._enter(self._attempt.phase, self._settings.training_deadline_s)
        return [Send(index, Parcel(header, vectors)) for index in header.body.participants]

    def _new_attempt(self, session: AggregatorSession, current: _Progress) -> Attempt:
        if self._settings.visibility is Visibility.SUM:
            return MaskedAttempt(session, self._store.mark_released)
        self._store.mark_released()
        target = current.target
        if target is None:
            return ClearAttempt(session, None, None)
        return ClearAttempt(session, target.statistics, target.result.update, target.step_updates)

    def _train_target(self, current: _Progress) -> None:
        """Once per round, whatever the number of attempts: what is published of the target stays one release."""
        if current.trained:
            return
        began = self._site.clock()
        current.target = train_target(self._site.trainer, self.model, current.number, current.plan)
        current.trained = True
        current.seconds["train_target"] = self._site.clock() - began

    def _header(self, current: _Progress) -> Signed[Header]:
        settings, site = self._settings, self._site
        participants = tuple(sorted(self._present))
        body = Header(
            run_id=self._run_id,
            round=current.number,
            attempt=current.attempt,
            visibility=settings.visibility,
            rule=terms_of(current.plan),
            target=published_terms(current.target, current.plan, settings.visibility),
            layers=tuple(Layer(name, shape, settings.clip) for name, shape in site.trainer.layers),
            architecture_digest=site.trainer.architecture_digest,
            model_digest=sha256(vector_to_wire(self.model)).digest(),
            roster_digest=site.roster.digest(),
            participants=participants,
            threshold=self._threshold(len(participants)),
            modulus_bits=settings.modulus_bits,
            n_max=max(2, len(self._sources())),
            max_samples=settings.max_samples,
            training_deadline_ms=round(1000 * settings.training_deadline_s),
            phase_deadline_ms=round(1000 * settings.phase_deadline_s),
            previous_result_digest=self._result_digest,
            previous_checkpoint=b"",
        )
        return site.signer.sign(draw(site.random_bytes, SESSION_ID_BYTES), NO_CONTEXT, body)

    def _after(self, sends: list[Send]) -> list[Send]:
        """Look at what a message or a deadline did to the attempt."""
        attempt = self._attempt
        if attempt is None:
            return sends
        if attempt.outcome is None:
            if attempt.phase != self._phase:
                self._enter(attempt.phase, self._settings.phase_deadline_s)
            return sends
        self._leave_phase()
        self._attempt = None
        self._note_incidents(attempt)
        if isinstance(attempt.outcome, RoundSum):
            return sends + self._finish_round(attempt.header, attempt.outcome)
        return sends + self._lose_attempt(attempt, attempt.outcome)

    def _note_incidents(self, attempt: Attempt) -> None:
        if self._round is not None:
            self._round.refused |= {self._name(index): key for index, key in attempt.refused.items()}
        for index, key in attempt.refused.items():
            self._reporter.note(f"{self._name(index)} refused: {key}")
        for alarm in attempt.alarms:
            self._reporter.note(f"alarm: {alarm}")

    def _lose_attempt(self, attempt: Attempt, error: SecureFdaError) -> list[Send]:
        current = self._round
        if current is None:
            return []
        self._reporter.note(f"round {current.number} attempt {current.attempt} without a result: {error}")
        if not attempt.may_have_released and current.attempt < self._settings.attempts:
            return self._gather()
        line = self._line(current, "lost", participants=attempt.header.body.participants)
        self._store.lose_round(dict(line))
        self._reporter.round_finished(line)
        self._lost_in_a_row += 1
        if self._lost_in_a_row >= MOST_LOST_IN_A_ROW:
            return self._fail(error)
        return self._begin_round(current.number + 1, 0)

    def _finish_round(self, header: Signed[Header], outcome: RoundSum) -> list[Send]:
        current = self._round
        if current is None:
            return []
        began = self._site.clock()
        delta = self._combine(current, outcome)
        self.model = (self.model + delta).astype(np.float32)
        current.seconds["rule"] = self._site.clock() - began
        digest = sha256(vector_to_wire(self.model)).digest()
        body = Result(outcome.digest, len(outcome.survivors), digest, b"")
        result = self._site.signer.sign(header.envelope.session_id, outcome.context, body)
        self._result_digest = result.digest()
        self._record_round(current, outcome, header.body.participants)
        sends = [Send(index, Parcel(result)) for index in sorted(outcome.survivors & self._present)]
        return sends + self._begin_round(current.number + 1, 0)

    def _combine(self, current: _Progress, outcome: RoundSum) -> Vector:
        target, rule = current.target, current.plan.rule
        unit = self._settings.max_samples if self._settings.visibility is Visibility.SUM else 1
        return combine(
            rule,
            outcome.vector,
            outcome.kept,
            outcome.samples,
            target_update=target.result.update if target else None,
            target_samples=target.result.samples / unit if target and rule is Rule.FEDAVG else None,
        ).astype(np.float64)

    def _round_of_target_alone(self, current: _Progress) -> None:
        self._train_target(current)
        if current.target is not None:
            self.model = self.model + current.target.result.update
        self._record_round(current, None, ())

    def _record_round(self, current: _Progress, outcome: RoundSum | None, participants: Iterable[int]) -> None:
        began = self._site.clock()
        evaluation = self._site.trainer.evaluate(self.model, self._site.test_data)
        current.seconds["evaluate"] = self._site.clock() - began
        line = self._line(current, "finished", outcome=outcome, participants=participants)
        line["accuracy"] = evaluation.metrics["accuracy"]
        line["loss"], line["metrics"] = evaluation.loss, evaluation.metrics
        self._store.finish_round(dict(line), self.model, self._result_digest)
        self._lost_in_a_row = 0
        self._reporter.round_finished(line)

    def _line(
        self, current: _Progress, status: str, *, participants: Iterable[int], outcome: RoundSum | None = None
    ) -> RoundLine:
        survivors = outcome.survivors if outcome else frozenset()
        up, down = self._traffic_since(current.traffic_before)
        adapts = outcome is not None and current.plan.rule.adapts
        return RoundLine(
            round=current.number,
            rule=str(current.plan.rule),
            mean_beta=1.0 - outcome.kept / outcome.samples if outcome and adapts else None,
            survivors=[self._name(index) for index in sorted(survivors)],
            dropped=[self._name(index) for index in sorted(set(participants) - survivors)],
            refused=dict(current.refused),
            attempts=current.attempt,
            seconds=dict(current.seconds),
            bytes_up=up,
            bytes_down=down,
            model_digest=sha256(vector_to_wire(self.model)).hexdigest(),
            status="finished" if status == "finished" else "lost",
        )

    def _traffic_since(self, before: ByteCounts) -> tuple[dict[str, int], dict[str, int]]:
        now = self._site.traffic()
        up, down = (
            {self._name(index): count - old.get(index, 0) for index, count in sorted(new.items())}
            for new, old in zip(now, before, strict=True)
        )
        return up, down

    def _enter(self, phase: str, deadline_s: float) -> None:
        self._leave_phase()
        self._phase, self._phase_began = phase, self._site.clock()
        self.deadline = self._phase_began + deadline_s
        self._reporter.phase(phase, self.waiting_for())

    def _leave_phase(self) -> None:
        if self._phase and self._round is not None:
            seconds = self._round.seconds
            seconds[self._phase] = seconds.get(self._phase, 0.0) + self._site.clock() - self._phase_began
        self._phase = ""

    def _complete(self) -> list[Send]:
        self._store.complete()
        return self._end(True, "")

    def _fail(self, error: SecureFdaError) -> list[Send]:
        self.error = error
        return self._end(False, str(error)[:500])

    def _end(self, completed: bool, reason: str) -> list[Send]:
        self.done, self.deadline, self._attempt = True, None, None
        return [self._goodbye(index, completed, reason) for index in sorted(self._present)]

    def _goodbye(self, index: int, completed: bool, reason: str) -> Send:
        rounds = self._round.number if self._round else 0
        message = self._site.signer.sign(NO_SESSION, NO_CONTEXT, Goodbye(completed, rounds, reason))
        return Send(index, Parcel(message))

    def _sources(self) -> set[int]:
        return {entry.index for entry in self._site.roster.sources}

    def _name(self, index: int) -> str:
        entries = self._site.roster.entries
        return entries[index].site_id if 0 <= index < len(entries) else f"index {index}"

    def _threshold(self, n: int) -> int:
        """t of a session of n sources; 1 where updates travel in clear and nothing is shared."""
        settings = self._settings
        if settings.visibility is not Visibility.SUM:
            return 1
        return settings.threshold or default_threshold(n, settings.k_min, settings.n_c)

    def _has_quorum(self, present: set[int]) -> bool:
        settings, n = self._settings, len(present)
        if settings.visibility is not Visibility.SUM:
            return n >= 1
        if n - 1 - settings.n_c < settings.k_min:
            return False
        try:
            return threshold_is_sound(self._threshold(n), n, settings.n_c)
        except ValueError:
            return False

    def _quorum_error(self) -> QuorumLost:
        settings = self._settings
        needed = 1 if settings.visibility is not Visibility.SUM else settings.k_min + settings.n_c + 1
        have = [self._name(index) for index in sorted(self._present)]
        missing = [self._name(index) for index in sorted(self._sources() - self._present)]
        return QuorumLost("join", max(needed, settings.threshold), have, missing, hint="start the missing sources")
