"""The global model of a run at the aggregator: the target trains it, each round updates it, the store keeps it.

The opened sums of an attempt give V, w and n of the round's rule (:func:`round_total`). These give the round's update
(:func:`round_update`), which moves the model (:meth:`RunModel.change_by`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from typing import cast

import numpy as np

from securefda.aggregator.folds import WARM_TARGET, FoldedTraining, Folds, chosen
from securefda.aggregator.headers import AttemptPosition, SessionPlan, make_header, n_max_for
from securefda.aggregator.ranges import WordFormat, format_for, narrowest, peaks_after, sum_kind
from securefda.aggregator.receipts import Receipts
from securefda.aggregator.rounds import CurrentRound, is_silenced, largest_factor
from securefda.aggregator.site import RunSettings, TargetSite
from securefda.aggregator.store import AggregatorStore, KeptPeaks, KeptResult, Position, RoundRequest, TargetRelease
from securefda.aggregator.sums import RoundSum, RoundTotal
from securefda.aggregator.target import (
    TargetFeatures,
    TargetOutput,
    TargetRound,
    evaluate_at_target,
    summed_sizes,
    train_target,
    vectors_for,
)
from securefda.operations.notes import Note
from securefda.operations.progress import Reporter
from securefda.operations.records import RULES_WITHOUT_SOURCES, ChosenMetric
from securefda.operations.summary_text import head_text, silenced_text
from securefda.protocol.down_link import rounded
from securefda.protocol.encoding import Vector64, vector_to_wire
from securefda.protocol.messages import Goodbye, Granularity, Header, Parcel, Result, Signed, Visibility
from securefda.protocol.weighed_contribution import (
    FaultySum,
    RoundTerms,
    alignment_of_share,
    check_kept,
    check_sum,
    clip_contribution,
    terms_of,
)
from securefda.rules import (
    STEP_SHARES,
    ContributionSum,
    DeltaErrors,
    Projection,
    RoundPlan,
    Rule,
    ServerState,
    best_share,
    combine,
    cosine,
    partial_step,
    round_plan,
    server_step,
    share_of,
    sources_length,
)
from securefda.task_metric import ACCURACY
from securefda.tasks import Samples
from securefda.training import Evaluation, Vector
from securefda.training.head import HeadFitter


def round_total(terms: RoundTerms, target: TargetOutput | None, sums: RoundSum) -> RoundTotal:
    """Add up the sums of all visibility levels.

    At ``sum`` and ``individual``, the rule was already evaluated for each source. For a cohort it is evaluated here, on
    the cohort's mean as if that were one source. Where only estimates are aligned, that source has the cohort's mean
    share of alignment.

    Raises:
        FaultySum: honest contributions cannot give one of the sums.
    """
    for partial in sums.partial_sums:
        if not partial.statistics.weight > 0:
            raise FaultySum("a sum has no samples")
        # Each sum by itself: in the total, a false sum could hide behind honest ones.
        check_sum(terms, partial.vector, partial.statistics.weight, len(partial.members))
    match sums.partial_sums:
        case [only] if only.level is not Visibility.COHORT:  # it is the total: a copy would be as long as the model
            of_only = only.statistics
            total = RoundTotal(only.vector, of_only.kept, of_only.weight, of_only.errors)
        case _:
            total = _added_up(terms, target, sums)
    check_kept(terms.plan, total.kept, total.samples)
    means = total.errors.times(1 / total.samples) if terms.plan.select and total.errors and total.samples else None
    return replace(total, errors=means)


def _added_up(terms: RoundTerms, target: TargetOutput | None, sums: RoundSum) -> RoundTotal:
    """The total of several sums or of cohorts, its errors weighted by samples."""
    total, errors = ContributionSum(terms.header.n_summed), DeltaErrors(0.0, 0.0, 0.0)
    for partial in sums.partial_sums:
        if partial.level is Visibility.COHORT:
            samples = partial.statistics.weight
            share = partial.statistics.kept / samples
            alignment = alignment_of_share(share) if terms.plan.aligns_estimates_only else 1.0
            contribution = evaluate_at_target(terms, target, partial.vector / samples, alignment)
            # As a source clips its own: levels differ in what is seen, and not in what is computed (decision 0005).
            clip_contribution(terms.header, contribution)
            total.add(contribution, samples)
            weighted = contribution.errors and contribution.errors.times(samples)
        else:
            total.add_sum(partial.vector, partial.statistics.kept, partial.statistics.weight)
            weighted = partial.statistics.errors
        errors = errors.plus(weighted) if weighted else errors
    return RoundTotal(total.vector, total.kept, total.samples, errors)


def round_update(rule: Rule, total: RoundTotal, target: TargetRound | None, max_samples: int) -> Vector64:
    """The round's update of the model from the sums, float64, followed by the mean pull if the rule has one."""
    target_samples = target.result.samples / max_samples if target and rule is Rule.FEDAVG else None
    update = combine(
        rule,
        total.vector,
        total.kept,
        total.samples,
        target_update=target.result.update if target else None,
        target_samples=target_samples,
    )
    return update.astype(np.float64, copy=False)


