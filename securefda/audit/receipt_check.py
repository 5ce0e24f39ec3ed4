"""Checks receipts: named checks, each of which refuses one kind of lie, with nothing but a trusted roster. Pure.

``docs/explanation/receipts.md`` says what follows from all of them together, and what does not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from securefda.audit.keys import keys_of
from securefda.audit.log_records import Record, RecordError
from securefda.audit.merkle import ProofError, check_inclusion, leaf_hash
from securefda.audit.receipt import MAX_RECEIPT_BYTES, LoggedRecord, Receipt, ReceiptError, facts_of_ledger, keys_under
from securefda.audit.reconcile.claims import checkpoint_fault, header_fault
from securefda.audit.reconcile.run_transcript import Members
from securefda.audit.signed_notes import Checkpoint, Note, NoteError
from securefda.audit.statements import HeaderSaid, StatementReader
from securefda.audit.verification import Outcome
from securefda.disk import read_file
from securefda.errors import ExitCode, SecureFdaError
from securefda.protocol import messages as m
from securefda.protocol.roster import Roster
from securefda.protocol.transcript import (
    drawn_ring,
    key_list_context,
    members_context,
    nonce_fits,
    ring_context,
    roll_context,
    survivors_digest,
)
from securefda.text import aligned, names
from securefda.transport import wire

_Body = TypeVar("_Body")
_HINT: Final = "rely on nothing in it; ask the site for its receipt once more"
_HINTS: Final = {
    "form": "name the file that securefda audit receipt wrote, or ask the site for it once more",
    "roster": "--roster may be of another federation or epoch: name the one under which the run began; if it is that, "
    "rely on nothing in the receipt",
    "asked": "name the receipt of that site, run and round, or leave out --site, --run and --round",
}


class ReceiptRefused(SecureFdaError):
    """A receipt does not prove what receipts prove; ``check`` is the name of the check that refused it."""

    exit_code = ExitCode.AUDIT

    def __init__(self, check: str, why: str) -> None:
        super().__init__(f"{check}: {why}", hint=_HINTS.get(check, _HINT))
        self.check = check


class _NotShown(Exception):
    """Why a check refuses."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a receipt as messages and records, none of which was checked yet."""

    roster: Roster
    header: m.Signed[m.Header]
    keys: m.Signed[m.KeyList] | m.Signed[m.Roll]
    neighbours: m.Signed[m.Neighbours] | None
    input: m.Signed[m.MaskedInput]
    survivors: m.Signed[m.Survivors]
    signatures: tuple[m.Signed[m.SurvivorSignature], ...]
    result: m.Signed[m.Result]
    following: m.Signed[Any] | None
    note: Note
    logged: tuple[LoggedRecord, ...]
    released: Record
    charged: Record | None
    before: Record | None
    receipt: Receipt

    @property
    def site(self) -> str:
        """The source whose receipt it is."""
        return self.roster.by_index(self.input.sender).site_id

    @property
    def summed_with(self) -> list[str]:
        """The sources on the list at this one's level; only these can be in a sum with its input."""
        header = self.header.body
        level = header.at(header.level_of(self.input.sender))
        alive = (one.index for one in self.survivors.body.survivors)
        return [self.roster.by_index(index).site_id for index in alive if index in level]

    @property
    def signers(self) -> frozenset[int]:
        """Those on the list that signed it; among neighbours only those that hold the source's shares."""
        lists, terms = self.survivors.body, self.header.body
        digest = survivors_digest(self.survivors.envelope.context, lists)
        signed = {one.sender for one in self.signatures if one.body.survivors_digest == digest}
        signers = frozenset(one.index for one in lists.survivors) & signed
        if terms.graph is None:
            return signers
        return signers & drawn_ring(terms, _keys_context(self), self.nonces).holders(self.input.sender)

    @property
    def nonces(self) -> Mapping[int, bytes]:
        """What the ring was drawn from, by roster index; none in a complete graph."""
        return {} if self.neighbours is None else self.neighbours.body.nonce_by_member()

    @property
    def members(self) -> Members:
        """The sites in the run that the header names."""
        keys = {entry.site_id: entry.signing_key for entry in self.roster.entries}
        target, run = self.roster.target.site_id, self.header.body.run_id.hex()
        digest, ml_dsa = self.roster.digest().hex(), self.roster.ml_dsa_keys
        return Members(self.roster.federation_id, run, target, keys, digest, ml_dsa)


