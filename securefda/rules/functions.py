"""FedDA and FedGP as functions of all updates at once (Definitions 4.1 and 4.3 of the paper).

Both are sums of the contributions that `securefda.rules.contribution` evaluates source by source.

A source that points the target's way takes part, one that points against it is left out by the filter:

    >>> import numpy as np
    >>> target = np.array([1.0, 1.0])
    >>> sources = np.array([[2.0, 0.0], [-1.0, -1.0]])
    >>> fedda(target, sources, beta=0.5)
    array([0.75, 0.25])
    >>> fedgp(target, sources, beta=0.5)
    array([0.75, 0.5 ])
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy.typing as npt

from securefda.rules import checks
from securefda.rules.blocks import Vector
from securefda.rules.contribution import ContributionSum, weighted_update
from securefda.rules.projection import Products, Projection
from securefda.rules.strategy import RoundPlan, Rule


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
    for source, source_beta, weight in zip(source_updates, betas, samples, strict=True):
        products = Products.of(target_update, source, sizes)
        total.add(weighted_update(plan, source, sizes, products=products, beta=float(source_beta)), float(weight))
    return total.combine(plan.rule, target_update)
