"""A source's contribution from beginning to end, and the checks of opened sums that follow from it.

The order: align the update, evaluate the rule, clip; cap, add the target's part, which no cap scales, and clip again;
weigh, encode. A source computes its own contribution here. Where updates travel in clear, or as means of cohorts, the
aggregator evaluates the same rule with the same functions, so that every visibility gives the same model.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefda.errors import ConfigError, FaultyAggregatorError, TrainingDiverged, TrainingError
from securefda.protocol.encoding import (
    AggregateStatistics,
    ErrorUnits,
    Quantisation,
    Vector,
    Vector64,
    encode_statistics,
)
from securefda.protocol.masking import RingVector
from securefda.protocol.messages import AttentionTerms, Granularity, Header, RuleTerms, TargetTerms, Visibility
from securefda.protocol.secret import Secret
from securefda.rules import (
    Contribution,
    RoundPlan,
    TargetStatistics,
    alignment_factor,
    attend,
    caps_for,
    contribute,
    contribution_norms,
    norm_codes,
    norms_of,
    scale_to_caps,
    tightest,
)
from securefda.rules.attention import least_share
from securefda.rules.contribution import KEEP_TOLERANCE

StepUpdates = NDArray[np.float32]

MOST_CLIPPED = 8
"""At most one in so many coordinates of a layer can be at the clip or the range."""

LEAST_STEPS = 2.0
"""Smallest root mean square of a contribution's coordinates, in steps of the encoding, to count for the norm caps."""

_BLOCK = 1 << 16


# --- the header's terms -----------------------------------------------------------------------------------------------

_OF_A_RULE = tuple(field.name for field in fields(RuleTerms) if field.name != "attention")
"""Parameters that a header and a plan call alike."""


def terms_of(plan: RoundPlan) -> RuleTerms:
    """The header's form of a round's plan."""
    values: dict[str, Any] = {name: getattr(plan, name) for name in _OF_A_RULE}
    values |= {name: value.value for name, value in values.items() if isinstance(value, StrEnum)}
    attention = AttentionTerms(str(plan.attention_gain), plan.attention_temperature, plan.attention_bound)
    return RuleTerms(**values, attention=attention if plan.rule.attends else None)


def plan_of(terms: RuleTerms) -> RoundPlan:
    """The plan that a header asks for.

    Raises:
        FaultyAggregatorError: HEADER_RULE, a rule or a setting that does not exist.
    """
    attention = (
        {}
        if terms.attention is None
        else {f"attention_{name}": value for name, value in asdict(terms.attention).items()}
    )
    try:
        plan = RoundPlan(**{name: getattr(terms, name) for name in _OF_A_RULE}, **attention)
    except ValueError as error:
        raise FaultyAggregatorError("HEADER_RULE", str(error)) from None
    # For terms that are missing, the plan would have taken defaults that the target never signed.
    if plan.rule.attends != (terms.attention is not None):
        raise FaultyAggregatorError("HEADER_RULE", f"{plan.rule} with a share of attention, or without one")
    return plan


@dataclass(frozen=True, slots=True)
class RoundTerms:
    """The computation that a header asks for, parsed once.

    Attributes:
        header: the header itself.
        plan: the rule of the round.
        sizes: of the layers, in the order of the flat vector.
        encoding: of the vectors that are summed.
    """

    header: Header
    plan: RoundPlan
    sizes: tuple[int, ...]
    encoding: Quantisation

    @classmethod
    def of(cls, header: Header, encoding: Quantisation) -> RoundTerms:
        """Parse a header; ``encoding`` is its :func:`securefda.protocol.header_checks.quantisation`.

        Raises:
            FaultyAggregatorError: HEADER_RULE, a rule or a setting that does not exist.
        """
        return cls(header, plan_of(header.rule), tuple(layer.size for layer in header.layers), encoding)

    def error_units(self) -> ErrorUnits | None:
        """The units in which estimated errors are encoded; None if the header asks for none.

        Raises:
            ValueError: the published numbers contradict each other.
        """
        target = self.header.target
        return ErrorUnits.of(published_statistics(target)) if self.plan.select and target else None