def _parts(receipt: Receipt, roster: Roster) -> Parts:
    """Read the parts. Raises ReceiptRefused if one is not what stands at its place in a receipt."""
    try:
        following = wire.decode_signed(receipt.following) if receipt.following else None
        _require(following is None or isinstance(following.body, m.Header | m.Goodbye), "nothing that follows a result")
        every = [one for one in (receipt.released, receipt.charged, receipt.before) if one is not None]
        records = [None if one is None else Record.parse(one.entry) for one in (receipt.charged, receipt.before)]
        return Parts(
            roster=roster,
            header=_message(receipt.header, m.Header),
            keys=_message(receipt.keys, m.Roll) if receipt.neighbours else _message(receipt.keys, m.KeyList),
            neighbours=_message(receipt.neighbours, m.Neighbours) if receipt.neighbours else None,
            input=_message(receipt.input, m.MaskedInput),
            survivors=_message(receipt.survivors, m.Survivors),
            signatures=tuple(_message(one, m.SurvivorSignature) for one in receipt.signatures),
            result=_message(receipt.result, m.Result),
            following=following,
            note=Note.parse(receipt.checkpoint),
            logged=tuple(every),
            released=Record.parse(receipt.released.entry),
            charged=records[0],
            before=records[1],
            receipt=receipt,
        )
    except (wire.WireError, NoteError, RecordError, _NotShown) as error:
        raise ReceiptRefused("form", str(error)) from error


def _message(data: bytes, kind: type[_Body]) -> m.Signed[_Body]:
    message = wire.decode_signed(data)
    if (found := message.of(kind)) is None:
        raise _NotShown(f"a {message.type_name} stands where a {kind.__name__} belongs")
    return found


def _roster(parts: Parts) -> None:
    named, here, roster = parts.header.body.roster_digest, parts.roster.digest(), parts.roster
    this = f"this one, of epoch {roster.epoch} of {roster.federation_id}, has {here.hex()}"
    _require(named == here, f"the header names the roster with digest {named.hex()}, and {this}")


def _signatures(parts: Parts) -> None:
    target = parts.roster.target.index
    ofs: list[tuple[m.Signed[Any], int]] = [
        (one, target) for one in (parts.header, parts.keys, parts.survivors, parts.result)
    ]
    ofs += [(one, one.sender) for one in (parts.input, *parts.signatures)]
    ofs += [(one, target) for one in (parts.neighbours, parts.following) if one is not None]
    for message, sender in ofs:
        known = message.sender == sender < len(parts.roster.entries)
        signed = known and message.verify(parts.roster.by_index(sender).signing_key)
        _require(signed, f"the {message.type_name} is not signed by the site that it must be of")


def _session(parts: Parts) -> None:
    """Every message names the session and, by its context, the header, the keys and the members before it."""
    header, lists = parts.header, parts.survivors.body
    ctx, ctx1 = header.digest(), _keys_context(parts)
    ctx2 = members_context(ctx1, {*(one.index for one in lists.survivors), *lists.dropped}, lists.reports_digest)
    bound: list[tuple[m.Signed[Any], bytes]] = [(parts.keys, ctx), (parts.result, ctx)]
    if parts.neighbours is not None and isinstance(parts.keys.body, m.Roll):
        bound.append((parts.neighbours, roll_context(ctx, parts.keys.body)))
    bound += [(one, ctx2) for one in (parts.input, parts.survivors, *parts.signatures)]
    for message, context in bound:
        same = (message.envelope.session_id, message.envelope.context) == (header.envelope.session_id, context)
        _require(same, f"the {message.type_name} is of another session, or of another view of it, than the header")


def _keys_context(parts: Parts) -> bytes:
    """ctx1, anew from the header and the key list, or from the header, the roll and the nonces."""
    ctx, keys = parts.header.digest(), parts.keys.body
    is_complete = parts.header.body.graph is None
    _require(isinstance(keys, m.KeyList) == is_complete, "the keys are of another kind of session than the header")
    if isinstance(keys, m.KeyList):
        return key_list_context(ctx, keys.advertisements)
    for member, nonce in parts.nonces.items():
        fits = member in keys.members and nonce_fits(nonce, keys.commitment_of(member), owner=member, ctx=ctx)
        _require(fits, f"the nonce of index {member} is not the one that the roll commits to")
    return ring_context(roll_context(ctx, keys), parts.nonces)


def _survivors(parts: Parts) -> None:
    own, header = m.Survivor(parts.input.sender, parts.input.body.digest), parts.header.body
    level = dict(zip(header.participants, header.levels, strict=True)).get(own.index)
    _require(
        level in (m.Visibility.SUM, m.Visibility.COHORT), "by the header, the source is not in the masking session"
    )
    _require(own in parts.survivors.body.survivors, "the target's list of what it summed does not have this input")


