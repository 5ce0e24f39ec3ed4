"""A source's contribution, and that contributions combine to exactly what the rules give on all updates at once."""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from securefda.rules import (
    ContributionSum,
    RoundPlan,
    Rule,
    TargetStatistics,
    align_update,
    auto_beta,
    combine,
    contribute,
    fedda,
    fedgp,
)
from securefda.rules.blocks import BLOCK

LAYERS = (4, 7, 1, 2)
SIZE = sum(LAYERS)
TARGET_STEPS = 6
SOURCE_STEPS = (3, 6, 20)
SAMPLES = (30.0, 200.0, 75.0)
RATIO = 0.25
AUTO = [Rule.FEDDA_AUTO, Rule.FEDGP_AUTO, Rule.FEDGP_FILTERED_AUTO]


@dataclass(frozen=True)
class Round:
    batches: np.ndarray
    updates: np.ndarray

    @property
    def target(self) -> np.ndarray:
        return self.batches.sum(axis=0)

    @property
    def statistics(self) -> TargetStatistics:
        return TargetStatistics.from_batches(self.batches)

    @property
    def aligned(self) -> np.ndarray:
        return np.array(
            [
                align_update(u, target_steps=TARGET_STEPS, source_steps=s, learning_rate_ratio=RATIO)
                for u, s in zip(self.updates, SOURCE_STEPS, strict=True)
            ]
        )

    def contributions(self, plan: RoundPlan, **changes):
        return [
            contribute(
                plan,
                self.statistics,
                self.target,
                update,
                **{"layers": LAYERS, "alignment": 1.0 if plan.align else TARGET_STEPS * RATIO / steps} | changes,
            )
            for update, steps in zip(self.aligned if plan.align else self.updates, SOURCE_STEPS, strict=True)
        ]

    def combined(self, plan: RoundPlan, **changes) -> np.ndarray:
        total = ContributionSum(SIZE)
        for contribution, samples in zip(self.contributions(plan, **changes), SAMPLES, strict=True):
            total.add(contribution, samples)
        return total.combine(plan.rule, self.target)


def a_round(seed: int = 1) -> Round:
    generator = np.random.default_rng(seed)
    batches = generator.normal(size=(TARGET_STEPS, SIZE)) + generator.normal(size=SIZE)
    return Round(batches, 5 * generator.normal(size=(len(SOURCE_STEPS), SIZE)))


@given(seed=st.integers(0, 10**6), beta=st.floats(0, 1), align=st.booleans())
def test_combined_contributions_are_fedda(seed, beta, align):
    state = a_round(seed)

    result = state.combined(RoundPlan(rule=Rule.FEDDA, beta=beta, align=align))

    expected = fedda(state.target, state.aligned if align else state.updates, beta, SAMPLES)
    np.testing.assert_allclose(result, expected, rtol=1e-12, atol=1e-12)


