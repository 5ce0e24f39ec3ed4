"""The line of a verdict: the gravest point, and how many others there are."""

from __future__ import annotations

import pytest

from securefda.audit.reconcile.run_verdict import HEADLINES, Point, Verdict

POINTS = tuple(Point("attention", f"site-{name} is silent.", is_finding=False) for name in "abc")


@pytest.mark.parametrize(
    ("count", "after_the_headline"),
    [
        (0, "All logs."),
        (1, "site-a is silent."),
        (2, "site-a is silent. And 1 more to look at."),
        (3, "site-a is silent. And 2 more to look at."),
    ],
)
def test_text_names_the_gravest_point_and_counts_the_others(count: int, after_the_headline: str) -> None:
    verdict = Verdict(POINTS[:count], "All logs.")
    assert verdict.text == f"{HEADLINES[verdict.severity]}. {after_the_headline}"
