"""One round at a source, from the accepted header to the result: its state, and the step that each message takes.

Each function takes the present state and a message, and returns the next state with the parcel to send. It raises if
a check fails; the caller then drops the round. State that outlives a round is in :mod:`securefda.source.source_run`.

In a session among all, keys do not depend on the update: a source sends them first and trains while they travel. Among
neighbours it trains first, since a source that gives up after the ring is drawn is one of the few that may drop out.
In clear there are no keys.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import partial
from hashlib import sha256
from typing import Any, cast

import numpy as np

from securefda.audit.journal import site_ids
from securefda.errors import FaultyAggregatorError, TrainingDiverged
from securefda.operations.records import SiteLine
from securefda.protocol import source_session
from securefda.protocol.encoding import vector_to_wire
from securefda.protocol.header_checks import quantisation
from securefda.protocol.masking import RingVector, available_threads
from securefda.protocol.messages import (
    Body,
    Consistency,
    DownLink,
    Header,
    KeyList,
    Neighbours,
    Parcel,
    Result,
    Roll,
    ShareDelivery,
    Signed,
    Step,
    Survivors,
    Update,
    Visibility,
)
from securefda.protocol.secret import Secret
from securefda.protocol.transcript import cohort_with
from securefda.protocol.weighed_contribution import (
    Metrics,
    WeighedContribution,
    aligned_update,
    aligned_variance,
    alignment_of,
    contribution_at_source,
    metrics_of,
    require_few_at_the_clip,
    with_pull,
)
from securefda.rules import share_apart
from securefda.site.policy.verdict import check_metadata, check_metrics, check_moments
from securefda.source.acceptance import AcceptedRound
from securefda.source.model_bound import UNKNOWN_COUNT, TakenResult
from securefda.source.run_messages import receipt_for
from securefda.source.source_site import SourceSite
from securefda.training import Vector
from securefda.training.alignment import AlignmentRule, FeatureAlignment


@dataclass(frozen=True, slots=True)
class AwaitingClearResult:
    """Visibility ``individual``: the update was sent in clear; the result is outstanding."""


EXPLODED = 10.0
"""A loss that grows so many times in a round, with an update beyond its clip, is no small clip: training diverges."""

_STEP_OF_PHASE: dict[type, Step] = {
    source_session.AwaitingKeyList: Step.ADVERTISE,
    source_session.AwaitingRoll: Step.ADVERTISE,
    source_session.AwaitingNeighbours: Step.ADVERTISE,
    source_session.AwaitingShares: Step.SHARES,
    source_session.AwaitingSurvivors: Step.SURVIVORS,
    source_session.AwaitingConsistency: Step.UNMASK,
    source_session.AwaitingResult: Step.RESULT,
    AwaitingClearResult: Step.RESULT,
}


@dataclass(frozen=True, slots=True, repr=False)
class SourceRound:
    """A round in progress.

    Attributes:
        header: the signed header that opened the round.
        number: how many results came before the model that the round trains from.
        phase: of the masking session; or, at ``individual``, the wait for the result.
        record: this site's line about the round in the run's records.
        accepted: what to train for, once the keys are sent; None where this source has trained already.
        pending: this source's contribution until it is masked, clipped; None before and after, and at ``individual``.
        target_update: g_T, if this source was sent it: the next header's model shows how much of the step it was.
    """

    header: Signed[Header]
    number: int
    phase: source_session.Phase | AwaitingClearResult
    record: SiteLine
    accepted: AcceptedRound | None = None
    pending: WeighedContribution | None = None
    target_update: Vector | None = None

    @property
    def step(self) -> Step:
        """The protocol step that the round is at."""
        return _STEP_OF_PHASE[type(self.phase)]

    @property
    def place(self) -> str:
        """Round and step, for messages."""
        return f"round {self.header.body.round}, {self.step.label}"

    @property
    def deadline_s(self) -> float:
        """Seconds to wait for the next message."""
        phase_s, training_s = self.header.body.phase_deadline_ms / 1000, self.header.body.training_deadline_ms / 1000
        match self.phase:
            # The waits of SFDA-SA/1, section 14, with room for all that the aggregator itself may wait for in between.
            case source_session.AwaitingKeyList() | source_session.AwaitingRoll():
                return 2 * phase_s + training_s
            case source_session.AwaitingShares() if self.header.body.graph is None:  # others may still train
                return 2 * phase_s + training_s
            case source_session.AwaitingResult():  # the aggregator evaluates the model first, and can train it before
                return 3 * phase_s + training_s
            case AwaitingClearResult():  # the same, after the others have trained and taken the four later steps
                return 6 * phase_s + 2 * training_s
        return 3 * phase_s

    def noted(self, **figures: float) -> SourceRound:
        """This round with more figures in its line of the records."""
        return replace(self, record=cast(SiteLine, {**self.record, **figures}))

    def erase(self) -> None:
        """Erase the secrets of the masking session, if there is one, and the key of the rounding that waits for it."""
        if not isinstance(self.phase, AwaitingClearResult):
            source_session.erase(self.phase)
        if self.pending is not None:
            self.pending.rounding.erase()


Answer = tuple[SourceRound, Parcel]
"""The next state of a round, and what to send."""


def step_apart(site: SourceSite, accepted: AcceptedRound, target_update: Vector | None) -> float | None:
    """Return the least share of the last step of the model that was not the target's own; None if it is not known.

    It is known where this source took part in the round before to its end and was sent the target's update, and the
    model travels unrounded. Call it before this round's training, which replaces the model that it starts from.

    Args:
        site: this source.
        accepted: the round that begins.
        target_update: g_T of the round that this process finished last, float32 (m,); None if it was not sent.
    """
    header = accepted.header.body
    if target_update is None or header.down_link is not DownLink.FLOAT32:
        return None
    before = site.store.trained_from(header.run_id, site.trainer.initial_model)
    if accepted.origin.number != before.number + 1:  # others have finished rounds since
        return None
    return share_apart(np.subtract(accepted.model, before.model, dtype=np.float64), target_update)


def begin_round(site: SourceSite, accepted: AcceptedRound) -> Answer:
    """Begin the masking session, or send the update in clear, depending on the visibility level.

    A session among all begins with its keys, and :func:`train_round` comes next; anything else begins with training.

    Raises:
        as :func:`train_round`.
    """
    if accepted.level is Visibility.INDIVIDUAL:
        return _release_in_clear(site, accepted, _train(site, accepted))
    opened = partial(SourceRound, accepted.header, accepted.origin.number)
    session = source_session.Session(site.signer, site.roster, site.limits, accepted.header, available_threads())
    if accepted.header.body.graph is None:
        phase, keys = source_session.advertise(session, site.random_bytes)
        return opened(phase, SiteLine(round=accepted.header.body.round), accepted), Parcel(keys)
    record, pending, target_update = _contribution(site, accepted)
    phase, keys = source_session.advertise(session, site.random_bytes)
    return opened(phase, record, pending=pending, target_update=target_update), Parcel(keys)


def train_round(site: SourceSite, current: SourceRound) -> SourceRound:
    """Train for a round of which the keys are sent; one that has trained stays as it is.

    Raises:
        FaultyAggregatorError: HEADER_STEP or HEADER_TARGET_STEP, in this source's first round of the run; CLIPPED.
        TrainingDiverged: the update is not finite, or it is beyond its clip and the loss has grown with it.
        TrainingError: training failed.
        PolicyRefusal: this site has too few rows for second moments.
    """
    if current.accepted is None:
        return current
    trained, pending, target_update = _contribution(site, current.accepted)
    # What was noted while the keys travelled stays.
    record = cast(SiteLine, {**trained, **current.record})
    return replace(current, record=record, accepted=None, pending=pending, target_update=target_update)


def _contribution(site: SourceSite, accepted: AcceptedRound) -> tuple[SiteLine, WeighedContribution, Vector | None]:
    """Train for a masked round: this site's line, its contribution, and g_T where it was sent."""
    trained = _train(site, accepted)
    pending = _clipped(accepted, trained)
    return trained.record, pending, accepted.published if accepted.terms.plan.uses_target_statistics else None


