"""The sources' share of a round's step: the length of the sources' part of it over its own length.

The step is Delta = (w g_T + V) / n, of which V / n is the sources' part (for `fedavg` V / (n_T + n), for a mean of the
sources V / n, with attention V / w). Both parts are vectors. So the share is above 1 where the target's part points
against the sources', and it says nothing of whether the sources' part is good for the target.

With one beta for each layer V holds a multiple of g_T in each layer that is the target's own, and only the sources
know how much. There only what is at right angles to g_T in its layer counts as theirs, the least that it can be.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from securefda.rules.blocks import Reals, squared_norm
from securefda.rules.projection import Products
from securefda.rules.strategy import RoundPlan, Rule


def sources_length(
    plan: RoundPlan,
    weighted_sum: Reals,
    kept: float,
    samples: float,
    *,
    target_update: Reals | None = None,
    target_samples: float | None = None,
    layers: Sequence[int],
) -> float:
    """Return the length of the sources' part of a step; the arguments are those of `combine`.

    Args:
        plan: of the round.
        weighted_sum: V, ``(n_params,)``.
        kept: w.
        samples: n, positive.
        target_update: g_T; used with one beta for each layer alone.
        target_samples: n_T, for fedavg.
        layers: sizes that sum to n_params.
    """
    if plan.rule is Rule.TARGET_ONLY:
        return 0.0
    if plan.beta_per_layer and plan.rule.beta_rule is not None and target_update is not None:
        products = Products.of(target_update, weighted_sum, layers)
        along = [
            inner * inner / own if own > 0 else 0.0
            for inner, own in zip(products.inner, products.target_squared, strict=True)
        ]
        squared = sum(max(whole - part, 0.0) for whole, part in zip(products.source_squared, along, strict=True))
    else:
        squared = squared_norm(weighted_sum)
    divisor = kept if plan.rule.attends else samples + (target_samples or 0.0)
    return math.sqrt(squared) / divisor


def share_of(length: float, step: Reals) -> float:
    """Return the share of a part of this length in a step, at least 0; 0 where the step is zero."""
    whole = math.sqrt(squared_norm(step))
    return length / whole if whole > 0 else 0.0


def share_apart(step: Reals, target_update: Reals) -> float:
    """Return the least share of a step, in [0, 1], that is not the target's own: the sine of its angle with g_T.

    It needs no sum, so whoever sees the step and g_T can compute it. The target's part is a multiple of g_T, so at
    least this much is the sources', if all that moved the model is one or the other.
    """
    products = Products.of(target_update, step, [step.size])
    own, inner, whole = products.target_squared[0], products.inner[0], products.source_squared[0]
    if not whole > 0:
        return 0.0
    along = inner * inner / own if own > 0 else 0.0
    return math.sqrt(min(max(whole - along, 0.0) / whole, 1.0))