def _quorum(parts: Parts) -> None:
    alive = {one.index for one in parts.survivors.body.survivors}
    needed, fault = parts.header.body.threshold, header_fault(_said(parts, parts.receipt.header))
    _require(not fault, f"the header has {fault}")
    if (graph := parts.header.body.graph) is not None:  # of another part of the ring other lists may have been signed
        _require(len(alive) >= needed, f"the list has {len(alive)} of the {needed} sources needed")
        ring = drawn_ring(parts.header.body, _keys_context(parts), parts.nonces)
        _require(alive <= ring.members, "a source on the list is not on the ring")
        needed = graph.threshold
    count = len(parts.signers)
    _require(count >= needed, f"{count} of the {needed} sources needed signed this list of survivors")


def _result(parts: Parts) -> None:
    count, alive = parts.result.body.count, len(parts.survivors.body.survivors)
    _require(count == alive, f"the result is over {count} sources, and the list has {alive}")


def _following(parts: Parts) -> None:
    """What follows in the run names this very result, and its model."""
    header, result = parts.header.body, parts.result
    match parts.following.body if parts.following is not None else None:
        case None:
            return
        case m.Header() as later:
            _require(
                (later.run_id, later.round > header.round) == (header.run_id, True), "it is no later round of the run"
            )
            named = later.previous_result_digest, later.model_digest
        case m.Goodbye() as goodbye:
            named = goodbye.result_digest, goodbye.model_digest
    _require(named == (result.digest(), result.body.model_digest), "what follows goes on from another result or model")


def _checkpoint(parts: Parts) -> None:
    """The next header has a checkpoint of the target's log that enough sources cosigned."""
    if parts.following is not None and isinstance(parts.following.body, m.Header):
        later = _said(parts, parts.receipt.following)
        fault = header_fault(later) or checkpoint_fault(later, parts.members)
        _require(not fault, f"in the next header: {fault}")


def _said(parts: Parts, header: bytes) -> HeaderSaid:
    said = StatementReader(parts.roster).read(header).said
    assert isinstance(said, HeaderSaid)  # as the form says
    return said


def _log(parts: Parts) -> None:
    """The records are in the source's own log, under a checkpoint that the source and the target signed.

    Each signed it with all its keys, of ML-DSA too where the roster has one.
    """
    name = parts.members.log_of(parts.site)
    head = Checkpoint.parse(parts.note.text)
    keys = keys_under(name, parts.roster)
    signers = set(parts.note.check(keys))
    _require(head.origin == name.origin, "the checkpoint is not of this source's log of this run")
    _require(signers == set(keys), "the source and the target have not both signed the checkpoint with all their keys")
    for one in parts.logged:
        check_inclusion(leaf_hash(one.entry), one.index, head.size, one.proof, head.root)


def _released(parts: Parts) -> None:
    entry, message, header = parts.released.entry, parts.input, parts.header.body
    named = entry.direction, entry.type, entry.digest, entry.session, entry.round
    real = "sent", "MaskedInput", message.digest().hex(), message.envelope.session_id.hex(), header.round
    _require(named == real, "the record of the release is of another message")


def _ledger(parts: Parts) -> None:
    charged, before = parts.charged, parts.before
    places = [one.index for one in (parts.receipt.before, parts.receipt.charged, parts.receipt.released) if one]
    _require(charged is not None or before is None, "a charge before this round stands without the one for it")
    if charged is None:
        return
    same = charged.entry.type == "ledger-updated" and charged.entry.round == parts.header.body.round
    _require(same, "the charge is not for this round")
    _require(places == sorted(set(places)), "the charges and the release are not in this order in the log")
    if before is not None:
        _require(before.entry.type == "ledger-updated", "the record before is no charge")
        rows, earlier = facts_of_ledger(charged)["rows"], facts_of_ledger(before)["rows"]
        _require(earlier < rows, f"the ledger had {earlier} rows before the charge and {rows} after it")


def _require(condition: bool, why: str) -> None:
    if not condition:
        raise _NotShown(why)


CHECKS: Final[Mapping[str, Callable[[Parts], None]]] = {
    "roster": _roster,
    "signature": _signatures,
    "session": _session,
    "survivors": _survivors,
    "quorum": _quorum,
    "result": _result,
    "following": _following,
    "checkpoint": _checkpoint,
    "log": _log,
    "released": _released,
    "ledger": _ledger,
}
"""The checks by name, in their order. ``form`` comes before them: what is read there is what they look at."""