@dataclass(slots=True, repr=False)
class _Trained:
    """What training gave: this site's line, and its aligned update with a pull on features behind it, if there is one.

    ``alignment`` is the factor where only estimates are aligned, else None.
    """

    record: SiteLine
    update: Vector
    alignment: float | None
    noise_variance: float
    metrics: Metrics | None
    growth: float
    rounding: Secret


def _train(site: SourceSite, accepted: AcceptedRound) -> _Trained:
    header, terms = accepted.header.body, accepted.terms
    if terms.plan.rule.adds_moments:
        result = site.trainer.moments(
            accepted.model,
            header.round,
            # One bound for a row's whole vector, to which noise is scaled: the least clip
            # (SFDA-SA/1, section 6, second moments).
            bound=min(layer.clip for layer in header.layers),
            permitted=partial(check_moments, site.policy),
            run_id=header.run_id.hex(),
            attempt=header.attempt,
        )
    else:
        result = site.trainer.train(
            accepted.model,
            header.round,
            header.rule.learning_rate_factor,
            run_id=header.run_id.hex(),
            attempt=header.attempt,
            align=None
            if accepted.features is None
            else FeatureAlignment(AlignmentRule(header.rule.rule), accepted.features),
        )
    metrics = metrics_of(header, result.loss, result.accuracy)
    record = SiteLine(
        round=header.round,
        attempt=header.attempt,
        level=accepted.level.label,
        rule=header.rule.rule,
        beta=None,
        samples=result.samples,
        loss=result.loss,
        clipped=0,
        capped=0,
        zeroed=0,
        policy=site.witness.journal.policy,
    )
    if result.epsilon is not None:
        record["epsilon"], record["delta"] = result.epsilon, site.policy.dp.target_delta
    factor = alignment_of(header, steps=result.steps, learning_rate=result.learning_rate)
    update = with_pull(header, aligned_update(header, result.update, factor), result.pull)
    if not terms.plan.rule.adds_moments:  # moments are no measure of how far training moves a model
        # In this source's first round of the run this also checks the model's step:
        # only now there is a unit to check it in.
        units = accepted.course.units_after(result.update)
        # Before the update can leave, and never for a model whose step was refused (decision 0021).
        site.store.remember_trained(header.run_id, accepted.origin.number, accepted.model, header.model_digest, units)
    return _Trained(
        record,
        update,
        factor if terms.plan.aligns_estimates_only else None,
        aligned_variance(header, result.noise_variance, factor),
        metrics,
        result.loss_growth,
        site.new_rounding_key(header),
    )


