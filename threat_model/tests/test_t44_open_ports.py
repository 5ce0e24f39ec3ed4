"""T44: nobody runs code in a site's process through a port that it opens for its own processes."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from listening import listening

from tests.end_to_end.e2e_processes import WAIT_S, kits
from threat_model.adversaries.open_ports import WritesStores

pytestmark = [
    pytest.mark.threat("T44"),
    pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="needs /proc/net"),
]


def eventually(holds: Callable[[], bool]) -> bool:
    until = time.monotonic() + WAIT_S
    while not (found := holds()) and time.monotonic() < until:
        time.sleep(0.05)
    return found


def ports_of(process: int) -> list[int]:
    return [port for kind, _, port in listening(process) if kind == "tcp"]


def test_a_source_in_two_processes_has_no_port_to_write_to(tmp_path: Path) -> None:
    made = tmp_path / "made"
    with kits(tmp_path / "kits", settings=("strategy.rounds=5000",)) as federation:
        target = federation.start("target").until("listens on")
        source = federation.start("source-1", "training.processes=2")
        for site in ("source-2", "source-3"):
            federation.start(site)
        target.until("round 1 of")
        assert ports_of(source.process.pid) == []
        assert WritesStores(made).attack(ports_of(target.process.pid)) == 0
    assert not made.exists()


@pytest.mark.control
def test_code_runs_where_torchrun_starts_the_processes(tmp_path: Path) -> None:
    """No switch: torchrun itself, which a source refuses to be started by."""
    made = tmp_path / "made"
    command = ["--standalone", "--nproc-per-node", "2", "--no-python", "sleep", "600"]
    torchrun = subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        adversary = WritesStores(made)
        assert eventually(lambda: adversary.attack(ports_of(torchrun.pid)) > 0)
        assert eventually(made.exists)
    finally:
        torchrun.terminate()
        torchrun.wait()
