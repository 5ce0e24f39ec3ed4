"""``securefda audit verify``: what it says of good logs, and how it names what is wrong with others."""

from __future__ import annotations

import hashlib
import io
import shutil
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from audit_party import LOG_KEYS, RUN, Party, audit, audit_json, began, message, roster
from stand_ins import Terminal

from securefda.audit.kept import FILE
from securefda.audit.log_records import Entry
from securefda.audit.merkle import Levels, check_inclusion, leaf_hash, pack, unpack
from securefda.audit.signed_notes import Checkpoint, LogName, Note, Signature, sign
from securefda.audit.verification import verification_progress
from securefda.cli import main
from securefda.samples import sample
from securefda.site.kit import Kit, load_kit

Capture = pytest.CaptureFixture[str]
LOST = "has lost its evidence: at byte 0 of messages.bin, what is kept there is not what was signed"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return Party(tmp_path / "logs").write()


@pytest.fixture
def trusted(tmp_path: Path) -> Path:
    file = tmp_path / "trusted.json"
    file.write_bytes(roster().canonical_bytes())
    return file


def one(capsys: Capture, *arguments: str | Path, code: int = 0) -> dict[str, Any]:
    got, envelope = audit_json(capsys, "verify", *arguments)
    assert got == code
    (found,) = envelope["data"]["logs"]
    return dict(found)


def finding(capsys: Capture, *arguments: str | Path) -> dict[str, Any]:
    return dict(one(capsys, *arguments, code=13)["finding"])


def entries_of(log: Path) -> list[bytes]:
    return unpack((log / "tail").read_bytes())[0]


def put(log: Path, entries: list[bytes]) -> None:
    """Falsify the records in both files that have them."""
    (log / "tail").write_bytes(b"".join(map(pack, entries)))
    for file in (log / "tile/entries/000.p").iterdir():
        file.write_bytes(b"".join(map(pack, entries[: int(file.name)])))


def test_good_log_is_described_with_its_checkpoint_and_its_cosigners(log: Path, trusted: Path, capsys: Capture) -> None:
    found = one(capsys, log, "--roster", trusted)

    assert found["finding"] is None
    assert (found["party"], found["federation"], found["run"]) == ("source-1", "hearts", RUN)
    assert (found["records"], found["covered"]) == (26, 26)
    assert (found["cosigned_by"], found["cosigners_needed"]) == (["target"], 1)
    assert found["checkpoint"] == (log / "checkpoint").read_text()
    assert found["root"] == Checkpoint.parse(Note.parse((log / "checkpoint").read_bytes()).text).root.hex()
    assert found["roster"]["digest"] == roster().digest().hex()
    assert (found["notes"], found["being_written"]) == ([], False)


def test_text_says_the_same(log: Path, trusted: Path, capsys: Capture) -> None:
    code, out, err = audit(capsys, "verify", log, "--roster", trusted)

    assert (code, err) == (0, "")
    lines = {" ".join(line.split()) for line in out.splitlines()}
    assert "finding none" in lines
    assert "records 26 read, 26 covered by the newest checkpoint" in lines
    assert "cosigned by target (1 of 3 other sites, 1 needed)" in lines
    assert set((log / "checkpoint").read_text().split("\n")) <= {line.strip() for line in out.splitlines()} | {""}


def test_logs_own_roster_is_used_with_a_note_that_its_digest_proves_nothing_by_itself(
    log: Path, capsys: Capture
) -> None:
    (note,) = one(capsys, log)["notes"]

    assert roster().digest().hex() in note
    assert "--roster FILE" in note


def test_several_logs_are_verified_at_once_and_the_first_bad_one_is_named(tmp_path: Path, capsys: Capture) -> None:
    sites = ("source-1", "source-2", "target")
    logs = [Party(tmp_path / site, site).write() for site in ("source-1", "source-2")]
    target = Party(tmp_path / "target", "target")
    with target.open() as log:
        log.append(began())
        target.sign(log, ("source-1", "source-2", "source-3"))
    target.keep_roster()
    logs.append(target.path)

    code, envelope = audit_json(capsys, "verify", *logs)
    assert code == 0
    assert [item["party"] for item in envelope["data"]["logs"]] == list(sites)

    put(logs[1], entries_of(logs[1])[:-1])
    code, envelope = audit_json(capsys, "verify", *logs)
    assert (code, envelope["error_code"]) == (13, "AuditFinding")
    assert [item["finding"] and item["finding"]["kind"] for item in envelope["data"]["logs"]] == [
        None,
        "truncated",
        None,
    ]
    assert str(logs[1]) in envelope["message"]


