"""A source's messages outside the masking sessions: join, logs, receipts, schedule."""

from __future__ import annotations

from securefda.audit.witness import MOST_SHOWN, CheckpointError
from securefda.errors import FaultyAggregatorError, PolicyRefusal, without_frames
from securefda.protocol.messages import (
    NO_CONTEXT,
    NO_SESSION,
    Body,
    Checkpoint,
    Cosigned,
    Join,
    MissedResult,
    Parcel,
    Schedule,
    Signed,
)
from securefda.protocol.transcript import joining_digest
from securefda.rules import Rule
from securefda.site.policy.verdict import check_schedule
from securefda.source.model_bound import Missed, TakenResult, check_missed
from securefda.source.source_site import SourceSite


class RunMessages:
    """One source's messages outside the masking sessions, within one process.

    Every method refuses a message that the aggregator did not sign outside a session.
    """

    def __init__(self, site: SourceSite) -> None:
        self._site = site
        self._missed: Missed | None = None
        self._receipt_due = False
        self._schedule_due = False
        self._shown_in_vain = 0
        self._refusal: PolicyRefusal | None = None

    def join(self, run: str) -> Parcel:
        """The first message to an aggregator; it identifies the site and its model.

        A site whose policy does not permit another run joins as well and refuses the first message, so that the
        target's site learns why it is missing.

        Args:
            run: id of the run, as the aggregator names it, 32 hex digits.

        Raises:
            ConfigError, FaultyAggregatorError: as :meth:`SourceStore.require_open`.
            ConfigError: as :meth:`SourceStore.require_recorded`.
            AuditError: the log of the run cannot be written, or differs from what was signed.
        """
        site, self._refusal = self._site, None
        try:
            site.store.require_open(bytes.fromhex(run))
        except PolicyRefusal as refusal:
            self._refusal = without_frames(refusal)
        site.store.require_recorded(bytes.fromhex(run), site.witness.journal.folder_of(run))
        site.witness.enter(run)
        self._missed, self._receipt_due, self._schedule_due = None, True, True
        body = Join(
            joining_digest(site.trainer.layers, site.trainer.frozen_digest),
            site.policy.visibility,
            metrics=not site.with_noise,
            known=site.witness.known_of(site.roster.target.index),
        )
        return Parcel(site.signer.sign(NO_SESSION, NO_CONTEXT, body))

    def require_run_permitted(self, message: Signed[Body]) -> None:
        """Refuse every message in a run that this site's policy does not permit.

        Raises:
            PolicyRefusal: as :meth:`SourceStore.require_open`.
            FaultyAggregatorError: the aggregator did not sign it.
        """
        if self._refusal is not None:
            self._site.require_from_target(message)
            raise self._refusal

    def take_missed(self, message: Signed[MissedResult]) -> list[Parcel]:
        """Take the result for which the aggregator lacks a receipt.

        If this site has the result, send the receipt again. If it missed the result, the next header is checked by it.
        """
        site = self._site
        site.require_from_target(message, session_id=NO_SESSION, context=NO_CONTEXT)
        run_id = bytes.fromhex(site.witness.journal.run)
        self._missed = check_missed(message.body, roster=site.roster, run_id=run_id)
        taken = site.store.known(run_id).taken
        return [receipt_for(site, run_id, taken)] if taken and taken.digest == self._missed.result.digest() else []

    def shown_last(self) -> Missed | None:
        """The result that the aggregator showed last, returned once: for the next header, or the end of the run."""
        missed, self._missed = self._missed, None
        return missed

    def take_schedule(self, message: Signed[Schedule]) -> None:
        """Refuse a run whose headers this site's policy will not accept, before any training.

        There is one schedule after a join. A second one would probe the policy again. What the run's rounds cost of the
        privacy budget is reserved.

        Raises:
            PolicyRefusal: this site's policy forbids the run.
            BudgetReserved: its rounds do not fit beside what other runs have reserved.
            LedgerError, ConfigError, AuditError: the ledger or the log cannot be used.
            FaultyAggregatorError: it is of another run, or a second one.
        """
        self._site.require_from_target(message, session_id=NO_SESSION, context=NO_CONTEXT)
        if not self._schedule_due:
            raise FaultyAggregatorError("ORDER", "a second schedule")
        if message.body.run_id.hex() != self._site.witness.journal.run:
            raise FaultyAggregatorError("SCHEDULE_RUN", "not the run that the connection was opened for")
        # Before the policy is asked: a second schedule would be a second question
        # about its bounds (SFDA-SA/1, section 11).
        self._schedule_due = False
        check_schedule(self._site.policy, message.body, with_noise=self._site.with_noise)
        schedule = message.body
        moments = all(terms.rule == Rule.ANALYTIC.value for terms in schedule.rules)
        self._site.trainer.reserve_run(schedule.run_id.hex(), schedule.rounds, moments=moments)

    def take_log(self, message: Signed[Checkpoint | Cosigned]) -> list[Parcel]:
        """Take the aggregator's checkpoint, cosign it and show this site's own; or take its cosignature of ours."""
        self._site.require_from_target(message, session_id=NO_SESSION, context=NO_CONTEXT)
        witness, target, body = self._site.witness, self._site.roster.target.index, message.body
        try:
            if isinstance(body, Cosigned):
                if witness.take(target, body):
                    witness.journal.save()
                return []
            before = witness.known_of(target)
            answer = witness.cosign(target, body)
            self._shown_in_vain = self._shown_in_vain + 1 if witness.known_of(target) == before else 0
            if self._shown_in_vain > MOST_SHOWN:
                raise CheckpointError("CHECKPOINT_AGAIN", f"nothing new, more than {MOST_SHOWN} times")
        except CheckpointError as error:
            raise FaultyAggregatorError(error.check, error.detail) from error
        witness.renew(lasting=witness.asks_to_last(target, body))
        answers = []
        if self._receipt_due:  # before our cosignature, after which a header may come
            self._receipt_due = False
            run_id = bytes.fromhex(witness.journal.run)
            if taken := self._site.store.known(run_id).taken:
                answers.append(receipt_for(self._site, run_id, taken))
        return [*answers, witness.show(target), *([answer] if answer else [])]


def receipt_for(site: SourceSite, run_id: bytes, result: TakenResult) -> Parcel:
    """This source's receipt for a result; every call gives the same bytes."""
    return Parcel(site.signer.sign(result.session_id, result.context, result.receipt(run_id)))