def published_statistics(target: TargetTerms) -> TargetStatistics:
    """The statistics of the target's steps that a header publishes.

    Raises:
        ValueError: the numbers contradict each other.
    """
    return TargetStatistics(target.steps, target.mean_square, target.scatter)


# --- align and evaluate -----------------------------------------------------------------------------------------------


def alignment_of(header: Header, *, steps: int, learning_rate: float) -> float:
    """The factor that aligns a source's update with the target's schedule; 1 if the header has no target terms.

    Args:
        header: of the attempt.
        steps: number of steps from which the update came.
        learning_rate: the effective learning rate of those steps.

    Raises:
        FaultyAggregatorError: HEADER_TARGET, the published numbers give no valid factor.
    """
    target = header.target
    if target is None:
        return 1.0
    ratio = target.learning_rate / learning_rate
    try:
        return alignment_factor(target_steps=target.steps, source_steps=steps, learning_rate_ratio=ratio)
    except ValueError as error:
        raise FaultyAggregatorError("HEADER_TARGET", str(error)) from None


def aligned_update(header: Header, update: Vector, factor: float) -> Vector:
    """Scale a source's update to the target's schedule of steps and learning rate; returns float32 (m,).

    If the rule does not align, or the header has no target terms, the update stays as it is. A source_only round that
    was chosen by estimated errors has target terms, so it averages aligned updates.

    The result is rounded to float32 at every visibility, whoever evaluates the rule, so that the model is the same to
    the last bit. And the number of steps need not leave the source if the aggregator evaluates the rule, unless it has
    to align what it estimates, see :attr:`securefda.rules.RoundPlan.aligns_estimates_only`.

    Args:
        header: of the attempt.
        update: float32 (m,).
        factor: from :func:`alignment_of`.

    Raises:
        TrainingDiverged: the update itself holds NaN or infinity.
        FaultyAggregatorError: HEADER_TARGET, an update beyond float32.
    """
    # Before the factor is applied: what is not finite by now is this site's own
    # trouble, and must not accuse the target.
    if not np.all(np.isfinite(update)):
        raise TrainingDiverged("training diverges: the update holds NaN or infinity", hint=_LOWER_RATE)
    if header.target is None or not header.rule.align:
        return update
    with np.errstate(over="ignore", invalid="ignore"):
        aligned: Vector = np.multiply(update, np.float32(factor))
    if not np.all(np.isfinite(aligned)):
        raise FaultyAggregatorError("HEADER_TARGET", "an update aligned with it is beyond float32")
    return aligned


def aligned_variance(header: Header, variance: float, factor: float) -> float:
    """The noise variance of each coordinate of an update after :func:`aligned_update`."""
    return factor**2 * variance if header.rule.align else variance


def alignment_share(factor: float) -> float:
    """A factor of alignment as a share in (0, 1), in which form a cohort sums it: ``factor / (1 + factor)``."""
    return factor / (1.0 + factor)


def alignment_of_share(share: float) -> float:
    """The factor that a share stands for; for the weighted mean of several shares, one factor for their cohort.

    Raises:
        FaultySum: there is no such factor.
    """
    if not 0.0 < share < 1.0:
        raise FaultySum("the alignment of a cohort is none that its members can have")
    return share / (1.0 - share)


def evaluate_rule(
    terms: RoundTerms,
    statistics: TargetStatistics | None,
    published: Vector | None,
    update: Vector | Vector64,
    step_updates: StepUpdates | None = None,
    *,
    alignment: float = 1.0,
    noise_variance: float = 0.0,
    apart: bool = False,
) -> Contribution:
    """Evaluate the round's rule on the aligned update of one source, or on the mean of a cohort, (m,).

    Sources and the aggregator make the same call.

    Args:
        terms: of the attempt.
        statistics: of the target's steps; None if the rule uses none.
        published: g_T or the gradient of the gap, (m,), depending on the rule.
        update: the aligned update.
        step_updates: the target's single steps, (B, m), for rules that need them.
        alignment, noise_variance, apart: as for `contribute`.

    Raises:
        ValueError: the arguments contradict each other; the message names one.
    """
    if terms.plan.rule.attends:
        return attend(terms.plan, published, update)
    return contribute(
        terms.plan,
        statistics,
        published,
        update,
        layers=terms.sizes,
        step_updates=step_updates,
        alignment=alignment,
        noise_variance=noise_variance,
        apart=apart,
    )


