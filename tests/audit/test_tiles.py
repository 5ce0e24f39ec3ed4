"""Names and contents of tiles and bundles, as C2SP tlog-tiles lays them out."""

from __future__ import annotations

import pytest
from tree_builder import mth

from securefda.audit.merkle import (
    WIDTH,
    Levels,
    Tile,
    bundle_path,
    hashes_of,
    leaf_hash,
    pack,
    tile_path,
    unpack,
)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (tile_path(0, 0), "tile/0/000"),
        (tile_path(1, 999), "tile/1/999"),
        (tile_path(0, 1000), "tile/0/x001/000"),
        (tile_path(63, 1234067), "tile/63/x001/x234/067"),
        (tile_path(0, 273, 112), "tile/0/273.p/112"),
        (bundle_path(1234067), "tile/entries/x001/x234/067"),
        (bundle_path(0, 255), "tile/entries/000.p/255"),
    ],
)
def test_paths_are_those_of_the_specification(path: str, expected: str) -> None:
    assert path == expected


def test_tree_of_70000_has_the_tiles_that_the_specification_counts() -> None:
    levels, full = Levels(), []
    for number in range(70_000):
        full += [(tile.level, tile.index) for tile in levels.append(leaf_hash(b"%d" % number))]

    assert sorted(full) == [*((0, index) for index in range(273)), (1, 0)]
    assert [tile.path for tile in levels.partials()] == ["tile/0/273.p/112", "tile/1/001.p/17", "tile/2/000.p/1"]


def test_tree_of_256_has_a_full_tile_and_a_partial_one_above() -> None:
    levels = Levels()
    full = [tile for number in range(256) for tile in levels.append(leaf_hash(b"%d" % number))]

    assert [tile.path for tile in full] == ["tile/0/000"]
    assert [tile.path for tile in levels.partials()] == ["tile/1/000.p/1"]
    assert next(levels.partials()).hashes == levels.root() == mth([b"%d" % number for number in range(256)])


def test_roots_are_those_of_the_tree_at_every_size_and_a_copy_grows_alone() -> None:
    entries = [b"%d" % number for number in range(600)]
    levels = Levels()
    for size, entry in enumerate(entries):
        assert levels.size == size
        if size < 20 or size % 97 == 0 or size in (255, 256, 257, 511, 512, 513):
            assert levels.root() == mth(entries[:size])
        levels.copy().append(bytes(32))
        levels.append(leaf_hash(entry))


@pytest.mark.parametrize(
    ("rows", "size"), [([], 1), ([[]], 1), ([[bytes(32)]], 2), ([[]], 256), ([[bytes(32)], []], 257)]
)
def test_rows_of_another_size_make_no_tree(rows: list[list[bytes]], size: int) -> None:
    with pytest.raises(ValueError, match="tree of"):
        Levels(rows, size)


def test_bundle_gives_back_its_entries_and_says_where_it_is_cut() -> None:
    entries = [b"", b"a", b"x" * 65_535]
    bundle = b"".join(map(pack, entries))

    assert bundle[:5] == b"\0\0\0\1a"
    assert unpack(bundle) == (entries, len(bundle))
    for cut in (0, 1, 2, 3, 4, 5, 6, len(bundle) - 1):
        found, taken = unpack(bundle[:cut])
        assert found == entries[: len(found)]
        assert taken == sum(map(len, map(pack, found)))
        assert taken <= cut


def test_bundle_has_at_most_256_entries() -> None:
    assert unpack(pack(b"a") * 300) == ([b"a"] * WIDTH, 3 * WIDTH)


def test_entry_whose_length_no_bundle_can_say_is_refused() -> None:
    with pytest.raises(ValueError, match="65535"):
        pack(bytes(65_536))


@pytest.mark.parametrize("length", [0, 31, 33, 32 * 257])
def test_tile_has_1_to_256_whole_hashes(length: int) -> None:
    assert hashes_of(bytes(64)) == [bytes(32)] * 2
    with pytest.raises(ValueError, match="hashes"):
        hashes_of(bytes(length))


def test_tile_is_named_for_its_width() -> None:
    assert Tile(2, 5, bytes(64)).path == "tile/2/005.p/2"
    assert Tile(2, 5, bytes(32 * 256)).path == "tile/2/005"
