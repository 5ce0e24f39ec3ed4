"""``securefda audit reconcile`` and ``verify-evidence``: what they say of honest logs, of lies, and of bad input."""

from __future__ import annotations

import base64
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from audit_party import audit, audit_json

sys.path.append(str(Path(__file__).parents[1] / "audit"))

from run_builder import KEYS, ROSTER, RUN, SOURCES, TARGET, HangsUp, Run, folder_of
from run_lies import A, B, C, Equivocates, Lie, but

from securefda.audit import signed_notes
from securefda.audit.kept import FILE
from securefda.audit.signed_notes import Note
from securefda.cli import main
from securefda.samples import sample

Capture = pytest.CaptureFixture[str]


pytestmark = pytest.mark.usefixtures("no_disk_sync")


@pytest.fixture
def roster(tmp_path: Path) -> Path:
    file = tmp_path / "trusted.json"
    file.write_bytes(ROSTER.canonical_bytes())
    return file


@pytest.fixture
def honest(tmp_path: Path) -> Path:
    return Run(tmp_path / "run").write()


@pytest.fixture
def equivocation(tmp_path: Path) -> Path:
    return Equivocates(tmp_path / "run").write()


def test_honest_logs_are_counted_and_end_with_0(honest: Path, roster: Path, capsys: Capture) -> None:
    code, envelope = audit_json(capsys, "reconcile", honest, "--roster", roster)

    data = envelope["data"]
    assert (code, envelope["status"], data["findings"]) == (0, "ok", [])
    assert (data["run"], data["target"], data["missing_logs"]) == (RUN, TARGET, [])
    assert data["counts"]["messages in both logs"] == 141
    assert [log["party"] for log in data["logs"]] == sorted((*SOURCES, TARGET))
    assert not any("compare the digest" in notice for notice in data["notices"])


def test_the_logs_own_roster_is_used_with_a_word_to_compare_it(honest: Path, capsys: Capture) -> None:
    code, out, err = audit(capsys, "reconcile", honest)

    assert (code, err) == (0, "")
    assert f"compare the digest {ROSTER.digest().hex()}" in out
    assert "messages in both logs" in out


def test_the_first_divergence_is_named_with_the_accused_and_ends_with_13(
    equivocation: Path, roster: Path, capsys: Capture
) -> None:
    code, out, err = audit(capsys, "reconcile", equivocation, "--roster", roster)

    lines = {" ".join(line.split()) for line in out.splitlines()}
    assert code == 13
    assert f"accused {TARGET}, by its own signature" in lines
    assert any(line.startswith("where round 2, attempt 1, at KeyList") for line in lines)
    assert err.startswith("error: equivocation: ")
    assert "--evidence FILE" in err


def test_json_has_the_records_of_both_logs(equivocation: Path, roster: Path, capsys: Capture) -> None:
    code, envelope = audit_json(capsys, "reconcile", equivocation, "--roster", roster)

    (found,) = envelope["data"]["findings"]
    assert (code, envelope["error_code"]) == (13, "Contradiction")
    assert (found["kind"], found["accused"], found["proved_by"]) == ("equivocation", [TARGET], "messages")
    assert {record["party"] for record in found["records"]} == {TARGET, C}
    assert len(found["messages"]) == 2


def test_all_lists_what_comes_after_the_first(tmp_path: Path, roster: Path, capsys: Capture) -> None:
    lie = Lie(tmp_path / "run")
    lie.kind, lie.number, lie.change = "ShareBundle", 1, but(logs_sent=False)  # type: ignore[method-assign]
    lie.write()

    _, one = audit_json(capsys, "reconcile", tmp_path / "run", "--roster", roster)
    _, every = audit_json(capsys, "reconcile", tmp_path / "run", "--roster", roster, "--all")

    assert (len(one["data"]["findings"]), one["data"]["findings_total"]) == (1, 3)
    assert [found["disagree"] for found in every["data"]["findings"]] == [sorted((site, TARGET)) for site in SOURCES]
    assert all((found["accused"], found["proved_by"]) == ([], None) for found in every["data"]["findings"])


