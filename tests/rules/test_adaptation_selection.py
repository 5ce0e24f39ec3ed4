"""Estimated Delta errors against Definition 3.7, what a contribution carries of them, and what is chosen by them."""

from __future__ import annotations

from dataclasses import dataclass

import adaptation_definitions as definitions
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from securefda.rules import (
    CANDIDATES,
    ContributionSum,
    DeltaErrors,
    RoundPlan,
    Rule,
    TargetStatistics,
    align_update,
    choose_rule,
    combine,
    contribute,
    cosine,
    delta_errors,
    mean_errors,
    project,
)
from securefda.rules.beta import Estimator
from securefda.rules.blocks import BLOCK
from securefda.rules.comparison import compare

LAYERS = (4, 7, 1, 2)
SIZE = sum(LAYERS)
TARGET_STEPS = 6
SOURCE_STEPS = 20
RATIO = 0.25
ESTIMATORS = ["exact", "mean-field"]
SELECTING = {rule: RoundPlan(rule=rule, select=True) for rule in CANDIDATES}


@dataclass(frozen=True)
class Round:
    """A target's steps and one source's update, not aligned."""

    batches: np.ndarray
    update: np.ndarray

    @property
    def target(self) -> np.ndarray:
        return self.batches.sum(axis=0)

    @property
    def statistics(self) -> TargetStatistics:
        return TargetStatistics.from_batches(self.batches)

    @property
    def aligned(self) -> np.ndarray:
        return align_update(
            self.update, target_steps=TARGET_STEPS, source_steps=SOURCE_STEPS, learning_rate_ratio=RATIO
        )

    def given_to(self, function, plan: RoundPlan, **changes):
        factor = TARGET_STEPS * RATIO / SOURCE_STEPS
        how = {"layers": LAYERS} if plan.align else {"layers": LAYERS, "alignment": factor}
        update = self.aligned if plan.align else self.update
        return function(plan, self.statistics, self.target, update, **(how | changes))


def a_round(seed: int = 1, drift: float = 1.0) -> Round:
    """Unit noise in each of the target's steps, and a source that agrees with its drift by half."""
    generator = np.random.default_rng(seed)
    direction = drift * generator.normal(size=SIZE)
    batches = generator.normal(size=(TARGET_STEPS, SIZE)) + direction
    update = (direction + drift * generator.normal(size=SIZE)) * SOURCE_STEPS / RATIO
    return Round(batches, update)


@given(
    seed=st.integers(0, 10**6),
    drift=st.floats(0.1, 10),
    align=st.booleans(),
    estimator=st.sampled_from(ESTIMATORS),
    unmoved=st.sampled_from([slice(0), slice(4), slice(11, 12)]),
)
def test_errors_are_definition_3_7(seed, drift, align, estimator, unmoved):
    """Of the aligned update, whatever the plan averages; also where the source leaves a layer as it is, along which
    there is no direction to keep noise of."""
    state = a_round(seed, drift)
    state.update[unmoved] = 0.0
    plan = RoundPlan(rule=Rule.FEDGP_AUTO, select=True, align=align, estimator=estimator)

    errors = state.given_to(delta_errors, plan, step_updates=state.batches)

    step = state.aligned / TARGET_STEPS
    expected = definitions.delta_errors(state.batches, step, LAYERS, estimator)
    result = errors.by_rule(state.statistics.mean_variance)
    scale = state.statistics.mean_square + float(step @ step)
    assert set(result) == set(CANDIDATES)
    for rule, error in result.items():
        assert error == pytest.approx(expected[rule], rel=1e-9, abs=1e-12 * scale)


@pytest.mark.parametrize("rule", CANDIDATES)
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_contribution_carries_the_same_errors_whatever_its_rule(rule, estimator):
    state = a_round()
    plan = RoundPlan(rule=rule, select=True, estimator=estimator)

    contribution = state.given_to(contribute, plan, step_updates=state.batches)

    direct = RoundPlan(rule=Rule.FEDGP_AUTO, select=True, estimator=estimator)
    assert contribution.errors == state.given_to(delta_errors, direct, step_updates=state.batches)


