"""A source in several processes: one site, one update, one log; a process that is lost ends the site's part."""

from __future__ import annotations

import signal
import socket
import time
from pathlib import Path
from typing import Any

from e2e_processes import WAIT_S, Kits, Process, assert_one_clear_line, free_port, kits

from securefda.audit.journal import logs_folder
from securefda.audit.reading import open_log
from securefda.errors import ExitCode

SHORT = ("strategy.rounds=2", "strategy.rule=source_only")
"""No layer is filtered out, so that no round is lost because nothing was known of how large a layer's numbers are."""

NOISY = "training.source.dp.noise-multiplier=1.0"


def settings_of(federation: Kits, site: str) -> str:
    return str(federation.kit(site) / "local" / "settings.toml")


def by_torchrun(federation: Kits, site: str, count: int) -> Process:
    """The command of the manual."""
    command = ["--standalone", "--nproc-per-node", str(count), "-m", "securefda.cli", "source", "start"]
    process = Process(
        [*command, "--config", settings_of(federation, site)], module="torch.distributed.run", by_exec=True
    )
    federation.processes.append(process)
    return process


def as_torchrun_does(federation: Kits, site: str, count: int, **options: Any) -> list[Process]:
    """The processes that torchrun would start, without torchrun to end them."""
    return [federation.start(site, env=place, **options) for place in places(count)]


def places(count: int) -> list[dict[str, str]]:
    """The variables that torchrun sets for each process."""
    common = {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1"}
    common["MASTER_PORT"] = str(free_port())
    return [common | {"RANK": str(rank)} for rank in range(count)]


def wait_until_open(port: int) -> None:
    """Wait for a process that listens. Raises TimeoutError: there is none."""
    until = time.monotonic() + WAIT_S
    while time.monotonic() < until:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise TimeoutError(f"nothing listens on port {port}")


def released(federation: Kits, site: str) -> list[int]:
    """In which rounds a masked update left a site, by its own log."""
    (log,) = logs_folder(federation.kit(site)).iterdir()
    entries = [record.entry for record in open_log(log).records()]
    return [entry.round for entry in entries if (entry.type, entry.direction) == ("MaskedInput", "sent")]


def test_a_source_under_torchrun_is_one_site_of_the_run(tmp_path: Path) -> None:
    with kits(tmp_path, settings=SHORT) as federation:
        target = federation.start("target").until("listens on")
        others = [federation.start(site) for site in ("source-2", "source-3")]
        source = by_torchrun(federation, "source-1", 2)
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
        leader, follower = as_torchrun_does(federation, "source-1", 2)
        assert [process.end() for process in (target, *others, leader, follower)] == [0] * 5, leader.text
        epsilons = [
            [line.rpartition("ε ")[2] for line in process.err if "ε " in line] for process in (leader, others[0])
        ]
        assert len(epsilons[0]) == 2
        assert epsilons[0] == epsilons[1]
        assert follower.err == []


def test_a_process_that_is_lost_ends_the_site_with_one_line_and_the_run_goes_on(tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    more = (*SHORT, f"task.data-dir={tmp_path}", "privacy.visibility=individual")
    with kits(tmp_path / "kits", settings=more, task="e2e_tasks:Endless") as federation:
        target = federation.start("target").until("listens on")
        others = [federation.start(site) for site in ("source-2", "source-3")]
        leader, follower = as_torchrun_does(federation, "source-1", 2)
        leader.until("round 1 of")
        follower.kill()
        hold.unlink()
        assert_one_clear_line(
            leader, ExitCode.FAILED, "one of the 2 processes that train together is gone", hint="start all of them"
        )
        assert [process.end() for process in (target, *others)] == [0] * 3, target.text
        assert federation.rounds()[-1]["survivors"] == ["source-2", "source-3"]


def test_a_follower_whose_leader_is_gone_ends_with_one_line(tmp_path: Path) -> None:
    with kits(tmp_path, settings=SHORT) as federation:
        leader, follower = as_torchrun_does(federation, "source-1", 2)
        leader.until("cannot reach")
        leader.kill()
        assert_one_clear_line(follower, ExitCode.FAILED, "one of the 2 processes that train together is gone")


def test_sigterm_ends_a_leader_that_waits_for_a_process_that_never_came(tmp_path: Path) -> None:
    with kits(tmp_path, settings=SHORT) as federation:
        place, _ = places(2)
        leader = federation.start("source-1", env=place)
        wait_until_open(int(place["MASTER_PORT"]))
        leader.process.send_signal(signal.SIGTERM)
        assert_one_clear_line(leader, ExitCode.TERMINATED, "interrupted")


def test_processes_that_do_not_find_each_other_end_with_one_line(tmp_path: Path) -> None:
    with kits(tmp_path, settings=SHORT) as federation, socket.create_server(("127.0.0.1", 0)) as other:
        place, _ = places(2)
        leader = federation.start("source-1", env=place | {"MASTER_PORT": str(other.getsockname()[1])})
        why = "the 2 processes that train together do not find each other: "
        assert_one_clear_line(leader, ExitCode.FAILED, why, "address", hint="start all of them again")


def test_a_target_under_torchrun_is_refused(tmp_path: Path) -> None:
    with kits(tmp_path, settings=SHORT) as federation:
        for target in as_torchrun_does(federation, "target", 2):
            assert_one_clear_line(
                target, ExitCode.CONFIG, "torchrun: started 2 processes, and the target trains in one", hint="without"
            )
