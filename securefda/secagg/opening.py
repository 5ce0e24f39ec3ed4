"""Reconstruction in R4: from the survivors' shares to secrets that match what their owners committed to.

A wrong share is never silent: the self mask secret must hash to the advertised commitment, and the master must give
the advertised mask key. Where more than t answers are there, holders whose share lies off the dealt polynomial are
told apart from the rest. With exactly t answers a wrong dealer and a wrong holder look alike, and the owner is named.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from securefda.secagg import agreement
from securefda.secagg.agreement import CommitmentError, KeyPair
from securefda.secagg.messages import Advertise, SelfMaskShare, Unmask
from securefda.secagg.secret import Secret
from securefda.secagg.shamir import LagrangeAtZero, ShareError, x_of

MOST_SUBSETS = 1000
"""How many sets of t shares are tried before the owner of a secret is blamed."""


class UnopenedError(Exception):
    """No t of the shares give what ``owner`` (a roster index) committed to."""

    def __init__(self, owner: int) -> None:
        super().__init__(f"the secret of index {owner} does not open")
        self.owner = owner


@dataclass(frozen=True, slots=True)
class OpenedSecrets:
    """The self mask secrets of survivors, the mask pairs of dropped sources, and the holders of wrong shares."""

    self_secrets: Mapping[int, Secret]
    pairs: Mapping[int, KeyPair]
    faulty_holders: frozenset[int]


def open_secrets(
    answers: Mapping[int, Unmask], advertised: Mapping[int, Advertise], ctx: bytes, threshold: int
) -> OpenedSecrets:
    """Open every secret that the answers hold shares of.

    Args:
        answers: at least ``threshold`` of them, by roster index, each with one share per owner.
        advertised: keys and commitments of U1.
        ctx: SHA-256 of the signed header, under which the commitments were made.
        threshold: t.

    Raises:
        UnopenedError: a secret that no t shares open.
    """
    usual = LagrangeAtZero.over([x_of(holder) for holder in sorted(answers)[:threshold]])
    self_secrets: dict[int, Secret] = {}
    pairs: dict[int, KeyPair] = {}
    faulty: set[int] = set()
    for (owner, is_self_mask), shares in _by_owner(answers).items():
        check = _self_mask_check if is_self_mask else _master_check
        secret, wrong = _open_one(owner, shares, usual, check(owner, advertised[owner], ctx))
        if is_self_mask:
            self_secrets[owner] = secret
        else:
            pairs[owner] = agreement.mask_pair(secret, own=owner, ctx=ctx)
        faulty |= wrong
    return OpenedSecrets(self_secrets, pairs, frozenset(x - 1 for x in faulty))


def _by_owner(answers: Mapping[int, Unmask]) -> dict[tuple[int, bool], dict[int, Secret]]:
    shares: dict[tuple[int, bool], dict[int, Secret]] = {}
    for holder, answer in sorted(answers.items()):
        for share in answer.shares:
            kind = (share.owner, isinstance(share, SelfMaskShare))
            shares.setdefault(kind, {})[x_of(holder)] = Secret(share.share)
    return shares


def _self_mask_check(owner: int, advertised: Advertise, ctx: bytes) -> Callable[[Secret], object]:
    committed = advertised.self_mask_commitment
    return lambda secret: agreement.check_self_secret(secret, owner=owner, ctx=ctx, committed=committed)


def _master_check(owner: int, advertised: Advertise, ctx: bytes) -> Callable[[Secret], object]:
    return lambda secret: agreement.opened_mask_pair(secret, owner=owner, ctx=ctx, advertised=advertised.mask_key)


def _open_one(
    owner: int, shares: Mapping[int, Secret], usual: LagrangeAtZero, check: Callable[[Secret], object]
) -> tuple[Secret, set[int]]:
    """The secret, and the points whose shares are not on its polynomial."""
    threshold = len(usual.xs)
    subsets = itertools.islice(itertools.combinations(sorted(shares), threshold), 1, MOST_SUBSETS)
    for weights in itertools.chain([usual], map(LagrangeAtZero.over, subsets)):
        secret = _attempt(weights, shares, check)
        if secret is not None:
            others = set(shares) - set(weights.xs)
            return secret, {x for x in others if not _lies_on_polynomial(x, weights.xs, shares, secret)}
    raise UnopenedError(owner)


def _attempt(weights: LagrangeAtZero, shares: Mapping[int, Secret], check: Callable[[Secret], object]) -> Secret | None:
    try:
        secret = weights.reconstruct(shares)
        check(secret)
    except (ShareError, CommitmentError):
        return None
    return secret


def _lies_on_polynomial(x: int, good: tuple[int, ...], shares: Mapping[int, Secret], secret: Secret) -> bool:
    """Whether ``x`` in place of one good share gives the same secret, which a point off the polynomial cannot."""
    try:
        return LagrangeAtZero.over([*good[1:], x]).reconstruct(shares) == secret
    except ShareError:
        return False
