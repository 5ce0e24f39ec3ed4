"""Layout of a log on disk: tiles of hashes and bundles of entries as C2SP tlog-tiles names and fills them. Pure.

`c2sp.org/tlog-tiles <https://c2sp.org/tlog-tiles>`_: a full tile has 256 hashes of 32 bytes; tile n of level 0 has the
hashes of leaves ``256 n`` and on, and each hash of a level above is the root of a full tile below. What a checkpoint
covers beyond full tiles stands in partial ones, ``.p/<width>``. A bundle has the entries of one tile of level 0, each
behind its length in two bytes, big-endian.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from securefda.audit.merkle import EMPTY_ROOT, HASH_BYTES, complete_root, node_hash

WIDTH: Final = 256
HEIGHT: Final = 8
_LENGTH_BYTES: Final = 2
MAX_BUNDLE_BYTES: Final = WIDTH * (_LENGTH_BYTES + 0xFFFF)


@dataclass(frozen=True, slots=True)
class Tile:
    """Some neighbouring hashes of one level.

    Attributes:
        level: 0 for hashes of leaves.
        index: of the tile in its level, 0-based.
        hashes: ``32 * width`` bytes, width 1 to 256.
    """

    level: int
    index: int
    hashes: bytes

    @property
    def path(self) -> str:
        """Where it lies in the folder of the log."""
        return tile_path(self.level, self.index, len(self.hashes) // HASH_BYTES)


def tile_path(level: int, index: int, width: int = WIDTH) -> str:
    """Path of a tile, partial if ``width`` is below 256."""
    return f"tile/{level}/{_index_path(index)}{_partial(width)}"


def bundle_path(index: int, width: int = WIDTH) -> str:
    """Path of the entries of tile ``index`` of level 0, partial if ``width`` is below 256."""
    return f"tile/entries/{_index_path(index)}{_partial(width)}"


def partials_path(path: str) -> str:
    """The folder with the partial tiles or bundles that the full one at ``path`` replaces."""
    return f"{path}.p"


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

    Raises:
        ValueError: the rows are not those of a tree of this size.
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
        peaks = [peak for row in reversed(self._rows) for peak in _peaks(row)]
        root = peaks.pop() if peaks else EMPTY_ROOT
        while peaks:
            root = node_hash(peaks.pop(), root)
        return root


def hashes_of(tile: bytes) -> list[bytes]:
    """The hashes of a tile, 32 bytes each. Raises ValueError where they are not whole, none, or more than 256."""
    if not tile or len(tile) % HASH_BYTES or len(tile) > WIDTH * HASH_BYTES:
        raise ValueError(f"a tile has 1 to {WIDTH} hashes of {HASH_BYTES} bytes, not {len(tile)} bytes")
    return [tile[at : at + HASH_BYTES] for at in range(0, len(tile), HASH_BYTES)]


def _peaks(row: list[bytes]) -> Iterator[bytes]:
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