def _clipped(accepted: AcceptedRound, trained: _Trained) -> WeighedContribution:
    """This source's contribution, clipped. It completes the line, and leaves no update behind."""
    header, record = accepted.header.body, trained.record
    contribution = contribution_at_source(
        accepted.terms,
        accepted.level,
        accepted.published,
        trained.update,
        alignment=1.0 if trained.alignment is None else trained.alignment,
        noise_variance=trained.noise_variance,
    )
    del trained.update  # a vector of the model's length less before encoding and masking
    pending = WeighedContribution.clipped(
        accepted.terms,
        accepted.level,
        contribution,
        record["samples"],
        rounding=trained.rounding,
        metrics=trained.metrics,
    )
    # Before anything that depends on the update: nothing may depend on one that is kept back.
    try:
        require_few_at_the_clip(header, pending.at_bounds)
    except FaultyAggregatorError as error:
        if trained.growth <= EXPLODED:
            raise
        grew = f"the loss grew {trained.growth:.3g} times in the round, and the update is beyond its clip"
        raise TrainingDiverged(f"training diverges: {grew}", hint="lower training.learning-rate") from error
    record["beta"], record["clipped"] = contribution.beta, sum(pending.at_bounds)
    return pending


def continue_round(site: SourceSite, current: SourceRound, message: Signed[Body]) -> Answer:
    """Take one message of the masking session, and answer it.

    Raises:
        FaultyAggregatorError: a check fails, or the message is not what this phase waits for.
    """
    received: Any = message
    following: source_session.Phase
    answer: Signed[Body]
    match current.phase, message.body:
        case source_session.AwaitingKeyList() as phase, KeyList():
            # Empty, and not refused, where no cap holds: everyone commits in R1, with
            # a report or without (decision 0033).
            report = current.pending.report if current.pending else None
            codes = report.codes if report else b""
            following, answer = source_session.receive_key_list(phase, received, site.random_bytes, codes)
        case source_session.AwaitingRoll() as phase, Roll():
            following, answer = source_session.receive_roll(phase, received)
        case source_session.AwaitingNeighbours() as phase, Neighbours():
            following, answer = source_session.receive_neighbours(phase, received, site.random_bytes)
        case source_session.AwaitingShares() as phase, ShareDelivery():
            return _cap_encode_mask(site, current, phase, received)
        case source_session.AwaitingSurvivors() as phase, Survivors():
            return _sign_survivors(site, current, phase, received)
        case source_session.AwaitingConsistency() as phase, Consistency():  # or NeighbourConsistency, one of them
            return _release_shares(site, current, phase, received)
        case _:
            raise _out_of_order(message, current.phase)
    return replace(current, phase=following), Parcel(answer)