def contribution_at_source(
    terms: RoundTerms,
    level: Visibility,
    published: Vector | None,
    update: Vector,
    *,
    alignment: float = 1.0,
    noise_variance: float = 0.0,
) -> Contribution:
    """What a source adds to the sum, computed from its aligned update, float32 (m,).

    At ``sum``, the source evaluates the rule itself with the published numbers. At ``cohort``, it adds the update as it
    is, and the aggregator evaluates the rule on the mean of each cohort. Under norm caps, the target's part is kept
    apart until the caps have been applied, see :meth:`WeighedContribution.capped`. ``alignment`` is the factor by
    which the update is still to be aligned for estimates, 1 unless ``plan.aligns_estimates_only``; a cohort sums it
    where others sum the share of the target's update. ``noise_variance`` is the noise in each coordinate of the update,
    for which the projection is corrected; 0 for no correction.

    Raises:
        FaultyAggregatorError: HEADER_TARGET, the published numbers contradict each other or the published update.
    """
    target = terms.header.target
    try:
        terms.error_units()  # raises now what the encoding would raise later, at every level
        if level is Visibility.COHORT:
            share = alignment_share(alignment) if terms.plan.aligns_estimates_only else 0.0
            return Contribution(vector=update.astype(np.float64), keep=share, beta=None)
        statistics = published_statistics(target) if target else None
        apart = is_capped(terms.header, level)
        return evaluate_rule(
            terms, statistics, published, update, alignment=alignment, noise_variance=noise_variance, apart=apart
        )
    except ValueError as error:
        raise FaultyAggregatorError("HEADER_TARGET", str(error)) from None


# --- the pull on the target's features --------------------------------------------------------------------------------


def with_pull(header: Header, update: Vector, pull: Vector | None) -> Vector:
    """Append the pull to the update under a rule that compares features; returns float32 (m + T d,).

    Each row of the pull is scaled to a norm of at most its layer's clip. Its norm carries no meaning, as it depends on
    how confident a source's domain classifier is, whereas clipping by coordinate would change its direction.

    Args:
        header: of the attempt.
        update: float32 (m,).
        pull: float32 (T, d); None under other rules, which take the update as it is.

    Raises:
        TrainingError: training gave no pull, one of another shape, or one with NaN or infinity.
    """
    if header.features is None:
        return update
    shape = (header.features.rows, header.features.width)
    if pull is None or pull.shape != shape:
        raise TrainingError(f"training gave no pull of {shape[0]} x {shape[1]} on the target's features")
    if not np.all(np.isfinite(pull)):
        raise TrainingError("the pull on the target's features holds NaN or infinity", hint=_LOWER_RATE)
    lengths = np.linalg.norm(pull.astype(np.float64), axis=1, keepdims=True)
    bounded = pull * np.minimum(1.0, header.layers[-1].clip / np.maximum(lengths, _LEAST_LENGTH))
    return np.concatenate([update, bounded.astype(np.float32).ravel()])


_LEAST_LENGTH = 1e-30  # against a division by zero
_LOWER_RATE = "lower training.learning-rate at this site"


# --- clip -------------------------------------------------------------------------------------------------------------


def clip_contribution(header: Header, contribution: Contribution, weight: float | None = None) -> tuple[int, ...]:
    """Clip a contribution in place to the header's bounds; returns how many coordinates of each layer changed.

    The clip is the same at every visibility, so that levels differ in what is seen and not in what is computed.

    Args:
        header: of the attempt.
        contribution: v_i.
        weight: with which it will be encoded, to keep the weighted coordinates within the ranges, too. None if it is
            not encoded in this form: the mean of a cohort, or a contribution that norm caps are still to scale down.
    """
    start, clipped = 0, []
    for layer in header.layers:
        # A weighted coordinate beyond the range would be clipped by the encoding, and nobody would count it.
        bound = layer.clip if weight is None else min(layer.clip, layer.range / weight)
        values, count = contribution.vector[start : start + layer.size], 0
        for first in range(0, values.size, _BLOCK):  # whole layers at once would take as much memory again
            block = values[first : first + _BLOCK]
            outside = int(np.count_nonzero(np.abs(block) > bound))
            if outside:
                np.clip(block, -bound, bound, out=block)
                count += outside
        clipped.append(count)
        start += layer.size
    return tuple(clipped)


