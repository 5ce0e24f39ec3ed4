"""Training at the target: what it computes in a round, and publishes of that."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, TypeAlias

import numpy as np
import torch

from securefda.errors import TrainingError
from securefda.protocol.down_link import rounded
from securefda.protocol.encoding import ErrorUnits, Vector64, vector_to_wire
from securefda.protocol.messages import DownLink, FeatureTerms, Header, TargetTerms, Visibility
from securefda.protocol.secret import RandomBytes
from securefda.protocol.weighed_contribution import RoundTerms, evaluate_rule
from securefda.rules import (
    Contribution,
    Gain,
    RoundPlan,
    Rule,
    StepStatistics,
    TargetStatistics,
    Variance,
    attend,
    moments_length,
)
from securefda.training import FEWEST_TARGET_STEPS, LocalResult, PersonalMemory, Vector
from securefda.training.alignment import AlignmentRule
from securefda.training.head import HeadFitter
from securefda.training.memory import released_features_key
from securefda.training.model_features import ClusterGap
from securefda.training.personal import vector_from_bytes
from securefda.training.site_features import SiteFeatures
from securefda.training.trainer import Trainer


@dataclass(frozen=True, slots=True, repr=False)
class TargetRound:
    """The result of training at the target.

    Attributes:
        result: the update g_T, with its metrics.
        statistics: B, M and S_x; None if the rule does not need them.
        step_updates: the single steps, float32 (B, m); None if the rule does not need them.
    """

    result: LocalResult
    statistics: TargetStatistics | None
    step_updates: Any

    def with_update(self, update: Vector) -> TargetRound:
        """A copy with g_T replaced by ``update``, float32 (m,), and the mean square adjusted to agree with it."""
        if update is self.result.update:
            return self
        statistics = self.statistics
        if statistics is not None:
            scattered = statistics.scatter * (statistics.steps - 1) / statistics.steps
            squared = float(np.dot(update.astype(np.float64), update)) / statistics.steps**2
            statistics = replace(statistics, mean_square=squared + scattered)
        return replace(self, result=replace(self.result, update=update), statistics=statistics)


@dataclass(frozen=True, slots=True, repr=False)
class TargetAttention:
    """The gap statistic of the target's rows under a round's model, for rules with attention.

    Attributes:
        gap: the gap statistic of their features, in [0, 1].
        gap_gradient: its gradient with respect to the model, float32 (m,), rounded as it is sent.
        gain_of: gives the exact gain of an update, float (m,); None if gains are taken to first order.
    """

    gap: float
    gap_gradient: Vector
    gain_of: Callable[[Vector | Vector64], float] | None

    @classmethod
    def of(cls, seen: ClusterGap, plan: RoundPlan, down_link: DownLink) -> TargetAttention:
        """Round the gradient as it is sent, so that all levels compute gains from the same gradient."""
        gradient = rounded(seen.gradient, down_link, "the gradient of the gap")
        return cls(seen.gap, gradient, seen.gain_of if plan.attention_gain is Gain.EXACT else None)


@dataclass(frozen=True, slots=True)
class FeatureSettings:
    """How features of the target's rows are released, if its settings allow that.

    Attributes:
        rows: T, number of rows per round.
        clip: largest L2 norm of a row's features, 0 for no bound.
        noise: standard deviation of Gaussian noise on each number, in units of ``clip``; 0 for none.
        step: length of the target's own step relative to the sources' mean update, at least 0.
    """

    rows: int
    clip: float
    noise: float
    step: float


@dataclass(frozen=True, slots=True, repr=False)
class TargetFeatures:
    """Features of the target's rows for the sources to train with, and the target's own step along the pull.

    Attributes:
        values: float32 (T, d), as they are sent.
        gradient_of: maps a pull on them, float (T, d), to a gradient with respect to the model, float32 (m,).
        settings: how they were released.
        attention: the gap statistic of the rows; None unless the rule has attention.
    """

    values: Vector
    gradient_of: Callable[[Vector], Vector]
    settings: FeatureSettings
    attention: TargetAttention | None

    def followed(self, update: Vector64) -> Vector64:
        """The round's update of the model, float64 (m,), from the sources' mean, (m + T d,), and the target's own step.

        Only the target has the rows, so only it can move the model such that their features follow the pull (Eq. 5 of
        the paper). The length of the pull depends on how confident the sources' classifiers are, so the step's length
        is relative to the update.
        """
        size = update.size - self.values.size
        mean, pull = update[:size], update[size:].reshape(self.values.shape)
        gradient = self.gradient_of(pull.astype(np.float32)).astype(np.float64)
        length = float(np.linalg.norm(gradient))
        if length == 0.0:
            return mean
        return mean - gradient * (self.settings.step * float(np.linalg.norm(mean)) / length)


TargetOutput: TypeAlias = TargetRound | TargetAttention | TargetFeatures | HeadFitter
"""What the target has in a round: its update, features of its rows, or what fits a head once the sums are open."""

OutputFromFeatures: TypeAlias = Callable[[Vector, int, str, RoundPlan], TargetOutput]
"""Computes the output of a target without labels from a model, the number of the round, the run, and the plan."""

_ROUND = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class UnlabelledTarget:
    """A target that does not use labels: it computes its output from the features of its rows.

    Attributes:
        site_features: the features of its rows.
        attention_rows: how many are clustered at most.
        features: how features are released.
        down_link: the format in which vectors travel: all levels go by the same numbers.
        memory: keeps features that were released with noise, so that a round that is tried again, even by a process
            that was started again, releases the same: the mean of two draws would have less noise.
        random_bytes: of the noise. What training draws from would not do: where training is repeatable, everyone
            knows that seed, and could take the noise off.
    """

    site_features: SiteFeatures
    attention_rows: int
    features: FeatureSettings
    down_link: DownLink
    memory: PersonalMemory
    random_bytes: RandomBytes = field(repr=False)

    def require(self, rule: Rule) -> None:
        """Refuse rows or a model that the rule can make nothing of.

        Raises:
            TrainingError: the model has no features, or there are too few rows.
        """
        if rule.attends:
            self.site_features.require_clusters(self.attention_rows)
        if rule.releases_features:
            self.site_features.require_releasable(self.features.rows, AlignmentRule(rule.value))

    def output(self, model: Vector, round_number: int, run_id: str, plan: RoundPlan) -> TargetOutput:
        """Return the target's output of a round that begins with ``model``, float32 (m,).

        Raises:
            TrainingError: the rows cannot be clustered, or a feature is not finite.
        """
        if not plan.rule.releases_features:
            return self._attention(model, round_number, run_id, plan)
        attention = self._attention(model, round_number, run_id, plan) if plan.rule.attends else None
        how, place = self.features, (model, round_number, run_id)
        values = self.site_features.release(*place, rows=how.rows, clip=how.clip)
        if how.noise:
            values = self._with_noise(values, round_number, run_id)

        def gradient_of(pull: Vector) -> Vector:
            return self.site_features.pull_gradient(*place, pull, rows=how.rows)

        values = rounded(values, self.down_link, "the features of the target's rows")
        return TargetFeatures(values, gradient_of, how, attention)

    def _with_noise(self, values: Vector, round_number: int, run_id: str) -> Vector:
        """Features with the noise of this round; those that were released in it before, if any were."""
        place, label = released_features_key(run_id), _ROUND.pack(round_number)
        kept = self.memory.personal(place, round_number + 1)
        if kept is not None and kept.startswith(label):
            return vector_from_bytes(kept[_ROUND.size :], values.ravel()).reshape(values.shape)
        from securefda.privacy.noise import NoiseSource  # noqa: PLC0415 - it imports Opacus

        noise = NoiseSource(self.random_bytes)
        noisy = noise.added_to(torch.from_numpy(values), self.features.noise * self.features.clip).numpy()
        self.memory.keep_personal(place, round_number, label + vector_to_wire(noisy).tobytes())
        return noisy

    def _attention(self, model: Vector, round_number: int, run_id: str, plan: RoundPlan) -> TargetAttention:
        seen = self.site_features.cluster_gap(model, round_number, run_id, rows=self.attention_rows)
        return TargetAttention.of(seen, plan, self.down_link)


def summed_sizes(trainer: Trainer, output: TargetOutput | None) -> tuple[int, ...]:
    """Sizes of the layers that are summed: those of the model, and that of the pull or of the second moments."""
    if isinstance(output, HeadFitter):
        return (*trainer.sizes, moments_length(trainer.feature_width))
    return (*trainer.sizes, *((output.values.size,) if isinstance(output, TargetFeatures) else ()))


def attention_of(output: TargetOutput | None) -> TargetAttention | None:
    """The gap statistic of the target's rows; None unless the rule has attention."""
    if isinstance(output, TargetFeatures):
        return output.attention
    return output if isinstance(output, TargetAttention) else None


