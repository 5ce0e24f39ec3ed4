"""A source accepts a header: every check on the header and its vectors, before any training.

`accept_header` is the only way from a header to a round. It parses and validates once and returns an `AcceptedRound`,
which the rest of the round relies on.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from securefda.audit.witness import CheckpointError
from securefda.errors import FaultyAggregatorError
from securefda.protocol.encoding import Vector
from securefda.protocol.header_checks import check_signed_header, checked_vectors, quantisation
from securefda.protocol.messages import Header, Parcel, Signed, Visibility
from securefda.protocol.weighed_contribution import (
    RoundTerms,
    alignment_of,
    published_statistics,
    weight_of,
)
from securefda.site.policy.verdict import check_alignment, check_metrics
from securefda.source.model_bound import (
    CheckedCourse,
    Missed,
    Origin,
    UncheckedCourse,
    course_of,
    origin_of,
    require_initial,
)
from securefda.source.source_site import SourceSite
from securefda.training.trainer import Trainer


@dataclass(frozen=True, slots=True, repr=False)
class AcceptedRound:
    """A round that this source takes part in.

    Attributes:
        header: the signed header that opened the round.
        terms: the computation that the header asks for.
        level: this source's visibility level in the round.
        model: to train from, float32 ``(n_params,)``.
        published: g_T or the gradient of the gap, float32 ``(n_params,)``; None if the header names neither.
        features: of the target's rows, float32 ``(T, d)``; None unless the rule compares features.
        origin: the result that produced the model.
        course: how far the model lies from the one that this site trained from last.
    """

    header: Signed[Header]
    terms: RoundTerms
    level: Visibility
    model: Vector
    published: Vector | None
    features: Vector | None
    origin: Origin
    course: CheckedCourse | UncheckedCourse


def accept_header(
    site: SourceSite, header: Signed[Header], parcel: Parcel, missed: Missed | None = None
) -> AcceptedRound:
    """Check a header and everything that came with it, step by step as section 6 of ``threat_model/sfda-sa-1.md``.

    Step 1, the envelope, is behind it. The policy comes first, so that a refusal names the policy's key. Checks that
    read vectors come last.

    Args:
        site: this source.
        header: its signature by the target was checked.
        parcel: the parcel of the header, with the model and perhaps g_T.
        missed: the earlier result that this source missed and the aggregator sent before the header, if any.

    Raises:
        PolicyRefusal: this site's policy forbids the round.
        FaultyAggregatorError: a check fails.
        SecureFdaError: this site's privacy budget does not cover the round, or its state cannot be read.
    """
    body, own_index = header.body, site.signer.index
    site.require_permitted(body)  # 2
    check_metrics(body, handed_in=not site.with_noise)
    encoding = check_signed_header(  # 3 to 26
        header,
        own_index=own_index,
        roster=site.roster,
        limits=site.limits,
        history=site.store.history(header.envelope.session_id, body.run_id, body.round),
        own_layers=site.trainer.layers,
        unix_s=int(site.unix_time()),
    )
    if body.run_id.hex() != site.witness.journal.run:  # 5, of the connection
        raise FaultyAggregatorError("HEADER_RUN", "not the run that the connection was opened for")
    try:  # 27 to 29
        site.witness.check_previous_checkpoint(body, site.limits.max_colluders)
    except CheckpointError as error:
        raise FaultyAggregatorError(error.check, error.detail) from error
    terms = RoundTerms.of(body, encoding or quantisation(body))  # 30
    level = body.level_of(own_index)
    if terms.plan.aligns_estimates_only:
        check_alignment(site.policy, level)
    # 10, once more: the model is of a result that this source accepted, or that enough others signed for
    origin = origin_of(body, site.store.known(body.run_id), missed, own_index=own_index, limits=site.limits)
    vectors = checked_vectors(body, level, parcel)
    model = vectors.model
    if body.features is not None and body.features.width != site.trainer.feature_width:
        raise FaultyAggregatorError("HEADER_FEATURES", "features of another width than those of the model built here")
    target_update = None if terms.plan.rule.attends else vectors.published

    before = site.store.trained_from(body.run_id, site.trainer.initial_model)
    if origin.number == 0:  # 31
        # Without units, what the store returned is the run's first model already.
        own_first = before.model if before.units is None else site.trainer.initial_model()
        require_initial(body, model, own_first, site.policy.model.digests)
    limit = site.policy.limits.model_step  # 32 and 33
    course = course_of(origin, model, target_update, before, layers=site.trainer.layers, limit=limit)

    require_worth_charging(site.trainer, body, level, target_update)
    return AcceptedRound(header, terms, level, model, vectors.published, vectors.features, origin, course)


def require_worth_charging(trainer: Trainer, header: Header, level: Visibility, target_update: Vector | None) -> None:
    """Refuse a round that cannot end in a release, before the ledger is charged for it.

    A charge is never refunded, so an aggregator whose published numbers fit no update could spend a source's budget
    for nothing. An aggregator that begins rounds and finishes none is handled in :mod:`securefda.source.run_book`.

    Args:
        trainer: of the site; one that charges no ledger passes unchecked.
        header: of the attempt; all checks that need no update have passed.
        level: at which this source takes part.
        target_update: g_T, float32 (m,); None if none came with the header.

    Raises:
        FaultyAggregatorError: HEADER_TARGET, the published numbers contradict each other, g_T or this site's schedule.
        ConfigError: this site has more rows than the run allows for.
        LedgerError: the ledger cannot be read, or is in doubt.
    """
    charged, target = trainer.charged_round(header.rule.learning_rate_factor), header.target
    if charged is None:
        return
    weight_of(header, charged.samples)
    if target is None:
        return
    try:  # the same checks as when the rule is evaluated on the trained update
        alignment_of(header, steps=charged.steps, learning_rate=charged.learning_rate)
        if level is Visibility.SUM and target_update is not None:
            squared = float(np.dot(target_update.astype(np.float64), target_update))
            published_statistics(target).require_agreement(squared / target.steps**2)
    except ValueError as error:
        raise FaultyAggregatorError("HEADER_TARGET", str(error)) from None
