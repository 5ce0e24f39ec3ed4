"""Whole runs with one process per site: happy, with sites that are killed, at levels of their own, and for a study."""

from __future__ import annotations

import json
import shutil
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from e2e_processes import Kits, assert_one_clear_line, kits
from safetensors.numpy import load_file
from terminals import eventually

from securefda.audit.kept import FILE
from securefda.audit.log_records import Entry
from securefda.audit.reading import open_log
from securefda.cli import main
from securefda.errors import ExitCode
from securefda.operations.run_folder import RunRecord, read_run
from securefda.site.training_secret import TRAINING_KEY_FILE

ROUNDS = 2
ONE_ROUND = ("strategy.rounds=1", "strategy.warm-up-rounds=0")


def test_a_target_and_three_sources_finish_their_rounds_and_leave_what_can_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with kits(tmp_path / "happy", settings=(f"strategy.rounds={ROUNDS}",)) as happy:
        processes = happy.start_all()
        for site in ("target", *happy.names):
            assert processes[site].end() == 0, processes[site].text

        assert [(line["round"], line["status"], line["attempts"]) for line in happy.rounds()] == [
            (number, "finished", 1) for number in range(1, ROUNDS + 1)
        ]
        assert all(line["survivors"] == happy.names for line in happy.rounds())
        assert happy.summary()["status"] == "finished"
        assert happy.summary()["visibility"] == dict.fromkeys(happy.names, "sum")
        assert_the_folder_can_be_read(happy)
        assert_every_source_keeps_its_own_record(happy)
        for site in ("target", *happy.names):  # its owner alone reads it
            assert stat.S_IMODE((happy.kit(site) / "local" / "run" / "state.sqlite").stat().st_mode) == 0o600
        assert_a_finished_run_is_not_begun_again(happy)
        assert_logs_agree_until_one_is_touched(shutil.copytree(happy.root, tmp_path / "copy"), happy.names, capsys)


def assert_the_folder_can_be_read(happy: Kits) -> None:
    record = read_run(happy.run_folder)
    assert record.summary is not None
    assert record.summary["model_digest"] == happy.rounds()[-1]["model_digest"]
    assert sum(layer.size for layer in load_file(happy.run_folder / "model.safetensors").values()) == 9610
    assert "<html" in (happy.run_folder / "report.html").read_text()


def assert_every_source_keeps_its_own_record(happy: Kits) -> None:
    for site in happy.names:
        lines = [json.loads(line) for line in line_of(happy, site).splitlines()]
        assert [line["round"] for line in lines] == list(range(1, ROUNDS + 1))
        assert 0 <= lines[-1]["beta"] <= 1
    assert "beta" not in happy.rounds()[-1]


def assert_a_finished_run_is_not_begun_again(happy: Kits) -> None:
    before = happy.rounds()
    again = happy.start("target")
    assert again.end() == 0, again.text
    assert "complete already" in again.text
    assert happy.rounds() == before
    assert happy.summary()["status"] == "finished"
    source = happy.start("source-1")
    assert source.end() == 0, source.text
    assert "is complete already; to take part in another one, name a new folder: --out FOLDER" in source.text
    assert "joined" not in source.text


def reconciled(root: Path, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, dict[str, Any]]:
    """Exit code of ``audit reconcile`` over all that lies in a folder, and what it found."""
    capsys.readouterr()
    code = main(["audit", "reconcile", str(root), *more, "--format", "json"])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)["data"]
    return code, found


