"""A source in a run: one call per message that arrives, with the messages to send back.

The source trusts nothing that it receives. A failed check ends the session for good: its secrets are erased, a signed
abort names the check, and the source waits for the next header. A policy refusal names the key and nothing else.
"""

from __future__ import annotations

from typing import Any

from securefda.audit.journal import site_ids
from securefda.audit.store import AuditError
from securefda.audit.witness import MOST_SHOWN, CheckpointError
from securefda.errors import (
    BudgetExhausted,
    ConfigError,
    FaultyAggregatorError,
    PolicyRefusal,
    ProtocolError,
    SecureFdaError,
    TrainingError,
    without_frames,
)
from securefda.operations.progress import SourceReporter
from securefda.protocol.checks import envelope_fault
from securefda.protocol.messages import (
    NO_CONTEXT,
    NO_SESSION,
    Abort,
    Body,
    Checkpoint,
    Cosigned,
    Goodbye,
    Header,
    Join,
    MissedResult,
    Parcel,
    Refusal,
    Result,
    Schedule,
    Signed,
    SourcesKeep,
)
from securefda.source.acceptance import accept_header
from securefda.source.final_model import HINT as ASK_FOR_THE_MODEL
from securefda.source.final_model import final_model
from securefda.source.model_bound import Missed, TakenResult, check_missed
from securefda.source.rounds import SourceRound, begin_round, check_result, continue_round
from securefda.source.run_book import UNFINISHED
from securefda.source.site import Permits, SourceSite
from securefda.state_file import ProcessGuard

__all__ = ["Permits", "SourceReporter", "SourceRun", "SourceSite"]


MOST_BROKEN_IN_A_ROW = 3
"""After so many headers and sessions in a row that failed a check the source leaves: the cause does not pass."""

HINT = "the aggregator breaks the protocol or runs another version of it: ask the target's site"


class Patience:
    """Counts what an aggregator breaks.

    ``last`` is the last failed check, ``failure`` what the source leaves with; None for as long as it stays.
    """

    def __init__(self) -> None:
        self._broken = 0
        self.last: FaultyAggregatorError | None = None
        self.failure: FaultyAggregatorError | None = None

    def broken(self, error: FaultyAggregatorError) -> None:
        """A check failed: the header is refused, or the session is dead.

        What another source may have done does not count against the aggregator; that the attempt came to no result is,
        in the site's run book.
        """
        error.hint = error.hint or (HINT if error.blames else "ask the target's site what happened in the last rounds")
        self._broken += error.suspect is None and error.blames
        self.last = error
        if self._broken >= MOST_BROKEN_IN_A_ROW:
            self.failure = error

    def kept(self) -> None:
        """A round was finished."""
        self._broken = 0


