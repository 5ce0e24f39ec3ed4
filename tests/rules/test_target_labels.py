"""Which rule runs on which labels of the target: the table agrees with what the rounds of each rule do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from securefda.rules import CANDIDATES, RoundPlan, Rule, Strategy, TargetLabels, round_plan


def plans(rule: Rule) -> list[RoundPlan]:
    """Of every round of a run of this rule, whatever rule `auto` chooses in each."""
    rounds = 1 if rule is Rule.ANALYTIC else 6
    strategy = Strategy(rule=rule, rounds=rounds, warm_up_rounds=0, finetune_rounds=2, reptile_rounds=2)
    choices = [None, *({one: 0.0} for one in CANDIDATES)]
    return [round_plan(strategy, number, errors) for number in range(1, rounds + 1) for errors in choices]


def trains_the_target(rule: Rule) -> bool:
    rounds = plans(rule)
    return rule.is_personal or any(
        plan.select or not (plan.rule in (Rule.SOURCE_ONLY, Rule.ANALYTIC) or plan.rule.uses_target_features)
        for plan in rounds
    )


@pytest.mark.parametrize("rule", Rule)
def test_a_rule_needs_labels_where_it_trains_the_target(rule: Rule) -> None:
    assert (TargetLabels.NONE in rule.target_labels) == (not trains_the_target(rule))


@pytest.mark.parametrize("rule", Rule)
def test_every_rule_runs_on_given_labels_but_for_those_that_look_at_features_in_their_place(rule: Rule) -> None:
    assert (TargetLabels.GIVEN in rule.target_labels) == (not rule.uses_target_features)


def test_pseudo_labels_are_for_rules_that_weigh_the_target_by_itself() -> None:
    assert {rule for rule in Rule if TargetLabels.PSEUDO in rule.target_labels} == {
        rule for rule in Rule if rule.adapts and rule is not Rule.AUTO
    }


IN_WORDS = {
    "needed": {TargetLabels.GIVEN},
    "needed, or pseudo-labels": {TargetLabels.GIVEN, TargetLabels.PSEUDO},
    "not needed": {TargetLabels.GIVEN, TargetLabels.NONE},
    "refused": {TargetLabels.NONE},
    "refused; `release-features`": {TargetLabels.NONE},
}
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "choose-a-rule.md"


def test_the_manual_says_the_same() -> None:
    said: dict[str, set[TargetLabels]] = {}
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `") and len(cells) == 3:
            said |= dict.fromkeys(re.findall("`([a-z_]+)`", cells[0]), IN_WORDS[cells[2]])
    assert said == {str(rule): set(rule.target_labels) for rule in Rule}
