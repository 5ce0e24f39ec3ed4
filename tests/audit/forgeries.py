"""Logs that are whole and signed, and are not what was signed before: forks, old states, other logs, a stolen key."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from forged_logs import log_files
from log_builder import NAME, WITNESSES
from mutations import Bench, Mutation


def in_place(bench: Bench, files: Mapping[str, bytes]) -> dict[str, bytes | None]:
    """Such files instead of those of the log, of which the lock stays."""
    gone: dict[str, bytes | None] = {path: None for path in bench.files if path not in files and path != "lock"}
    return gone | dict(files)


def changed(bench: Bench, rng: random.Random) -> tuple[int, list[bytes]]:
    """A place and the records of a log that says something else from there on: all of them in the one form."""
    first = rng.randrange(bench.size)
    entries = list(bench.entries[: bench.size])
    for place in {first, *(rng.randrange(first, bench.size) for _ in range(rng.randint(0, 3)))}:
        entries[place] = entries[place].replace(b'"bytes":', b'"bytes":%d' % rng.randint(1, 999))
    return first, entries


def note_of(bench: Bench, size: int) -> bytes:
    return bench.files[f"checkpoints/{size:016d}"]


def stolen_key(bench: Bench, rng: random.Random) -> Mutation:
    """A holder of the log's key signs everything again; too few witnesses, or none, cosign.

    He leaves what they signed before, up to where it still holds.
    """
    first, entries = changed(bench, rng)
    witnesses = rng.choice(((), (), WITNESSES[:1], WITNESSES[1:]))
    files = log_files(entries, bench.heads, witnesses=witnesses)
    kept = [size for size in bench.heads if size <= first and rng.random() < 0.7]
    files |= {f"checkpoints/{size:016d}": note_of(bench, size) for size in kept}
    what = f"signed anew from {first} on, {len(witnesses)} witnesses, kept {kept}"
    return Mutation(what, in_place(bench, files), "missing-cosignature", max([0, *kept]))


def fork(bench: Bench, rng: random.Random) -> Mutation:
    """The party signs a second tree, which witnesses cosign or not; somebody has a checkpoint of the first.

    What witnesses cosigned is trusted up to the first checkpoint that is contradicted.
    """
    first, entries = changed(bench, rng)
    known = sorted(size for size in bench.heads if rng.random() < 0.6)
    known = known if any(size > first for size in known) else [*known, bench.heads[-1]]
    needed = rng.choice((0, 2))
    witnesses = rng.choice(((), WITNESSES))
    files = log_files(entries, bench.heads, witnesses=witnesses)
    contradicted = min(size for size in known if size > first)
    cosigned = bench.heads if witnesses else known
    trusted = max([0, *(size for size in cosigned if size < contradicted)])
    what = f"fork at {first}, {len(witnesses)} witnesses, others hold {known}"
    notes = tuple(note_of(bench, size) for size in known)
    return Mutation(what, in_place(bench, files), "forked", trusted, notes, needed)


def fork_beside_its_other_checkpoint(bench: Bench, rng: random.Random) -> Mutation:
    """The same, and a checkpoint of the first tree still lies in the log, before the newest of the second."""
    first, entries = changed(bench, rng)
    first = min(first, bench.heads[-2] - 1)
    entries[first] = bench.entries[first].replace(b'"bytes":', b'"bytes":%d' % rng.randint(1, 999))
    files = log_files(entries, bench.heads, witnesses=rng.choice(((), WITNESSES)))
    left = [size for size in bench.heads[:-1] if size > first]
    left = [size for size in left if rng.random() < 0.5] or left[-1:]
    kept = [size for size in bench.heads if size <= first and rng.random() < 0.7]
    files |= {f"checkpoints/{size:016d}": note_of(bench, size) for size in (*left, *kept)}
    cosigned = bench.heads if b"site-b" in files["checkpoint"] else kept
    trusted = max([0, *(size for size in cosigned if size < min(left))])
    what = f"fork at {first}, checkpoints of {left} and {kept} are of the other tree"
    return Mutation(what, in_place(bench, files), "forked", trusted)


def false_checkpoint_before_a_true_one(bench: Bench, rng: random.Random) -> Mutation:
    """A holder of the log's key signs changed records; the newest checkpoint is that of the witnesses."""
    first, entries = changed(bench, rng)
    entries[-1] = bench.entries[bench.size - 1]
    first = min(first, bench.heads[-2] - 1)
    entries[first] = bench.entries[first].replace(b'"bytes":', b'"bytes":%d' % rng.randint(1, 999))
    files = log_files(entries, bench.heads, witnesses=())
    kept = [size for size in bench.heads if size <= first]
    files |= {f"checkpoints/{size:016d}": note_of(bench, size) for size in (*kept, bench.size)}
    files["checkpoint"] = note_of(bench, bench.size)
    what = f"signed anew from {first} on, but for the newest checkpoint"
    return Mutation(what, in_place(bench, files), "edited", max([0, *kept]))