@pytest.mark.parametrize("harm", [b"", b"\xff" * 400], ids=["no record", "rubbish"])
def test_a_log_that_cannot_be_opened_keeps_no_other_from_being_verified(
    harm: bytes, tmp_path: Path, trusted: Path, capsys: Capture
) -> None:
    Party(tmp_path / "logs" / "a", "source-1").write()
    other = tmp_path / "logs" / "b" / RUN
    other.mkdir(parents=True)
    (other / "tail").write_bytes(harm)

    code, envelope = audit_json(capsys, "verify", tmp_path / "logs", "--roster", trusted)

    sound, broken = envelope["data"]["logs"]
    assert (code, sound["finding"], sound["party"]) == (13, None, "source-1")
    assert (broken["log"], broken["finding"]["kind"]) == (str(other), "unreadable")
    assert str(other) in envelope["message"]


JOINED = Entry("sent", "Join", peer="target", bytes=9, digest="00" * 32)
REFUSED = Entry("event", "refused", facts={"check": "release.max-runs"})
SIGNED = Entry("event", "checkpoint-signed", facts={"size": 2, "root": "00" * 32})


def unsigned(folder: Path, *entries: Entry) -> Path:
    """A log without a checkpoint."""
    party = Party(folder)
    with party.open() as log:
        for entry in (began(), JOINED, *entries):
            log.append(entry)
    party.keep_roster()
    return party.path


def test_log_that_nobody_signed_yet_proves_nothing_unless_its_site_writes_it_or_its_word_will_do(
    tmp_path: Path, trusted: Path, capsys: Capture
) -> None:
    log = unsigned(tmp_path, REFUSED)
    anybodys = finding(capsys, log, "--roster", trusted)
    taken = one(capsys, log, "--witnesses", "0")
    with Party(tmp_path).open():
        live = one(capsys, log)

    assert (anybodys["kind"], anybodys["index"]) == ("missing-cosignature", 0)
    assert "nothing is signed, so anybody could have written it" in anybodys["what"]
    assert "--witnesses 0" in audit(capsys, "verify", log)[2]
    for found in (taken, live):
        assert (found["finding"], found["records"], found["covered"], found["checkpoint"]) == (None, 3, 0, None)
        assert "has not got to its first checkpoint" in " ".join(found["notes"])
    assert finding(capsys, log, "--witnesses", "1")["kind"] == "unreadable"


@pytest.mark.parametrize("entry", [SIGNED, message(2)], ids=["a checkpoint", "a session"])
def test_log_that_lost_its_checkpoints_is_a_finding(tmp_path: Path, capsys: Capture, entry: Entry) -> None:
    assert finding(capsys, unsigned(tmp_path, entry))["what"] == "there is no checkpoint, so nothing is proved of it"


def flip(log: Path, at: int) -> None:
    data = bytearray((log / FILE).read_bytes())
    data[at] ^= 1
    (log / FILE).write_bytes(data)


def test_a_flipped_byte_in_the_evidence_does_not_accuse_the_log(log: Path, trusted: Path, capsys: Capture) -> None:
    flip(log, 10)

    code, out, err = audit(capsys, "verify", log, "--roster", trusted)
    found = one(capsys, log, "--roster", trusted, code=13)

    assert code == 13
    assert "finding      none" in out
    assert f"evidence     evidence-damaged: record 1 (MaskedInput sent to target in round 1) {LOST}" in out
    assert err.startswith(f"error: audit log {log}: the log is what was signed, but not the evidence beside it: ")
    assert (found["finding"], found["kept_messages"]["messages"]) == (None, 23)
    assert [(lost["kind"], lost["index"]) for lost in found["kept_messages"]["findings"]] == [("evidence-damaged", 1)]


def test_lost_evidence_has_an_error_code_of_its_own_behind_that_of_a_log(
    log: Path, trusted: Path, capsys: Capture
) -> None:
    (log / FILE).unlink()
    code, envelope = audit_json(capsys, "verify", log, "--roster", trusted)
    assert (code, envelope["error_code"]) == (13, "EvidenceLost")

    put(log, entries_of(log)[:-1])
    code, envelope = audit_json(capsys, "verify", log, "--roster", trusted)

    (found,) = envelope["data"]["logs"]
    assert (code, envelope["error_code"], found["finding"]["kind"]) == (13, "AuditFinding", "truncated")
    assert [lost["kind"] for lost in found["kept_messages"]["findings"]] == ["evidence-missing"]


def test_first_bad_record_is_named_with_what_it_claims_to_be(log: Path, trusted: Path, capsys: Capture) -> None:
    entries = entries_of(log)
    put(log, [*entries[:17], entries[17].replace(b'"bytes":2016', b'"bytes":2017'), *entries[18:]])

    code, out, err = audit(capsys, "verify", log, "--roster", trusted)

    assert code == 13
    assert "finding      edited at record 17: the record is not the one that was signed" in out
    assert "there is: sent MaskedInput to target in round 2, as number 17 of source-1" in out
    assert err.startswith(f"error: audit log {log}: edited at record 17")
    assert len(err.splitlines()) == 2