@pytest.mark.parametrize("rule", [Rule.SOURCE_ONLY, Rule.FEDDA_AUTO, Rule.FEDGP_AUTO])
def test_estimating_errors_changes_nothing_of_a_contribution(rule):
    state = a_round()

    plain, selecting = (state.given_to(contribute, RoundPlan(rule=rule, select=select)) for select in (False, True))

    assert plain.errors is None
    assert isinstance(selecting.errors, DeltaErrors)
    assert np.array_equal(plain.vector, selecting.vector)
    assert (plain.keep, plain.beta) == (selecting.keep, selecting.beta)


def test_source_only_hands_in_the_update_that_its_errors_are_of():
    state = a_round()

    contribution = state.given_to(contribute, SELECTING[Rule.SOURCE_ONLY])

    assert np.array_equal(contribution.vector, state.aligned)
    aligned = definitions.delta_errors(state.batches, state.aligned / TARGET_STEPS, LAYERS, "mean-field")
    assert contribution.errors.source_only == pytest.approx(aligned["source_only"], rel=1e-9)


def test_nothing_of_the_update_enters_a_target_only_round_but_its_errors():
    state = a_round()

    contribution = state.given_to(contribute, SELECTING[Rule.TARGET_ONLY])

    assert (contribution.vector.shape, contribution.vector.any()) == ((SIZE,), np.False_)
    assert (contribution.keep, contribution.beta) == (1.0, None)
    assert contribution.errors is not None


def test_a_target_only_round_with_sources_is_the_targets_update_to_the_last_bit():
    """Whatever noise of a fixed-point sum stands in V."""
    state = a_round()
    total = ContributionSum(SIZE)
    total.add(state.given_to(contribute, SELECTING[Rule.TARGET_ONLY]), 30.0)

    result = combine(Rule.TARGET_ONLY, total.vector + 1e-3, 29.99, 30.0, target_update=state.target)

    assert np.array_equal(result, state.target)
    assert not np.shares_memory(total.combine(Rule.TARGET_ONLY, state.target), state.target)


def test_errors_and_contributions_show_nothing_in_their_repr():
    contribution = a_round().given_to(contribute, SELECTING[Rule.FEDGP_AUTO])

    assert repr(contribution) == "Contribution()"
    assert repr(contribution.errors) == "DeltaErrors()"


@given(seed=st.integers(0, 10**6), drift=st.floats(0, 1e6), estimator=st.sampled_from(ESTIMATORS))
def test_an_auto_rule_is_estimated_no_worse_than_what_it_mixes(seed, drift, estimator):
    state = a_round(seed, drift)
    plan = RoundPlan(rule=Rule.FEDGP_AUTO, select=True, estimator=estimator)
    variance = state.statistics.mean_variance

    errors = state.given_to(delta_errors, plan, step_updates=state.batches)

    assert 0 <= errors.fedda <= min(errors.source_only, variance)
    assert 0 <= errors.fedgp <= variance


@pytest.mark.parametrize("estimator", [Estimator.EXACT, Estimator.MEAN_FIELD])
@pytest.mark.parametrize("layers", [[40], [10, 10, 10, 10]])
def test_the_noise_that_projection_keeps_is_that_of_its_projections(layers, estimator):
    generator = np.random.default_rng(7)
    source = generator.standard_normal(40)
    plan = RoundPlan(rule=Rule.FEDGP_AUTO, select=True, estimator=estimator)
    expected = project(np.ones(40), source, layers=layers, filter=False)
    estimated, squares = [], []
    for _ in range(1500):
        steps = 1 + generator.standard_normal((TARGET_STEPS, 40))
        statistics = TargetStatistics.from_batches(steps)
        one = compare(plan, statistics, steps.sum(axis=0), source, layers, step_updates=steps)
        estimated.append(one.noise_along(estimator))
        kept = project(steps.mean(axis=0), source, layers=layers, filter=False)
        squares.append(float(np.sum((kept - expected) ** 2)))

    assert np.mean(estimated) == pytest.approx(np.mean(squares), rel=0.1)


@given(seed=st.integers(0, 10**6))
def test_fedgp_is_chosen_over_fedda_where_the_source_has_the_wrong_length_only(seed):
    state = a_round(seed)
    step = 1e3 * state.target / TARGET_STEPS
    wrong_length = Round(state.batches, step * SOURCE_STEPS / RATIO)

    errors = wrong_length.given_to(delta_errors, SELECTING[Rule.FEDDA_AUTO])

    assert choose_rule(errors.by_rule(state.statistics.mean_variance)) is Rule.FEDGP_AUTO


