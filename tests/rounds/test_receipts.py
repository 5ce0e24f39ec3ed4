"""Receipts of real runs: each lie is refused by the check that is there for it, and passes where that check is off."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from known_sites import known_key
from rounds_federation import TARGET, AnySigned, Federation, is_header, roster_of, signer, site_id

from securefda.audit import receipt_check
from securefda.audit.kept import KEPT_BY_READER, read_kept
from securefda.audit.log_records import DpSpent, Entry
from securefda.audit.reading import find_logs, open_log
from securefda.audit.receipt import LoggedRecord, Receipt, ReceiptError, write_receipt
from securefda.audit.receipt_check import CHECKS, ReceiptRefused, check_receipt, verify_receipt
from securefda.audit.signed_notes import ML_DSA_65, Checkpoint, LogName, Note
from securefda.audit.verification import Question, check_logs, error_of
from securefda.audit.witness import Witness
from securefda.errors import ConfigError, ExitCode
from securefda.protocol import messages as m
from securefda.protocol.transcript import (
    drawn_ring,
    key_list_context,
    members_context,
    ring_context,
    roll_context,
    survivors_digest,
)
from securefda.site.throwaway import throwaway_roster
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
    with pytest.raises(ReceiptRefused, match=r"^roster: .* this one, of epoch 2 of study, has ") as refusal:
        check_receipt(runs.receipts[2], later)
    assert "--roster may be of another federation or epoch" in refusal.value.hint
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


def test_only_sources_that_signed_the_list_are_said_to_have_signed_it(tmp_path: Path) -> None:
    Charged(tmp_path / "run", 5, rounds=1).open().go().close()
    roster = tmp_path / "roster.json"
    roster.write_bytes(roster_of(5).canonical_bytes())
    receipt = receipt_of(log_of(tmp_path / "run"), 1, roster)
    enough = decoded(receipt.header).body.threshold
    signed, rest = receipt.signatures[:enough], receipt.signatures[enough:]
    assert rest
    others = tuple(again(one, decoded(one).sender, survivors_digest=bytes(32)) for one in rest)
    (tmp_path / "padded").write_bytes(replace(receipt, signatures=(*signed, *signed, *others)).to_bytes())
    said = verify_receipt(tmp_path / "padded", roster)
    assert said.data["signed_by"] == [site_id(decoded(one).sender) for one in signed]
    assert f"by a list that the target signed and {enough} of its sources" in said.text


def test_at_cohort_a_receipt_says_that_the_sum_is_of_a_cohort_and_names_no_source_at_sum(tmp_path: Path) -> None:
    at_sum = dict.fromkeys((5, 6, 7, 8), m.Visibility.SUM)
    Charged(tmp_path / "run", 8, rounds=2, visibility=m.Visibility.COHORT, permits=at_sum).open().go().close()
    roster = tmp_path / "roster.json"
    roster.write_bytes(roster_of(8).canonical_bytes())
    for index, names, words in ((ME, (1, 2, 3, 4), "a cohort of 3 or more of "), (5, (5, 6, 7, 8), "")):
        write_receipt(log_of(tmp_path / "run", index), 1, file := tmp_path / f"{index}", roster)
        said = verify_receipt(file, roster)
        assert said.data["survivors"] == [site_id(one) for one in names]
        assert f"{words}{site_id(names[0])}, " in said.text


@pytest.mark.parametrize("asked", [{"site": "other"}, {"run": "ffff"}, {"round_number": 3}])
def test_a_receipt_of_something_else_than_was_asked_for_is_refused(asked: dict[str, Any], runs: Runs) -> None:
    file = runs.folder / "asked"
    file.write_bytes(runs.receipts[2].to_bytes())
    with pytest.raises(ReceiptRefused, match=r"^asked: it is of ") as refused:
        verify_receipt(file, runs.roster, **asked)
    assert refused.value.hint == "name the receipt of that site, run and round, or leave out --site, --run and --round"


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


@pytest.mark.parametrize("data", [b'{"format":"securefda-evidence/1"}\n', b'{"site":"lyon"}\n', b"[]\n", b"\xff", b""])
def test_another_file_is_said_to_be_no_receipt(data: bytes, runs: Runs, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(data)
    with pytest.raises(
        ReceiptRefused, match=r"^form: it is no receipt, or was cut: .* securefda-receipt/N$"
    ) as refusal:
        verify_receipt(tmp_path / "file", runs.roster)
    assert refusal.value.hint.startswith("name the file that securefda audit receipt wrote")


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


LASTING_ROSTER = throwaway_roster("study", {site: known_key(site) for site in map(site_id, range(4))}, with_ml_dsa=True)


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Receipt:
    """A receipt of a federation whose sites have ML-DSA keys too."""
    folder = tmp_path_factory.mktemp("lasting")
    (folder / "roster.json").write_bytes(LASTING_ROSTER.canonical_bytes())
    Charged(folder / "run", rounds=2, roster=LASTING_ROSTER).open().go().close()
    return receipt_of(log_of(folder / "run"), 2, folder / "roster.json")


def ml_dsa_ids(receipt: Receipt) -> dict[str, bytes]:
    """The ids of the ML-DSA keys of the source and the target under the checkpoint of a receipt."""
    name, keys = LogName("study", site_id(ME), decoded(receipt.header).body.run_id.hex()), LASTING_ROSTER.ml_dsa_keys
    (witness,) = name.witness_keys({site_id(TARGET): keys[site_id(TARGET)]}, ML_DSA_65)
    return {"source": name.key(keys[site_id(ME)], ML_DSA_65).key_id, "target": witness.key_id}


def test_a_receipt_has_the_ml_dsa_signatures_of_source_and_target(lasting: Receipt) -> None:
    assert check_receipt(Receipt.parse(lasting.to_bytes()), LASTING_ROSTER).site == site_id(ME)
    lines = Note.parse(lasting.checkpoint).signatures
    assert {line.key_id for line in lines if len(line.value) > 3309} == set(ml_dsa_ids(lasting).values())
    assert len(lines) == 4, "and both of Ed25519"


@pytest.mark.parametrize("of", ["source", "target"])
@pytest.mark.parametrize(
    ("lie", "why"),
    [("missing", "not both signed the checkpoint with all their keys"), ("wrong", "is not by its key over this text")],
)
def test_a_receipt_without_a_valid_ml_dsa_signature_is_refused(
    lasting: Receipt, of: str, lie: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    note, key_id = Note.parse(lasting.checkpoint), ml_dsa_ids(lasting)[of]
    lines = [line for line in note.signatures if line.key_id != key_id]
    if lie == "wrong":
        lines += [replace(line, value=badly_signed(line.value)) for line in note.signatures if line.key_id == key_id]
    forged = replace(lasting, checkpoint=replace(note, signatures=tuple(lines)).to_bytes())
    with pytest.raises(ReceiptRefused, match=f"^log: .*{why}"):
        check_receipt(Receipt.parse(forged.to_bytes()), LASTING_ROSTER)
    monkeypatch.setattr(receipt_check, "CHECKS", {one: CHECKS[one] for one in CHECKS if one != "log"})
    check_receipt(forged, LASTING_ROSTER)


N_RING = 16


@dataclass
class RingRun:
    """Receipts of all sources of one round among neighbours, and the source ``ME``'s of the next round."""

    folder: Path
    receipts: dict[int, Receipt]
    later: Receipt

    def signatures(self, *, by_holders: bool) -> tuple[bytes, ...]:
        """The signatures over the list by sources that hold shares of ``ME``, or by the others."""
        parts = check_receipt(self.receipts[ME], roster_of(N_RING))
        assert isinstance(parts.keys.body, m.Roll)
        ctx1 = ring_context(roll_context(parts.header.digest(), parts.keys.body), parts.nonces)
        holders = drawn_ring(parts.header.body, ctx1, parts.nonces).holders(ME)
        found = {decoded(one).sender: one for receipt in self.receipts.values() for one in receipt.signatures}
        return tuple(one for sender, one in sorted(found.items()) if (sender in holders) == by_holders)


