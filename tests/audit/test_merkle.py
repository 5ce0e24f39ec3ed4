"""Trees, inclusion and consistency: published vectors, the definition of the RFC, pymerkle, and proofs made wrong."""

from __future__ import annotations

from itertools import pairwise

import pytest
from depth import at_depth
from hypothesis import given, settings
from hypothesis import strategies as st
from pymerkle import InmemoryTree, verify_consistency
from tree_builder import EIGHT, mth, path, proof, subtree_of

from securefda.audit.merkle import (
    EMPTY_ROOT,
    Levels,
    ProofError,
    check_consistency,
    check_inclusion,
    complete_root,
    consistency_proof,
    inclusion_proof,
    leaf_hash,
    node_hash,
    root_of,
)

ROOTS = (
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
)
"""Published for the first 0 to 8 of the entries above."""

SIZES = st.integers(1, 70)
QUICK = settings(deadline=None, max_examples=at_depth(60, 600))


def entries(count: int) -> list[bytes]:
    return [f"entry {number}".encode() for number in range(count)]


@pytest.mark.parametrize("size", range(9))
def test_roots_are_those_published_for_the_entries_of_certificate_transparency(size: int) -> None:
    tree = Levels()
    for entry in EIGHT[:size]:
        tree.append(leaf_hash(entry))

    assert tree.root().hex() == ROOTS[size]
    assert root_of(size, subtree_of(EIGHT)).hex() == ROOTS[size]


