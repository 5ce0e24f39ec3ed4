"""Witnessing: each site has the others cosign the checkpoints of its log, and cosigns theirs.

A cosignature says that its signer has seen no other history of that log (C2SP tlog-cosignature). So before it signs, a
site stores the last checkpoint of each log on the disk. It signs the next checkpoint only if that continues the stored
one, never a shorter one or another history. The sources cosign the target's checkpoints. The target cosigns those of
the sources, and records that in its own log.

A site that the roster has an ML-DSA key of signs a lasting checkpoint with it too, and cosigns those of others. A
checkpoint is lasting if it is the first in a block of its log that the witness is shown, once a minute, and at the end
of a run. So these signatures cost a round next to nothing, and cover all records before them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from securefda.audit import signed_notes
from securefda.audit.journal import Journal
from securefda.audit.log_records import MAX_INTEGER
from securefda.audit.merkle import ProofError, check_consistency
from securefda.audit.signed_notes import (
    COSIGNATURE_V1,
    ED25519,
    ML_DSA_65,
    Note,
    NoteError,
    NoteKey,
    Signature,
    block_of,
    witness_key,
)
from securefda.protocol.messages import NO_CONTEXT, NO_SESSION, Checkpoint, Cosigned, Header, Parcel, Signer
from securefda.protocol.ml_dsa import ml_dsa_key
from securefda.protocol.roster import Roster

LASTING_S = 60
"""Seconds after which a site makes its next checkpoint a lasting one, whether or not its log has entered a block."""

MOST_SHOWN = 4
"""How often a site may show its log without success. An honest site may have to be asked again."""

Head = tuple[int, bytes]
"""Number of records and their root."""


def witnesses_needed(header: Header, max_colluders: int) -> int:
    """Return how many participants must have cosigned: at least t, and so many that only one history can have them.

    More than ``max_colluders`` sources are in both of two such sets. One of them is honest and cosigned one history
    alone.
    """
    n = len(header.participants)
    return min(n, max(header.threshold, (n + max_colluders) // 2 + 1))


class CheckpointError(Exception):
    """A checkpoint or a cosignature that no honest site sends; ``check`` is the stable name of what failed."""

    def __init__(self, check: str, detail: str) -> None:
        super().__init__(f"{check}: {detail}")
        self.check, self.detail = check, detail


class WitnessMemory(Protocol):
    """A site's memory of other sites' logs, which survives restarts and power cuts."""

    def cosigned(self, origin: str) -> Head | None:
        """The last checkpoint of this log that was cosigned; None before the first."""

    def remember_cosigned(self, origin: str, head: Head) -> None:
        """Store the checkpoint; it is on the disk when this returns."""


class Witness:
    """Shows this site's log to the other sites, and cosigns theirs.

    The key of ``signer`` also signs notes. ``unix_time`` returns the Unix time in seconds, for cosignatures.
    """

    def __init__(
        self,
        journal: Journal,
        roster: Roster,
        signer: Signer,
        memory: WitnessMemory,
        unix_time: Callable[[], float] = time.time,
    ) -> None:
        self.journal = journal
        self._roster, self._signer, self._memory, self._unix_time = roster, signer, memory, unix_time
        self._said: dict[int, int] = {}
        self._note: Note | None = None
        own = roster.by_index(signer.index)
        self._ml_dsa = ml_dsa_key(signer.private_key) if own.ml_dsa_key else None
        self._lasting_size, self._lasting_at = 0, 0.0
        self._due: set[int] = set()
        """Witnesses that owe a signature of ML-DSA for the checkpoint that is shown."""
        self._shown_bare: set[int] = set()
        """Witnesses that were shown it before this site signed it with ML-DSA; their answer may be on its way."""

    def known_of(self, index: int) -> int:
        """Number of records of a site's log of this run that this site has cosigned."""
        return (self._memory.cosigned(self.journal.name_of(index).origin) or (0, b""))[0]

    def hear(self, index: int, known: int) -> None:
        """Remember how many records of this site's log another site says it has cosigned."""
        self._said[index] = known

    def heard_of(self, index: int) -> int:
        """Number of records of this site's log that a site said it has cosigned."""
        return self._said.get(index, 0)

    def enter(self, run: str) -> None:
        """Enter a run, 32 hex digits: open its log, and forget statements from other runs. Raises AuditError."""
        if run != self.journal.run:
            self._note = None
            self._said.clear()
            self._lasting_size = 0
        self.journal.begin(run)

    def renew(self, *, lasting: bool = False) -> None:
        """Make a checkpoint of the log as it is, to be shown from now on. Raises AuditError.

        Args:
            lasting: whether it is a lasting one in any case, as at the end of a run.
        """
        self._note = self.journal.checkpoint()
        self._due.clear()
        self._shown_bare.clear()
        head = signed_notes.Checkpoint.parse(self._note.text)
        self.journal.event("checkpoint-signed", size=head.size, root=head.root.hex())
        is_late = self._unix_time() - self._lasting_at >= LASTING_S
        if lasting or is_late or self._enters_block(self._lasting_size, head.size):
            self._sign_lasting(self._note)

    @property
    def size(self) -> int:
        """Number of records of the checkpoint that is shown; 0 before the first."""
        return 0 if self._note is None else signed_notes.Checkpoint.parse(self._note.text).size

    @property
    def note(self) -> bytes:
        """The checkpoint that is shown, with the cosignatures that it has by now, as headers carry it: of Ed25519."""
        if self._note is None:
            return b""
        others = [entry.index for entry in self._roster.entries if entry.index != self._signer.index]
        return self._note.only_by(self._log_key(self._signer.index), *map(self._witness_key, others)).to_bytes()

    def show(self, index: int) -> Parcel:
        """The checkpoint for a site to cosign. Raises AuditError."""
        if self._note is None:
            self.renew()
        shown: Note = self._note  # type: ignore[assignment]  # renew has made one
        size = signed_notes.Checkpoint.parse(shown.text).size
        known = self.heard_of(index)
        old = known if known <= size else 0  # who knows more than there is cannot be served, and says so
        if self._ml_dsa is not None and self._enters_block(old, size):
            shown = self._sign_lasting(shown)
            self._shown_bare.discard(index)
        bare = shown.only_by(*self._keys(self._log_key, self._signer.index))
        # Whatever it says that it knows: by a false number it could leave the log without its signature of ML-DSA
        if not self._is_lasting(self._signer.index, bare):
            self._shown_bare.add(index)
        elif index not in self._shown_bare:
            self._due.add(index)
        return self._parcel(Checkpoint(bare.to_bytes(), old, self.journal.proof(old), self.known_of(index)))

    def cosign(self, index: int, shown: Checkpoint) -> Parcel | None:
        """Check a site's checkpoint, remember it and cosign it.

        Returns None if its proof begins before what this site has cosigned: the other site did not know of that yet,
        and shows its log again once it does.

        Raises:
            CheckpointError: the checkpoint is malformed, belongs to another log, is not signed by the site, does not
                continue what was cosigned before, or lacks the signature of ML-DSA that is due.
            AuditError, SecureFdaError: the checkpoint cannot be remembered.
        """
        note, head = self._signed_by(index, shown.note)
        self.hear(index, shown.known)
        old_size, _ = self._memory.cosigned(head.origin) or (0, b"")
        if not self._is_continued(shown, head):
            return None
        is_lasting = self._is_lasting(index, note)
        if self._has_ml_dsa(index) and not is_lasting and self._enters_block(old_size, head.size):
            raise CheckpointError("CHECKPOINT_ML_DSA", f"no signature of ML-DSA over {head.size}, after {old_size}")
        # On the disk before the signature exists: after a crash, this site signs no other history
        self._memory.remember_cosigned(head.origin, (head.size, head.root))
        self.journal.event("checkpoint-cosigned", origin=head.origin, size=head.size, root=head.root.hex())
        name, now = self._witness_key(self._signer.index).name, max(0, int(self._unix_time()))
        lines = signed_notes.cosign(note.text, name, self._signer.private_key, now).to_line()
        if is_lasting and self._ml_dsa is not None:
            lines += signed_notes.sign_ml_dsa(note.text, name, self._ml_dsa, now).to_line()
        return self._parcel(Cosigned(head.size, lines))

    def asks_to_last(self, index: int, shown: Checkpoint) -> bool:
        """Return whether a checkpoint that was cosigned is a lasting one, so that this site's next should be, too."""
        return self._is_lasting(index, Note.parse(shown.note))

    def take(self, index: int, body: Cosigned) -> bool:
        """Keep a site's cosignature, and return whether it is over the checkpoint that is shown now.

        Raises:
            CheckpointError: it is not that site's cosignature over that checkpoint, or lacks the one of ML-DSA.
            AuditError: it cannot be written.
        """
        if self._note is None or body.size != self.size:
            return False  # of an earlier one, which is not shown any more
        keys = self._keys(self._witness_key, index)
        try:
            lines = [Signature.parse(line) for line in body.signature.splitlines(keepends=True)]
            if len(lines) < len(keys) and index in self._due:
                raise CheckpointError("COSIGNATURE_ML_DSA", f"no cosignature of ML-DSA over {body.size} records")
            # ML-DSA first: where its line is wrong, that of Ed25519 is not kept either.
            for line, key in reversed([*zip(lines, keys[: len(lines)], strict=True)]):
                self._note = self.journal.cosigned(body.size, line, key)
        except ValueError as error:  # also where there are more lines than keys
            raise CheckpointError("COSIGNATURE", str(error)) from error
        self.hear(index, body.size)
        return True

    def check_previous_checkpoint(self, header: Header, max_colluders: int) -> None:
        """Check that the header has the checkpoint that this source cosigned last, cosigned by enough other sources.

        ``max_colluders`` is the number of sources that may collude according to this site's policy.

        Raises CheckpointError if the header has another checkpoint, or too few have cosigned it.
        """
        note, head = self._signed_by(self._roster.target.index, header.previous_checkpoint)
        # That very one. Under an older one, records since then could be replaced without this source noticing.
        if self._memory.cosigned(head.origin) != (head.size, head.root):
            raise CheckpointError("CHECKPOINT_HEADER", "not the checkpoint that this site cosigned last")
        needed = witnesses_needed(header, max_colluders)
        try:
            cosigned = len(note.check(map(self._witness_key, header.participants)))
        except NoteError as error:
            raise CheckpointError("WITNESSES", str(error)) from error
        if cosigned < needed:
            raise CheckpointError("WITNESSES", f"{cosigned} of the {needed} participants needed have cosigned it")

    def _is_continued(self, shown: Checkpoint, head: signed_notes.Checkpoint) -> bool:
        """Return whether the proof continues the cosigned head. Raises CheckpointError if it contradicts it."""
        old_size, old_root = self._memory.cosigned(head.origin) or (0, b"")
        # In the order of SFDA-SA/1, section 11: a log that shrinks is told from one that forks.
        if head.size < max(old_size, 1):
            raise CheckpointError("CHECKPOINT_SHRINKS", f"{head.size} records, after {old_size}")
        if head.size == old_size and head.root == old_root:
            return True  # shown twice
        if shown.old_size > old_size:
            raise CheckpointError("CHECKPOINT_OLD_SIZE", f"a proof from {shown.old_size} records on, not {old_size}")
        if shown.old_size < old_size < head.size:
            return False
        if old_size == 0 and not shown.proof:  # every log continues the empty one
            return True
        try:
            check_consistency(old_size, old_root, head.size, head.root, shown.proof)
        except (ProofError, ValueError) as error:
            raise CheckpointError("CHECKPOINT_FORK", "another history than the one that was cosigned") from error
        return True

    def _signed_by(self, index: int, data: bytes) -> tuple[Note, signed_notes.Checkpoint]:
        """Return a checkpoint of a site's log of this run with that site's valid signature. Raises CheckpointError."""
        name = self.journal.name_of(index)
        try:
            note = Note.parse(data)
            head = signed_notes.Checkpoint.parse(note.text)
        except NoteError as error:
            raise CheckpointError("CHECKPOINT_NOTE", str(error)) from error
        if head.size > MAX_INTEGER:
            raise CheckpointError("CHECKPOINT_NOTE", "more records than a log can have")
        if head.origin != name.origin or head.extensions:
            raise CheckpointError("CHECKPOINT_ORIGIN", "of another log")
        keys = self._keys(self._log_key, index)
        try:
            signers = note.check(keys)
        except NoteError as error:
            raise CheckpointError("CHECKPOINT_SIGNATURE", str(error)) from error
        # Headers carry the line of Ed25519 only (SFDA-SA/1, section 11).
        if keys[0] not in signers:
            raise CheckpointError("CHECKPOINT_SIGNATURE", "signed with ML-DSA alone")
        return note, head

    def _enters_block(self, old: int, size: int) -> bool:
        sites = len(self._roster.entries)
        return block_of(old, sites) < block_of(size, sites)

    def _sign_lasting(self, note: Note) -> Note:
        """Add this site's signature of ML-DSA to the checkpoint that is shown, if it has a key; return the checkpoint.

        Raises AuditError.
        """
        if self._ml_dsa is None or self._lasting_size == self.size:
            return note
        self._lasting_size, self._lasting_at = self.size, self._unix_time()
        key = self._keys(self._log_key, self._signer.index)[1]
        line = signed_notes.sign_ml_dsa(note.text, key.name, self._ml_dsa, max(0, int(self._lasting_at)))
        self._note = self.journal.cosigned(self.size, line, key)
        return self._note

    def _is_lasting(self, index: int, note: Note) -> bool:
        """Return whether a checkpoint of a site's log has a line of its ML-DSA key; `_signed_by` has checked that."""
        return any(line.fits(key) for key in self._keys(self._log_key, index)[1:] for line in note.signatures)

    def _has_ml_dsa(self, index: int) -> bool:
        return bool(self._roster.by_index(index).ml_dsa_key)

    def _keys(self, of: Callable[..., NoteKey], index: int) -> list[NoteKey]:
        """A site's keys of Ed25519 and, if it has one, of ML-DSA, as `_log_key` or `_witness_key` names them."""
        return [of(index), *([of(index, ML_DSA_65)] if self._has_ml_dsa(index) else [])]

    def _log_key(self, index: int, kind: int = ED25519) -> NoteKey:
        return self.journal.name_of(index).key(self._public(index, kind), kind)

    def _witness_key(self, index: int, kind: int = COSIGNATURE_V1) -> NoteKey:
        entry = self._roster.by_index(index)
        return witness_key(self._roster.federation_id, entry.site_id, self._public(index, kind), kind)

    def _public(self, index: int, kind: int) -> bytes:
        entry = self._roster.by_index(index)
        return entry.ml_dsa_key if kind == ML_DSA_65 else entry.signing_key

    def _parcel(self, body: Checkpoint | Cosigned) -> Parcel:
        return Parcel(self._signer.sign(NO_SESSION, NO_CONTEXT, body))