def resign(party: Party, entries: list[bytes]) -> bytes:
    """Write other records as a thief of the key would: good tiles, good checkpoints, no cosignature."""
    levels = Levels()
    for entry in entries:
        levels.append(leaf_hash(entry))
    shutil.rmtree(party.path)
    (party.path / "checkpoints").mkdir(parents=True)
    for file, data in ((tile.path, tile.hashes) for tile in levels.partials()):
        (party.path / file).parent.mkdir(parents=True)
        (party.path / file).write_bytes(data)
    raw = b"".join(map(pack, entries))
    (party.path / f"tile/entries/000.p/{len(entries)}").parent.mkdir(parents=True)
    (party.path / f"tile/entries/000.p/{len(entries)}").write_bytes(raw)
    (party.path / "tail").write_bytes(raw)
    origin = LogName(party.federation, party.site, party.run).origin
    text = Checkpoint(origin, len(entries), levels.root()).to_text()
    note = Note(text, (sign(text, origin, LOG_KEYS[party.site]),)).to_bytes()
    (party.path / "checkpoint").write_bytes(note)
    (party.path / f"checkpoints/{len(entries):016d}").write_bytes(note)
    party.keep_roster()
    return note


def test_log_signed_anew_with_a_stolen_key_lacks_cosigners_and_its_control_passes(
    tmp_path: Path, capsys: Capture
) -> None:
    party = Party(tmp_path)
    log = party.write()
    resign(party, entries_of(log)[:20])

    assert finding(capsys, log)["kind"] == "missing-cosignature"
    control = one(capsys, log, "--witnesses", "0")
    assert control["finding"] is None
    assert "no other site has cosigned the newest checkpoint" in " ".join(control["notes"])


@pytest.mark.parametrize("others", [0, 1023], ids=["few cosigners", "a thousand with ML-DSA"])
def test_checkpoint_that_another_site_holds_shows_a_log_that_was_cut_and_signed_anew(
    tmp_path: Path, capsys: Capture, others: int
) -> None:
    party = Party(tmp_path / "logs")
    log = party.write()
    held = tmp_path / "held"
    note = Note.parse((log / "checkpoint").read_bytes())
    lines = (Signature(f"securefda/1/hearts/other-{index}", bytes(4), bytes(8 + 3309)) for index in range(others))
    held.write_bytes(replace(note, signatures=(*note.signatures, *lines)).to_bytes())
    resign(party, entries_of(log)[:20])

    assert finding(capsys, log, "--witnesses", "0", "--known", held)["kind"] == "replayed"


def test_more_cosigners_can_be_demanded(log: Path, capsys: Capture) -> None:
    assert finding(capsys, log, "--witnesses", "2")["kind"] == "missing-cosignature"


@pytest.mark.parametrize(
    ("held", "words"),
    [
        (b"", "is no checkpoint"),
        (b"\xff" * 100, "is no checkpoint"),
        ("other", "is of the log securefda/1/hearts/source-2"),
        ("forged", "--known: a checkpoint from outside proves nothing"),
    ],
    ids=["empty", "binary", "other", "forged"],
)
def test_known_checkpoint_that_proves_nothing_of_these_logs_is_refused(
    log: Path, tmp_path: Path, capsys: Capture, held: bytes | str, words: str
) -> None:
    file = tmp_path / "held"
    if held == "other":
        held = (Party(tmp_path / "other", "source-2").write() / "checkpoint").read_bytes()
    elif held == "forged":
        origin = LogName("hearts", "source-1", RUN).origin
        text = Checkpoint(origin, 99, bytes(32)).to_text()
        held = Note(text, (sign(text, origin, LOG_KEYS["source-3"]),)).to_bytes()
    assert isinstance(held, bytes)
    file.write_bytes(held)

    code, out, err = audit(capsys, "verify", log, "--known", file)

    assert (code, out) == (4, "")
    assert words in err


@pytest.mark.parametrize("index", [0, 13, 25])
def test_proof_that_a_record_is_in_the_log_is_one_that_others_can_check(log: Path, capsys: Capture, index: int) -> None:
    proof = one(capsys, log, "--record", str(index))["record"]

    entry = proof["entry"].encode()
    assert entry == entries_of(log)[index]
    assert proof["leaf"] == hashlib.sha256(b"\0" + entry).hexdigest()
    steps = [bytes.fromhex(step) for step in proof["proof"]]
    check_inclusion(leaf_hash(entry), index, proof["size"], steps, bytes.fromhex(proof["root"]))
    assert audit(capsys, "verify", log, "--record", str(index))[1].count(proof["root"]) >= 2


