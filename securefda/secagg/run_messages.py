"""Messages that belong to a run: who is there, which results were taken, the checkpoints of the logs, and the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from securefda.secagg.envelope import Signed
from securefda.secagg.fields import (
    DIGEST_BYTES,
    MAX_LINE_CHARACTERS,
    MAX_NOTE_BYTES,
    MAX_PROOF_HASHES,
    RUN_ID_BYTES,
    expect,
    expect_bytes,
)
from securefda.secagg.header import Visibility

if TYPE_CHECKING:
    from securefda.secagg.messages import Result


@dataclass(frozen=True, slots=True)
class Join:
    """A source reports for a run, with the architecture it built itself and the most that may be seen of it.

    ``metrics`` says whether it hands in loss and accuracy over its training rows; with DP-SGD it has none. ``known`` is
    how many records of the aggregator's log of this run it has cosigned.
    """

    architecture_digest: bytes
    software_version: str
    visibility: Visibility
    metrics: bool
    known: int = 0

    def __post_init__(self) -> None:
        expect_bytes(self.architecture_digest, DIGEST_BYTES, "architecture_digest")
        expect(len(self.software_version) <= 64, "software_version has at most 64 characters")
        expect(self.software_version.isprintable(), "software_version must be printable")


@dataclass(frozen=True, slots=True)
class Receipt:
    """A source has accepted a result: the ``number``-th of the run, counted from 1, which closed round ``round``.

    It is signed under the session and the context of that result. Who was away takes a model that enough others have
    given a receipt for.
    """

    run_id: bytes
    round: int
    number: int
    result_digest: bytes
    model_digest: bytes

    def __post_init__(self) -> None:
        expect_bytes(self.run_id, RUN_ID_BYTES, "run_id")
        expect(self.round >= 1 and self.number >= 1, "round and number count from 1")
        expect(self.number <= self.round, "no round has more than one result")
        expect_bytes(self.result_digest, DIGEST_BYTES, "result_digest")
        expect_bytes(self.model_digest, DIGEST_BYTES, "model_digest")


@dataclass(frozen=True, slots=True)
class MissedResult:
    """The last result and the receipts for it, verbatim: for a source that has given none."""

    result: Signed[Result]
    receipts: tuple[Signed[Receipt], ...]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The sender's audit log as it is: a signed note, for the receiver to cosign.

    ``old_size`` is how many records of it the receiver said that it has cosigned, 0 for none, and ``proof`` leads from
    there to the checkpoint (RFC 9162, section 2.1.4). ``known`` is how many records of the receiver's log the sender
    has cosigned.
    """

    note: bytes
    old_size: int
    proof: tuple[bytes, ...]
    known: int

    def __post_init__(self) -> None:
        expect(0 < len(self.note) <= MAX_NOTE_BYTES, f"a note has 1 to {MAX_NOTE_BYTES} bytes")
        expect(len(self.proof) <= MAX_PROOF_HASHES, f"a proof has at most {MAX_PROOF_HASHES} hashes")
        expect(min(self.old_size, self.known) >= 0, "sizes must not be negative")
        for node in self.proof:
            expect_bytes(node, DIGEST_BYTES, "a hash of the proof")


@dataclass(frozen=True, slots=True)
class Cosigned:
    """The sender's cosignature over the receiver's checkpoint of ``size`` records: one line of a signed note."""

    size: int
    signature: str

    def __post_init__(self) -> None:
        expect(self.size >= 1, "a checkpoint of no records is not cosigned")
        expect(0 < len(self.signature) <= MAX_LINE_CHARACTERS, f"a line has 1 to {MAX_LINE_CHARACTERS} characters")


@dataclass(frozen=True, slots=True)
class Goodbye:
    """The aggregator ends the run: ``completed`` says whether every round was done, ``reason`` why not."""

    completed: bool
    rounds: int
    reason: str

    def __post_init__(self) -> None:
        expect(len(self.reason) <= 500, "reason has at most 500 characters")
        expect(self.reason.isprintable(), "reason must be printable")
