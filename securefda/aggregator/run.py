"""A whole run, seen from the aggregator: gather sources, run attempts round after round, remember, end.

The driver (a service or the simulator) reports what arrives, who comes and goes and when a deadline is over, and
sends what it gets back. Nothing here waits, and no clock is read but the one passed in.

What an aggregator's run says to sources beside the messages of a session.

Which sources are there, and what was last heard of those that are not: the run's error names both.
"""

from __future__ import annotations

from collections.abc import Iterable

from securefda import __version__
from securefda.aggregator.attempt import Attempt, RoundSum
from securefda.aggregator.cosigners import Witnesses
from securefda.aggregator.headers import Planner
from securefda.aggregator.mixed_attempt import open_attempt
from securefda.aggregator.model import RunModel
from securefda.aggregator.rounds import CurrentRound, last_errors
from securefda.aggregator.settings import RunSettings, TargetSite
from securefda.aggregator.store import AggregatorStore, Asked, Position
from securefda.audit.store import AuditError
from securefda.errors import (
    ConfigError,
    FaultySourceError,
    ProtocolError,
    QuorumLost,
    RunEnded,
    SecureFdaError,
    without_frames,
)
from securefda.operations.progress import Reporter
from securefda.protocol.aggregator import AggregatorSession
from securefda.protocol.checks import envelope_fault
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
    Send,
    Signed,
    Signer,
    Step,
    Visibility,
)
from securefda.protocol.secret import draw
from securefda.protocol.transcript import round_terms
from securefda.rules import round_plan
from securefda.training import LayerTable, Vector

_MOST_CHARACTERS = 500
_SECTIONS = frozenset({"privacy", "session", "strategy", "task", "training", "transport"})
"""Of configurations: the key of an error that begins with one of them is a setting, and no path."""


def turn_away(signer: Signer, index: int) -> Send:
    """Answer a join with which no round can work; the source ends with a clear error."""
    return Send(index, Parcel(signer.sign(NO_SESSION, NO_CONTEXT, Abort(Step.HEADER, "HEADER_ARCHITECTURE", index))))


def no_result(signer: Signer, index: int, header: Signed[Header], check: str) -> Send:
    """Tell a source that waits for the result that there is none; nobody is accused."""
    body = Abort(Step.RESULT, check, None)
    return Send(index, Parcel(signer.sign(header.envelope.session_id, header.digest(), body)))


def goodbye(signer: Signer, index: int, farewell: Goodbye) -> Send:
    """The last word to a source."""
    return Send(index, Parcel(signer.sign(NO_SESSION, NO_CONTEXT, farewell)))


def reason_of(error: SecureFdaError, *, of_policies: bool = False) -> str:
    """Why a run failed, one line: what the sources had a part in; of the target's own trouble its kind or setting.

    The rest of such a line may name the target's files, count its rows or say what is left of its budget.

    Args:
        error: what ended it.
        of_policies: it says what the sources' policies permit together, which their owners have to mend.
    """
    if not of_policies and not isinstance(error, (ProtocolError, QuorumLost, RunEnded)):
        setting = error.key if isinstance(error, ConfigError) and error.key.split(".")[0] in _SECTIONS else ""
        return f"the target cannot go on ({setting or error.code})"
    return "".join(letter if letter.isprintable() else " " for letter in str(error))[:_MOST_CHARACTERS]


