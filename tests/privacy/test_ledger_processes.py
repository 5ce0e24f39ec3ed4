"""Several processes on one ledger, and processes that are killed: at each point of the disk, with -9."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from disk_points import die_at, tell_disk_points
from ledger_site import DATA, EVENT, NOON, WIDE, Site

from securefda.errors import BudgetExhausted
from securefda.privacy.accountants import epsilon
from securefda.privacy.dp_events import Budget
from securefda.privacy.ledger import Ledger
from securefda.privacy.ledger_storage import LedgerError

DELTA = 1e-5
SCRIPT = Path(__file__).with_name("spend_and_die.py")
FINISHED, REFUSED, FAILED = 0, 11, 1


def enough_for(rounds: int) -> Budget:
    return Budget(epsilon([EVENT] * rounds, DELTA), DELTA)


def in_a_child(work: Callable[[], int]) -> int:
    """Start ``work`` in a copy of this process and return the copy's number; its result is the exit status."""
    child = os.fork()
    if child:
        return child
    status = FAILED
    try:
        status = work()
    finally:
        os._exit(status)


def status_of(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("rounds_left", [1, 3])
def test_processes_that_race_for_the_last_of_a_budget_never_overspend_it(tmp_path: Path, rounds_left: int) -> None:
    budget = enough_for(rounds_left)
    for number in range(10):
        (tmp_path / str(number)).mkdir()
        site = Site.new(tmp_path / str(number))
        gate, open_gate = os.pipe()

        def spend(site: Site = site, gate: int = gate, open_gate: int = open_gate) -> int:
            os.close(open_gate)
            os.read(gate, 1)  # returns for all of them at once, when the last copy of the other end is closed
            try:
                site.ledger.reserve(replace(EVENT, run_id=f"run-{os.getpid()}"), budget, now=NOON)
            except BudgetExhausted as error:
                return int(error.exit_code)
            return FINISHED

        children = [in_a_child(spend) for _ in range(rounds_left + 2)]
        os.close(open_gate)
        ended = sorted(status_of(child) for child in children)
        os.close(gate)

        assert ended == [FINISHED] * rounds_left + [REFUSED] * 2
        assert len(site.ledger.events()) == rounds_left
        assert site.ledger.spent(DELTA) <= budget.epsilon


def started(site: Site, run: str, limit: float) -> subprocess.Popen[str]:
    command = [sys.executable, str(SCRIPT), str(site.path), run, repr(limit)]
    paths = os.pathsep.join([str(SCRIPT.parents[2]), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": paths}
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_two_runs_of_their_own_processes_share_one_budget_to_its_end(tmp_path: Path) -> None:
    site, budget = Site.new(tmp_path), enough_for(12)
    processes = [started(site, run, budget.epsilon) for run in ("run-1", "run-2")]

    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    printed = "".join(process.communicate()[0] for process in processes)

    assert [process.returncode for process in processes] == [REFUSED, REFUSED]
    assert printed.count("reserved") == printed.count("committed") == len(site.ledger.events()) == 12
    assert site.ledger.spent(DELTA) == budget.epsilon


def killed_at_each_point(
    tmp_path: Path, work: Callable[[Path], object], *, before: Callable[[Path], object] = lambda place: None
) -> Iterator[Path]:
    """Run ``work`` in copies of this process, each in a folder of its own and killed at another point of the disk.

    Yields what each leaves, the last one without having been killed. ``before`` prepares the folder.
    """
    for number in itertools.count(1):
        place = tmp_path / f"killed-{number}"
        place.mkdir()
        before(place)

        def work_and_die(number: int = number, place: Path = place) -> int:
            tell_disk_points(place, die_at(number))
            work(place)
            return FINISHED

        ended = status_of(in_a_child(work_and_die))
        assert ended in (-signal.SIGKILL, FINISHED)
        yield place
        if ended == FINISHED:
            return


def test_process_killed_at_any_point_of_a_round_leaves_it_charged_in_full_or_never_begun(tmp_path: Path) -> None:
    def work(place: Path) -> None:
        site = Site(place / "ledger.sqlite")
        reservation = site.ledger.reserve(EVENT, WIDE, now=NOON)
        (place / "trains").touch()
        site.ledger.commit(reservation, steps=EVENT.steps, now=NOON)

    kinds = set()
    for place in killed_at_each_point(tmp_path, work, before=Site.new):
        site = Site(place / "ledger.sqlite")
        has_trained = (place / "trains").exists()
        assert site.ledger.events() in (((EVENT,),) if has_trained else ((), (EVENT,)))
        kinds.add(tuple(row.kind for row in site.ledger.rows()))
        site.rounds(2)
    assert kinds == {("opened",), ("opened", "reserved"), ("opened", "reserved", "committed")}


def test_process_killed_at_any_point_of_making_a_ledger_leaves_none_or_a_whole_one(tmp_path: Path) -> None:
    made = set()
    for place in killed_at_each_point(tmp_path, lambda place: Ledger.create(place / "ledger.sqlite", DATA, now=NOON)):
        made.add((place / "ledger.sqlite").exists())
        with contextlib.suppress(LedgerError):  # it exists already; whether it can be used is what follows
            Ledger.create(place / "ledger.sqlite", DATA, now=NOON)
        Site(place / "ledger.sqlite").rounds(1)
    assert made == {False, True}


def test_ledger_that_another_process_holds_is_refused_in_one_line_after_the_wait(tmp_path: Path) -> None:
    site = Site.new(tmp_path)
    hold = (
        "import sqlite3, sys; database = sqlite3.connect(sys.argv[1], isolation_level=None); "
        "database.execute('BEGIN IMMEDIATE'); print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", hold, str(site.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"

        with pytest.raises(LedgerError, match=r"another process has been writing to it for 0.1 seconds") as refusal:
            Ledger(site.path, DATA, wait_s=0.1).reserve(EVENT, WIDE, now=NOON)

        holder.communicate("")
    assert refusal.value.exit_code == REFUSED
    assert site.ledger.events() == ()


def test_reader_beside_processes_that_write_sees_rows_grow_and_never_an_alarm(tmp_path: Path) -> None:
    site = Site.new(tmp_path)

    def write() -> int:
        site.rounds(*range(1, 41))
        return FINISHED

    children = {in_a_child(write) for _ in range(2)}
    seen = [len(site.ledger.rows())]
    while children:
        seen.append(len(site.ledger.rows()))
        for child in list(children):
            if os.waitpid(child, os.WNOHANG)[0]:
                children.remove(child)

    assert seen == sorted(seen)
    assert len(site.ledger.events()) == 80


def test_threads_of_one_process_share_a_ledger(tmp_path: Path) -> None:
    site = Site.new(tmp_path)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(site.rounds, range(1, 21)))

    assert sorted(event.round for event in site.ledger.events()) == list(range(1, 21))