def test_what_one_log_says_of_another_site_is_a_disagreement(tmp_path: Path, roster: Path, capsys: Capture) -> None:
    lie = Lie(tmp_path / "run")
    lie.kind, lie.sender, lie.change = "MaskedInput", B, but(logs_sent=False)  # type: ignore[method-assign]
    code, out, err = audit(capsys, "reconcile", lie.write(), "--roster", roster)

    lines = {" ".join(line.split()) for line in out.splitlines()}
    said = f"accused no site alone: {B}, {TARGET} disagree, and no signed message settles who is right"
    assert (code, said in lines) == (13, True)
    assert err.startswith(f"error: never-sent: the log of {TARGET} has received a MaskedInput from {B}")


def evidence_of(run: Path, roster: Path, capsys: Capture) -> Path:
    file = run.parent / "evidence.json"
    audit(capsys, "reconcile", run, "--roster", roster, "--evidence", file)
    return file


def test_evidence_convinces_somebody_who_has_only_the_roster(equivocation: Path, roster: Path, capsys: Capture) -> None:
    file = evidence_of(equivocation, roster, capsys)
    shutil.rmtree(equivocation)

    code, envelope = audit_json(capsys, "verify-evidence", file, "--roster", roster)

    (claim,) = envelope["data"]["claims"]
    assert (code, claim["proved"], claim["accused"]) == (0, True, TARGET)
    assert claim["what"].startswith(f"{TARGET} signed two different messages of type KeyList")


def test_no_evidence_is_written_where_no_message_proves_anything(tmp_path: Path, roster: Path, capsys: Capture) -> None:
    lie = Lie(tmp_path / "run")
    lie.kind, lie.sender, lie.change = "ShareBundle", B, but(logs_sent=False)  # type: ignore[method-assign]
    file = evidence_of(lie.write(), roster, capsys)
    _, envelope = audit_json(capsys, "reconcile", tmp_path / "run", "--roster", roster, "--evidence", file)

    assert not file.exists()
    assert envelope["data"]["evidence"] is None
    assert envelope["data"]["why_no_evidence"].startswith("no signed message alone proves never-sent")


def test_that_there_is_nothing_to_prove_is_said(honest: Path, roster: Path, tmp_path: Path, capsys: Capture) -> None:
    _, out, _ = audit(capsys, "reconcile", honest, "--roster", roster, "--evidence", tmp_path / "evidence")

    assert "evidence: no file was written: nothing was found" in out
    assert not (tmp_path / "evidence").exists()


def test_a_folder_that_is_not_there_is_told_before_the_work(honest: Path, roster: Path, capsys: Capture) -> None:
    code, out, err = audit(capsys, "reconcile", honest, "--roster", roster, "--evidence", honest / "no" / "file")

    assert (code, out) == (4, "")
    assert f"--evidence: {honest / 'no'} is no folder" in err


def changed(file: Path, **changes: Any) -> Path:
    """The evidence with another claim, in its canonical form."""
    fields = json.loads(file.read_bytes())
    fields["claims"][0] |= changes
    file.write_text(json.dumps(fields, sort_keys=True, separators=(",", ":")) + "\n")
    return file


def test_evidence_that_accuses_somebody_else_proves_nothing(equivocation: Path, roster: Path, capsys: Capture) -> None:
    file = changed(evidence_of(equivocation, roster, capsys), accused=A)

    code, envelope = audit_json(capsys, "verify-evidence", file, "--roster", roster)

    assert (code, envelope["error_code"]) == (13, "NoProof")
    assert envelope["data"]["claims"][0]["proved"] is False