def published_vector(output: TargetOutput | None) -> Vector | None:
    """The vector that the target publishes to sources at ``sum``, float32 (m,): g_T or the gradient of the gap."""
    if isinstance(output, TargetRound):
        return output.result.update
    attention = attention_of(output)
    return None if attention is None else attention.gap_gradient


def vectors_for(output: TargetOutput | None, header: Header, level: Visibility) -> tuple[memoryview, ...]:
    """The vectors that the target sends beside the model to a source at this level, in the order of a header's parcel.

    Features go to every source; g_T and the gradient of the gap go to those at ``sum``.
    """
    features = (output.values,) if isinstance(output, TargetFeatures) and header.features is not None else ()
    published = published_vector(output) if header.published_digest and level is Visibility.SUM else None
    return tuple(vector_to_wire(one) for one in (*features, published) if one is not None)


def train_target(
    trainer: Trainer, model: Vector, round_number: int, plan: RoundPlan, *, run_id: str = "", attempt: int = 0
) -> TargetRound | None:
    """Train the target for a round, or return None where the round's rule uses nothing of it.

    Memory is O(m), but for a rule that needs every single step: that takes B vectors more. A ledger, where the target
    has one, notes run and attempt. With too few pseudo-labels that count there are no steps, and no statistics.

    Raises:
        TrainingError: fewer than two steps where the rule estimates a variance, or a loss that is not finite.
    """
    if not plan.trains_target:
        return None
    if not plan.uses_target_statistics:
        result = trainer.train(model, round_number, plan.learning_rate_factor, run_id=run_id, attempt=attempt)
        return TargetRound(result, None, None)
    running = StepStatistics(trainer.n_params)
    kept: list[Vector] = []

    def observe(step: Vector) -> None:
        running.add(step)
        if plan.needs_step_updates:
            kept.append(step.copy())

    result = trainer.train(
        model,
        round_number,
        plan.learning_rate_factor,
        run_id=run_id,
        attempt=attempt,
        fewest_steps=FEWEST_TARGET_STEPS,
        on_step=observe,
    )
    if result.steps == 0:
        return TargetRound(result, None, None)
    try:
        statistics = running.finish()
        if plan.variance is not Variance.STEPS:
            how = (model, round_number, plan.learning_rate_factor, plan.variance)
            statistics = statistics.with_mean_variance(trainer.step_variance(*how, run_id=run_id))
    except ValueError as error:
        raise TrainingError(f"target: {error}", hint="look at the target's data and learning rate") from None
    return TargetRound(result, statistics, np.stack(kept) if kept else None)


