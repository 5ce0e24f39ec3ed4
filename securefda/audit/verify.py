"""Verifies one log without its party: every record, tile, root, signature and cosignature.

Without a finding it shows that the records that the newest checkpoint covers are those that the party's key signed, in
order and complete. Cosignatures, and checkpoints that others hold, show that the party did not present another log to
others.

All checkpoints are read and their signatures checked before any record is read. One pass then compares the records on
disk with their tiles. Memory does not grow with the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Final, Literal

from securefda.audit.log_files import (
    CHECKPOINT,
    CHECKPOINTS,
    TAIL,
    AuditError,
    checkpoint_path,
    checkpoint_sizes,
    read,
    read_bundle,
    read_tile,
)
from securefda.audit.log_records import NewerVersion, Record, RecordError
from securefda.audit.merkle import HEIGHT, MAX_BUNDLE_BYTES, WIDTH, Levels, Tile, bundle_path, leaf_hash, unpack
from securefda.audit.reading import being_written
from securefda.audit.signed_notes import (
    FORMAT,
    MAX_NOTE_BYTES,
    ML_DSA_65,
    Checkpoint,
    LogName,
    Note,
    NoteError,
    block_of,
)
from securefda.text import counted

Kind = Literal[
    "unreadable",  # a file is missing, too long, or no checkpoint, tile or record; also a record that was signed so.
    "truncated",  # there are fewer records than the newest checkpoint of the log signs.
    "torn",  # the last record is not whole, and no checkpoint covers it: what a crash leaves. The writer cuts it off.
    "edited",  # a record, or a file that is made of them, is not what was signed.
    "reordered",  # a record was moved.
    "deleted",  # a record was taken out.
    "inserted",  # a record was put in.
    "forked",  # the log's key signed two trees of which neither begins with the other.
    "replayed",  # this is another log, or an earlier state of this one than another site holds a checkpoint of.
    # a checkpoint is not signed by the party, or a known witness' line under it is not by that witness.
    "bad-signature",
    "wrong-party",  # this is the log of another party.
    "newer-version",  # a later release wrote it.
    # too few witnesses vouch for the newest records. A holder of the log's key could have made them.
    "missing-cosignature",
    # the roster has ML-DSA keys, and too few of them vouch for the newest records: anyone who can forge Ed25519 could
    # have made these
    "missing-ml-dsa",
    "wrong-roster",  # the roster at hand is not that of the log (`securefda.audit.verification`).
]
"""Kinds of findings."""

UNVOUCHED: Final[tuple[Kind, ...]] = ("missing-cosignature", "missing-ml-dsa")
"""Findings of logs that are what their party signed, but too few others, or with too few kinds of signatures."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The first fault of a log.

    Attributes:
        kind: one of `Kind`.
        index: the first record that cannot be trusted, 0-based; all records before it are what was signed. If a
            checkpoint itself is at fault, no record was read, and this is the size of the last good checkpoint
            before it.
        exact: whether that very record is wrong. If not, it is the first record after the last checkpoint that still
            holds; if witnesses are needed or the finding is ``"forked"``, only checkpoints with a cosignature count.
        what: one line of words, without any value of a record.
        claim: the record's own description of itself, if somebody has asked for it.
    """

    kind: Kind
    index: int
    exact: bool
    what: str
    claim: str = ""

    def __str__(self) -> str:
        place = f"at record {self.index}" if self.exact else f"from record {self.index} on"
        return f"{self.kind} {place}: {self.what}" + (f" ({self.claim})" if self.claim else "")


@dataclass(frozen=True, slots=True)
class Verification:
    """The state of one log.

    Attributes:
        size: the number of records that were read.
        covered: how many of them the newest checkpoint signs; nothing proves the later ones.
        root: the root that this checkpoint signs, 32 bytes; empty without a checkpoint.
        witnesses: the sites that cosigned it, sorted.
        finding: the first fault, or None.
        notes: oddities that prove nothing, one line each: a clock that went back, records after the checkpoint.
        is_lasting: whether its party signed it with ML-DSA, as far as it must, or has no key for that.
    """

    size: int
    covered: int
    root: bytes
    witnesses: tuple[str, ...]
    finding: Finding | None
    notes: tuple[str, ...]
    is_lasting: bool = True

    @property
    def is_signed(self) -> bool:
        """Whether the log has a checkpoint with valid signatures of its party; anybody could have made another one.

        A checkpoint that lacks a signature of ML-DSA that is due may come from anyone who can forge Ed25519.
        """
        return self.is_lasting and self._has_checkpoint

    @property
    def _has_checkpoint(self) -> bool:
        return bool(self.root) or (self.finding is not None and self.finding.index > 0)


_NONE: Final = "there is no checkpoint, so nothing is proved of it"


@dataclass(frozen=True, slots=True)
class Head:
    """A checkpoint with valid signatures.

    ``size`` is the number of records, ``root`` their root, ``witnesses`` the sites that cosigned it, sorted, and
    ``lasting`` the sites that signed it with ML-DSA, among them its party.
    """

    size: int
    root: bytes
    witnesses: tuple[str, ...]
    lasting: frozenset[str] = frozenset()


class Unfit(Exception):
    """A checkpoint ends the verification for the reason in ``finding``; ``before`` is the size of the last good one."""

    def __init__(self, kind: Kind, before: int, what: str) -> None:
        super().__init__(what)
        self.finding = Finding(kind, before, exact=False, what=what)


class HeadReader:
    """Reads the checkpoints of one log.

    ``keys`` has the Ed25519 public key of every party, also of ``name.party``; ``ml_dsa`` the ML-DSA keys.
    """

    def __init__(self, name: LogName, keys: Mapping[str, bytes], ml_dsa: Mapping[str, bytes]) -> None:
        self._name = name
        self._log_key = name.key(keys[name.party])
        self._witnesses = name.witness_keys(keys)
        self._lasting = name.witness_keys(ml_dsa, ML_DSA_65)
        if name.party in ml_dsa:
            self._lasting[name.key(ml_dsa[name.party], ML_DSA_65)] = name.party

    def read(self, folder: Path) -> list[Head]:
        """Return all checkpoints of a log, the smallest first. Of two copies of one, the better witnessed counts.

        Raises Unfit if a checkpoint cannot be read, belongs to another log, or is not signed as it claims.
        """
        heads: list[Head] = []
        try:
            sizes = checkpoint_sizes(folder)
        except AuditError as error:
            raise Unfit("unreadable", 0, f"{CHECKPOINTS} {error.what}") from error
        for size in sizes:
            before = heads[-1].size if heads else 0
            head = self._read_file(folder / checkpoint_path(size), before)
            # A checkpoint under the name of another could hide that one is missing.
            if head.size != size:
                raise Unfit("replayed", before, f"the checkpoint of {size} records is one of {head.size}")
            heads.append(head)
        public = self._read_file(folder / CHECKPOINT, heads[-1].size if heads else 0)
        for place, head in enumerate(heads):
            if (head.size, head.root) == (public.size, public.root):
                heads[place] = max(head, public, key=lambda copy: (len(copy.witnesses), len(copy.lasting)))
                return heads
        return sorted([*heads, public], key=lambda head: head.size)

    def known(self, notes: Sequence[bytes]) -> list[Head]:
        """Return the checkpoints of this log that others hold, the smallest first.

        Raises ValueError if a note is no checkpoint of this log signed by the party, so it proves nothing.
        """
        try:
            return sorted((self._check(note, 0) for note in notes), key=lambda head: head.size)
        except Unfit as error:
            raise ValueError(f"a checkpoint from outside proves nothing: {error}") from error

    def _read_file(self, path: Path, before: int) -> Head:
        try:
            data = read(path, MAX_NOTE_BYTES)
        except AuditError as error:
            raise Unfit("unreadable", before, error.what) from error
        if data is None:
            raise Unfit("unreadable", before, _NONE)
        return self._check(data, before)

    def _check(self, data: bytes, before: int) -> Head:
        try:
            note = Note.parse(data)
            head = Checkpoint.parse(note.text)
        except NoteError as error:
            raise Unfit("unreadable", before, f"a checkpoint cannot be read: {error}") from error
        # The site's key signs the logs of all its runs, so a valid signature does not say which log this is.
        if head.origin != self._name.origin:
            raise self._of_another_log(head.origin, before)
        try:
            signers = note.check([self._log_key, *self._witnesses, *self._lasting])
        except NoteError as error:
            raise Unfit("bad-signature", before, f"the checkpoint of {head.size} records: {error}") from error
        # Cosignatures alone prove nothing of the party: its witnesses could have made this one together.
        if self._log_key not in signers:
            raise Unfit("bad-signature", before, f"the party did not sign the checkpoint of {head.size} records")
        witnesses = sorted(self._witnesses[key] for key in signers if key in self._witnesses)
        lasting = frozenset(self._lasting[key] for key in signers if key in self._lasting)
        return Head(head.size, head.root, tuple(witnesses), lasting)

    def _of_another_log(self, origin: str, before: int) -> Unfit:
        try:
            other = LogName.parse(origin)
        except ValueError:
            words = origin.split("/")
            newer = len(words) > 1 and words[0] == "securefda" and words[1].isdecimal() and int(words[1][:9]) > FORMAT
            return Unfit("newer-version" if newer else "unreadable", before, "its origin is of no known form")
        if (other.federation, other.party) != (self._name.federation, self._name.party):
            return Unfit("wrong-party", before, f"it is of {other.party} in federation {other.federation}")
        return Unfit("replayed", before, f"it is of run {other.run}")


CLOCK_SLACK: Final = timedelta(minutes=5)
"""How far a clock may go back without a note: NTP corrects it, and threads take the time before they wait."""
_MOST_ENTRIES: Final = 2 * WIDTH
"""Most entries read from one file. It must have 256; more are read to see insertions, but not without end."""


@dataclass(slots=True)
class Divergence:
    """The first place where a record does not hash to what its tile says.

    Attributes:
        index: the place.
        levels: the tree before it.
        expected: the hash that the tile has there.
        got: the hash of the record there.
        seq: the place that this record claims; -1 if it is no record.
        expected_later, got_again: whether the hash was seen at a later place.
        next_seq: the place that the next record claims; -1 if it is no record, None if there is none.
    """

    index: int
    levels: Levels
    expected: bytes
    got: bytes
    seq: int
    expected_later: bool = False
    got_again: bool = False
    next_seq: int | None = None

    def follow(self, index: int, entry: bytes, leaf: bytes) -> None:
        """Take a record after the divergence into account."""
        self.expected_later |= leaf == self.expected
        self.got_again |= leaf == self.got
        if index == self.index + 1:
            self.next_seq = _claimed_seq(entry)


@dataclass(slots=True)
class Walk:
    """The findings of one pass over a log.

    Attributes:
        folder, name: the log, and whose it should be.
        heads: size and root of each checkpoint to compare the records with; several may have one size.
        covered: size of the newest checkpoint in the log.
        anchors: which of the heads another site vouches for, by size and root.
        progress: called after every file with how many records were read, and how many the checkpoint covers.
        good: size of the last checkpoint that held before the first that did not, or before the divergence.
        anchored: size of the last such checkpoint that not only the party vouches for.
        mismatch: size of the first checkpoint whose root differs from that of the records.
        matched_later: whether a checkpoint held at the mismatch, where others did not, or behind it or the divergence.
        wrong: the first record that does not fit its place or its log.
        damaged: the first tile or bundle that disagrees with the records.
        torn: number of bytes after the last whole record.
        backwards: how often the clock went back by more than the slack.
    """

    folder: Path
    name: LogName
    heads: Mapping[int, tuple[bytes, ...]]
    covered: int
    anchors: frozenset[tuple[int, bytes]]
    progress: Callable[[int, int], None]
    levels: Levels = field(default_factory=Levels)
    divergence: Divergence | None = None
    good: int = 0
    anchored: int = 0
    mismatch: int | None = None
    matched_later: bool = False
    wrong: Finding | None = None
    damaged: Finding | None = None
    torn: int = 0
    backwards: int = 0
    _latest: str = ""

    def run(self) -> Walk:
        """Read the log once, and return this walk. Raises AuditError if a bundle cannot be read."""
        self._check_heads()
        for entries in self._bundles():
            tile: list[bytes] = []
            for entry in entries:
                index, leaf = self.levels.size, leaf_hash(entry)
                if self.divergence is not None:
                    self.divergence.follow(index, entry, leaf)
                elif index < self.covered:
                    if index % WIDTH == 0 or not tile:
                        tile = self._tile_from(index)
                    if tile and tile[index % WIDTH] != leaf:
                        # The tree up to here is as signed. `_tiles_are_signed` goes on from it with what the tiles say.
                        before, expected = self.levels.copy(), tile[index % WIDTH]
                        self.divergence = Divergence(index, before, expected, leaf, _claimed_seq(entry))
                # Behind a divergence every record can be in another place than it says, for no fault of its own.
                if self.wrong is None and self.divergence is None:
                    self.wrong = self._fault_of(index, entry)
                for full in self.levels.append(leaf):
                    if self.divergence is None and self.mismatch is None:
                        self._check_tile(full)
                if self.levels.size in self.heads:
                    self._check_heads()
            self.progress(self.levels.size, self.covered)
        return self

    def tile(self, number: int) -> list[bytes]:
        """Return the leaf hashes of a tile, as far as the checkpoint covers them. Raises AuditError."""
        return read_tile(self.folder, 0, number, min(WIDTH, self.covered - number * WIDTH))

    def _bundles(self) -> Iterator[list[bytes]]:
        """Yield the entries of each file in order.

        No record behind a missing bundle can be as signed. After the first one, only the files behind the checkpoint's
        last whole bundle are read, since a checkpoint can sign any number of records.

        The log may be written meanwhile. If the tail becomes a bundle before it is read, the bundle is read instead.
        """
        index = 0
        while True:
            data = read_bundle(self.folder, index)
            if data is None and index < self.covered // WIDTH:
                index = self.covered // WIDTH
                continue
            if data is None:
                last = self._read_last(index)
                data = read_bundle(self.folder, index)
                if data is None:
                    yield self._last_bundle(index, *last)
                    return
            entries, taken = unpack(data, _MOST_ENTRIES)
            if len(entries) != WIDTH or taken < len(data):
                first = index * WIDTH + min(len(entries), WIDTH)
                self._damage("edited", first, f"{bundle_path(index)} has not 256 whole records")
            yield [*entries, data[taken:]] if taken < len(data) else entries
            index += 1

    def _read_last(self, index: int) -> tuple[bytes | None, bytes | None]:
        """Return the tail and the partial bundle that the checkpoint covers."""
        tail = read(self.folder / TAIL, 2 * MAX_BUNDLE_BYTES)
        if tail:
            entries, taken = unpack(tail, _MOST_ENTRIES)
            if taken < len(tail) and len(entries) < WIDTH:
                # Its writer is about to finish the record, or has done so and is gone, or died over it.
                live = being_written(self.folder)
                tail = tail[:taken] if live else read(self.folder / TAIL, 2 * MAX_BUNDLE_BYTES)
        width = self._signed_width(index)
        return tail, read_bundle(self.folder, index, width) if width else None

    def _signed_width(self, index: int) -> int:
        """Return how many records of bundle ``index``, the last one, the checkpoint covers."""
        return self.covered % WIDTH if self.covered // WIDTH == index else 0

    def _last_bundle(self, index: int, tail: bytes | None, signed: bytes | None) -> list[bytes]:
        # A copy for others has no tail: it ends where the checkpoint does
        data = (signed or b"") if tail is None else tail
        entries, taken = unpack(data, _MOST_ENTRIES)
        self.torn = len(data) - taken
        if signed is not None:  # it is written when the log is closed; the tail has the same records and more
            covered = entries[: self._signed_width(index)]
            whole, length = unpack(signed, _MOST_ENTRIES)
            if length < len(signed) or whole != covered:
                first = index * WIDTH + _common(covered, whole)
                self._damage("edited", first, f"{bundle_path(index, len(covered))} is not what the tail says")
        return entries

    def _tile_from(self, index: int) -> list[bytes]:
        """Return the tile of the record at ``index``; nothing if it cannot be read."""
        number = index // WIDTH
        try:
            return self.tile(number)
        except AuditError as error:
            self._damage("unreadable", index, f"a tile of the records from {number * WIDTH} on {error.what}")
            return []

    def _fault_of(self, index: int, entry: bytes) -> Finding | None:
        """Return why a record does not fit its place or its log; None if it does."""
        kind: Kind
        try:
            record = Record.parse(entry)
        except RecordError as error:
            kind = "newer-version" if isinstance(error, NewerVersion) else "unreadable"
            return Finding(kind, index, exact=True, what=str(error))
        if record.party != self.name.party:
            return Finding("wrong-party", index, exact=True, what=f"the record is of {record.party}")
        if record.run != self.name.run:
            return Finding("replayed", index, exact=True, what=f"the record is of run {record.run}")
        if record.seq != index:
            kind = "deleted" if record.seq > index else "inserted"
            return Finding(kind, index, exact=True, what=f"the record says that it is number {record.seq}")
        if record.time < self._latest:  # one form of fixed length: texts compare like times
            self.backwards += datetime.fromisoformat(self._latest) - record.moment > CLOCK_SLACK
        else:
            self._latest = record.time
        return None

    def _check_heads(self) -> None:
        """Compare the tree so far with the checkpoints of its size."""
        size = self.levels.size
        root = self.levels.root() if size in self.heads else b""
        held = [known == root for known in self.heads.get(size, ())]
        if self.divergence is not None or self.mismatch is not None:
            self.matched_later |= any(held)
            return
        if not all(held):
            self.mismatch, self.matched_later = size, any(held)
            return
        self.good = size if held else self.good
        self.anchored = size if (size, root) in self.anchors else self.anchored
        if size == self.covered:
            for tile in self.levels.partials():
                self._check_tile(tile)

    def _check_tile(self, tile: Tile) -> None:
        first = tile.index * WIDTH << HEIGHT * tile.level
        if first + len(tile.hashes) // 32 * (1 << HEIGHT * tile.level) > self.covered:
            return  # a crash may have come before it was written
        try:
            stored = b"".join(read_tile(self.folder, tile.level, tile.index, len(tile.hashes) // 32))
        except AuditError as error:
            self._damage("unreadable", first, f"{tile.path} {error.what}")
            return
        if stored != tile.hashes:
            self._damage("edited", first, f"{tile.path} is not made of the records")

    def _damage(self, kind: Kind, index: int, what: str) -> None:
        if self.damaged is None:
            self.damaged = Finding(kind, index, exact=True, what=what)


def _claimed_seq(entry: bytes) -> int:
    try:
        return Record.parse(entry).seq
    except RecordError:
        return -1


def _common(one: list[bytes], other: list[bytes]) -> int:
    """Return the number of records that both lists begin with in common."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, pair in pairs if pair[0] != pair[1]), min(len(one), len(other)))


