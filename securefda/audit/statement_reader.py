"""Signed messages as the audit reads them: bytes to statements, and the messages that sites kept beside their logs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Final

from google.protobuf.message import DecodeError

from securefda.audit.kept import read_kept
from securefda.audit.statements import CheckpointSaid, HeaderSaid, ResultSaid, Said, Statement, SurvivorsSaid
from securefda.audit.store import AuditError
from securefda.protocol import messages as m
from securefda.protocol.roster import Roster
from securefda.transport import wire
from securefda.transport.observer import wire_size
from securefda.transport.wire_encode import BODY_FIELDS
from securefda.v1 import messages_pb2 as pb

_TRANSCRIPT: Final = frozenset(BODY_FIELDS[kind] for kind in (m.Header, m.Survivors, m.Result, m.Checkpoint))


class StatementReader:
    """Reads signed messages under one roster."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster

    def read(self, data: bytes) -> Statement:
        """What a message says, and whether its signature is right.

        Args:
            data: as ``encode_signed`` writes it.

        Raises:
            WireError: it is not exactly one valid signed message.
        """
        message = wire.decode_signed(data)
        envelope, index = message.envelope, message.sender
        known = index < len(self._roster.entries)
        return Statement(
            sender=self._name(index),
            type=message.type_name,
            digest=message.digest().hex(),
            session="" if envelope.session_id == m.NO_SESSION else envelope.session_id.hex(),
            context=envelope.context.hex(),
            valid=known and message.verify(self._roster.by_index(index).signing_key),
            said=self._said(envelope.body),
            size=wire_size(message, 0),
            has_vectors=bool(m.vector_digests(envelope.body)),
            data=data,
        )

    def _said(self, body: m.Body) -> Said | None:
        match body:
            case m.Header():
                return self._header(body)
            case m.Survivors(survivors=survivors, dropped=dropped):
                alive = tuple(self._name(item.index) for item in survivors)
                return SurvivorsSaid(alive, tuple(map(self._name, dropped)))
            case m.Result(sum_digest=digest, count=count, model_digest=model):
                return ResultSaid(model.hex(), count, bool(digest))
            case m.Checkpoint(note=note):
                return CheckpointSaid(note)
            case _:
                return None

    def _header(self, body: m.Header) -> HeaderSaid:
        pairs = zip(body.participants, body.levels, strict=True)
        return HeaderSaid(
            run=body.run_id.hex(),
            round=body.round,
            attempt=body.attempt,
            model=body.model_digest.hex(),
            previous_result=body.previous_result_digest.hex(),
            roster=body.roster_digest.hex(),
            levels={self._name(index): level.label for index, level in pairs},
            threshold=body.threshold,
            sum_quorum=body.sum_quorum,
            cohort_quorum=body.cohort_quorum,
            norm_cap=body.norm_cap is not None,
            target_update=body.target is not None and body.target.update_digest != b"",
            previous_checkpoint=body.previous_checkpoint,
        )

    def _name(self, index: int) -> str:
        entries = self._roster.entries
        return entries[index].site_id if index < len(entries) else f"#{index}"


class KeptStatements:
    """The messages beside the logs of one run.

    ``unreadable`` counts those that were met in the last pass and are no messages, or not signed by whom they name: no
    honest site keeps one. ``faults`` says of a folder why it could not be read to its end.

    Args:
        reader: under the roster of the run.
        folders: of the logs.
    """

    def __init__(self, reader: StatementReader, folders: Sequence[Path]) -> None:
        self._reader, self._folders = reader, tuple(folders)
        self.unreadable = 0
        self.faults: dict[Path, str] = {}

    def transcript(self) -> Iterator[Statement]:
        """Every ``Header``, ``Survivors``, ``Result`` and ``Checkpoint`` with a valid signature, each once."""
        seen: set[bytes] = set()
        self.unreadable = 0
        for data in self._all():
            field = _field(data)
            if field is None:
                self.unreadable += 1
            elif field in _TRANSCRIPT:
                digest = sha256(data).digest()  # with the signature: a wrong one must not hide the right one
                if digest not in seen:
                    seen.add(digest)
                    yield from self._valid(data)

    def find(self, digests: Collection[str]) -> Mapping[str, Statement]:
        """Those with these digests of their signed bytes that have a valid signature."""
        wanted = {bytes.fromhex(digest) for digest in digests}
        found: dict[str, Statement] = {}
        for data in self._all():
            if not wanted:
                break
            digest = _signed_digest(data)
            if digest in wanted:
                for statement in self._valid(data):
                    found[statement.digest] = statement
                    wanted.discard(digest)
        return found

    def _all(self) -> Iterator[bytes]:
        for folder in self._folders:
            try:
                yield from read_kept(folder)
            except AuditError as error:  # one site's rubbish must not keep others from being read
                self.faults[folder] = str(error)

    def _valid(self, data: bytes) -> Iterator[Statement]:
        try:
            statement = self._reader.read(data)
        except wire.WireError:
            self.unreadable += 1
            return
        if statement.valid:
            yield statement
        else:
            self.unreadable += 1


def _field(data: bytes) -> str | None:
    """Which body a message seems to have; None where it is no message. Reading it strictly is another matter."""
    try:
        field = pb.Envelope.FromString(pb.SignedMessage.FromString(data).signed_bytes).WhichOneof("body")
    except DecodeError:
        return None
    return None if field is None else str(field)


def _signed_digest(data: bytes) -> bytes:
    try:
        return sha256(pb.SignedMessage.FromString(data).signed_bytes).digest()
    except DecodeError:
        return b""
