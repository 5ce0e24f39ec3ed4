"""Plans: the noise for an epsilon, the epsilon of a noise, the curve; and settings that cannot be planned with."""

from __future__ import annotations

from dataclasses import replace

import pytest

from securefda.errors import ConfigError
from securefda.privacy.accountants import epsilon
from securefda.privacy.dp_events import Budget, DpEvent
from securefda.privacy.planning import Schedule, plan_epsilon, plan_noise, rounds_within

SCHEDULE = Schedule(samples=300, batch_size=32, epochs=1, rounds=20)
BUDGET = Budget(8.0, 1e-5)


def test_planned_noise_is_the_least_that_keeps_the_budget() -> None:
    plan = plan_noise(SCHEDULE, BUDGET)

    less = plan_epsilon(SCHEDULE, round(plan.noise_multiplier - 0.001, 3), BUDGET.delta)
    assert plan.epsilon <= BUDGET.epsilon < less.epsilon


def test_reverse_of_a_plan_gives_its_epsilon_back() -> None:
    plan = plan_noise(SCHEDULE, BUDGET)

    assert plan_epsilon(SCHEDULE, plan.noise_multiplier, BUDGET.delta) == plan


def test_planned_noise_for_prv_keeps_the_budget_with_less_noise_than_rdp() -> None:
    few = replace(SCHEDULE, rounds=3)

    plan = plan_noise(few, replace(BUDGET, accountant="prv"))

    assert 0.99 * BUDGET.epsilon < plan.epsilon <= BUDGET.epsilon
    assert plan.noise_multiplier < plan_noise(few, BUDGET).noise_multiplier


def test_curve_is_what_the_rounds_cost_when_they_are_charged_one_by_one() -> None:
    plan = plan_epsilon(SCHEDULE, 1.2, 1e-5)
    event = DpEvent("run", 1, 0, 1.2, plan.sampling_rate, plan.steps_per_round, 1.0)

    charged = [epsilon([replace(event, round=number) for number in range(1, count + 1)], 1e-5) for count in range(21)]

    assert list(plan.curve) == charged
    assert sum(plan.cost_per_round) == pytest.approx(plan.epsilon)
    assert len(plan.cost_per_round) == SCHEDULE.rounds


def test_sampling_rate_and_steps_are_those_of_batches_with_a_last_one_that_is_smaller() -> None:
    schedule = Schedule(samples=300, batch_size=32, epochs=2, rounds=1)

    assert schedule.sampling_rate == 1 / 10
    assert schedule.steps_per_round == 20


def test_plan_goes_on_from_what_was_spent() -> None:
    past = [DpEvent("before", 1, 0, 1.0, 0.1, 30, 1.0)]

    plan = plan_noise(SCHEDULE, BUDGET, past=past)

    assert plan.curve[0] == epsilon(past, 1e-5)
    assert plan.epsilon <= BUDGET.epsilon
    assert plan.noise_multiplier > plan_noise(SCHEDULE, BUDGET).noise_multiplier


def test_rounds_within_a_budget_fit_and_one_more_does_not() -> None:
    long = replace(SCHEDULE, rounds=500)

    fitting = rounds_within(long, 1.5, BUDGET)

    curve = plan_epsilon(replace(long, rounds=fitting + 1), 1.5, 1e-5).curve
    assert curve[fitting] <= BUDGET.epsilon < curve[fitting + 1]
    assert rounds_within(SCHEDULE, 0.3, Budget(0.1, 1e-5)) == 0


def test_budget_that_is_spent_already_cannot_be_planned_with() -> None:
    past = [DpEvent("before", 1, 0, 0.5, 0.1, 300, 1.0)]

    with pytest.raises(ConfigError, match="cannot be kept over 20 rounds") as refusal:
        plan_noise(SCHEDULE, BUDGET, past=past)

    assert refusal.value.key == "dp.target-epsilon"


@pytest.mark.parametrize("delta", [1 / 300, 0.01])
def test_delta_of_one_over_the_rows_or_more_is_warned_of_with_the_number(delta: float) -> None:
    plan = plan_epsilon(SCHEDULE, 2.0, delta)

    (warning,) = plan.warnings
    assert f"{delta:g} is not below 1/300 = 0.00333" in warning


def test_delta_below_one_over_the_rows_gives_no_warning() -> None:
    assert plan_epsilon(SCHEDULE, 2.0, 0.0033).warnings == ()


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_epsilon_that_is_not_above_zero_is_refused(value: float) -> None:
    with pytest.raises(ConfigError) as refusal:
        Budget(value, 1e-5)

    assert refusal.value.key == "dp.target-epsilon"


def test_batch_larger_than_the_data_is_refused_with_both_numbers() -> None:
    with pytest.raises(ConfigError, match=r"batch-size: 301 is larger than the data, which have 300 rows"):
        replace(SCHEDULE, batch_size=301)


@pytest.mark.parametrize("key", ["samples", "batch_size", "epochs", "rounds"])
def test_schedule_with_a_count_below_one_is_refused_with_its_key(key: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        replace(SCHEDULE, **{key: 0})

    assert refusal.value.key == key.replace("_", "-")


def test_plan_without_noise_is_refused() -> None:
    with pytest.raises(ConfigError) as refusal:
        plan_epsilon(SCHEDULE, 0.0, 1e-5)

    assert refusal.value.key == "dp.noise-multiplier"
