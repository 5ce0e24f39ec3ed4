"""Audit logs of real processes: on a disk that fills, and behind a file.

What a site cannot write down it neither sends nor handles: it ends with one line that names the file, and a hint.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e_processes import Kits, assert_one_clear_line, kits

from securefda.audit.log_records import Entry
from securefda.audit.reading import open_log
from securefda.cli import main
from securefda.errors import ExitCode

ROUNDS = 20
DISKS = {"target": "200k", "source-1": "120k"}
"""Disks for logs that are full after the first round and long before the last, on slow machines, too."""
SETTINGS = (
    f"strategy.rounds={ROUNDS}",
    "strategy.warm-up-rounds=1",
    "transport.join-deadline-s=600",
    "transport.reconnect-deadline-s=600",
)
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


@pytest.mark.parametrize("site", ["target", "source-1"])
def test_a_file_in_place_of_the_folder_of_logs_is_named(tmp_path: Path, site: str) -> None:
    with kits(tmp_path, 1, settings=IN_CLEAR) as federation:
        audit_of(federation, site).write_text("not a folder")
        processes = federation.start_all()
        assert_one_clear_line(processes[site], ExitCode.FAILED, str(audit_of(federation, site)), hint="permissions")
        assert audit_of(federation, site).read_text() == "not a folder"
        assert "round 1" not in processes["source-1"].text


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


@pytest.mark.parametrize("site", DISKS)
def test_a_full_disk_ends_its_site_before_anything_unlogged_leaves_and_the_log_goes_on_when_there_is_space(
    disks: SmallDisks, tmp_path: Path, site: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with kits(tmp_path, settings=SETTINGS) as federation:
        folder = audit_of(federation, site)
        disks.mount(folder, DISKS[site])
        processes = federation.start_all()
        assert_one_clear_line(processes[site], ExitCode.FAILED, str(folder), NO_SPACE, hint="space")
        for process in processes.values():  # those that are left would wait for it
            process.interrupt(signal.SIGTERM)
        assert 0 < len(federation.rounds()) < ROUNDS
        assert_what_was_received_is_in_its_senders_log(federation)

        disks.grow(folder, "16m")
        again = federation.start_all()
        assert [process.end() for process in again.values()] == [0, 0, 0, 0]
        assert_logs_are_good(federation, capsys)
        assert len(entries_of(log_of(federation, site), "restarted")) == 1
        assert federation.rounds()[-1]["status"] == "finished"


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
