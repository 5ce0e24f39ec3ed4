"""Which of many shares lie on the dealt polynomial, though some are wrong: Reed-Solomon decoding over Shamir's field.

Shares are a Reed-Solomon codeword (McEliece and Sarwate 1981), so with n of them and threshold t up to
``(n - t) // 2`` wrong ones are found in O(n^2), without trying subsets. The decoder is that of Gao (2003), from
the extended Euclidean algorithm.
"""

from __future__ import annotations

from collections.abc import Mapping

from securefda.secagg.secret import Secret
from securefda.secagg.shamir import PRIME, ShareError, element_of

Polynomial = list[int]
"""Coefficients, lowest first, without zeros at the end; the zero polynomial is empty."""


def points_on_polynomial(shares: Mapping[int, Secret], threshold: int) -> frozenset[int]:
    """The points of the shares that lie on one polynomial of degree below ``threshold``.

    With at most ``(len(shares) - threshold) // 2`` wrong shares these are the right ones. With more, the result is
    empty or, if the wrong ones were made to agree, theirs: the secret must be checked against a commitment.

    Args:
        shares: by their x, at least ``threshold`` of them.
        threshold: shares that give the secret.
    """
    values = {x: value for x, share in shares.items() if (value := _value_or_none(share)) is not None}
    if len(values) < threshold:
        return frozenset()
    polynomial = _decode(values, threshold)
    return frozenset(x for x, value in values.items() if polynomial and _evaluate(polynomial, x) == value)


def _value_or_none(share: Secret) -> int | None:
    try:
        return element_of(share)
    except ShareError:
        return None


def _decode(values: Mapping[int, int], threshold: int) -> Polynomial:
    """The polynomial, or an empty one where too many values are wrong."""
    locator = [1]
    for x in values:
        locator = _times_root(locator, x)
    before, now = locator, _interpolate(values, locator)
    factor_before: Polynomial = []
    factor: Polynomial = [1]
    while 2 * (len(now) - 1) >= len(values) + threshold:
        quotient, remainder = _divide(before, now)
        before, now = now, remainder
        factor_before, factor = factor, _subtract_product(factor_before, quotient, factor)
    quotient, remainder = _divide(now, factor)
    return [] if remainder or len(quotient) > threshold else quotient


def _times_root(polynomial: Polynomial, root: int) -> Polynomial:
    """``polynomial * (X - root)``."""
    shifted = [0, *polynomial]
    for power, coefficient in enumerate(polynomial):
        shifted[power] = (shifted[power] - root * coefficient) % PRIME
    return shifted


def _interpolate(values: Mapping[int, int], locator: Polynomial) -> Polynomial:
    """The polynomial through all points; ``locator`` is the product of all ``X - x``."""
    total = [0] * len(values)
    for x, value in values.items():
        others, _ = _divide(locator, [-x % PRIME, 1])
        scale = value * pow(_evaluate(others, x), -1, PRIME) % PRIME
        total = [(old + scale * new) % PRIME for old, new in zip(total, others, strict=True)]
    return _trimmed(total)


def _divide(dividend: Polynomial, divisor: Polynomial) -> tuple[Polynomial, Polynomial]:
    remainder, quotient = list(dividend), [0] * max(0, len(dividend) - len(divisor) + 1)
    inverse = pow(divisor[-1], -1, PRIME)
    for shift in range(len(quotient) - 1, -1, -1):
        scale = remainder[shift + len(divisor) - 1] * inverse % PRIME
        quotient[shift] = scale
        for power, coefficient in enumerate(divisor):
            remainder[shift + power] = (remainder[shift + power] - scale * coefficient) % PRIME
    return _trimmed(quotient), _trimmed(remainder)


def _subtract_product(minuend: Polynomial, left: Polynomial, right: Polynomial) -> Polynomial:
    """``minuend - left * right``."""
    result = list(minuend) + [0] * max(0, len(left) + len(right) - 1 - len(minuend))
    for i, a in enumerate(left):
        for j, b in enumerate(right):
            result[i + j] = (result[i + j] - a * b) % PRIME
    return _trimmed(result)


def _trimmed(polynomial: Polynomial) -> Polynomial:
    while polynomial and polynomial[-1] == 0:
        polynomial.pop()
    return polynomial


def _evaluate(polynomial: Polynomial, x: int) -> int:
    value = 0
    for coefficient in reversed(polynomial):
        value = (value * x + coefficient) % PRIME
    return value
