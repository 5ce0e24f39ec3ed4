"""The sources' share of a step, against the definition written down once more."""

from __future__ import annotations

import math

import numpy as np
import pytest

from securefda.rules import RoundPlan, Rule, combine, share_apart, share_of, sources_length

TARGET = np.array([3.0, 4.0, 0.0, 1.0])
FIRST, SECOND = np.array([1.0, 0.0, 2.0, 0.0]), np.array([0.0, 2.0, 0.0, 2.0])
LAYERS = (2, 2)


def share(
    plan: RoundPlan, vector: np.ndarray, kept: float, samples: float, target_samples: float | None = None
) -> float:
    """The share of the step that these sums give."""
    of_target = None if plan.rule.is_mean_of_sources or plan.rule.attends else TARGET
    step = combine(plan.rule, vector, kept, samples, target_update=of_target, target_samples=target_samples)
    how = {"target_update": of_target, "target_samples": target_samples, "layers": LAYERS}
    return share_of(sources_length(plan, vector, kept, samples, **how), step)


def test_of_two_sources_it_is_the_length_of_their_part_over_the_steps() -> None:
    # 30 and 10 rows, beta 0.5 and 0.2: V/n = (30 0.5 (1,0,2,0) + 10 0.2 (0,2,0,2)) / 40, w/n = (30 0.5 + 10 0.8) / 40.
    vector = 30 * 0.5 * FIRST + 10 * 0.2 * SECOND
    theirs = [0.375, 0.1, 0.75, 0.1]
    step = [0.575 * own + one for own, one in zip([3, 4, 0, 1], theirs, strict=True)]
    expected = math.hypot(*theirs) / math.hypot(*step)
    assert share(RoundPlan(rule=Rule.FEDDA), vector, 30 * 0.5 + 10 * 0.8, 40) == pytest.approx(expected, rel=1e-12)
    assert 0.2 < expected < 0.3


def test_of_fedavg_the_targets_rows_count_as_well() -> None:
    vector = 30 * FIRST + 10 * SECOND
    expected = np.linalg.norm(vector / 50) / np.linalg.norm((vector + 10 * TARGET) / 50)
    assert share(RoundPlan(rule=Rule.FEDAVG), vector, 0, 40, 10) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("rule", "kept", "expected"),
    [(Rule.SOURCE_ONLY, 0, 1), (Rule.F_DAN, 0, 1), (Rule.FADA_ATTENTION, 7, 1), (Rule.TARGET_ONLY, 40, 0)],
)
def test_where_one_side_alone_moves_the_model_it_is_all_or_nothing(rule: Rule, kept: float, expected: float) -> None:
    assert share(RoundPlan(rule=rule), 30 * FIRST, kept, 40) == pytest.approx(expected, abs=1e-12)


def test_without_a_contribution_it_is_zero() -> None:
    assert share(RoundPlan(rule=Rule.FEDGP_AUTO), np.zeros(4), 20, 40) == 0
    assert share_of(1.0, np.zeros(4)) == 0


def test_it_is_above_one_where_the_two_parts_oppose() -> None:
    assert share(RoundPlan(rule=Rule.FEDDA), -40 * TARGET, 20, 40) == pytest.approx(2)


def test_multiples_of_the_targets_update_do_not_count_with_a_beta_for_each_layer() -> None:
    plan = RoundPlan(rule=Rule.FEDDA_AUTO, beta_per_layer=True)
    shift = np.concatenate([-5 * TARGET[:2], 9 * TARGET[2:]])
    assert share(plan, shift, 20, 40) == pytest.approx(0, abs=1e-7)
    theirs = np.array([4.0, -3.0, 6.0, 0.0])  # at right angles to the target's update in each layer
    step = (20 * TARGET + shift + theirs) / 40
    expected = np.linalg.norm(theirs / 40) / np.linalg.norm(step)
    assert share(plan, shift + theirs, 20, 40) == pytest.approx(expected, rel=1e-9)
    assert share(RoundPlan(rule=Rule.FEDDA_AUTO), shift + theirs, 20, 40) > expected


def test_what_a_source_can_see_is_never_above_the_share() -> None:
    chance = np.random.default_rng(3)
    for _ in range(50):
        target, theirs = chance.normal(size=(2, 9))
        step = chance.uniform(0, 1) * target + theirs
        seen = share_apart(step, target.astype(np.float32))
        cosine = step @ target / np.linalg.norm(step) / np.linalg.norm(target)
        assert seen == pytest.approx(math.sqrt(1 - cosine**2), abs=1e-6)
        assert seen <= share_of(float(np.linalg.norm(theirs)), step) + 1e-6


@pytest.mark.parametrize(
    ("step", "expected"), [(2 * TARGET, 0), (-TARGET, 0), (np.zeros(4), 0), (np.array([4.0, -3.0, 9.0, 0.0]), 1)]
)
def test_along_the_targets_update_a_source_sees_nothing_of_others(step: np.ndarray, expected: float) -> None:
    assert share_apart(step, TARGET) == pytest.approx(expected, abs=1e-7)


def test_of_a_target_that_does_not_move_everything_is_apart() -> None:
    assert share_apart(FIRST, np.zeros(4)) == 1