def assert_logs_agree_until_one_is_touched(root: Path, names: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    logs = {site: next((root / "kits" / site / "local" / "audit").iterdir()) for site in names}
    agreed, found = reconciled(root, capsys)
    assert (agreed, found["findings"], found["missing_logs"]) == (0, [], [])
    (ca,) = found["verdict"]["points"]
    assert f"compare the fingerprint {found['roster']['ca']} of its CA" in ca["what"]
    assert (found["verdict"]["severity"], found["roster"]["from"]) == ("attention", "kit")
    _, own = reconciled(root / "kits" / names[0], capsys)
    assert (own["verdict"]["severity"], own["verdict"]["points"], own["roster"]["from"]) == ("fine", [], "kit")
    assert (found["counts"]["headers"], found["counts"]["releases"]) == (ROUNDS, ROUNDS * len(names))
    assert not [notice for notice in found["notices"] if "did not receive" in notice]
    runs = {row["party"]: row for row in found["runs"]}
    assert {(row["ended"], row["rounds_finished"], row["rounds_lost"]) for row in runs.values()} == {
        ("completed", ROUNDS, 0)
    }
    assert [(left["what"], left["to"], left["count"]) for left in runs[names[0]]["left"]] == [
        ("masked inputs", "target", ROUNDS),
        ("unmask shares", "target", ROUNDS),
    ]

    kept = logs["source-2"] / FILE
    whole = kept.read_bytes()
    kept.write_bytes(whole[:-200] + bytes([whole[-200] ^ 1]) + whole[-199:])
    assert main(["audit", "verify", str(logs["source-2"]), "--format", "json"]) == ExitCode.AUDIT
    verified = json.loads(capsys.readouterr().out)
    (evidence,) = verified["data"]["logs"][0]["kept_messages"]["findings"]
    assert (verified["error_code"], verified["data"]["logs"][0]["finding"]) == ("EvidenceLost", None)
    lost, damaged = reconciled(root, capsys)
    assert (lost, evidence["kind"], damaged["findings"][0]["kind"]) == (ExitCode.AUDIT, *2 * ("evidence-damaged",))
    assert f"record {evidence['index']} (" in damaged["findings"][0]["what"]
    kept.write_bytes(whole)

    assert main(["federation", "renew", str(root / "kits"), names[0]]) == 0
    renewed, later = reconciled(root, capsys)
    assert (renewed, later["roster"]["from"], later["roster"]["digest"]) == (0, "kit", found["roster"]["digest"])
    assert any("began under the roster of epoch 1" in notice for notice in later["notices"])
    assert later["verdict"]["points"] == found["verdict"]["points"]

    tail = logs[names[0]] / "tail"
    tail.write_bytes(tail.read_bytes().replace(b'"type":"MaskedInput"', b'"type":"MaskedInpux"', 1))
    touched, seen = reconciled(root, capsys)
    finding = seen["findings"][0]
    assert (touched, finding["kind"], finding["accused"]) == (ExitCode.AUDIT, "unverified-log", [names[0]])


def test_a_source_and_an_aggregator_that_are_killed_come_back_and_their_logs_agree(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The source is killed in its training in round 1, the target in its own in round 3, the first after the warm-up.

    While a site is gone, its log is opened to others, and cut: then it does not start.
    """
    holds = {site: tmp_path / f"hold-{site}" for site in ("source-2", "target")}
    for hold in holds.values():
        hold.touch()
    settings = (
        "strategy.rounds=4",
        "strategy.warm-up-rounds=2",
        "transport.heartbeat-s=0.2",
        "transport.reconnect-deadline-s=120",
        f"task.data-dir={tmp_path}",
    )
    with kits(tmp_path / "kits", settings=settings, task="e2e_tasks:Held") as federation:
        processes = federation.start_all()
        target, logs = processes["target"], {site: federation.kit(site) / "local" / "audit" for site in processes}
        eventually((tmp_path / "held-training-at-source-2").exists)
        processes["source-2"].kill()
        log_of_source = only_one_in(logs["source-2"])
        assert_a_touched_log_is_refused(federation, "source-2", log_of_source)
        holds["source-2"].unlink()
        processes["source-2"] = federation.start("source-2")
        target.until("source-2 joined", 2)

        eventually((tmp_path / "held-training-at-target").exists)
        target.kill()
        before = {line["round"]: line for line in federation.rounds()}
        log_of_target = only_one_in(logs["target"])
        assert_a_touched_log_is_refused(federation, "target", log_of_target)
        tear(log_of_target / "tail")
        holds["target"].unlink()
        again = processes["target"] = federation.start("target")
        for process in processes.values():
            assert process.end() == 0, process.text

        assert any(line.startswith("resuming after round") for line in again.err)
        assert all("joining again" in processes[site].text for site in federation.names)
        rounds = federation.rounds()
        assert [(line["round"], line["status"]) for line in rounds[1:]] == [(n, "finished") for n in range(2, 5)]
        assert sorted(before) == [1, 2]
        assert {line["round"]: line for line in rounds if line["round"] in before} == before
        assert rounds[-1]["survivors"] == federation.names
        assert federation.summary()["model_digest"] == rounds[-1]["model_digest"]

        for log in map(only_one_in, logs.values()):
            assert main(["audit", "verify", str(log)]) == 0
        code, found = reconciled(tmp_path, capsys, "--all")
        assert (code, found["findings"], found["conduct"], found["missing_logs"]) == (0, [], [], [])
        assert {(row["party"], row["ended"]) for row in found["runs"]} == {(site, "completed") for site in processes}
        assert all(row["rounds_finished"] >= 4 - 1 for row in found["runs"])  # the kill in round 1 costs it at most
        (back,) = entries_of(log_of_target, "restarted")
        assert back.facts["lost_bytes"] > 100  # type: ignore[operator]
        assert [len(entries_of(log_of_source, kind)) for kind in ("run-began", "restarted")] == [1, 1]
        assert entries_of(only_one_in(logs["source-1"]), "restarted") == []


def only_one_in(folder: Path) -> Path:
    """A site's log of the only run."""
    (log,) = folder.iterdir()
    return log


def entries_of(log: Path, kind: str) -> list[Entry]:
    return [record.entry for record in open_log(log).records() if record.entry.type == kind]


def assert_a_touched_log_is_refused(federation: Kits, site: str, log: Path) -> None:
    """A log that others can read, and one that lacks a record that was signed, are refused; then it is as before."""
    log.chmod(0o755)
    opened = federation.start(site)
    assert_one_clear_line(opened, ExitCode.FAILED, str(log), "open to others", hint=f"chmod -R go= {log}")
    log.chmod(0o700)
    tail = (log / "tail").read_bytes()
    (log / "tail").write_bytes(tail[:600])
    cut = federation.start(site)
    assert_one_clear_line(cut, ExitCode.FAILED, str(log), "were signed", hint="verify it")
    assert (log / "tail").read_bytes() == tail[:600]
    (log / "tail").write_bytes(tail)


def tear(tail: Path) -> None:
    """Leave in a tail what a kill leaves of a record that it was writing: what the record reports has not happened."""
    whole = tail.read_bytes()
    first = 2 + int.from_bytes(whole[:2], "big")
    tail.write_bytes(whole + whole[: first - 3])


def test_each_source_is_served_at_the_level_that_its_own_signed_policy_permits(tmp_path: Path) -> None:
    levels = {"source-1": "individual", "source-2": "sum", "source-3": "sum", "source-4": "sum"}
    visible = "privacy.site-visibility={" + ", ".join(f'{site} = "{level}"' for site, level in levels.items()) + "}"
    settings = ("strategy.rounds=2", "privacy.visibility=individual", visible)
    with kits(tmp_path, 4, settings=settings) as federation:
        processes = federation.start_all()
        assert processes["target"].end() == 0, processes["target"].text
        lines = federation.rounds()
        assert [(line["status"], line["levels"]) for line in lines] == [("finished", levels)] * 2
        assert lines[-1]["target_update_to"] == ["source-2", "source-3", "source-4"]
        assert [(seen["level"], len(seen["members"])) for seen in lines[-1]["seen"]] == [("sum", 3), ("individual", 1)]
        for site, level in levels.items():
            assert processes[site].end() == 0, processes[site].text
            assert f"visibility {level}" in processes[site].text


def test_sources_draw_from_their_secret_and_only_a_study_from_the_seed(tmp_path: Path) -> None:
    """What everybody can compute who knows the seed, and has the rows, is what the simulator does."""
    settings = (*ONE_ROUND, "strategy.rule=fedavg")
    with kits(tmp_path, settings=settings) as federation:
        simulated = simulate(federation, settings).sites
        processes = {
            site: federation.start(site, *(["source.repeatable-training=true"] if site == "source-1" else []))
            for site in federation.names
        }
        processes["target"] = federation.start("target")
        for process in processes.values():
            assert process.end() == 0, process.text
        losses = {site: json.loads(line_of(federation, site))["loss"] for site in federation.names}
        alike = {site for site in federation.names if losses[site] == simulated[site][0]["loss"]}
        assert alike == {"source-1"}
        noted = {site for site, process in processes.items() if "repeatable-training is on" in process.text}
        assert noted == {"source-1"}
        made = {site for site in processes if (federation.kit(site) / "local" / TRAINING_KEY_FILE).exists()}
        assert made == {"source-2", "source-3", "target"}


def simulate(federation: Kits, settings: Iterable[str]) -> RunRecord:
    out, sets = federation.root / "simulated", [part for text in settings for part in ("--set", text)]
    assert main(["simulate", str(federation.file), *sets, "--out", str(out)]) == 0
    return read_run(out)


def line_of(federation: Kits, site: str) -> str:
    return (federation.kit(site) / "local" / "run" / "metrics.jsonl").read_text()


def test_the_target_draws_from_its_secret_and_only_a_study_from_the_seed(tmp_path: Path) -> None:
    settings = (*ONE_ROUND, "strategy.rule=target_only")
    with kits(tmp_path, settings=settings) as federation:
        digests = {"simulated": simulate(federation, settings).rounds[0]["model_digest"]}
        for name, repeatable in (("secret", "false"), ("again", "false"), ("study", "true")):
            out = tmp_path / name
            process = federation.start(
                "target", f"aggregator.repeatable-training={repeatable}", f"aggregator.out={out}"
            )
            assert process.end() == 0, process.text
            digests[name] = read_run(out).rounds[0]["model_digest"]
    assert digests["study"] == digests["simulated"]
    assert len({digests[name] for name in ("secret", "again", "study")}) == 3


def test_a_target_without_labels_hears_nothing_of_an_epsilon_that_nobody_has(tmp_path: Path) -> None:
    settings = ("training.target.labels=none", "strategy.rule=source_only")
    with kits(tmp_path, settings=settings) as federation:
        started = federation.start("target").until("listens on")
        assert "labels" in started.text
        assert "differential privacy" not in started.text