def test_a_changed_message_in_evidence_proves_nothing(equivocation: Path, roster: Path, capsys: Capture) -> None:
    file = evidence_of(equivocation, roster, capsys)
    messages = json.loads(file.read_bytes())["claims"][0]["messages"]
    for place in range(2):
        raw = bytearray(base64.b64decode(messages[place]))
        for at in (5, len(raw) // 2, len(raw) - 1):
            raw[at] ^= 1
            forged = list(messages)
            forged[place] = base64.b64encode(raw).decode()
            assert audit(capsys, "verify-evidence", changed(file, messages=forged), "--roster", roster)[0] == 13
            raw[at] ^= 1
    assert audit(capsys, "verify-evidence", changed(file, messages=messages), "--roster", roster)[0] == 0


def test_a_file_that_proves_nothing_is_one_clear_line(equivocation: Path, roster: Path, capsys: Capture) -> None:
    file = evidence_of(equivocation, roster, capsys)
    messages = json.loads(file.read_bytes())["claims"][0]["messages"]

    claimed = changed(file, kind="double-release", messages=messages * 2)
    code, _, err = audit(capsys, "verify-evidence", claimed, "--roster", roster)

    assert (code, err.splitlines()[1:]) == (13, ["hint: accuse no site by it"])
    assert "releases in different sessions prove nothing" in err


def test_one_message_twice_is_no_equivocation(equivocation: Path, roster: Path, capsys: Capture) -> None:
    file = evidence_of(equivocation, roster, capsys)
    message = json.loads(file.read_bytes())["claims"][0]["messages"][0]

    code, _, err = audit(capsys, "verify-evidence", changed(file, messages=[message] * 2), "--roster", roster)

    assert code == 13
    assert "different" in err


def test_evidence_under_another_roster_proves_nothing(equivocation: Path, roster: Path, capsys: Capture) -> None:
    file = evidence_of(equivocation, roster, capsys)
    roster.write_bytes(replace(ROSTER, epoch=2).canonical_bytes())

    code, _, err = audit(capsys, "verify-evidence", file, "--roster", roster)

    assert code == 13
    assert "of another roster" in err


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"\x00\xff", b"[" * 100_000, b'{"format":"securefda-evidence/2"}', b'{"format":7}\n']
)
def test_what_is_no_evidence_is_one_clear_line(data: bytes, tmp_path: Path, roster: Path, capsys: Capture) -> None:
    (tmp_path / "evidence").write_bytes(data)

    code, _, err = audit(capsys, "verify-evidence", tmp_path / "evidence", "--roster", roster)

    assert code == 4
    assert "is no evidence" in err
    assert err.count("\n") <= 2


def test_evidence_is_not_written_over(equivocation: Path, roster: Path, capsys: Capture) -> None:
    file = evidence_of(equivocation, roster, capsys)
    before = file.read_bytes()

    code, _, err = audit(capsys, "reconcile", equivocation, "--roster", roster, "--evidence", file)

    assert (code, file.read_bytes()) == (4, before)
    assert "--evidence" in err


def test_a_log_that_was_deleted_is_a_finding_among_those_of_others(honest: Path, roster: Path, capsys: Capture) -> None:
    shutil.rmtree(honest / "sites" / B)

    code, envelope = audit_json(capsys, "reconcile", honest, "--roster", roster)
    _, _, err = audit(capsys, "reconcile", honest, "--roster", roster)
    without, allowed = audit_json(capsys, "reconcile", honest, "--roster", roster, "--no-require-all")

    (found,) = envelope["data"]["findings"]
    assert (code, envelope["error_code"], envelope["data"]["missing_logs"]) == (13, "MissingLog", [B])
    assert (found["kind"], found["severity"], found["accused"]) == ("missing-log", "attention", [])
    assert f"hint: ask {B} for its local/audit folder; --no-require-all goes on without it" in err
    assert (without, allowed["data"]["findings"], allowed["data"]["verdict"]["severity"]) == (0, [], "fine")
    assert any(notice.startswith(f"{B}: its log is missing") for notice in allowed["data"]["notices"])


def test_ones_own_log_alone_is_no_alarm_and_says_what_it_rests_on(honest: Path, roster: Path, capsys: Capture) -> None:
    own = honest / "sites" / A

    code, out, err = audit(capsys, "reconcile", own, "--roster", roster)
    required, envelope = audit_json(capsys, "reconcile", own, "--roster", roster, "--require-all", "--all")

    assert (code, err) == (0, "")
    assert f"verdict  In order. The log of {A} verifies" in out
    assert f"Nothing was compared with {TARGET}, {B}, {C}, whose logs are not here." in out
    assert (required, [found["kind"] for found in envelope["data"]["findings"]]) == (13, ["missing-log"] * 3)


def test_a_member_that_took_part_in_no_round_has_no_log_to_miss(tmp_path: Path, roster: Path, capsys: Capture) -> None:
    class StaysAway(Run):
        def write(self) -> Path:
            for site in (TARGET, A, B):
                self.begin(site)
            self.witness()
            self.end()
            return self.folder

    folder = StaysAway(tmp_path / "run").write()
    shutil.rmtree(folder / "sites" / C)

    code, envelope = audit_json(capsys, "reconcile", folder, "--roster", roster, "--all")

    assert "missing-log" not in [found["kind"] for found in envelope["data"]["findings"]], code
    assert any(notice.startswith(f"{C}: its log is missing") for notice in envelope["data"]["notices"])