@pytest.fixture(scope="module")
def ring(tmp_path_factory: pytest.TempPathFactory) -> RingRun:
    folder = tmp_path_factory.mktemp("ring")
    roster = folder / "roster.json"
    roster.write_bytes(roster_of(N_RING).canonical_bytes())
    Charged(folder / "run", N_RING, rounds=2, settings={"kappa": 0.0, "dropouts": 0.1}).open().go().close()
    logs = {index: log_of(folder / "run", index) for index in range(1, N_RING + 1)}
    receipts = {index: receipt_of(log, 1, roster) for index, log in logs.items()}
    return RingRun(folder, receipts, receipt_of(logs[ME], 2, roster))


def test_every_source_of_a_session_among_neighbours_has_a_receipt_of_its_own(ring: RingRun) -> None:
    for index, receipt in ring.receipts.items():
        parts = check_receipt(Receipt.parse(receipt.to_bytes()), roster_of(N_RING))
        graph = parts.header.body.graph
        assert graph is not None
        assert (parts.site, len(parts.signatures)) == (site_id(index), graph.threshold)
    file = ring.folder / "said"
    file.write_bytes(ring.receipts[ME].to_bytes())
    assert b'"format":"securefda-receipt/2"' in file.read_bytes()
    said = verify_receipt(file, ring.folder / "roster.json", site=site_id(ME), round_number=1)
    assert (said.data["graph"], len(said.data["survivors"])) == ("ring", N_RING)
    assert set(said.data["signed_by"]) < set(said.data["survivors"])
    assert f"of the sources that hold shares of {site_id(ME)}" in said.text
    assert "it is not proved that all who are listed are in the sum" in said.text


def test_a_receipt_of_a_complete_graph_is_in_the_format_of_before(runs: Runs) -> None:
    data = runs.receipts[2].to_bytes()
    assert b'"format":"securefda-receipt/1"' in data
    assert b"neighbours" not in data
    with pytest.raises(ReceiptError):
        Receipt.parse(data.replace(b"receipt/1", b"receipt/2"))


