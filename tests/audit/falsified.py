"""All ways to falsify a log, drawn by chance: what the benchmark and the tests go through."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Sequence

import file_mutations
import forgeries
import mutations
from mutations import EVERYWHERE, Bench, Mutation

_TRIES = 200
"""Draws of a class without a new mutation until it is taken to have no more."""

Draw = Callable[[Bench, random.Random], Mutation | None]


def _somewhere(make: Callable[[Bench, int, random.Random], Iterator[Mutation]]) -> Draw:
    def draw(bench: Bench, rng: random.Random) -> Mutation | None:
        index = rng.choice((rng.randrange(bench.size), rng.choice(_borders(bench))))
        found = list(make(bench, index, rng))
        return rng.choice(found) if found else None

    return draw


def _borders(bench: Bench) -> list[int]:
    """The first and the last records of bundles and of what checkpoints cover."""
    places = {0, *bench.heads, *range(0, bench.size + 1, mutations.WIDTH)}
    return sorted(place for border in places for place in (border - 1, border) if 0 <= place < bench.size)


CLASSES: dict[str, Draw] = {
    **{make.__name__.replace("_", " "): _somewhere(make) for make in EVERYWHERE},
    **{
        make.__name__.replace("_", " "): make
        for make in (
            file_mutations.record_byte,
            file_mutations.length_prefix,
            file_mutations.bundle_cut,
            file_mutations.tile_byte,
            file_mutations.tile_length,
            file_mutations.tile_hashes,
            file_mutations.checkpoint_byte,
            file_mutations.checkpoint_cut,
            file_mutations.cosignature,
            file_mutations.other_checkpoint,
            file_mutations.garbage_behind,
            file_mutations.missing_file,
            forgeries.stolen_key,
            forgeries.fork,
            forgeries.fork_beside_its_other_checkpoint,
            forgeries.false_checkpoint_before_a_true_one,
            forgeries.fork_in_one_checkpoint,
            forgeries.old_state,
            forgeries.other_log,
            forgeries.other_records,
        )
    },
}
"""Name -> draws one mutation, or None."""


def drawn(benches: Sequence[Bench], seed: int, count: int) -> Iterator[tuple[str, Bench, Mutation]]:
    """So many mutations, no two alike: one of each class in turn, while it has any.

    Args:
        benches: good logs; the first has most of the mutations, each of the others one in eight.
    """
    seen: set[bytes] = set()
    open_classes = {name: random.Random(f"{seed} {name}") for name in CLASSES}
    while len(seen) < count and open_classes:
        for name, rng in list(open_classes.items()):
            for _ in range(_TRIES):
                bench = benches[max(0, rng.randrange(8) - (8 - len(benches)))]
                mutation = CLASSES[name](bench, rng)
                key = None if mutation is None else _key(bench, mutation)
                if key is not None and key not in seen:
                    break
            else:
                del open_classes[name]
                continue
            assert mutation is not None
            assert key is not None
            seen.add(key)
            yield name, bench, mutation
            if len(seen) == count:
                return


def _key(bench: Bench, mutation: Mutation) -> bytes | None:
    """What tells two mutations apart: of which log, what is changed, and what others know."""
    changes = {path: data for path, data in mutation.files.items() if data != bench.files.get(path)}
    if not changes:
        return None
    said = (str(bench.folder), sorted(changes.items(), key=lambda item: item[0]), mutation.known, mutation.needed)
    return hashlib.sha256(repr(said).encode()).digest()
