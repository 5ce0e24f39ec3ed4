"""Merkle trees of RFC 9162, section 2.1 (RFC 6962 has the same), over SHA-256, and their tiles. Pure.

A leaf hashes to ``SHA-256(0x00 || entry)`` and two subtrees to ``SHA-256(0x01 || left || right)``, so no entry can
stand in for a subtree. The left subtree of n > 1 leaves holds the largest power of two that is smaller than n.

On disk a tree lies in tiles of hashes and bundles of entries, as `c2sp.org/tlog-tiles <https://c2sp.org/tlog-tiles>`_
names and fills them. A full tile has 256 hashes of 32 bytes; tile n of level 0 has the hashes of leaves ``256 n`` and
on, and each hash of a level above is the root of a full tile below. What a checkpoint covers beyond full tiles stands
in partial ones, ``.p/<width>``. A bundle has the entries of one tile of level 0, each behind its length in two bytes,
big-endian.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from hmac import compare_digest
from typing import Final

HASH_BYTES: Final = 32
EMPTY_ROOT: Final = sha256(b"").digest()
"""Root of the tree without leaves."""

Subtree = Callable[[int, int], bytes]
"""``subtree(height, index)``: hash of the complete subtree over leaves ``[index << height, (index + 1) << height)``."""


class ProofError(ValueError):
    """A proof does not show what it should; the text says which. Nothing may rest on it."""


def leaf_hash(entry: bytes) -> bytes:
    """Hash of one entry as a leaf, 32 bytes."""
    return sha256(b"\x00" + entry).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """Hash of two neighbouring subtrees, 32 bytes each, as one of 32 bytes."""
    return sha256(b"\x01" + left + right).digest()


def complete_root(hashes: Sequence[bytes]) -> bytes:
    """Root over a power of two of neighbouring hashes of one height, at least one. Raises ValueError."""
    if not hashes or len(hashes) & (len(hashes) - 1):
        raise ValueError(f"a complete subtree has a power of two of leaves, not {len(hashes)}")
    row = list(hashes)
    while len(row) > 1:
        row = [sha256(b"\x01" + row[at] + row[at + 1]).digest() for at in range(0, len(row), 2)]
    return row[0]


def root_of(size: int, subtree: Subtree) -> bytes:
    """Root of the first ``size`` leaves, from the hashes of complete subtrees."""
    return _range_root(0, size, subtree) if size else EMPTY_ROOT


def inclusion_proof(index: int, size: int, subtree: Subtree) -> tuple[bytes, ...]:
    """Hashes that lead from leaf ``index`` to the root of the first ``size`` leaves (RFC 9162, 2.1.3.1).

    Args:
        index: 0-based.
        size: number of leaves of the tree.
        subtree: asked only for complete subtrees within the first ``size`` leaves, O(log size) times.

    Raises ValueError if the tree has no such leaf.
    """
    if not 0 <= index < size:
        raise ValueError(f"a tree of {size} leaves has no leaf {index}")
    start, end, path = 0, size, list[bytes]()
    while end - start > 1:
        middle = start + _left_width(end - start)
        if index < middle:
            path.append(_range_root(middle, end, subtree))
            end = middle
        else:
            path.append(_range_root(start, middle, subtree))
            start = middle
    return tuple(reversed(path))


def check_inclusion(leaf: bytes, index: int, size: int, proof: Sequence[bytes], root: bytes) -> None:
    """Check that a leaf is at ``index`` of the tree with this size and root (RFC 9162, 2.1.3.2).

    Raises ProofError if the proof does not show it.
    """
    _check_sizes(proof, leaf, root)
    if not 0 <= index < size:
        raise ProofError(f"a tree of {size} leaves has no leaf {index}")
    node = leaf
    for step, is_left in _climb("inclusion", index, size - 1, proof):
        node = node_hash(step, node) if is_left else node_hash(node, step)
    if not compare_digest(node, root):
        raise ProofError(f"leaf {index} is not in this tree")


def _climb(kind: str, place: int, last: int, proof: Sequence[bytes]) -> Iterator[tuple[bytes, bool]]:
    """Yield each hash of a proof, and whether it is the left one of the two that make the next node on the way up.

    ``place`` is the index of the node where the way begins, and ``last`` that of the last node beside it.
    """
    for step in proof:
        if last == 0:
            raise ProofError(f"the {kind} proof is too long")
        is_left = place & 1 == 1 or place == last
        # A node without a right neighbour stands for itself on the levels above, until it is a right child
        while is_left and place and not place & 1:
            place, last = place >> 1, last >> 1
        yield step, is_left
        place, last = place >> 1, last >> 1
    if last:
        raise ProofError(f"the {kind} proof is too short")


def consistency_proof(old: int, new: int, subtree: Subtree) -> tuple[bytes, ...]:
    """Hashes that show that the tree of ``new`` leaves begins with the ``old`` leaves (RFC 9162, 2.1.4.1).

    Returns:
        The proof; empty where ``old`` is 0 or ``new``, which need none.

    Raises ValueError if ``old`` is larger than ``new``, or negative.
    """
    if not 0 <= old <= new:
        raise ValueError(f"a tree of {new} leaves does not begin with {old}")
    if old in (0, new):
        return ()
    start, end, path, whole = 0, new, list[bytes](), True
    while old != end:
        middle = start + _left_width(end - start)
        if old <= middle:
            path.append(_range_root(middle, end, subtree))
            end = middle
        else:
            path.append(_range_root(start, middle, subtree))
            start, whole = middle, False
    if not whole:  # else it is the old root, which the verifier has already
        path.append(_range_root(start, end, subtree))
    return tuple(reversed(path))


def check_consistency(old: int, old_root: bytes, new: int, new_root: bytes, proof: Sequence[bytes]) -> None:
    """Check that the tree with the new size and root begins with all leaves of the old one (RFC 9162, 2.1.4.2).

    Raises ProofError if the proof does not show it.
    """
    _check_sizes(proof, old_root, new_root)
    if not 0 <= old <= new:
        raise ProofError(f"a tree of {new} leaves does not begin with {old}")
    if old in (0, new):
        if proof or not compare_digest(old_root, new_root if old else EMPTY_ROOT):
            raise ProofError("the trees differ, or the proof has hashes that it does not need")
        return
    # Where the old tree is one complete subtree, the proof begins with its root, which the verifier has already
    path = (old_root, *proof) if not old & (old - 1) else tuple(proof)
    if not path:
        raise ProofError("the consistency proof is too short")
    place, last = old - 1, new - 1
    while place & 1:
        place, last = place >> 1, last >> 1
    # The left hashes are of both trees. The right ones are of leaves that came later, so they are of the new tree alone
    old_node = new_node = path[0]
    for step, is_left in _climb("consistency", place, last, path[1:]):
        old_node = node_hash(step, old_node) if is_left else old_node
        new_node = node_hash(step, new_node) if is_left else node_hash(new_node, step)
    if not (compare_digest(old_node, old_root) and compare_digest(new_node, new_root)):
        raise ProofError(f"the tree of {new} leaves does not begin with these {old}")


def _check_sizes(proof: Sequence[bytes], *hashes: bytes) -> None:
    if any(len(item) != HASH_BYTES for item in (*proof, *hashes)):
        raise ProofError(f"a hash is not {HASH_BYTES} bytes long")


def _left_width(leaves: int) -> int:
    """Leaves of the left subtree: the largest power of two below ``leaves``, which is at least 2."""
    return 1 << ((leaves - 1).bit_length() - 1)


def _range_root(start: int, end: int, subtree: Subtree) -> bytes:
    """Return the root over ``[start, end)``; ``start`` is a multiple of the size of the largest complete subtree."""
    peaks = []
    while start < end:
        height = (end - start).bit_length() - 1
        peaks.append(subtree(height, start >> height))
        start += 1 << height
    return _joined(peaks)


def _joined(peaks: Sequence[bytes]) -> bytes:
    """Return the root over neighbouring complete subtrees, the largest of which come first."""
    if not peaks:
        return EMPTY_ROOT
    *left, root = peaks
    for peak in reversed(left):
        root = node_hash(peak, root)
    return root


WIDTH: Final = 256
"""Hashes of a full tile."""
HEIGHT: Final = 8
"""Levels of the tree that one level of tiles stands for."""
_LENGTH_BYTES: Final = 2
MAX_BUNDLE_BYTES: Final = WIDTH * (_LENGTH_BYTES + 0xFFFF)


@dataclass(frozen=True, slots=True)
class Tile:
    """Some neighbouring hashes of one level.

    Level 0 has the hashes of leaves. ``index`` is that of the tile in its level, 0-based; ``hashes`` has ``32 * width``
    bytes, width 1 to 256.
    """

    level: int
    index: int
    hashes: bytes

    @property
    def path(self) -> str:
        """The path in the folder of the log."""
        return tile_path(self.level, self.index, len(self.hashes) // HASH_BYTES)


def tile_path(level: int, index: int, width: int = WIDTH) -> str:
    """Path of a tile, partial if ``width`` is below 256."""
    return f"tile/{level}/{_index_path(index)}{_partial(width)}"


def bundle_path(index: int, width: int = WIDTH) -> str:
    """Path of the entries of tile ``index`` of level 0, partial if ``width`` is below 256."""
    return f"tile/entries/{_index_path(index)}{_partial(width)}"


def pack(entry: bytes) -> bytes:
    """An entry as it stands in a bundle. Raises ValueError where it is longer than 65 535 bytes."""
    if len(entry) > 0xFFFF:
        raise ValueError(f"an entry has at most 65535 bytes, not {len(entry)}")
    return len(entry).to_bytes(_LENGTH_BYTES, "big") + entry


def unpack(bundle: bytes, most: int = WIDTH) -> tuple[list[bytes], int]:
    """Split a bundle.

    Returns:
        Its whole entries, at most ``most``, and how many bytes they take; what is left is no whole entry, or one too
        many.
    """
    entries: list[bytes] = []
    at, end = 0, len(bundle)
    while at + _LENGTH_BYTES <= end and len(entries) < most:
        after = at + _LENGTH_BYTES + (bundle[at] << 8 | bundle[at + 1])
        if after > end:
            break
        entries.append(bundle[at + _LENGTH_BYTES : after])
        at = after
    return entries, at


class Levels:
    """The unfinished tiles of a growing tree: at most 255 hashes per level, of which there are ``log256(size)``.

    Args:
        rows: hashes of the unfinished tile of each level, the lowest first, as many as ``size`` says.
        size: number of leaves.

    Raises ValueError if the rows are not those of a tree of this size.
    """

    __slots__ = ("_rows", "size")

    def __init__(self, rows: list[list[bytes]] | None = None, size: int = 0) -> None:
        self._rows = [list(row) for row in rows or []]
        self.size = size
        if [len(row) for row in self._rows] != [size >> HEIGHT * level & 0xFF for level in range(len(self._rows))]:
            raise ValueError(f"these rows are not those of a tree of {size} leaves")
        if size >> HEIGHT * len(self._rows):
            raise ValueError(f"a tree of {size} leaves has more rows")

    def copy(self) -> Levels:
        """The same tree, which grows by itself from here on."""
        return Levels(self._rows, self.size)

    def append(self, leaf: bytes) -> list[Tile]:
        """Add the hash of a leaf, 32 bytes, and return the tiles that are full now, the lowest first."""
        self.size += 1
        full: list[Tile] = []
        for level, row in enumerate(self._rows):
            row.append(leaf)
            if len(row) < WIDTH:
                return full
            full.append(Tile(level, (self.size >> HEIGHT * (level + 1)) - 1, b"".join(row)))
            leaf = complete_root(row)
            row.clear()
        self._rows.append([leaf])
        return full

    def partials(self) -> Iterator[Tile]:
        """The unfinished tiles as they are, the lowest first; a row without hashes makes none."""
        for level, row in enumerate(self._rows):
            if row:
                yield Tile(level, self.size >> HEIGHT * (level + 1), b"".join(row))

    def root(self) -> bytes:
        """Root of the tree as it is, 32 bytes."""
        return _joined([peak for row in reversed(self._rows) for peak in _peaks(row)])


def hashes_of(tile: bytes) -> list[bytes]:
    """The hashes of a tile, 32 bytes each. Raises ValueError where they are not whole, none, or more than 256."""
    if not tile or len(tile) % HASH_BYTES or len(tile) > WIDTH * HASH_BYTES:
        raise ValueError(f"a tile has 1 to {WIDTH} hashes of {HASH_BYTES} bytes, not {len(tile)} bytes")
    return [tile[at : at + HASH_BYTES] for at in range(0, len(tile), HASH_BYTES)]


def _peaks(row: list[bytes]) -> Iterator[bytes]:
    """Yield the roots of the complete subtrees over a row of hashes, the largest first."""
    at = 0
    for height in range(HEIGHT - 1, -1, -1):
        if len(row) >> height & 1:
            yield complete_root(row[at : at + (1 << height)])
            at += 1 << height


def _index_path(index: int) -> str:
    words = [f"{index % 1000:03d}"]
    while index := index // 1000:
        words.append(f"x{index % 1000:03d}")
    return "/".join(reversed(words))


def _partial(width: int) -> str:
    return "" if width == WIDTH else f".p/{width}"
