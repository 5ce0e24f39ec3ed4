"""One source's contribution to a round, and the round's update from the sum of all contributions.

Every rule here is ``sum_i n_i (keep_i g_T + v_i) / n`` with ``n = sum_i n_i``: a source contributes a vector v_i and
the share keep_i in [0, 1] with which the target's update g_T counts beside it. The target needs only three sums:
V = sum n_i v_i, w = sum n_i keep_i, and n. A source whose v_i then travels masked and an aggregator that is permitted
to see the updates therefore both call `contribute`. A rule with attention has no g_T: v_i is the update times the
source's share of attention, keep_i is that share, and the mean is V / w; see `attend`.

FedDA and FedGP as functions of all updates at once (Definitions 4.1 and 4.3 of the paper) are such sums as well. The
filter of FedGP leaves out a source that points against the target:

    >>> target = np.array([1.0, 1.0])
    >>> sources = np.array([[2.0, 0.0], [-1.0, -1.0]])
    >>> fedda(target, sources, beta=0.5)
    array([0.75, 0.25])
    >>> fedgp(target, sources, beta=0.5)
    array([0.75, 0.5 ])
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from securefda.rules import checks
from securefda.rules.attention import attention_share
from securefda.rules.beta import source_beta
from securefda.rules.blocks import Reals, Vector, add_scaled
from securefda.rules.comparison import Comparison, compare
from securefda.rules.gap import first_order_gain
from securefda.rules.projection import (
    SMALLEST_SQUARED_NORM,
    Products,
    Projection,
    layer_multiples,
    scale_layers,
    without_noise,
)
from securefda.rules.selection import DeltaErrors, source_errors, sum_of_errors
from securefda.rules.statistics import TargetStatistics
from securefda.rules.strategy import OF_A_WHOLE_RUN, RoundPlan, Rule

KEEP_TOLERANCE = 1e-3
"""How far, relative to n, the sum w can lie outside [0, n] because of fixed-point rounding."""


@dataclass(frozen=True, slots=True, eq=False)
class Contribution:
    """A source's contribution to a round. It is as private as the update behind it, so its repr is empty.

    Attributes:
        vector: v_i, float64 ``(n_params,)``; without ``shift``, where that is kept apart.
        keep: share with which the target's update counts, in [0, 1]; under a rule with attention, the attention share.
        beta: weight of the source in [0, 1], for its own report; None for a rule without beta.
        errors: estimated errors of the rules to choose from; None if the plan does not select a rule.
        shift: the part of v_i that is a multiple of the target's update in each layer, float64 ``(n_params,)``; None
            if there is none, or ``vector`` has it.
    """

    vector: Vector = field(repr=False)
    keep: float = field(repr=False)
    beta: float | None = field(repr=False)
    errors: DeltaErrors | None = field(default=None, repr=False)
    shift: Vector | None = field(default=None, repr=False)

    def whole(self) -> Contribution:
        """Return the contribution with its shift in its vector, which is changed in place."""
        if self.shift is None:
            return self
        add_scaled(self.vector, self.shift, 1.0)
        return replace(self, shift=None)


class ContributionSum:
    """Running weighted sum of contributions, in O(n_params) memory: V, w and n."""

    __slots__ = ("_kept", "_samples", "_vector")

    def __init__(self, size: int) -> None:
        """Start from zero; ``size`` is n_params."""
        self._vector = np.zeros(checks.whole_number("size", size, least=1))
        self._kept = 0.0
        self._samples = 0.0

    def add(self, contribution: Contribution, samples: float) -> None:
        """Add a contribution ``samples`` times.

        Raises:
            ValueError: ``samples`` is negative or not finite, or the vector has another length; nothing was added.
        """
        weight = checks.number_between("samples", samples, 0, math.inf)
        if contribution.vector.shape != self._vector.shape:
            raise ValueError(f"contribution: must have {self._vector.size} elements, has {contribution.vector.size}")
        add_scaled(self._vector, contribution.vector, weight)
        self._kept += weight * contribution.keep
        self._samples += weight

    def add_sum(self, vector: Vector, kept: float, samples: float) -> None:
        """Add the V, w and n of other sources, summed already.

        Raises:
            ValueError: the vector has another length; nothing was added.
        """
        if vector.shape != self._vector.shape:
            raise ValueError(f"vector: must have {self._vector.size} elements, has {vector.size}")
        self._vector += vector
        self._kept += kept
        self._samples += samples

    @property
    def vector(self) -> Vector:
        """V = sum n_i v_i, float64 ``(n_params,)``: the sum itself, not a copy."""
        return self._vector

    @property
    def kept(self) -> float:
        """Weight w = sum n_i keep_i of the target's update."""
        return self._kept

    @property
    def samples(self) -> float:
        """Total n = sum n_i."""
        return self._samples

    def combine(
        self, rule: Rule, target_update: npt.ArrayLike | None = None, *, target_samples: float | None = None
    ) -> Vector:
        """Return the round's update from this sum, see `combine`."""
        return combine(
            rule, self._vector, self._kept, self._samples, target_update=target_update, target_samples=target_samples
        )