@given(
    seed=st.integers(0, 10**6),
    beta=st.floats(0, 1),
    align=st.booleans(),
    projection=st.sampled_from(["orthogonal", "cosine"]),
    filtered=st.booleans(),
)
def test_combined_contributions_are_fedgp(seed, beta, align, projection, filtered):
    state = a_round(seed)

    result = state.combined(RoundPlan(rule=Rule.FEDGP, beta=beta, align=align, projection=projection, filter=filtered))

    sources = state.aligned if align else state.updates
    expected = fedgp(state.target, sources, beta, SAMPLES, layers=LAYERS, projection=projection, filter=filtered)
    np.testing.assert_allclose(result, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("rule", AUTO)
@pytest.mark.parametrize("estimator", ["exact", "mean-field"])
@pytest.mark.parametrize("align", [True, False])
def test_auto_rules_are_auto_beta_and_the_rule_with_it(rule, estimator, align):
    state = a_round()
    plan = RoundPlan(rule=rule, estimator=estimator, align=align)
    sources = state.aligned if align else state.updates

    contributions = state.contributions(plan, step_updates=state.batches)
    result = state.combined(plan, step_updates=state.batches)

    betas = auto_beta(state.batches, state.aligned / TARGET_STEPS, rule.removesuffix("_auto"), estimator=estimator)
    np.testing.assert_allclose([c.beta for c in contributions], betas, rtol=1e-12)
    assert [c.keep for c in contributions] == [1 - c.beta for c in contributions]
    if rule is Rule.FEDDA_AUTO:
        expected = fedda(state.target, sources, betas, SAMPLES)
    else:
        expected = fedgp(state.target, sources, betas, SAMPLES, layers=LAYERS)
    np.testing.assert_allclose(result, expected, rtol=1e-12, atol=1e-12)


@given(seed=st.integers(0, 10**6))
def test_beta_is_of_mean_steps_on_both_sides_while_the_update_itself_is_averaged(seed):
    """As the authors' code has FedDA: beta from the means over steps, and the update over all steps in the average."""
    state = a_round(seed)
    own = state.batches.mean(axis=0)
    noise = ((state.batches - own) ** 2).sum() / (TARGET_STEPS - 1) / TARGET_STEPS

    contributions = state.contributions(RoundPlan(rule=Rule.FEDDA_AUTO, align=False))

    for found, update, steps in zip(contributions, state.updates, SOURCE_STEPS, strict=True):
        mean_step = RATIO * update / steps
        distance = max(((state.batches - mean_step) ** 2).sum() / TARGET_STEPS - noise * TARGET_STEPS, 0.0)
        assert found.beta == pytest.approx(noise / (noise + distance), rel=1e-9)
        np.testing.assert_allclose(found.vector, found.beta * update, rtol=1e-12)


@pytest.mark.parametrize(("align", "alignment"), [(True, 2.0), (False, 0.0), (False, np.nan)])
def test_an_alignment_that_cannot_be_is_refused_by_name(align, alignment):
    with pytest.raises(ValueError, match=r"^alignment: "):
        a_round().contributions(RoundPlan(rule=Rule.FEDDA_AUTO, align=align), **{"alignment": alignment})


def test_mean_field_ignores_single_steps_even_where_they_are_at_hand():
    state = a_round()
    plan = RoundPlan(rule=Rule.FEDGP_AUTO)

    with_steps, without = (state.combined(plan, step_updates=steps) for steps in (state.batches, None))

    assert np.array_equal(with_steps, without)


def test_source_only_is_the_weighted_mean_of_raw_updates_and_needs_nothing_of_the_target():
    state = a_round()
    total = ContributionSum(SIZE)

    for update, samples in zip(state.updates, SAMPLES, strict=True):
        part = contribute(RoundPlan(rule=Rule.SOURCE_ONLY), None, None, update)
        assert (part.keep, part.beta) == (0.0, None)
        total.add(part, samples)

    expected = np.average(state.updates, axis=0, weights=SAMPLES)
    np.testing.assert_allclose(total.combine(Rule.SOURCE_ONLY), expected, rtol=1e-13)


def test_fedavg_counts_the_target_as_one_more_site():
    state = a_round()
    total = ContributionSum(SIZE)
    for update, samples in zip(state.updates, SAMPLES, strict=True):
        part = contribute(RoundPlan(rule=Rule.FEDAVG), None, None, update)
        total.add(part, samples)

    result = total.combine(Rule.FEDAVG, state.target, target_samples=50)

    expected = np.average([*state.updates, state.target], axis=0, weights=[*SAMPLES, 50])
    np.testing.assert_allclose(result, expected, rtol=1e-12)


def test_sums_over_some_sources_add_up_to_the_sum_over_all():
    state = a_round()
    parts = state.contributions(RoundPlan(rule=Rule.FEDGP_AUTO))
    whole, first, rest = (ContributionSum(SIZE) for _ in range(3))
    for part, samples in zip(parts, SAMPLES, strict=True):
        whole.add(part, samples)
    for part, samples in zip(parts[1:], SAMPLES[1:], strict=True):
        rest.add(part, samples)
    first.add(parts[0], SAMPLES[0])

    first.add_sum(rest.vector, rest.kept, rest.samples)

    np.testing.assert_allclose(first.vector, whole.vector, rtol=1e-13)
    assert (first.kept, first.samples) == (pytest.approx(whole.kept), whole.samples)
    with pytest.raises(ValueError, match=r"^vector: "):
        first.add_sum(np.ones(SIZE + 1), 1.0, 1.0)
    assert first.samples == whole.samples


def test_contribution_of_a_long_vector_needs_little_beyond_its_result():
    size, layers = 1_000_000, (999_000, 1_000)
    generator = np.random.default_rng(2)
    batches = generator.normal(size=(2, size)).astype(np.float32)
    target, update = batches.sum(axis=0), generator.normal(size=size).astype(np.float32)
    statistics = TargetStatistics.from_batches(batches)
    tracemalloc.start()

    contribute(
        RoundPlan(rule=Rule.FEDGP_AUTO),
        statistics,
        target,
        update,
        layers=layers,
    )
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 8 * size + 64 * BLOCK


HASHED_ROUND = """
import hashlib
import numpy as np
from securefda.rules import RoundPlan, TargetStatistics, contribute

generator = np.random.default_rng(3)
batches = generator.normal(size=(4, 300_000)).astype(np.float32)
update = generator.normal(size=300_000).astype(np.float32)
part = contribute(
    RoundPlan(rule="fedgp_auto", estimator="exact"),
    TargetStatistics.from_batches(batches), batches.sum(axis=0), update,
    layers=(200_000, 100_000), step_updates=batches,
)
print(hashlib.sha256(part.vector.tobytes() + str(part.beta).encode()).hexdigest())
"""


def test_contribution_is_the_same_to_the_last_bit_on_one_thread_and_on_four():
    hashes = set()
    for threads in ("1", "4"):
        environment = os.environ | {"OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads}
        done = subprocess.run(
            [sys.executable, "-c", HASHED_ROUND], env=environment, capture_output=True, text=True, check=True
        )
        hashes.add(done.stdout)

    assert len(hashes) == 1


def test_inputs_are_left_as_they_were():
    state = a_round()
    batches, updates = state.batches.copy(), state.updates.copy()

    for rule in (Rule.SOURCE_ONLY, Rule.FEDDA_AUTO, Rule.FEDGP_AUTO):
        for part in state.contributions(RoundPlan(rule=rule)):
            part.vector[:] = 0.0

    assert np.array_equal(state.batches, batches)
    assert np.array_equal(state.updates, updates)


BAD_CONTRIBUTIONS = {
    "source_update NaN": ("source_update", {"source_update": [np.nan] * SIZE}),
    "source_update infinite": ("source_update", {"source_update": [np.inf] * SIZE}),
    "source_update two-dimensional": ("source_update", {"source_update": np.ones((1, SIZE))}),
    "target_update of another length": ("target_update", {"target_update": np.ones(SIZE + 1)}),
    "target_update NaN": ("target_update", {"target_update": [np.nan] * SIZE}),
    "target_update missing": ("target_update", {"target_update": None}),
    "target_update of another round": ("statistics", {"target_update": np.full(SIZE, 9.0)}),
    "statistics missing": ("statistics", {"statistics": None}),
    "layers of another model": ("layers", {"layers": [SIZE - 1]}),
    "layer of negative size": ("layers", {"layers": [SIZE + 1, -1]}),
    "target_only": ("plan", {"plan": RoundPlan(rule=Rule.TARGET_ONLY)}),
    "exact without steps": ("step_updates", {"plan": RoundPlan(rule=Rule.FEDGP_AUTO, estimator="exact")}),
    "filtered without steps": ("step_updates", {"plan": RoundPlan(rule=Rule.FEDGP_FILTERED_AUTO)}),
    "too few steps": (
        "step_updates",
        {"plan": RoundPlan(rule=Rule.FEDGP_FILTERED_AUTO), "step_updates": np.ones((2, SIZE))},
    ),
    "steps of another model": (
        "step_updates",
        {"plan": RoundPlan(rule=Rule.FEDGP_FILTERED_AUTO), "step_updates": np.ones((TARGET_STEPS, 3))},
    ),
}


@pytest.mark.parametrize(("name", "changes"), BAD_CONTRIBUTIONS.values(), ids=BAD_CONTRIBUTIONS)
def test_bad_contribution_is_refused_by_name(name, changes):
    state = a_round()
    arguments = {
        "plan": RoundPlan(rule=Rule.FEDGP_AUTO),
        "statistics": state.statistics,
        "target_update": state.target,
        "source_update": state.updates[0],
        "layers": LAYERS,
    } | changes
    positional = [arguments.pop(key) for key in ("plan", "statistics", "target_update", "source_update")]

    with pytest.raises(ValueError, match=rf"^{name}: "):
        contribute(*positional, **arguments)


def test_kept_may_be_off_by_what_a_fixed_point_sum_rounds():
    result = combine(Rule.FEDDA, [1.0, 2.0], 10.0001, 10.0, target_update=[3.0, 4.0])

    np.testing.assert_allclose(result, [3.1, 4.2], rtol=1e-4)


@pytest.mark.parametrize("samples", [-1.0, np.nan, np.inf, True])
def test_bad_weight_adds_nothing(samples):
    total = ContributionSum(SIZE)
    part = a_round().contributions(RoundPlan(rule=Rule.FEDDA))[0]

    with pytest.raises(ValueError, match=r"^samples: "):
        total.add(part, samples)

    assert not total.vector.any()
    assert (total.kept, total.samples) == (0.0, 0.0)


def test_contribution_of_another_length_adds_nothing():
    total = ContributionSum(SIZE + 1)

    with pytest.raises(ValueError, match=r"^contribution: "):
        total.add(a_round().contributions(RoundPlan(rule=Rule.FEDDA))[0], 1.0)

    assert not total.vector.any()
