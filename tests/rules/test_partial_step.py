"""How much of a round's update the target takes."""

from __future__ import annotations

import numpy as np
import pytest

from securefda.rules import STEP_SHARES, RoundPlan, Rule, Step, Strategy, best_share, partial_step, round_plan

OWN, UPDATE = np.array([1.0, -2.0, 0.3]), np.array([0.5, 0.25, 0.7])


def test_a_share_mixes_both_and_its_ends_are_each_to_the_last_bit() -> None:
    np.testing.assert_array_equal(partial_step(OWN, UPDATE, 0.0), OWN)
    np.testing.assert_array_equal(partial_step(OWN, UPDATE, 1.0), UPDATE)
    np.testing.assert_allclose(partial_step(OWN, UPDATE, 0.2), 0.8 * OWN + 0.2 * UPDATE, rtol=1e-15)
    assert partial_step(OWN.astype(np.float32), UPDATE, 0.5).dtype == np.float64


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (([np.nan, 0, 0], UPDATE, 0.5), "target_update"),
        ((OWN, [1.0], 0.5), "update"),
        ((OWN, UPDATE, 1.1), "share"),
        ((OWN, UPDATE, -0.1), "share"),
    ],
)
def test_wrong_arguments_are_refused_by_name(arguments: tuple, name: str) -> None:
    with pytest.raises(ValueError, match=rf"^{name}:"):
        partial_step(*arguments)


@pytest.mark.parametrize("best", range(11))
def test_the_share_with_the_least_loss_is_the_best(best: int) -> None:
    losses = [1.0 + abs(number - best) for number in range(11)]
    assert best_share(losses) == STEP_SHARES[best] == best / 10


def test_of_equal_losses_the_least_share_counts() -> None:
    assert best_share([2.0] + 10 * [1.0]) == 0.1
    assert best_share(11 * [1.0]) == 0.0


def test_a_loss_that_is_not_finite_is_the_worst() -> None:
    assert best_share([np.nan, 5.0, *(9 * [np.inf])]) == 0.1
    assert best_share(11 * [np.nan]) == 0.0


def test_other_numbers_of_losses_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^losses: must be 11, are 3"):
        best_share([1.0, 2.0, 3.0])


def test_rules_with_an_update_of_the_target_and_one_of_the_sources_validate_a_step() -> None:
    assert {rule for rule in Rule if Strategy(**strategy_of(rule)).validates_step} == {
        rule for rule in Rule if rule.adapts
    }
    assert not Strategy(rule=Rule.FEDDA, rounds=3).validates_step
    assert round_plan(Strategy(rule=Rule.FEDDA, rounds=3, step="validated"), 1).step is Step.VALIDATED
    assert RoundPlan(rule=Rule.FEDDA).step is Step.FULL


def strategy_of(rule: Rule) -> dict:
    return {
        "rule": rule,
        "rounds": 1 if rule is Rule.ANALYTIC else 3,
        "step": "validated",
        "finetune_rounds": 1,
        "reptile_rounds": 1,
    }


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^step: must be one of full, validated; is 'half'"):
        Strategy(rule=Rule.FEDDA, rounds=3, step="half")