class SourceRun:
    """Takes part in the rounds of one run.

    ``refusal`` is the last refusal by this site's policy, ``fault`` the last check that the aggregator failed,
    ``goodbye`` its last message, if it came, and ``failure`` the error that ends this site's part in the run: the
    driver sends what :meth:`handle` returned, then ends with it. ``kept_round`` is that of the final model, where this
    site was left with it.

    It belongs to the process that made it. In a copy of that process ``join``, ``handle`` and ``expire`` raise
    :class:`CopiedProcess` and return nothing that could be sent; the secrets of a session are erased there.
    """

    def __init__(self, site: SourceSite, reporter: SourceReporter) -> None:
        self._site = site
        self._reporter = reporter
        self._process = ProcessGuard(f"the session of {self._name(site.signer.index)}", self.forget)
        self._round: SourceRound | None = None
        self._ended_session = NO_SESSION
        self._patience = Patience()
        self._times_shown = 0
        self._missed: Missed | None = None
        """What the aggregator showed last; the next header is compared with it, and with no other."""
        self._receipt_due = False
        """Whether this process has joined and not yet said which result it took last."""
        self._schedule_due = False
        """Whether it has joined and not heard yet what the run comes to. A second schedule is another question."""
        self.refusal: PolicyRefusal | None = None
        self.goodbye: Goodbye | None = None
        self.failure: SecureFdaError | None = None
        self.kept_round: int | None = None

    @property
    def fault(self) -> FaultyAggregatorError | None:
        """The last check that the aggregator failed."""
        return self._patience.last

    def join(self, run: str) -> Parcel:
        """The first message to an aggregator, in a run that it names (32 hex digits): it identifies site and model.

        Raises:
            ConfigError: the folder belongs to another run.
            PolicyRefusal: it would be one run more in a day than this site's policy permits, or round after round came
                to no result.
            AuditError: the log of the run cannot be written, or is not what was signed.
        """
        self._process.require_original()
        site, permits = self._site, self._site.permits
        site.store.require_open(bytes.fromhex(run))
        site.witness.enter(run)
        self._missed, self._receipt_due, self._schedule_due = None, True, True
        body = Join(
            site.trainer.architecture_digest,
            site.software_version,
            permits.visibility,
            permits.metrics,
            known=site.witness.known_of(site.roster.target.index),
        )
        return Parcel(site.signer.sign(NO_SESSION, NO_CONTEXT, body))

    def vector_bytes(self) -> int:
        """The longest vector that an honest aggregator sends to this site, in bytes."""
        return 4 * self._site.trainer.n_params

    def deadline_s(self) -> float | None:
        """Seconds to wait for the next message; None between rounds, when only the connection is watched."""
        return None if self._round is None else self._round.deadline_s

    def place(self) -> str:
        """Where this source is, in words."""
        return "between rounds" if self._round is None else self._round.place

    def handle(self, parcel: Parcel) -> list[Parcel]:
        """Process one message with its vectors; returns what to send.

        After a failed check that is a refusal or an abort. What still comes of a session that this source has ended
        is ignored.
        """
        self._process.require_original()
        try:
            return self._answer(parcel)
        except AuditError as error:  # what cannot be written down is not answered either
            self.forget()
            self.failure = error
            return []

    def _answer(self, parcel: Parcel) -> list[Parcel]:
        try:
            return self._dispatch(parcel)
        except AuditError:
            raise
        except PolicyRefusal as refusal:
            return self._refuse_by_policy(parcel, refusal)
        except FaultyAggregatorError as error:
            body = parcel.message.body
            if error.check == "CLIPPED" and isinstance(body, Header):  # it depends on the rows, and is an answer itself
                self._site.store.never_paid(body.run_id, body.round)
            self._fault(error, f"header of round {body.round}" if isinstance(body, Header) else self.place())
            return self._abort(parcel, error)
        except SecureFdaError as error:
            self._process.require_original()  # code of the task may have forked on the way here
            self.forget()
            self.failure = error
            return [self._refuse(parcel, _word_for(error))]

    def expire(self) -> list[Parcel]:
        """The deadline passed without a message: the session is dead, and the aggregator is notified."""
        self._process.require_original()
        try:
            if self._round is not None:
                self._fault(FaultyAggregatorError("DEADLINE", "no message in time"), self.place())
        except AuditError as error:
            self.forget()
            self.failure = error
        return self._end_session("DEADLINE")

    def forget(self) -> None:
        """Drop the round in progress, if there is one: it cannot be finished any more."""
        if self._round is None:
            return
        self._round.erase()
        self._ended_session = self._round.header.envelope.session_id
        self._round = None

    def _dispatch(self, parcel: Parcel) -> list[Parcel]:
        message = parcel.message
        match message.body:
            case Header():
                answers = self._start_round(message, parcel)  # type: ignore[arg-type]
            case Checkpoint() | Cosigned():
                answers = self._witness(message)
            case MissedResult():
                answers = self._take_missed(message)  # type: ignore[arg-type]
            case Schedule():
                answers = self._take_schedule(message)  # type: ignore[arg-type]
            case Goodbye() as goodbye:
                self._require_from_target(message)
                self._end(goodbye, parcel)
                answers = []
            case Abort():
                self._require_from_target(message)
                answers = self._aborted(message)  # type: ignore[arg-type]
            case _:
                answers = self._continue_round(message)
        return answers

    def _end(self, goodbye: Goodbye, parcel: Parcel) -> None:
        if self.goodbye is not None:
            return
        self.forget()
        self.goodbye = goodbye
        if goodbye.completed:
            try:
                self._complete(goodbye, parcel)
            except FaultyAggregatorError as error:
                error.hint = ASK_FOR_THE_MODEL
                self._fault(error, "the end of the run")
                self.failure = error
        self._log("run-ended", outcome="completed" if goodbye.completed else "failed", rounds=goodbye.rounds)

    def _complete(self, goodbye: Goodbye, parcel: Parcel) -> None:
        """Keep what the headers said that this site keeps; then no header of the run is accepted any more."""
        site, run = self._site, self._site.witness.journal.run
        run_id, missed = bytes.fromhex(run), self._missed
        known = site.store.known(run_id)
        if known.accepted is None or known.ended:
            return
        limits, n_params = site.limits, site.trainer.n_params
        kept = final_model(
            goodbye, parcel, known, missed, own_index=site.signer.index, limits=limits, n_params=n_params
        )
        if kept is not None:
            model, origin = kept
            if origin.caught_up is not None:
                site.store.record_result(run_id, origin.caught_up)
            site.keep_model(model, run, origin.round)
            self.kept_round = origin.round
            self._log("model-kept", model=goodbye.model_digest.hex())
        site.store.end_run(run_id, keeps_own=known.accepted.sources_keep == SourcesKeep.FINAL)

    def _start_round(self, header: Signed[Header], parcel: Parcel) -> list[Parcel]:
        site, body = self._site, header.body
        self._require_from_target(header)
        missed, self._missed = self._missed, None
        accepted = accept_header(site, header, parcel, missed)
        self.forget()
        receipts = []
        if accepted.origin.caught_up is not None:  # the last session had a result, of which this site learns only now
            site.store.record_result(body.run_id, accepted.origin.caught_up)
            receipts.append(self._receipt(body.run_id, accepted.origin.caught_up))
        site.store.accept_header(header, accepted.origin.number, accepted.origin.round)
        site.witness.journal.enter(header)
        self._reporter.round_started(body.round, accepted.level.label, body.rule.rule)
        self._round, answer = begin_round(site, accepted)
        return [*receipts, answer]

    def _continue_round(self, message: Signed[Body]) -> list[Parcel]:
        if self._round is None:
            if message.envelope.session_id == self._ended_session:
                return []
            raise FaultyAggregatorError("ORDER", f"{message.type_name} outside a session")
        self._site.check_policy(self._round.header.body)
        if isinstance(message.body, Result):
            check_result(self._site, self._round, message)
            current = self._round
            self._round = None
            header = current.header.body
            known = self._site.store.known(header.run_id).accepted
            if known is None:
                raise FaultyAggregatorError("ORDER", "a result of no header")
            outside = (message.envelope.session_id, message.envelope.context)
            taken = TakenResult(header.round, known.number + 1, message.digest(), message.body.model_digest, *outside)
            self._site.store.record_result(header.run_id, taken)
            self._patience.kept()
            self._reporter.round_finished(current.record)
            return [self._receipt(header.run_id, taken)]
        self._round, answer = continue_round(self._site, self._round, message)
        return [answer]

    def _receipt(self, run_id: bytes, result: TakenResult) -> Parcel:
        """This source's receipt for a result: the same bytes whenever it is asked for."""
        return Parcel(self._site.signer.sign(result.session_id, result.context, result.receipt(run_id)))

    def _last_receipt(self) -> list[Parcel]:
        run_id = bytes.fromhex(self._site.witness.journal.run)
        taken = self._site.store.known(run_id).taken
        return [] if taken is None else [self._receipt(run_id, taken)]

    def _take_missed(self, message: Signed[MissedResult]) -> list[Parcel]:
        """The aggregator has no receipt of this source: give it again, or hold the next header against this result."""
        site = self._site
        self._require_from_target(message, session_id=NO_SESSION, context=NO_CONTEXT)
        run_id = bytes.fromhex(site.witness.journal.run)
        self._missed = check_missed(message.body, roster=site.roster, run_id=run_id)
        taken = site.store.known(run_id).taken
        return self._last_receipt() if taken and taken.digest == self._missed.result.digest() else []

    def _take_schedule(self, schedule: Signed[Schedule]) -> list[Parcel]:
        """Refuse, before anything is trained, a run whose headers this site's policy will not accept."""
        self._require_from_target(schedule, session_id=NO_SESSION, context=NO_CONTEXT)
        if not self._schedule_due:
            raise FaultyAggregatorError("ORDER", "a second schedule")
        if schedule.body.run_id.hex() != self._site.witness.journal.run:
            raise FaultyAggregatorError("SCHEDULE_RUN", "not the run that the connection was opened for")
        self._schedule_due = False
        self._site.check_schedule(schedule.body)
        return []

    def _witness(self, message: Signed[Body]) -> list[Parcel]:
        """The aggregator shows its log, or cosigns this site's: cosign, and show this site's own."""
        self._require_from_target(message, session_id=NO_SESSION, context=NO_CONTEXT)
        witness, target, body = self._site.witness, self._site.roster.target.index, message.body
        try:
            if isinstance(body, Cosigned):
                if witness.take(target, body):
                    witness.journal.save()
                return []
            if not isinstance(body, Checkpoint):
                raise FaultyAggregatorError("ORDER", message.type_name)
            before = witness.known_of(target)
            answer = witness.cosign(target, body)
            self._times_shown = self._times_shown + 1 if witness.known_of(target) == before else 0
            if self._times_shown > MOST_SHOWN:
                raise CheckpointError("CHECKPOINT_AGAIN", f"nothing new, more than {MOST_SHOWN} times")
        except CheckpointError as error:
            raise FaultyAggregatorError(error.check, error.detail) from error
        witness.renew()
        due, self._receipt_due = self._receipt_due, False
        receipt = self._last_receipt() if due else []  # before it vouches, for headers follow that
        return [*receipt, witness.show(target), *([answer] if answer else [])]

    def _require_from_target(
        self, message: Signed[Any], session_id: bytes | None = None, context: bytes | None = None
    ) -> None:
        """Raise unless the aggregator signed the message; session and context may be any where none is given."""
        envelope, roster = message.envelope, self._site.roster
        fault = envelope_fault(
            message,
            roster=roster,
            sender=roster.target.index,
            session_id=envelope.session_id if session_id is None else session_id,
            context=envelope.context if context is None else context,
        )
        if fault:
            raise FaultyAggregatorError(fault, message.type_name)

    def _aborted(self, message: Signed[Abort]) -> list[Parcel]:
        current, body = self._round, message.body
        if message.envelope.session_id == NO_SESSION and body.check == "HEADER_ARCHITECTURE":
            self.failure = ConfigError(
                "task.factory",
                "this site builds another model than the aggregator",
                hint="use the same task, task options and securefda version at every site",
            )
        if current is None or message.envelope.session_id != current.header.envelope.session_id:
            return []
        accused = [] if body.accused is None else [body.accused]
        self._log("aborted", current.header, check=body.check, accused=site_ids(self._site.roster, accused))
        self.forget()
        accused_text = "" if body.accused is None else f", accused: {self._name(body.accused)}"
        text = f"the aggregator aborted at {body.step.label}: {body.check}{accused_text}"
        self._reporter.alarm(ProtocolError(body.check, text))
        return []

    def _refuse_by_policy(self, parcel: Parcel, refusal: PolicyRefusal) -> list[Parcel]:
        """Tell the operator everything and the aggregator the key; a session that was open is over."""
        self.refusal = without_frames(refusal)
        message = parcel.message
        self._log("refused", self._header, check=refusal.key)
        if refusal.key == UNFINISHED or isinstance(message.body, Schedule):
            self.failure = self.refusal
        if isinstance(message.body, Schedule):  # the process ends with it, and shows it then
            return [self._refuse(parcel, refusal.key)]
        if not isinstance(message.body, Header):
            self._reporter.alarm(refusal)
            return self._end_session("POLICY")
        self._reporter.refused(refusal, message)  # type: ignore[arg-type]  # its body is a header
        return [self._refuse(parcel, refusal.key)]

    def _refuse(self, parcel: Parcel, key: str) -> Parcel:
        envelope = parcel.message.envelope
        return Parcel(self._site.signer.sign(envelope.session_id, parcel.message.digest(), Refusal(key)))

    def _fault(self, error: FaultyAggregatorError, place: str) -> None:
        suspect = "" if error.suspect is None else f"; {self._name(error.suspect)} may have done it in its place"
        error.place = place + suspect
        accused = [self._site.roster.target.index] if error.suspect is None else [error.suspect]
        accused = accused if error.blames else []
        self._log("alarm", self._header, check=error.check, accused=site_ids(self._site.roster, accused))
        self._reporter.alarm(error)
        self._patience.broken(without_frames(error))
        self.failure = self._patience.failure or self.failure

    def _abort(self, parcel: Parcel, error: FaultyAggregatorError) -> list[Parcel]:
        """Say which check failed. A session that is open is dead, but for a header: that asks for another one.

        What is wrong with a log, a schedule, or a result that is shown again is reported to the operator alone, and is
        no business of the session, unless it is the last that this source puts up with.
        """
        match parcel.message.body:
            case Header():
                return [self._refuse(parcel, error.check)]
            case Checkpoint() | Cosigned() | MissedResult() | Schedule() if self.failure is None:
                return []
        return self._end_session(error.check, error.suspect)

    def _end_session(self, check: str, suspect: int | None = None) -> list[Parcel]:
        current = self._round
        if current is None:
            return []
        self.forget()
        accused = self._site.roster.target.index if suspect is None else suspect
        body = Abort(current.step, check, accused)
        return [Parcel(self._site.signer.sign(current.header.envelope.session_id, current.header.digest(), body))]

    @property
    def _header(self) -> Signed[Header] | None:
        return None if self._round is None else self._round.header

    def _log(self, kind: str, header: Signed[Header] | None = None, **facts: Any) -> None:
        """Write an event down; it is on the disk with the record of the message that follows from it."""
        self._site.witness.journal.event(kind, header, **facts)

    def _name(self, index: int) -> str:
        entries = self._site.roster.entries
        return entries[index].site_id if 0 <= index < len(entries) else f"index {index}"


def _word_for(error: SecureFdaError) -> str:
    """The refusal key sent for a local error."""
    if isinstance(error, BudgetExhausted):
        return "dp.target-epsilon"
    return "TRAINING" if isinstance(error, (TrainingError, ConfigError)) else "STORAGE"
