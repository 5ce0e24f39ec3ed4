"""The parity check that stands for a look at every share."""

import secrets

import pytest

from securefda.protocol.secret import Secret
from securefda.protocol.shamir import PRIME, SHARE_BYTES, element_of, split
from securefda.protocol.unmasking import _Parity

THRESHOLD = 4
XS = (2, 3, 5, 6, 9, 12, 13)


def dealt() -> dict[int, Secret]:
    return split(Secret(bytes(range(32))), THRESHOLD, XS, secrets.token_bytes)


def parity(xs: tuple[int, ...] = XS) -> _Parity:
    return _Parity.over(xs, THRESHOLD, bytes(32))


def test_shares_of_one_polynomial_pass():
    assert parity().holds(dealt())


@pytest.mark.parametrize("wrong", XS)
def test_one_wrong_share_fails_wherever_it_is(wrong: int):
    shares = dealt()
    moved = (element_of(shares[wrong]) + 1) % PRIME
    assert not parity().holds(shares | {wrong: Secret(moved.to_bytes(SHARE_BYTES, "big"))})


def test_shares_of_a_polynomial_of_one_degree_more_fail():
    higher = split(Secret(bytes(range(32))), THRESHOLD + 1, XS, secrets.token_bytes)
    assert not parity().holds(higher)


def test_a_share_outside_the_field_fails():
    assert not parity().holds(dealt() | {XS[0]: Secret(b"\xff" * SHARE_BYTES)})


def test_as_many_shares_as_the_threshold_leave_nothing_to_check():
    few = dict(list(dealt().items())[:THRESHOLD])
    assert parity(tuple(few)).holds(few)


def test_the_check_depends_on_what_was_sent():
    assert _Parity.over(XS, THRESHOLD, bytes(32)).coefficients != _Parity.over(XS, THRESHOLD, b"\1" * 32).coefficients