class Attendance:
    """Sources of a run by roster index; ``present`` have joined and not left."""

    def __init__(self, site: TargetSite, software_version: str, reporter: Reporter) -> None:
        self._site, self._version, self._reporter = site, software_version, reporter
        self._joined: dict[int, Join] = {}
        self._why: dict[int, str] = {}
        self.present: set[int] = set()

    def refuses(self, message: Signed[Body]) -> bool:
        """Whether a message is no join of a source that may take part now; the operator is told."""
        index, site = message.sender, self._site
        if index not in site.sources:
            fault: str | None = "not a source"
        elif not site.admits(index):
            fault = "by this clock its roster entry is not valid now"
        else:
            fault = envelope_fault(
                message, roster=site.roster, sender=index, session_id=NO_SESSION, context=NO_CONTEXT, kind=Join
            )
        if fault:
            self.heard(index, f"join refused: {fault}")
            self._reporter.note(f"{site.name(index)}: join refused ({fault})")
        return fault is not None

    def turned_away(self, index: int) -> None:
        """A source reported with another model."""
        self.heard(index, "fails check HEADER_ARCHITECTURE: its model has other layers")
        name = self._site.name(index)
        self._reporter.note(f"{name}: its model has other layers; it needs the same task and version")

    def came(self, index: int, body: Join) -> None:
        """A source reported. Another version is worth a word: it may be why something fails later."""
        self.present.add(index)
        self._joined[index] = body
        self._why.pop(index, None)
        name = self._site.name(index)
        self._reporter.note(f"{name} joined ({len(self.present)} of {len(self._site.sources)})")
        if body.software_version != self._version:
            self._reporter.note(f"{name} runs securefda {body.software_version}, the aggregator {self._version}")

    def permits(self, index: int) -> Visibility:
        """The most that a source's policy lets the aggregator see, as its join said; the least there is without one."""
        join = self._joined.get(index)
        return Visibility.SUM if join is None else join.visibility

    def all_hand_in_metrics(self, indices: Iterable[int]) -> bool:
        """Whether each of these sources said in its join that it hands in loss and accuracy."""
        joins = [self._joined.get(index) for index in indices]
        return all(join is not None and join.metrics for join in joins)

    def came_back(self, index: int) -> bool:
        """A source that had left is back as the same process; False where it never joined."""
        if index in self._joined:
            self.present.add(index)
            self._why.pop(index, None)
            self._reporter.note(f"{self._site.name(index)} is back")
        return index in self._joined

    def went(self, index: int, why: str) -> None:
        """The connection to a source is gone."""
        self.heard(index, why)
        if index in self.present:
            self.present.discard(index)
            self._reporter.note(f"{self._site.name(index)} left")

    def heard(self, index: int, why: str) -> None:
        """Why a source may be missing soon; a failed check is not replaced by the end of the connection after it."""
        if "check" not in self._why.get(index, ""):
            self._why[index] = why

    def kept(self, indices: Iterable[int]) -> None:
        """Sources are in the sum of a round: whatever was heard of them before is over."""
        for index in indices:
            self._why.pop(index, None)

    def explained(self, error: QuorumLost) -> QuorumLost:
        """The error, with what was last heard of each source that is missing."""
        return error.because({self._site.name(index): why for index, why in self._why.items()})


WITNESS_PHASE, CLOSING_PHASE = "witness", "closing"
CLOSING_S = 5.0
"""How long the end of a run waits for cosignatures."""
MOST_LOST_IN_A_ROW = 3
"""After so many rounds without a result the run ends: the cause does not pass by itself."""


