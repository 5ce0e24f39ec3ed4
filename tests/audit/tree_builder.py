"""The tree of RFC 9162 written down as the RFC defines it, by recursion over all leaves."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

EIGHT = tuple(
    bytes.fromhex(text)
    for text in ("", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f")
)
"""The entries that implementations of Certificate Transparency are tested with."""


def mth(entries: Sequence[bytes]) -> bytes:
    if not entries:
        return hashlib.sha256().digest()
    if len(entries) == 1:
        return hashlib.sha256(b"\0" + entries[0]).digest()
    k = _split(len(entries))
    return hashlib.sha256(b"\1" + mth(entries[:k]) + mth(entries[k:])).digest()


def path(m: int, entries: Sequence[bytes]) -> list[bytes]:
    if len(entries) == 1:
        return []
    k = _split(len(entries))
    if m < k:
        return [*path(m, entries[:k]), mth(entries[k:])]
    return [*path(m - k, entries[k:]), mth(entries[:k])]


def proof(m: int, entries: Sequence[bytes]) -> list[bytes]:
    return _subproof(m, entries, True)


def subtree_of(entries: Sequence[bytes]):
    """The function that makes proofs: complete subtrees of these entries, and of nothing beyond them."""

    def subtree(height: int, index: int) -> bytes:
        part = entries[index << height : (index + 1) << height]
        assert len(part) == 1 << height
        return mth(part)

    return subtree


def _subproof(m: int, entries: Sequence[bytes], known: bool) -> list[bytes]:
    if m == len(entries):
        return [] if known else [mth(entries)]
    k = _split(len(entries))
    if m <= k:
        return [*_subproof(m, entries[:k], known), mth(entries[k:])]
    return [*_subproof(m - k, entries[k:], False), mth(entries[:k])]


def _split(n: int) -> int:
    k = 1
    while k * 2 < n:
        k *= 2
    return k
