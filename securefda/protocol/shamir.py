"""Shamir's secret sharing of 32-byte secrets over a prime just above 2^256.

Any ``threshold`` shares give the secret; fewer are independent of it (Shamir 1979). The prime exceeds 2^256, so every
32-byte value is one field element, and 2^256 + 297 is the least such prime. A share is held as a :class:`Secret`
of 33 big-endian bytes, the form in which it travels; its holder's x is the roster index plus one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from securefda.protocol.secret import RandomBytes, Secret, draw

PRIME = 2**256 + 297
SECRET_BYTES = 32
SHARE_BYTES = 33
MINIMUM_THRESHOLD = 2
_MAX_DRAWS = 256  # each succeeds with probability 1/2: a healthy source fails with probability 2^-256


class ShareError(ValueError):
    """Shares that no honest dealer made, or too few of them. Never shows a share's value."""


def x_of(index: int) -> int:
    """Point at which the party with this roster index holds its shares; zero is the secret's own."""
    if index < 0:
        raise ValueError("a roster index is not negative")
    return index + 1


def split(secret: Secret, threshold: int, xs: Iterable[int], random_bytes: RandomBytes) -> dict[int, Secret]:
    """Share a secret among the holders at ``xs``.

    Args:
        secret: 32 bytes.
        threshold: shares needed, at least 2: with 1 each share would be the secret itself.
        xs: distinct points, 1 <= x < p, at least ``threshold`` of them.
        random_bytes: source of the ``threshold - 1`` coefficients, which are uniform below p.

    Returns:
        One 33-byte share for each x.

    Raises:
        ValueError: an argument is outside these bounds, or the random source is broken.
    """
    points = _distinct_points(xs)
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"a shared secret has {SECRET_BYTES} bytes, not {len(secret)}")
    if not MINIMUM_THRESHOLD <= threshold <= len(points):
        raise ValueError(f"threshold {threshold} is not between {MINIMUM_THRESHOLD} and the {len(points)} holders")
    # The secret is the value at 0.
    polynomial = [int.from_bytes(secret.reveal(), "big")]
    polynomial += [_uniform_element(random_bytes) for _ in range(threshold - 1)]
    return {x: Secret(evaluate(polynomial, x).to_bytes(SHARE_BYTES, "big")) for x in points}


def reconstruct(shares: Mapping[int, Secret], threshold: int) -> Secret:
    """Recover the secret from the ``threshold`` shares with the lowest x; further shares are ignored.

    Raises:
        ShareError: too few shares, or they lie on no polynomial of a 32-byte secret (see
            :meth:`LagrangeAtZero.reconstruct`).
    """
    if threshold < MINIMUM_THRESHOLD or len(shares) < threshold:
        raise ShareError(f"{len(shares)} shares where {max(threshold, MINIMUM_THRESHOLD)} are needed")
    return LagrangeAtZero.over(sorted(shares)[:threshold]).reconstruct(shares)


@dataclass(frozen=True, slots=True)
class LagrangeAtZero:
    """Weights that turn shares at ``xs`` into the value at zero: computed once, used for every secret.

    Build it with :meth:`over`.
    """

    xs: tuple[int, ...]
    weights: tuple[int, ...]

    @classmethod
    def over(cls, xs: Iterable[int]) -> LagrangeAtZero:
        """Compute ``w_k = prod_{j != k} x_j / (x_j - x_k) mod p`` for distinct points 1 <= x < p.

        Raises:
            ShareError: a point repeats or lies outside.
        """
        try:
            points = _distinct_points(xs)
        except ValueError as error:
            raise ShareError(str(error)) from None
        return cls(points, tuple(_weight_at_zero(points, x) for x in points))

    def reconstruct(self, shares: Mapping[int, Secret]) -> Secret:
        """Combine the shares at ``xs``; others in ``shares`` are ignored.

        A wrong share gives a wrong secret: the caller must check the result against the dealer's commitment.

        Raises:
            ShareError: a share is missing, malformed or not below p, or the value exceeds 32 bytes, which no
                dealer's honest shares give.
        """
        missing = [x for x in self.xs if x not in shares]
        if missing:
            raise ShareError(f"no share at {missing}")
        pairs = zip(self.weights, self.xs, strict=True)
        value = sum(weight * element_of(shares[x]) for weight, x in pairs) % PRIME
        if value >> (8 * SECRET_BYTES):
            raise ShareError(f"the shares give a value beyond {SECRET_BYTES} bytes")
        return Secret(value.to_bytes(SECRET_BYTES, "big"))


def element_of(share: Secret) -> int:
    """Field element of a share; also the check that one received is well formed.

    Raises:
        ShareError: it is not 33 bytes, or not below p.
    """
    if len(share) != SHARE_BYTES:
        raise ShareError(f"a share has {SHARE_BYTES} bytes, not {len(share)}")
    value = int.from_bytes(share.reveal(), "big")
    if value >= PRIME:
        raise ShareError("a share is not below the prime")
    return value


def _distinct_points(xs: Iterable[int]) -> tuple[int, ...]:
    points = tuple(xs)
    if len(set(points)) != len(points):
        raise ValueError("a point repeats among the holders")
    # At 0, and at every multiple of p, the share would be the secret itself.
    if any(not 1 <= x < PRIME for x in points):
        raise ValueError("a holder's point lies outside 1 <= x < p")
    return points


def _uniform_element(random_bytes: RandomBytes) -> int:
    """Uniform below p: of 257 random bits, values from p on are rejected rather than reduced."""
    for _ in range(_MAX_DRAWS):
        # Reduced modulo p, small values would be likelier, and fewer than t shares would say something of the secret.
        value = int.from_bytes(draw(random_bytes, SHARE_BYTES), "big") & ((1 << PRIME.bit_length()) - 1)
        if value < PRIME:
            return value
    raise ValueError(f"the random source gave {_MAX_DRAWS} values beyond the prime")


def evaluate(polynomial: Sequence[int], x: int) -> int:
    """Value at ``x`` modulo p of a polynomial with these coefficients, lowest first."""
    value = 0
    for coefficient in reversed(polynomial):
        value = (value * x + coefficient) % PRIME
    return value


def _weight_at_zero(points: tuple[int, ...], x: int) -> int:
    numerator, denominator = 1, 1
    for other in points:
        if other != x:
            numerator = numerator * other % PRIME
            denominator = denominator * (other - x) % PRIME
    # In variable time, as all of Python's integers. These points are public. Timing of the rest would be a side channel
    # of the source's own machine, which is out of scope (threat_model/README.md).
    return numerator * pow(denominator, -1, PRIME) % PRIME
