"""The weight of the target's update in an opened sum: it lies in its bounds, or the sum is refused."""

from __future__ import annotations

import math

import pytest

from securefda.protocol.weighed_contribution import FaultySum, check_kept
from securefda.rules.attention import LARGEST_BOUND, least_share
from securefda.rules.contribution import KEEP_TOLERANCE
from securefda.rules.strategy import RoundPlan, Rule

SAMPLES = 3.0
SLACK = KEEP_TOLERANCE * SAMPLES
PLAIN = RoundPlan(rule=Rule.FEDGP_AUTO)
ATTENTION = next(RoundPlan(rule=rule) for rule in Rule if rule.attends)
BOUNDS = [
    pytest.param(PLAIN, -SLACK, SAMPLES + SLACK, id="plain"),
    pytest.param(ATTENTION, least_share(ATTENTION.attention_bound) * SAMPLES - SLACK, SAMPLES + SLACK, id="attention"),
]


@pytest.mark.parametrize(("plan", "least", "most"), BOUNDS)
def test_weight_at_a_bound_passes(plan: RoundPlan, least: float, most: float) -> None:
    for kept in (least, SAMPLES, most):
        check_kept(plan, kept, SAMPLES)


@pytest.mark.parametrize(("plan", "least", "most"), BOUNDS)
def test_weight_beyond_a_bound_is_refused(plan: RoundPlan, least: float, most: float) -> None:
    for kept in (math.nextafter(least, -math.inf), math.nextafter(most, math.inf), math.nan):
        with pytest.raises(FaultySum):
            check_kept(plan, kept, SAMPLES)


def test_attention_needs_a_weight_above_zero() -> None:
    wide = RoundPlan(rule=ATTENTION.rule, attention_bound=LARGEST_BOUND)
    with pytest.raises(FaultySum, match="shares of attention"):
        check_kept(wide, 0.0, SAMPLES)