def test_a_target_without_noise_chooses_itself():
    state = a_round()
    still = Round(np.tile(state.target / TARGET_STEPS, (TARGET_STEPS, 1)), state.update)

    errors = still.given_to(delta_errors, SELECTING[Rule.FEDGP_AUTO])

    assert choose_rule(errors.by_rule(0.0)) is Rule.TARGET_ONLY


def test_mean_errors_weigh_sources_by_their_samples():
    errors = [DeltaErrors(4.0, 2.0, 1.0), DeltaErrors(0.0, 0.0, 5.0)]

    assert mean_errors(errors, [30, 10]) == DeltaErrors(3.0, 1.5, 2.0)
    assert mean_errors(errors) == DeltaErrors(2.0, 1.0, 3.0)
    assert errors[0].times(3).plus(errors[1]).times(0.25) == mean_errors(errors, [3, 1])


def test_bad_errors_or_weights_have_no_mean():
    with pytest.raises(ValueError, match=r"^errors: "):
        mean_errors([])
    for bad in ([1.0], [1.0, -1.0], [0.0, 0.0], [np.nan, 1.0]):
        with pytest.raises(ValueError, match=r"^weights: "):
            mean_errors([DeltaErrors(1.0, 1.0, 1.0)] * 2, bad)


@pytest.mark.parametrize("rule", CANDIDATES)
def test_a_round_that_estimates_errors_refuses_to_do_without_what_it_needs(rule):
    state = a_round()

    with pytest.raises(ValueError, match=r"^statistics: "):
        contribute(SELECTING[rule], None, state.target, state.update)
    with pytest.raises(ValueError, match=r"^target_update: "):
        contribute(SELECTING[rule], state.statistics, None, state.update)
    with pytest.raises(ValueError, match=r"^statistics: "):
        contribute(SELECTING[rule], state.statistics, 9 * state.target, state.update)
    with pytest.raises(ValueError, match=r"^step_updates: "):
        state.given_to(contribute, RoundPlan(rule=rule, select=True, estimator="exact"))


def test_bad_arguments_of_the_errors_are_named():
    state = a_round()

    with pytest.raises(ValueError, match=r"^plan: "):
        state.given_to(delta_errors, RoundPlan(rule=Rule.FEDGP_AUTO))
    for name, bad in (("layers", [1]), ("step_updates", [[1.0]])):
        plan = RoundPlan(rule=Rule.FEDGP_AUTO, select=True, estimator="exact")
        with pytest.raises(ValueError, match=rf"^{name}: "):
            state.given_to(delta_errors, plan, **({"step_updates": state.batches} | {name: bad}))


@given(seed=st.integers(0, 10**6), size=st.sampled_from([2, 9, BLOCK + 5]), scale=st.sampled_from([1e-30, 1.0, 1e30]))
def test_cosine_is_its_definition(seed, size, scale):
    left, right = np.random.default_rng(seed).normal(size=(2, size)).astype(np.float32)

    result = cosine(left.astype(np.float64) * scale, right)

    one, other = left.tolist(), right.tolist()
    lengths = np.sqrt(definitions.inner(one, one) * definitions.inner(other, other))
    direct = definitions.inner(one, other) / lengths
    assert result == pytest.approx(direct, abs=1e-12)


def test_cosine_of_parallel_vectors_never_exceeds_1():
    for seed in range(50):
        vector = np.random.default_rng(seed).normal(size=7)
        assert 1 - 1e-15 <= cosine(vector, vector * 3) <= 1
        assert -1 <= cosine(vector, -vector / 3) <= -1 + 1e-15


def test_cosine_with_a_zero_vector_is_none():
    assert cosine([0.0, 0.0], [1.0, 2.0]) is None
    assert cosine([1.0, 2.0], [0.0, 0.0]) is None


@pytest.mark.parametrize(
    ("name", "left", "right"),
    [
        ("left", [np.nan, 1.0], [1.0, 1.0]),
        ("left", [], []),
        ("right", [1.0, 1.0], [1.0, np.inf]),
        ("right", [1.0, 1.0], [1.0, 1.0, 1.0]),
    ],
)
def test_bad_argument_of_the_cosine_is_named(name, left, right):
    with pytest.raises(ValueError, match=rf"^{name}: "):
        cosine(left, right)