def _cap_encode_mask(
    site: SourceSite, current: SourceRound, phase: source_session.AwaitingShares, message: Signed[ShareDelivery]
) -> Answer:
    ready = source_session.receive_shares(phase, message)
    try:
        masking, encoded = capped_and_encoded(site, current, ready)
        return release_masked(site, masking, encoded, ready)
    except BaseException:
        source_session.erase(ready)  # `current` still holds the phase before, so nothing else would erase these secrets
        raise


def _sign_survivors(
    site: SourceSite, current: SourceRound, phase: source_session.AwaitingSurvivors, message: Signed[Survivors]
) -> Answer:
    following, signature = source_session.receive_survivors(phase, message)
    alive = [item.index for item in following.lists.survivors]
    summed = len(cohort_with(site.signer.index, phase.cohorts).intersection(alive))
    site.witness.journal.event("survivors-signed", current.header, survivors=site_ids(site.roster, alive))
    return replace(current.noted(summed=summed), phase=following), Parcel(signature)


def _release_shares(
    site: SourceSite, current: SourceRound, phase: source_session.AwaitingConsistency, message: Signed[Consistency]
) -> Answer:
    """Release the shares: with enough of them, the aggregator opens the sum."""
    waiting, unmask = source_session.receive_consistency(phase, message)
    survivors = site_ids(site.roster, (item.index for item in phase.lists.survivors))
    dropped = site_ids(site.roster, phase.lists.dropped)
    journal, header = site.witness.journal, current.header
    journal.event("unmask-shares-released", header, survivors=survivors, dropped=dropped)
    # No true result can come before this answer; one that does is refused.
    site.store.answered(header.body.run_id, waiting.survivors)
    return replace(current, phase=waiting), Parcel(unmask)


def check_result(site: SourceSite, current: SourceRound, message: Signed[Result]) -> None:
    """Check that a result belongs to this round, and that the round waits for it.

    Raises:
        FaultyAggregatorError: it does not.
    """
    match current.phase:
        case source_session.AwaitingResult() as waiting:
            source_session.receive_result(waiting, message)
        case AwaitingClearResult():
            session_id, context = current.header.envelope.session_id, current.header.digest()
            site.require_from_target(message, kind=Result, session_id=session_id, context=context)
        case _:
            raise _out_of_order(message, current.phase)


