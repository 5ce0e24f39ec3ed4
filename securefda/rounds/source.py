"""A source in a run: one call per message that arrives, with the messages to send back.

The source trusts nothing that it is told. A failed check ends the session for good: its secrets are erased, a signed
abort names the check, and the source waits for the next header. A policy refusal names the key and nothing else.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from typing import Any

from securefda.adaptation import Contribution
from securefda.audit.store import AuditError
from securefda.errors import (
    BudgetExhausted,
    ConfigError,
    FaultyAggregatorError,
    PolicyRefusal,
    ProtocolError,
    SecureFdaError,
    TrainingError,
)
from securefda.policy.verdict import check_metrics
from securefda.rounds.attempts import name_of
from securefda.rounds.charges import require_worth_charging
from securefda.rounds.energies import apply_caps, row_of
from securefda.rounds.journal import site_ids
from securefda.rounds.patience import Patience
from securefda.rounds.process_guard import ProcessGuard
from securefda.rounds.progress import SourceReporter
from securefda.rounds.records import SiteLine
from securefda.rounds.site import vector_to_wire
from securefda.rounds.source_site import Permits, SourceSite, site_line
from securefda.rounds.tail import Figures
from securefda.rounds.terms import (
    Metrics,
    aligned_update,
    checked_vectors,
    clip_contribution,
    contribution_at_source,
    encode_contribution,
    error_units_of,
    figures_of,
    metrics_of,
    plan_of,
    require_few_at_the_clip,
    weight_of,
)
from securefda.rounds.witness import MOST_SHOWN, CheckpointError
from securefda.secagg import source as session_steps
from securefda.secagg.checks import PastResult, check_header, envelope_fault
from securefda.secagg.messages import (
    NO_CONTEXT,
    NO_SESSION,
    Abort,
    Body,
    Checkpoint,
    Consistency,
    Cosigned,
    Goodbye,
    Header,
    Join,
    KeyList,
    Parcel,
    Refusal,
    Result,
    ShareDelivery,
    Signed,
    Step,
    Survivor,
    Survivors,
    SurvivorSignature,
    Unmask,
    Update,
    Visibility,
)
from securefda.secagg.prg import RingVector, available_threads
from securefda.training import LocalResult

__all__ = ["Permits", "SourceReporter", "SourceRounds", "SourceSite"]


@dataclass(frozen=True, slots=True)
class _AwaitingClearResult:
    """Visibility ``individual``: the update is sent, the result has not come."""

    header: Signed[Header]


@dataclass(frozen=True, slots=True, repr=False)
class _Round:
    """A round in progress.

    ``contribution`` waits with its ``figures`` for everyone's energies; ``encoded`` is what becomes of it, until it is
    masked.
    """

    header: Signed[Header]
    phase: session_steps.Phase | _AwaitingClearResult
    record: SiteLine
    contribution: Contribution | None = None
    figures: Figures | None = None
    encoded: RingVector | None = None


_STEP_OF_PHASE: dict[type, Step] = {
    session_steps.AwaitingKeyList: Step.ADVERTISE,
    session_steps.AwaitingShares: Step.SHARES,
    session_steps.ReadyToMask: Step.MASKED_INPUT,
    session_steps.AwaitingSurvivors: Step.SURVIVORS,
    session_steps.AwaitingConsistency: Step.UNMASK,
    session_steps.AwaitingResult: Step.RESULT,
    _AwaitingClearResult: Step.RESULT,
}


class SourceRounds:
    """Takes part in the rounds of one run.

    ``refusal`` is the last refusal by this site's policy, ``fault`` the last check that the aggregator failed,
    ``goodbye`` its last word, if it came, and ``failure`` what this site cannot go on with, or will not: the driver
    sends what :meth:`handle` returned, then ends with it.

    It belongs to the process that made it. In a copy of that process ``join``, ``handle`` and ``expire`` raise
    :class:`CopiedProcess` and return nothing that could be sent; the secrets of a session are erased there.
    """

    def __init__(self, site: SourceSite, reporter: SourceReporter) -> None:
        self._site = site
        self._reporter = reporter
        self._process = ProcessGuard(f"the session of {self._name(site.signer.index)}", self._drop_round)
        self._round: _Round | None = None
        self._ended_session = NO_SESSION
        self._patience = Patience()
        self._times_shown = 0
        self.refusal: PolicyRefusal | None = None
        self.goodbye: Goodbye | None = None
        self.failure: SecureFdaError | None = None

    @property
    def fault(self) -> FaultyAggregatorError | None:
        """The last check that the aggregator failed."""
        return self._patience.last

    def join(self, run: str) -> Parcel:
        """The first message to an aggregator, in a run that it names (32 hex digits): who I am and what I built.

        Raises:
            AuditError: the log of the run cannot be written, or is not what was signed.
        """
        self._process.require_original()
        site, permits = self._site, self._site.permits
        site.witness.enter(run)
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
        """How long the next message may take; None between rounds, when only the connection is watched."""
        if self._round is None:
            return None
        header = self._round.header.body
        phase_s, training_s = header.phase_deadline_ms / 1000, header.training_deadline_ms / 1000
        waits_for_training = isinstance(self._round.phase, (session_steps.AwaitingKeyList, _AwaitingClearResult))
        return 2 * phase_s + training_s if waits_for_training else 3 * phase_s

    def place(self) -> str:
        """Where this source is, in words."""
        if self._round is None:
            return "between rounds"
        return f"round {self._round.header.body.round}, {name_of(_STEP_OF_PHASE[type(self._round.phase)])}"

    def handle(self, parcel: Parcel) -> list[Parcel]:
        """Process one message with its vectors; returns what to send.

        After a failed check that is a refusal or an abort. What still comes of a session that this source has ended
        is ignored.
        """
        self._process.require_original()
        try:
            return self._answer(parcel)
        except AuditError as error:  # what cannot be written down is not answered either
            self._drop_round()
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
            self._fault(error, f"header of round {body.round}" if isinstance(body, Header) else self.place())
            return self._abort(parcel, error)
        except SecureFdaError as error:
            self._process.require_original()  # code of the task may have forked on the way here
            self._drop_round()
            self.failure = error
            return [self._refuse(parcel, _word_for(error))]

    def expire(self) -> list[Parcel]:
        """The deadline passed without a message: the session is dead, and the aggregator is told so."""
        self._process.require_original()
        try:
            if self._round is not None:
                self._fault(FaultyAggregatorError("DEADLINE", "no word in time"), self.place())
        except AuditError as error:
            self._drop_round()
            self.failure = error
        return self._end_session("DEADLINE")

    def forget(self) -> None:
        """Drop the round in progress, if there is one: it cannot be finished any more."""
        self._drop_round()

    def _dispatch(self, parcel: Parcel) -> list[Parcel]:
        message = parcel.message
        match message.body:
            case Header():
                return self._start_round(message, parcel)  # type: ignore[arg-type]
            case Goodbye() as goodbye:
                self._require_from_target(message)
                return self._end(goodbye)
            case Checkpoint() | Cosigned():
                return self._witness(message)
            case Abort():
                self._require_from_target(message)
                return self._aborted(message)  # type: ignore[arg-type]
            case _ if self._round is None and message.envelope.session_id == self._ended_session:
                return []
            case _:
                return self._continue_round(message)

    def _end(self, goodbye: Goodbye) -> list[Parcel]:
        if self.goodbye is None:
            self._drop_round()
            self.goodbye = goodbye
            self._log("run-ended", outcome="completed" if goodbye.completed else "failed", rounds=goodbye.rounds)
        return []

    def _start_round(self, header: Signed[Header], parcel: Parcel) -> list[Parcel]:
        site, body = self._site, header.body
        self._require_from_target(header)
        if site.signer.index not in body.participants:
            raise FaultyAggregatorError("HEADER_PARTICIPANTS", "it does not name this site")
        site.check_policy(body)  # first, so that what the policy forbids is refused by its key
        check_metrics(body, handed_in=site.permits.metrics)
        history = site.store.history(header.envelope.session_id, body.run_id, body.round)
        check_header(
            header,
            own_index=site.signer.index,
            roster=site.roster,
            limits=site.limits,
            history=history,
            own_layers=site.trainer.layers,
            unix_s=int(site.unix_time()),
        )
        self._check_witnessed(body)
        plan_of(body.rule)
        level = body.level_of(site.signer.index)
        model, target_update = checked_vectors(body, level, parcel)
        require_worth_charging(site.trainer, body, level, target_update, site.store)
        self._drop_round()
        site.store.accept_header(header)
        site.witness.journal.enter(header)
        self._reporter.round_started(body.round, level.label, body.rule.rule)
        result = site.trainer.train(
            model, body.round, body.rule.learning_rate_factor, run_id=body.run_id.hex(), attempt=body.attempt
        )
        record, metrics = site_line(body, level, result), metrics_of(body, result)
        if level is Visibility.INDIVIDUAL:
            return self._release_in_clear(header, result, record, metrics)
        weight = weight_of(body, result.samples)
        contribution = contribution_at_source(body, level, target_update, aligned_update(body, result))
        del result  # a vector of the model's length less, while the contribution is at work
        return self._open_session(header, contribution, figures_of(contribution, weight, metrics), record)

    def _open_session(
        self, header: Signed[Header], contribution: Contribution, figures: Figures, record: SiteLine
    ) -> list[Parcel]:
        site, own = self._site, self._site.signer.index
        clipped = clip_contribution(header.body, contribution)
        require_few_at_the_clip(header.body, clipped)
        record["beta"], record["clipped"] = contribution.beta, sum(clipped)
        at_sum = header.body.level_of(own) is Visibility.SUM
        energy = row_of(header.body, contribution, figures.samples) if at_sum else ()
        session = session_steps.Session(site.signer, site.roster, site.limits, header, available_threads())
        phase, advertise = session_steps.advertise(session, site.random_bytes, energy)
        self._round = _Round(header, phase, record, contribution, figures)
        return [Parcel(advertise)]

    def _release_in_clear(
        self, header: Signed[Header], result: LocalResult, record: SiteLine, metrics: Metrics | None
    ) -> list[Parcel]:
        site, permits = self._site, self._site.permits
        vector = vector_to_wire(aligned_update(header.body, result))
        body = Update(
            sha256(vector).digest(),
            len(vector),
            result.samples,
            loss=metrics.loss if metrics and "loss" in permits.may_leave else None,
            accuracy=metrics.accuracy if metrics and "accuracy" in permits.may_leave else None,
        )
        site.check_update(body)
        check_metrics(header.body, handed_in=permits.metrics, update=body)
        site.store.burn_fuse(header.body.run_id, header.body.round)
        self._log("release-fuse-burnt", header)
        self._round = _Round(header, _AwaitingClearResult(header), record)
        return [Parcel(site.signer.sign(header.envelope.session_id, header.digest(), body), (vector,))]

    def _continue_round(self, message: Signed[Body]) -> list[Parcel]:
        if self._round is None:
            raise FaultyAggregatorError("ORDER", f"{message.type_name} outside a session")
        self._site.check_policy(self._round.header.body)
        phase, body, step = self._round.phase, message.body, session_steps
        random_bytes = self._site.random_bytes
        match phase, body:
            case step.AwaitingKeyList(), KeyList():
                following = step.receive_key_list(phase, message, random_bytes)  # type: ignore[arg-type]
                self._encode(following[0])
                return self._advance(*following)
            case step.AwaitingShares(), ShareDelivery():
                return self._release_masked(step.receive_shares(phase, message))  # type: ignore[arg-type]
            case step.AwaitingSurvivors(), Survivors():
                return self._sign_survivors(*step.receive_survivors(phase, message))  # type: ignore[arg-type]
            case step.AwaitingConsistency(), Consistency():
                return self._release_shares(phase.lists, *step.receive_consistency(phase, message))  # type: ignore[arg-type]
            case step.AwaitingResult(), Result():
                step.receive_result(phase, message)  # type: ignore[arg-type]
                return self._accept_result(message)  # type: ignore[arg-type]
            case _AwaitingClearResult(), Result():
                self._check_clear_result(phase, message)
                return self._accept_result(message)  # type: ignore[arg-type]
            case _:
                raise FaultyAggregatorError("ORDER", f"{message.type_name} in {type(phase).__name__}")

    def _encode(self, state: session_steps.AwaitingShares) -> None:
        """Everyone's energies are known: cap the contribution and make it the vector that will be masked."""
        current, own = self._round, self._site.signer.index
        if current is None or current.contribution is None or current.figures is None:
            raise FaultyAggregatorError("ORDER", "nothing to encode")
        header, contribution = current.header.body, current.contribution
        applied = apply_caps(header, own, state.u1, contribution)
        if applied is not None:
            current.record["capped"], current.record["zeroed"] = applied.capped, applied.zeroed
            self._log("caps-computed", current.header, **asdict(applied))
        encoded = encode_contribution(header, contribution, current.figures, error_units_of(header))
        self._round = replace(current, contribution=None, figures=None, encoded=encoded)

    def _advance(self, phase: session_steps.Phase, message: Signed[Body]) -> list[Parcel]:
        if self._round is not None:
            self._round = replace(self._round, phase=phase)
        return [Parcel(message)]

    def _sign_survivors(
        self, phase: session_steps.AwaitingConsistency, message: Signed[SurvivorSignature]
    ) -> list[Parcel]:
        self._log("survivors-signed", phase.session.header, survivors=self._sites(phase.lists.survivors))
        return self._advance(phase, message)

    def _release_shares(
        self, lists: Survivors, phase: session_steps.AwaitingResult, message: Signed[Unmask]
    ) -> list[Parcel]:
        """From here on the aggregator may open the sum over these sources."""
        survivors, dropped = self._sites(lists.survivors), site_ids(self._site.roster, lists.dropped)
        header = phase.session.header
        self._log("unmask-shares-released", header, survivors=survivors, dropped=dropped)
        return self._advance(phase, message)

    def _sites(self, survivors: tuple[Survivor, ...]) -> list[str]:
        return site_ids(self._site.roster, (item.index for item in survivors))

    @property
    def _header(self) -> Signed[Header] | None:
        return None if self._round is None else self._round.header

    def _log(self, kind: str, header: Signed[Header] | None = None, **facts: Any) -> None:
        """Write an event down; it is on the disk with the record of the message that follows from it."""
        self._site.witness.journal.event(kind, header, **facts)

    def _release_masked(self, ready: session_steps.ReadyToMask) -> list[Parcel]:
        """Mask, then burn the fuse before anything is handed out: from there on the update may have left."""
        current = self._round
        if current is None or current.encoded is None:
            raise FaultyAggregatorError("ORDER", "nothing to mask")
        header = current.header.body
        phase, message = session_steps.masked_input(ready, current.encoded)
        self._site.store.burn_fuse(header.run_id, header.round)
        self._log("release-fuse-burnt", current.header)
        vector = current.encoded.data.cast("B")
        self._round = replace(current, phase=phase, encoded=None)
        return [Parcel(message, (vector,))]

    def _check_clear_result(self, phase: _AwaitingClearResult, message: Signed[Body]) -> None:
        fault = envelope_fault(
            message,
            kind=Result,
            roster=self._site.roster,
            sender=self._site.roster.target.index,
            session_id=phase.header.envelope.session_id,
            context=phase.header.digest(),
        )
        if fault:
            raise FaultyAggregatorError(fault, message.type_name)

    def _accept_result(self, message: Signed[Result]) -> list[Parcel]:
        current, self._round = self._round, None
        if current is None:
            raise FaultyAggregatorError("ORDER", "no round")
        header = current.header.body
        past = PastResult(header.round, message.digest(), message.body.model_digest)
        self._site.store.record_result(header.run_id, past)
        self._patience.kept()
        self._reporter.round_finished(current.record)
        return []

    def _witness(self, message: Signed[Body]) -> list[Parcel]:
        """The aggregator shows its log, or cosigns this site's: cosign, and show this site's own."""
        roster, witness = self._site.roster, self._site.witness
        target = roster.target.index
        fault = envelope_fault(message, roster=roster, sender=target, session_id=NO_SESSION, context=NO_CONTEXT)
        if fault:
            raise FaultyAggregatorError(fault, message.type_name)
        body = message.body
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
        return [witness.show(target), *([answer] if answer else [])]

    def _check_witnessed(self, header: Header) -> None:
        """The log that this round goes on from is the one that this site and enough others have cosigned."""
        if header.run_id.hex() != self._site.witness.journal.run:
            raise FaultyAggregatorError("HEADER_RUN", "not the run that the connection was opened for")
        try:
            self._site.witness.check_header(header, self._site.limits.n_c)
        except CheckpointError as error:
            raise FaultyAggregatorError(error.check, error.detail) from error

    def _require_from_target(self, message: Signed[Any]) -> None:
        """A header, a goodbye or an abort counts only with the aggregator's signature; its session may be any."""
        envelope, target = message.envelope, self._site.roster.target
        fault = envelope_fault(
            message,
            roster=self._site.roster,
            sender=target.index,
            session_id=envelope.session_id,
            context=envelope.context,
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
        self._log("aborted", current.header, check=body.check, accused=self._accused(body))
        self._drop_round()
        accused = "" if body.accused is None else f", accused: {self._name(body.accused)}"
        text = f"the aggregator aborted at {name_of(body.step)}: {body.check}{accused}"
        self._reporter.alarm(ProtocolError(body.check, text))
        return []

    def _accused(self, body: Abort) -> list[str]:
        return [] if body.accused is None else site_ids(self._site.roster, [body.accused])

    def _refuse_by_policy(self, parcel: Parcel, refusal: PolicyRefusal) -> list[Parcel]:
        """Tell the operator everything and the aggregator the key; a session that was open is over."""
        self.refusal = refusal
        message = parcel.message
        self._log("refused", self._header, check=refusal.key)
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
        self._log("alarm", self._header, check=error.check, accused=site_ids(self._site.roster, accused))
        self._reporter.alarm(error)
        self._patience.broken(error)
        self.failure = self._patience.failure or self.failure

    def _abort(self, parcel: Parcel, error: FaultyAggregatorError) -> list[Parcel]:
        """Kill the session, if the message belongs to it or no other is open, and say which check failed."""
        if isinstance(parcel.message.body, Header):
            return [self._refuse(parcel, error.check)]
        return self._end_session(error.check, error.suspect)

    def _end_session(self, check: str, suspect: int | None = None) -> list[Parcel]:
        current = self._round
        if current is None:
            return []
        self._drop_round()
        accused = self._site.roster.target.index if suspect is None else suspect
        body = Abort(_STEP_OF_PHASE[type(current.phase)], check, accused)
        return [Parcel(self._site.signer.sign(current.header.envelope.session_id, current.header.digest(), body))]

    def _drop_round(self) -> None:
        if self._round is None:
            return
        if not isinstance(self._round.phase, _AwaitingClearResult):
            session_steps.erase(self._round.phase)
        self._ended_session = self._round.header.envelope.session_id
        self._round = None

    def _name(self, index: int) -> str:
        entries = self._site.roster.entries
        return entries[index].site_id if 0 <= index < len(entries) else f"index {index}"


def _word_for(error: SecureFdaError) -> str:
    """What the aggregator hears of an error that is this site's own."""
    if isinstance(error, BudgetExhausted):
        return "dp.target-epsilon"
    return "TRAINING" if isinstance(error, (TrainingError, ConfigError)) else "STORAGE"
