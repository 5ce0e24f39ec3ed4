"""What a verification says of one log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal[
    "unreadable",
    "truncated",
    "torn",
    "edited",
    "reordered",
    "deleted",
    "inserted",
    "forked",
    "replayed",
    "bad-signature",
    "wrong-party",
    "newer-version",
    "missing-cosignature",
]
"""Kinds of findings.

- unreadable: a file is missing, too long, or no checkpoint, tile or record; also a record that was signed so.
- truncated: there are fewer records than the newest checkpoint of the log signs.
- torn: the last record is not whole, and no checkpoint covers it: what a crash leaves. The writer cuts it off.
- edited: a record, or a file that is made of them, is not what was signed.
- reordered, deleted, inserted: a record was moved, taken out or put in.
- forked: the log's key signed two trees of which neither begins with the other.
- replayed: this is another log, or an earlier state of this one than another site holds a checkpoint of.
- bad-signature: a checkpoint is not signed by the party, or a known witness' line under it is not by that witness.
- wrong-party: this is the log of another party.
- newer-version: a later release wrote it.
- missing-cosignature: too few witnesses vouch for the newest records. A holder of the log's key could have made them.
"""


@dataclass(frozen=True, slots=True)
class Finding:
    """The first thing that is wrong with a log.

    Attributes:
        kind: one of `Kind`.
        index: the first record that is not to be trusted, 0-based; all before it are what was signed. Where a
            checkpoint itself is at fault, no record was read, and this is the size of the last good checkpoint
            before it.
        exact: whether that very record is wrong; else it is the first behind the last checkpoint that still holds,
            and for which not only the party vouches where witnesses are needed or the finding is ``"forked"``.
        what: one line of words; no value of a record is in it.
    """

    kind: Kind
    index: int
    exact: bool
    what: str


@dataclass(frozen=True, slots=True)
class Verification:
    """The state of one log.

    Attributes:
        size: number of records that were read.
        covered: how many of them the newest checkpoint signs; nothing proves those behind.
        root: root that it signs, 32 bytes; empty where there is no such checkpoint.
        witnesses: who cosigned it, sorted.
        finding: what is wrong; None where nothing is.
        notes: what is odd but proves nothing, one line each: a clock that went back, records behind the checkpoint.
    """

    size: int
    covered: int
    root: bytes
    witnesses: tuple[str, ...]
    finding: Finding | None
    notes: tuple[str, ...]
