"""Receipts of real runs: each lie is refused by the check that is there for it, and passes where that check is off."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from rounds_federation import TARGET, AnySigned, Federation, is_header, roster_of, signer, site_id

from securefda.audit import receipt_check
from securefda.audit.log_records import DpSpent, Entry
from securefda.audit.reading import find_logs, open_log
from securefda.audit.receipt import LoggedRecord, Receipt, ReceiptError, write_receipt
from securefda.audit.receipt_check import CHECKS, ReceiptRefused, check_receipt, verify_receipt
from securefda.audit.signed_notes import Checkpoint, Note
from securefda.audit.witness import Witness
from securefda.errors import ConfigError, ExitCode
from securefda.protocol import messages as m
from securefda.protocol.transcript import key_list_context, members_context, survivors_digest
from securefda.transport import wire

ME, OTHER = 1, 2


class Charged(Federation):
    """A federation whose source ``ME`` charges a ledger for every header, as one that trains with noise does."""

    def __init__(self, folder: Path, n: int = 3, **options: Any) -> None:
        self.journals: dict[int, Any] = {}
        super().__init__(folder, n, recorded=True, **options)
        self.link = self.charge

    def record(self, index: int, witness: Witness, run: str | None = None) -> None:
        self.journals[index] = witness.journal
        super().record(index, witness, run)

    def rows_after(self, number: int) -> int:
        return number

    def charge(self, sender: int, recipient: int, message: AnySigned) -> AnySigned:
        if is_header(message) and recipient == ME:
            number = message.body.round
            rows = self.rows_after(number)
            dp = DpSpent("dp-sgd", "rdp", "1.1", "0.05", "1.0", "1e-05", f"{number}.5", 20, rows, f"{number:064x}")
            self.journals[ME].append(Entry("event", "ledger-updated", number, dp=dp))
        return message


@dataclass
class Runs:
    """Receipts of two runs of one federation, by round."""

    folder: Path
    roster: Path
    log: Path
    receipts: dict[int, Receipt]
    other: dict[int, Receipt]

    def moved(self, receipt: Receipt, index: int) -> LoggedRecord:
        """A record of the log, under the checkpoint of a receipt."""
        size = Checkpoint.parse(Note.parse(receipt.checkpoint).text).size
        found = open_log(self.log).prove(index, size)
        return LoggedRecord(found.index, found.entry, found.proof)


def log_of(folder: Path, index: int = ME) -> Path:
    (log,) = find_logs(folder / "audit" / site_id(index))
    return log


def receipt_of(log: Path, number: int, roster: Path) -> Receipt:
    file = log.parent / f"receipt-{number}"
    write_receipt(log, number, file, roster)
    return Receipt.parse(file.read_bytes())


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("receipts")
    roster = folder / "roster.json"
    roster.write_bytes(roster_of(3).canonical_bytes())
    made = []
    for name in ("run", "other"):
        Charged(folder / name, rounds=3).open().go().close()
        made.append({number: receipt_of(log_of(folder / name), number, roster) for number in (1, 2, 3)})
    return Runs(folder, roster, log_of(folder / "run"), *made)


def decoded(data: bytes) -> Any:
    return wire.decode_signed(data)


def again(data: bytes, by: int = TARGET, **changes: Any) -> bytes:
    """The message with other values, signed once more with the key of a site."""
    message = decoded(data)
    envelope = message.envelope
    return wire.encode_signed(signer(by).sign(envelope.session_id, envelope.context, replace(message.body, **changes)))


def badly_signed(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def without_the_input(receipt: Receipt) -> Receipt:
    """All sites sign a list with another input in place of the source's."""
    message = decoded(receipt.survivors)
    lists = message.body
    changed = tuple(m.Survivor(one.index, bytes(32)) if one.index == ME else one for one in lists.survivors)
    digest = survivors_digest(message.envelope.context, replace(lists, survivors=changed))
    signatures = tuple(again(one, decoded(one).sender, survivors_digest=digest) for one in receipt.signatures)
    return replace(receipt, survivors=again(receipt.survivors, survivors=changed), signatures=signatures)


def bare_checkpoint(receipt: Receipt) -> Receipt:
    note = Note.parse(decoded(receipt.following).body.previous_checkpoint)
    bare = replace(note, signatures=note.signatures[:1]).to_bytes()
    return replace(receipt, following=again(receipt.following, previous_checkpoint=bare))


def edited(record: LoggedRecord) -> LoggedRecord:
    place = record.entry.index(b'"time":"') + 8
    return replace(record, entry=record.entry[:place] + b"2027" + record.entry[place + 4 :])


def only_by_the_source(receipt: Receipt) -> Receipt:
    note = Note.parse(receipt.checkpoint)
    return replace(receipt, checkpoint=replace(note, signatures=note.signatures[:1]).to_bytes())