def require_few_at_the_clip(header: Header, clipped: Iterable[int]) -> None:
    """Refuse to release a layer if more than one coordinate in eight is at the clip or at the range.

    If all sources are at the clip, the sum consists of signs weighted by rows, which tells the sites apart. If all are
    at the range, the sum counts signs, and a unanimous coordinate reveals the sign of each source.

    Args:
        header: of the attempt; the aggregator chooses its clips and ranges, layer by layer.
        clipped: from :func:`clip_contribution`.

    Raises:
        FaultyAggregatorError: CLIPPED, which blames nobody: the cause is a small clip or a large update.
    """
    for layer, count in zip(header.layers, clipped, strict=True):
        # One is always allowed. In a layer of fewer than eight parameters a single
        # large one would cost the round otherwise.
        if count > max(1, layer.size // MOST_CLIPPED):
            what = f"{count} of {layer.size} coordinates of layer {layer.name} are as large as the header lets them be"
            error = FaultyAggregatorError("CLIPPED", what, blames=False)
            error.hint = "ask the target for a larger session.clip, or train with a lower learning rate"
            raise error


# --- cap --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, repr=False)
class NormReport:
    """Norms of a contribution: ``exact``, float64, stay at the source; the other sources see the ``codes``."""

    exact: Vector64
    codes: bytes


@dataclass(frozen=True, slots=True)
class AppliedCaps:
    """Effect of the norm caps on a source's own contribution.

    Attributes:
        layers: number of groups that have a cap, each a layer or the whole model.
        caps: SHA-256 of the caps, in hex.
        capped: number of groups that were scaled down.
        zeroed: number of groups that were set to zero.
    """

    layers: int
    caps: str
    capped: int
    zeroed: int


def is_capped(header: Header, level: Visibility) -> bool:
    """Whether sources at this level report norms and scale their contributions down to the caps."""
    return header.norm_cap is not None and level is Visibility.SUM


def norm_report(terms: RoundTerms, contribution: Contribution, weight: float) -> NormReport:
    """The norm report of a source whose contribution will be capped.

    Args:
        terms: of the attempt, which has a norm cap.
        contribution: of this source, clipped.
        weight: with which it will be encoded.

    Raises:
        FaultyAggregatorError: HEADER_NORM_CAP, the header's clips allow a norm beyond float32.
    """
    sizes, limits = _capped_groups(terms)
    try:
        exact = contribution_norms(contribution.vector, sizes, weight)
    except ValueError as error:
        raise FaultyAggregatorError("HEADER_NORM_CAP", str(error)) from None
    return NormReport(exact, norm_codes(exact, sizes, limits))


def apply_caps(
    terms: RoundTerms, own: NormReport | None, reports: Mapping[int, bytes], contribution: Contribution
) -> AppliedCaps | None:
    """Scale a source's contribution in place to the caps; returns None without a norm cap.

    The caps must bound the contributions as they are after rounding to the ring, and the aggregator chooses the steps
    of that rounding. If a contribution is short compared with the steps, chance decides what is left of it: one with
    few large coordinates could remain alone in the sum although all norms were alike. So a norm below a floor counts as
    zero. If too many are below it, the cap is zero: the contribution is set to zero, and the source still sends a
    masked input. A norm above the floor keeps more than half of its size whatever the rounding draws.

    Args:
        terms: of the attempt.
        own: report of this source.
        reports: codes of all sources that have shared keys, by roster index, including this one.
        contribution: of this source, clipped.
    """
    norm_cap = terms.header.norm_cap
    if own is None or norm_cap is None:
        return None
    sizes, limits = _capped_groups(terms)
    steps = (terms.encoding.step(number) for number in range(len(terms.sizes)))
    floors = [LEAST_STEPS * step * math.sqrt(size) for step, size in zip(steps, terms.sizes, strict=True)]
    floor = np.array([math.hypot(*floors)] if norm_cap.granularity is Granularity.MODEL else floors)
    # From the codes, also for its own: all sources compute the same caps from the same numbers.
    norms = np.array([norms_of(codes, sizes, limits) for codes in reports.values()])
    caps = caps_for(np.where(norms < floor, 0.0, norms), kappa=norm_cap.kappa, others=norm_cap.others)
    # Moments get one factor, or A and B would weigh the same rows differently.
    applied = tightest(own.exact, caps) if terms.plan.rule.adds_moments else caps
    effect = scale_to_caps(contribution.vector, sizes, own.exact, applied)
    digest = sha256(caps.astype("<f8").tobytes()).hexdigest()
    return AppliedCaps(len(caps), digest, len(effect.capped), len(effect.zeroed))


def _capped_groups(terms: RoundTerms) -> tuple[list[int], Vector64]:
    """Sizes of the groups that have a cap, layers or the whole model, and the largest norm that the clips allow."""
    squares = [layer.clip**2 * layer.size for layer in terms.header.layers]
    if terms.header.norm_cap is not None and terms.header.norm_cap.granularity is Granularity.MODEL:
        return [terms.header.n_summed], np.sqrt([math.fsum(squares)])
    return list(terms.sizes), np.sqrt(squares)


# --- weigh and encode -------------------------------------------------------------------------------------------------


def weight_of(header: Header, samples: int) -> float:
    """A site's weight in a sum: its rows in units of the header's ``max_samples``.

    Raises:
        ConfigError: this site has more rows than the run allows for.
    """
    if samples > header.max_samples:
        # Not cut off at 1: the sum would count fewer rows than it is made of.
        raise ConfigError(
            "session.max-samples",
            f"this site has {samples} training rows and the run counts up to {header.max_samples}",
            hint="raise session.max-samples at the aggregator",
        )
    return samples / header.max_samples


@dataclass(frozen=True, slots=True)
class Metrics:
    """Mean loss and accuracy over a source's training rows; None for a task without accuracy."""

    loss: float
    accuracy: float | None


def metrics_of(header: Header, loss: float | None, accuracy: float | None) -> Metrics | None:
    """The training metrics that a source adds to the sum; None if the header asks for none.

    Raises:
        TrainingError: the header asks for metrics, and training gave none.
    """
    if not header.metrics:
        return None
    if loss is None:
        raise TrainingError("training gave no loss", hint="this site's Join must not promise it")
    return Metrics(loss, accuracy)


@dataclass(frozen=True, slots=True, repr=False)
class WeighedContribution:
    """A source's contribution to the sum, from its evaluation to the vector that is summed, stage by stage.

    :meth:`clipped` makes it, :meth:`capped` scales it to the norm caps, once all norm reports are there, and
    :meth:`encoded` ends it. The aggregator takes the first and the last stage for an update in clear. The vector is
    changed in place.

    Attributes:
        terms: of the round.
        contribution: v_i, clipped, and its share of the target's update.
        statistics: that travel behind the vector, weighted.
        at_bounds: number of coordinates of each layer that a bound has changed.
        report: its norm report; None without norm caps.
        rounding: key of the random rounding, of the source for this round.
        caps: the effect of the norm caps; None without them, and before.
    """

    terms: RoundTerms
    contribution: Contribution
    statistics: AggregateStatistics
    at_bounds: tuple[int, ...]
    report: NormReport | None
    rounding: Secret
    caps: AppliedCaps | None = None

    @classmethod
    def clipped(
        cls,
        terms: RoundTerms,
        level: Visibility,
        contribution: Contribution,
        samples: int,
        *,
        rounding: Secret,
        metrics: Metrics | None = None,
    ) -> WeighedContribution:
        """Weigh a contribution by the source's rows, clip it, and report its norms where caps will need them.

        Raises:
            ConfigError: this site has more rows than the run allows for.
            FaultyAggregatorError: HEADER_NORM_CAP.
        """
        header, weight = terms.header, weight_of(terms.header, samples)
        has_caps = is_capped(header, level)  # the ranges of the encoding are made for capped contributions
        at_bounds = clip_contribution(header, contribution, None if has_caps else weight)
        report = norm_report(terms, contribution, weight) if has_caps else None
        errors = None if contribution.errors is None else contribution.errors.times(weight)
        # Zeros where there is nothing to report: all inputs of a session are equally long (T18).
        loss, accuracy = (metrics.loss, metrics.accuracy or 0.0) if metrics else (0.0, 0.0)
        statistics = AggregateStatistics(weight * contribution.keep, weight, weight * loss, weight * accuracy, errors)
        return cls(terms, contribution, statistics, at_bounds, report, rounding)

    def capped(self, reports: Mapping[int, bytes]) -> WeighedContribution:
        """Scale it to the caps that follow from all reports, add the target's part, and clip. Without caps, only add.

        Raises:
            FaultyAggregatorError: CLIPPED, too many coordinates are beyond the ranges.
        """
        applied = apply_caps(self.terms, self.report, reports, self.contribution)
        # Only after the caps. What the target knows of its own update counts for no cap and hides nobody (T22).
        contribution = self.contribution.whole()
        if applied is None:
            return replace(self, contribution=contribution)
        beyond = clip_contribution(self.terms.header, contribution, self.statistics.weight)
        # After the caps, since ranges come from sums of capped parts (decision 0024).
        # The refusal answers a ShareDelivery.
        require_few_at_the_clip(self.terms.header, beyond)
        # A layer's largest coordinates are those at its clip; any beyond the range are among them. So: max, not a sum.
        at_bounds = tuple(map(max, self.at_bounds, beyond))
        return replace(self, contribution=contribution, at_bounds=at_bounds, caps=applied)

    def encoded(self, units: ErrorUnits | None) -> RingVector:
        """The ring vector, weighted by samples; the key of the rounding is erased.

        ``units`` are those of estimated errors. A source has them from the header; the aggregator has its own, since no
        header publishes them where no source is at ``sum``.
        """
        vector = self.contribution.vector
        # In place: another vector of the length of the model would be most of the memory of this step.
        np.multiply(vector, self.statistics.weight, out=vector)
        encoded = self.terms.encoding.encode(vector, self.rounding, encode_statistics(self.statistics, units))
        # With the key, the aggregator could name the source behind a sum of few steps (decision 0024).
        self.rounding.erase()
        return encoded


class FaultySum(ValueError):
    """Honest contributions cannot give this sum. The masks hide which source is to blame."""


def check_sum(terms: RoundTerms, total: Vector64, samples: float, count: int) -> None:
    """Refuse an opened sum that honest contributions cannot give: any coordinate of V beyond n times the clip.

    Without this check, a source that lies about its weight could shrink n, the divisor of the whole sum, and so push
    the round's update arbitrarily far beyond the clip.

    Args:
        terms: of the attempt.
        total: V in units of the header's ``max_samples``, float64 (m,).
        samples: n in the same units.
        count: number of sources in the sum.

    Raises:
        FaultySum: the sum is beyond the clip; the message names the layer.
    """
    of_weights = count / terms.encoding.statistic_q_max  # rounding: at most one step per weight, and one per coordinate
    start = 0
    for number, layer in enumerate(terms.header.layers):
        values = total[start : start + layer.size]
        most = layer.clip * (samples + of_weights) + count * terms.encoding.step(number)
        if max(float(values.max()), -float(values.min())) > most:
            raise FaultySum(f"the sum of layer {layer.name} is beyond the clip at the weight that came with it")
        start += layer.size


def check_kept(plan: RoundPlan, kept: float, samples: float) -> None:
    """Refuse a sum whose weight w of the target's update lies outside [0, n].

    Under a rule with attention, w is the sum of the attention shares and divides the sum, so it has a lower bound as
    well: otherwise a source that lies about its share could make the round's update arbitrarily long.

    Args:
        plan: the rule of the round.
        kept: w of the rules, in units of the header's ``max_samples``.
        samples: n, in the same units.

    Raises:
        FaultySum: w is out of its bounds.
    """
    slack = KEEP_TOLERANCE * samples
    if plan.rule.attends:
        if not least_share(plan.attention_bound) * samples - slack <= kept <= samples + slack or not kept > 0:
            raise FaultySum("the shares of attention are more or less than the bound lets them be")
    elif not -slack <= kept <= samples + slack:
        raise FaultySum("the target's update is kept for more samples than there are, or for fewer than none")