def error_units(target: TargetOutput | None, select: bool) -> ErrorUnits | None:
    """In what estimated errors travel; None where the round does not ask for them."""
    if not select or not isinstance(target, TargetRound) or target.statistics is None:
        return None
    return ErrorUnits.of(target.statistics)


def published_terms(target: TargetOutput | None, plan: RoundPlan, *, to_sources: bool) -> TargetTerms | None:
    """The header's terms of the target; None if the round needs nothing from it.

    ``to_sources`` says that sources evaluate the rule, at ``sum``: then g_T and its numbers are published.
    """
    if not isinstance(target, TargetRound) or target.statistics is None or not plan.uses_target_statistics:
        return None
    steps, learning_rate = target.result.steps, target.result.learning_rate
    if not to_sources:
        return TargetTerms(steps, learning_rate)
    statistics = target.statistics
    return TargetTerms(
        steps=steps,
        learning_rate=learning_rate,
        update_digest=sha256(vector_to_wire(target.result.update)).digest(),
        mean_square=statistics.mean_square,
        scatter=statistics.scatter,
    )


def gap_gradient_digest(target: TargetOutput | None, *, to_sources: bool) -> bytes:
    """Digest of the gradient of the gap for the header if sources at ``sum`` get it, else empty."""
    attention = attention_of(target)
    if attention is None or not to_sources:
        return b""
    return sha256(vector_to_wire(attention.gap_gradient)).digest()


def feature_terms(target: TargetOutput | None) -> FeatureTerms | None:
    """The header's terms of the features that come with it; None if there are none."""
    if not isinstance(target, TargetFeatures):
        return None
    rows, width = target.values.shape
    return FeatureTerms(rows, width, sha256(vector_to_wire(target.values)).digest())


def evaluate_at_target(
    terms: RoundTerms, target: TargetOutput | None, update: Vector | Vector64, alignment: float = 1.0
) -> Contribution:
    """Evaluate the round's rule on the aligned update of a source, or the mean of a cohort: (m,), or (m + T d,).

    ``alignment`` is as for :func:`securefda.rules.contribute`.

    Raises:
        ValueError: the update and the target's numbers contradict each other.
    """
    attention = attention_of(target)
    if attention is not None:
        gain = None if attention.gain_of is None else attention.gain_of(update[: attention.gap_gradient.size])
        return attend(terms.plan, attention.gap_gradient, update, gain=gain)
    if not isinstance(target, TargetRound):
        return evaluate_rule(terms, None, None, update)
    own = (target.statistics, target.result.update)
    return evaluate_rule(terms, *own, update, target.step_updates, alignment=alignment)
