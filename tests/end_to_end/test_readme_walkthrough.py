"""The walk-through of the README, command by command as it stands there."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from securefda.training import choose_device

ROOT = Path(__file__).parents[2]
DEADLINE_S = 150


def walkthrough_commands() -> tuple[list[str], list[str]]:
    """Commands to run one after the other, and those that each have a terminal of their own."""
    section = (ROOT / "README.md").read_text(encoding="utf-8").split("## Walk-through", 1)[1].split("\n## ", 1)[0]
    blocks = re.findall(r"```sh\n(.*?)```", section, flags=re.DOTALL)
    *setup, processes = blocks
    return setup, re.findall(r"# terminal .*\n(.*\n)", processes)


@pytest.fixture
def environment() -> dict[str, str]:
    """As somebody has it who has set nothing."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "OPENBLAS_"))}
    return own | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def test_the_readme_s_walkthrough_trains_a_model_on_masked_updates(tmp_path: Path, environment: dict[str, str]) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    setup, terminals = walkthrough_commands()
    assert len(setup) == 2
    assert len(terminals) == 4
    for command in setup:
        subprocess.run(["bash", "-ec", command], cwd=tmp_path, env=environment, check=True, timeout=DEADLINE_S)
    processes = [
        subprocess.Popen(["bash", "-ec", command], cwd=tmp_path, env=environment, stderr=subprocess.PIPE)
        for command in terminals
    ]
    try:
        shown = [process.communicate(timeout=DEADLINE_S)[1].decode() for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0, 0, 0], shown
    summary = json.loads((tmp_path / "kits/clinic/local/run/summary.json").read_text())
    assert summary["status"] == "finished"
    assert summary["rounds"] == 16
    assert summary["visibility"] == dict.fromkeys(("hospital-a", "hospital-b", "hospital-c"), "sum")
    assert summary["target_accuracy"] > 0.5  # chance is 0.1
    assert "round 16 of 16: " in shown[0]
    if choose_device().type == "cpu":
        assert all("trains on cpu (1 thread)" in text for text in shown)
