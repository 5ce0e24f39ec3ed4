"""What a target asks for and what leaves it, in words."""

from __future__ import annotations

from typing import Any

import pytest

from securefda.site.asks import describe_target
from securefda.site.config import AggregatorConfig


def described(strategy: dict[str, Any], **training: Any) -> str:
    sections = {
        "aggregator": {"kit": "."},
        "task": {"factory": "securefda.tasks.digits:Digits"},
        "strategy": {"rounds": 1, "warm-up-rounds": 0} | strategy,
        "training": training,
    }
    return describe_target(AggregatorConfig.model_validate(sections), "clinic", ("north", "south", "west")).text()


@pytest.mark.parametrize(
    ("strategy", "labels", "line"),
    [
        ({"rule": "fedavg"}, "given", "clinic trained its part of it without noise"),
        ({"rule": "source_only"}, "given", "clinic's rows have no influence on it"),
        ({"rule": "source_only"}, "none", "clinic's rows have no influence on it"),
        ({"rule": "analytic"}, "given", "clinic fits its last layer to its own rows and to what the sources add"),
        ({"rule": "analytic"}, "none", "clinic's rows have no influence on it"),
        ({"rule": "analytic", "align-moments": "mean"}, "none", "so that it depends on this mean"),
    ],
)
def test_what_a_targets_rows_do_to_the_common_model_is_said_by_rule(
    strategy: dict[str, Any], labels: str, line: str
) -> None:
    assert line in described(strategy, labels=labels)


def test_under_the_analytic_rule_it_asks_for_second_moments() -> None:
    assert "visibility sum: one sum of second moments of the sources' rows" in described({"rule": "analytic"})
    assert "visibility sum: one sum of the sources' updates per round" in described({"rule": "fedavg"})
