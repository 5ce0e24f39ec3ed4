"""Strategies and their schedules: warm-up, fine-tuning, and what is refused."""

from __future__ import annotations

import dataclasses

import pytest

from securefda.adaptation import Estimator, Projection, RoundPlan, Rule, Strategy, round_plan

WITH_WARM_UP = [
    Rule.SOURCE_ONLY,
    Rule.FEDAVG,
    Rule.FEDDA,
    Rule.FEDGP,
    Rule.FEDDA_AUTO,
    Rule.FEDGP_AUTO,
    Rule.FEDGP_FILTERED_AUTO,
]


def schedule(strategy: Strategy) -> list[tuple[Rule, float]]:
    plans = [round_plan(strategy, number) for number in range(1, strategy.rounds + 1)]
    return [(plan.rule, plan.learning_rate_factor) for plan in plans]


@pytest.mark.parametrize("rule", WITH_WARM_UP)
def test_warm_up_is_source_only_and_then_the_learning_rates_drop(rule):
    strategy = Strategy(rule=rule, rounds=4, warm_up_rounds=2, lr_after_warm_up=0.25)

    assert schedule(strategy) == [(Rule.SOURCE_ONLY, 1.0)] * 2 + [(rule, 0.25)] * 2


@pytest.mark.parametrize("rule", WITH_WARM_UP)
def test_without_warm_up_no_learning_rate_drops(rule):
    assert schedule(Strategy(rule=rule, rounds=2, lr_after_warm_up=0.25)) == [(rule, 1.0)] * 2


@pytest.mark.parametrize("rule", [Rule.TARGET_ONLY, Rule.ORACLE])
def test_rules_without_sources_have_no_warm_up(rule):
    strategy = Strategy(rule=rule, rounds=3, warm_up_rounds=1, lr_after_warm_up=0.5)

    assert schedule(strategy) == [(Rule.TARGET_ONLY, 1.0)] * 3


def test_offline_fine_tuning_ends_with_the_target_alone():
    strategy = Strategy(rule=Rule.FINETUNE_OFFLINE, rounds=5, warm_up_rounds=3, finetune_rounds=2)

    assert schedule(strategy) == [(Rule.SOURCE_ONLY, 1.0)] * 3 + [(Rule.TARGET_ONLY, 1.0)] * 2


def test_a_round_carries_the_parameters_of_its_strategy():
    strategy = Strategy(
        rule="fedgp", rounds=1, beta=0.3, projection="cosine", filter=False, align=False, estimator="exact"
    )

    assert round_plan(strategy, 1) == RoundPlan(
        rule=Rule.FEDGP,
        beta=0.3,
        projection=Projection.COSINE,
        filter=False,
        align=False,
        estimator=Estimator.EXACT,
    )


def test_names_become_members():
    plan = RoundPlan(rule="fedgp_auto", projection="cosine", estimator="mean-field")

    assert (plan.rule, plan.projection, plan.estimator) == (Rule.FEDGP_AUTO, Projection.COSINE, Estimator.MEAN_FIELD)
    assert isinstance(plan.rule, Rule)


def test_mean_field_is_the_default_so_that_all_levels_agree():
    assert Strategy(rule=Rule.FEDGP_AUTO, rounds=1).estimator is Estimator.MEAN_FIELD


@pytest.mark.parametrize(
    ("rule", "estimator", "needed"),
    [
        ("fedgp_auto", "mean-field", False),
        ("fedgp_auto", "exact", True),
        ("fedgp_filtered_auto", "mean-field", True),
        ("fedda_auto", "exact", False),
        ("fedgp", "exact", False),
        ("source_only", "exact", False),
    ],
)
def test_single_steps_are_needed_where_an_estimate_depends_on_them(rule, estimator, needed):
    assert RoundPlan(rule=rule, estimator=estimator).needs_step_updates is needed


def test_rules_know_what_they_need():
    assert {rule for rule in Rule if not rule.needs_sources} == {Rule.TARGET_ONLY, Rule.ORACLE}
    assert {rule for rule in Rule if rule.adapts} == set(WITH_WARM_UP) - {Rule.SOURCE_ONLY, Rule.FEDAVG}
    assert {rule for rule in Rule if rule.projects} == {Rule.FEDGP, Rule.FEDGP_AUTO, Rule.FEDGP_FILTERED_AUTO}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rule", "fedprox"),
        ("rounds", 0),
        ("rounds", 2.5),
        ("rounds", True),
        ("beta", -0.1),
        ("beta", 1.1),
        ("beta", float("nan")),
        ("beta", "0.5"),
        ("projection", "diagonal"),
        ("filter", 1),
        ("align", "yes"),
        ("estimator", "median"),
        ("warm_up_rounds", -1),
        ("warm_up_rounds", 10),
        ("lr_after_warm_up", 0.0),
        ("lr_after_warm_up", 1.5),
        ("finetune_rounds", -1),
    ],
)
def test_bad_strategy_is_refused_by_name(field, value):
    with pytest.raises(ValueError, match=rf"^{field}: "):
        Strategy(**({"rule": "fedgp", "rounds": 10} | {field: value}))


@pytest.mark.parametrize("finetune_rounds", [0, 10, 11])
def test_offline_fine_tuning_needs_rounds_of_both_kinds(finetune_rounds):
    with pytest.raises(ValueError, match=r"^finetune_rounds: "):
        Strategy(rule="finetune_offline", rounds=10, finetune_rounds=finetune_rounds)


@pytest.mark.parametrize("rule", [Rule.ORACLE, Rule.FINETUNE_OFFLINE])
def test_rule_of_a_whole_run_is_no_rule_of_a_round(rule):
    with pytest.raises(ValueError, match=r"^rule: "):
        RoundPlan(rule=rule)


@pytest.mark.parametrize("factor", [0.0, -1.0, float("inf")])
def test_bad_learning_rate_factor_is_refused_by_name(factor):
    with pytest.raises(ValueError, match=r"^learning_rate_factor: "):
        RoundPlan(rule=Rule.FEDGP, learning_rate_factor=factor)


@pytest.mark.parametrize("number", [0, -1, 4, 1.0])
def test_round_outside_the_run_is_refused_by_name(number):
    with pytest.raises(ValueError, match=r"^round_number: "):
        round_plan(Strategy(rule="fedgp", rounds=3), number)


def test_strategies_and_plans_cannot_change():
    for frozen in (Strategy(rule="fedgp", rounds=1), RoundPlan(rule="fedgp")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            frozen.beta = 0.9