def contribute(
    plan: RoundPlan,
    statistics: TargetStatistics | None,
    target_update: npt.ArrayLike | None,
    source_update: npt.ArrayLike,
    *,
    layers: Sequence[int] | None = None,
    step_updates: npt.ArrayLike | None = None,
    alignment: float = 1.0,
    noise_variance: float = 0.0,
    apart: bool = False,
) -> Contribution:
    """Evaluate a round's rule for one source.

    Besides its result it needs memory for a few blocks of 8192 numbers, whatever the size of the model.

    If the plan selects a rule, the contribution carries estimated errors as well. The vector of a source_only round is
    the update itself; that of a target_only round is zero.

    Args:
        plan: the round's rule and its parameters; target_only is valid only for a plan that selects.
        statistics: of the target's steps in the round; can be None if ``plan.uses_target_statistics`` is false.
        target_update: g_T, the target's update of the round, ``(n_params,)``; None as for ``statistics``.
        source_update: g_i, the source's update, ``(n_params,)``; aligned (`align_update`) if the plan aligns.
        layers: sizes that sum to n_params; None is one layer.
        step_updates: the target's single steps ``(B, n_params)``, only where ``plan.needs_step_updates``.
        alignment: factor by which ``source_update`` is aligned for auto-beta and for estimated errors only, where the
            plan averages it as it is; 1 if the plan aligns.
        noise_variance: variance of the noise in each coordinate of ``source_update``, for which the projection is
            corrected; 0 for no correction. Beta and the estimated errors are never corrected.
        apart: keep the target's part of the contribution in its ``shift``: norm caps must not count what the target
            knows.

    Returns:
        The source's contribution, not yet weighted by its number of samples.

    Raises:
        ValueError: an argument is missing, has a wrong shape or value, is not finite, or contradicts another; the
            message starts with the argument's name.
    """
    source = checks.vector("source_update", source_update)
    sizes = checks.layer_sizes(layers, source.size)
    if not plan.needs_sources:
        raise ValueError(f"plan: no source takes part in a {plan.rule} round")
    if not plan.uses_target_statistics:
        return Contribution(vector=source.astype(np.float64), keep=0.0, beta=None)
    comparison = compare(
        plan,
        statistics,
        target_update,
        source,
        sizes,
        step_updates=step_updates,
        alignment=alignment,
    )
    parts = comparison.by_layer(sizes) if plan.beta_per_layer else [comparison]
    errors = sum_of_errors(source_errors(part, plan.estimator) for part in parts) if plan.select else None
    if plan.rule is Rule.TARGET_ONLY:
        return Contribution(vector=np.zeros(source.size), keep=1.0, beta=None, errors=errors)
    if not plan.rule.adapts:
        return Contribution(vector=source.astype(np.float64), keep=0.0, beta=None, errors=errors)
    projected = without_noise(comparison.products, sizes, noise_variance)
    if plan.rule.beta_rule is None:
        weighted = weighted_update(plan, source, sizes, products=projected, beta=plan.beta)
        return replace(weighted, errors=errors)
    betas = [
        source_beta(plan.rule.beta_rule, plan.estimator, part.statistics, part.geometry, part.along) for part in parts
    ]
    if plan.beta_per_layer:
        corrected = replace(comparison, products=projected)
        weighted = weighted_by_layer(plan, corrected, source, sizes, np.array(betas))
    else:
        weighted = weighted_update(plan, source, sizes, products=projected, beta=betas[0])
    weighted = replace(weighted, errors=errors)
    return weighted if apart else weighted.whole()


