"""Receipts: one file by which a third party sees that a source's masked input was in the sum of a round's result.

The file holds signed messages of one session, the next one that names its result, and records of the source's log with
proofs under a checkpoint that the target cosigned. It names no site, run or round by itself: the messages do. The page
``docs/explanation/receipts.md`` says what each part proves. `securefda.audit.receipt_check` checks it.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final

from securefda.audit.kept import KEPT_BY_READER, read_kept
from securefda.audit.keys import Keys, keys_of
from securefda.audit.log_files import AuditError
from securefda.audit.log_records import Record
from securefda.audit.reading import LogFolder, open_log
from securefda.audit.signed_notes import ML_DSA_65, LogName, Note, NoteError, NoteKey
from securefda.audit.verification import Outcome
from securefda.disk import require_new
from securefda.errors import ConfigError
from securefda.formats import RECEIPT
from securefda.operations.run_folder import replace_file
from securefda.parse import canonical_json, items, load_object, number, object_with, text
from securefda.protocol import messages as m
from securefda.protocol.roster import Roster
from securefda.text import printable
from securefda.transport import wire

MAX_RECEIPT_BYTES: Final = 16 * 1024 * 1024
_RING: Final = 2
"""The format of a receipt of a session among neighbours; all others have format 1, as before there were these."""
MOST_SIGNATURES: Final = 1100
"""More than a roster has sites."""


class ReceiptError(ValueError):
    """The bytes are no receipt of this format. The text says what is wrong."""


@dataclass(frozen=True, slots=True)
class LoggedRecord:
    """A record of the source's log: its place, its bytes, and the hashes from it to the checkpoint's root."""

    index: int
    entry: bytes
    proof: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Receipt:
    """A receipt that was not checked yet. Messages are as `securefda.transport.wire.encode_signed` writes them.

    Attributes:
        header: the target's header of the round.
        keys: its KeyList; its Roll in a session among neighbours.
        input: the source's MaskedInput.
        survivors: the target's list of the inputs in the sum.
        signatures: survivors' signatures over that list; among neighbours those of sources that hold its shares.
        result: the target's Result.
        following: the next Header that continues it, or the Goodbye that leaves its model; empty if there is neither.
        checkpoint: of the source's log, with the signatures of the source and of the target.
        released: the record that the MaskedInput was sent.
        charged, before: the ledger's charge for this round, and the one before it in this log; None without one.
        neighbours: the target's message with the nonces that the ring was drawn from; empty in a complete graph.
    """

    header: bytes
    keys: bytes
    input: bytes
    survivors: bytes
    signatures: tuple[bytes, ...]
    result: bytes
    following: bytes
    checkpoint: bytes
    released: LoggedRecord
    charged: LoggedRecord | None
    before: LoggedRecord | None
    neighbours: bytes = b""

    def to_bytes(self) -> bytes:
        """The file: ASCII JSON with sorted keys and without blanks, and a newline."""
        number = _RING if self.neighbours else 1
        values = {name: _written(getattr(self, name)) for name in _names(number)}
        return canonical_json({"format": f"securefda-receipt/{number}", **values}) + b"\n"

    @classmethod
    def parse(cls, data: bytes) -> Receipt:
        """Read what ``to_bytes`` writes. Raises ReceiptError for anything else."""
        if len(data) > MAX_RECEIPT_BYTES:
            raise ReceiptError(f"it is longer than {MAX_RECEIPT_BYTES} bytes")
        try:
            number = RECEIPT.find(data)
        except ValueError as error:
            raise ReceiptError("it is no receipt, or was cut: one is JSON with a format securefda-receipt/N") from error
        if why := RECEIPT.why_not(number):
            raise ReceiptError(f"it {why}")
        try:
            values = load_object(data, "format", *_names(number))
            del values["format"]
            receipt = cls(**{name: _read(name, value) for name, value in values.items()})
        except ReceiptError:
            raise
        except ValueError as error:
            raise ReceiptError(f"it is not of the form of a receipt: {error}") from error
        if receipt.to_bytes() != data:
            raise ReceiptError("it is not in its one form")
        return receipt


def _names(number: int) -> list[str]:
    """The fields of a receipt of this format."""
    return [field.name for field in fields(Receipt) if number == _RING or field.name != "neighbours"]


def _written(value: Any) -> object:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, tuple):
        return [*map(_written, value)]
    return None if value is None else {name: _plain(part) for name, part in asdict(value).items()}


def _plain(part: Any) -> object:
    """A part of a record: its bytes are a line of ASCII, which people can read."""
    if isinstance(part, bytes):
        return part.decode("latin-1")
    return [step.hex() for step in part] if isinstance(part, tuple) else part


def _read(name: str, value: object) -> Any:
    if name == "signatures":
        if len(listed := items(value)) > MOST_SIGNATURES:
            raise ReceiptError(f"it has more than {MOST_SIGNATURES} signatures")
        return tuple(map(_bytes, listed))
    if name in ("released", "charged", "before"):
        return None if value is None and name != "released" else _logged(value)
    return _bytes(value)


def _bytes(value: object) -> bytes:
    return base64.b64decode(text(value).encode("ascii"), validate=True)


def _logged(value: object) -> LoggedRecord:
    parts = object_with(value, "index", "entry", "proof")
    steps = tuple(bytes.fromhex(text(step)) for step in items(parts["proof"]))
    return LoggedRecord(number(parts["index"]), text(parts["entry"]).encode("latin-1"), steps)


def write_receipt(log: Path, round_number: int, out: Path, roster: Path | None) -> Outcome:
    """Make the receipt of a source for a round, from its own log and the messages beside it, and write it.

    Args:
        log: the folder of the log.
        round_number: which round, 1-based.
        out: the file to write, a new one.
        roster: file of the roster that the user trusts; None for that of the kit, or the log's own.

    Raises:
        ConfigError, AuditError: the log does not hold what a receipt needs, or ``out`` exists.
        securefda.audit.receipt_check.ReceiptRefused: what it holds does not prove it.
    """
    from securefda.audit.receipt_check import check_receipt, said_of_receipt

    require_new("--out", out)
    keys = keys_of(log, roster, log)
    receipt = _receipt(open_log(log), round_number, keys)
    said = said_of_receipt(check_receipt(receipt, keys.roster))
    replace_file(out, receipt.to_bytes())
    return Outcome({"receipt": str(out), **said.data}, f"{printable(str(out))}\n\n{said.text}")


def _receipt(log: LogFolder, number: int, keys: Keys) -> Receipt:
    sent = _last(log, "MaskedInput", number, direction="sent")
    if sent is None:
        why = f"{log.party} released no masked input in round {number} of this log"
        raise ConfigError(f"--round {number}", why, hint="securefda audit show LOG --type MaskedInput lists the rounds")
    charged = _last(log, "ledger-updated", number)
    before = None if charged is None else _before(log, charged)
    note, size = _cosigned(log, keys, 1 + max(sent.seq, 0 if charged is None else charged.seq))
    messages = [*_messages(log.folder)]
    session = _session(messages, sent)
    result, ring = session["Result"], "Roll" in session
    return Receipt(
        header=wire.encode_signed(session["Header"]),
        keys=wire.encode_signed(session["Roll" if ring else "KeyList"]),
        input=wire.encode_signed(session["MaskedInput"]),
        survivors=wire.encode_signed(session["Survivors"]),
        signatures=tuple(map(wire.encode_signed, session[f"{'Neighbour' * ring}Consistency"].body.signatures)),
        result=wire.encode_signed(result),
        following=next((wire.encode_signed(one) for one in messages if _continues(one, result)), b""),
        checkpoint=note.to_bytes(),
        released=_proved(log, sent, size),
        charged=None if charged is None else _proved(log, charged, size),
        before=None if before is None else _proved(log, before, size),
        neighbours=wire.encode_signed(session["Neighbours"]) if ring else b"",
    )


class _Session(dict[str, m.Signed[Any]]):
    """The messages of a session by type. Raises ConfigError for a type that is not there."""

    def __missing__(self, name: str) -> m.Signed[Any]:
        hint = "a round without a result has no receipt; if evidence was lost, securefda audit verify says so"
        if name in KEPT_BY_READER:
            hint = "an earlier release, which kept none of these, wrote this log: its rounds have no receipts"
        raise ConfigError("LOG", f"the messages beside the log lack the {name} of this round", hint=hint)


def _session(messages: Iterable[m.Signed[Any]], sent: Record) -> _Session:
    """Return the messages of the session in which an input was sent; of the inputs that very one."""
    found = _Session()
    for message in messages:
        is_own = message.digest().hex() == sent.entry.digest
        if message.envelope.session_id.hex() == sent.entry.session and (is_own or message.type_name != "MaskedInput"):
            found[message.type_name] = message
    return found


def _messages(folder: Path) -> Iterator[m.Signed[Any]]:
    for data in read_kept(folder):
        try:
            yield wire.decode_signed(data)
        except wire.WireError:  # lost evidence: verify names it
            continue


def _continues(message: m.Signed[Any], result: m.Signed[m.Result]) -> bool:
    match message.body:
        case m.Header(previous_result_digest=digest) | m.Goodbye(result_digest=digest):
            return digest == result.digest()
    return False


def _last(log: LogFolder, kind: str, number: int, *, direction: str = "event") -> Record | None:
    """Return the last record of a kind in a round."""
    found = None
    for record in log.records(holding=f'"type":"{kind}"'):
        entry = record.entry
        if (entry.type, entry.direction, entry.round) == (kind, direction, number):
            found = record
    return found


def _before(log: LogFolder, charged: Record) -> Record | None:
    """Return the charge before this one."""
    earlier = None
    for record in log.records(0, charged.seq, holding='"type":"ledger-updated"'):
        if record.entry.type == "ledger-updated":
            earlier = record
    return earlier


def _cosigned(log: LogFolder, keys: Keys, covered: int) -> tuple[Note, int]:
    """Return the first checkpoint over so many records that the target cosigned, without other signatures."""
    name, target = LogName(keys.federation, log.party, log.run), keys.roster.target.site_id
    signers = keys_under(name, keys.roster)
    for size in log.heads():
        head = log.head(size)
        if size < covered or head is None:
            continue
        try:
            if set(signers) == set(head.note.check(signers)):
                return head.note.only_by(*signers), size
        except NoteError:
            continue
    what = f"has no checkpoint over record {covered - 1} that {target} cosigned"
    hint = f"{target} cosigns after each round: try again then"
    if len(signers) > 2:
        what = f"{what} with ML-DSA"
        hint = f"{target} does every few rounds, and when the run ends: try again then"
    raise AuditError(log.folder, what, hint=hint)


def keys_under(name: LogName, roster: Roster) -> list[NoteKey]:
    """The keys of source and target that sign a checkpoint of the source's log in a receipt, of ML-DSA too if any."""
    source, target = name.party, roster.target
    cosigner = {target.site_id: target.signing_key}
    keys = [name.key(roster.by_id(source).signing_key), *name.witness_keys(cosigner)]
    ml_dsa = roster.ml_dsa_keys
    if source in ml_dsa and target.site_id in ml_dsa:
        lasting = {target.site_id: ml_dsa[target.site_id]}
        keys += [name.key(ml_dsa[source], ML_DSA_65), *name.witness_keys(lasting, ML_DSA_65)]
    return keys


def _proved(log: LogFolder, record: Record, size: int) -> LoggedRecord:
    found = log.prove(record.seq, size)
    return LoggedRecord(found.index, found.entry, found.proof)


def facts_of_ledger(record: Record) -> Mapping[str, Any]:
    """Rows, digest and epsilon of the ledger after a charge."""
    spent = record.entry.dp
    assert spent is not None  # as of every charge
    return {"rows": spent.ledger_rows, "digest": spent.ledger_digest, "epsilon": float(spent.epsilon)}
