"""``securefda run``: what it shows, which cause it names, what it takes with it, and how it goes on."""

from __future__ import annotations

import itertools
import os
import re
import resource
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

from e2e_processes import Process, assert_one_clear_line, children_of, runs
from fork_server import REPOSITORY
from terminals import eventually, terminal_of

from securefda.cli import main
from securefda.errors import ExitCode
from securefda.operations.run_folder import read_run
from securefda.operations.state import read_state

FEDERATION = """
[federation]
name = "study"
sources = ["source-1", "source-2"]
[task]
factory = "{factory}"
[privacy]
visibility = "individual"
[strategy]
rounds = {rounds}
warm-up-rounds = 0
[training.target]
batch-size = 20
"""


def federation(folder: Path, rounds: int = 3, factory: str = "securefda.tasks.digits:Digits", more: str = "") -> Path:
    file = folder / "federation.toml"
    file.write_text(FEDERATION.format(factory=factory, rounds=rounds) + more)
    return file


def test_a_task_that_raises_ends_the_run_with_its_words_and_place(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run = Process(["run", str(federation(tmp_path, factory="e2e_tasks:RaisesInLoss")), "--out", str(out)])
    assert_one_clear_line(
        run, ExitCode.CONFIG, "RaisesInLoss", "ValueError", "e2e_tasks.py, line", hint="no such label"
    )
    summary = read_run(out).summary
    if summary is not None:  # where the target had begun
        assert summary["status"] == "failed"
        assert "ValueError" in summary["error"]["message"]
        assert summary["rounds"] == 0


def test_the_first_cause_is_named_and_not_what_it_does_to_others(tmp_path: Path) -> None:
    """The target's files may not grow: what its sources then say of it is not the cause."""
    out = tmp_path / "out"
    file = federation(tmp_path, rounds=5000)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, before[1]))
    try:
        run = Process(["run", str(file), "--out", str(out)], by_exec=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    run.end()
    errors = [line for line in run.err if line.startswith("error: ")]
    assert len(errors) == 1, run.text
    state = read_state(out)
    assert state is not None
    assert state.error == errors[0].removeprefix("error: ")  # `securefda status` and the dashboard say the same
    assert re.match(r"error: (target|source-[12]): .*(File too large|full|disk I/O error)", errors[0]), run.text
    assert "CHECKPOINT" not in errors[0]


def open_files(process: int) -> set[str]:
    """What a process has open; it goes on meanwhile, and may close a file between two looks."""
    found = set()
    for link in Path(f"/proc/{process}/fd").iterdir():
        with suppress(FileNotFoundError):
            found.add(str(link.readlink()))
    return found


def test_sites_are_processes_that_share_no_file_and_a_killed_launcher_takes_them_with_it(tmp_path: Path) -> None:
    """Copies of one process: each in a session of its own, with its own ends of sockets."""
    run = Process(["run", str(federation(tmp_path, 5000)), "--out", str(tmp_path / "out")])
    run.until("round 1 of ")
    (server,) = children_of(run.process.pid)
    sites = children_of(server)
    assert len(sites) == 3
    assert [os.getsid(site) for site in sites] == sites
    opened = [open_files(one) for one in (server, *sites)]
    for one, other in itertools.combinations(opened, 2):
        both = one & other - {os.devnull}
        assert [name for name in both if not name.startswith("anon_inode:")] == []  # which has no name of its own
    run.kill()
    eventually(lambda: not any(map(runs, (server, *sites))))


def test_a_long_round_says_on_a_terminal_and_in_the_status_how_far_each_site_is(tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "out"
    file = federation(tmp_path, rounds=1, factory="e2e_tasks:SlowSteps")
    with terminal_of(["run", str(file), "--out", str(out)]) as run:
        run.shows(r"source-[12]: step \d+ of \d+, about \d")
        assert main(["status", str(out)]) == 0
        assert re.search(r"source source-[12]: training, .*\n  step \d+ of \d+, about", capsys.readouterr().out)
        run.shows(r"training alone|training; target: step \d+ of \d+")


def test_a_site_that_crashes_is_known_by_its_exit_code(tmp_path: Path) -> None:
    run = Process(["run", str(federation(tmp_path, 5000)), "--out", str(tmp_path / "out")])
    run.until("round 1 of ")
    (server,) = children_of(run.process.pid)
    os.kill(children_of(server)[-1], signal.SIGSEGV)
    assert_one_clear_line(run, ExitCode.FAILED, "source-2", "ended without a result (exit code -11)", hint="log.txt")


def test_where_no_process_can_be_copied_each_starts_by_itself(tmp_path: Path) -> None:
    """What keeps the server from copying itself here is a thread that every process of this Python has."""
    (tmp_path / "sitecustomize.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    path = os.pathsep.join([str(tmp_path), str(REPOSITORY)])
    command = ["run", str(federation(tmp_path, 5000)), "--out", str(tmp_path / "out")]
    run = Process(command, by_exec=True, env={"PYTHONPATH": path})
    run.until("round 1 of ")
    commands = [Path(f"/proc/{child}/cmdline").read_text().split("\0") for child in children_of(run.process.pid)]
    assert [command[4:6] for command in commands] == [["aggregator", "start"], ["source", "start"], ["source", "start"]]
    run.interrupt(signal.SIGINT)
    assert_one_clear_line(run, ExitCode.INTERRUPTED, "interrupted", hint="goes on")


def test_an_interrupted_run_takes_its_processes_with_it_and_goes_on_only_with_its_settings(tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = ["run", str(federation(tmp_path, 5000)), "--out", str(out)]
    first = Process(command).until("round 2 of 5000: ")
    (server,) = children_of(first.process.pid)
    children = [server, *children_of(server)]
    assert len(children) == 4
    first.interrupt(signal.SIGINT)
    assert_one_clear_line(first, ExitCode.INTERRUPTED, "interrupted", hint="goes on")
    assert str(out) in first.text
    # at once, for both take a while
    assert "interrupted: the sites end in order, then the report is written" in first.err
    assert [child for child in children if Path(f"/proc/{child}").exists()] == []
    summary = read_run(out).summary
    assert summary is not None
    assert summary["status"] == "interrupted"
    digests = {line["round"]: line["model_digest"] for line in read_run(out).rounds}

    others = ("--set", "strategy.rounds=12", "--set", "training.source.learning-rate=0.5", "--seed", "3")
    other = Process([*command, *others])
    assert_one_clear_line(
        other,
        ExitCode.CONFIG,
        "holds a run with other settings",
        "--seed: 0 \N{RIGHTWARDS ARROW} 3, strategy.rounds: 5000 \N{RIGHTWARDS ARROW} 12",
        "training.source.learning-rate: 0.001 \N{RIGHTWARDS ARROW} 0.5",
        hint="--fresh",
    )
    assert "going on" not in other.text
    assert {line["round"]: line["model_digest"] for line in read_run(out).rounds} == digests

    last = max(digests)
    second = Process(command).until(f"round {last + 1} of 5000: ")
    assert any(line.startswith("going on with the run in") for line in second.err), second.text
    second.interrupt(signal.SIGINT)
    rounds = {line["round"]: line.get("model_digest") for line in read_run(out).rounds}
    assert sorted(rounds) == list(range(1, len(rounds) + 1))
    assert {number: rounds[number] for number in digests} == digests


def test_fresh_deletes_a_finished_run_and_nothing_that_no_run_wrote(tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = ["run", str(federation(tmp_path, 1)), "--out", str(out)]
    assert Process(command).end() == 0
    again = Process(command)
    assert_one_clear_line(again, ExitCode.CONFIG, "holds a run already", hint="--fresh")

    (out / "thesis.docx").write_text("mine")
    kept = Process([*command, "--fresh"])
    assert_one_clear_line(kept, ExitCode.CONFIG, "thesis.docx", "which no run writes", hint="nothing was deleted")
    assert read_run(out).summary is not None
    (out / "thesis.docx").unlink()

    before = read_run(out).summary
    anew = Process([*command, "--fresh"])
    assert anew.end() == 0, anew.text
    after = read_run(out).summary
    assert before is not None
    assert after is not None
    assert before["run_id"] != after["run_id"]