def attend(
    plan: RoundPlan, gap_gradient: npt.ArrayLike | None, source_update: npt.ArrayLike, *, gain: float | None = None
) -> Contribution:
    """Evaluate a rule with attention for one source.

    Its vector is the update times its attention share s_i, and ``keep`` is s_i. So V = sum n_i s_i g_i divided by
    w = sum n_i s_i is a mean weighted by samples and attention.

    Args:
        plan: the round's rule.
        gap_gradient: gradient of the gap statistic with respect to the model, ``(n_params,)``; unused with ``gain``.
        source_update: g_i, the source's update, ``(n_params,)``. Elements beyond n_params get the same share and do not
            count for the gain.
        gain: by how much the update lowers the gap statistic; None: the first-order estimate from ``gap_gradient``.

    Raises:
        ValueError: an argument is missing, has a wrong shape, or is not finite; the message starts with its name.
    """
    source = checks.vector("source_update", source_update)
    if gain is None:
        if gap_gradient is None:
            raise ValueError(f"gap_gradient: {plan.rule} needs it")
        gradient = checks.vector("gap_gradient", gap_gradient)
        gain = first_order_gain(gradient, source[: gradient.size])
    share = attention_share(gain, temperature=plan.attention_temperature, bound=plan.attention_bound)
    return Contribution(vector=np.multiply(source, share, dtype=np.float64), keep=share, beta=None)


def weighted_update(
    plan: RoundPlan,
    source: Reals,
    sizes: Sequence[int],
    *,
    products: Products,
    beta: float,
) -> Contribution:
    """Return a source's contribution to a FedDA or FedGP round for a given beta.

    Args:
        plan: the round's rule and its parameters.
        source: the source's update, ``(n_params,)``.
        sizes: the layers' sizes, which sum to n_params.
        products: of the target's update and ``source``.
        beta: in [0, 1].
    """
    if plan.rule.projects:
        multiples = layer_multiples(products, plan.projection, negative=not plan.filter)
    else:
        multiples = np.ones(len(sizes))
    vector = scale_layers(source, sizes, multiples * beta)
    return Contribution(vector=vector, keep=1.0 - beta, beta=beta)


def weighted_by_layer(
    plan: RoundPlan, comparison: Comparison, source: Reals, sizes: Sequence[int], betas: Vector
) -> Contribution:
    """Return a source's contribution to a FedDA or FedGP round with one beta per layer.

    There is only one share of the target's update for all layers, 1 - beta. The contribution makes up the difference in
    each layer: ``beta_l P(g_T | g_i) + (beta - beta_l) g_T``, of which the second term is the shift. Beta is the mean
    of the betas weighted by the squared norm of g_T in each layer, which minimises that term.

    Args:
        plan, source, sizes: as for `weighted_update`.
        comparison: of the target's update and ``source``.
        betas: of each layer, in [0, 1], ``(n_layers,)``.
    """
    products, lengths = comparison.products, comparison.products.target_squared
    total = float(lengths.sum())
    beta = float(np.dot(lengths, betas)) / total if total > SMALLEST_SQUARED_NORM else float(betas.mean())
    beta = min(max(beta, 0.0), 1.0)  # rounding
    multiples = layer_multiples(products, plan.projection, negative=not plan.filter) if plan.rule.projects else 1.0
    vector = scale_layers(source, sizes, multiples * betas)
    shift = scale_layers(comparison.target, sizes, beta - betas)
    return Contribution(vector=vector, keep=1.0 - beta, beta=beta, shift=shift)


