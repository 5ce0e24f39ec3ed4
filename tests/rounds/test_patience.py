"""How much a source puts up with from its aggregator within one process."""

from __future__ import annotations

from securefda.errors import FaultyAggregatorError
from securefda.source.run import MOST_BROKEN_IN_A_ROW, Patience


def test_a_source_leaves_after_so_many_failed_checks_in_a_row() -> None:
    patience = Patience()
    for number in range(1, MOST_BROKEN_IN_A_ROW + 1):
        assert patience.failure is None, number
        patience.broken(FaultyAggregatorError("HEADER_WRAP"))
    assert patience.failure is not None


def test_a_finished_round_sets_the_count_back() -> None:
    patience = Patience()
    for _ in range(3):
        for _ in range(MOST_BROKEN_IN_A_ROW - 1):
            patience.broken(FaultyAggregatorError("HEADER_WRAP"))
        patience.kept()
    assert patience.failure is None


def test_what_another_source_may_have_done_is_not_held_against_the_aggregator() -> None:
    patience = Patience()
    for _ in range(2 * MOST_BROKEN_IN_A_ROW):
        patience.broken(FaultyAggregatorError("SHARE_BOX", suspect=2))
    assert patience.failure is None
    assert patience.last is not None
