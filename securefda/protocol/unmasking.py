"""Reconstruction in R4: from the survivors' shares to secrets that match what their owners committed to.

A wrong share is always detected: the self secret must hash to the advertised commitment, and the master must give the
advertised mask key. With more than t answers the secret can still be opened, as decoding separates the shares on the
dealt polynomial from wrong ones. To blame for a wrong share is either its holder, if it sent something else than it
got, or its owner, if it dealt it so. With exactly t answers, one wrong share prevents opening, and any holder may be to
blame.

Decoding works because shares are a Reed-Solomon codeword (McEliece and Sarwate 1981): with n of them and threshold t,
up to ``(n - t) // 2`` wrong ones are found in O(n^2), without trying subsets. The decoder is that of Gao (2003), from
the extended Euclidean algorithm.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from hashlib import sha256

from securefda.protocol import agreement
from securefda.protocol.agreement import CommitmentError
from securefda.protocol.messages import Advertise, SelfMaskShare, Unmask
from securefda.protocol.secret import Secret
from securefda.protocol.shamir import PRIME, LagrangeAtZero, ShareError, element_of, evaluate, x_of

Polynomial = list[int]
"""Coefficients, lowest first, without zeros at the end; the zero polynomial is empty."""


def points_on_polynomial(shares: Mapping[int, Secret], threshold: int) -> frozenset[int]:
    """The points of the shares that lie on one polynomial of degree below ``threshold``.

    With at most ``(len(shares) - threshold) // 2`` wrong shares, these are the correct ones. With more, the result is
    empty, or the wrong shares if these were made to agree. So the secret must be checked against a commitment.

    Args:
        shares: by their x, at least ``threshold`` of them.
        threshold: number of shares that determine the secret.
    """
    values = {}
    for x, share in shares.items():
        # A malformed share counts as a wrong one: decoding goes on without it.
        with contextlib.suppress(ShareError):
            values[x] = element_of(share)
    if len(values) < threshold:
        return frozenset()
    polynomial = _decode(values, threshold)
    return frozenset(x for x, value in values.items() if polynomial and evaluate(polynomial, x) == value)


def _decode(values: Mapping[int, int], threshold: int) -> Polynomial:
    """The decoded polynomial, or an empty one if too many values are wrong."""
    locator = [1]
    for x in values:  # times (X - x)
        shifted = [0, *locator]
        for power, coefficient in enumerate(locator):
            shifted[power] = (shifted[power] - x * coefficient) % PRIME
        locator = shifted
    before, now = locator, _interpolate(values, locator)
    factor_before: Polynomial = []
    factor: Polynomial = [1]
    # Gao 2003: at the first remainder of degree below (n + t) / 2, the locator of the errors divides it.
    while 2 * (len(now) - 1) >= len(values) + threshold:
        quotient, remainder = _divide(before, now)
        before, now = now, remainder
        factor_before, factor = factor, _subtract_product(factor_before, quotient, factor)
    quotient, remainder = _divide(now, factor)
    return [] if remainder or len(quotient) > threshold else quotient


def _interpolate(values: Mapping[int, int], locator: Polynomial) -> Polynomial:
    """The polynomial through all points; ``locator`` is the product of all ``X - x``."""
    total = [0] * len(values)
    for x, value in values.items():
        others, _ = _divide(locator, [-x % PRIME, 1])
        scale = value * pow(evaluate(others, x), -1, PRIME) % PRIME
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


MOST_SUBSETS = 1000
"""How many sets of t shares are tried where more shares are wrong than decoding can find."""


class UnopenedError(Exception):
    """No t of the shares give what ``owner`` (a roster index) committed to."""

    def __init__(self, owner: int) -> None:
        super().__init__(f"the secret of index {owner} does not open")
        self.owner = owner


@dataclass(frozen=True, slots=True)
class OpenedSecrets:
    """The self mask secrets of survivors, the master secrets of dropped sources, and whose shares were wrong.

    ``wrong_shares`` maps a holder to the owners of the secrets of which it sent a wrong share (roster indices).
    """

    self_secrets: Mapping[int, Secret]
    masters: Mapping[int, Secret]
    wrong_shares: Mapping[int, frozenset[int]]


def open_secrets(
    answers: Mapping[int, Unmask], advertised: Mapping[int, Advertise], ctx: bytes, threshold: int
) -> OpenedSecrets:
    """Open every secret that the answers hold shares of.

    Args:
        answers: by roster index; at least ``threshold`` of them have one share for each owner.
        advertised: keys and commitments of U1.
        ctx: SHA-256 of the signed header, under which the commitments were made.
        threshold: t.

    Raises:
        UnopenedError: a secret that no t shares open.
    """
    # Of all shares: a holder that knew the parity check could send a wrong share that passes it.
    sent = sha256(b"".join(share.share for _, answer in sorted(answers.items()) for share in answer.shares)).digest()

    @lru_cache(maxsize=1)  # where all hold shares of all, the same for every owner
    def over(xs: tuple[int, ...]) -> tuple[LagrangeAtZero, _Parity]:
        return LagrangeAtZero.over(xs[:threshold]), _Parity.over(xs, threshold, sent)

    self_secrets: dict[int, Secret] = {}
    masters: dict[int, Secret] = {}
    wrong_shares: dict[int, frozenset[int]] = {}
    for (owner, is_self_mask), shares in _by_owner(answers).items():
        own = advertised[owner]
        check: Callable[[Secret], object]
        if is_self_mask:
            check = partial(agreement.check_self_secret, owner=owner, ctx=ctx, committed=own.self_mask_commitment)
        else:
            check = partial(agreement.opened_mask_pair, owner=owner, ctx=ctx, advertised=own.mask_key)
        secret, wrong = _open_one(owner, shares, *over(tuple(sorted(shares))), check)
        (self_secrets if is_self_mask else masters)[owner] = secret
        for x in wrong:
            wrong_shares[x - 1] = wrong_shares.get(x - 1, frozenset()) | {owner}
    return OpenedSecrets(self_secrets, masters, wrong_shares)


@dataclass(frozen=True, slots=True)
class _Parity:
    """A random parity check of the Reed-Solomon code that shares form, as in SCRAPE (Cascudo and David 2017).

    Looking at every share on its own costs t products for each, which for all owners together grows as N^3. One sum
    over all shares of an owner tells whether any of them is off the polynomial; only then each is looked at.
    """

    coefficients: Mapping[int, int]

    @classmethod
    def over(cls, xs: Sequence[int], threshold: int, seed: bytes) -> _Parity:
        """A codeword of the dual code: ``f(x) / prod_{other} (x - other)`` with f of degree below ``len(xs) - t``.

        ``seed`` is a digest of the shares that are checked, so that their senders could not know f.
        """
        # A digest is below 2^256, and so below p: a coefficient without reduction, and without bias.
        polynomial = [
            int.from_bytes(sha256(seed + power.to_bytes(4, "big")).digest(), "big")
            for power in range(len(xs) - threshold)
        ]
        coefficients = {}
        for x in xs:
            differences = 1
            for other in xs:
                if other != x:
                    differences = differences * (x - other) % PRIME
            coefficients[x] = evaluate(polynomial, x) * pow(differences, -1, PRIME) % PRIME
        return cls(coefficients)

    def holds(self, shares: Mapping[int, Secret]) -> bool:
        """Whether all shares lie on one polynomial of degree below t; wrong with probability 2^-256 where not."""
        try:
            return sum(self.coefficients[x] * element_of(share) for x, share in shares.items()) % PRIME == 0
        except ShareError:
            return False


def _by_owner(answers: Mapping[int, Unmask]) -> dict[tuple[int, bool], dict[int, Secret]]:
    shares: dict[tuple[int, bool], dict[int, Secret]] = {}
    for holder, answer in sorted(answers.items()):
        for share in answer.shares:
            kind = (share.owner, isinstance(share, SelfMaskShare))
            shares.setdefault(kind, {})[x_of(holder)] = Secret(share.share)
    return shares


def _open_one(
    owner: int,
    shares: Mapping[int, Secret],
    usual: LagrangeAtZero,
    parity: _Parity,
    check: Callable[[Secret], object],
) -> tuple[Secret, set[int]]:
    """The secret, and the points whose shares are not on its polynomial."""
    # The lowest t first: where nobody lies they open every secret, and all owners share the same weights.
    for weights in itertools.chain([usual], _other_weights(shares, len(usual.xs))):
        secret = _attempt(weights, shares, check)
        if secret is not None:
            return secret, set() if parity.holds(shares) else _wrong_points(shares, len(weights.xs), secret)
    raise UnopenedError(owner)


def _wrong_points(shares: Mapping[int, Secret], threshold: int, secret: Secret) -> set[int]:
    """The points off the dealt polynomial, as far as it is known; otherwise none.

    That t shares give the right secret does not say that they are right: errors of two holders can cancel, and then
    every honest share beside them looks wrong. Decoding finds the dealt polynomial for as long as at most
    ``(len(shares) - t) // 2`` shares are wrong. Beyond that the one is taken that makes the fewest of them wrong, if
    so few sets of t are there that all of them can be looked at.
    """
    agreeing = points_on_polynomial(shares, threshold)
    if len(agreeing) < threshold or not _gives(secret, tuple(sorted(agreeing)[:threshold]), shares):
        agreeing = _largest_agreement(shares, threshold, secret)
    return set(shares) - agreeing if agreeing else set()


def _largest_agreement(shares: Mapping[int, Secret], threshold: int, secret: Secret) -> frozenset[int]:
    # Without all sets looked at, honest holders could be named; so nobody is.
    if math.comb(len(shares), threshold) > MOST_SUBSETS:
        return frozenset()
    agreements = {
        # A point in place of one good share gives the same secret, unless it is off the polynomial.
        frozenset(xs) | {x for x in set(shares) - set(xs) if _gives(secret, (*xs[1:], x), shares)}
        for xs in itertools.combinations(sorted(shares), threshold)
        if _gives(secret, xs, shares)
    }
    largest = max(map(len, agreements))
    largest_ones = [agreement for agreement in agreements if len(agreement) == largest]
    return largest_ones[0] if len(largest_ones) == 1 else frozenset()


def _other_weights(shares: Mapping[int, Secret], threshold: int) -> Iterator[LagrangeAtZero]:
    """Further sets of t shares: one that decoding finds free of errors, then as many others as may be tried."""
    agreeing = sorted(points_on_polynomial(shares, threshold))[:threshold]
    if len(agreeing) == threshold:
        yield _weights(tuple(agreeing))
    # The first set of all is the caller's own, which has failed.
    for subset in itertools.islice(itertools.combinations(sorted(shares), threshold), 1, MOST_SUBSETS):
        yield _weights(subset)


@lru_cache(maxsize=MOST_SUBSETS)
def _weights(xs: tuple[int, ...]) -> LagrangeAtZero:
    """Weights depend on public points alone, and the same few sets serve every owner."""
    return LagrangeAtZero.over(xs)


def _attempt(weights: LagrangeAtZero, shares: Mapping[int, Secret], check: Callable[[Secret], object]) -> Secret | None:
    try:
        secret = weights.reconstruct(shares)
        check(secret)
    except (ShareError, CommitmentError):
        return None
    return secret


def _gives(secret: Secret, xs: tuple[int, ...], shares: Mapping[int, Secret]) -> bool:
    try:
        return _weights(xs).reconstruct(shares) == secret
    except ShareError:
        return False