def test_inclusion_proofs_are_those_published_for_the_entries_of_certificate_transparency() -> None:
    assert [item.hex() for item in inclusion_proof(5, 8, subtree_of(EIGHT))] == [
        "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
        "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
        "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    ]
    assert [item.hex() for item in inclusion_proof(2, 3, subtree_of(EIGHT))] == [ROOTS[2]]


def test_consistency_proofs_are_those_published_for_the_entries_of_certificate_transparency() -> None:
    assert [item.hex() for item in consistency_proof(6, 8, subtree_of(EIGHT))] == [
        "0ebc5d3437fbe2db158b9f126a1d118e308181031d0a949f8dededebc558ef6a",
        "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
        "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    ]
    assert [item.hex() for item in consistency_proof(2, 5, subtree_of(EIGHT))] == [
        "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
        "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
    ]


@pytest.mark.parametrize("size", [*range(1, 18), 31, 32, 33, 65])
def test_roots_and_proofs_are_those_that_the_rfc_defines(size: int) -> None:
    leaves = entries(size)
    subtree = subtree_of(leaves)

    assert root_of(size, subtree) == mth(leaves)
    for index in range(size):
        assert list(inclusion_proof(index, size, subtree)) == path(index, leaves)
        assert list(consistency_proof(index + 1, size, subtree)) == proof(index + 1, leaves)


@QUICK
@given(SIZES, st.data())
def test_pymerkle_makes_the_same_roots_and_inclusion_proofs_and_finds_the_trees_consistent(
    size: int, data: st.DataObject
) -> None:
    leaves = entries(size)
    index, old = data.draw(st.integers(0, size - 1)), data.draw(st.integers(1, size))
    other = InmemoryTree(algorithm="sha256")
    other.append_entries(leaves)
    subtree = subtree_of(leaves)

    assert root_of(size, subtree) == other.get_root()
    assert root_of(old, subtree) == other.get_root(old)
    assert list(inclusion_proof(index, size, subtree)) == other.prove_inclusion(index + 1, size).path[1:]
    # Its consistency proofs have another layout than those of the RFC: it is asked about our roots.
    verify_consistency(mth(leaves[:old]), root_of(size, subtree), other.prove_consistency(old, size), old, size)


@QUICK
@given(SIZES, st.data())
def test_every_leaf_and_every_earlier_tree_is_proved(size: int, data: st.DataObject) -> None:
    leaves = entries(size)
    index, old = data.draw(st.integers(0, size - 1)), data.draw(st.integers(0, size))
    subtree, root = subtree_of(leaves), mth(leaves)

    check_inclusion(leaf_hash(leaves[index]), index, size, inclusion_proof(index, size, subtree), root)
    check_consistency(old, mth(leaves[:old]), size, root, consistency_proof(old, size, subtree))


@QUICK
@given(SIZES, st.data())
def test_mutated_inclusion_proofs_are_refused(size: int, data: st.DataObject) -> None:
    leaves = entries(size)
    index = data.draw(st.integers(0, size - 1))
    leaf, root = leaf_hash(leaves[index]), mth(leaves)
    good = list(inclusion_proof(index, size, subtree_of(leaves)))

    for bad in mutated(good, data):
        with pytest.raises(ProofError):
            check_inclusion(leaf, index, size, bad, root)
    with pytest.raises(ProofError):
        check_inclusion(flipped(leaf, data), index, size, good, root)
    with pytest.raises(ProofError):
        check_inclusion(leaf, index, size, good, flipped(root, data))
    for other in {*range(size)} - {index}:
        with pytest.raises(ProofError):
            check_inclusion(leaf, other, size, good, root)


@QUICK
@given(SIZES, st.data())
def test_mutated_consistency_proofs_are_refused(size: int, data: st.DataObject) -> None:
    leaves = entries(size)
    old = data.draw(st.integers(1, size))
    old_root, root = mth(leaves[:old]), mth(leaves)
    good = list(consistency_proof(old, size, subtree_of(leaves)))

    for bad in mutated(good, data):
        with pytest.raises(ProofError):
            check_consistency(old, old_root, size, root, bad)
    with pytest.raises(ProofError):
        check_consistency(old, flipped(old_root, data), size, root, good)
    with pytest.raises(ProofError):
        check_consistency(old, old_root, size, flipped(root, data), good)
    for other in {*range(1, size + 1)} - {old}:
        with pytest.raises(ProofError):
            check_consistency(other, old_root, size, root, good)


@QUICK
@given(st.integers(2, 40), st.data())
def test_tree_in_which_an_old_leaf_was_changed_is_consistent_with_nothing_before(
    size: int, data: st.DataObject
) -> None:
    old = data.draw(st.integers(1, size - 1))
    changed = data.draw(st.integers(0, old - 1))
    before, after = entries(size), entries(size)
    after[changed] = b"changed"

    with pytest.raises(ProofError):
        check_consistency(old, mth(before[:old]), size, mth(after), consistency_proof(old, size, subtree_of(after)))


@pytest.mark.parametrize(("index", "size"), [(0, 0), (1, 1), (-1, 3), (3, 3)])
def test_leaf_outside_the_tree_has_no_proof_and_passes_none(index: int, size: int) -> None:
    with pytest.raises(ValueError, match="no leaf"):
        inclusion_proof(index, size, subtree_of(entries(3)))
    with pytest.raises(ProofError, match="no leaf"):
        check_inclusion(leaf_hash(b""), index, size, (), leaf_hash(b""))


@pytest.mark.parametrize(("old", "new"), [(3, 2), (-1, 2)])
def test_larger_tree_is_no_beginning_of_a_smaller_one(old: int, new: int) -> None:
    with pytest.raises(ValueError, match="does not begin"):
        consistency_proof(old, new, subtree_of(entries(3)))
    with pytest.raises(ProofError, match="does not begin"):
        check_consistency(old, EMPTY_ROOT, new, EMPTY_ROOT, ())


def test_empty_tree_is_the_beginning_of_every_tree_and_has_one_root() -> None:
    root = mth(entries(5))

    check_consistency(0, EMPTY_ROOT, 5, root, ())
    with pytest.raises(ProofError):
        check_consistency(0, root, 5, root, ())


def test_two_subtrees_are_no_leaf() -> None:
    left, right = leaf_hash(b"a"), leaf_hash(b"b")

    assert leaf_hash(left + right) != node_hash(left, right)


@pytest.mark.parametrize("count", [0, 3, 5, 255])
def test_complete_subtree_has_a_power_of_two_of_leaves(count: int) -> None:
    with pytest.raises(ValueError, match="power of two"):
        complete_root([bytes(32)] * count)


def mutated(good: list[bytes], data: st.DataObject) -> list[list[bytes]]:
    """Proofs that differ from a good one in one place."""
    at = data.draw(st.integers(0, max(len(good) - 1, 0)))
    wrong = [[*good, bytes(32)], [bytes(32), *good], [*good[:at], bytes(31), *good[at + 1 :]]]
    if good:
        wrong += [good[:at] + good[at + 1 :], [*good[:at], flipped(good[at], data), *good[at + 1 :]], [*good, good[at]]]
    wrong += [[*good[:at], two, one, *good[at + 2 :]] for one, two in pairwise(good[at : at + 2])]
    return wrong


def flipped(value: bytes, data: st.DataObject) -> bytes:
    bit = data.draw(st.integers(0, 255))
    return value[: bit // 8] + bytes([value[bit // 8] ^ 1 << bit % 8]) + value[bit // 8 + 1 :]
