"""Signed messages as the audit reads them: bytes to statements, as far as these are compared with the logs.

`StatementReader` reads the bytes and checks the signature, and `KeptStatements` finds the messages that sites kept
beside their logs. What follows from a statement is decided in `securefda.audit.reconcile.claims`, which knows no wire.
Digests are SHA-256 in hex; sites are named by their ids.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Final

from google.protobuf.message import DecodeError

from securefda.audit.journal import added_under, shown_by
from securefda.audit.kept import MOST_DAMAGED, read_kept
from securefda.audit.log_files import AuditError
from securefda.protocol import messages as m
from securefda.protocol.roster import Roster
from securefda.transport import wire
from securefda.transport.observer import wire_size
from securefda.transport.wire import BODY_FIELDS
from securefda.v1 import messages_pb2 as pb

BROADCAST: Final = ("Header", "KeyList", "Roll", "Survivors", "Consistency", "Result")
"""Message types that the target sends once in a session, the same to all participants."""
ONCE: Final = ("Advertise", "Nonce", "ShareBundle", "MaskedInput", "Update", "SurvivorSignature", "Unmask")
"""Message types that a source sends once in a session, to the target."""
ONCE_IN_A_VIEW: Final = ("Nonce", "ShareBundle", "MaskedInput", "SurvivorSignature", "Unmask")
"""The types of `ONCE` whose context includes the source's own fresh keys: two under one context are never honest."""
RELEASES: Final = frozenset({"MaskedInput", "Update"})


@dataclass(frozen=True, slots=True)
class HeaderSaid:
    """A header.

    Attributes:
        run: run id, 32 hex digits.
        round, attempt: 1-based.
        model: digest of the model that is sent with it.
        previous_result: digest of the result that it continues; empty for none.
        roster: digest of the roster.
        levels: site id of each participant -> ``"individual"``, ``"cohort"`` or ``"sum"``.
        threshold, sum_quorum, cohort_quorum: as in the header.
        fewest_at_sum: sources in the smallest sum at ``sum`` to which each of them sees by itself.
        graph: of a session of SFDA-SA/2, if it is one.
        shows: what it shows a source, by the name of its level.
        adds: what a source adds to a sum: ``"update"`` or ``"moments"``.
        features: rows, width and digest of the features of the target's rows that are sent with it, if any.
        leaves_model: whether the end of the run leaves its sources the final model.
        previous_checkpoint: the note, verbatim.
    """

    run: str
    round: int
    attempt: int
    model: str
    previous_result: str
    roster: str
    levels: Mapping[str, str]
    threshold: int
    sum_quorum: int
    fewest_at_sum: int
    cohort_quorum: int
    graph: m.GraphTerms | None
    shows: Mapping[str, str]
    adds: str
    features: tuple[int, int, str] | None
    leaves_model: bool
    previous_checkpoint: bytes = field(repr=False)

    @property
    def masked(self) -> int:
        """The number of sources in the masking session."""
        return sum(level != "individual" for level in self.levels.values())

    @property
    def place(self) -> tuple[int, int]:
        """Round and attempt."""
        return self.round, self.attempt


@dataclass(frozen=True, slots=True)
class SurvivorsSaid:
    """The lists of survivors and of the dropped, in the order of the message."""

    survivors: tuple[str, ...]
    dropped: tuple[str, ...]


Said = HeaderSaid | SurvivorsSaid | m.Result | m.Goodbye | m.Checkpoint


@dataclass(frozen=True, slots=True)
class Statement:
    """A signed message.

    Attributes:
        sender: site id of who claims to have signed; of an index that the roster does not have, ``"#"`` and the index.
        type: name of the message type.
        digest: of the signed bytes; what records of the message hold.
        session: id, 64 hex digits; empty outside sessions.
        context: what the message is bound to, 64 hex digits; the header's digest in ``Advertise``, ``KeyList``,
            ``Roll``, ``Update`` and ``Result``, a digest over header and roll in ``Nonce``, over header and key list,
            or roll and nonces, in ``ShareBundle``, and over these and the members from ``MaskedInput`` on. Empty where
            it is bound to nothing.
        valid: whether the signature is the sender's over these bytes, as a message of this type.
        said: what it says, of the types that are looked into; None of others.
        size: bytes of it that a record counts: the signed bytes and the signature.
        has_vectors: whether vectors travel beside it, which a record counts as well.
        data: the message as it was kept.
    """

    sender: str
    type: str
    digest: str
    session: str
    context: str
    valid: bool
    said: Said | None = None
    size: int = 0
    has_vectors: bool = False
    data: bytes = field(default=b"", repr=False)


