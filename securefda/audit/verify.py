"""Verification of one log without its party: every record, tile, root, signature and cosignature, and what is wrong.

What it shows, where nothing is found: the records that the newest checkpoint covers are those that the party's key
signed, in their order, none missing. That the party did not show others something else is for the cosignatures, and for
the checkpoints that others hold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from securefda.audit.findings import Finding, Kind, Verification
from securefda.audit.heads import Head, HeadReader, Unfit
from securefda.audit.names import LogName
from securefda.audit.store import AuditError, read_tile
from securefda.audit.tiles import WIDTH
from securefda.audit.walk import Divergence, Walk

_SAID: Final[Mapping[Kind, str]] = {
    "edited": "the record is not the one that was signed",
    "reordered": "the record belongs to a later place",
    "deleted": "the record that was signed is not there",
    "inserted": "the record was put in front of the one that was signed",
    "forked": "the party's key signed this record and another one in its place",
}


def verify_log(
    folder: Path,
    name: LogName,
    keys: Mapping[str, bytes],
    *,
    witnesses_needed: int = 0,
    known: Sequence[bytes] = (),
    progress: Callable[[int, int], None] = lambda _read, _covered: None,
) -> Verification:
    """Verify the log in a folder, in one pass and bounded memory; nothing is written.

    The log may be written meanwhile: what is judged is what its newest checkpoint covers when this begins. Records
    behind it are read as far as they are whole.

    Args:
        folder: the log of one run.
        name: whose log of which run it should be.
        keys: raw Ed25519 public key of every party by site id, 32 bytes each, also of those that are not witnesses.
        witnesses_needed: how many parties must have cosigned the newest checkpoint.
        known: checkpoints of this log that others hold, as notes.
        progress: called now and then with how many records were read, and how many the newest checkpoint covers.

    Raises:
        ValueError: ``keys`` has no key of the party, or a known checkpoint is none of this log by this party.
    """
    if name.party not in keys:
        raise ValueError(f"there is no public key of {name.party}")
    reader = HeadReader(name, keys)
    outside = reader.known(known)
    try:
        heads = reader.read(folder)
    except Unfit as error:
        return Verification(0, 0, b"", (), error.finding, ())
    newest = heads[-1]
    anchors = [*outside, *(head for head in heads if len(head.witnesses) >= max(witnesses_needed, 1))]
    vouched = frozenset((head.size, head.root) for head in anchors)
    walk = Walk(folder, name, _by_size([*heads, *outside]), newest.size, vouched, progress)
    finding: Finding | None
    try:
        finding = _judge(walk.run(), heads, outside, witnesses_needed)
    except AuditError as error:
        finding = Finding("unreadable", walk.levels.size, exact=False, what=error.what)
    notes = _notes(walk, outside)
    return Verification(walk.levels.size, newest.size, newest.root, newest.witnesses, finding, notes)


def _by_size(heads: Sequence[Head]) -> dict[int, tuple[bytes, ...]]:
    roots: dict[int, tuple[bytes, ...]] = {}
    for head in heads:
        roots[head.size] = (*roots.get(head.size, ()), head.root)
    return roots


def _judge(walk: Walk, heads: Sequence[Head], outside: Sequence[Head], needed: int) -> Finding | None:
    """The first that applies; what the tree proves comes before what records say of themselves."""
    if walk.divergence is not None:
        return _judge_divergence(walk, walk.divergence, needed)
    if walk.mismatch is not None:
        return _judge_mismatch(walk, heads, needed)
    if walk.wrong is not None and walk.wrong.index < walk.covered:
        return walk.wrong
    if walk.levels.size < walk.covered:
        what = f"there are {walk.levels.size} records of {walk.covered} that were signed"
        return Finding("truncated", walk.levels.size, exact=True, what=what)
    return walk.damaged or walk.wrong or _judge_whole(walk, heads, outside, needed)


def _judge_whole(walk: Walk, heads: Sequence[Head], outside: Sequence[Head], needed: int) -> Finding | None:
    """What can be wrong with a log that is what its newest checkpoint signs."""
    if outside and outside[-1].size > walk.levels.size:
        what = f"somebody holds a checkpoint of {outside[-1].size} records, this log signs {walk.covered}"
        return Finding("replayed", walk.covered, exact=True, what=what)
    if walk.torn:
        what = f"the last {walk.torn} bytes are no whole record"
        return Finding("torn", walk.levels.size, exact=True, what=what)
    return _judge_witnesses(heads, needed)


def _judge_divergence(walk: Walk, found: Divergence, needed: int) -> Finding:
    signed = _tiles_are_signed(walk, found)
    if signed:
        kind: Kind = "forked" if walk.matched_later else _classify(walk, found)
        return Finding(kind, found.index, exact=True, what=_SAID[kind])
    if walk.matched_later:
        return Finding(
            "edited", found.index, exact=True, what="the tile is not made of the records, which are as signed"
        )
    return _unlocated(walk, needed)


def _classify(walk: Walk, found: Divergence) -> Kind:
    """What was done to the record at a place where the tiles are right and the record is not."""
    moved = found.seq > found.index and not found.got_again and _is_from_later(walk, found)
    if found.expected_later:
        return "reordered" if moved else "inserted"
    return "deleted" if moved else "edited"


def _is_from_later(walk: Walk, found: Divergence) -> bool:
    """Tell whether the record at the divergence is the one that belongs where it says that it does.

    No tile says what belongs behind the checkpoint: there, the record was edited if the next one is in its place. Where
    none is left, it was edited if the count is right, unless it is the very first that is not signed.
    """
    if found.seq >= walk.covered and found.next_seq is None:
        return walk.levels.size < walk.covered or found.seq == walk.covered
    if found.seq >= walk.covered:
        return found.next_seq != found.index + 1
    try:
        return _tile(walk, found.seq // WIDTH)[found.seq % WIDTH] == found.got
    except AuditError:
        return False


def _tile(walk: Walk, number: int) -> list[bytes]:
    return read_tile(walk.folder, 0, number, min(WIDTH, walk.covered - number * WIDTH))


def _tiles_are_signed(walk: Walk, found: Divergence) -> bool:
    """Tell whether the tiles have the root of the first checkpoint in the log behind the divergence."""
    size = min(size for size in walk.heads if size > found.index)
    levels = found.levels
    try:
        while levels.size < size:
            number, first = divmod(levels.size, WIDTH)
            tile = _tile(walk, number)  # the one that the records were held against
            for leaf in tile[first : size - number * WIDTH]:
                levels.append(leaf)
    except AuditError:
        return False
    return levels.root() in walk.heads[size]


def _judge_mismatch(walk: Walk, heads: Sequence[Head], needed: int) -> Finding:
    size = walk.mismatch
    if walk.matched_later or all(head.size != size for head in heads) or len(set(walk.heads[size or 0])) > 1:
        what = f"the checkpoint of {size} records is of others than these, and another checkpoint contradicts it"
        return Finding("forked", walk.anchored, exact=False, what=what)
    return _unlocated(walk, needed)


def _unlocated(walk: Walk, needed: int) -> Finding:
    """Neither records nor tiles lead to the signed root: what the records say of their places is all there is.

    Where witnesses are needed, what the party alone signed before that place counts for nothing: its key may be stolen.
    """
    last = walk.anchored if needed else walk.good
    if walk.wrong is not None and walk.wrong.index >= last:
        return walk.wrong
    return Finding("edited", last, exact=False, what="records and tiles behind this place are not what was signed")


def _judge_witnesses(heads: Sequence[Head], needed: int) -> Finding | None:
    witnessed = max((head.size for head in heads if len(head.witnesses) >= needed), default=0)
    if witnessed == heads[-1].size:
        return None
    what = f"{len(heads[-1].witnesses)} of {needed} witnesses cosigned the newest checkpoint"
    return Finding("missing-cosignature", witnessed, exact=False, what=what)


def _notes(walk: Walk, outside: Sequence[Head]) -> tuple[str, ...]:
    notes = []
    if outside and walk.covered < outside[-1].size <= walk.levels.size:  # the party died before it had saved it
        notes.append(f"the checkpoint of {outside[-1].size} records that others hold is not kept here; it holds")
    if walk.backwards:
        notes.append(f"{walk.backwards} records are older than one before them by more than 5 minutes")
    if walk.levels.size > walk.covered:
        notes.append(f"{walk.levels.size - walk.covered} records behind the newest checkpoint are not signed yet")
    return tuple(notes)