def test_every_run_is_read_where_none_is_named(honest: Path, roster: Path, capsys: Capture) -> None:
    Run(honest, "ee" * 16, hours=-1).write()

    code, every = audit_json(capsys, "reconcile", honest, "--roster", roster)
    named, one = audit_json(capsys, "reconcile", honest, "--roster", roster, "--run", RUN[:8])
    unknown, _, err = audit(capsys, "reconcile", honest, "--roster", roster, "--run", "77")

    assert (code, named, unknown) == (0, 0, 4)
    assert [part["run"] for part in every["data"]["reconciled"]] == ["ee" * 16, RUN]
    assert [part["findings_total"] for part in every["data"]["reconciled"]] == [0, 0]
    assert one["data"]["run"] == RUN
    assert one["data"]["runs"] == every["data"]["runs"]
    assert f"--run: there is no log of run 77 below {honest}, only of {RUN}" in err


def test_the_runs_of_all_sites_are_one_table(honest: Path, roster: Path, capsys: Capture) -> None:
    HangsUp(honest, "ee" * 16, hours=3).write()

    code, out, _ = audit(capsys, "reconcile", honest, "--roster", roster)
    _, envelope = audit_json(capsys, "reconcile", honest, "--roster", roster)

    rows = {(row["party"], row["run"]): row for row in envelope["data"]["runs"]}
    first, second = rows[A, RUN], rows[A, "ee" * 16]
    assert (code, envelope["data"]["conduct"]) == (0, [])
    assert (first["ended"], first["headers_accepted"], first["rounds_finished"], first["rounds_lost"]) == (
        "completed",
        3,
        3,
        0,
    )
    assert (second["ended"], second["rounds_finished"], second["rounds_lost"]) == ("no end", 0, 1)
    assert second["unfinished_with_disclosure"]
    assert second["left"] == [
        {"what": "charges to the ledger", "to": "", "count": 1},
    ]
    assert out.startswith("verdict  Attention. run eeeeeeeeeeee: ")
    assert "2 of 2 runs without a finding of their own" in out
    line = next(line.split() for line in out.splitlines() if line.startswith("ee" * 16 + f"  {A}"))
    assert " ".join(line[4:]) == "no end 1 0 1 1 × charges to the ledger"


def test_runs_that_took_and_brought_nothing_are_a_finding_of_conduct(
    honest: Path, roster: Path, capsys: Capture
) -> None:
    for number, hours in (("ee", 3), ("dd", 4)):
        HangsUp(honest, number * 16, hours=hours).write()

    code, envelope = audit_json(capsys, "reconcile", honest, "--roster", roster)
    _, out, err = audit(capsys, "reconcile", honest, "--roster", roster, "--run", RUN)

    conduct = envelope["data"]["conduct"]
    assert (code, envelope["error_code"], envelope["data"]["findings_total"]) == (13, "TargetConduct", 0)
    assert [(one["kind"], one["source"], one["target"]) for one in conduct] == [
        ("unfinished-runs", site, TARGET) for site in SOURCES
    ]
    assert conduct[0]["runs"] == ["ee" * 16, "dd" * 16]
    assert {"what": "charges to the ledger", "to": "", "count": 2} in conduct[0]["left"]
    assert "2 runs of hospital-t took something from hospital-a and brought it no result" in out
    assert err.startswith("error: unfinished-runs: ")


def test_one_sources_own_kit_shows_the_conduct_too_and_what_rows_without_a_checkpoint_are_worth(
    honest: Path, roster: Path, capsys: Capture
) -> None:
    for number, hours in (("ee", 3), ("dd", 4)):
        HangsUp(honest, number * 16, hours=hours).write()
        log = honest / "sites" / A / "local" / "audit" / (number * 16)
        (log / "checkpoint").unlink()
        shutil.rmtree(log / "checkpoints")

    code, envelope = audit_json(capsys, "reconcile", honest / "sites" / A, "--roster", roster, "--run", RUN)

    problems = [row["problem"] for row in envelope["data"]["runs"]]
    assert (code, envelope["error_code"]) == (13, "TargetConduct")
    assert [one["source"] for one in envelope["data"]["conduct"]] == [A]
    assert problems == ["", *["no checkpoint: nothing proves this row"] * 2]