_WHAT_WAS_DONE: Final[Mapping[Kind, str]] = {
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
    ml_dsa: Mapping[str, bytes] = MappingProxyType({}),
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
        ml_dsa: raw ML-DSA-65 public key of every party that has one, by site id, 1952 bytes each. If the party has one,
            the newest checkpoint must be signed with ML-DSA as well, or one in the same `block_of` the log.
        witnesses_needed: how many parties must have cosigned the newest checkpoint, and as many of those with ML-DSA
            keys that one.
        known: checkpoints of this log that others hold, as notes.
        progress: called now and then with how many records were read, and how many the newest checkpoint covers.

    Raises ValueError if ``keys`` has no key of the party, or a known checkpoint is none of this log by this party.
    """
    if name.party not in keys:
        raise ValueError(f"there is no public key of {name.party}")
    reader = HeadReader(name, keys, ml_dsa)
    outside = reader.known(known)
    try:
        heads = reader.read(folder)
    except Unfit as error:
        return Verification(0, 0, b"", (), error.finding, ())
    newest = heads[-1]
    # Only what another site vouches for, too, can anchor a finding: the party's key may be stolen.
    anchors = [*outside, *(head for head in heads if len(head.witnesses) >= max(witnesses_needed, 1))]
    vouched = frozenset((head.size, head.root) for head in anchors)
    # Checkpoints of one size with different roots are a fork: the records can have only one of the roots
    roots: dict[int, tuple[bytes, ...]] = {}
    for head in (*heads, *outside):
        roots[head.size] = (*roots.get(head.size, ()), head.root)
    walk = Walk(folder, name, roots, newest.size, vouched, progress)
    try:
        finding = _judge(walk.run(), heads, outside, witnesses_needed)
    except AuditError as error:
        finding = Finding("unreadable", walk.levels.size, exact=False, what=error.what)
    notes = _notes(walk, outside)
    is_lasting = True
    if name.party in ml_dsa:
        # A roster can have fewer ML-DSA keys than witnesses are asked for.
        lasting = _lasting_size(heads, name.party, min(witnesses_needed, len(ml_dsa) - 1))
        is_lasting = lasting_finding(_lasting_size(heads, name.party, 0), newest.size, len(keys)) is None
        finding = finding or lasting_finding(lasting, newest.size, len(keys))
        if finding is None and newest.size > lasting:
            notes = (*notes, f"records from {lasting} on have Ed25519 signatures alone, and none of ML-DSA")
    return Verification(walk.levels.size, newest.size, newest.root, newest.witnesses, finding, notes, is_lasting)


def lasting_finding(lasting: int, covered: int, sites: int) -> Finding | None:
    """Return the finding if a newest checkpoint of ``covered`` records is in a later block than ``lasting`` of them."""
    if block_of(covered, sites) <= block_of(lasting, sites):
        return None
    what = f"with ML-DSA, its party and enough others signed {lasting} of {covered} records"
    return Finding("missing-ml-dsa", lasting, exact=False, what=what)


def _lasting_size(heads: Sequence[Head], party: str, needed: int) -> int:
    """Return how many records the party and so many other sites vouch for with ML-DSA, in whichever checkpoints."""
    last: dict[str, int] = {}
    for head in heads:
        # Heads come in rising size: of each site, the largest one stays.
        last |= dict.fromkeys(head.lasting, head.size)
    own = last.pop(party, 0)
    others = sorted(last.values(), reverse=True)
    return min([own, *others[:needed]]) if needed <= len(others) else 0


def _judge(walk: Walk, heads: Sequence[Head], outside: Sequence[Head], needed: int) -> Finding | None:
    """Return the first finding that applies. Proofs of the tree come before the records' own statements."""
    if walk.divergence is not None:
        return _judge_divergence(walk, walk.divergence, needed)
    if (size := walk.mismatch) is not None:
        # Tiles and records agree, and the party's key signed something else: a fork if it signed these records as well
        if not walk.matched_later and len(set(walk.heads[size])) == 1 and any(head.size == size for head in heads):
            return _unlocated(walk, needed)
        what = f"the checkpoint of {size} records is of others than these, and another checkpoint contradicts it"
        return Finding("forked", walk.anchored, exact=False, what=what)
    # Only now: what a record says of itself is worth less than the tree that was signed over it.
    if walk.wrong is not None and walk.wrong.index < walk.covered:
        return walk.wrong
    if walk.levels.size < walk.covered:
        what = f"there are {walk.levels.size} records of {walk.covered} that were signed"
        return Finding("truncated", walk.levels.size, exact=True, what=what)
    return walk.damaged or walk.wrong or _judge_whole(walk, heads, outside, needed)


def _judge_whole(walk: Walk, heads: Sequence[Head], outside: Sequence[Head], needed: int) -> Finding | None:
    """Return the finding for a log that agrees with its newest checkpoint, or None."""
    # An older state of a log is a good log by itself. Only a checkpoint that another site holds shows its age (T27).
    if outside and outside[-1].size > walk.levels.size:
        what = f"another site holds a checkpoint of {outside[-1].size} records, this log signs {walk.covered}"
        return Finding("replayed", walk.covered, exact=True, what=what)
    if walk.torn:
        what = f"the last {walk.torn} bytes are no whole record"
        return Finding("torn", walk.levels.size, exact=True, what=what)
    witnessed = max((head.size for head in heads if len(head.witnesses) >= needed), default=0)
    if witnessed == heads[-1].size:
        return None
    what = f"{len(heads[-1].witnesses)} of {needed} witnesses cosigned the newest checkpoint"
    return Finding("missing-cosignature", witnessed, exact=False, what=what)


def _judge_divergence(walk: Walk, place: Divergence, needed: int) -> Finding:
    """Return what was done to the first record that disagrees with its tile, if the tiles are as they were signed."""
    if not _tiles_are_signed(walk, place):
        if not walk.matched_later:
            return _unlocated(walk, needed)
        what = "the tile is not made of the records, which are as signed"
        return Finding("edited", place.index, exact=True, what=what)
    moved = place.seq > place.index and not place.got_again and _is_from_later(walk, place)
    if walk.matched_later:  # the records have a signed root as well, so the key signed both
        kind: Kind = "forked"
    elif place.expected_later:
        kind = "reordered" if moved else "inserted"
    else:
        kind = "deleted" if moved else "edited"
    return Finding(kind, place.index, exact=True, what=_WHAT_WAS_DONE[kind])


def _is_from_later(walk: Walk, place: Divergence) -> bool:
    """Return whether the record at the divergence belongs at the place that it claims.

    No tile says what belongs after the checkpoint. There, the record counts as edited if the next record is in its
    place. If no record follows, it counts as edited if the count is right, unless it is the first unsigned record.
    """
    if place.seq >= walk.covered and place.next_seq is None:
        return walk.levels.size < walk.covered or place.seq == walk.covered
    if place.seq >= walk.covered:
        return place.next_seq != place.index + 1
    try:
        return walk.tile(place.seq // WIDTH)[place.seq % WIDTH] == place.got
    except AuditError:
        return False


def _tiles_are_signed(walk: Walk, place: Divergence) -> bool:
    """Return whether the tiles have the root of the first checkpoint in the log after the divergence."""
    size = min(size for size in walk.heads if size > place.index)
    levels = place.levels
    try:
        while levels.size < size:
            number, first = divmod(levels.size, WIDTH)
            for leaf in walk.tile(number)[first : size - number * WIDTH]:
                levels.append(leaf)
    except AuditError:
        return False
    return levels.root() in walk.heads[size]


def _unlocated(walk: Walk, needed: int) -> Finding:
    """Return the finding if neither records nor tiles lead to the signed root. It rests on the records' own places.

    If witnesses are needed, records that only the party signed count for nothing, since its key may be stolen.
    """
    last = walk.anchored if needed else walk.good
    if walk.wrong is not None and walk.wrong.index >= last:
        return walk.wrong
    return Finding("edited", last, exact=False, what="records and tiles behind this place are not what was signed")


def _notes(walk: Walk, outside: Sequence[Head]) -> tuple[str, ...]:
    notes = []
    if outside and walk.covered < outside[-1].size <= walk.levels.size:  # the party died before it had saved it
        notes.append(f"the checkpoint of {outside[-1].size} records that others hold is not kept here; it holds")
    if walk.backwards:
        notes.append(f"{walk.backwards} records are older than one before them by more than 5 minutes")
    if (behind := walk.levels.size - walk.covered) > 0:
        written = f"{counted(behind, 'record')} written after the newest checkpoint"
        if being_written(walk.folder):
            notes.append(f"{written}: the next checkpoint will sign {'it' if behind == 1 else 'them'}")
        else:
            notes.append(f"{written}, when the sites had cosigned for the last time: nothing proves this part")
    return tuple(notes)
