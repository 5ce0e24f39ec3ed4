"""Decoding finds the wrong shares among many, up to half of the spare ones, and claims nothing beyond."""

from __future__ import annotations

import itertools
import random

import pytest
from cohort import Bytes
from depth import at_depth
from hypothesis import given, settings
from hypothesis import strategies as st

from securefda.protocol.secret import Secret
from securefda.protocol.shamir import PRIME, LagrangeAtZero, split
from securefda.protocol.unmasking import points_on_polynomial

SECRET = Secret(bytes(range(32)))


def dealt(n: int, threshold: int) -> dict[int, Secret]:
    return split(SECRET, threshold, range(3, 3 + n), Bytes("dealt", n, threshold))


def spoil(shares: dict[int, Secret], xs: list[int], numbers: random.Random) -> dict[int, Secret]:
    def other(x: int) -> Secret:
        value = int.from_bytes(shares[x].reveal(), "big")
        return Secret(((value + numbers.randrange(1, PRIME)) % PRIME).to_bytes(33, "big"))

    return {x: other(x) if x in xs else share for x, share in shares.items()}


@settings(max_examples=at_depth(60, 600), deadline=None)
@given(st.data())
def test_wrong_shares_up_to_half_of_the_spare_ones_are_found(data: st.DataObject) -> None:
    n = data.draw(st.integers(2, 24))
    threshold = data.draw(st.integers(2, n))
    wrong = data.draw(st.lists(st.integers(3, 2 + n), max_size=(n - threshold) // 2, unique=True))
    shares = spoil(dealt(n, threshold), wrong, random.Random(data.draw(st.integers(0, 99))))
    assert points_on_polynomial(shares, threshold) == set(shares) - set(wrong)


def test_thirty_three_spare_shares_of_a_hundred_find_sixteen_wrong_ones() -> None:
    shares = spoil(dealt(100, 67), list(range(3, 19)), random.Random(1))
    assert points_on_polynomial(shares, 67) == set(range(19, 103))


@pytest.mark.parametrize(("n", "threshold", "errors"), [(5, 4, 1), (7, 5, 2), (9, 5, 3)])
def test_more_wrong_shares_give_no_set_that_holds_all_right_ones(n: int, threshold: int, errors: int) -> None:
    shares = spoil(dealt(n, threshold), list(range(3, 3 + errors)), random.Random(2))
    agreeing = points_on_polynomial(shares, threshold)
    assert not agreeing >= set(shares) - set(range(3, 3 + errors))


def test_malformed_share_counts_as_wrong() -> None:
    shares = dealt(7, 4) | {4: Secret(b"\xff" * 33), 6: Secret(b"\0")}
    assert points_on_polynomial(shares, 4) == {3, 5, 7, 8, 9}


def test_fewer_readable_shares_than_the_threshold_give_nothing() -> None:
    assert points_on_polynomial(dealt(5, 5) | {4: Secret(b"\xff" * 33)}, 5) == frozenset()


def test_points_that_are_found_give_the_secret_from_any_t_of_them() -> None:
    shares = spoil(dealt(8, 4), [3, 9], random.Random(3))
    agreeing = sorted(points_on_polynomial(shares, 4))
    for xs in itertools.combinations(agreeing, 4):
        assert LagrangeAtZero.over(xs).reconstruct(shares) == SECRET
