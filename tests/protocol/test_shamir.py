import pytest
import secagg_oracles as oracle
from depth import at_depth
from hypothesis import given, settings
from hypothesis import strategies as st

from securefda.protocol import shamir
from securefda.protocol.secret import Secret
from securefda.protocol.shamir import PRIME, LagrangeAtZero, ShareError, reconstruct, split


def is_probable_prime(n: int) -> bool:
    """Miller-Rabin with the first 40 primes as bases: wrong with probability below 4^-40."""
    bases = [b for b in range(2, 174) if all(b % d for d in range(2, b))]
    odd, twos = n - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    return all(pow(b, odd, n) in (1, n - 1) or any(pow(b, odd << k, n) == n - 1 for k in range(twos)) for b in bases)


def test_the_field_is_the_least_prime_above_256_bits() -> None:
    assert oracle.PRIME == PRIME
    assert [candidate - 2**256 for candidate in range(2**256, PRIME + 1) if is_probable_prime(candidate)] == [297]


@st.composite
def dealings(draw: st.DrawFn) -> tuple[bytes, int, list[int]]:
    xs = draw(st.lists(st.integers(1, 200), min_size=2, max_size=12, unique=True))
    return draw(st.binary(min_size=32, max_size=32)), draw(st.integers(2, len(xs))), xs


@settings(max_examples=at_depth(60, 600), deadline=None)
@given(dealing=dealings(), data=st.data())
def test_any_threshold_shares_give_the_secret(dealing: tuple[bytes, int, list[int]], data: st.DataObject) -> None:
    secret, threshold, xs = dealing
    shares = split(Secret(secret), threshold, xs, oracle.tape("any"))
    chosen = data.draw(st.permutations(xs))[: data.draw(st.integers(threshold, len(xs)))]
    assert reconstruct({x: shares[x] for x in chosen}, threshold).reveal() == secret
    assert LagrangeAtZero.over(chosen).reconstruct(shares).reveal() == secret


@settings(max_examples=at_depth(60, 600), deadline=None)
@given(dealing=dealings())
def test_shares_need_the_whole_degree(dealing: tuple[bytes, int, list[int]]) -> None:
    """The polynomial through all shares has degree t - 1 exactly, and one share fewer than t points elsewhere."""
    secret, threshold, xs = dealing
    shares = split(Secret(secret), threshold, xs, oracle.tape("degree"))
    values = {x: int.from_bytes(share.reveal(), "big") for x, share in shares.items()}
    polynomial = oracle.polynomial_through(values)
    assert polynomial[threshold - 1] != 0
    assert not any(polynomial[threshold:])
    few = oracle.polynomial_through({x: values[x] for x in xs[: threshold - 1]})
    assert few[0] != int.from_bytes(secret, "big")


def coefficient_sixteenths(shift: int) -> list[int]:
    """Counts, per sixteenth of the field, of 4000 coefficients: with secret 0 and t = 2 the share at 1 is one."""
    read = oracle.tape("uniform")
    counts = [0] * 16
    for _ in range(4000):
        share = split(Secret(bytes(32)), 2, (1, 2), read)[1]
        counts[(int.from_bytes(share.reveal(), "big") >> shift) * 16 // PRIME] += 1
    return counts


CHI_SQUARE_15 = 56.5  # upper 1e-6 quantile with 15 degrees of freedom


def test_coefficients_are_uniform_over_the_field() -> None:
    """A fresh tape would fail with probability 1e-6."""
    assert oracle.chi_square(coefficient_sixteenths(0)) < CHI_SQUARE_15


def test_the_uniformity_test_finds_coefficients_that_are_one_bit_short() -> None:
    assert oracle.chi_square(coefficient_sixteenths(1)) > CHI_SQUARE_15


def test_values_beyond_the_field_are_drawn_again() -> None:
    draws = iter([b"\xff" * 33, PRIME.to_bytes(33, "big"), (PRIME - 1).to_bytes(33, "big")])
    shares = split(Secret(bytes(32)), 2, (1, 2), lambda _: next(draws))
    assert int.from_bytes(shares[1].reveal(), "big") == PRIME - 1
    assert next(draws, None) is None


def test_random_source_stuck_beyond_the_field_is_refused() -> None:
    with pytest.raises(ValueError, match="random source"):
        split(Secret(bytes(32)), 2, (1, 2), lambda length: b"\xff" * length)


@pytest.mark.parametrize(
    ("threshold", "xs"),
    [(1, (1, 2)), (0, (1, 2)), (3, (1, 2)), (2, (1, 1, 2)), (2, (0, 1)), (2, (-1, 1)), (2, (1, PRIME)), (2, ())],
)
def test_dealing_outside_its_bounds_is_refused(threshold: int, xs: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"threshold|point"):
        split(Secret(bytes(32)), threshold, xs, oracle.tape("bounds"))


@pytest.mark.parametrize("length", [1, 31, 33])
def test_secret_of_another_length_is_not_shared(length: int) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        split(Secret(bytes(length)), 2, (1, 2), oracle.tape("length"))


@settings(max_examples=at_depth(30, 300), deadline=None)
@given(position=st.integers(0, 2), flip=st.integers(1, 2**255))
def test_one_wrong_share_never_gives_the_secret(position: int, flip: int) -> None:
    shares = split(Secret(b"\x07" * 32), 3, (1, 2, 3), oracle.tape("wrong"))
    x = (1, 2, 3)[position]
    value = (int.from_bytes(shares[x].reveal(), "big") + flip) % PRIME
    shares[x] = Secret(value.to_bytes(33, "big"))
    try:
        opened = reconstruct(shares, 3)
    except ShareError:
        return
    assert opened != Secret(b"\x07" * 32)


def test_lagrange_weights_refuse_repeated_or_foreign_points() -> None:
    for xs in ((1, 1), (0, 1), (1, PRIME)):
        with pytest.raises(ShareError):
            LagrangeAtZero.over(xs)


def test_missing_share_is_named_by_its_point() -> None:
    with pytest.raises(ShareError, match=r"\[3\]"):
        LagrangeAtZero.over((1, 3)).reconstruct({1: Secret(bytes(33)), 2: Secret(bytes(33))})


def test_point_is_the_roster_index_plus_one() -> None:
    assert [shamir.x_of(index) for index in (0, 1, 99)] == [1, 2, 100]
    with pytest.raises(ValueError, match="negative"):
        shamir.x_of(-1)