def another_log(runs: Runs, receipt: Receipt) -> Receipt:
    """The log's part from the other run."""
    other = runs.other[decoded(receipt.header).body.round]
    parts = {name: getattr(other, name) for name in ("checkpoint", "released", "charged", "before")}
    return replace(receipt, **parts)


Lie = Callable[[Runs, Receipt], Receipt]
LIES: dict[str, tuple[str, Lie]] = {
    "a result that the target did not sign": ("signature", lambda _, r: replace(r, result=badly_signed(r.result))),
    "an input that the source did not sign": ("signature", lambda _, r: replace(r, input=badly_signed(r.input))),
    "a list that a source signed for the target": (
        "signature",
        lambda _, r: replace(r, survivors=again(r.survivors, OTHER)),
    ),
    "the keys of another round": ("session", lambda runs, r: replace(r, keys=runs.receipts[1].keys)),
    "the keys of another run": ("session", lambda runs, r: replace(r, keys=runs.other[2].keys)),
    "a sum without the input": ("survivors", lambda _, r: without_the_input(r)),
    "too few signatures of sources": ("quorum", lambda _, r: replace(r, signatures=r.signatures[:1])),
    "one signature several times": ("quorum", lambda _, r: replace(r, signatures=r.signatures[:1] * 3)),
    "a result over another number of sources": (
        "result",
        lambda _, r: replace(r, result=again(r.result, count=2), following=b""),
    ),
    "a later header that continues another result": (
        "following",
        lambda runs, r: replace(r, following=runs.receipts[1].following),
    ),
    "a next header whose checkpoint nobody cosigned": ("checkpoint", lambda _, r: bare_checkpoint(r)),
    "a record that was edited": ("log", lambda _, r: replace(r, released=edited(r.released))),
    "a checkpoint that the target did not cosign": ("log", lambda _, r: only_by_the_source(r)),
    "the release of another round": (
        "released",
        lambda runs, r: replace(r, released=runs.moved(runs.receipts[3], runs.receipts[3].released.index),
                                checkpoint=runs.receipts[3].checkpoint,
                                charged=runs.moved(runs.receipts[3], r.charged.index),
                                before=runs.moved(runs.receipts[3], r.before.index)),
    ),
    "the charge of another round": ("ledger", lambda runs, r: replace(r, charged=r.before, before=None)),
    "a charge before without the one for the round": ("ledger", lambda _, r: replace(r, charged=None)),
    "a charge in the place of the one before it": ("ledger", lambda _, r: replace(r, before=r.charged)),
}  # fmt: skip


