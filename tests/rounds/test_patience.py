"""How much a source puts up with from its aggregator within one process."""

from __future__ import annotations

from securefda.errors import FaultyAggregatorError
from securefda.source.standing import MOST_BROKEN_IN_A_ROW, Standing


def test_a_source_leaves_after_so_many_failed_checks_in_a_row() -> None:
    standing = Standing()
    for number in range(1, MOST_BROKEN_IN_A_ROW + 1):
        assert standing.failure is None, number
        standing.broken(FaultyAggregatorError("HEADER_WRAP"))
    assert standing.failure is not None


def test_a_finished_round_sets_the_count_back() -> None:
    standing = Standing()
    for _ in range(3):
        for _ in range(MOST_BROKEN_IN_A_ROW - 1):
            standing.broken(FaultyAggregatorError("HEADER_WRAP"))
        standing.round_finished()
    assert standing.failure is None


def test_what_another_source_may_have_done_is_not_held_against_the_aggregator() -> None:
    standing = Standing()
    for _ in range(2 * MOST_BROKEN_IN_A_ROW):
        standing.broken(FaultyAggregatorError("SHARE_BOX", suspect=2))
    assert standing.failure is None
    assert standing.fault is not None
