"""A source in a run: one call per received message, which returns the messages to send back.

A session's keys can leave before training: :meth:`SourceRun.train` after they are sent saves the time that they take.

The source trusts nothing that it receives. A failed check ends the session for good: its secrets are erased, a signed
abort names the check, and the source waits for the next header. A policy refusal names the key and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from securefda.audit.journal import site_ids
from securefda.audit.log_files import AuditError
from securefda.errors import (
    BudgetExhausted,
    BudgetReserved,
    ConfigError,
    FaultyAggregatorError,
    PolicyRefusal,
    ProtocolError,
    SecureFdaError,
    TrainingDiverged,
    TrainingError,
    without_frames,
)
from securefda.operations.progress import SourceReporter
from securefda.protocol.messages import (
    NO_SESSION,
    Abort,
    Body,
    Checkpoint,
    Cosigned,
    Goodbye,
    Header,
    KeyList,
    MissedResult,
    Neighbours,
    Parcel,
    Refusal,
    Result,
    Schedule,
    ShareDelivery,
    Signed,
    SourcesKeep,
)
from securefda.site.policy import rules_that_send_features
from securefda.source.acceptance import accept_header
from securefda.source.final_model import HINT as ASK_FOR_THE_MODEL
from securefda.source.final_model import final_model
from securefda.source.run_book import RUNS, UNFINISHED
from securefda.source.run_messages import RunMessages, receipt_for
from securefda.source.source_round import (
    SourceRound,
    begin_round,
    check_result,
    continue_round,
    remember_result,
    step_apart,
    train_round,
)
from securefda.source.source_site import SourceSite
from securefda.source.standing import Standing
from securefda.state_file import ProcessGuard
from securefda.training import Vector

__all__ = ["SourceReporter", "SourceRun", "SourceSite"]


@dataclass(frozen=True, slots=True)
class Accepted:
    """The message passed all checks; ``answers`` are to be sent in this order."""

    answers: list[Parcel]


@dataclass(frozen=True, slots=True)
class Skipped:
    """The message belongs to a session that this source has ended."""


@dataclass(frozen=True, slots=True)
class Refused:
    """This site's policy forbids what the aggregator asks for."""

    refusal: PolicyRefusal


@dataclass(frozen=True, slots=True)
class Clipped:
    """Too many coordinates are at the header's clips or ranges. A refusal for this reason reveals something about the
    rows, so the round counts as unfinished for good."""

    header: Header
    error: FaultyAggregatorError


@dataclass(frozen=True, slots=True)
class Broken:
    """The aggregator failed a check."""

    error: FaultyAggregatorError


@dataclass(frozen=True, slots=True)
class Unable:
    """This site cannot go on: its budget, its training or its disk does not allow it."""

    error: SecureFdaError

    @property
    def key(self) -> str:
        """The key that the refusal gives to the aggregator."""
        if isinstance(self.error, BudgetReserved):
            return "dp.reserve-days"
        if isinstance(self.error, BudgetExhausted):
            return "dp.target-epsilon"
        if isinstance(self.error, TrainingDiverged):
            return "DIVERGED"
        return "TRAINING" if isinstance(self.error, (TrainingError, ConfigError)) else "STORAGE"


Outcome = Accepted | Skipped | Refused | Clipped | Broken | Unable
"""The outcome of one message."""