def fork_in_one_checkpoint(bench: Bench, rng: random.Random) -> Mutation:
    """The records are as signed; beside their checkpoints lies one of a second tree."""
    first, entries = changed(bench, rng)
    other = log_files(entries, bench.heads, witnesses=rng.choice(((), WITNESSES)))
    size = rng.choice([size for size in bench.heads if size > first])
    path = "checkpoint" if size == bench.size else f"checkpoints/{size:016d}"
    before = max([0, *(head for head in bench.heads if head < size)])
    return Mutation(f"{path} is of a tree that forks at {first}", {path: other[path]}, "forked", before)


def old_state(bench: Bench, rng: random.Random) -> Mutation:
    """The log as it was at an earlier checkpoint, or between two; somebody holds a later one."""
    old, after = rng.choice(list(zip(bench.heads, bench.heads[1:], strict=False)))
    until = rng.randrange(old, after)
    files = log_files(bench.entries[:until], [size for size in bench.heads if size <= old])
    known = {rng.choice([size for size in bench.heads if size > old]), *rng.sample(bench.heads, rng.randint(0, 2))}
    notes = tuple(note_of(bench, size) for size in sorted(known))
    return Mutation(f"as at {until}, known {sorted(known)}", in_place(bench, files), "replayed", old, notes)


def other_log(bench: Bench, rng: random.Random) -> Mutation:
    """The log of another run, party or federation: all of it, or its records and tiles under our checkpoints."""
    number = rng.randint(2, 999)
    kind, name = rng.choice(
        (
            ("replayed", replace(NAME, run=f"run-{number}")),
            ("wrong-party", replace(NAME, party=f"site-{rng.choice('bcd')}")),
            ("wrong-party", replace(NAME, federation=f"lungs-{number}")),
        )
    )
    entries = [_said_by(entry, name.party, name.run) for entry in bench.entries[: bench.size]]
    if rng.random() < 0.5:
        entries = [re.sub(rb'"bytes":(\d)', b'"bytes":%d\\1' % number, entry) for entry in entries]
    files = log_files(entries, bench.heads, name)
    if rng.random() < 0.5 and name.federation == NAME.federation:
        ours = {path: None for path in files if path.startswith("checkpoint")}
        files = {path: data for path, data in files.items() if path not in ours}
        kept: Sequence[str] = [path for path in bench.files if path.startswith("checkpoint")]
        files |= {path: bench.files[path] for path in kept}
    return Mutation(f"log of {name.origin}", in_place(bench, files), kind, 0)


def other_records(bench: Bench, rng: random.Random) -> Mutation:
    """Records of another run or party stand among ours, in the place of as many, under our tiles or with theirs."""
    first = rng.randrange(bench.size)
    count = rng.randint(1, bench.size - first)
    party, run, kind = rng.choice((("site-b", NAME.run, "wrong-party"), (NAME.party, "run-2", "replayed")))
    strange = [_said_by(entry, party, run) for entry in bench.entries[first : first + count]]
    entries = [*bench.entries[:first], *strange, *bench.entries[first + count :]]
    files = bench.files_of(entries)
    if rng.random() < 0.5:
        made = log_files(entries[: bench.size], (bench.size,))
        files |= {path: made[path] for path in bench.tiles()}
    else:
        kind = "edited"
    return Mutation(f"{count} records of {party} in {run} at {first}", files, kind, first)


def _said_by(entry: bytes, party: str, run: str) -> bytes:
    entry = entry.replace(b'"party":"site-a"', b'"party":"%s"' % party.encode())
    return entry.replace(b'"run":"run-1"', b'"run":"%s"' % run.encode())