def sources_length_of(
    plan: RoundPlan, total: RoundTotal, target: TargetRound | None, max_samples: int, sizes: Sequence[int]
) -> float:
    """The length of the sources' part of the round's step; a pull on features is no part of it."""
    return sources_length(
        plan,
        total.vector[: sum(sizes)],
        total.kept,
        total.samples,
        target_update=target.result.update if target else None,
        target_samples=target.result.samples / max_samples if target and plan.rule is Rule.FEDAVG else None,
        layers=sizes,
    )


@dataclass(frozen=True, slots=True, repr=False)
class ModelChange:
    """The effect of a round's sums: the totals, the new model, and the state of the server optimiser."""

    total: RoundTotal
    vector: Vector
    server: ServerState | None


class RunModel:
    """The global model, trained at the target and updated by every finished round.

    ``vector`` holds its parameters, float32 ``(n_params,)``, rounded to the down-link's format as every site receives
    them; it is empty before :meth:`begin` or :meth:`restore`. ``kept`` is what the target measures and keeps: the same,
    unless folds say that it does better alone. Every method stores its effects before it returns.
    ``receipts`` are those for the last result.
    """

    def __init__(
        self, site: TargetSite, settings: RunSettings, store: AggregatorStore, reporter: Reporter, run_id: bytes
    ) -> None:
        if settings.strategy.validates_step and site.validation is None:
            raise ValueError("validation: the target keeps no rows out, by which a step could be validated")
        self._site, self._settings, self._store, self._reporter = site, settings, store, reporter
        self._run_id = run_id
        self._result_digest = b""
        self.receipts = Receipts(site, store, run_id)
        self._server: ServerState | None = None
        self.vector: Vector = np.zeros(0, np.float32)
        self.kept = self.vector

    def begin(self) -> None:
        """Start from the task's own model."""
        self.vector = self.kept = self._rounded(self._site.trainer.initial_model())
        self._store.begin_run(self._run_id, self._settings.config_digest, self.vector)

    def restore(self, position: Position) -> None:
        """Continue an interrupted run from the store."""
        self._result_digest = position.result_digest
        self.receipts.restore()
        self.kept, self._server = self._store.model(), self._store.server()
        self.vector = self.kept if self._site.folds is None else self._store.result_model()

    def begin_round(self, number: int) -> None:
        """Keep the model of a round's beginning, if the target is compared with what it comes to alone from there."""
        if self._site.alone is not None:
            self._site.alone.keep_warm_model(self._run_id.hex(), number, self.vector)

    def train_target(self, current: CurrentRound) -> None:
        """Train at the target, once per round: all attempts publish the same g_T, so that it counts as one release.

        If too few rows of the target have a pseudo-label that counts, the round becomes another warm-up round.
        """
        if current.trained:
            return
        site, run, factor = self._site, self._run_id.hex(), current.plan.learning_rate_factor
        began = site.clock()
        attempt = current.attempt + 1
        if site.head_fitter is not None and current.plan.rule.adds_moments:
            current.target, current.trained = site.head_fitter, True
            return
        if site.output_from_features is not None and current.plan.rule.uses_target_features:
            current.target = site.output_from_features(self.vector, current.number, run, current.plan)
            current.trained = True
            current.add_seconds("target_features", site.clock() - began)
            return
        trained = train_target(site.trainer, self.vector, current.number, current.plan, run_id=run, attempt=attempt)
        current.confident = None if trained is None else trained.result.confident
        if trained is not None and trained.result.steps == 0:
            self._reporter.note(f"{current.confident} rows have a pseudo-label that counts, too few: warm-up goes on")
            current.plan, trained = round_plan(self._settings.strategy, 1), None
        current.target = None if trained is None else self._as_published(trained)
        if site.folds is not None and current.target is not None:
            current.folded = site.folds.train(run, current.number, factor, self.vector)
        if site.personal is not None:
            site.personal.train(self.vector, run, current.number, factor)
        current.trained = True
        current.add_seconds("train_target", site.clock() - began)

    def _rounded(self, model: Vector) -> Vector:
        return rounded(model, self._settings.down_link, "the model")

    def _as_published(self, target: TargetRound) -> TargetRound:
        """The target's result with g_T rounded as it is sent, so that all levels evaluate the rule on the same g_T."""
        update = rounded(target.result.update, self._settings.down_link, "the target's update")
        return target.with_update(update)

    def header(self, current: CurrentRound, session: SessionPlan, *, with_metrics: bool) -> Signed[Header]:
        """The header of the next attempt at a round. Call :meth:`publish` before any of it is sent."""
        witnessed = self._site.witness.note
        return make_header(
            self._site,
            self._settings,
            AttemptPosition(self._run_id, current.number, current.attempt + 1, self._result_digest, witnessed),
            plan=current.plan,
            target=current.target,
            model=self.vector,
            session=session,
            words=self._word_format(current, session),
            with_metrics=with_metrics,
        )

    def _word_format(self, current: CurrentRound, session: SessionPlan) -> WordFormat:
        settings, sizes = self._settings, summed_sizes(self._site.trainer, current.target)
        bits = narrowest(settings.bits, n_max_for(len(self._site.sources)))
        peaks = self._store.peaks(sum_kind(terms_of(current.plan), session.levels.values()))
        projects = current.plan.rule.projects and current.plan.projection is Projection.ORTHOGONAL
        target = current.target if projects else None
        projected = None
        if isinstance(target, TargetRound):
            projected = target.result.update * largest_factor(self._store.records(), current.plan, settings.max_samples)
        return format_for(bits, peaks, clip=settings.clip, sizes=sizes, projected=projected)

    def _kept_peaks(self, current: CurrentRound, outcome: RoundSum) -> KeptPeaks:
        """The peaks from which the next round's ranges follow; none if a source was beyond the ranges of this one."""
        if current.out_of_range:
            return KeptPeaks(current.sum_kind, None)
        before = self._store.peaks(current.sum_kind)
        return KeptPeaks(
            current.sum_kind,
            peaks_after(before, outcome.partial_sums, summed_sizes(self._site.trainer, current.target)),
        )

    def publish(self, current: CurrentRound, header: Signed[Header], request: RoundRequest) -> None:
        """Before anything is sent: store and log that an attempt begins, and what its header releases of the target.

        ``request`` is what the header asks of the sources.
        """
        body, journal = header.body, self._site.witness.journal
        current.begin(body, request)
        self._store.begin_attempt(current.number, current.attempt, request)
        journal.enter(header)
        if body.features is not None and isinstance(current.target, TargetFeatures):
            # Everyone gets the features. A gradient of the gap goes only to sources at sum; it has no entry of its own.
            sent, settings = body.features, current.target.settings
            noise = "gaussian noise" if settings.noise else "none"
            self._store_release(current, sent.digest, body.participants, noise)
            journal.event(
                "features-released",
                header,
                rows=sent.rows,
                width=sent.width,
                features=sent.digest.hex(),
                clip=repr(float(settings.clip)),
                noise=repr(float(settings.noise)),
            )
        elif body.published_digest:
            at_sum = body.at(Visibility.SUM)
            self._store_release(current, body.published_digest, at_sum, self._settings.target_noise)

    def _store_release(self, current: CurrentRound, digest: bytes, to: Iterable[int], noise: str) -> None:
        recipients = [self._site.name(index) for index in to]
        release = TargetRelease(current.number, current.attempt, digest.hex(), recipients, noise)
        self._store.release_target(release)
        current.released_to |= set(recipients)

    def header_for(self, header: Signed[Header], index: int, current: CurrentRound) -> Parcel:
        """The header with its vectors for one source: the model, and what the target publishes to that source."""
        of_target = vectors_for(current.target, header.body, header.body.level_of(index))
        return Parcel(header, (vector_to_wire(self.vector), *of_target))

    def finish_target_round(self, current: CurrentRound) -> None:
        """Finish a round in which only the target trained."""
        if current.own is not None:
            self.vector = self.kept = self._rounded(self.vector + current.own.result.update)
            if self._settings.strategy.rule not in RULES_WITHOUT_SOURCES:
                current.source_share = 0.0
        self._record(current)

    def change_by(self, current: CurrentRound, terms: RoundTerms, sums: RoundSum) -> ModelChange:
        """Compute the new model from the sums of an attempt. Neither the model nor the store changes yet.

        Raises:
            FaultySum: honest contributions cannot give a sum. The masks hide the faulty source, so none is named.
        """
        began = self._site.clock()
        total, server = round_total(terms, current.target, sums), self._server
        max_samples, sizes = self._settings.max_samples, self._site.trainer.sizes
        update = round_update(current.plan.rule, total, current.own, max_samples)
        if isinstance(current.target, TargetFeatures):
            update = current.target.followed(update)
        if isinstance(current.target, HeadFitter):
            try:
                count = sum(len(partial.members) for partial in sums.partial_sums)
                fitted = current.target.fit(self.vector, update, total.samples * max_samples, count)
            except ValueError as error:
                raise FaultySum(str(error)) from error
            current.source_share = fitted.sources_part
            head, fitter = fitted.head, current.target
            how = {"labelled": head.left_out is not None, "balanced": fitter.balanced, "moved": fitter.moves_mean}
            self._reporter.note(head_text(head.source_weight, head.ridge, **how))
            current.add_seconds("rule", self._site.clock() - began)
            return ModelChange(total, self._rounded(fitted.vector), server)
        of_the_sources = sources_length_of(current.plan, total, current.own, max_samples, sizes)
        current.source_share = share_of(of_the_sources, update)
        if current.plan.server is not None:
            update, server = server_step(current.plan.server, server, update)
        update, current.step_share = self._validated(current, update)
        if current.step_share is not None:
            current.source_share = share_of(of_the_sources * current.step_share, update)
        current.target_cosine = None if current.own is None else cosine(current.own.result.update, update)
        vector = self._stepped(update)
        current.add_seconds("rule", self._site.clock() - began)
        return ModelChange(total, vector, server)

    def _stepped(self, update: Vector64) -> Vector:
        # Added in float64, and each block rounded at once: no vector of float64 more.
        stepped = np.empty_like(self.vector)
        return self._rounded(np.add(self.vector, update, out=stepped, dtype=np.float64, casting="same_kind"))

    def _validated(self, current: CurrentRound, update: Vector64) -> tuple[Vector64, float | None]:
        """The step towards the rule's update with the lowest loss on the validation rows, and its share of that update.

        A round with only the target's update, or without one, has nothing to choose: the share is None.
        """
        own, rows = current.own, self._site.validation
        validates = self._settings.strategy.validates_step and current.plan.rule is not Rule.TARGET_ONLY
        if not validates or rows is None or own is None:
            return update, None

        def loss_at(share: float) -> float:
            step = partial_step(own.result.update, update, share)
            return self._site.trainer.evaluate(self._stepped(step), rows).loss

        share = best_share([loss_at(share) for share in STEP_SHARES])
        return partial_step(own.result.update, update, share), share

    def finish_round(
        self, current: CurrentRound, header: Signed[Header], outcome: RoundSum, change: ModelChange
    ) -> Signed[Result]:
        """Finish a round with the change that its sums gave; returns the result for the sources in these sums."""
        self.vector, self.kept, self._server = change.vector, change.vector, change.server
        if self._site.folds is not None and current.folded is not None:
            self._choose(self._site.folds, current, current.folded, change.total)
        body = Result(outcome.digest, outcome.count, sha256(vector_to_wire(self.vector)).digest())
        result = self._site.signer.sign(header.envelope.session_id, header.digest(), body)
        self._result_digest = result.digest()
        kept = self.receipts.numbered(current.number, result)
        peaks = self._kept_peaks(current, outcome)
        self._record(current, header.body.participants, outcome, change.total, kept=kept, peaks=peaks)
        self.receipts.replace_last(kept)
        return result

    def _choose(self, folds: Folds, current: CurrentRound, trained: FoldedTraining, total: RoundTotal) -> None:
        """Keep the rule's model, or that of the target alone since the warm-up, as the folds of its rows say."""
        own, rule, most = current.own, current.plan.rule, self._settings.max_samples

        def rule_update(update: Vector) -> Vector64:
            return round_update(rule, total, own and own.with_update(update), most)

        folded = folds.finish(self._run_id.hex(), current.number, trained, rule_update)
        current.fold_losses, current.chosen = folded.losses, chosen(folded.losses, self._store.records())
        if current.chosen == WARM_TARGET:
            self.kept = folded.alone

    def goodbye_with_model(self, farewell: Goodbye) -> tuple[Goodbye, tuple[memoryview, ...]]:
        """The goodbye that carries the final model to a source, and that model. There must have been a result.

        The model is that of the last result; later rounds of the target alone stay at the target.
        """
        model = vector_to_wire(self._store.result_model())
        digest, down_link = sha256(model).digest(), self._settings.down_link
        named = replace(farewell, result_digest=self._result_digest, model_digest=digest, down_link=down_link)
        return named, (model,)

    def lose_round(self, current: CurrentRound, dropped: Iterable[int]) -> None:
        """Give a round up because the sources ``dropped`` are missing; the model does not change."""
        line = current.line(self._site, self.kept, "lost", dropped)
        self._store.lose_round(dict(line), KeptPeaks(current.sum_kind, None) if current.out_of_range else None)
        self._reporter.round_finished(line)

    def _record(
        self,
        current: CurrentRound,
        participants: Iterable[int] = (),
        outcome: RoundSum | None = None,
        total: RoundTotal | None = None,
        *,
        kept: KeptResult | None = None,
        peaks: KeptPeaks | None = None,
    ) -> None:
        site, began = self._site, self._site.clock()
        evaluation = None if site.test_data is None else self._evaluate(current.number, site.test_data)
        current.add_seconds("evaluate", site.clock() - began)
        line = current.finished_line(
            site, self.kept, participants, outcome=outcome, total=total, max_samples=self._settings.max_samples
        )
        if evaluation is not None:
            line["loss"], line["metrics"] = evaluation.loss, evaluation.metrics
            if evaluation.confusion is not None:
                classes, taken_for = evaluation.confusion
                line["confusion"] = {"classes": list(classes), "rows": taken_for}
            if evaluation.metric != ACCURACY:
                line["metric"] = cast(ChosenMetric, asdict(evaluation.metric))
            if ACCURACY.name in evaluation.metrics:
                line["accuracy"] = evaluation.metrics[ACCURACY.name]
            else:  # the zeros that the sources summed in its place mean nothing
                for of_sources in line.get("seen", []):
                    of_sources["accuracy"] = None
        if site.personal is not None or current.chosen == WARM_TARGET:
            line["evaluated"] = "personal"
        if site.validation is not None:
            seen = self._evaluate(current.number, site.validation)
            line["validation_metrics"], line["validation_loss"] = seen.metrics, seen.loss
            if ACCURACY.name in seen.metrics:
                line["validation_accuracy"] = seen.metrics[ACCURACY.name]
        records, strategy = self._store.records(), self._settings.strategy
        if is_silenced(line, records):
            line["silenced"] = True
            by_layer = self._settings.norm_cap_granularity is Granularity.LAYER
            text = silenced_text(
                current.number, strategy.rule, len(site.sources), filtered=strategy.filter, by_layer=by_layer
            )
            self._reporter.note(Note(text, "warning"))
        own = None
        if site.alone is not None and evaluation is not None and (rows := evaluation.by_row()) is not None:
            own = site.alone.rows_with(self._run_id.hex(), current.number, rows)
        result_model = None if self.kept is self.vector else self.vector
        self._store.finish_round(
            dict(line),
            self.kept,
            self._result_digest,
            self._server,
            kept,
            peaks=peaks,
            own=own,
            result_model=result_model,
        )
        self._reporter.round_finished(line)

    def _evaluate(self, number: int, rows: Samples) -> Evaluation:
        """Evaluate the model of a round, or the target's personal model if it has one."""
        site = self._site
        if site.personal is None:
            return site.trainer.evaluate(self.kept, rows)
        return site.personal.evaluate(self.kept, self._run_id.hex(), number, rows)