def test_an_edited_log_is_found_first_and_counts_up_to_its_fault(honest: Path, roster: Path, capsys: Capture) -> None:
    tail = folder_of(honest, B) / "tail"
    tail.write_bytes(tail.read_bytes().replace(b'"type":"Header"', b'"type":"Headex"', 1))

    code, envelope = audit_json(capsys, "reconcile", honest, "--roster", roster)

    (finding,) = envelope["data"]["findings"]
    assert (code, finding["kind"], finding["accused"]) == (13, "unverified-log", [B])
    rows = {row["party"]: row for row in envelope["data"]["runs"]}
    assert rows[B]["problem"].startswith("edited at record ")
    assert (rows[B]["ended"], rows[A]["ended"]) == ("not known", "completed")
    assert (rows[B]["headers_accepted"], rows[A]["problem"]) == (0, "")


def test_evidence_is_of_one_run(equivocation: Path, roster: Path, capsys: Capture) -> None:
    Equivocates(equivocation, "ee" * 16).write()
    file = equivocation.parent / "evidence.json"

    code, envelope = audit_json(capsys, "reconcile", equivocation, "--roster", roster, "--evidence", file)
    named, _, _ = audit(capsys, "reconcile", equivocation, "--roster", roster, "--evidence", file, "--run", RUN)

    files = [str(file.with_name(f"evidence-{run[:12]}.json")) for run in (RUN, "ee" * 16)]
    assert (code, sorted(envelope["data"]["evidence"]), named) == (13, sorted(files), 13)
    for one in (*map(Path, files), file):
        assert audit(capsys, "verify-evidence", one, "--roster", roster)[0] == 0


def test_a_second_copy_of_a_log_is_verified_too(honest: Path, roster: Path, capsys: Capture) -> None:
    copy = Path(shutil.copytree(folder_of(honest, A), honest / "copy"))
    sound, _ = audit_json(capsys, "reconcile", honest, "--roster", roster)
    (copy / "tail").write_bytes((copy / "tail").read_bytes().replace(b'"type":"Header"', b'"type":"Headex"', 1))

    code, envelope = audit_json(capsys, "reconcile", honest, "--roster", roster)

    (found,) = envelope["data"]["findings"]
    assert (sound, code, found["kind"], found["accused"]) == (0, 13, "unverified-log", [])
    assert f"another copy of the log of {A}, {copy}: edited" in found["what"]


def test_two_copies_that_tell_two_stories_are_a_fork(honest: Path, roster: Path, capsys: Capture) -> None:
    other = Run(honest.parent / "other").write()  # the same keys sign the same run once more, an hour later
    late = Run(honest.parent / "late", hours=1).write()
    shutil.copytree(folder_of(other, A), honest / "same")
    assert audit(capsys, "reconcile", honest, "--roster", roster)[0] == 0
    shutil.copytree(folder_of(late, A), honest / "another")

    code, envelope = audit_json(capsys, "reconcile", honest, "--roster", roster)

    assert (code, envelope["data"]["findings"][0]["kind"]) == (13, "forked-log")
    assert envelope["data"]["verdict"]["severity"] == "tampering"


@pytest.mark.parametrize("make", [lambda path: path.mkdir(), lambda path: path.write_bytes(b"x"), lambda path: None])
def test_a_place_without_logs_is_one_clear_line(make: Any, tmp_path: Path, capsys: Capture) -> None:
    make(tmp_path / "place")

    code, _, err = audit(capsys, "reconcile", tmp_path / "place")

    assert code == 4
    assert err.startswith("error: audit log ")


def test_rubbish_among_the_kept_messages_is_said_and_hides_nothing(
    equivocation: Path, roster: Path, capsys: Capture
) -> None:
    (folder_of(equivocation, A) / "messages-0001.bin").write_bytes(b"\xff" * 64)
    with (folder_of(equivocation, A) / FILE).open("ab") as file:
        file.write((5).to_bytes(4, "big") + b"hello")

    code, envelope = audit_json(capsys, "reconcile", equivocation, "--roster", roster)

    assert (code, envelope["data"]["findings"][0]["proved_by"]) == (13, "messages")
    assert any("holds no kept messages" in notice for notice in envelope["data"]["notices"])
    logs = {log["party"]: log["kept_messages"]["findings"] for log in envelope["data"]["logs"]}
    assert logs == {A: 2, B: 0, C: 0, TARGET: 0}