def test_proof_of_a_record_that_no_checkpoint_covers_is_refused(log: Path, capsys: Capture) -> None:
    code, _, err = audit(capsys, "verify", log, "--record", "26")

    assert code == 4
    assert "error: --record 26: the newest checkpoint covers 26 records, counted from 0" in err
    assert audit(capsys, "verify", log, log, "--record", "1")[0] == 0  # one log, named twice
    Party(log.parent, run="fe" * 16).write()
    assert audit(capsys, "verify", log.parent, "--record", "1")[0] == 4


def test_log_of_another_roster_is_a_finding(log: Path, tmp_path: Path, capsys: Capture) -> None:
    other = tmp_path / "other.json"
    other.write_bytes(roster(2).canonical_bytes())

    found = finding(capsys, log, "--roster", other)

    assert (found["kind"], found["index"]) == ("wrong-roster", 0)
    assert roster().digest().hex() in found["what"]
    assert roster(2).digest().hex() in found["what"]


def test_log_whose_own_roster_was_replaced_is_a_finding(tmp_path: Path, capsys: Capture) -> None:
    party = Party(tmp_path)
    log = party.write()
    party.keep_roster(roster(7))

    assert finding(capsys, log)["kind"] == "wrong-roster"


def test_log_of_a_site_or_a_federation_that_the_roster_does_not_have_is_a_finding(
    log: Path, tmp_path: Path, capsys: Capture
) -> None:
    file = tmp_path / "roster"
    file.write_bytes(roster(sites=("target", "source-2", "source-3")).canonical_bytes())
    assert finding(capsys, log, "--roster", file)["kind"] == "wrong-roster"
    file.write_bytes(roster(federation="lungs").canonical_bytes())
    assert finding(capsys, log, "--roster", file)["kind"] == "wrong-party"


@pytest.fixture
def kits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Kit]:
    """The kits of a founded federation; the log builder has the keys of its sites."""
    root = tmp_path / "kits"
    assert main(["federation", "init", str(sample("digits")), "--out", str(root)]) == 0
    found = {site: load_kit(root / site, datetime.now(UTC)) for site in LOG_KEYS}
    for site, kit in found.items():
        monkeypatch.setitem(LOG_KEYS, site, kit.signing_key)
    return found


def test_log_in_a_kit_is_verified_by_what_the_kits_ca_and_members_signed(kits: dict[str, Kit], capsys: Capture) -> None:
    kit = kits["source-1"]
    log = Party(kit.local / "audit", federation=kit.federation_id).write(of=kit.roster)

    found = one(capsys, log)

    assert (found["roster"]["from"], found["roster"]["digest"]) == ("kit", kit.roster.digest().hex())
    assert (found["finding"], found["cosigned_by"], found["notes"]) == (None, ["target"], [])


def test_log_of_another_site_in_a_kit_is_the_wrong_partys(kits: dict[str, Kit], capsys: Capture) -> None:
    kit = kits["source-1"]
    log = Party(kit.local / "audit", "source-2", federation=kit.federation_id).write(of=kit.roster)

    found = one(capsys, log, code=13)

    assert (found["party"], found["finding"]["kind"]) == ("source-1", "wrong-party")


def test_log_in_use_is_judged_by_the_newest_checkpoint_and_needs_no_cosigner_yet(
    tmp_path: Path, capsys: Capture
) -> None:
    party = Party(tmp_path)
    with party.open() as log:
        log.append(began())
        log.checkpoint()
        log.append(message(0))
        party.keep_roster()
        live = one(capsys, party.path)
        demanded = finding(capsys, party.path, "--witnesses", "1")

    assert (live["records"], live["covered"], live["finding"], live["being_written"]) == (2, 1, None, True)
    assert "a process is writing the log" in live["notes"][0]
    assert demanded["kind"] == "missing-cosignature"
    assert finding(capsys, party.path)["kind"] == "missing-cosignature"


def test_log_that_others_can_read_is_noted(log: Path, trusted: Path, capsys: Capture) -> None:
    log.chmod(0o755)

    (note,) = one(capsys, log, "--roster", trusted)["notes"]

    assert "open to others (mode 0755)" in note
    assert f"chmod -R go= {log}" in note


def test_bar_is_drawn_on_a_terminal_over_a_long_log_only() -> None:
    def drawn(stream: io.StringIO, records: int) -> str:
        with verification_progress("a log", stream) as tell:
            for read in range(0, records, 256):
                tell(read, records)
            tell(records, records)
        return stream.getvalue()

    assert "a log" in drawn(Terminal(), 100_000)
    assert "a log" not in drawn(Terminal(), 1000)
    assert drawn(io.StringIO(), 100_000) == ""
