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

from run_builder import ROSTER, RUN, SOURCES, TARGET, Run, folder_of
from run_lies import A, B, C, Equivocates, Lie, but

from securefda.audit.kept import FILE

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _no_disk_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda descriptor: None)


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
    said = f"accused nobody alone: {B}, {TARGET} disagree, and no signed message settles who is right"
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

    assert not file.exists()


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


def test_a_file_of_an_earlier_release_that_proves_nothing_is_one_clear_line(
    equivocation: Path, roster: Path, capsys: Capture
) -> None:
    file = evidence_of(equivocation, roster, capsys)
    messages = json.loads(file.read_bytes())["claims"][0]["messages"]

    alone = audit(
        capsys, "verify-evidence", changed(file, kind="never-sent", messages=messages[:1]), "--roster", roster
    )
    bound = audit(
        capsys, "verify-evidence", changed(file, kind="double-release", messages=messages * 2), "--roster", roster
    )

    for code, _, err in (alone, bound):
        assert (code, err.splitlines()[1:]) == (13, ["hint: accuse nobody by it"])
    assert "a message alone does not show that it was never sent" in alone[2]
    assert "releases in different sessions prove nothing" in bound[2]


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


def test_fewer_logs_than_sites_are_read_and_what_is_missing_is_named(
    honest: Path, roster: Path, capsys: Capture
) -> None:
    shutil.rmtree(honest / "sites" / B)

    code, envelope = audit_json(capsys, "reconcile", honest, "--roster", roster)

    assert (code, envelope["data"]["missing_logs"]) == (0, [B])
    assert any(notice.startswith(f"{B}: its log is not there") for notice in envelope["data"]["notices"])


def test_several_runs_are_told_apart_by_name(honest: Path, roster: Path, capsys: Capture) -> None:
    other = shutil.copytree(folder_of(honest, A), honest / "other")
    for name in ("tail", "checkpoint"):
        (other / name).write_bytes((other / name).read_bytes().replace(RUN.encode(), b"f" * 32))

    code, _, err = audit(capsys, "reconcile", honest, "--roster", roster)
    named, _ = audit_json(capsys, "reconcile", honest, "--roster", roster, "--run", RUN[:8])

    assert (code, named) == (4, 0)
    assert "logs of 2 runs" in err


def test_two_logs_of_one_site_are_refused(honest: Path, roster: Path, capsys: Capture) -> None:
    shutil.copytree(folder_of(honest, A), honest / "copy")

    code, _, err = audit(capsys, "reconcile", honest, "--roster", roster)

    assert code == 4
    assert f"are two logs of {A}" in err


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


def test_an_edited_log_is_found_first(honest: Path, roster: Path, capsys: Capture) -> None:
    tail = folder_of(honest, B) / "tail"
    tail.write_bytes(tail.read_bytes().replace(b'"type":"Header"', b'"type":"Headex"', 1))

    code, envelope = audit_json(capsys, "reconcile", honest, "--roster", roster)

    (found,) = envelope["data"]["findings"]
    assert (code, found["kind"], found["accused"]) == (13, "unverified-log", [B])
