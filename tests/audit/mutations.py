"""Ways to falsify the records of a log, each with the kind and the index that a verification must name."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from forged_logs import log_files
from log_builder import PUBLIC

from securefda.audit.merkle import WIDTH, bundle_path, pack, tile_path, unpack
from securefda.audit.signed_notes import LogName
from securefda.audit.verify import Finding, Verification, verify_log

ANY = ""
"""Kind of a mutation for which several kinds are right."""


@dataclass(frozen=True)
class Mutation:
    """Files that replace those of the log (None: removed), what must be said of it, and who else knows what.

    Attributes:
        known: checkpoints that others hold.
        needed: how many must have cosigned the newest checkpoint.
    """

    what: str
    files: Mapping[str, bytes | None]
    kind: str
    index: int
    known: tuple[bytes, ...] = ()
    needed: int = 2

    def is_found(self, finding: Finding | None) -> bool:
        return finding is not None and self.kind in (ANY, finding.kind) and self.index == finding.index


class Bench:
    """One good log in a folder, which is falsified, verified and restored again and again."""

    def __init__(self, folder: Path, name: LogName) -> None:
        self.folder, self.name = folder, name
        self.files = {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
        self.heads = sorted(int(file[-16:]) for file in self.files if file.startswith("checkpoints/"))
        self.size = self.heads[-1]
        full = [bundle_path(index) for index in range(self.size // WIDTH)]
        self.entries = [entry for path in (*full, "tail") for entry in unpack(self.files[path])[0]]
        self.parts = {path: (place * WIDTH, WIDTH) for place, path in enumerate(full)}
        """Bundles that verification reads: the first place in each, and how many records."""
        if self.size % WIDTH:
            self.parts[bundle_path(len(full), self.size % WIDTH)] = (len(full) * WIDTH, self.size % WIDTH)

    def verify(self, mutation: Mutation) -> Verification:
        for path, data in mutation.files.items():
            self._put(path, data)
        try:
            return verify_log(self.folder, self.name, PUBLIC, witnesses_needed=mutation.needed, known=mutation.known)
        finally:
            for path in mutation.files:
                self._put(path, self.files.get(path))

    def _put(self, path: str, data: bytes | None) -> None:
        file = self.folder / path
        file.unlink(missing_ok=True)  # file systems are slower to cut a file and write it anew
        if data is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)

    def files_of(self, entries: list[bytes]) -> dict[str, bytes | None]:
        """The files that hold the records, with these in them; tiles and checkpoints stay as they are."""
        full = self.size // WIDTH
        parts = {bundle_path(index): entries[index * WIDTH : (index + 1) * WIDTH] for index in range(full)}
        parts["tail"] = entries[full * WIDTH :]
        if self.size % WIDTH:
            parts[bundle_path(full, self.size % WIDTH)] = parts["tail"][: self.size % WIDTH]
        new = {path: b"".join(map(pack, part)) for path, part in parts.items()}
        return {path: data for path, data in new.items() if data != self.files[path]}

    def mutation(self, what: str, entries: list[bytes], kind: str, index: int) -> Mutation:
        return Mutation(what, self.files_of(entries), kind, index)

    def tiles(self) -> dict[str, tuple[int, int]]:
        """Tiles that verification reads: the first record under each, and how many are under one of its hashes."""
        found = {}
        for level in range(2):
            count = self.size >> 8 * level
            for index in range(-(-count // WIDTH)):
                width = min(WIDTH, count - index * WIDTH)
                found[tile_path(level, index, width)] = (index * WIDTH << 8 * level, 1 << 8 * level)
        return found


def last_head_before(bench: Bench, index: int) -> int:
    return max([0, *(size for size in bench.heads if size <= index)])


def edits(bench: Bench, index: int, rng: random.Random) -> Iterator[Mutation]:
    old = bench.entries[index]
    at = rng.randrange(len(old))
    changed = [
        old[:at] + bytes([old[at] ^ 1 << rng.randrange(8)]) + old[at + 1 :],
        old[:at] + old[at + 1 :],
        old[:at] + b"0" + old[at:],
        old.replace(b'"round":', b'"round":1'),
        old.replace(b'"seq":', b'"seq":9'),
        b"",
        bench.entries[index - 1],
        bench.entries[(index + 3) % bench.size],
    ]
    for new in changed:
        entries = [*bench.entries[:index], new, *bench.entries[index + 1 :]]
        yield bench.mutation(f"edit {index} at {at}", entries, "edited", index)


def deletions(bench: Bench, index: int, rng: random.Random) -> Iterator[Mutation]:
    for count in (1, 2, rng.randint(1, bench.size)):
        entries = bench.entries[:index] + bench.entries[index + count :]
        kind = "truncated" if len(entries) == index else "deleted"
        yield bench.mutation(f"delete {count} at {index}", entries, kind, index)


def truncations(bench: Bench, index: int, rng: random.Random) -> Iterator[Mutation]:
    yield bench.mutation(f"truncate at {index}", bench.entries[:index], "truncated", index)
    files = bench.files_of(bench.entries[:index])
    if index // WIDTH == bench.size // WIDTH:
        last = pack(bench.entries[index])
        files["tail"] = b"".join(map(pack, bench.entries[index // WIDTH * WIDTH : index]))
        files["tail"] += last[: rng.randint(1, len(last) - 1)]
        yield Mutation(f"cut within {index}", files, "truncated", index)


def moves(bench: Bench, index: int, rng: random.Random) -> Iterator[Mutation]:
    for other in {index + 1, rng.randrange(bench.size), bench.size - 1} - {index}:
        first, second = sorted((index, other))
        if second >= bench.size:
            continue
        swapped = list(bench.entries)
        swapped[first], swapped[second] = swapped[second], swapped[first]
        yield bench.mutation(f"swap {first} and {second}", swapped, "reordered", first)
        later = list(bench.entries)
        later.insert(second, later.pop(first))
        yield bench.mutation(f"move {first} to {second}", later, "reordered", first)
        if second > first + 1:
            sooner = list(bench.entries)
            sooner.insert(first, sooner.pop(second))
            yield bench.mutation(f"move {second} to {first}", sooner, "reordered", first)


def insertions(bench: Bench, index: int, rng: random.Random) -> Iterator[Mutation]:
    old = bench.entries[index]
    for new in (b"{}", old.replace(b'"round":', b'"round":1'), bench.entries[rng.randrange(bench.size)]):
        entries = [*bench.entries[:index], new, *bench.entries[index:]]
        same = new == old  # then the first of the two is in its place
        yield bench.mutation(f"insert at {index}", entries, "inserted", index + 1 if same else index)


def tile_edits(bench: Bench, index: int, rng: random.Random) -> Iterator[Mutation]:
    width = min(WIDTH, bench.size - index // WIDTH * WIDTH)
    path = next(
        file
        for file in bench.files
        if file.startswith("tile/0/")
        and len(bench.files[file]) == 32 * width
        and int(file.removeprefix("tile/0/")[:3]) == index // WIDTH
    )
    at = index % WIDTH * 32 + rng.randrange(32)
    data = bytearray(bench.files[path])
    data[at] ^= 1 << rng.randrange(8)
    yield Mutation(f"tile {path} at {index}", {path: bytes(data)}, "edited", index)
    entries = [
        *bench.entries[:index],
        bench.entries[index].replace(b'"round":', b'"round":1'),
        *bench.entries[index + 1 :],
    ]
    both = {**bench.files_of(entries), path: bytes(data)}
    yield Mutation(f"record and tile at {index}", both, "edited", last_head_before(bench, index))


def duplications(bench: Bench, index: int, rng: random.Random) -> Iterator[Mutation]:
    count = rng.randint(1, bench.size - index)
    block = bench.entries[index : index + count]
    if index + count < bench.size:
        again = [*bench.entries[: index + count], *block, *bench.entries[index + count :]]
        yield bench.mutation(f"{count} at {index} twice", again, "inserted", index + count)
    later = rng.randrange(index + 1, bench.size + 1)
    if later < bench.size:
        copied = [*bench.entries[:later], bench.entries[index], *bench.entries[later:]]
        yield bench.mutation(f"{index} again at {later}", copied, "inserted", later)


def blocks(bench: Bench, index: int, rng: random.Random) -> Iterator[Mutation]:
    """Several neighbours change places with others, or turn round; also over the border of a bundle."""
    cuts = sorted({index, *(rng.randint(index, bench.size) for _ in range(3))})
    if len(cuts) == 4:
        first, second, third, last = cuts
        parts = bench.entries[third:last] + bench.entries[second:third] + bench.entries[first:second]
        entries = bench.entries[:first] + parts + bench.entries[last:]
        yield bench.mutation(f"swap blocks {cuts}", entries, "reordered", index)
    if cuts[-1] - index > 1:
        entries = bench.entries[:index] + bench.entries[index : cuts[-1]][::-1] + bench.entries[cuts[-1] :]
        yield bench.mutation(f"turn {index} to {cuts[-1]} round", entries, "reordered", index)


def several(bench: Bench, index: int, rng: random.Random) -> Iterator[Mutation]:
    """Something at this place, and something else behind it: the first is what counts."""
    later = rng.randrange(index, bench.size)
    entries = list(bench.entries)
    for place in sorted({index, *(rng.randrange(later, bench.size) for _ in range(rng.randint(1, 3)))}, reverse=True):
        junk = entries[place].replace(b'"round":', b'"round":%d' % rng.randint(1, 9))
        entries[place : place + 1] = rng.choice(([], [junk], [junk, entries[place]], [junk, junk]))
    yield bench.mutation(f"several from {index} on", entries, ANY, index)


def remade_tiles(bench: Bench, index: int, rng: random.Random) -> Iterator[Mutation]:
    """Records are changed and the tiles made anew, without the key: the next checkpoint does not hold."""
    old = bench.entries[index]
    new = old.replace(b'"bytes":', b'"bytes":%d' % rng.randint(1, 9))
    entries = [*bench.entries[:index], new, *bench.entries[index + 1 :]]
    tiles = {path: data for path, data in log_files(entries, (bench.size,)).items() if path in bench.tiles()}
    files = {**bench.files_of(entries), **tiles}
    yield Mutation(f"edit {index}, tiles made anew", files, "edited", last_head_before(bench, index))


EVERYWHERE = (
    edits,
    deletions,
    truncations,
    moves,
    insertions,
    tile_edits,
    duplications,
    blocks,
    several,
    remade_tiles,
)
"""Mutations that can be made at every place."""
