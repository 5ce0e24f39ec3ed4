"""Strategies and their schedules: warm-up, fine-tuning, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from securefda.rules import (
    CANDIDATES,
    Estimator,
    Projection,
    RoundPlan,
    Rule,
    ServerPlan,
    Strategy,
    choose_rule,
    round_plan,
)

WITH_WARM_UP = [
    Rule.SOURCE_ONLY,
    Rule.FEDAVG,
    Rule.FEDDA,
    Rule.FEDGP,
    Rule.FEDDA_AUTO,
    Rule.FEDGP_AUTO,
    Rule.FEDGP_FILTERED_AUTO,
]
PERSONAL = [Rule.PERSONALIZED_FEDAVG, Rule.DITTO, Rule.APFL, Rule.KNN_PER, Rule.FEDREP]


def schedule(strategy: Strategy) -> list[tuple[Rule, float]]:
    plans = [round_plan(strategy, number) for number in range(1, strategy.rounds + 1)]
    return [(plan.rule, plan.learning_rate_factor) for plan in plans]


@pytest.mark.parametrize("rule", WITH_WARM_UP)
def test_warm_up_is_source_only_and_then_the_learning_rates_drop(rule):
    strategy = Strategy(rule=rule, rounds=4, warm_up_rounds=2, lr_after_warm_up=0.25)

    assert schedule(strategy) == [(Rule.SOURCE_ONLY, 1.0)] * 2 + [(rule, 0.25)] * 2
    assert schedule(replace(strategy, warm_up_rounds=0)) == [(rule, 1.0)] * 4


@pytest.mark.parametrize(
    ("rule", "plain"),
    [
        (Rule.TARGET_ONLY, Rule.TARGET_ONLY),
        (Rule.ORACLE, Rule.TARGET_ONLY),
        *[(rule, Rule.FEDAVG) for rule in PERSONAL],
    ],
)
def test_rules_without_sources_and_personal_ones_have_no_warm_up(rule, plain):
    strategy = Strategy(rule=rule, rounds=3, warm_up_rounds=1, lr_after_warm_up=0.5, reptile_rounds=1)

    assert schedule(strategy) == [(plain, 1.0)] * 3


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


ERRORS = {Rule.TARGET_ONLY: 4.0, Rule.SOURCE_ONLY: 3.0, Rule.FEDDA_AUTO: 2.0, Rule.FEDGP_AUTO: 5.0}


def test_auto_warms_up_and_estimates_errors_in_every_round_after_it():
    strategy = Strategy(rule=Rule.AUTO, rounds=4, warm_up_rounds=2, lr_after_warm_up=0.25)

    plans = [round_plan(strategy, number, ERRORS) for number in range(1, 5)]

    assert [plan.rule for plan in plans] == [Rule.SOURCE_ONLY] * 2 + [Rule.FEDDA_AUTO] * 2
    assert [plan.select for plan in plans] == [False, False, True, True]
    assert [plan.learning_rate_factor for plan in plans] == [1.0, 1.0, 0.25, 0.25]


@pytest.mark.parametrize("chosen", CANDIDATES)
def test_auto_takes_the_candidate_with_the_smallest_error(chosen):
    strategy = Strategy(rule="auto", rounds=2)

    plan = round_plan(strategy, 2, ERRORS | {chosen: 1.0})

    assert (plan.rule, plan.select, plan.learning_rate_factor) == (chosen, True, 1.0)


def test_auto_without_estimated_errors_is_fedgp_auto_that_estimates_them():
    assert round_plan(Strategy(rule="auto", rounds=1), 1) == RoundPlan(rule=Rule.FEDGP_AUTO, select=True)


SCHEDULED = (Rule.AUTO, Rule.FINETUNE_OFFLINE, Rule.PERSONALIZED_FEDAVG, Rule.ANALYTIC)


@pytest.mark.parametrize("rule", [rule for rule in Rule if rule not in SCHEDULED])
def test_other_strategies_neither_estimate_errors_nor_listen_to_them(rule):
    strategy = Strategy(rule=rule, rounds=2, warm_up_rounds=1)

    for number in (1, 2):
        assert round_plan(strategy, number, ERRORS) == round_plan(strategy, number)
        assert round_plan(strategy, number).select is False


def test_of_equal_errors_the_documented_order_decides():
    assert CANDIDATES == (Rule.TARGET_ONLY, Rule.FEDGP_AUTO, Rule.FEDDA_AUTO, Rule.SOURCE_ONLY)
    for start in range(4):
        equal = dict.fromkeys(reversed(CANDIDATES[start:]), 0.0)
        assert choose_rule(equal) is CANDIDATES[start]


@pytest.mark.parametrize(
    "errors",
    [
        {},
        {Rule.FEDGP: 1.0},
        {Rule.AUTO: 1.0},
        ERRORS | {Rule.FEDDA_AUTO: float("nan")},
        ERRORS | {Rule.TARGET_ONLY: float("inf")},
        ERRORS | {Rule.TARGET_ONLY: None},
    ],
)
def test_bad_errors_choose_no_rule(errors):
    with pytest.raises(ValueError, match=r"^errors: "):
        choose_rule(errors)
    with pytest.raises(ValueError, match=r"^errors: "):
        round_plan(Strategy(rule="auto", rounds=1), 1, errors)


@pytest.mark.parametrize("rule", CANDIDATES)
def test_a_round_that_estimates_errors_needs_sources_and_the_targets_statistics_whatever_its_rule(rule):
    for estimator, steps in (("mean-field", False), ("exact", True)):
        plan = RoundPlan(rule=rule, select=True, estimator=estimator)
        assert (plan.needs_sources, plan.uses_target_statistics, plan.needs_step_updates) == (True, True, steps)


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
        ("reptile_rounds", -1),
        ("reptile_learning_rate", 0.0),
        ("server_optimizer", "yogi"),
        ("server_optimizer", "adam"),
        ("server_learning_rate", -0.1),
        ("server_momentum", 1.0),
        ("server_second_momentum", -0.1),
        ("server_epsilon", 0.0),
        ("personal_epochs", 0),
        ("ditto_lambda", -1.0),
        ("apfl_alpha", 1.5),
        ("apfl_adaptive", "yes"),
        ("head", "svm"),
        ("knn_neighbours", 0),
        ("knn_weight", -0.1),
        ("knn_scale", 0.0),
    ],
)
def test_bad_strategy_is_refused_by_name(field, value):
    with pytest.raises(ValueError, match=rf"^{field}: "):
        Strategy(**({"rule": "fedgp", "rounds": 10} | {field: value}))


@pytest.mark.parametrize("rule", PERSONAL)
def test_no_head_stands_on_a_model_of_the_targets_own(rule):
    plain = {"rule": rule, "rounds": 3, "reptile_rounds": 1}
    assert Strategy(**plain).is_personal
    with pytest.raises(ValueError, match=f"^head: must be none, {rule} measures"):
        Strategy(**plain, head="knn")


def test_a_head_makes_a_strategy_personal_and_changes_no_round():
    plain, with_head = (Strategy(rule="fedgp_auto", rounds=3, warm_up_rounds=1, head=head) for head in ("none", "knn"))
    assert (plain.is_personal, with_head.is_personal) == (False, True)
    assert (plain.asks_neighbours, with_head.asks_neighbours) == (False, True)
    assert all(round_plan(plain, number) == round_plan(with_head, number) for number in (1, 2, 3))


def test_personalized_fedavg_has_momentum_first_and_adam_in_its_reptile_rounds():
    strategy = Strategy(
        rule="personalized_fedavg", rounds=3, reptile_rounds=2, reptile_learning_rate=0.02, server_momentum=0.8
    )

    plans = [round_plan(strategy, number).server for number in (1, 2, 3)]

    same = {"momentum": 0.8, "second_momentum": 0.99, "epsilon": 1e-3}
    adam = ServerPlan(optimizer="adam", learning_rate=0.02, **same)
    assert plans == [ServerPlan(optimizer="momentum", learning_rate=1.0, **same), adam, adam]


@pytest.mark.parametrize("rule", ["source_only", "fedavg", "ditto", "apfl", "knn_per", "fedrep"])
def test_means_may_have_an_optimizer_at_the_aggregator_in_every_round(rule):
    strategy = Strategy(rule=rule, rounds=3, warm_up_rounds=1, server_optimizer="adam")

    adam = ServerPlan(optimizer="adam", learning_rate=0.01, momentum=0.9, second_momentum=0.99, epsilon=1e-3)
    assert [round_plan(strategy, number).server for number in (1, 2, 3)] == [adam] * 3
    assert round_plan(Strategy(rule=rule, rounds=1), 1).server is None


@pytest.mark.parametrize(
    "rule",
    [rule for rule in Rule if rule not in (Rule.SOURCE_ONLY, Rule.FEDAVG, Rule.ANALYTIC, *PERSONAL)] + PERSONAL[:1],
)
def test_other_rules_may_have_none(rule):
    with pytest.raises(ValueError, match=r"^server_optimizer: "):
        Strategy(rule=rule, rounds=3, finetune_rounds=1, reptile_rounds=1, server_optimizer="momentum")


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        *[("select", {"rule": rule, "select": True}) for rule in (Rule.FEDAVG, Rule.FEDDA, Rule.FEDGP_FILTERED_AUTO)],
        *[("select", {"select": bad}) for bad in (1, "yes", None)],
        ("server", {"server": Strategy(rule="fedavg", rounds=1, server_optimizer="momentum").server()}),
        *[("rule", {"rule": rule}) for rule in (Rule.ORACLE, Rule.FINETUNE_OFFLINE, Rule.AUTO, *PERSONAL)],
        *[("learning_rate_factor", {"learning_rate_factor": factor}) for factor in (0.0, -1.0, float("inf"))],
    ],
)
def test_bad_plan_of_a_round_is_refused_by_name(name, bad):
    with pytest.raises(ValueError, match=rf"^{name}: "):
        RoundPlan(**{"rule": Rule.FEDGP_AUTO} | bad)


@pytest.mark.parametrize("rounds", [0, 10, 11])
@pytest.mark.parametrize(
    ("rule", "name"), [("finetune_offline", "finetune_rounds"), ("personalized_fedavg", "reptile_rounds")]
)
def test_a_strategy_of_two_kinds_of_rounds_needs_both(rule, name, rounds):
    with pytest.raises(ValueError, match=rf"^{name}: "):
        Strategy(rule=rule, rounds=10, **{name: rounds})


@pytest.mark.parametrize("number", [0, -1, 4, 1.0])
def test_round_outside_the_run_is_refused_by_name(number):
    with pytest.raises(ValueError, match=r"^round_number: "):
        round_plan(Strategy(rule="fedgp", rounds=3), number)