@pytest.mark.parametrize("name", LIES)
def test_a_lie_is_refused_by_the_check_that_is_there_for_it_and_by_no_other(
    name: str, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    check, lie = LIES[name]
    forged = lie(runs, runs.receipts[2])
    with pytest.raises(ReceiptRefused) as refusal:
        check_receipt(Receipt.parse(forged.to_bytes()), roster_of(3))
    assert (refusal.value.check, refusal.value.exit_code) == (check, ExitCode.AUDIT)

    monkeypatch.setattr(receipt_check, "CHECKS", {one: CHECKS[one] for one in CHECKS if one != check})
    check_receipt(forged, roster_of(3))


def test_another_roster_is_refused_although_its_keys_are_the_same(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    later = replace(roster_of(3), epoch=2)
    with pytest.raises(ReceiptRefused, match=r"^roster: "):
        check_receipt(runs.receipts[2], later)
    monkeypatch.setattr(receipt_check, "CHECKS", {one: CHECKS[one] for one in CHECKS if one != "roster"})
    check_receipt(runs.receipts[2], later)


def test_every_check_has_a_lie_that_it_alone_refuses() -> None:
    assert {check for check, _ in LIES.values()} | {"roster"} == set(CHECKS)


def test_the_next_header_of_another_run_is_refused(runs: Runs) -> None:
    forged = replace(runs.receipts[2], following=runs.other[2].following)
    with pytest.raises(ReceiptRefused, match=r"^following: it is no later round of the run"):
        check_receipt(forged, roster_of(3))


def test_a_quorum_that_two_disjoint_sets_could_have_is_none(runs: Runs) -> None:
    """The target and one source sign everything anew, under a header that asks for one signature."""
    receipt = runs.receipts[2]
    header = decoded(again(receipt.header, threshold=1))
    session = header.envelope.session_id
    keys = signer(TARGET).sign(session, header.digest(), decoded(receipt.keys).body)
    lists = decoded(receipt.survivors).body
    ctx1 = key_list_context(header.digest(), keys.body.advertisements)
    ctx2 = members_context(ctx1, {one.index for one in lists.survivors}, lists.reports_digest)
    signed = m.SurvivorSignature(survivors_digest(ctx2, lists))
    forged = replace(
        receipt,
        header=wire.encode_signed(header),
        keys=wire.encode_signed(keys),
        input=wire.encode_signed(signer(ME).sign(session, ctx2, decoded(receipt.input).body)),
        survivors=wire.encode_signed(signer(TARGET).sign(session, ctx2, lists)),
        signatures=(wire.encode_signed(signer(ME).sign(session, ctx2, signed)),),
        result=wire.encode_signed(signer(TARGET).sign(session, header.digest(), decoded(receipt.result).body)),
    )
    with pytest.raises(ReceiptRefused, match=r"^quorum: the header has a threshold of 1 for 3 sources"):
        check_receipt(forged, roster_of(3))


def test_messages_of_one_run_with_the_log_of_another_are_refused(runs: Runs) -> None:
    with pytest.raises(ReceiptRefused, match=r"^log: the checkpoint is not of this source's log of this run"):
        check_receipt(another_log(runs, runs.receipts[2]), roster_of(3))


def test_a_receipt_says_what_it_proves(runs: Runs) -> None:
    file = runs.folder / "said"
    file.write_bytes(runs.receipts[2].to_bytes())
    said = verify_receipt(file, runs.roster, site=site_id(ME), run=runs.log.name[:12], round_number=2)
    data = said.data
    assert (data["site"], data["run"], data["round"]) == (site_id(ME), runs.log.name, 2)
    assert data["survivors"] == data["signed_by"] == [site_id(index) for index in (1, 2, 3)]
    assert data["continued_by"] == "a later header"
    assert data["ledger"] == {
        "before": {"rows": 1, "digest": f"{1:064x}", "epsilon": 1.5},
        "after": {"rows": 2, "digest": f"{2:064x}", "epsilon": 2.5},
    }
    assert "Not proved: that the input was honest" in said.text


@pytest.mark.parametrize("asked", [{"site": "other"}, {"run": "ffff"}, {"round_number": 3}])
def test_a_receipt_of_something_else_than_was_asked_for_is_refused(asked: dict[str, Any], runs: Runs) -> None:
    file = runs.folder / "asked"
    file.write_bytes(runs.receipts[2].to_bytes())
    with pytest.raises(ReceiptRefused, match=r"^asked: it is of "):
        verify_receipt(file, runs.roster, **asked)


def test_the_first_and_the_last_round_have_receipts(runs: Runs) -> None:
    first, last = (check_receipt(runs.receipts[number], roster_of(3)) for number in (1, 3))
    assert (first.before, first.charged is None) == (None, False)
    assert last.following is None or last.following.type_name == "Goodbye"


def test_a_receipt_that_was_cut_or_is_in_another_form_is_refused(runs: Runs) -> None:
    whole = runs.receipts[2].to_bytes()
    for data in (whole[:-1], whole[:-200], whole.replace(b'"checkpoint":', b'"checkpoint": '), b"[]\n", b""):
        with pytest.raises(ReceiptError):
            Receipt.parse(data)
    for name, other in (("header", "result"), ("survivors", "input"), ("following", "result"), ("checkpoint", "input")):
        with pytest.raises(ReceiptRefused, match=r"^form: "):
            check_receipt(replace(runs.receipts[2], **{name: getattr(runs.receipts[2], other)}), roster_of(3))


def test_a_round_without_a_masked_input_has_no_receipt(runs: Runs) -> None:
    out = runs.folder / "none"
    with pytest.raises(ConfigError, match="released no masked input in round 7"):
        write_receipt(runs.log, 7, out, runs.roster)
    assert not out.exists()


def test_a_ledger_that_went_back_makes_no_receipt(runs: Runs, tmp_path: Path) -> None:
    class GoesBack(Charged):
        def rows_after(self, number: int) -> int:
            return 9 - number

    GoesBack(tmp_path / "run", rounds=2).open().go().close()
    with pytest.raises(ReceiptRefused, match=r"^ledger: the ledger had 8 rows before the charge and 7 after it"):
        write_receipt(log_of(tmp_path / "run"), 2, tmp_path / "none", runs.roster)
    assert not (tmp_path / "none").exists()


def test_lost_evidence_makes_no_receipt(runs: Runs, tmp_path: Path) -> None:
    Charged(tmp_path / "run", rounds=1).open().go().close()
    log = log_of(tmp_path / "run")
    (log / "messages.bin").unlink()
    with pytest.raises(ConfigError, match="the messages beside the log lack the Result of this round"):
        write_receipt(log, 1, tmp_path / "none", runs.roster)


def test_a_session_among_neighbours_has_no_receipts(tmp_path: Path) -> None:
    Charged(tmp_path / "run", 12, rounds=1, settings={"kappa": 0.0, "dropouts": 0.1}).open().go().close()
    roster = tmp_path / "roster.json"
    roster.write_bytes(roster_of(12).canonical_bytes())
    with pytest.raises(ConfigError, match="a session among neighbours keeps too little for a receipt"):
        write_receipt(log_of(tmp_path / "run"), 1, tmp_path / "none", roster)