_TRANSCRIPT: Final = frozenset(BODY_FIELDS[kind] for kind in (m.Header, m.Survivors, m.Result, m.Goodbye, m.Checkpoint))


class StatementReader:
    """Reads signed messages under one roster."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster

    def read(self, data: bytes) -> Statement:
        """Return the statement of a message, and whether its signature is valid.

        Args:
            data: the message as ``encode_signed`` writes it.

        Raises WireError if the bytes are not exactly one valid signed message.
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
            case m.Result() | m.Goodbye() | m.Checkpoint():
                return body
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
            fewest_at_sum=body.fewest_at_sum,
            cohort_quorum=body.cohort_quorum,
            graph=body.graph,
            shows={level.label: shown_by(body, level) for level in m.Visibility},
            adds=added_under(body),
            features=(terms.rows, terms.width, terms.digest.hex()) if (terms := body.features) else None,
            leaves_model=body.sources_keep is m.SourcesKeep.FINAL,
            previous_checkpoint=body.previous_checkpoint,
        )

    def _name(self, index: int) -> str:
        entries = self._roster.entries
        return entries[index].site_id if index < len(entries) else f"#{index}"


class KeptStatements:
    """The messages beside the logs of one run, in ``folders``, read by ``reader`` under the roster of the run.

    ``unreadable`` counts the pieces of the last pass that are no messages, or are not signed by the sender that they
    name; no honest site keeps one. ``faults`` has, by folder, why it could not be read to its end.
    """

    def __init__(self, reader: StatementReader, folders: Sequence[Path]) -> None:
        self._reader, self._folders = reader, tuple(folders)
        self.unreadable = 0
        self.faults: dict[Path, str] = {}

    def transcript(self) -> Iterator[Statement]:
        """Every Header, Survivors, Result, Goodbye and Checkpoint with a valid signature, each once."""
        seen: set[bytes] = set()
        self.unreadable = 0
        for folder in self._folders:
            most = self.unreadable + MOST_DAMAGED
            for data in self._of(folder):
                body_type = _body_type(data)
                if body_type is None:
                    self.unreadable += 1
                elif body_type in _TRANSCRIPT:
                    digest = sha256(data).digest()  # with the signature: a wrong one must not hide the right one
                    if digest not in seen:
                        seen.add(digest)
                        yield from self._valid(data)
                if self.unreadable == most:
                    self.faults[folder] = f"audit log {folder}: {MOST_DAMAGED} kept pieces up to here are no messages"
                    break

    def find(self, digests: Collection[str]) -> Mapping[str, Statement]:
        """Return the messages with these digests of their signed bytes and a valid signature, by digest."""
        wanted = {bytes.fromhex(digest) for digest in digests}
        statements: dict[str, Statement] = {}
        for data in chain.from_iterable(map(self._of, self._folders)):
            if not wanted:
                break
            digest = _signed_digest(data)
            if digest in wanted:
                for statement in self._valid(data):
                    statements[statement.digest] = statement
                    wanted.discard(digest)
        return statements

    def _of(self, folder: Path) -> Iterator[bytes]:
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


def _body_type(data: bytes) -> str | None:
    """Return the body type that a message seems to have, without strict parsing; None if it is no message."""
    try:
        signed = pb.SignedMessage.FromString(data).signed_bytes
        if len(signed) > wire.MAX_ENVELOPE_BYTES:  # before protobuf allocates many times as much
            return None
        body_type = pb.Envelope.FromString(signed).WhichOneof("body")
    except DecodeError:
        return None
    return None if body_type is None else str(body_type)


def _signed_digest(data: bytes) -> bytes:
    try:
        return sha256(pb.SignedMessage.FromString(data).signed_bytes).digest()
    except DecodeError:
        return b""