class AggregatorRun:
    """Runs all rounds. ``done`` says that nothing is left to do, ``error`` why the run ended early.

    ``deadline`` is the clock's time at which :meth:`expire` is due, None when done. A round that is over leaves it at
    the present: whatever its end had to say is sent before the target trains for the next round.

    A new run is called ``run_id``, 16 bytes, or drawn one; one that is resumed keeps its own. ``opened`` says whether
    :meth:`open` has begun.

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
        self._planner = Planner({index: site.name(index) for index in site.sources}, settings)
        self._attendance = Attendance(site, __version__, reporter)
        self._attempt: Attempt | None = None
        self._round: CurrentRound | None = None
        self._last_begun = 0
        self._phase = ""
        self._phase_began = site.clock()
        self._began_before = False
        self._lost_in_a_row = 0
        self._last_loss: SecureFdaError = RunEnded("every round was lost", hint="a new run needs another folder")
        self._farewell = Goodbye(True, 0, "")
        position = store.position(settings.config_digest)
        new_id = draw(site.random_bytes, RUN_ID_BYTES) if run_id is None else run_id
        self._run_id = new_id if position is None else position.run_id
        self._model = RunModel(site, settings, store, reporter, self._run_id)
        self._witnesses = Witnesses(site)
        self._returning: set[int] = set()
        """Sources of which a new process is there that has not joined yet; the old one's part is over."""
        self._closing = self._awaits_cosigners = False
        self.opened = False
        self.deadline: float | None = None
        self.done = False
        self.error: SecureFdaError | None = None

    @property
    def run_id(self) -> str:
        """32 hex digits."""
        return self._run_id.hex()

    @property
    def model(self) -> Vector:
        """The global model as it is, float32 ``(n_params,)``; empty before :meth:`open`."""
        return self._model.vector

    @property
    def layers(self) -> LayerTable:
        """Names and shapes of the model's layers."""
        return self._site.trainer.layers

    def waiting_for(self) -> tuple[str, ...]:
        """Site ids that the current phase waits for."""
        waiting = self._attempt.waiting_for if self._attempt else self._missing()
        return tuple(self._site.name(index) for index in sorted(waiting))

    def expected_upload(self, index: int) -> int:
        """Length of the vector that this source may upload now, in bytes; 0 for none."""
        return self._attempt.expected_upload(index) if self._attempt else 0

    def open(self) -> list[Send]:
        """Begin the run, or go on after its last finished round."""
        self.opened = True
        self._site.witness.enter(self.run_id)
        position = self._store.position(self._settings.config_digest)
        if position is None:
            self._model.begin()
            return self._begin_round(1)
        return self._resume(position)

    def receive(self, parcel: Parcel) -> list[Send]:
        """Process one message; what belongs to no open attempt is discarded."""
        match parcel.message.body:
            case Join():
                return self._join(parcel.message)
            case Checkpoint() | Cosigned():
                return self._witnessed(parcel.message)
            case Receipt():
                return self._receipt(parcel.message)
        if self._attempt is None or self.done:
            return []
        self._site.witness.journal.save()  # while others train
        return self._after(self._attempt.receive(parcel))

    def left(self, index: int, why: str = "its connection ended") -> list[Send]:
        """The connection to a source is gone for good."""
        self._returning.discard(index)
        self._attendance.went(index, why)
        if self._closing and not self.done:
            return self._close_if_witnessed()
        if self._attempt is None or self.done:
            return self._start_if_ready()  # nobody waits any more for it to cosign
        return self._after(self._attempt.lose(index, why))

    def replaced(self, index: int, why: str) -> list[Send]:
        """A new process of a source has connected: what the old one was in is lost, and the new one will join."""
        self._attendance.went(index, why)
        self._returning.add(index)
        return [] if self._attempt is None or self.done else self._after(self._attempt.lose(index, why))

    def misbehaved(self, index: int, check: str, detail: str) -> list[Send]:
        """The transport refused what a source sent. Nothing of it is here; should the source be missed, this is why."""
        self._attendance.heard(index, f"fails check {check}: {detail}")
        return []

    def returned(self, index: int) -> list[Send]:
        """A source that had left is back as the same process; it takes part again from the next header on."""
        if not self._attendance.came_back(index) or self.done:
            return []
        asked = self._witnesses.ask_again(index) if index not in self._witnesses.vouching else []
        return asked + self._start_if_ready()

    def expire(self) -> list[Send]:
        """The deadline passed: go on with who is there."""
        if self.done:
            return []
        if self._closing:
            return self._say_goodbye()
        if self._attempt:
            return self._after(self._attempt.expire())
        if self._phase == WITNESS_PHASE:
            return self._gather([]) if self._awaits_cosigners else self._train_meanwhile()
        return self._begin_round(self._last_begun + 1) if self._round is None else self._start_attempt()

    def fail(self, error: SecureFdaError) -> list[Send]:
        """End the run because of something that the driver met."""
        return [] if self.done else self._fail(error)

    def _resume(self, position: Position) -> list[Send]:
        self._model.restore(position)
        if position.completed:
            self._reporter.note("this run is complete already")
            return self._say_goodbye()  # no checkpoint: nobody is there who would cosign it
        recorded = {record["round"] for record in self._store.records()}
        self._reporter.note(f"resuming after round {max(recorded)}" if recorded else "resuming before any round ended")
        if position.round == 0 or position.round in recorded:
            return self._begin_round(position.round + 1)
        if position.released or position.attempt >= self._settings.attempts or self._would_differ(position):
            return self._give_up_interrupted(position)
        return self._begin_round(position.round, position.attempt, position.asked)

    def _would_differ(self, position: Position) -> bool:
        """Whether the target would train to another g_T: sources take no second header of a round that asks for more.

        With DP-SGD it would differ by fresh noise, and be one release more than was paid for.
        """
        if self._site.trainer.repeatable or position.attempt == 0:
            return False
        return round_plan(
            self._settings.strategy, position.round, last_errors(self._store.records())
        ).uses_target_statistics

    def _give_up_interrupted(self, position: Position) -> list[Send]:
        """Updates of the round may have left, or it cannot be tried again: it is lost, and the next one begins."""
        current = self._enter_round(position.round, position.attempt)
        self._reporter.note(f"round {current.number} was interrupted and cannot be taken up again; it is lost")
        self._model.lose(current, ())
        return self._end_round()

    def _join(self, message: Signed[Body]) -> list[Send]:
        index, body, attendance = message.sender, message.body, self._attendance
        if attendance.refuses(message) or not isinstance(body, Join):
            return []
        self._returning.discard(index)
        if body.architecture_digest != self._site.trainer.architecture_digest:
            attendance.turned_away(index)
            return [turn_away(self._site.signer, index)]
        if self.done or self._closing:
            last_word = [goodbye(self._site.signer, index, self._farewell)]
            return last_word if self.done else last_word + self._close_if_witnessed()
        began_anew = self._attempt is not None and index in attendance.present
        again = self._after(self._attempt.lose(index, "it began anew")) if self._attempt and began_anew else []
        attendance.came(index, body)
        self._witnesses.reported(index, body.known)
        return [*again, *self._witnesses.ask_again(index), *self._start_if_ready()]

    def _witnessed(self, message: Signed[Body]) -> list[Send]:
        """A source cosigns the aggregator's log, or shows its own."""
        if self.done:
            return []
        try:
            sends = self._witnesses.receive(message)
        except FaultySourceError as error:
            sends = []
            self._attendance.heard(message.sender, f"fails check {error.check}")
            self._reporter.note(f"alarm: {error}")
            self._site.witness.journal.event("alarm", check=error.check, accused=[error.source_id])
        return sends + (self._close_if_witnessed() if self._closing else self._start_if_ready())

    def _receipt(self, message: Signed[Body]) -> list[Send]:
        """A source has accepted the last result. Nobody waits for that."""
        try:
            self._model.receipts.take(message)
        except FaultySourceError as error:
            self._attendance.heard(message.sender, f"fails check {error.check}")
            self._reporter.note(f"alarm: {error}")
            self._site.witness.journal.event("alarm", check=error.check, accused=[error.source_id])
        return []

    def _begin_round(self, number: int, attempts: int = 0, asked: Asked | None = None) -> list[Send]:
        """Go to a round, of which ``attempts`` were begun before a restart. The target's own rounds need nobody."""
        if number > self._settings.strategy.rounds:
            finished = any(record["status"] == "finished" for record in self._store.records())
            return self._complete() if finished else self._fail(self._last_loss)
        current = self._enter_round(number, attempts, asked)
        if current.plan.needs_sources:
            return self._gather(self._witnesses.renew(self._attendance.present))
        self._model.train_target(current)
        self._model.take_target_update(current)
        self._lost_in_a_row = 0
        return self._end_round()

    def _enter_round(self, number: int, attempts: int, asked: Asked | None = None) -> CurrentRound:
        strategy = self._settings.strategy
        self._reporter.round_started(number, strategy.rounds)
        plan = round_plan(strategy, number, last_errors(self._store.records()))
        self._round = CurrentRound(number, plan, attempts, self._site.traffic(), asked)
        self._last_begun = number
        return self._round

    def _end_round(self) -> list[Send]:
        """The next round begins with the next :meth:`expire`, which is due at once."""
        self._round, self.deadline = None, self._site.clock()
        return []

    def _gather(self, asked: list[Send]) -> list[Send]:
        """Wait for those that were asked to cosign, then for those that have not joined."""
        self._attempt = None
        self._awaits_cosigners = False
        if asked:
            self._enter(WITNESS_PHASE, 0.0)  # due at once: what there is to say leaves, and the target trains
            return asked
        self._enter("join", self._settings.join_deadline_s)
        return self._start_if_ready()

    def _train_meanwhile(self) -> list[Send]:
        """Train the target while sources cosign, where enough of them are there for what it costs not to be in vain."""
        began = self._site.clock()
        if self._round is not None and self._can_do(self._expected() & self._attendance.present):
            self._model.train_target(self._round)
        now = self._site.clock()
        self._phase_began += now - began
        self._awaits_cosigners = True
        self.deadline = now + self._settings.phase_deadline_s
        return []

    def _expected(self) -> frozenset[int]:
        """Sources that can take part in the round: all that the roster admits now and that have not refused it."""
        out = self._witnesses.faulty | set(self._round.refused if self._round else ())
        return frozenset(index for index in self._site.sources - out if self._site.admits(index))

    def _able(self) -> frozenset[int]:
        """Those of them that are there and have cosigned the newest checkpoint, which the header will carry."""
        return self._expected() & self._attendance.present & self._witnesses.vouching

    def _missing(self) -> frozenset[int]:
        """Whom a phase without an attempt waits for."""
        if self._phase in (WITNESS_PHASE, CLOSING_PHASE):
            there = self._attendance.present | self._returning
            return frozenset(there - self._witnesses.vouching - self._witnesses.faulty)
        return self._expected() - self._able()

    def _start_if_ready(self) -> list[Send]:
        if self.done or self._attempt is not None or self._round is None:
            return []
        if self._phase == WITNESS_PHASE:
            return self._gather([]) if not self._missing() else []
        able, expected = self._able(), self._expected()
        ready = able == expected or (self._began_before and self._can_do(able))
        return self._start_attempt() if ready else []

    def _can_do(self, able: Iterable[int]) -> bool:
        return self._planner.can_do(self._permitted(able), with_sum=self._had_sum())

    def _had_sum(self) -> bool:
        """Whether sources were at ``sum`` in the first attempt at the round: the target's terms say so."""
        return self._round is not None and self._round.asked is not None and self._round.asked.at_sum

    def _permitted(self, able: Iterable[int]) -> dict[int, Visibility]:
        """What the policies of these sources permit, as far as they have said it; a source that is away may join."""
        return {index: self._attendance.permits(index) for index in able}

    def _start_attempt(self) -> list[Send]:
        able = self._able()
        if self._round is None:
            return []
        try:
            plan = self._planner.plan(self._permitted(able), with_sum=self._had_sum())
        except ConfigError as error:
            for index in self._attendance.present - self._witnesses.vouching:
                self._attendance.heard(index, "has not cosigned the aggregator's log")
            if able == self._site.sources:
                return self._fail(error, of_policies=True)
            return self._fail(self._attendance.explained(self._planner.error(able, error)))
        current, self._began_before = self._round, True
        self._model.train_target(current)
        header = self._model.header(current, plan, self._attendance.all_hand_in_metrics(plan.participants))
        asked = Asked(round_terms(header.body), Visibility.SUM in plan.levels.values())
        if current.asked is not None and asked.terms != current.asked.terms:
            return self._lose_changed(current)
        self._model.publish(current, header.body, asked)
        self._site.witness.journal.enter(header)
        session = AggregatorSession(self._site.signer, self._site.roster, header, available_threads())
        self._attempt = open_attempt(session, current.target, self._store.mark_released)
        self._enter(self._attempt.phase, self._settings.training_deadline_s)
        participants = header.body.participants
        openings = [Send(index, self._model.opening(header, index, current)) for index in participants]
        return self._model.receipts.shown_to(participants) + openings

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
            return sends + self._finish_round(attempt, attempt.outcome)
        return sends + self._lose_attempt(attempt, attempt.outcome)

    def _note_incidents(self, attempt: Attempt) -> None:
        if self._round is not None:
            self._round.refused |= attempt.refused
        for index, key in attempt.refused.items():
            self._reporter.note(f"{self._site.name(index)} refused: {key}")
        for alarm in attempt.alarms:
            self._reporter.note(f"alarm: {alarm}")
            self._log("alarm", attempt, alarm)
        for index, why in attempt.why.items():
            self._attendance.heard(index, why)

    def _log(self, kind: str, attempt: Attempt, error: SecureFdaError) -> None:
        """Write down what went wrong in an attempt and who is to blame, if anybody is."""
        names = {self._site.name(index) for index in self._site.sources}  # it may blame several, as "one of"
        accused = [error.source_id] if isinstance(error, FaultySourceError) and error.source_id in names else []
        check = getattr(error, "check", "QUORUM")
        self._site.witness.journal.event(kind, attempt.header, check=check, accused=accused)

    def _lose_attempt(self, attempt: Attempt, error: SecureFdaError) -> list[Send]:
        """Try again without those that refused, where no update can have left and enough others remain."""
        current = self._round
        if current is None:
            return []
        self._reporter.note(f"round {current.number} attempt {current.attempt} without a result: {error}")
        self._log("aborted", attempt, error)
        may_retry = not attempt.may_have_released and current.attempt < self._settings.attempts
        if may_retry and self._can_do(self._expected()):
            return self._gather([])
        return self._lose_round(current, attempt.header.body.participants, error)

    def _lose_changed(self, current: CurrentRound) -> list[Send]:
        """Sources that took the first header would refuse the second, and accuse the target."""
        why = f"round {current.number} cannot be tried again: it would ask the sources for something else"
        error = RunEnded(why, hint="with all sources there it need not be tried again")
        self._reporter.note(f"{error}; it is lost")
        self._leave_phase()
        return self._lose_round(current, current.levels, error)

    def _lose_round(self, current: CurrentRound, participants: Iterable[int], error: SecureFdaError) -> list[Send]:
        self._model.lose(current, participants)
        self._lost_in_a_row += 1
        self._last_loss = without_frames(self._with_mend(error, current))
        return self._fail(self._last_loss) if self._lost_in_a_row >= MOST_LOST_IN_A_ROW else self._end_round()

    def _with_mend(self, error: SecureFdaError, current: CurrentRound) -> SecureFdaError:
        """The error, with what the sources refused as its mend, or whom to ask."""
        error.hint = error.hint or "ask the sites that are named what happened there"
        if not isinstance(error, QuorumLost) or not current.refused:
            return error
        refused = ", ".join(f"{self._site.name(index)} refused {key}" for index, key in sorted(current.refused.items()))
        return error.because({}, hint=refused)

    def _finish_round(self, attempt: Attempt, outcome: RoundSum) -> list[Send]:
        current, header = self._round, attempt.header
        if current is None:
            return []
        try:
            change = self._model.change_by(current, header.body, outcome)
        except ValueError as error:
            alarm = ProtocolError("SUM", f"a source lied about its part: {error}")
            self._reporter.note(f"alarm: {alarm}")
            self._log("alarm", attempt, alarm)
            self._log("aborted", attempt, alarm)
            waiting = sorted(outcome.survivors - attempt.gone)
            told = [no_result(self._site.signer, index, header, alarm.check) for index in waiting]
            return told + self._lose_round(current, header.body.participants, alarm)
        self._attendance.kept(outcome.survivors)
        result = self._model.take(current, header, outcome, change)
        self._lost_in_a_row = 0
        sends = [Send(index, Parcel(result)) for index in sorted(outcome.survivors - attempt.gone)]
        return sends + self._end_round()

    def _enter(self, phase: str, deadline_s: float) -> None:
        self._leave_phase()
        self._phase, self._phase_began = phase, self._site.clock()
        self.deadline = self._phase_began + deadline_s
        self._reporter.phase(phase, self.waiting_for())

    def _leave_phase(self) -> None:
        if self._phase and self._round is not None:
            self._round.spent(self._phase, self._site.clock() - self._phase_began)
        self._phase = ""

    def _complete(self) -> list[Send]:
        self._store.complete()
        return self._end(True, "")

    def _fail(self, error: SecureFdaError, *, of_policies: bool = False) -> list[Send]:
        self.error = error
        return self._end(False, reason_of(error, of_policies=of_policies))

    def _end(self, completed: bool, reason: str) -> list[Send]:
        """Write the end down and have it cosigned, then say goodbye; say nothing where it cannot be written."""
        self._attempt, self._round, self._closing = None, None, True
        self._farewell = Goodbye(completed, self._last_begun, reason)
        try:
            outcome = "completed" if completed else "failed"
            self._site.witness.journal.event("run-ended", outcome=outcome, rounds=self._last_begun)
            # With nobody there the last cosigned checkpoint stays the newest: one more would be vouched for by nobody.
            alone = not self._attendance.present and self._site.witness.size > 0
            asked = [] if alone else self._witnesses.renew(self._attendance.present)
        except AuditError as error:  # what came first is the cause
            self.error = self.error or error
            self.done, self.deadline = True, None
            return []
        self._enter(CLOSING_PHASE, min(CLOSING_S, self._settings.phase_deadline_s))
        return asked + self._close_if_witnessed()

    def _close_if_witnessed(self) -> list[Send]:
        return [] if self._missing() else self._say_goodbye()

    def _say_goodbye(self) -> list[Send]:
        self.done, self.deadline = True, None
        return [goodbye(self._site.signer, index, self._farewell) for index in sorted(self._attendance.present)]