def with_another_nonce(receipt: Receipt) -> Receipt:
    """The target and all sources sign anew, over a ring that the target drew by itself."""
    header, roll, neighbours = (decoded(one) for one in (receipt.header, receipt.keys, receipt.neighbours))
    session, nonces = header.envelope.session_id, neighbours.body.nonces[:-32] + bytes(32)
    drawn = signer(TARGET).sign(session, neighbours.envelope.context, replace(neighbours.body, nonces=nonces))
    ctx1 = ring_context(roll_context(header.digest(), roll.body), drawn.body.nonce_by_member())
    lists = decoded(receipt.survivors).body
    ctx2 = members_context(ctx1, {*(one.index for one in lists.survivors), *lists.dropped})
    signed = m.SurvivorSignature(survivors_digest(ctx2, lists))
    return replace(
        receipt,
        neighbours=wire.encode_signed(drawn),
        input=wire.encode_signed(signer(ME).sign(session, ctx2, decoded(receipt.input).body)),
        survivors=wire.encode_signed(signer(TARGET).sign(session, ctx2, lists)),
        signatures=tuple(wire.encode_signed(signer(one).sign(session, ctx2, signed)) for one in range(1, N_RING + 1)),
    )


RING_LIES: dict[str, tuple[str, Callable[[RingRun, Receipt], Receipt]]] = {
    "nonces that the target did not sign": (
        "signature",
        lambda _, r: replace(r, neighbours=badly_signed(r.neighbours)),
    ),
    "the nonces of another round": ("session", lambda ring, r: replace(r, neighbours=ring.later.neighbours)),
    "the roll of another round": ("session", lambda ring, r: replace(r, keys=ring.later.keys)),
    "nonces that nobody committed to": ("session", lambda _, r: with_another_nonce(r)),
    "the survivors' signatures but of too few that hold shares": (
        "quorum",
        lambda ring, r: replace(r, signatures=ring.signatures(by_holders=True)[:2] + ring.signatures(by_holders=False)),
    ),
    "one of these several times": ("quorum", lambda _, r: replace(r, signatures=r.signatures[:1] * N_RING)),
}


@pytest.mark.parametrize("name", RING_LIES)
def test_a_lie_about_a_session_among_neighbours_is_refused_by_the_check_that_is_there_for_it(
    name: str, ring: RingRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    check, lie = RING_LIES[name]
    forged = lie(ring, ring.receipts[ME])
    with pytest.raises(ReceiptRefused) as refusal:
        check_receipt(Receipt.parse(forged.to_bytes()), roster_of(N_RING))
    assert refusal.value.check == check

    if check != "session":  # which draws the ring anew, as the quorum does
        monkeypatch.setattr(receipt_check, "CHECKS", {one: CHECKS[one] for one in CHECKS if one != check})
        check_receipt(forged, roster_of(N_RING))


def test_nonces_are_compared_with_the_roll_although_all_have_signed_for_them(
    ring: RingRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    forged = with_another_nonce(ring.receipts[ME])
    with pytest.raises(ReceiptRefused, match=r"^session: the nonce of index \d+ is not the one that the roll commits"):
        check_receipt(forged, roster_of(N_RING))
    monkeypatch.setattr(receipt_check, "nonce_fits", lambda *_, **__: True)
    with pytest.raises(ReceiptRefused, match=r"^released: "):  # only the log, which has the input as it was, is left
        check_receipt(forged, roster_of(N_RING))


def test_a_session_of_one_kind_with_the_keys_of_the_other_is_refused(runs: Runs, ring: RingRun) -> None:
    with pytest.raises(ReceiptRefused, match=r"^form: a Roll stands where a KeyList belongs"):
        check_receipt(replace(ring.receipts[ME], neighbours=b""), roster_of(N_RING))
    mixed = replace(ring.receipts[ME], keys=again(runs.receipts[1].keys), neighbours=b"")
    with pytest.raises(ReceiptRefused, match=r"^session: the keys are of another kind of session than the header"):
        check_receipt(mixed, roster_of(N_RING))


def test_a_log_of_an_earlier_release_is_whole_and_gives_no_receipt(ring: RingRun, tmp_path: Path) -> None:
    """It kept neither nonces nor signatures of a session among neighbours."""
    made = log_of(ring.folder / "run")
    log, roster = Path(shutil.copytree(made, tmp_path / made.name)), ring.folder / "roster.json"
    kept = [one for one in read_kept(log) if decoded(one).type_name not in KEPT_BY_READER]
    (log / "messages.bin").write_bytes(b"".join(len(one).to_bytes(4, "big") + one for one in kept))

    with pytest.raises(ConfigError, match="the messages beside the log lack the Neighbour") as refusal:
        write_receipt(log, 1, tmp_path / "none", roster)

    assert "an earlier release, which kept none of these, wrote this log" in refusal.value.hint
    assert not (tmp_path / "none").exists()
    assert error_of(check_logs(Question((log,), roster, witnesses=0))) is None