def combine(
    rule: Rule,
    weighted_sum: npt.ArrayLike,
    kept: float,
    samples: float,
    *,
    target_update: npt.ArrayLike | None = None,
    target_samples: float | None = None,
) -> Vector:
    """Return the round's update of the model from the sums over all sources.

    Args:
        rule: the round's rule, not the strategy of a whole run.
        weighted_sum: V = sum n_i v_i, ``(n_params,)``.
        kept: w = sum n_i keep_i.
        samples: n = sum n_i, positive.
        target_update: g_T, ``(n_params,)``; not needed for a mean of the sources alone, nor with attention.
        target_samples: n_T, the target's number of samples; only for fedavg.

    Returns:
        Float64 ``(n_params,)``: (w g_T + V) / n; for fedavg (n_T g_T + V) / (n_T + n); for a mean of the sources alone
        V / n; with attention V / w; for target_only g_T itself.

    Raises:
        ValueError: an argument is missing or out of its range; the message starts with its name.
    """
    if rule in OF_A_WHOLE_RUN:
        raise ValueError(f"rule: {rule} is a strategy of a whole run, no rule of a sum")
    total = checks.vector("weighted_sum", weighted_sum)
    count = checks.number_between("samples", samples, 0, math.inf, open_below=True)
    slack = KEEP_TOLERANCE * count
    target_weight = checks.number_between("kept", kept, -slack, count + slack)
    if rule.is_mean_of_sources:
        return np.divide(total, count, dtype=np.float64)
    if rule.attends:
        if not target_weight > 0:
            raise ValueError(f"kept: must be above 0 under {rule}, is {target_weight:g}")
        return np.divide(total, target_weight, dtype=np.float64)
    if target_update is None:
        raise ValueError(f"target_update: {rule} needs it")
    target = checks.vector("target_update", target_update, size=total.size)
    if rule is Rule.TARGET_ONLY:
        return target.astype(np.float64)
    if rule is Rule.FEDAVG:
        target_weight = checks.number_between("target_samples", target_samples, 0, math.inf)
        count += target_weight
    update = np.divide(total, count, dtype=np.float64)
    add_scaled(update, target, target_weight / count)
    return update


# --- all updates at once ----------------------------------------------------------------------------------------------


def fedda(
    target: npt.ArrayLike, sources: npt.ArrayLike, beta: npt.ArrayLike, weights: npt.ArrayLike | None = None
) -> Vector:
    """Return ``sum_i p_i [(1 - beta_i) g_T + beta_i g_i]`` with p_i the weights over their sum.

    Args:
        target: the target's update g_T, ``(n_params,)``.
        sources: the sources' aligned updates g_i, ``(N, n_params)``.
        beta: one number or ``(N,)``, in [0, 1].
        weights: ``(N,)``, not negative and not all zero, for example numbers of samples; None is uniform.

    Returns:
        The round's update, float64 ``(n_params,)``.

    Raises:
        ValueError: an argument has a wrong shape or value, or is not finite; the message starts with its name.
    """
    return _combined(RoundPlan(rule=Rule.FEDDA), target, sources, beta=beta, weights=weights, layers=None)


def fedgp(
    target: npt.ArrayLike,
    sources: npt.ArrayLike,
    beta: npt.ArrayLike,
    weights: npt.ArrayLike | None = None,
    *,
    layers: Sequence[int] | None = None,
    projection: str = Projection.ORTHOGONAL,
    filter: bool = True,  # noqa: A002 - the paper's word
) -> Vector:
    """Return ``sum_i p_i [(1 - beta_i) g_T + beta_i P(g_T | g_i)]``, P layer by layer (`securefda.rules.project`).

    Args:
        target: as in `fedda`.
        sources: as in `fedda`.
        beta: as in `fedda`.
        weights: as in `fedda`.
        layers: sizes that sum to n_params; None is one layer.
        projection: ``orthogonal`` (Definition 4.3) or ``cosine`` (Appendix C.9).
        filter: leave out layers in which a source points against the target; False keeps them.

    Returns:
        The round's update, float64 ``(n_params,)``.

    Raises:
        ValueError: an argument has a wrong shape or value, or is not finite; the message starts with its name.
    """
    plan = RoundPlan(
        rule=Rule.FEDGP,
        projection=checks.choice("projection", projection, Projection),
        filter=checks.switch("filter", filter),
    )
    return _combined(plan, target, sources, beta=beta, weights=weights, layers=layers)


def _combined(
    plan: RoundPlan,
    target: npt.ArrayLike,
    sources: npt.ArrayLike,
    *,
    beta: npt.ArrayLike,
    weights: npt.ArrayLike | None,
    layers: Sequence[int] | None,
) -> Vector:
    target_update = checks.vector("target", target)
    source_updates = checks.matrix("sources", sources, columns=target_update.size)
    count = source_updates.shape[0]
    betas = checks.fractions("beta", beta, count)
    samples = checks.source_weights(weights, count)
    sizes = checks.layer_sizes(layers, target_update.size)
    total = ContributionSum(target_update.size)
    for source, one_beta, weight in zip(source_updates, betas, samples, strict=True):
        products = Products.of(target_update, source, sizes)
        total.add(weighted_update(plan, source, sizes, products=products, beta=float(one_beta)), float(weight))
    return total.combine(plan.rule, target_update)
