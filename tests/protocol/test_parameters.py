"""Thresholds and the rules that count members."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from securefda.protocol.header_checks import SessionLimits, default_threshold, threshold_is_sound

SIZES = st.integers(2, 400)
COLLUDERS = st.integers(0, 40)
MIN_OTHERS = st.integers(1, 40)


@pytest.mark.parametrize(("n", "threshold"), [(3, 3), (5, 4), (10, 7), (20, 14), (100, 67)])
@pytest.mark.parametrize("min_others", [1, 2])
def test_default_threshold_is_two_thirds_and_one(n: int, threshold: int, min_others: int) -> None:
    assert default_threshold(n, min_others, 0) == threshold


@given(SIZES, MIN_OTHERS, COLLUDERS)
def test_default_threshold_is_sound_or_none_is(n: int, min_others: int, max_colluders: int) -> None:
    sound = [t for t in range(1, n + 1) if threshold_is_sound(t, n, max_colluders)]
    if sound:
        assert default_threshold(n, min_others, max_colluders) in sound
    else:
        with pytest.raises(ValueError, match="no threshold"):
            default_threshold(n, min_others, max_colluders)


@given(SIZES, MIN_OTHERS, COLLUDERS)
def test_threshold_many_survivors_satisfy_min_others_where_all_do(n: int, min_others: int, max_colluders: int) -> None:
    if not threshold_is_sound(n, n, max_colluders):
        return
    limits = SessionLimits(min_others, max_colluders, frozenset(range(n)))
    threshold = default_threshold(n, min_others, max_colluders)
    everybody = limits.fewest_trusted(n, range(n), 0) >= min_others
    assert (limits.fewest_trusted(threshold, range(n), 0) >= min_others) == everybody


@given(n=st.integers(1, 60), max_colluders=st.integers(0, 60), threshold=st.integers(-1, 61))
def test_sound_threshold_rules_out_two_views(n: int, max_colluders: int, threshold: int) -> None:
    """Honest sources answer in one view only: two views of t answers, liars in both, do not fit into n sources."""
    two_views_fit = 2 * (threshold - max_colluders) <= n - max_colluders
    assert threshold_is_sound(threshold, n, max_colluders) == (max_colluders < threshold <= n and not two_views_fit)


@pytest.mark.parametrize("n", [0, 1])
def test_session_of_fewer_than_two_sources_has_no_threshold(n: int) -> None:
    with pytest.raises(ValueError, match="at least 2"):
        default_threshold(n, 1, 0)


@given(st.sets(st.integers(0, 8)), st.sets(st.integers(0, 8)), st.integers(0, 8), st.integers(0, 3), st.integers(1, 9))
def test_fewest_trusted_is_that_of_the_worst_sum_of_the_quorum(
    trusted: set[int], others: set[int], me: int, max_colluders: int, quorum: int
) -> None:
    others -= {me}
    if quorum > len(others) + 1:
        return
    limits = SessionLimits(1, max_colluders, frozenset(trusted))
    worst = min(len(trusted & set(chosen)) for chosen in itertools.combinations(others, quorum - 1))
    smallest = limits.fewest_trusted(quorum, others | {me}, me)
    assert max(smallest, -max_colluders) == worst - max_colluders


@pytest.mark.parametrize(("min_others", "max_colluders"), [(0, 0), (1, -1)])
def test_limits_that_protect_nothing_are_refused(min_others: int, max_colluders: int) -> None:
    with pytest.raises(ValueError, match="min_others"):
        SessionLimits(min_others, max_colluders, frozenset())
