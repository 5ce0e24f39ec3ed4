"""``securefda demo``: the runs that it compares are those of ``simulate``, side by side, and end when it does."""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import closing
from pathlib import Path

import pytest
from e2e_processes import WAIT_S, Process, assert_one_clear_line, children_of

from securefda.bench.accuracy.columns import RULES, Schedule
from securefda.cli import main
from securefda.cli.training import DEMO, DEMO_COMPARED, DEMO_RULE
from securefda.errors import ExitCode
from securefda.local.children import ProcessFailed, Starter
from securefda.local.side_by_side import side_by_side
from securefda.operations.progress import SilentReporter
from securefda.operations.run_folder import METRICS_FILE, read_run

SHORT = ["--set", "strategy.rounds=2", "--set", "strategy.warm-up-rounds=1"]
LONG = ["digits", "--set", "strategy.rounds=100000", "--set", "strategy.rule=target_only"]


def models(run: Path) -> list[str | None]:
    return [line.get("model_digest") for line in read_run(run).rounds]


def test_what_it_compares_is_what_each_simulation_alone_comes_to(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    demo = Process(["demo", "--out", str(out), "--seed", "3", *SHORT, "--format", "json"])
    assert demo.end() == 0, demo.text
    runs = json.loads("".join(demo.out))["data"]["runs"]
    assert list(runs) == [*DEMO_COMPARED, DEMO_RULE]
    for rule in DEMO_COMPARED:
        alone = tmp_path / rule
        simulate = ["simulate", DEMO, "--out", str(alone), "--seed", "3", *SHORT]
        settings = RULES[rule].settings_for(Schedule(rounds=2, warm_up_rounds=1, learning_rate=0.005))
        assert main([*simulate, *(f"--set={one}" for one in settings)]) == 0
        assert models(out / rule) == models(alone)
        assert len(models(alone)) == 2
        assert (out / rule / "report.html").exists()


def test_an_interrupt_leaves_no_process(tmp_path: Path) -> None:
    demo = Process(["demo", "--out", str(tmp_path / "demo"), "--set", "strategy.rounds=6"], by_exec=True)
    demo.until("each in one process, to compare")
    (server,) = children_of(demo.process.pid)
    demo.interrupt(signal.SIGINT)
    assert_one_clear_line(demo, ExitCode.INTERRUPTED, "interrupted", hint=str(tmp_path / "demo"))
    assert not Path(f"/proc/{server}").exists()


def test_runs_end_with_the_block_and_their_folders_hold_the_rounds_until_then(tmp_path: Path) -> None:
    before = set(children_of(os.getpid()))  # among them the fork server of other tests, whose copies go on
    with closing(Starter(2, as_copies=True)) as starter:
        with side_by_side({"one": LONG, "other": LONG}, tmp_path, starter):
            wait_for_rounds(tmp_path / "one", tmp_path / "other")
            servers = set(children_of(os.getpid())) - before
            children = [child for server in servers for child in children_of(server)]
        assert len(children) >= 2
        assert [child for child in children if Path(f"/proc/{child}").exists()] == []
    for name in ("one", "other"):
        record = read_run(tmp_path / name)
        assert record.summary is not None
        assert record.summary["status"] == "interrupted"
        assert record.summary["rounds"] == len(record.rounds)


def test_a_run_that_fails_is_named_and_ends_the_others(tmp_path: Path) -> None:
    wrong = ["digits", "--set", "strategy.rule=target_only", "--set", "training.target.batch-size=0"]
    with (
        closing(Starter(2, as_copies=True)) as starter,
        pytest.raises(ProcessFailed, match=r"^wrong: .*batch-size") as failure,
        side_by_side({"right": LONG, "wrong": wrong}, tmp_path, starter) as runs,
    ):
        runs.summaries(SilentReporter())
    assert failure.value.exit_code == ExitCode.CONFIG
    assert failure.value.hint
    assert (tmp_path / "processes" / "wrong" / "log.txt").exists()


def wait_for_rounds(*runs: Path) -> None:
    deadline = time.monotonic() + WAIT_S
    while not all((run / METRICS_FILE).exists() for run in runs):
        assert time.monotonic() < deadline
        time.sleep(0.05)
