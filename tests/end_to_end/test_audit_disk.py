"""Audit logs of real processes: on a disk that fills, behind a file, open to others, cut, and after a kill.

What a site cannot write down it neither sends nor handles: it ends with one line that names the file, and a hint.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e_processes import Kits, Process, assert_one_clear_line, kits

from securefda.audit.reading import open_log
from securefda.audit.records import Entry
from securefda.cli import main
from securefda.errors import ExitCode

ROUNDS = 12
SETTINGS = (f"strategy.rounds={ROUNDS}", "strategy.warm-up-rounds=1", "transport.reconnect-deadline-s=120")
IN_CLEAR = ("privacy.visibility=individual", "strategy.rounds=4", "strategy.warm-up-rounds=0")
NO_SPACE = "No space left on device"


def audit_of(federation: Kits, site: str) -> Path:
    return federation.kit(site) / "local" / "audit"


def log_of(federation: Kits, site: str) -> Path:
    """A site's log of the only run."""
    (log,) = audit_of(federation, site).iterdir()
    return log


def entries_of(log: Path, kind: str) -> list[Entry]:
    return [record.entry for record in open_log(log).records() if record.entry.type == kind]


def assert_logs_are_good(federation: Kits, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Every log verifies, and together they have no finding; returns what was counted."""
    logs = [str(log_of(federation, site)) for site in (federation.target, *federation.names)]
    capsys.readouterr()
    assert main(["audit", "verify", *logs]) == 0, capsys.readouterr().err
    capsys.readouterr()
    code = main(["audit", "reconcile", str(federation.root), "--format", "json"])
    data: dict[str, Any] = json.loads(capsys.readouterr().out)["data"]
    assert (code, data["findings"], data["missing_logs"]) == (0, [], [])
    counts: dict[str, Any] = data["counts"]
    return counts


def tear(tail: Path) -> None:
    """Leave in a tail what a kill leaves of a record that was being written: nothing that it tells of has happened."""
    whole = tail.read_bytes()
    first = 2 + int.from_bytes(whole[:2], "big")
    tail.write_bytes(whole + whole[: first - 3])


@pytest.mark.parametrize("site", ["target", "source-1"])
def test_a_file_in_place_of_the_folder_of_logs_is_named(tmp_path: Path, site: str) -> None:
    with kits(tmp_path, 1, settings=IN_CLEAR) as federation:
        audit_of(federation, site).write_text("not a folder")
        processes = federation.start_all()
        assert_one_clear_line(processes[site], ExitCode.FAILED, str(audit_of(federation, site)), hint="permissions")
        assert audit_of(federation, site).read_text() == "not a folder"
        assert "round 1" not in processes["source-1"].text


def test_a_killed_aggregator_goes_on_with_its_log_unless_somebody_has_touched_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with kits(tmp_path, settings=SETTINGS) as federation:
        processes = federation.start_all()
        processes["target"].until("round 3 of ").kill()
        log = log_of(federation, "target")
        assert_touched_log_is_refused(federation, "target", log)
        tear(log / "tail")
        again = federation.start("target")
        assert again.end() == 0, again.text
        assert [processes[site].end() for site in federation.names] == [0, 0, 0]

        counts = assert_logs_are_good(federation, capsys)
        assert counts["headers"] >= ROUNDS - 1
        (back,) = entries_of(log, "restarted")
        assert back.facts["lost_bytes"] > 100  # type: ignore[operator]
        assert all(entries_of(log_of(federation, site), "restarted") == [] for site in federation.names)


def test_a_killed_source_goes_on_with_its_log_unless_somebody_has_touched_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with kits(tmp_path, settings=SETTINGS) as federation:
        processes = federation.start_all()
        processes["source-2"].until("round 3").kill()
        log = log_of(federation, "source-2")
        assert_touched_log_is_refused(federation, "source-2", log)
        back = federation.start("source-2")
        ends = [processes["target"].end(), back.end(), processes["source-1"].end(), processes["source-3"].end()]
        assert ends == [0, 0, 0, 0]

        assert_logs_are_good(federation, capsys)
        assert len(entries_of(log, "run-began")) == 1
        assert len(entries_of(log, "restarted")) == 1
        assert federation.rounds()[-1]["survivors"] == federation.names


def assert_touched_log_is_refused(federation: Kits, site: str, log: Path) -> None:
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


class SmallDisks:
    """Disks in memory, each of its own size, until the test ends."""

    def __init__(self) -> None:
        self._folders: list[Path] = []

    def mount(self, folder: Path, size: str) -> None:
        folder.mkdir(mode=0o700)
        options = ["-t", "tmpfs", "-o", f"size={size},mode=700", "none", str(folder)]
        if os.geteuid() != 0 or subprocess.run(["mount", *options], check=False, capture_output=True).returncode != 0:
            pytest.skip("mounting a small disk takes root; tests/rounds/test_log_before_send.py covers the rest")
        self._folders.append(folder)

    def grow(self, folder: Path, size: str) -> None:
        subprocess.run(["mount", "-o", f"remount,size={size}", str(folder)], check=True)

    def unmount(self) -> None:
        for folder in self._folders:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture
def disks() -> Iterator[SmallDisks]:
    made = SmallDisks()
    yield made
    made.unmount()


@pytest.mark.parametrize("site", ["target", "source-1"])
def test_a_full_disk_ends_its_site_before_anything_unlogged_leaves_and_the_log_goes_on_when_there_is_space(
    disks: SmallDisks, tmp_path: Path, site: str, capsys: pytest.CaptureFixture[str]
) -> None:
    quick = ("transport.join-deadline-s=8", "transport.reconnect-deadline-s=8")
    with kits(tmp_path, settings=(*SETTINGS, *quick)) as federation:
        folder = audit_of(federation, site)
        disks.mount(folder, "160k")
        processes = federation.start_all()
        assert_one_clear_line(processes[site], ExitCode.FAILED, str(folder), NO_SPACE, hint="space")
        assert_each_ends_with_one_line([processes[one] for one in processes if one != site])
        assert 0 < len(federation.rounds()) < ROUNDS
        assert_what_was_received_is_in_its_senders_log(federation)

        disks.grow(folder, "16m")
        again = federation.start_all("transport.join-deadline-s=60", "transport.reconnect-deadline-s=60")
        assert [process.end() for process in again.values()] == [0, 0, 0, 0]
        assert_logs_are_good(federation, capsys)
        assert len(entries_of(log_of(federation, site), "restarted")) == 1
        assert federation.rounds()[-1]["status"] == "finished"


def assert_each_ends_with_one_line(processes: list[Process]) -> None:
    for process in processes:
        assert process.end() in (ExitCode.FAILED, ExitCode.CONNECTION, ExitCode.QUORUM), process.text
        assert sum(line.startswith("error: ") for line in process.err) == 1, process.text
        assert "Traceback" not in process.text


def assert_what_was_received_is_in_its_senders_log(federation: Kits) -> None:
    """Not only as far as checkpoints go: the last words of a site that could not write more are behind them."""
    logs = {site: list(open_log(log_of(federation, site)).records()) for site in (federation.target, *federation.names)}
    sent = Counter(
        (site, r.entry.peer, r.entry.digest) for site in logs for r in logs[site] if r.entry.direction == "sent"
    )
    received = Counter(
        (r.entry.peer, site, r.entry.digest) for site in logs for r in logs[site] if r.entry.direction == "received"
    )
    assert received.total() > 50
    assert received - sent == Counter()