def check_receipt(receipt: Receipt, roster: Roster) -> Parts:
    """Check a receipt with a trusted roster. Raises ReceiptRefused, which names the check."""
    parts = _parts(receipt, roster)
    for name, check in CHECKS.items():
        try:
            check(parts)
        except (_NotShown, NoteError, ProofError, ValueError) as error:
            raise ReceiptRefused(name, str(error)) from error
    return parts


def verify_receipt(file: Path, trusted: Path, *, site: str = "", run: str = "", round_number: int = 0) -> Outcome:
    """Check a file, and that it is of the site, run and round that were asked for; empty and 0 ask for none.

    Raises:
        ConfigError: a file cannot be read, or the roster is none.
        ReceiptRefused: it is no receipt, or does not prove what receipts prove, or proves it of something else.
    """
    try:
        receipt = Receipt.parse(read_file(file, limit=MAX_RECEIPT_BYTES).data)
    except ReceiptError as error:
        raise ReceiptRefused("form", str(error)) from error
    parts = check_receipt(receipt, keys_of(file, trusted).roster)
    is_of = parts.site, parts.header.body.run_id.hex(), parts.header.body.round
    same = site in ("", is_of[0]), is_of[1].startswith(run), round_number in (0, is_of[2])
    if not all(same):
        raise ReceiptRefused("asked", "it is of {} in run {}, round {}: not what was asked for".format(*is_of))
    return said_of_receipt(parts)


def said_of_receipt(parts: Parts) -> Outcome:
    """Say what a checked receipt proves, for people and for programs."""
    header, result, survivors = parts.header.body, parts.result.body, parts.summed_with
    level = header.level_of(parts.input.sender)
    signed_by = sorted(parts.roster.by_index(index).site_id for index in parts.signers)
    ledger = None
    if parts.charged is not None:
        before = None if parts.before is None else facts_of_ledger(parts.before)
        ledger = {"before": before, "after": facts_of_ledger(parts.charged)}
    follows = {m.Header: "a later header", m.Goodbye: "the end of the run"}
    is_ring = header.graph is not None
    data = {
        "site": parts.site,
        "federation": parts.roster.federation_id,
        "run": header.run_id.hex(),
        "round": header.round,
        "visibility": level.label,
        "input": parts.input.body.digest.hex(),
        "graph": "ring" if is_ring else "complete",
        "survivors": survivors,
        "signed_by": signed_by,
        "model": result.model_digest.hex(),
        "continued_by": None if parts.following is None else follows[type(parts.following.body)],
        "log": {"size": Checkpoint.parse(parts.note.text).size, "cosigned_by": parts.roster.target.site_id},
        "ledger": ledger,
    }
    whom = f"the sources that hold shares of {parts.site}" if is_ring else "its sources"
    of = "" if level is m.Visibility.SUM else f"a cohort of {header.cohort_quorum} or more of "
    rows = [
        ("receipt of", f"{parts.site} in federation {parts.roster.federation_id}"),
        ("run, round", f"{header.run_id.hex()}, {header.round}"),
        ("masked input", f"SHA-256 {parts.input.body.digest.hex()}, at {level.label}"),
        ("in the sum of", f"{of}{names(survivors)}, by a list that the target signed and {len(signed_by)} of {whom}"),
        ("result", f"model with SHA-256 {result.model_digest.hex()}, signed by the target"),
        ("which continues", str(data["continued_by"] or "nothing that this receipt holds")),
        ("ledger before", _ledger_text(parts.before, "no charge before it in this run's log")),
        ("ledger after", _ledger_text(parts.charged, "no charge for this round: no noise is shown")),
    ]
    return Outcome(data, f"{aligned(rows)}\n\n{_PROVES}{_OF_A_RING if is_ring else ''}")


_PROVES: Final = (
    "Proved, if the roster is the federation's and each key is its site's alone: the target signed that this input was "
    "in the sum and that this model is the result, and enough sources signed the same list. Not proved: that the input "
    "was honest, or that the target computed the model from the sum."
)

_OF_A_RING: Final = (
    " Among neighbours, sources far from this one may have signed another list: it is not proved that all who are "
    "listed are in the sum."
)


def _ledger_text(record: Record | None, nothing: str) -> str:
    if record is None:
        return nothing
    facts = facts_of_ledger(record)
    return f"epsilon {facts['epsilon']:.6g}, {facts['rows']} rows, SHA-256 {facts['digest']}"
