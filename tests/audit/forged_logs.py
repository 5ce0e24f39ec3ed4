"""A log's files made in memory from any records, as a holder of the party's key can make them."""

from __future__ import annotations

from collections.abc import Sequence

from log_builder import KEYS, NAME, WITNESSES, witness_key

from securefda.audit.merkle import HEIGHT, WIDTH, Levels, bundle_path, leaf_hash, pack
from securefda.audit.signed_notes import Checkpoint, LogName, Note, cosign, sign

TIME = 1_800_000_000


def signed_note(
    size: int, root: bytes, name: LogName = NAME, witnesses: Sequence[str] = WITNESSES, *, by: str = ""
) -> Note:
    """A checkpoint with its cosignatures; ``by`` another party's key where one is named."""
    text = Checkpoint(name.origin, size, root).to_text()
    note = Note(text, (sign(text, name.origin, KEYS[by or name.party]),))
    for party in witnesses:
        note = note.signed(cosign(text, witness_key(party, name.federation).name, KEYS[party], TIME))
    return note


def log_files(
    entries: Sequence[bytes],
    sizes: Sequence[int],
    name: LogName = NAME,
    witnesses: Sequence[str] = WITNESSES,
) -> dict[str, bytes]:
    """The files that the writer leaves which appended these entries and signed at these sizes, but for its lock."""
    files: dict[str, bytes] = {}
    levels = Levels()
    for size in range(len(entries) + 1):
        for tile in levels.append(leaf_hash(entries[size - 1])) if size else []:
            files[tile.path] = tile.hashes
            _drop(files, tile.path)
            if tile.level == 0:
                files[bundle_path(tile.index)] = b"".join(map(pack, entries[size - WIDTH : size]))
                _drop(files, bundle_path(tile.index))
        if size in sizes:
            files |= {tile.path: tile.hashes for tile in levels.partials()}
            note = signed_note(size, levels.root(), name, witnesses).to_bytes()
            files |= {f"checkpoints/{size:016d}": note, "checkpoint": note}
    first = len(entries) // WIDTH * WIDTH
    files["tail"] = b"".join(map(pack, entries[first:]))
    if first < (signed := max(sizes)):
        files[bundle_path(signed >> HEIGHT, signed % WIDTH)] = b"".join(map(pack, entries[first:signed]))
    return files


def _drop(files: dict[str, bytes], path: str) -> None:
    for partial in [name for name in files if name.startswith(f"{path}.p/")]:
        del files[partial]
