"""The logs that real processes leave: they agree, and one that was touched is found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from e2e_processes import kits

from securefda.audit.kept import FILE
from securefda.cli import main


def test_logs_of_processes_reconcile_until_one_is_touched(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with kits(tmp_path, settings=("strategy.rounds=3",)) as federation:
        processes = federation.start_all()
        ends = {site: processes[site].end() for site in ("target", *federation.names)}
        again = federation.start("target").end()
        logs = [next((federation.kit(site) / "local" / "audit").iterdir()) for site in ends]
        capsys.readouterr()

        agreed = main(["audit", "reconcile", str(tmp_path), "--format", "json"])
        found = json.loads(capsys.readouterr().out)["data"]
        kept = logs[2] / FILE
        whole = kept.read_bytes()
        kept.write_bytes(whole[:-200] + bytes([whole[-200] ^ 1]) + whole[-199:])
        lost = [main(["audit", "verify", str(logs[2]), "--format", "json"])]
        lost += [main(["audit", "reconcile", str(tmp_path), "--format", "json"])]
        verified, reconciled = map(json.loads, capsys.readouterr().out.splitlines())
        kept.write_bytes(whole)
        assert main(["federation", "renew", str(federation.kit("target").parent), federation.names[0]]) == 0
        capsys.readouterr()
        renewed = main(["audit", "reconcile", str(tmp_path), "--format", "json"])
        later = json.loads(capsys.readouterr().out)["data"]
        tail = logs[1] / "tail"
        tail.write_bytes(tail.read_bytes().replace(b'"type":"MaskedInput"', b'"type":"MaskedInpux"', 1))
        touched = main(["audit", "reconcile", str(tmp_path), "--format", "json"])
        finding = json.loads(capsys.readouterr().out)["data"]["findings"][0]

    (evidence,) = verified["data"]["logs"][0]["kept_messages"]["findings"]
    assert lost == [13, 13]
    assert (verified["error_code"], verified["data"]["logs"][0]["finding"]) == ("EvidenceLost", None)
    assert evidence["kind"] == reconciled["data"]["findings"][0]["kind"] == "evidence-damaged"
    assert f"record {evidence['index']} (" in reconciled["data"]["findings"][0]["what"]
    assert set(ends.values()) == {0}
    assert again == 0
    assert (agreed, found["findings"], found["missing_logs"]) == (0, [], [])
    assert (found["verdict"]["severity"], found["verdict"]["points"]) == ("fine", [])
    assert (renewed, later["roster"]["from"], later["roster"]["digest"]) == (0, "kit", found["roster"]["digest"])
    assert any("began under the roster of epoch 1" in notice for notice in later["notices"])
    assert later["verdict"]["severity"] == "fine"
    assert found["roster"]["from"] == "kit"
    assert (found["counts"]["headers"], found["counts"]["releases"]) == (3, 9)
    assert not [notice for notice in found["notices"] if "did not receive" in notice]
    runs = {row["party"]: row for row in found["runs"]}
    assert {(row["ended"], row["rounds_finished"], row["rounds_lost"]) for row in runs.values()} == {
        ("completed", 3, 0)
    }
    assert [(left["what"], left["to"], left["count"]) for left in runs[federation.names[0]]["left"]] == [
        ("masked inputs", "target", 3),
        ("unmask shares", "target", 3),
    ]
    assert (touched, finding["kind"], finding["accused"]) == (13, "unverified-log", [federation.names[0]])


def test_two_kills_of_a_site_are_neither_lost_evidence_nor_conduct(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with kits(tmp_path, settings=("strategy.rounds=6",)) as federation:
        processes = federation.start_all()
        for site, text in ((federation.names[0], "round 2 of "), ("target", "round 4 of ")):
            processes["target"].until(text)
            processes[site].kill()
            processes[site] = federation.start(site)
        ends = {site: process.end() for site, process in processes.items()}
        capsys.readouterr()

        code = main(["audit", "reconcile", str(tmp_path), "--all", "--format", "json"])
        data = json.loads(capsys.readouterr().out)["data"]

    assert set(ends.values()) == {0}
    assert (code, data["findings"], data["conduct"]) == (0, [], [])
    assert {(row["party"], row["ended"]) for row in data["runs"]} == {(site, "completed") for site in ends}
    assert all(row["rounds_finished"] >= 6 - 2 for row in data["runs"])  # a kill costs its round at most