def remember_result(site: SourceSite, finished: SourceRound, message: Signed[Result]) -> Parcel:
    """Store the result of a round, already checked, and return the receipt for it.

    Raises:
        SecureFdaError: the disk cannot be written.
    """
    header, envelope = finished.header.body, message.envelope
    taken = TakenResult(
        round=header.round,
        number=finished.number + 1,
        digest=message.digest(),
        model_digest=message.body.model_digest,
        session_id=envelope.session_id,
        context=envelope.context,
    )
    site.store.record_result(header.run_id, taken)
    return receipt_for(site, header.run_id, taken)


def _release_in_clear(site: SourceSite, accepted: AcceptedRound, trained: _Trained) -> Answer:
    header, metrics, may_leave = accepted.header, trained.metrics, site.policy.metadata.may_leave
    vector = vector_to_wire(trained.update)
    body = Update(
        sha256(vector).digest(),
        len(vector),
        trained.record["samples"],
        trained.rounding.reveal(),
        loss=metrics.loss if metrics and "loss" in may_leave else None,
        accuracy=metrics.accuracy if metrics and "accuracy" in may_leave else None,
        alignment=trained.alignment,
    )
    # Before the fuse is burnt: what the policy refuses must not cost the round.
    check_metadata(site.policy, body)
    check_metrics(header.body, handed_in=not site.with_noise, update=body)
    _burn_fuse(site, header)
    # This is its last answer in the session: from here on there can be a true result (decision 0021).
    site.store.answered(header.body.run_id, UNKNOWN_COUNT)
    trained.record["summed"] = 1
    signed = site.signer.sign(header.envelope.session_id, header.digest(), body)
    return SourceRound(header, accepted.origin.number, AwaitingClearResult(), trained.record), Parcel(signed, (vector,))


def capped_and_encoded(
    site: SourceSite, current: SourceRound, ready: source_session.ReadyToMask
) -> tuple[SourceRound, RingVector]:
    """Scale this source's contribution down to the norm caps, and encode it. Needs the norm reports of all sources.

    Returns:
        The round without a contribution left to mask, and the vector.

    Raises:
        FaultyAggregatorError: CLIPPED, too many coordinates are beyond the ranges.
    """
    if current.pending is None:
        # No message can cause this, so it is a fault of ours and accuses nobody.
        raise RuntimeError("this round has no contribution left to mask")
    own = current.pending.capped(ready.reports)
    if own.caps is not None:
        figures = {"clipped": sum(own.at_bounds), "capped": own.caps.capped, "zeroed": own.caps.zeroed}
        current = current.noted(**figures)
        site.witness.journal.event("caps-computed", current.header, **asdict(own.caps))
    return replace(current, pending=None), own.encoded(own.terms.error_units())


def release_masked(
    site: SourceSite, current: SourceRound, encoded: RingVector, ready: source_session.ReadyToMask
) -> Answer:
    """Mask, then burn the release fuse on disk before sending: after a crash, the update counts as released."""
    encoding = quantisation(current.header.body)
    phase, message, vector = source_session.masked_input(ready, encoded, encoding)
    _burn_fuse(site, current.header)
    return replace(current, phase=phase), Parcel(message, (vector,))


def _burn_fuse(site: SourceSite, header: Signed[Header]) -> None:
    # Before the caller can send: the other way round, a crash in between would let a second input of the round leave.
    site.store.burn_fuse(header.body.run_id, header.body.round)
    site.witness.journal.event("release-fuse-burnt", header)


def _out_of_order(message: Signed[Body], phase: object) -> FaultyAggregatorError:
    return FaultyAggregatorError("ORDER", f"{message.type_name} in {type(phase).__name__}")