def test_a_flipped_byte_in_the_evidence_accuses_nobody(honest: Path, roster: Path, capsys: Capture) -> None:
    kept = folder_of(honest, B) / FILE
    data = bytearray(kept.read_bytes())
    data[len(data) // 2] ^= 0x10
    kept.write_bytes(data)

    code, out, err = audit(capsys, "reconcile", honest, "--roster", roster)
    _, envelope = audit_json(capsys, "reconcile", honest, "--roster", roster)

    (found,) = envelope["data"]["findings"]
    (record,) = found["records"]
    assert (code, envelope["error_code"]) == (13, "EvidenceLost")
    assert (found["kind"], found["accused"], found["proved_by"]) == ("evidence-damaged", [], None)
    assert record["party"] == B
    assert f"record {record['index']} (" in found["what"]
    assert "has lost its evidence" in found["what"]
    assert [log["finding"] for log in envelope["data"]["logs"]] == [None] * 4
    assert f"no site: nothing shows who changed what {B} has kept" in " ".join(out.split())
    assert err.startswith("error: evidence-damaged: beside the log of hospital-b: ")


def test_lost_evidence_comes_behind_a_divergence(equivocation: Path, roster: Path, capsys: Capture) -> None:
    (folder_of(equivocation, A) / FILE).unlink()

    code, envelope = audit_json(capsys, "reconcile", equivocation, "--roster", roster, "--all")

    assert (code, envelope["error_code"]) == (13, "Contradiction")
    assert [found["kind"] for found in envelope["data"]["findings"]] == ["equivocation", "evidence-missing"]


def sign_anew(log: Path, by: str) -> None:
    """Have another site sign the checkpoints of a log, with its own key."""
    for file in [log / "checkpoint", *(log / "checkpoints").iterdir()]:
        text = Note.parse(file.read_bytes()).text
        file.write_bytes(Note(text, (signed_notes.sign(text, text.split("\n")[0], KEYS[by]),)).to_bytes())


def test_a_log_that_its_party_did_not_sign_accuses_nobody(honest: Path, roster: Path, capsys: Capture) -> None:
    sign_anew(folder_of(honest, B), by=A)

    code, envelope = audit_json(capsys, "reconcile", honest, "--roster", roster, "--all")

    assert code == 13
    assert ("unverified-log", []) in [(one["kind"], one["accused"]) for one in envelope["data"]["findings"]]
    assert [one for one in envelope["data"]["findings"] if one["accused"] or one["disagree"]] == []


@pytest.mark.parametrize("made_up", ["a roster", "a kit"])
def test_rosters_that_contradict_each_other_accuse_nobody(
    made_up: str, honest: Path, roster: Path, tmp_path: Path, capsys: Capture
) -> None:
    if made_up == "a roster":
        (folder_of(honest, A) / "roster.json").write_bytes(replace(ROSTER, epoch=2).canonical_bytes())
    else:
        assert main(["federation", "init", str(sample("digits")), "--out", str(tmp_path / "kits")]) == 0
        shutil.copytree(tmp_path / "kits/source-1/startup", honest / "sites" / A / "startup")

    code, envelope = audit_json(capsys, "reconcile", honest, "--all")
    reported, page = audit_json(capsys, "report", honest, "--out", tmp_path / "page.html")
    trusted, named = audit_json(capsys, "reconcile", honest, "--roster", roster, "--all")

    (found,) = envelope["data"]["findings"]
    assert (code, reported, found["kind"], found["accused"]) == (13, 13, "rosters-in-doubt", [])
    assert envelope["data"]["verdict"] == page["data"]["verdict"]
    assert envelope["data"]["verdict"]["severity"] == "unjudged"
    assert f"digest {ROSTER.digest().hex()}" in found["what"]
    assert ("by the CA with fingerprint" in found["what"]) == (made_up == "a kit")
    assert "--roster" in envelope["hint"]
    assert (trusted, named["data"]["findings"]) == (0, [])
