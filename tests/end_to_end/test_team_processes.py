"""A source in several processes: one site, one update, one log; a process that is lost ends the site's part."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from e2e_processes import WAIT_S, Kits, Process, assert_one_clear_line, children_of, kits, runs

from securefda.audit.journal import logs_folder
from securefda.audit.reading import open_log
from securefda.errors import ExitCode

SHORT = ("strategy.rounds=2", "strategy.rule=source_only")
"""No layer is filtered out, so that no round is lost because nothing was known of how large a layer's numbers are."""

NOISY = "training.source.dp.noise-multiplier=1.0"


def settings_of(federation: Kits, site: str) -> str:
    return str(federation.kit(site) / "local" / "settings.toml")


def released(federation: Kits, site: str) -> list[int]:
    """In which rounds a masked update left a site, by its own log."""
    (log,) = logs_folder(federation.kit(site)).iterdir()
    entries = [record.entry for record in open_log(log).records()]
    return [entry.round for entry in entries if (entry.type, entry.direction) == ("MaskedInput", "sent")]


def follower_of(leader: Process) -> int:
    """The number of the process that a source has started to train with it."""
    until = time.monotonic() + WAIT_S
    while time.monotonic() < until:
        if children := children_of(leader.process.pid):
            return children[0]
        time.sleep(0.05)
    raise TimeoutError(f"{leader.process.pid} has started no process")


def wait_until_gone(process: int) -> None:
    """Raises TimeoutError: it is still there."""
    until = time.monotonic() + WAIT_S
    while runs(process):
        if time.monotonic() > until:
            raise TimeoutError(f"process {process} is still there")
        time.sleep(0.05)


def test_a_source_in_two_processes_is_one_site_of_the_run(tmp_path: Path) -> None:
    with kits(tmp_path, settings=SHORT) as federation:
        target = federation.start("target").until("listens on")
        others = [federation.start(site) for site in ("source-2", "source-3")]
        source = federation.start("source-1", "training.processes=2")
        assert [process.end() for process in (target, *others, source)] == [0] * 4, source.text
        assert sum("joined" in line for line in source.err) == 1
        assert any("source-1 trains on cpu (1 thread), 2 processes" in line for line in source.err)
        assert [line["survivors"] for line in federation.rounds()] == [["source-1", "source-2", "source-3"]] * 2
        assert released(federation, "source-1") == [1, 2]


def test_with_noise_each_round_is_charged_once(tmp_path: Path) -> None:
    noisy = (*SHORT, NOISY, "privacy.budget.target-epsilon=50")
    with kits(tmp_path, settings=noisy) as federation:
        for site in federation.names:
            assert Process(["budget", "init", "--config", settings_of(federation, site)]).end() == 0
        target = federation.start("target").until("listens on")
        others = [federation.start(site) for site in ("source-2", "source-3")]
        leader = federation.start("source-1", "training.processes=2")
        assert [process.end() for process in (target, *others, leader)] == [0] * 4, leader.text
        epsilons = [
            [line.rpartition("ε ")[2] for line in process.err if "ε " in line] for process in (leader, others[0])
        ]
        assert len(epsilons[0]) == 2
        assert epsilons[0] == epsilons[1]


def test_a_process_that_is_lost_ends_the_site_with_one_line_and_the_run_goes_on(tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    more = (*SHORT, f"task.data-dir={tmp_path}", "privacy.visibility=individual")
    with kits(tmp_path / "kits", settings=more, task="e2e_tasks:Endless") as federation:
        target = federation.start("target").until("listens on")
        others = [federation.start(site) for site in ("source-2", "source-3")]
        leader = federation.start("source-1", "training.processes=2")
        leader.until("round 1 of")
        os.kill(follower_of(leader), signal.SIGKILL)
        hold.unlink()
        assert_one_clear_line(
            leader, ExitCode.FAILED, "one of the 2 processes that train together is gone", hint="start the site again"
        )
        assert [process.end() for process in (target, *others)] == [0] * 3, target.text
        assert federation.rounds()[-1]["survivors"] == ["source-2", "source-3"]


def test_a_follower_ends_with_its_leader_even_in_a_step_without_end(tmp_path: Path) -> None:
    (tmp_path / "hold").touch()
    more = (*SHORT, f"task.data-dir={tmp_path}", "privacy.visibility=individual")
    with kits(tmp_path / "kits", settings=more, task="e2e_tasks:Endless") as federation:
        federation.start("target").until("listens on")
        for site in ("source-2", "source-3"):
            federation.start(site)
        leader = federation.start("source-1", "training.processes=2").until("round 1 of")
        follower = follower_of(leader)
        leader.kill()
        wait_until_gone(follower)


def test_sigterm_ends_a_leader_that_waits_for_its_follower_and_both_are_gone(tmp_path: Path) -> None:
    with kits(tmp_path, settings=SHORT) as federation:
        leader = federation.start("source-1", "training.processes=2")
        follower = follower_of(leader)
        leader.process.send_signal(signal.SIGTERM)
        assert_one_clear_line(leader, ExitCode.TERMINATED, "interrupted")
        wait_until_gone(follower)


def test_torchrun_is_refused_before_anything_else(tmp_path: Path) -> None:
    with kits(tmp_path, settings=SHORT) as federation:
        for site, hint in (("target", "the target trains in one process"), ("source-1", "give --processes N")):
            process = federation.start(site, env={"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "2", "RANK": "1"})
            assert_one_clear_line(process, ExitCode.CONFIG, "torchrun: started this process", hint=hint)