class SourceRun:
    """Takes part in the rounds of one run. ``standing`` records its progress, and how and why the run ended.

    It works only in the process that made it. In a forked copy, ``join``, ``handle`` and ``expire`` raise
    :class:`CopiedProcess`, so that nothing is sent twice, and the secrets of a session are erased.
    """

    def __init__(self, site: SourceSite, reporter: SourceReporter) -> None:
        self._site = site
        self._reporter = reporter
        self._process = ProcessGuard(f"the session of {self._name(site.signer.index)}", self.forget)
        self._messages = RunMessages(site)
        self._round: SourceRound | None = None
        self._last_target_update: Vector | None = None
        self._ended_session = NO_SESSION
        self.standing = Standing()

    def join(self, run: str) -> Parcel:
        """The first message to an aggregator; it identifies the site and its model.

        Args:
            run: id of the run, as the aggregator names it, 32 hex digits.

        Raises:
            ConfigError: the folder belongs to another run.
            FaultyAggregatorError: the run began in another folder.
            AuditError: the log of the run cannot be written, or differs from what was signed.
        """
        self._process.require_original()
        return self._messages.join(run)

    def vector_bytes(self) -> int:
        """The longest vector that an honest aggregator sends to this site, in bytes: a model, or features."""
        policy = self._site.policy
        features = policy.limits.model_bytes_max if rules_that_send_features(policy) else 0
        return max(4 * self._site.trainer.n_params, features)

    @property
    def current(self) -> SourceRound | None:
        """The round in progress, a new object after each step; None between rounds."""
        return self._round

    @property
    def has_to_train(self) -> bool:
        """Whether the keys of a round have left and its training is still to come."""
        return self._round is not None and self._round.accepted is not None

    def place(self) -> str:
        """The present round and step, for messages."""
        return "between rounds" if self._round is None else self._round.place

    def handle(self, parcel: Parcel) -> list[Parcel]:
        """Process one message with its vectors; returns the messages to send.

        If a check fails, that is a refusal or an abort. Late messages of a session that this source has ended are
        ignored. Training comes first if the message needs it.
        """
        self._process.require_original()
        # A driver need not have called `train`. R1 has the norm report, which follows from the trained update.
        refusals = self.train() if isinstance(parcel.message.body, KeyList) else []
        return refusals + self._answers(parcel, partial(self._dispatch, parcel))

    def train(self) -> list[Parcel]:
        """Train if the round in progress waits for it; returns what to send: a refusal of its header, or nothing."""
        self._process.require_original()
        current = self._round
        if current is None or current.accepted is None:
            return []
        return self._answers(Parcel(current.header), partial(self._train, current))

    def _answers(self, parcel: Parcel, step: Callable[[], Outcome]) -> list[Parcel]:
        """The messages that follow from a step, which a message has led to."""
        try:
            match self._outcome_of(parcel, step):
                case Accepted(messages):
                    answers = messages
                case Skipped():
                    answers = []
                case Refused(refusal):
                    answers = self._refuse_by_policy(parcel, refusal)
                case Clipped(header, error):
                    # This refusal tells the aggregator something about the rows, so no later result makes up for it.
                    self._site.store.keep_unfinished(header.run_id, header.round)
                    answers = self._reject(parcel, error)
                case Broken(error):
                    answers = self._reject(parcel, error)
                case Unable(error) as unable:
                    body = parcel.message.body
                    if isinstance(error, TrainingDiverged) and isinstance(body, Header):  # as where it is clipped
                        self._site.store.keep_unfinished(body.run_id, body.round)
                    self._process.require_original()  # code of the task may have forked on the way here
                    self._leave(error)
                    answers = [self._refuse(parcel, unable.key)]
        except AuditError as error:  # nothing may leave that the log cannot record
            self._leave(error)
            return []
        return answers

    def _outcome_of(self, parcel: Parcel, step: Callable[[], Outcome]) -> Outcome:
        """Take a step and return its outcome; raises only AuditError, when the log cannot be written."""
        body = parcel.message.body
        try:
            return step()
        except AuditError:
            raise
        except PolicyRefusal as refusal:
            return Refused(refusal)
        except FaultyAggregatorError as error:
            if error.check != "CLIPPED":
                return Broken(error)
            header = body if isinstance(body, Header) else self._round.header.body if self._round else None
            return Broken(error) if header is None else Clipped(header, error)
        except SecureFdaError as error:
            return Unable(error)

    def expire(self) -> list[Parcel]:
        """End the session because its deadline passed without a message; returns the abort to send."""
        self._process.require_original()
        try:
            if self._round is not None:
                self._record_fault(FaultyAggregatorError("DEADLINE", "no message in time"), self.place())
        except AuditError as error:
            self._leave(error)
        return self._end_session("DEADLINE")

    def forget(self) -> None:
        """Drop the round in progress, if there is one, and erase its secrets."""
        if self._round is None:
            return
        self._round.erase()
        self._ended_session = self._round.header.envelope.session_id
        self._round = None

    def _leave(self, error: SecureFdaError) -> None:
        self.forget()
        self.standing.failure = error

    # --- what each message does -----------------------------------------------------------------------------------

    def _dispatch(self, parcel: Parcel) -> Outcome:
        message: Any = parcel.message
        self._messages.require_run_permitted(message)
        match message.body:
            case Header():
                return self._start_round(message, parcel)
            case Checkpoint() | Cosigned():
                return Accepted(self._messages.take_log(message))
            case MissedResult():
                return Accepted(self._messages.take_missed(message))
            case Schedule():
                self._messages.take_schedule(message)
            case Goodbye() as goodbye:
                self._site.require_from_target(message)
                self._end(goodbye, parcel)
            case Abort():
                self._site.require_from_target(message)
                self._aborted(message)
            case _:
                return self._continue_round(message)
        return Accepted([])

    def _start_round(self, header: Signed[Header], parcel: Parcel) -> Outcome:
        site, body = self._site, header.body
        site.require_from_target(header)
        accepted = accept_header(site, header, parcel, self._messages.shown_last())
        # The header has passed: only now the session before it ends, and not for one that fails a check.
        self.forget()
        receipts = []
        if accepted.origin.caught_up is not None:  # this site missed the result of its last session until now
            site.store.record_result(body.run_id, accepted.origin.caught_up)
            receipts.append(receipt_for(site, body.run_id, accepted.origin.caught_up))
        # Before anything of the session leaves: a source that is killed now never
        # answers this header again (HEADER_REPLAY).
        site.store.accept_header(header, accepted.origin.number, accepted.origin.round)
        site.witness.journal.enter(header)
        self._reporter.round_started(body.round, accepted.level.label, body.rule.rule)
        apart = step_apart(site, accepted, self._last_target_update)
        self._last_target_update = None
        self._round, answer = begin_round(site, accepted)
        if apart is not None:
            self._round = self._round.noted(apart_from_target=apart)
        return Accepted([*receipts, answer])

    def _train(self, current: SourceRound) -> Outcome:
        try:
            self._round = train_round(self._site, current)
        except BaseException:
            self.forget()  # a round that cannot be trained for is over, whatever the header's refusal says
            raise
        return Accepted([])

    def _continue_round(self, message: Signed[Body]) -> Outcome:
        if self._round is None:
            # Not a fault: the aggregator may have sent it before it heard that this source had given up.
            if message.envelope.session_id == self._ended_session:
                return Skipped()
            raise FaultyAggregatorError("ORDER", f"{message.type_name} outside a session")
        if result := message.of(Result):
            check_result(self._site, self._round, result)
            finished, self._round = self._round, None
            self._last_target_update = finished.target_update  # nothing else of it: the phase holds secrets
            # On the disk before the receipt leaves: a receipt vouches for the result to sources that were away.
            receipt = remember_result(self._site, finished, result)
            self.standing.round_finished()
            self._reporter.round_finished(finished.record)
            return Accepted([receipt])
        self._round, answer = continue_round(self._site, self._round, message)
        return Accepted([answer])

    def _end(self, goodbye: Goodbye, parcel: Parcel) -> None:
        if self.standing.goodbye is not None:
            return
        self.forget()
        self.standing.goodbye = goodbye
        if goodbye.completed:
            try:  # before the run is closed: a process that is killed in between does both again
                self._site.trainer.release_run(self._site.witness.journal.run)
            except SecureFdaError as error:  # the model is kept all the same
                self.standing.failure = error
            try:
                self._complete(goodbye, parcel)
            except FaultyAggregatorError as error:
                error.hint = ASK_FOR_THE_MODEL
                self._record_fault(error, "the end of the run")
                self.standing.failure = error
        self._log("run-ended", outcome="completed" if goodbye.completed else "failed", rounds=goodbye.rounds)

    def _complete(self, goodbye: Goodbye, parcel: Parcel) -> None:
        """Keep the final model if the headers promised it, and close the run: no header of it is accepted any more."""
        site, run = self._site, self._site.witness.journal.run
        run_id, missed = bytes.fromhex(run), self._messages.shown_last()
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
            self.standing.kept_round = origin.round
            self._log("model-kept", model=goodbye.model_digest.hex())
        site.store.end_run(run_id, keeps_own=known.accepted.sources_keep == SourcesKeep.FINAL)

    def _aborted(self, message: Signed[Abort]) -> None:
        current, body = self._round, message.body
        if message.envelope.session_id == NO_SESSION and body.check == "HEADER_ARCHITECTURE":
            self.standing.failure = ConfigError(
                "task.factory",
                "this site builds another model than the aggregator",
                hint="use the same task, task options, frozen layers and securefda version at every site",
            )
        # SFDA-SA/1, section 13: the abort of another session ends nothing, or an old one could be replayed (T13).
        if current is None or message.envelope.session_id != current.header.envelope.session_id:
            return
        accused = [] if body.accused is None else [body.accused]
        self._log("aborted", current.header, check=body.check, accused=site_ids(self._site.roster, accused))
        self.forget()
        accused_text = "" if body.accused is None else f", accused: {self._name(body.accused)}"
        text = f"the aggregator aborted at {body.step.label}: {body.check}{accused_text}"
        self._reporter.alarm(ProtocolError(body.check, text))

    # --- what a message that is not accepted leads to -------------------------------------------------------------

    def _refuse_by_policy(self, parcel: Parcel, refusal: PolicyRefusal) -> list[Parcel]:
        """Refuse: the operator sees everything, the aggregator only the key.

        The policy is asked when a run is joined, and by its schedule and headers. It does not change within a run.
        """
        standing, message = self.standing, parcel.message
        standing.refusal = without_frames(refusal)
        self._log("refused", self._header, check=refusal.key)
        if refusal.key in (RUNS, UNFINISHED) or isinstance(message.body, Schedule):
            standing.failure = refusal
        if header := message.of(Header):
            self._reporter.refused(refusal, header)
        elif not isinstance(message.body, Schedule):  # with whose refusal the process ends, and shows it then
            return []
        return [self._refuse(parcel, refusal.key)]

    def _reject(self, parcel: Parcel, error: FaultyAggregatorError) -> list[Parcel]:
        """Answer a message that failed a check: name the check, and end an open session. There are three exceptions.

        A header is refused, since it does not belong to the open session. A contribution that is beyond the ranges
        after capping, or a ring with too few neighbours that count, leads to a refusal, as no site is at fault. And
        a fault in a log, a schedule or a missed result is only reported to the operator, unless it is the last one that
        this source tolerates.
        """
        body = parcel.message.body
        self._record_fault(error, f"header of round {body.round}" if isinstance(body, Header) else self.place())
        match body:
            case Header():
                return [self._refuse(parcel, error.check)]
            case Neighbours() | ShareDelivery() if not error.blames:
                self.forget()
                return [self._refuse(parcel, error.check)]
            case Checkpoint() | Cosigned() | MissedResult() | Schedule() if self.standing.failure is None:
                return []
        return self._end_session(error.check, error.suspect)

    def _record_fault(self, error: FaultyAggregatorError, place: str) -> None:
        suspect = "" if error.suspect is None else f"; {self._name(error.suspect)} may have done it in its place"
        error.place = place + suspect
        accused = [self._site.roster.target.index] if error.suspect is None else [error.suspect]
        accused = accused if error.blames else []
        self._log("alarm", self._header, check=error.check, accused=site_ids(self._site.roster, accused))
        self._reporter.alarm(error)
        self.standing.broken(error)

    def _refuse(self, parcel: Parcel, key: str) -> Parcel:
        envelope = parcel.message.envelope
        return Parcel(self._site.signer.sign(envelope.session_id, parcel.message.digest(), Refusal(key)))

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
        """Add an event to the log. It reaches the disk together with the next message's record."""
        self._site.witness.journal.event(kind, header, **facts)

    def _name(self, index: int) -> str:
        entries = self._site.roster.entries
        return entries[index].site_id if 0 <= index < len(entries) else f"index {index}"
